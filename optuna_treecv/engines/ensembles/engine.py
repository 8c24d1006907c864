"""The engines "boosting" and "bagging": ensembles of other libraries that grow tree by tree.

The first n trees of an ensemble are the same as those of a fit with ``n_estimators=n``. Therefore,
the ensemble of each fold is grown only once, every ``n_estimators`` is scored along the way, and a
trial can be pruned before all trees are grown.
"""

from collections.abc import Generator
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
from sklearn.base import clone
from sklearn.base import is_classifier

from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import Failed
from optuna_treecv.core.engine import LEAD_STEPS
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import results_of
from optuna_treecv.core.engine import Sink
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import TreeProgress
from optuna_treecv.core.engine import Watch
from optuna_treecv.core.engine import Work
from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import FoldScorer
from optuna_treecv.core.request import Request
from optuna_treecv.core.request import score_cache
from optuna_treecv.core.result import Curve
from optuna_treecv.core.row_scores import RowScores
from optuna_treecv.core.settings import ENGINE_SETTINGS
from optuna_treecv.engines.ensembles.grown import GrownFolds
from optuna_treecv.engines.ensembles.growth import Growth
from optuna_treecv.engines.ensembles.growth import kind_of
from optuna_treecv.engines.ensembles.growth import of_size
from optuna_treecv.estimators.base import divided
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.base import seeded
from optuna_treecv.plans.fits import describe_trainings
from optuna_treecv.plans.fits import fit_fold_models
from optuna_treecv.plans.fits import order_in_tree
from optuna_treecv.plans.fits import predict_by_fits
from optuna_treecv.plans.joint import why_not_scored
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.partition import Node
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator

# The maximum number of reports while the ensembles of the other folds grow.
_MAX_REPORTS = 32 - LEAD_STEPS

# The approximate number of groups of folds that are grown one after the other.
_MAX_GROUPS = 32


def plan_growth(name: str, request: Request) -> Plan | Declined:
    """Return the plan "boosting" or "bagging", or the reason why it cannot be used."""
    prefix, last = divided(request.estimator)
    kind = kind_of(last)
    is_of_engine = kind is not None and kind.is_boosted == (name == "boosting")
    why_not = f"{type(last).__name__} does not grow tree by tree"
    if kind is not None and is_of_engine:
        why_not = _why_not(request, kind, prefix, last)
    if kind is None or why_not:
        advice = (
            f"method={name!r} cannot evaluate this estimator, because {why_not}; use "
            "method='auto' instead."
        )
        free = () if kind else request.estimator.get_params(deep=True)
        return Declined(why_not, advice, free, 2 if is_of_engine else 0)
    _check(request, kind, prefix, last)
    return GrowingPlan(request, name)


plan_boosting, plan_bagging = partial(plan_growth, "boosting"), partial(plan_growth, "bagging")


def _why_not(request: Request, kind: type[Growth], prefix: str, last: Estimator) -> str:
    """Return the reason why an ensemble cannot be grown tree by tree, or "" if it can."""
    data, size = request.data, kind.n_trees_of(last)
    if not is_integer(size) or size < 1:
        return f"{kind.size} is not a positive integer"
    searched = [name.removeprefix(prefix) for name in request.cross_validation.search.ends]
    if why := kind.why_not(last, searched) or request.metadata.reason_not_from_sums(
        request.estimator
    ):
        return why
    if data.y is None or data.y.ndim > 1:
        return "y has several columns" if data.y is not None else "y is missing"
    fewest = request.cross_validation.smallest_training_set
    if is_classifier(last) and fewest(of_classes=True)[1] == 0:
        return "a training set lacks a class"
    return why_not_scored(request)


