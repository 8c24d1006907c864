"""The method "exact": the folds of estimators whose models follow from sums over their rows.

The sums of all folds take one reading of the rows, and what is done for a fold serves all values
of one parameter.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.exact_rows import prepared_after
from optuna_treecv.crossval.fit import Fit
from optuna_treecv.crossval.fit import FittedRepeat
from optuna_treecv.crossval.fit import predictions_of_fits
from optuna_treecv.crossval.found_scores import FoundScores
from optuna_treecv.crossval.identity import under_configuration
from optuna_treecv.crossval.methods import Instead
from optuna_treecv.crossval.methods import Missing
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Request
from optuna_treecv.learners.exact.chunks import Chunks
from optuna_treecv.learners.exact.chunks import Tested
from optuna_treecv.learners.exact.families import Parts
from optuna_treecv.learners.exact.families import parts_of
from optuna_treecv.learners.exact.family import Family
from optuna_treecv.learners.exact.threads import one_blas_thread
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.rows.data import count_targets
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring import FoldScores
from optuna_treecv.scoring import follows_from_squares
from optuna_treecv.scoring import in_full
from optuna_treecv.scoring import Metric
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import pooled_score
from optuna_treecv.scoring import PooledScore
from optuna_treecv.scoring import response_of
from optuna_treecv.scoring import scores_from_squares
from optuna_treecv.scoring import scores_of_folds
from optuna_treecv.scoring import scores_of_rows
from optuna_treecv.scoring import TestedRows
from optuna_treecv.sharing.exact_results import ExactName
from optuna_treecv.sharing.exact_results import ExactResult
from optuna_treecv.sharing.exact_results import ExactShape
from optuna_treecv.sharing.exact_results import KeptSums
from optuna_treecv.sharing.exact_results import name_of_exact
from optuna_treecv.sharing.exact_results import OUTPUTS_DIVERGED
from optuna_treecv.tree.walk import TestedBlock

# The rows of several folds that are tested together, and the bytes of what the models of all
# points say of the rows that are tested together.
_ROWS = 2**14
_MOST_BYTES = 2**27

# Why folds are fitted after all.
_NOT_FINITE = "a model that follows from sums over rows is not finite"

# The type in which the scores of single rows wait.
_ROW_SCORE = np.dtype(np.float32)


class Exact:
    """One reading of the rows for all folds and all values of a parameter."""

    name = "exact"
    is_one_pass = False

    def __init__(self, why: str = "") -> None:
        self.why = why
        self.side_by_side = PointsTogether()

    def check(
        self, estimator: Any, of_class: bool = False, searched: Collection[str] = ()
    ) -> None:
        """Refuse wrong parameters, as the estimator's own ``fit`` would."""
        parts = parts_of(estimator)
        assert isinstance(parts, Parts)
        if parts.scaler is not None:
            parts.scaler._validate_params()
        if parts.parameter not in searched:
            parts.last._validate_params()

    def begin(self, request: Request, repeat: Repeat) -> ExactRepeat:
        """Find kept scores, or compute them.

        Where "auto" has chosen exact folds and they are refused or not finite, the folds are
        fitted. What exact folds say stands only if the fits fail too.
        """
        exact: ExactRepeat | None = None
        try:
            exact = ExactRepeat(request, repeat)
        except Exception as error:
            if not self.why:
                raise
            refused = error
        if exact is not None and not (self.why and exact.has_diverged):
            return exact
        fits = FittedRepeat(request, repeat)
        try:
            fits.fit_ahead()
        except Exception as error:
            if exact is not None:
                return exact
            raise refused from error
        raise Instead(Fit(_NOT_FINITE if exact is not None else _why_refused(refused)), fits)


class ExactRepeat(FoundScores):
    """One estimator's way through one repeat.

    Parameters
    ----------
    request : Request
    repeat : Repeat
    """

    def __init__(self, request: Request, repeat: Repeat) -> None:
        self._request = request
        self._repeat = repeat
        self._name = _name_of(request, repeat)
        self.key, self.fingerprint = self._name.key, self._name.fingerprint
        found = request.ahead.pop(repeat.number, None) or _find(request, repeat)
        if found is None:
            parts = _parts(request.estimator)
            rows, seconds = prepared_after(request.evaluation, parts, repeat)
            (found,) = evaluate_points([request], repeat, rows)
            found.seconds_prepare = seconds
        self._found: ExactResult = found
        self.n_updates = 0 if found.was_kept else found.n_updates
        self.seconds_before, self.seconds_prepare = found.seconds, found.seconds_prepare

    @property
    def has_diverged(self) -> bool:
        """Whether what a model says of a row is not finite."""
        return bool(np.any(self._found.diverged == OUTPUTS_DIVERGED))

    def blocks(self) -> Generator[TestedBlock]:
        """Yield all blocks at once."""
        n_rows = self._found.n_needed
        for block in self._repeat.parts:
            yield TestedBlock(block, n_rows)
            n_rows = 0

    def keep(self, n_needed: int, seconds: float) -> None:
        """Keep the scores."""
        if not self._found.was_kept:
            self._name.keep(self._found, seconds)


