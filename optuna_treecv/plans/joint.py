"""Plans that evaluate all folds of a repeat jointly, for all candidates of a family."""

from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any
from typing import TypeVar

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split

from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import Failed
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import results_of
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import Work
from optuna_treecv.core.fold_models import check_n_bytes
from optuna_treecv.core.fold_models import check_n_models
from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.fold_models import LinearModels
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.core.request import score_cache
from optuna_treecv.estimators.base import last_step
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.plans.family import CachedSums
from optuna_treecv.plans.family import computing
from optuna_treecv.plans.family import Facts
from optuna_treecv.plans.family import Family
from optuna_treecv.plans.family import make_chunks
from optuna_treecv.plans.family import Parts
from optuna_treecv.plans.family import split_for_family
from optuna_treecv.plans.fits import fit_fold_models
from optuna_treecv.plans.reduced import ReducedFolds
from optuna_treecv.preprocessing.fitted import Table
from optuna_treecv.preprocessing.parts import foreign_code
from optuna_treecv.preprocessing.parts import ModelsFrom
from optuna_treecv.preprocessing.parts import NotAheadError
from optuna_treecv.preprocessing.parts import unshared
from optuna_treecv.preprocessing.reducers import FREE_PARAMETERS
from optuna_treecv.preprocessing.reducers import why_not_reduced
from optuna_treecv.rows.data import in_given_order
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.distributed import Block
from optuna_treecv.rows.distributed import RemoteCall
from optuna_treecv.rows.folds import by_number
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.layout import RowLayout
from optuna_treecv.rows.partition import Node
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import can_score_from_squares
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import joined
from optuna_treecv.scoring.scores import OUTPUTS_DIVERGED
from optuna_treecv.scoring.scores import scores_from_squares
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.scoring.scores import unknown_spreads

# The maximum number of test rows of several folds that are predicted together.
_MAX_ROWS = 2**14

# The maximum number of bytes of all candidates' predictions for such rows.
_MAX_BYTES = 2**27

# The parameters of iterative solvers for fold models whose transformers are fitted per fold.
_TOL, _MAX_ITER = 1e-10, 100_000

T = TypeVar("T")

_RESPONSES = {"predict", "decision_function", "predict_proba"}