def _check(request: Request, kind: type[Growth], prefix: str, last: Estimator) -> None:
    """Raise an error for invalid early stopping or ``truncate``.

    The library of the ensemble checks all other parameters.
    """
    settings, n_repeats = request.settings, request.cross_validation.n_repeats
    is_best = settings.n_estimators is not None
    if not is_best and (patience := kind.patience(last)):
        raise ValueError(
            f"n_estimators must be 'best' if {name_of(last)} stops early (after {patience} trees "
            "without a better score), got None: the mean score of the folds decides when "
            "to stop; fit alone would need a validation set."
        )
    searched, scoring = request.cross_validation.search.ends, settings.scored_by
    # Boosted trees are fitted to the residuals of the trees before them. A truncated tree would
    # therefore differ systematically from a tree that is grown to this depth, and not only by its
    # random numbers.
    if settings.truncate and (kind.is_boosted or f"{prefix}max_depth" not in searched):
        raise ValueError(
            "truncate must be False unless the max_depth of a forest is searched, got True for "
            f"{name_of(request.estimator)}."
        )
    for name in ("max_leaf_nodes", "ccp_alpha") if settings.truncate else ():
        if getattr(last, name) or prefix + name in searched:
            raise ValueError(
                f"truncate must be False if {name} is given or searched, got True: "
                "truncated trees then differ systematically from trees grown to the same depth."
            )
    if is_best and n_repeats > 1:
        raise ValueError(
            "folds must not be repeated with n_estimators='best', which chooses one number of "
            f"trees for the folds, got {n_repeats} repeats."
        )
    if is_best and scoring is not None and isinstance(scoring.first, Pooled):
        raise ValueError(
            "scoring must not be pooled with n_estimators='best', which chooses the number of "
            f"trees by the mean score of the folds, got {scoring.first.name!r}."
        )


def seed_of(request: Request, repeat: Repeat) -> int:
    return (request.settings.seed + repeat.number) % 2**32


