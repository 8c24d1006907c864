"""The engines "boosting" and "bagging": ensembles of other libraries that grow tree by tree.

The first trees of an ensemble are the ensemble that a fit with fewer trees makes. So one growth
per fold tells the scores for all numbers of trees, and a trial can be left while its trees grow.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from functools import partial
from itertools import islice
from itertools import product
from itertools import takewhile
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline

from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.caching.results import KeptScores
from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import Failed
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import results_of
from optuna_treecv.core.engine import Sink
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import TreeProgress
from optuna_treecv.core.engine import Watch
from optuna_treecv.core.engine import Work
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import FoldScorer
from optuna_treecv.core.request import kept_scores
from optuna_treecv.core.request import name_of_folds
from optuna_treecv.core.request import Request
from optuna_treecv.core.result import Curve
from optuna_treecv.core.row_scores import RowScores
from optuna_treecv.core.settings import OF_ENGINES
from optuna_treecv.engines.ensembles.growth import BLOCKS
from optuna_treecv.engines.ensembles.growth import Growth
from optuna_treecv.engines.ensembles.growth import kind_of
from optuna_treecv.engines.ensembles.growth import of_size
from optuna_treecv.engines.ensembles.growth import Prepared
from optuna_treecv.engines.ensembles.growth import Taken
from optuna_treecv.engines.ensembles.growth import TreeLimit
from optuna_treecv.engines.ensembles.growth import with_last
from optuna_treecv.estimators.base import divided
from optuna_treecv.estimators.base import in_columns
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.base import seeded
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.plans.fits import along_tree
from optuna_treecv.plans.fits import cost_of_trainings
from optuna_treecv.plans.fits import fold_task_of
from optuna_treecv.plans.fits import responses_of_fits
from optuna_treecv.plans.fits import targets_of
from optuna_treecv.plans.fold_task import FoldResult
from optuna_treecv.plans.joint import why_not_scored
from optuna_treecv.preprocessing.parts import foreign_code
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.checks import predicted_codes
from optuna_treecv.rows.checks import without_single_column
from optuna_treecv.rows.partition import Node
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import are_known
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import in_full
from optuna_treecv.scoring.scores import scores_of_called
from optuna_treecv.scoring.scores import TestedRows

# The reports while the first fold grows, and the most reports of further folds.
LEAD_STEPS = len(BLOCKS) + 1
_MOST_REPORTS = 32 - LEAD_STEPS

# The bytes of the scores of a fold after one number of trees, about.
_SCORE_BYTES = 1000

# So many outputs are scored at once, and the last ones of all folds, as one of them is often the
# best, are kept in so many bytes.
_TOGETHER, _OUTPUT_BYTES = 2**15, 2**24


def plan_growth(name: str, request: Request) -> Plan | Declined:
    """Return a plan for an ensemble that grows tree by tree."""
    prefix, last = divided(request.estimator)
    kind = kind_of(last)
    is_mine = kind is not None and kind.is_boosted == (name == "boosting")
    why_not = f"{type(last).__name__} does not grow tree by tree"
    if kind is not None and is_mine:
        why_not = _why_not(request, kind, last)
    if kind is None or why_not:
        advice = (
            f"method={name!r} must have an ensemble that grows tree by tree, alone or at "
            f"the end of a Pipeline, but {why_not}; method='auto' would be right."
        )
        free = () if kind else request.estimator.get_params(deep=True)
        return Declined(why_not, advice, free, 2 if is_mine else 0)
    _check(request, kind, prefix, last)
    return GrowingPlan(request, name)


plan_boosting, plan_bagging = partial(plan_growth, "boosting"), partial(plan_growth, "bagging")


def _why_not(request: Request, kind: type[Growth], last: Any) -> str:
    """Return why an ensemble does not grow here, a clause."""
    data, size = request.data, kind.n_trees_of(last)
    if not is_integer(size) or size < 1:
        return f"{kind.size} is no positive integer"
    if why := kind.why_not(last) or request.metadata.why_not_by_sums(request.estimator):
        return why
    if data.y is None or data.y.ndim > 1:
        return "y has several columns" if data.y is not None else "y is missing"
    fewest = request.cross_validation.fewest_trained
    if is_classifier(last) and fewest(of_classes=True)[1] == 0:
        return "a training set lacks a class"
    return why_not_scored(request)


def _check(request: Request, kind: type[Growth], prefix: str, last: Any) -> None:
    """Refuse early stopping on rows that there are not; the library refuses the rest."""
    settings, n_repeats = request.settings, request.cross_validation.n_repeats
    is_best = settings.n_estimators is not None
    if not is_best and (patience := kind.patience(last)):
        raise ValueError(
            f"n_estimators must be 'best' for {name_of(last)} that stops after {patience} "
            "trees without a better score, since it is the mean score of the folds that "
            "decides then, and fit would need further rows; got None."
        )
    searched, scoring = request.cross_validation.search.ends, settings.scored_by
    # At some depths, trees of this depth would differ from cut ones by more than chance.
    if settings.truncate and (kind.is_boosted or f"{prefix}max_depth" not in searched):
        raise ValueError(
            "truncate must be False unless max_depth of a forest is searched, got True for "
            f"{name_of(request.estimator)}."
        )
    for name in ("max_leaf_nodes", "ccp_alpha") if settings.truncate else ():
        if getattr(last, name) or prefix + name in searched:
            raise ValueError(
                f"truncate must be False where {name} is given or searched, since it gives "
                "trees of less depth that cuts of deeper ones are not; got True."
            )
    pools = scoring is not None and isinstance(scoring.first, Pooled)
    if is_best and (n_repeats > 1 or pools):
        given = "a pooled score" if pools else f"{n_repeats} repeats"
        raise ValueError(
            "n_estimators='best' needs one repeat and a score of each fold, since it takes "
            f"the best mean over the folds, got {given}."
        )


class GrowingPlan(Plan):
    """One ensemble per fold, scored along the way."""

    reason = "one growth per fold tells the scores of all numbers of trees"

    def __init__(self, request: Request, name: str) -> None:
        super().__init__(request)
        self.name = name
        self.capabilities = Capabilities(
            early_reports="trees",
            caches_responses=True,
            why_one_epoch="its trees grow once",
            needs_memory="its library takes them as arrays",
            falls_back=request.settings.n_estimators is None,
            settings=OF_ENGINES,
            with_size=of_size,
        )

    def cost(self) -> str:
        """Return the number of growths and of their rows."""
        return cost_of_trainings(self.request, "growths")

    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return what names the scores of all folds; for the best number of trees, none."""
        request, settings = self.request, self.request.settings
        parts = [seeded(clone(candidate), seed_of(request, self.repeats[0]))]
        point = settings.n_estimators, settings.truncate, seed_of(request, repeat)
        kept = kept_scores(request, repeat, self.name, parts).at(point)
        results = results_of(request, repeat, kept)
        return results if settings.n_estimators is None else results._replace(specs={})

    def evaluate(self, work: Work) -> Generator[Event]:
        """Grow the trees of the folds; if the library refuses something, they are refitted."""
        (candidate,), (sink,), repeat, _, watch, _ = work
        growing = GrowingFolds(self, candidate, repeat, sink)
        try:
            with closing(growing):
                if watch is not None:
                    yield from growing.events(watch)
                for part in repeat.parts:
                    yield from growing.tested(part)
        except ValueError as error:
            yield Failed(error, f"growing its trees has failed: {error}", stands=False)

    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> np.ndarray:
        """Return the responses of the fits of the folds."""
        return responses_of_fits(self.request, candidate, repeat, method)