class JointPlan(Plan):
    """A plan that evaluates all folds of a repeat jointly, for candidates of one family.

    Parameters
    ----------
    request : Request
    parts : Parts
        The divided estimator.

    Attributes
    ----------
    reason_not_finite : str
        The reason for refitting each fold if a model is not finite.
    reason_failed : str
        The reason for refitting each fold if the family raises an error.
    rereads_rows : bool
        Whether the rows are read again for each candidate.
    """

    reason_not_finite: str
    reason_failed: str
    rereads_rows = False

    def __init__(self, request: Request, parts: Parts) -> None:
        super().__init__(request)
        self.parts = parts
        self._made: dict[Hashable, Any] = {}

    @abstractmethod
    def rows(self, repeat: Repeat) -> PreparedRows:
        """Return the rows of a repeat in the form that the family requires."""

    @abstractmethod
    def bind(
        self, repeat: Repeat, rows: PreparedRows, candidates: Sequence[Candidate], method: str = ""
    ) -> Family | ReducedFolds:
        """Return a family of these candidates, bound to rows.

        The family predicts by ``method``. If ``method`` is empty, it predicts by the methods that
        the scores require.
        """

    def fixed_parts(self) -> Sequence[Any]:
        """Return the steps of the estimator, with None as the values of its free parameters."""
        last = copy(self.parts.last)
        for name in self.parts.names:
            setattr(last, name, None)
        linear = []
        for _, step in self.parts.linear:
            linear.append(copy(step))
            if type(step) in FREE_PARAMETERS:
                setattr(linear[-1], FREE_PARAMETERS[type(step)], None)
        return [*self.parts.steps, *linear, self.parts.scaler, last]

    def free_values(self, candidate: Candidate, repeat: Repeat) -> Any:
        """Return a tuple with the values of a candidate's free parameters.

        If there is exactly one free parameter, its value is returned instead of a tuple.
        """
        last = last_step(candidate)
        values = tuple(getattr(last, name) for name in self.parts.names)
        if self.parts.linear:
            steps = dict(candidate.steps)
            values += tuple(
                getattr(steps[name], FREE_PARAMETERS[type(step)])
                for name, step in self.parts.linear
                if type(step) in FREE_PARAMETERS
            )
        return values[0] if len(values) == 1 else values

    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return the keys under which the scores of a candidate are stored."""
        cached = self.compute_once(
            ("scores", repeat.number),
            lambda: score_cache(self.request, repeat, self.name, self.fixed_parts()),
        ).for_candidate(self.free_values(candidate, repeat))
        results = results_of(self.request, repeat, cached)
        return results._replace(group=cached.sums_key, bound=cached.sums_key)

    def evaluate(self, work: Work) -> Generator[Event]:
        """Evaluate all folds of candidates that differ only in free parameters."""
        try:
            yield from self._evaluate(work)
        except ValueError as error:
            if len(work.candidates) > 1:  # evaluated alone, each candidate may succeed
                raise
            yield self._failed(error)

    def _failed(self, error: ValueError, candidate: int = 0) -> Failed:
        reason = self.reason_not_finite
        if reason not in str(error):
            reason = f"{self.reason_failed} ({str(error).removesuffix('.')})"
        return Failed(error, reason, candidate)

    def _not_finite(self) -> ValueError:
        return ValueError(
            f"method={self.name!r} cannot evaluate this estimator, because "
            f"{self.reason_not_finite}; use method='auto' instead."
        )

    def _evaluate(self, work: Work) -> Generator[Event]:
        candidates, sinks, repeat, _, _, (sums_key, *_) = work
        request, chunks = self.request, make_chunks(repeat.cut)
        rows = self.rows(repeat)
        sums = CachedSums(request.cross_validation.shared.memory, sums_key)
        # The size of the predictions limits the number of candidates that are evaluated together.
        n_outputs = request.cross_validation.n_targets
        n_outputs = n_outputs if rows.classes is None else len(rows.classes)
        n_rows = chunks.bounds[-1] if request.pools else max(chunks.sizes.max(), _MAX_ROWS)
        size = max(1, _MAX_BYTES // (8 * int(n_rows) * n_outputs))
        key, squares = ("squares", repeat.number), partial(_use_squares, request, rows, chunks)
        use_squares = not request.needs_rows and self.compute_once(key, squares)
        lost: set[int] = set()
        with computing():
            for begin in range(0, len(candidates), size):
                family = self.bind(repeat, rows, candidates[begin : begin + size])
                tested = self._from_squares(family, chunks, sums) if use_squares else None
                for number, event in tested or self.test_folds(family, repeat, rows, chunks, sums):
                    candidate = begin + number
                    rows_of = event.predictions
                    is_lost = np.any(
                        event.scores.diverged == OUTPUTS_DIVERGED
                        if rows_of is None and event.scores is not None
                        else rows_of is not None and rows_of.diverged()
                    )
                    lost |= {candidate} if is_lost else set()
                    if candidate not in lost:
                        n_needed = chunks.n_read if event.folds.first == 0 else 0
                        yield event._replace(candidate=candidate, n_needed=n_needed)
        for candidate in sorted(lost):
            yield self._failed(self._not_finite(), candidate)
        is_read = sums.were_cached and not self.rereads_rows
        for sink in sinks:
            sink.cost.seconds_prepare = rows.seconds
            sink.cost.n_updates += 0 if is_read else chunks.n_read
            is_read = not self.rereads_rows  # the first candidate reads the rows for all

    def _from_squares(
        self, family: Family | ReducedFolds, chunks: Chunks, sums: CachedSums
    ) -> list[tuple[int, TestedFolds]] | None:
        """Return the scores from sums of squared errors, or None if predictions are needed."""
        squares = family.squares(chunks, sums)
        metrics = self.request.scoring.metrics
        scores = None if squares is None else scores_from_squares(metrics, *squares)
        if scores is None:
            return None
        n_folds = scores.shape[2]
        unknown = np.zeros(n_folds, bool), unknown_spreads(len(metrics), n_folds)
        points = (FoldScores(of_point, *unknown) for of_point in scores)
        return [(i, TestedFolds(i, Node(0, n_folds), 0, scores=s)) for i, s in enumerate(points)]

    def test_folds(
        self, family: Any, repeat: Repeat, rows: PreparedRows, chunks: Chunks, sums: CachedSums
    ) -> Iterator[tuple[int, TestedFolds]]:
        """Yield (index of the candidate, tested folds) in the order of the folds.

        For remote rows, the tested folds have scores instead of predictions, unless the request
        needs predictions.
        """
        if self.request.data.is_remote and not self.request.needs_predictions:
            yield from scores_of_blocks(self.request, family, rows, chunks, sums)
            return
        for part, outputs in self.predictions(family, chunks, sums):
            first, last = part.start, part.stop
            begin, end = chunks.bounds[[first, last]]
            folds = Node(*np.searchsorted(chunks.scored_bounds, [begin, end]).tolist())
            bounds = chunks.scored_bounds[folds.first : folds.last + 1] - begin
            begins = None if bounds[-1] == len(bounds) - 1 else bounds[:-1]
            test_rows = chunks.test_rows(first, last)
            for number, of_point in enumerate(outputs):
                of_rows = TestedRows.of(rows, test_rows, of_point, family.response, begins)
                yield number, TestedFolds(number, folds, 0, of_rows)

    def predictions(self, family: Any, chunks: Chunks, sums: CachedSums) -> Iterable[TestedChunks]:
        """Yield the outputs of all candidates' models for the test rows of consecutive chunks.

        Remote rows are predicted where they are, and the outputs are returned.
        """
        if not self.request.data.is_remote:
            return family.test(chunks, sums, _MAX_ROWS)
        tested = _test_in_blocks(family, chunks, sums, None)
        return ((slice(*folds), out) for folds, _, out in tested if out is not None)

    def fold_models(self, candidate: Candidate, repeat: Repeat) -> FoldModels:
        """Return the models of all folds: linear ones as solved, others refitted."""
        parts, request = self.parts, self.request
        has_maps = parts.kinds or parts.linear
        if not parts.family.is_linear or has_maps or request.data.is_remote:
            return self._refit_folds(candidate, repeat)
        rows = self.rows(repeat)
        check_n_bytes(repeat.cut.n_folds, rows.n_features + 1)
        try:
            family: Any = self.bind(repeat, rows, [candidate])
            with computing():
                coef, intercept = family.linear_models(make_chunks(repeat.cut), CachedSums())
            if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
                raise self._not_finite()
        except ValueError as error:
            raise self._failed(error) from error
        models = LinearModels(self.fit(candidate), coef, intercept, family.has_link)
        if last_step(candidate) is candidate:
            return FoldModels(models, models.fitted)
        check_n_models(candidate, repeat.cut.n_folds)
        return FoldModels([*self._with_transformers(models, repeat.cut)], models.fitted)

    def _with_transformers(self, models: LinearModels, cut: Cut) -> Iterator[Candidate]:
        """Yield a fitted Pipeline for each chunk, whose last step has the coefficients.

        The coefficients are those of the columns before the scaler.
        """
        data, pipeline = self.request.data, models.fitted
        *steps, (name, last) = pipeline.steps
        for chunk, (coef, intercept) in enumerate(zip(models.coef, models.intercept, strict=True)):
            before = clone(Pipeline(steps))
            train = cut.split(chunk).train_rows()
            before.fit(*_safe_split(before, data.X_given, data.y_given, train))
            if self.parts.scaler is not None:
                scaler = before.steps[-1][1]
                if scaler.mean_ is not None and scaler.with_mean:
                    intercept = intercept + coef @ scaler.mean_
                coef = coef if scaler.scale_ is None else coef * scaler.scale_
            fitted = copy(pipeline)
            of_fold = LinearModels(last, coef[None], intercept[None]).model(0)
            fitted.steps = [*before.steps, (name, of_fold)]
            yield fitted

    def _refit_folds(self, candidate: Candidate, repeat: Repeat) -> FoldModels:
        """Refit each fold; iterative solvers converge, as the models that were scored have."""
        prefix, last, ignored = self.parts.prefix, last_step(candidate), self.parts.family.ignored
        names = [name for name in ("tol", "max_iter") if name in ignored and hasattr(last, name)]
        given = {f"{prefix}{name}": getattr(last, name) for name in names}
        tight = dict(zip(given, (_TOL, _MAX_ITER), strict=False))
        models = fit_fold_models(self.request, clone(candidate).set_params(**tight), repeat)
        for model in models:
            model.set_params(**given)
        return models

    def score_targets(self, candidate: Candidate, repeat: Repeat) -> np.ndarray:
        """Return the scores of each target on its own, by the first metric, (n_targets, n_folds).

        The family must be one whose models of a target do not depend on the other targets.
        """
        request, rows, chunks = self.request, self.rows(repeat), make_chunks(repeat.cut)
        metric, sums = request.scoring.metrics[:1], CachedSums()
        with computing():
            family = self.bind(repeat, rows, [candidate])
            squares = scores = None
            if _use_squares(request, rows, chunks):
                squares = family.squares(chunks, sums)
            if squares is not None:
                errors, totals, weights = squares
                scores = scores_from_squares(metric, errors.T, totals.T[:, :, None], weights)
            if scores is None:
                scores = np.zeros((request.cross_validation.n_targets, 1, chunks.n_chunks))
                for _, event in self.test_folds(family, repeat, rows, chunks, sums):
                    assert event.predictions is not None
                    for target, of_target in enumerate(event.predictions.split_targets()):
                        scored = scores_of_folds(metric, of_target, candidate, None)
                        if np.any(scored.diverged):
                            raise self._not_finite()
                        scores[target, :, event.folds.first : event.folds.last] = scored.scores
        return np.array([by_number(repeat.cut, of_target) for of_target in scores[:, 0]])

    def compute_once(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return the result of ``make``, which is called only for the first candidate."""
        if name not in self._made:
            self._made[name] = make()
        made: T = self._made[name]
        return made

    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> np.ndarray:
        """Return the predictions for all test rows, each by the model of its fold."""
        try:
            rows = self.rows(repeat)
            family = self.bind(repeat, rows, [candidate], method)
            with computing():
                memory = self.request.cross_validation.shared.memory
                sums = CachedSums(memory, self.results(candidate, repeat).bound)
                tested = self.predictions(family, make_chunks(repeat.cut), sums)
                outputs = np.concatenate([outputs[0] for _, outputs in tested])
                prepared = family.response(outputs, method)
            if not np.all(np.isfinite(outputs)):
                raise self._not_finite()
        except ValueError as error:
            raise self._failed(error) from error
        classes = rows.classes if method == "predict" else None
        return in_given_order(prepared, rows.order, classes)