class GrowingPlan(Plan):
    """A plan that grows one ensemble per fold, and scores it along the way."""

    reason = "each fold's ensemble is grown once and scored along the way"

    def __init__(self, request: Request, name: str) -> None:
        super().__init__(request)
        self.name = name
        self.capabilities = Capabilities(
            early_reports="trees",
            keeps_outputs=True,
            caches_responses=True,
            one_epoch_reason="its trees are grown once",
            in_memory_reason="its library needs all rows as arrays",
            falls_back=request.settings.n_estimators is None,
            settings=ENGINE_SETTINGS,
            with_size=of_size,
        )

    def cost(self) -> str:
        """Return the number of ensembles and of their training rows, and where time is saved."""
        settings, sentence = self.request.settings, describe_trainings(self.request, "ensembles")
        prefix, last = divided(self.request.estimator)
        kind = kind_of(last)
        is_searched = kind and prefix + kind.size in self.request.cross_validation.search.ends
        if self.name == "boosting" and not settings.is_growing and not is_searched:
            sentence += (
                " They share no trees, so the library's own cross-validation takes as long, but "
                "report='auto' and objective.pruner() prune most trials of a study."
            )
        return sentence

    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return the keys of the scores. With ``n_estimators="best"``, there are no keys."""
        request, settings = self.request, self.request.settings
        parts = [seeded(clone(candidate), seed_of(request, self.repeats[0]))]
        point = settings.n_estimators, settings.truncate, seed_of(request, repeat)
        cached = score_cache(request, repeat, self.name, parts).for_candidate(point)
        results = results_of(request, repeat, cached)
        return results if settings.n_estimators is None else results._replace(specs={})

    def evaluate(self, work: Work) -> Generator[Event]:
        """Grow the ensembles of all folds.

        If the library raises an error, ``method="auto"`` refits the folds.
        """
        (candidate,), (sink,), repeat, _, watch, _ = work
        try:
            with closing(GrownFolds(self.request, self.name, candidate, repeat)) as folds:
                growing = GrowingFolds(self.request, candidate, folds, sink)
                if watch is not None:
                    yield from growing.events(watch)
                for run in repeat.parts:
                    yield from growing.yield_folds(run)
        except ValueError as error:
            reason = f"its trees cannot be grown ({str(error).removesuffix('.')})"
            yield Failed(error, reason, outranks_refit_errors=False)

    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> Array:
        """Refit each fold, and return the predictions for the test rows."""
        return predict_by_fits(self.request, candidate, repeat, method)

    def fold_models(self, candidate: Candidate, repeat: Repeat) -> FoldModels:
        """Refit each fold."""
        return fit_fold_models(self.request, candidate, repeat)


class GrowingFolds:
    """Reports the scores of a candidate while the ensembles of its folds grow.

    Parameters
    ----------
    request : Request
    candidate : estimator
    folds : GrownFolds
    sink : Sink
    """

    def __init__(
        self, request: Request, candidate: Candidate, folds: GrownFolds, sink: Sink
    ) -> None:
        self._request, self._folds, self._sink = request, folds, sink
        self._scorer = FoldScorer(request, candidate)
        self._curve: Curve | None = None
        self._n_begun = self._n_reported = 0

    def events(self, watch: Watch) -> Generator[TreeProgress]:
        """Grow the ensembles, beginning with the first fold, and yield the scores so far."""
        n_folds, ends = self._folds.cut.n_folds, tuple(self._folds.ends)
        for step, end in enumerate(ends):
            self._folds.grow([0], end, self._sink.cost)
            curve = self._report(1, end)
            n_left = 0 if curve.has_ended(self._folds.patience) else self._folds.most - end
            rows = None
            if watch.takes_rows and n_left == 0 and self._folds.has_outputs(0, end):
                tested = self._folds.test_rows(0, end)
                rows = RowScores(len(tested), tested.weights is not None)
                rows.add(self._scorer.score_rows(tested), tested.weights)
            yield TreeProgress(0, step, curve.value, end, 1, n_left, ends, rows)
            if n_left == 0:
                break
        n_reports = min(_MAX_REPORTS, n_folds - 1)
        groups = np.linspace(1, n_folds, n_reports + 1).astype(int).tolist()[1:]
        for step, n_grown in enumerate(groups):
            curve = self._grow_together(n_grown)
            n_trees = int(curve.n_trees[-1])
            yield TreeProgress(0, LEAD_STEPS + step, curve.value, n_trees, n_grown, 0, ends)

    def _grow_together(self, n_folds: int) -> Curve:
        """Grow the ensembles of the first ``n_folds`` folds.

        The ensembles grow to their full size, or until their mean score stops them early.
        """
        n_threads = self._request.settings.n_threads
        # Each thread grows one fold. Idle threads grow the next folds, which will be needed soon.
        n_ahead = min(max(n_folds, self._n_begun + n_threads), self._folds.cut.n_folds)
        last = self._folds.most if self._curve is None else int(self._curve.n_trees[-1])
        for end in self._folds.ends if self._folds.patience is not None else [self._folds.most]:
            self._folds.grow(range(n_ahead if end <= last else n_folds), end, self._sink.cost)
            curve = self._report(n_folds, end)
            if curve.has_ended(self._folds.patience):
                break
        self._n_begun = n_ahead
        return curve

    def _report(self, n_folds: int, end: int) -> Curve:
        """Report the mean scores of the first ``n_folds`` folds to the sink, and return them."""
        folds, end = self._folds, min(end, self._folds.n_trees)
        sizes = np.arange(1, end + 1) if folds.is_best else np.array([end])
        metrics, metric = self._request.scoring, self._request.scoring.optimized[0]
        scores = [
            [folds.result(chunk, size).scores[metric] for size in sizes.tolist()]
            for chunk in range(n_folds)
        ]
        sign = 1.0 if metrics.first.direction == "minimize" else -1.0
        curve = Curve.of(np.array(scores), sizes, sign, folds.patience)
        if (oob_score := folds.oob_score(n_folds, end)) is not None:
            curve = replace(curve, oob_score=oob_score)
        self._curve, self._n_reported = curve, n_folds
        self._sink.set_curve(curve)
        return curve

    def _in_prepared_order(self, chunk: int, rows: TestedRows) -> TestedRows:
        """Return the test rows of a fold, rearranged into the order of the prepared rows."""
        order = order_in_tree(self._folds.cut, chunk)
        weights = None if rows.weights is None else rows.weights[order]
        targets = np.asarray(rows.targets)[order]
        return replace(rows, outputs=rows.outputs[order], targets=targets, weights=weights)

    def yield_folds(self, run: Node) -> Iterator[TestedFolds]:
        """Grow the remaining trees of a contiguous run of folds, and yield their scores."""
        request, n_folds = self._request, self._folds.cut.n_folds
        n_threads = request.settings.n_threads
        n_at_once = n_threads * max(1, n_folds // (_MAX_GROUPS * n_threads))
        for chunk in range(*run):
            if self._curve is None or self._n_reported <= chunk:
                n_next = min(chunk + n_at_once, run.last)
                self._grow_together(n_folds if self._folds.is_best else n_next)
            assert self._curve is not None
            n_trees = self._curve.best
            result = self._folds.result(chunk, n_trees)
            is_needed = request.pools or request.needs_rows
            if is_needed and not self._folds.has_outputs(chunk, n_trees):
                self._folds.grow_one(n_trees if self._folds.is_best else self._folds.most, chunk)
            rows = None
            if request.needs_predictions and self._folds.has_outputs(chunk, n_trees):
                rows = self._in_prepared_order(chunk, self._folds.test_rows(chunk, n_trees))
            diverged = np.array([result.has_diverged])
            scores = FoldScores(result.scores[:, None], diverged, result.spreads[:, :, None])
            n_needed = self._folds.cut.n_trained if chunk == 0 else 0
            yield TestedFolds(0, Node(chunk, chunk + 1), n_needed, rows, scores)