class Taking(BaseEstimator):
    """The last step of a Pipeline in place of an ensemble: keeps what it would be fitted on."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "Taking":
        """Keep the rows."""
        self.taken_ = X, y, sample_weight
        return self


def seed_of(request: Request, repeat: Repeat) -> int:
    return (request.settings.seed + repeat.number) % 2**32


@dataclass
class Fold:
    """The ensemble of one fold, which trials of other sizes may grow on, and its scores.

    Attributes
    ----------
    growth : Growth or None
        None: it has not begun, or was left.
    scores : dict of (int, TreeLimit) to FoldResult
        By the number of trees, and how they are limited.
    outputs : dict of (int, TreeLimit) to list of ndarray of shape (n_test, n_outputs)
        What the last of these say of the test rows, by the method.
    oob_scores : dict of int to (float or None)
        By the number of trees.
    seconds : float
        The time that it has taken.
    n_row_bytes : int
        The bytes of the prepared rows.
    """

    growth: Growth | None = None
    scores: dict[tuple[int, TreeLimit], FoldResult] = field(default_factory=dict)
    outputs: dict[tuple[int, TreeLimit], list[np.ndarray]] = field(default_factory=dict)
    oob_scores: dict[int, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    n_row_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes that it takes, about."""
        n_bytes = 0 if self.growth is None else self.growth.nbytes + self.n_row_bytes
        return n_bytes + _SCORE_BYTES * len(self.scores)