def _use_squares(request: Request, rows: PreparedRows, chunks: Chunks) -> bool:
    """Return whether scores are computed from sums of squared errors instead of predictions.

    Sums take less time for large folds. They use the training weights. Therefore, the weights of
    scores must be the same, and must not have been rounded to float32.
    """
    data = request.data
    return (
        data.score_weights is data.weights
        and (rows.weights is None or rows.weights.dtype == np.float64)
        and can_score_from_squares(request.scoring.metrics)
        and not chunks.are_single_rows
        and int(np.median(np.diff(chunks.scored_bounds))) >= rows.n_features
    )


def why_not_scored(request: Request) -> str:
    """Return the reason why a score needs more than predictions, or "" if no score does."""
    scoring = request.settings.scored_by
    for metric in () if scoring is None else scoring.metrics:
        scorer = metric.of if isinstance(metric, Pooled) else metric
        if isinstance(scorer, Scorer) and not scorer.is_made:
            return f"the scorer {scorer.name} may use more than predictions"
        methods = [scorer.methods] if isinstance(scorer.methods, str) else scorer.methods
        if not _RESPONSES.issuperset(methods or ()):
            return (
                f"the scorer {scorer.name} calls methods other than predict, predict_proba and "
                "decision_function"
            )
    return ""


class SumsPlan(JointPlan):
    """A joint plan whose transformers are stateless or are computed from sums over rows.

    Attributes
    ----------
    families : dict of type to type
        The family of each estimator.
    reason_unsupported : str
        The reason why the engine does not support another estimator, as part of a sentence in
        which ``{}`` stands for the name of the estimator's class.
    relevance : int
        The relevance of this reason, see ``Declined``.
    """

    families: Mapping[type, type[Family]]
    reason_unsupported: str
    relevance = 0
    one_epoch_reason: str

    def __init__(self, request: Request, parts: Parts) -> None:
        super().__init__(request, parts)
        self.capabilities = Capabilities(
            free_parameters=parts.parameters,
            shared_parameters=parts.parameters,
            is_seeded=False,
            one_epoch_reason=self.one_epoch_reason,
            falls_back=not request.data.is_remote,
            evaluates_jointly=True,
            leaves_out_pairs=True,
            models_from=ModelsFrom.SUMS,
        )

    @classmethod
    def why_not(cls, request: Request, parts: Parts) -> str:
        """Return the reason why the plan cannot evaluate these parts, or "" if it can."""
        return ""

    def check(self, candidate: Candidate) -> None:
        """Raise an error for invalid parameters, as the estimator's ``fit`` does."""
        if self.parts.scaler is not None:
            self.parts.scaler._validate_params()
        if not any(name in self.request.searched for name in self.parts.linear_parameters):
            for _, step in self.parts.linear:
                step._validate_params()
        if not any(name in self.request.searched for name in self.parts.parameters):
            last_step(candidate)._validate_params()

    def rows(self, repeat: Repeat) -> PreparedRows:
        """Return the rows of a repeat, transformed by the steps that are equal for all folds."""
        parts, cross_validation = self.parts, self.request.cross_validation
        target = "class" if is_classifier(parts.last) else "number"
        layout = RowLayout(padded=True, sparse=True, target=target)
        table = table_of(self.request, parts)
        if not isinstance(table, Table):
            if not parts.steps:
                return cross_validation.rows_in(layout, repeat)
            name = first_key(parts.steps, lasting_key)
            return cross_validation.rows_in(layout, repeat, partial(_after, parts.steps), name)
        rows, maps = cross_validation.rows_in(layout, repeat, table.transform, table.name), None
        if table.has_maps:
            make = partial(table.maps, rows, make_chunks(repeat.cut))
            maps = self.compute_once(("maps", repeat.number), make)
        return replace(rows, n_features=table.n_features, maps=maps)

    def bind(
        self, repeat: Repeat, rows: PreparedRows, candidates: Sequence[Candidate], method: str = ""
    ) -> Family | ReducedFolds:
        """Return a family of these candidates, bound to rows."""
        n_threads = self.request.settings.n_threads
        if self.parts.linear:
            make = partial(self.parts.family, scaler=None, n_jobs=n_threads)
            names = [name for name, _ in self.parts.linear]
            return ReducedFolds(make, candidates, names, rows, n_threads)
        if self.request.data.is_remote:  # these threads only wait for sums from remote workers
            n_threads = CALLS_IN_FLIGHT * (len(rows.X.bounds) - 1)
        lasts = [last_step(candidate) for candidate in candidates]
        return self.parts.family(lasts, rows, self.parts.scaler, n_threads)