class PointsTogether:
    """Evaluates estimators together that differ in one parameter, such as ``alpha``."""

    def parameters(self, estimator: Any) -> tuple[str, ...]:
        """Return the parameter in which estimators may differ."""
        parts = parts_of(estimator)
        return (parts.parameter,) if isinstance(parts, Parts) else ()

    def missing(self, request: Request) -> Missing | None:
        """Return what is missing of the first repeat; None if the results are there already."""
        repeat = request.evaluation.repeats[0]
        if repeat.number in request.ahead or _find(request, repeat) is not None:
            return None
        n_bytes = _shape(request, repeat).n_bytes
        if request.needs_rows:
            n_bytes += _ROW_SCORE.itemsize * repeat.cut.n_tested
        name = _name_of(request, repeat).key
        return Missing(name or str(id(request)), n_bytes * request.evaluation.n_repeats)

    def evaluate(self, requests: Sequence[Request], are_leased: bool) -> bool:
        """Compute the scores of requests that differ in one parameter alone."""
        is_any = False
        for repeat in requests[0].evaluation.repeats:
            groups: dict[bytes, list[Request]] = {}
            for request in requests:
                name = _name_of(request, repeat)
                if repeat.number in request.ahead or name.of_sums is None:
                    continue
                if _find(request, repeat) is None:
                    groups.setdefault(name.of_sums, []).append(request)
            for group in groups.values():
                if len(group) == 1:
                    continue
                try:
                    parts = _parts(group[0].estimator)
                    rows, seconds = prepared_after(group[0].evaluation, parts, repeat)
                    found = evaluate_points(group, repeat, rows)
                except Exception:  # noqa: BLE001  # the run of each one will raise its own
                    continue
                for request, own in zip(group, found, strict=True):
                    own.seconds_prepare = seconds
                    request.ahead[repeat.number] = own
                is_any = True
        return is_any


def evaluate_points(
    requests: Sequence[Request], repeat: Repeat, rows: PreparedRows
) -> list[ExactResult]:
    """Compute the scores of requests that differ in one parameter alone."""
    first = requests[0]
    evaluation = first.evaluation
    parts = _parts(first.estimator)
    began = perf_counter()
    estimators = [_parts(request.estimator).last for request in requests]
    name = _name_of(first, repeat)
    kept = name.kept_sums()
    scorer = _Scorer(first, rows, chunks_of(repeat.cut), _shape(first, repeat))
    found: list[ExactResult] = []
    with _computing():
        size = scorer.most_points()
        for begin in range(0, len(estimators), size):
            family = parts.family(
                estimators[begin : begin + size], rows, parts.scaler, evaluation.n_jobs
            )
            found += scorer.score(family, kept)
    seconds = (perf_counter() - began) / len(found)
    for one in found:
        one.seconds = seconds
        one.n_needed = scorer.chunks.n_read
        one.n_updates = 0 if kept.were_there else scorer.chunks.n_read
    return found


def predictions_of_exact(
    evaluation: Evaluation, repeat: Repeat, estimator: Any, method: str, is_chosen: bool
) -> np.ndarray:
    """Return the out-of-fold responses in the order of the rows as given.

    Where "auto" has chosen exact folds (``is_chosen``), they are fitted instead as in ``Exact``.
    """
    try:
        return _predictions(evaluation, repeat, estimator, method, is_chosen)
    except Exception as error:
        if not is_chosen:
            raise
        refused = error
    try:
        return predictions_of_fits(evaluation, repeat, estimator, method)
    except Exception as error:
        raise refused from error