class GrowingFolds:
    """The ensembles of one evaluation of a repeat.

    Parameters
    ----------
    plan : GrowingPlan
    candidate : estimator
    repeat : Repeat
    sink : Sink
    """

    def __init__(
        self, plan: GrowingPlan, candidate: Candidate, repeat: Repeat, sink: Sink
    ) -> None:
        self._request = request = plan.request
        self._engine, self._repeat = plan.name, repeat
        self._candidate, self._sink = candidate, sink
        self._scorer = FoldScorer(request, candidate)
        self._cut = repeat.cut
        self._fold_task = fold_task_of(request, candidate, repeat, shares_steps=True)
        prefix, last = divided(self._fold_task.estimator)
        kind = kind_of(last)
        assert kind is not None
        self._kind = kind
        self._is_best = request.settings.n_estimators == "best"
        self._n_trees: int = kind.n_trees_of(last)
        self._patience = kind.patience(last) if self._is_best else None
        self._last = kind.without_patience(last) if self._is_best else last
        self._sign = 1.0 if request.scoring.first.direction == "minimize" else -1.0
        responses = [response_of(one, candidate) for one in request.scoring.metrics]
        self._methods = list(dict.fromkeys([*responses, *request.kept_responses]))
        size, searched = prefix + kind.size, request.cross_validation.search.ends
        self._limit: TreeLimit = None
        self._limits: list[TreeLimit] = [None]
        of_last = {name.removeprefix(prefix): values for name, values in searched.items()}
        grid = request.cross_validation.search.grid
        can_share = bool(grid) or len(searched.keys() - {size}) == 1
        limit = kind.limit_of(last, of_last, request.settings.truncate, can_share)
        if limit is not None:
            name, widest = limit
            self._limit = name, getattr(last, name)
            of_grid = [(name, value) for value in grid.get(prefix + name, ())]
            self._limits = [*dict.fromkeys([*of_grid, self._limit])]
            self._last = clone(self._last).set_params(**{name: widest})
        shares = size in searched or limit is not None
        self._name_of_all = self._name_without_size() if shares else b""
        memory = request.cross_validation.shared.memory
        self._memory = memory if self._name_of_all else None
        self._most = self._n_trees
        self._asked: Collection[int] = ()
        if self._name_of_all and grid:
            sizes = *grid.get(size, ()), self._n_trees
            self._asked = [one for one in sizes if is_integer(one)]
            if not self._is_best and not request.settings.is_growing:  # all of them will be
                self._most = max([self._most, *self._asked])
        self._folds = [self._held(chunk) or Fold() for chunk in range(repeat.cut.n_folds)]
        self._ends = [*takewhile(lambda end: end < self._most, kind.blocks), self._most]
        self._curve: Curve | None = None
        self._n_begun = self._n_noted = 0

    def events(self, watch: Watch) -> Generator[TreeProgress]:
        """Grow the trees of all folds, those of the first fold first."""
        n_folds = self._cut.n_folds
        for step, end in enumerate(self._ends):
            self._grow([0], end)
            curve = self._note(1, end)
            n_left = 0 if curve.has_ended(self._patience) else self._most - end
            rows = None
            if watch.takes_rows and self._has_outputs(0, end):
                tested = self._tested(0, [self._outputs_of(0, end, self._limit)])
                rows = RowScores(len(tested), tested.weights is not None)
                rows.add(self._scorer.of_rows(tested), tested.weights)
            yield TreeProgress(0, step, curve.value, end, 1, n_left, rows)
            if n_left == 0:
                break
        n_reports = min(_MOST_REPORTS, n_folds - 1)
        groups = np.linspace(1, n_folds, n_reports + 1).astype(int).tolist()[1:]
        for step, n_grown in enumerate(groups):
            curve = self._grow_together(n_grown)
            yield TreeProgress(0, LEAD_STEPS + step, curve.value, int(curve.n_trees[-1]), n_grown)

    def _grow_together(self, n_folds: int) -> Curve:
        """Grow the first folds until the mean of their curves ends."""
        n_threads = self._request.settings.n_threads
        # Each thread takes a fold; those that are ahead are needed soon.
        n_ahead = min(max(n_folds, self._n_begun + n_threads), self._cut.n_folds)
        known = self._most if self._curve is None else int(self._curve.n_trees[-1])
        for end in self._ends if self._patience is not None else [self._most]:
            self._grow(range(n_ahead if end <= known else n_folds), end)
            curve = self._note(n_folds, end)
            if curve.has_ended(self._patience):
                break
        self._n_begun = n_ahead
        return curve

    def _grow(self, chunks: Iterable[int], end: int) -> None:
        """Grow the ensembles of some folds to so many trees, in threads."""
        left = [one for one in chunks if not self._is_known(one, end)]
        for chunk in left:
            growth, n_trained = self._folds[chunk].growth, len(self._cut.split(chunk).train_rows())
            n_before = 0 if growth is None else growth.n_trees
            done = n_trained * end // self._most - n_trained * n_before // self._most
            self._sink.cost.n_updates += max(0, done)
        n_threads = max(1, min(self._request.settings.n_threads, len(left)))
        for _ in in_order(n_threads, partial(self._grow_one, end), left):
            pass

    def _grow_one(self, end: int, chunk: int) -> None:
        """Grow the ensemble of one fold, and score it after each tree, or after the last one."""
        fold, began = self._folds[chunk], perf_counter()
        take = partial(self._take, chunk)
        with foreign_code():
            if fold.growth is None:
                prepared = self._prepared(chunk, take)
                fold.n_row_bytes = prepared.nbytes
                fold.growth = self._kind(self._last, prepared.rows, take)
            fold.growth.take = take
            n_before, keys = fold.growth.n_trees, self._grown(fold, end)
            n_together = max(1, _TOGETHER // len(self._test_rows[chunk])) if self._is_best else 1
            while some := {key: self._outputs_of(chunk, *key) for key in islice(keys, n_together)}:
                fold.scores |= zip(some, self._scored(chunk, [*some.values()]), strict=True)
                fold.outputs |= some
                n_bytes = sum(sum(one.nbytes for one in columns) for columns in some.values())
                n_kept = _OUTPUT_BYTES // self._cut.n_folds * len(some) // max(1, n_bytes)
                for old in [*fold.outputs][: -max(1, n_kept)]:
                    del fold.outputs[old]
            if self._request.needs_predictions and not self._is_best and end == self._most:
                key = self._n_trees, self._limit
                fold.outputs = {key: self._outputs_of(chunk, *key)}
        fold.seconds += perf_counter() - began
        for block in self._ends:
            if n_before < block <= end or block == end:
                self._keep(chunk, block)
        if not isinstance(self._fold_task.estimator, Pipeline):
            fold.growth.forget_rows()  # to fit steps again takes longer than to copy rows
        if not self._is_best and end == self._most:
            self._release(chunk)

    def _grown(self, fold: Fold, end: int) -> Iterator[tuple[int, TreeLimit]]:
        """Grow an ensemble; yield the numbers of trees and the limits to be scored then."""
        growth = fold.growth
        assert growth is not None
        wanted = range(1, end + 1) if self._is_best else sorted({end, *self._asked})
        for n_trees in wanted:  # of trees that were there before
            if n_trees <= growth.n_trees and (n_trees, self._limit) not in fold.scores:
                yield n_trees, self._limit
        # Forests find out-of-bag scores at the end of each fit, for all their trees.
        steps = wanted if getattr(growth.estimator, "oob_score", False) else ()
        for step in [*([] if self._is_best else steps), end]:
            for n_trees in growth.grow(step, wanted) if step > growth.n_trees else ():
                if n_trees in wanted:
                    fold.oob_scores[n_trees] = growth.oob_score if n_trees == step else None
                    yield from product([n_trees], self._limits)

    # What is kept so that a trial that was killed goes on: a fold after a block of trees.

    @cached_property
    def _kept(self) -> KeptScores:
        """Where scores of single folds are kept; those of all folds are kept at the end."""
        sized = of_size(self._fold_task.estimator, 1)
        kept = kept_scores(self._request, self._repeat, self._engine, [sized])
        return kept.at(self._request.settings.truncate)

    def _sizes_of_block(self, end: int) -> list[int]:
        """Return the numbers of trees whose scores are kept together."""
        if not self._is_best:
            return [end] if end == self._n_trees else []
        return [*range(1 + max([0, *(one for one in self._ends if one < end)]), end + 1)]

    def _is_known(self, chunk: int, end: int) -> bool:
        """Return whether the scores of a fold are known, here or in the store."""
        scores, shape = self._folds[chunk].scores, (len(self._request.scoring.metrics), (0, 0))
        n_numbers = FoldResult.size(*shape)
        for block in [one for one in self._ends if one <= end] if self._is_best else [end]:
            sizes = self._sizes_of_block(block)
            if (block, self._limit) in scores:
                continue
            name, n_found = self._name_of_block(chunk, block), n_numbers * len(sizes)
            numbers = self._kept.find(n_found, name) if sizes else None
            if numbers is None:
                return False
            for size, of_one in zip(sizes, numbers.reshape(-1, n_numbers), strict=True):
                scores[size, self._limit] = FoldResult.of(of_one, *shape)
        return True

    def _keep(self, chunk: int, end: int) -> None:
        """Keep the scores of a fold after a block of trees; to find them, all must grow again."""
        scores, sizes = self._folds[chunk].scores, self._sizes_of_block(end)
        results = [scores[size, self._limit] for size in sizes]
        metrics = self._request.scoring.metrics
        if sizes and all(are_known(metrics, one.scores) for one in results):
            numbers = np.concatenate([one.numbers() for one in results])
            self._kept.keep(numbers, self._folds[chunk].seconds, self._name_of_block(chunk, end))

    def _name_of_block(self, chunk: int, end: int) -> bytes:
        return digest(self._folds_name, encode((chunk, end, self._is_best)))

    def _name_without_size(self) -> bytes:
        """Return the name of ensembles that differ in their sizes alone; empty: there is none."""
        ensemble = clone(self._last).set_params(**{self._kind.size: 1})
        key = first_key((ensemble, tuple(self._methods)), encode, lasting_key)
        return b"" if key is None or not self._name else digest(self._name, key)

    def close(self) -> None:
        """Leave the folds to trials of other sizes."""
        for chunk in range(self._cut.n_folds):
            self._release(chunk)
        self._kept.close()

    def _release(self, chunk: int) -> None:
        """Leave a fold to trials of other sizes, in the room of the cache, or drop its trees."""
        fold = self._folds[chunk]
        outputs = fold.outputs if self._request.needs_predictions else {}
        self._folds[chunk] = Fold(None, dict(fold.scores), outputs, dict(fold.oob_scores))
        if self._memory is None or not fold.seconds:
            return
        if self._most == max([0, *self._asked]) and not self._is_best:
            fold.growth = None  # all that will be asked for is known
        fold.outputs = {}
        if fold.growth is not None:
            fold.growth.forget_rows()
            vars(fold.growth).pop("take", None)  # it would hold the request
        self._memory.keep(("growth", self._name_of_all, chunk), fold, fold.seconds)

    def _held(self, chunk: int) -> Fold | None:
        """Return a fold that trials of other sizes have left, which is nobody else's then."""
        name = "growth", self._name_of_all, chunk
        return None if self._memory is None else self._memory.take(name)

    def _prepared(self, chunk: int, take: Callable[[], Taken]) -> Prepared:
        """Return what ensembles share of the rows of a fold, made if it is not kept."""
        memory, kind = self._request.cross_validation.shared.memory, self._kind

        def kept(name: Any, make: Callable[[], Any]) -> Any:
            key = first_key((chunk, name), encode)
            if memory is None or key is None or not self._name:
                return make()
            found = memory.find(key := digest(self._name, key))
            if found is None:
                began, found = perf_counter(), make()
                if found is not None:
                    memory.keep(key, found, perf_counter() - began)
            return found

        facts = kept("facts", lambda: kind.facts(take()))
        settings = kind.settings(self._last, facts)
        prepared: Prepared = kept(settings, lambda: kind.prepare(self._last, settings, take()))
        return prepared

    @cached_property
    def _name(self) -> bytes:
        """The name of the rows, the folds and the steps before the ensemble; empty: none."""
        steps = with_last(self._fold_task.estimator, None)
        if (name := first_key(steps, encode, lasting_key)) is None:
            return b""
        rows = self._request.cross_validation.data_name()[0]
        return digest(rows, self._folds_name, self._kind.__name__.encode(), name)

    @property
    def _folds_name(self) -> bytes:
        return name_of_folds(self._request, self._repeat)

    def _take(self, chunk: int) -> Taken:
        """Return the rows of a fold after the steps before the ensemble."""
        train, test = self._cut.split(chunk).train_rows(), self._cut.test_rows(chunk)
        estimator = with_last(self._fold_task.estimator, Taking())
        rows = self._request.cross_validation.data_name()[0]
        name = digest(rows, self._folds_name, encode(chunk))
        last, X = replace(self._fold_task, estimator=estimator).last_fitted(name, train, test)
        train_X, y, weights = last.taken_
        return Taken(train_X, y, weights, X, self._request.classes)

    @cached_property
    def _test_rows(self) -> list[np.ndarray]:
        """The test rows of each fold, in the order of its fit."""
        return [self._cut.test_rows(chunk) for chunk in range(self._cut.n_folds)]

    def _outputs_of(self, chunk: int, n_trees: int, limit: TreeLimit) -> list[np.ndarray]:
        """Return what the first trees of a fold say of its test rows, by the method."""
        fold, classes, columns = self._folds[chunk], self._request.classes, []
        if (n_trees, limit) in fold.outputs:
            return fold.outputs[n_trees, limit]
        assert fold.growth is not None
        fold.growth.take = partial(self._take, chunk)
        for method in self._methods:
            said = without_single_column(fold.growth.respond(method, n_trees, limit))
            if method == "predict" and classes is not None:
                said = predicted_codes(said, classes)
            columns.append(in_columns(said, method, self._candidate, classes, 1))
        return columns

    def _tested(self, chunk: int, outputs: Sequence[list[np.ndarray]]) -> TestedRows:
        """Return the test rows of a fold once for each of several outputs, as separate folds."""
        data, rows = self._request.data, np.tile(self._test_rows[chunk], len(outputs))
        weights = None if data.score_weights is None else data.score_weights[rows]
        columns = [np.concatenate(one) for one in zip(*outputs, strict=True)]
        ends = np.cumsum([one.shape[1] for one in columns])

        def respond(outputs: np.ndarray, method: str) -> np.ndarray:
            number = self._methods.index(method)
            said = np.split(outputs, ends, axis=1)[number].astype(columns[number].dtype)
            return said[:, 0] if said.shape[1] == 1 else said

        begins = np.arange(0, len(rows), len(rows) // len(outputs))
        together = np.hstack(columns, dtype=np.float64)
        return TestedRows(together, respond, targets_of(self._request)[rows], weights, begins)

    def _note(self, n_folds: int, end: int) -> Curve:
        """Take note of the mean scores of the first folds, and return them."""
        end = min(end, self._n_trees)
        sizes = np.arange(1, end + 1) if self._is_best else np.array([end])
        first = self._request.scoring.optimized[0]
        folds = self._folds[:n_folds]
        keys = [(size, self._limit) for size in sizes.tolist()]
        scores = [[one.scores[key].scores[first] for key in keys] for one in folds]
        curve = Curve.of(np.array(scores), sizes, self._sign, self._patience)
        known = [one for fold in folds if (one := fold.oob_scores.get(end)) is not None]
        if len(known) == n_folds and self._limit is None and not self._is_best:
            curve = replace(curve, oob_score=float(np.mean(known)))
        self._curve, self._n_noted = curve, n_folds
        self._sink.set_curve(curve)
        return curve

    def _has_outputs(self, chunk: int, n_trees: int) -> bool:
        """Return whether the outputs of so many trees are known or can be computed."""
        fold = self._folds[chunk]
        has_grown = fold.growth is not None and fold.growth.n_trees >= n_trees
        return has_grown or (n_trees, self._limit) in fold.outputs

    def _scored(self, chunk: int, outputs: Sequence[list[np.ndarray]]) -> list[FoldResult]:
        """Return the scores of a fold after several numbers of its trees.

        Scores by scorers are to the bit those of a fit, for which the rows have the order in which
        the splitter gives them. For the best of all sizes, our own formulas take less time.
        """
        request, rows, called = self._request, self._tested(chunk, outputs), {}
        for number, scorer in enumerate(() if self._is_best else request.scoring.metrics):
            if isinstance(scorer, Scorer):
                classes = request.classes
                called[number] = scores_of_called(scorer, rows, self._candidate, classes)
        of = self._scorer.of_folds(rows, called)
        spreads, nothing = in_full(of.spreads, of.scores.shape), np.empty((0, 0))
        return [
            FoldResult(of.scores[:, i], spreads[:, :, i], nothing, bool(of.diverged[i]), 0)
            for i in range(len(outputs))
        ]

    def _along_tree(self, chunk: int, rows: TestedRows) -> TestedRows:
        """Return the test rows of a fold in the order in which all rows are kept."""
        order = along_tree(self._cut, chunk)
        weights = None if rows.weights is None else rows.weights[order]
        targets = np.asarray(rows.targets)[order]
        return replace(rows, outputs=rows.outputs[order], targets=targets, weights=weights)

    def tested(self, part: Node) -> Iterator[TestedFolds]:
        """Grow the trees of a part, unless that is done, and yield its folds."""
        request, n_folds = self._request, self._cut.n_folds
        if self._curve is None or self._n_noted < part.last:
            self._grow_together(n_folds if self._is_best else part.last)
        assert self._curve is not None
        n_trees = self._curve.best
        for chunk in range(*part):
            known = self._folds[chunk].scores[n_trees, self._limit]
            is_needed = request.pools or request.needs_rows
            if is_needed and not self._has_outputs(chunk, n_trees):
                self._grow_one(n_trees if self._is_best else self._most, chunk)
            rows = None
            if request.needs_predictions and self._has_outputs(chunk, n_trees):
                outputs = self._outputs_of(chunk, n_trees, self._limit)
                rows = self._along_tree(chunk, self._tested(chunk, [outputs]))
            diverged = np.array([known.has_diverged])
            scores = FoldScores(known.scores[:, None], diverged, known.spreads[:, :, None])
            n_needed = self._cut.n_trained if chunk == 0 else 0
            yield TestedFolds(0, Node(chunk, chunk + 1), n_needed, rows, scores)