def plan_of_sums(kind: type[SumsPlan], request: Request) -> SumsPlan | Declined:
    """Return a plan of the class ``kind``, or the reason why it cannot evaluate the request."""
    parts = split_for_family(request.estimator, kind.families, kind.reason_unsupported)
    is_family = type(last_step(request.estimator)) in kind.families
    why_not = _why_not(kind, request, parts)
    if not why_not and isinstance(parts, Parts):
        why_not = kind.why_not(request, parts)
    if why_not or isinstance(parts, str):
        kinds = ", ".join(family.__name__ for family in kind.families)
        supported = f" It supports {kinds}, alone or as the last step of a Pipeline."
        advice = (
            f"method={kind.name!r} cannot evaluate this estimator, because {why_not}; use "
            f"method='auto' instead.{'' if is_family else supported}"
        )
        free = request.estimator.get_params() if isinstance(parts, str) else parts.parameters
        return Declined(why_not, advice, free, 2 if is_family else kind.relevance)
    plan = kind(request, parts)
    plan.check(request.estimator)
    return plan


def _why_not(kind: type[SumsPlan], request: Request, parts: Parts | str) -> str:
    """Return the reason why the request cannot be evaluated jointly, or "" if it can."""
    cross_validation, estimator = request.cross_validation, request.estimator
    last, is_remote = last_step(estimator), request.data.is_remote
    if is_remote and (why := why_not_of_blocks(request, parts)):
        return why
    is_requested = request.settings.method == kind.name
    family = kind.families.get(type(last))
    if family is None:
        return str(parts)
    if cross_validation.repeats[0].plan.random and not is_requested:
        return "order='random' has no effect on sums over rows"
    if why := request.metadata.reason_not_from_sums(estimator) or why_not_scored(request):
        return why
    is_requested |= is_remote  # no other engine supports these estimators on remote rows
    is_class = is_classifier(estimator)
    parameters = () if isinstance(parts, str) else parts.parameters
    n_trained, n_of_class = cross_validation.smallest_training_set(is_class)
    facts = Facts(
        has_weights=request.metadata.weights is not None,
        n_trained=n_trained,
        n_of_class=n_of_class,
        n_folds=cross_validation.n_folds,
        is_requested=is_requested,
        n_outputs=len(request.data.classes()) if is_class else cross_validation.n_targets,
        is_searched=any(name in cross_validation.search.ends for name in parameters),
    )
    # Reasons that lie in the estimator come first, because those in its transformers need a Table,
    # which reads all rows.
    if (isinstance(parts, str) or parts.kinds) and (why := family.why_not(last, facts)):
        return why
    if isinstance(parts, str):
        return parts
    try:
        n_features, is_sparse = form_of(request, parts)
    except NotAheadError as error:
        return str(error)
    names = parts.family.ignored_by(parts.last, is_sparse)
    if searched := [name for name in names if parts.prefix + name in cross_validation.search.ends]:
        return f"{searched[0]} is searched, which has no effect on converged models"
    if is_sparse and parts.scaler is not None and parts.scaler.with_mean:
        return "a StandardScaler cannot subtract a mean from sparse rows"
    facts = replace(facts, is_sparse=is_sparse, has_scaler=parts.scaler is not None)
    if parts.linear:
        if is_sparse:
            return f"the rows before the step {parts.linear[0][0]!r} are sparse"
        if not parts.family.maps_moments and cross_validation.n_folds > _MAX_FOLDS:
            return f"rows are transformed for each of more than {_MAX_FOLDS:,} folds"
        if why := why_not_reduced(parts.linear, n_trained, n_features, facts.n_folds):
            return why
        n_features = _n_reduced(request, parts, n_features)
        facts = replace(facts, is_searched=False)  # folds are not solved jointly
    return parts.family.why_not(parts.last, replace(facts, n_features=n_features))