def _predictions(
    evaluation: Evaluation, repeat: Repeat, estimator: Any, method: str, is_finite: bool
) -> np.ndarray:
    """Return the responses of exact folds; refuse those that are not finite if ``is_finite``."""
    parts = _parts(estimator)
    rows, _ = prepared_after(evaluation, parts, repeat)
    with _computing():
        family = parts.family([parts.last], rows, parts.scaler, evaluation.n_jobs)
        tested = family.test(chunks_of(repeat.cut), KeptSums(None, None), _ROWS)
        outputs = np.concatenate([one.outputs[0] for one in tested])
        prepared = family.response(outputs, method)
    classes = rows.classes if method == "predict" else None
    has_nan = classes is not None and np.any(np.isnan(outputs))
    if has_nan or (is_finite and not np.all(np.isfinite(outputs))):
        raise ValueError(f"{name_of(estimator)} diverges: its model is not finite.")
    if classes is not None:
        prepared = classes[prepared]
    predictions = np.empty_like(prepared)
    predictions[rows.order] = prepared
    return predictions


def chunks_of(cut: Cut) -> Chunks:
    """Return the training and test rows of each fold as numbers of prepared rows."""
    if isinstance(cut, Folds):
        return Chunks(cut.n_rows, cut.begins())
    trains: list[int | np.ndarray] = []
    for chunk in range(cut.n_folds):
        rows = cut.prepared(cut.train_rows(chunk))
        is_first_part = len(rows) and np.array_equal(rows, np.arange(len(rows)))
        trains.append(len(rows) if is_first_part else rows)
    return Chunks(cut.n_rows, cut.bounds(), cut.prepared(cut.tested()), trains)