def _n_reduced(request: Request, parts: Parts, n_features: int) -> int:
    """Return the largest number of columns after linear maps, if their parameters tell it."""
    ends, params = request.cross_validation.search.ends, request.estimator.get_params()
    for name in parts.linear_parameters:
        if name.endswith(("__n_components", "__k")):
            largest = ends[name][-1] if name in ends else params[name]
            if isinstance(largest, Integral) and 0 < int(largest) < n_features:
                n_features = int(largest)
    return n_features


def form_of(request: Request, parts: Parts) -> tuple[int, bool]:
    """Return the number of columns of transformed rows, and whether they are sparse."""
    table = table_of(request, parts)
    if isinstance(table, str):
        raise NotAheadError(table)
    if table is not None:
        return table.n_features, table.is_sparse
    try:  # all rows have the same form as the first row
        first = _after(parts.steps, take_rows(request.data.X, slice(0, 1)))
    except ValueError as error:  # the refits raise it again
        raise NotAheadError("the transformers cannot transform the first row") from error
    return int(first.shape[1]), sparse.issparse(first)


def table_of(request: Request, parts: Parts) -> Table | str | None:
    """Return the fitted transformers as a ``Table``, or the reason why folds must be refitted.

    Return None if all transformers are stateless, because no table is needed then.
    """
    if not parts.kinds:
        return None
    steps, kinds, has_one_form = parts.steps[0], parts.kinds, parts.has_one_form
    forms = has_one_form, parts.family.maps_need_dense_rows
    of_rows = request.cross_validation.steps
    cuts = [repeat.cut for repeat in request.cross_validation.repeats]
    name = first_key((steps, dict(kinds)), encode, lasting_key)
    if name is not None:
        name = digest(b"table", name, *map(encode, forms))
    make = partial(Table, steps, kinds, of_rows.X, of_rows.y, cuts, *forms, name or b"")
    return of_rows.fitted(name, make)


def _after(steps: Sequence[Any], X: Any) -> Any:
    """Return X, transformed by stateless steps."""
    with foreign_code():
        for step in steps:
            X = unshared(step, X)
            X = clone(step).fit(X).transform(X)
    return X


# The maximum number of folds of remote rows. With more folds, transferring their sums would take
# most of the time.
_MAX_FOLDS = 1000

#: The number of simultaneous requests for sums to each block of remote rows.
CALLS_IN_FLIGHT = 2


def test_in_block(
    block: Block,
    make: Callable[[PreparedRows], Any],
    models: Sequence[Any],
    begins: np.ndarray,
    whole: range,
    scored: tuple[Sequence[Metric], Any],
) -> tuple[list[FoldScores], dict[int, np.ndarray]]:
    """Score or predict the test rows of a block of remote rows.

    Parameters
    ----------
    block : Block
    make : callable
        (rows) -> a family bound to these rows.
    models : sequence
        The models of consecutive chunks.
    begins : ndarray of shape (n_chunks + 1,)
        The starts of these chunks within the block, and the end of the last chunk.
    whole : range
        The indices of the chunks that lie completely in the block. These chunks are scored. For
        other chunks, the outputs are returned.
    scored : (sequence of Metric, estimator)

    Returns
    -------
    scores : list of FoldScores
        The scores of each candidate in the ``whole`` chunks.
    outputs : dict of int to ndarray of shape (n_candidates, n_rows, n_outputs)
        The outputs for the other chunks, by the index of the chunk.
    """
    rows = block.rows
    family = make(rows)
    chunks = Chunks(len(rows.order), begins)
    scores: list[list[FoldScores]] = [[] for _ in range(family.n_candidates)]
    outputs = {}
    with np.errstate(all="ignore"):
        for first, last in chunks.groups(_MAX_ROWS, chunks.n_chunks):
            _, predicted = family.predict(chunks, first, last, models[first:last])
            here = begins[first : last + 1] - begins[first]
            for chunk in range(first, last):
                if chunk not in whole:
                    outputs[chunk] = predicted[:, slice(*here[chunk - first : chunk - first + 2])]
            low, high = max(first, whole.start), min(last, whole.stop)
            if low >= high:
                continue
            ends = begins[low : high + 1] - begins[low]
            starts = None if ends[-1] == len(ends) - 1 else ends[:-1]
            part, of_rows = slice(*here[[low - first, high - first]]), slice(*begins[[low, high]])
            for of_point, output in zip(scores, predicted[:, part], strict=True):
                tested = TestedRows.of(rows, of_rows, output, family.response, starts)
                of_folds = scores_of_folds(scored[0], tested, scored[1], rows.classes)
                diverged = np.where(tested.diverged(), OUTPUTS_DIVERGED, of_folds.diverged)
                of_point.append(of_folds._replace(diverged=diverged))
    return [joined(score) for score in scores if score], outputs