class _Scorer:
    """Scores what the models of all points say.

    Parameters
    ----------
    request : Request
        One of those that are evaluated together.
    rows : PreparedRows
    chunks : Chunks
    shape : ExactShape
        Of the results.
    """

    def __init__(
        self, request: Request, rows: PreparedRows, chunks: Chunks, shape: ExactShape
    ) -> None:
        self._shape = shape
        self._metrics = request.scoring.metrics
        self._estimator = request.estimator
        self._classes = rows.classes
        self.chunks = chunks
        self._targets = _behind(rows.targets, chunks)
        self._weights = _behind(rows.score_weights, chunks)
        self._pooled = [i for i, one in enumerate(self._metrics) if isinstance(one, Pooled)]
        # Sums of squares are over the weights of training, which may have been rounded.
        data = request.evaluation.data
        same = data.score_weights is data.weights and (
            rows.weights is None or rows.weights.dtype == np.float64
        )
        self._needs_rows = request.needs_rows
        self._first = request.scoring.first
        self._by_squares = (
            same
            and not self._needs_rows
            and all(follows_from_squares(metric) for metric in self._metrics)
            and not chunks.are_single_rows
            and int(np.median(chunks.sizes)) >= rows.n_features
        )

    def most_points(self) -> int:
        """Return how many points are evaluated at once, so that their outputs take little room."""
        n_classes = 1 if self._classes is None else len(self._classes)
        n_targets = count_targets(self._targets)
        n_rows = max(int(self.chunks.sizes.max()), _ROWS)
        if self._pooled:
            n_rows = int(self.chunks.bounds[-1])
        return max(1, _MOST_BYTES // (8 * n_rows * max(n_classes, n_targets)))

    def score(self, family: Family, kept: KeptSums) -> list[ExactResult]:
        """Return the scores of each point."""
        if self._by_squares:
            found = self._from_squares(family, kept)
            if found is not None:
                return found
        n_points, k = family.n_points, self.chunks.n_chunks
        found = [ExactResult.empty(self._shape) for _ in range(n_points)]
        if self._needs_rows:
            n_tested = int(self.chunks.bounds[-1] - self.chunks.bounds[0])
            for one in found:
                one.of_rows = np.empty(n_tested, _ROW_SCORE)
        outputs = []
        for tested in family.test(self.chunks, kept, _ROWS):
            if self._pooled:
                outputs.append(tested.outputs)
            for one, said in zip(found, tested.outputs, strict=True):
                part = slice(tested.first, tested.last)
                scored = self._scores(family, tested, said)
                one.scores[:, part], one.diverged[part] = scored.scores, scored.diverged
                if one.spreads is not None:
                    one.spreads[:, :, part] = in_full(scored.spreads, scored.scores.shape)
                if one.of_rows is not None:
                    bounds = self.chunks.bounds
                    begin, end = bounds[[tested.first, tested.last]] - bounds[0]
                    one.of_rows[begin:end] = self._row_scores(family, tested, said)
        if self._pooled:
            for one, said in zip(found, np.concatenate(outputs, axis=1), strict=True):
                everything = Tested(0, k, said[None])
                rows = self._tested_rows(family, everything, said)
                for i in self._pooled:
                    one.pooled[i] = self._pooled_score(self._metrics[i], rows)
        return found

    def _from_squares(self, family: Family, kept: KeptSums) -> list[ExactResult] | None:
        squares = family.squares(self.chunks, kept)
        if squares is None or not np.all(np.isfinite(squares.errors)):
            return None
        scores = [scores_from_squares(metric, *squares) for metric in self._metrics]
        if any(one is None for one in scores):
            return None
        of_points = np.stack([one for one in scores if one is not None], axis=1)
        return [ExactResult.of(one, self._shape) for one in of_points]

    def _scores(self, family: Family, tested: Tested, said: np.ndarray) -> FoldScores:
        rows = self._tested_rows(family, tested, said)
        scored = scores_of_folds(self._metrics, rows, self._estimator, self._classes)
        diverged = np.where(rows.diverged(), OUTPUTS_DIVERGED, scored.diverged)
        return scored._replace(diverged=diverged)

    def _row_scores(self, family: Family, tested: Tested, said: np.ndarray) -> np.ndarray:
        """Return the scores of rows by the first optimised metric."""
        rows = self._tested_rows(family, tested, said)
        rows.begins, rows.weights = None, None
        return scores_of_rows(self._first, rows, self._estimator, self._classes)

    def _tested_rows(self, family: Family, tested: Tested, said: np.ndarray) -> TestedRows:
        bounds = self.chunks.bounds[tested.first : tested.last + 1]
        part = slice(int(bounds[0]), int(bounds[-1]))
        each = len(bounds) - 1 == part.stop - part.start
        return TestedRows(
            said,
            partial(family.response, said),
            None if self._targets is None else self._targets[part],
            None if self._weights is None else self._weights[part],
            None if each else bounds[:-1] - bounds[0],
        )

    def _pooled_score(self, metric: Metric, rows: TestedRows) -> PooledScore:
        assert isinstance(metric, Pooled)
        method = response_of(metric, self._estimator)
        return pooled_score(metric, method, rows, self._estimator, self._classes)


def _behind(of_rows: np.ndarray | None, chunks: Chunks) -> np.ndarray | None:
    """Return what stands behind the tested rows."""
    return of_rows if of_rows is None or chunks.tested is None else of_rows[chunks.tested]


@contextmanager
def _computing() -> Generator[None]:
    """Return a context for sums and factors, in which what is not finite has diverged."""
    try:
        with one_blas_thread(), np.errstate(all="ignore"):
            yield
    except np.linalg.LinAlgError as error:
        raise ValueError(
            "X must hold numbers whose squares can be summed in float64, got larger ones "
            f"({error}); X / np.abs(X).max() would be right."
        ) from error


def _why_refused(error: Exception) -> str:
    said = str(error).removesuffix(".")
    return f"sums over rows do not tell its models ({said})"


def _parts(estimator: Any) -> Parts:
    parts = parts_of(estimator)
    assert isinstance(parts, Parts)
    return parts


def _shape(request: Request, repeat: Repeat) -> ExactShape:
    has_spreads = not repeat.cut.are_single_rows
    return ExactShape(len(request.scoring.metrics), repeat.cut.n_folds, has_spreads)


def _find(request: Request, repeat: Repeat) -> ExactResult | None:
    """Return kept results; the scores of rows are never kept."""
    if request.needs_rows:
        return None
    return _name_of(request, repeat).find(_shape(request, repeat))


def _name_of(request: Request, repeat: Repeat) -> ExactName:
    """Return the name of a request's results on a repeat; it is looked up once."""
    if repeat.number not in request.names:
        evaluation, parts = request.evaluation, _parts(request.estimator)
        # A point is a value of one parameter of the last part, which is left out of the others.
        last, parameter = copy(parts.last), parts.family.parameter
        setattr(last, parameter, None)
        data, lasts = evaluation.data_name()
        request.names[repeat.number] = name_of_exact(
            evaluation.shared.cache,
            [*parts.steps, parts.scaler, last],
            getattr(parts.last, parameter),
            (under_configuration(data), lasts),
            evaluation.folds_name(repeat),
            request.scoring,
        )
    found: ExactName = request.names[repeat.number]
    return found