def why_not_of_blocks(request: Request, parts: Parts | str) -> str:
    """Return the reason why sums over remote rows do not suffice, or "" if they do."""
    if sparse.issparse(request.data.X.sample):
        return "remote rows must be dense for sums over rows"
    cross_validation = request.cross_validation
    cut = cross_validation.repeats[0].cut
    if not isinstance(cut, Folds) or cross_validation.n_folds > _MAX_FOLDS:
        return f"there are more than {_MAX_FOLDS:,} folds, or some of them overlap"
    if not isinstance(parts, str) and (parts.kinds or parts.steps or parts.linear):
        return "its transformers need all rows on one machine"
    return ""


def scores_of_blocks(
    request: Request, family: Any, rows: PreparedRows, chunks: Chunks, sums: ArrayCache
) -> Iterator[tuple[int, TestedFolds]]:
    """Yield (index of the candidate, tested folds) for remote rows.

    Folds whose rows are in one block are scored there. For folds that span several blocks, the
    predictions are returned.
    """
    scored = request.scoring.metrics, request.estimator
    for folds, scores, outputs in _test_in_blocks(family, chunks, sums, scored):
        if outputs is None:
            for number, of_point in enumerate(scores):
                yield number, TestedFolds(number, folds, 0, scores=of_point)
            continue
        rows_of = chunks.test_rows(*folds)
        for number, of_rows in enumerate(outputs):
            begins = None if len(of_rows) == 1 else np.zeros(1, np.int64)
            tested = TestedRows.of(rows, rows_of, of_rows, family.response, begins)
            yield number, TestedFolds(number, folds, 0, tested)


def _test_in_blocks(
    family: Any, chunks: Chunks, sums: ArrayCache, scored: tuple[Sequence[Metric], Any] | None
) -> Iterator[tuple[Node, list[FoldScores], np.ndarray | None]]:
    """Yield (run of chunks, scores, outputs) in the order of the chunks.

    For chunks within one block, there are scores, and the outputs are None. For chunks that span
    several blocks, there are outputs. If ``scored`` is None, there are outputs for all chunks.
    """
    models, blocks, bounds = family.models_of(chunks, sums), family.rows.X, chunks.bounds
    calls, sent = [], []
    for block, start, stop in blocks.spans(int(bounds[0]), len(blocks)):
        first = int(np.searchsorted(bounds, start, side="right")) - 1
        last = int(np.searchsorted(bounds, stop))
        begins = bounds[first : last + 1].clip(start, stop) - blocks.bounds[block]
        # The first and the last chunk may have rows in other blocks, too.
        is_cut = int(bounds[first] < start), int(bounds[last] > stop)
        whole = range(is_cut[0], last - first - is_cut[1]) if scored else range(0)
        arguments = family.make, models[first:last], begins, whole, scored or ((), None)
        calls.append(RemoteCall(block, test_in_block, arguments))
        sent.append((first, whole, stop))
    parts: dict[int, list[np.ndarray]] = {}
    for (first, whole, stop), (scores, of_parts) in zip(sent, blocks.run(calls), strict=True):
        for number, outputs in of_parts.items():
            chunk = first + number
            parts.setdefault(chunk, []).append(outputs)
            if bounds[chunk + 1] <= stop:
                yield Node(chunk, chunk + 1), [], np.concatenate(parts.pop(chunk), axis=1)
        if whole:
            yield Node(first + whole.start, first + whole.stop), scores, None
