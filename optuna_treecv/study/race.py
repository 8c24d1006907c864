"""Reports of a running trial, and comparisons of the trial with the best one of its study.

A pruner of Optuna sees at most 32 numbers per trial. To compare trials row by row, the objective
keeps the losses of the best trial in memory, for the rows of its first pass or for its folds. It
passes the sums of the differences between the losses to a ``RacingPruner``.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from dataclasses import field
from math import inf
from math import isnan
from threading import Lock
from threading import RLock
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
import optuna
from optuna.trial import BaseTrial
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv.core.engine import RowProgress
from optuna_treecv.core.engine import TreeProgress
from optuna_treecv.core.engine import Watch
from optuna_treecv.core.result import mean_and_std
from optuna_treecv.core.row_scores import FIRST_STEP
from optuna_treecv.core.row_scores import LAST_STEP
from optuna_treecv.core.row_scores import NESTED_FOLDS
from optuna_treecv.core.row_scores import NESTED_STEP
from optuna_treecv.core.row_scores import RowScores
from optuna_treecv.core.row_scores import spine_steps
from optuna_treecv.core.run import Run
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.study.growing import GrowthComparison
from optuna_treecv.study.racing import Comparison
from optuna_treecv.study.racing import Early
from optuna_treecv.study.racing import HUGE
from optuna_treecv.study.racing import loses
from optuna_treecv.study.racing import RacingPruner
from optuna_treecv.types import AnyTrial
from optuna_treecv.types import Array

# The maximum number of incumbents per study. The losses of these trials are kept in memory.
_MAX_INCUMBENTS = 2

# The number of reports in the first pass.
_N_REPORTS = LAST_STEP + 1 - FIRST_STEP

# Trials are compared only if they have at least this number of fold scores, because the standard
# error of fewer scores is unreliable.
_MIN_FOLDS = 5

# The bounds to which losses are clipped if they are unbounded. Within them, sums of squares are
# finite.
_WIDE_BOUNDS = -1e30, 1e30


class RaceLosses:
    """Converts row scores to losses that are clipped to a range and stored compactly.

    Parameters
    ----------
    metric : Loss or Scorer
        The metric by which the rows are scored.
    loss_range : (float, float) or None
        The argument ``loss_range`` of the pruner.
    needs_bounds : bool
        Whether the pruner decides only by a bound, which requires a range of the losses.

    Raises
    ------
    ValueError
        If bounds are needed, but the metric has none and ``loss_range`` is None.
    """

    def __init__(
        self, metric: Metric, loss_range: tuple[float, float] | None, needs_bounds: bool = True
    ) -> None:
        row_range: tuple[float, float] | None = getattr(metric, "row_range", None)
        bounds = loss_range or row_range
        if bounds is None and needs_bounds:
            raise ValueError(
                "loss_range must be given to RacingPruner(futility=None) for "
                f"scoring={metric.name!r}, because the scores of single rows are unbounded; set "
                "a range to which losses are clipped, such as loss_range=(0, 10)."
            )
        self._low, self._high = bounds or _WIDE_BOUNDS
        self._is_count = row_range == bounds and bool(getattr(metric, "is_zero_one", False))
        self._sign = 1.0 if metric.direction == "minimize" else -1.0
        self.width = 2 * (self._high - self._low)

    def of(self, scores: Array) -> Array:
        """Return scores as losses: int8 if all are 0 or 1, else float32."""
        if scores.dtype == np.int8 and self._is_count:
            return scores if self._sign > 0 else -scores
        clipped = np.clip(scores, self._low, self._high)
        if self._is_count:
            return clipped.astype(np.int8) * np.int8(self._sign)
        return (self._sign * clipped).astype(np.float32)


def differences_of(losses: Array, best: Array) -> Array:
    """Return the losses of a trial minus the losses of the best trial."""
    if losses.dtype == np.int8:  # -1, 0 or 1
        return losses - best
    return np.subtract(losses, best, dtype=np.float64)


def sums_of(differences: Array, weights: Array | None) -> Array:
    """Return the weighted sum of differences, the sum of their squares, and the sum of weights."""
    if differences.dtype == np.int8 and weights is None:
        n_worse, n_others = np.count_nonzero(differences == 1), np.count_nonzero(differences)
        return np.array([2 * n_worse - n_others, n_others, len(differences)], np.float64)
    if weights is None:
        return np.array([differences.sum(), differences @ differences, len(differences)])
    weighted = weights * differences
    return np.array([weighted.sum(), weighted @ weighted, weights.sum()])


def compared(
    n_rows: int,
    sums: Array,
    width: float | None,
    largest_weight: float = 1.0,
    n_looks: int = 1,
    early: Early = None,
) -> Comparison | None:
    """Return a comparison, with weights scaled to mean 1; None if all weights are 0.

    Parameters
    ----------
    n_rows : int
    sums : ndarray of shape (3,)
        The sums that ``sums_of`` has returned for these rows.
    width : float or None
        The largest possible difference minus the smallest one.
    largest_weight : float
        The largest weight of all rows.
    n_looks : int
    early : {"last", "mean"} or None
    """
    total, squares, weight = sums.tolist()
    if not weight > 0:
        return None
    mean = weight / n_rows
    if width is not None:
        width *= largest_weight / mean
    return Comparison(n_rows, total / mean, squares / mean**2, width, n_looks, early)


@dataclass(eq=False)
class Incumbent:
    """A completed trial with which running trials are compared.

    Parameters
    ----------
    number : int
    value : float
    rows : ndarray or None
        The losses of the rows in the first pass; or the losses of the test rows of all folds, if
        fold scores are means over rows.
    of_nested : ndarray, callable or None
        The losses of all rows, each predicted by one of 16 models that are trained without 1/16 of
        the rows; or a function that computes these losses.
    folds : ndarray or None
        The losses of the folds, in the order of the tree; None if trials are compared in the first
        pass.
    """

    number: int
    value: float
    rows: Array | None
    of_nested: Array | Callable[[], Array] | None = None
    folds: Array | None = None
    _lock: Lock = field(default_factory=Lock, init=False)

    @property
    def nested(self) -> Array:
        """The losses of all rows by the models of 16 folds; they are computed on first access."""
        with self._lock:
            if callable(self.of_nested):
                self.of_nested = self.of_nested()
            assert self.of_nested is not None
            return self.of_nested


@dataclass(eq=False)
class Race(Watch):
    """Compares a running trial with the best completed one, in the first pass or on folds.

    It also prunes the candidates of a grid that are trained in the same batch as the trial.

    Parameters
    ----------
    trial : optuna.trial.Trial
    pruner : RacingPruner
    losses : RaceLosses or None
        Converts the row scores that are compared; None if only fold scores are compared.
    best : Incumbent or None
        The best completed trial; None if there is no completed trial yet.
    early : {"last", "mean"} or None
        See ``Comparison``.
    n_looks : int
        The maximum number of reports that compare rows.
    compares_folds : bool
        Whether trials are compared by the row scores of whole folds.
    n_folds : int
        The number of folds of a repeat.
    """

    trial: optuna.Trial
    pruner: RacingPruner
    losses: RaceLosses | None
    best: Incumbent | None
    early: Early = "last"
    n_looks: int = _N_REPORTS
    compares_folds: bool = False
    n_folds: int = 1

    def __post_init__(self) -> None:
        self.takes_rows = self.losses is not None
        self._first_pass: RowScores | None = None
        self._nested: Array | None = None
        self._folds: Array | None = None
        self._parts: list[Array] = []
        self._sums = {0: np.zeros(3)}  # cumulative sums, by the number of rows
        self._n_rows = 0
        self._largest_weight = 0.0
        self._variance = inf  # of the mean difference on the rows of a growing first fold

    def incumbent(self, value: float) -> Incumbent:
        """Return this trial as the incumbent of later trials, after it is complete."""
        rows = np.concatenate(self._parts) if self._parts else None
        if self._first_pass is not None and self.losses is not None:
            rows = self.losses.of(self._first_pass.values)
        return Incumbent(self.trial.number, value, rows, self._nested, self._folds)

    def before_report(self, step: int, scores: RowScores, rows: "slice[int]") -> None:
        """Give the pruner the comparison on a slice of the rows tested so far."""
        assert self.losses is not None
        comparison = None
        if step == NESTED_STEP:
            self._nested = self.losses.of(scores.values)
            if self.best is not None:
                sums = sums_of(differences_of(self._nested, self.best.nested), scores.weights)
                comparison = compared(scores.n_rows, sums, None, early=self.early)
        else:
            self._first_pass = scores
            if self.best is not None:
                for end in scores.marks:
                    if self._n_rows < end <= scores.n_rows:
                        part = slice(self._n_rows, end)
                        weights = None if scores.weights is None else scores.weights[part]
                        self._add(self.losses.of(scores.values[part]), weights)
                comparison = self._comparison(rows.start, rows.stop)
        self.pruner.tell(self.trial, step, comparison)

    def before_part(self, part: int, run: Run) -> None:
        """Give the pruner the comparison on the folds tested so far."""
        self._folds = _fold_losses(run)
        losses, weights = _part_losses(run, self.losses)
        self._parts += [] if losses is None else [losses]
        comparison = None
        if self.best is not None and losses is not None and self.best.rows is not None:
            self._add(losses, weights)
            comparison = self._comparison(0, self._n_rows)
        elif self.best is not None and run.book.n_scored >= _MIN_FOLDS:
            assert self.best.folds is not None
            with np.errstate(invalid="ignore"):  # the difference of two infinite scores is NaN
                differences = self._folds - self.best.folds[: run.book.n_scored]
            if np.all(np.isfinite(differences)):
                sums = sums_of(differences, None)
                comparison = compared(run.book.n_scored, sums, None, early=self.early)
        self.pruner.tell(self.trial, part, comparison)

    def before_trees(self, grown: TreeProgress) -> None:
        """Give the pruner the state of the growing ensembles.

        When the first fold has all its trees, its rows are compared with those of the best trial.
        """
        if self.losses is not None and grown.scores is not None:
            rows = self.losses.of(grown.scores.values)
            self._parts = [rows]
            if self.best is not None and self.best.rows is not None:
                sums = sums_of(differences_of(rows, self.best.rows), grown.scores.weights)
                if (comparison := compared(len(rows), sums, None)) is not None:
                    self._variance = comparison.variance / len(rows)
        growth = GrowthComparison(
            grown.ends, grown.n_left, grown.n_folds, self.n_folds, self._variance
        )
        self.pruner.tell(self.trial, grown.step, growth)

    def losers(self, step: int, scores: Sequence[RowScores], rows: "slice[int]") -> list[int]:
        """Return the indices of the candidates of a batch that are to be pruned at a step.

        Each candidate is compared with the best candidate of the batch so far, and with the best
        completed trial.
        """
        assert self.losses is not None
        losses = [self.losses.of(score.values[rows]) for score in scores]
        weights = None if scores[0].weights is None else scores[0].weights[rows]
        means = [float(np.average(loss, weights=weights)) for loss in losses]
        rivals = [losses[int(np.argmin(means))]]
        width, largest = None, 1.0
        if step != NESTED_STEP:
            width = self.losses.width
            largest = 1.0 if weights is None else float(weights.max())
        if self.best is not None:
            best = self.best.nested if step == NESTED_STEP else self.best.rows
            assert best is not None
            rivals.append(best[rows])

        def is_beaten(losses_of_candidate: Array, losses_of_rival: Array) -> bool:
            sums = sums_of(differences_of(losses_of_candidate, losses_of_rival), weights)
            comparison = compared(len(losses_of_candidate), sums, width, largest, _N_REPORTS)
            return comparison is not None and loses(self.pruner, step, comparison)

        return [
            i
            for i, x in enumerate(losses)
            if any(is_beaten(x, losses_of_rival) for losses_of_rival in rivals)
        ]

    def _add(self, losses: Array, weights: Array | None) -> None:
        """Update the cumulative sums with the differences of further rows."""
        assert self.best is not None and self.best.rows is not None
        end = self._n_rows + len(losses)
        differences = differences_of(losses, self.best.rows[self._n_rows : end])
        self._sums[end] = self._sums[self._n_rows] + sums_of(differences, weights)
        if weights is not None:
            self._largest_weight = max(self._largest_weight, float(weights.max()))
        self._n_rows = end

    def _comparison(self, start: int, stop: int) -> Comparison | None:
        assert self.losses is not None
        sums, width = self._sums[stop] - self._sums[start], self.losses.width
        largest = self._largest_weight or 1.0
        return compared(stop - start, sums, width, largest, self.n_looks, self.early)


class Incumbents:
    """The best completed trials of each study, with their losses.

    Two trials are kept, because with several threads a trial may finish as the best one shortly
    before the study knows its value.
    """

    def __init__(self) -> None:
        self._trials: WeakKeyDictionary[optuna.Study, dict[int, Incumbent]] = WeakKeyDictionary()
        self._lock = RLock()

    def race(
        self,
        trial: optuna.Trial,
        run: Run,
        pruner: RacingPruner,
        run_of: Callable[[FrozenTrial], Run],
    ) -> Race:
        """Return the comparison of a trial with the currently best completed one.

        Parameters
        ----------
        trial : optuna.trial.Trial
        run : Run
            The run of the trial.
        pruner : RacingPruner
        run_of : callable
            (trial) -> the run of a trial from another worker or an earlier process. The run is
            evaluated again unless its results are stored.
        """
        settings = run.request.settings
        is_early, is_growing, losses = settings.is_early, settings.is_growing, None
        if is_early or run.request.has_row_scores:
            metric, needs_bounds = run.request.scoring.first, pruner.futility is None
            losses = RaceLosses(metric, pruner.loss_range, needs_bounds)
        early: Early = "mean" if settings.report in ("blocks", "folds") else "last"

        best = self._best(trial.study, lambda best: _incumbent_of(best, run_of(best), losses))
        n_looks = _N_REPORTS if is_early else run.n_parts
        compares_folds = not (is_early or is_growing)
        n_folds = run.request.cross_validation.n_folds
        return Race(trial, pruner, losses, best, early, n_looks, compares_folds, n_folds)

    def _best(
        self, study: optuna.Study, make_incumbent: Callable[[FrozenTrial], Incumbent | None]
    ) -> Incumbent | None:
        """Return the best completed trial with its losses; None if there is none.

        Trials for which ``make_incumbent`` returns None are ignored: their method has no first
        pass.
        """
        try:
            trial = study.best_trial
        except ValueError:
            return None
        with self._lock:
            trials = self._trials.get(study, {})
            best = trials.get(trial.number) or make_incumbent(trial)
            if best is None and (other := _best_reported(study)) is not None:
                best = trials.get(other.number) or make_incumbent(other)
            if best is not None and best.number not in trials:
                self.note(study, best)
            return best

    def note(self, study: optuna.Study, trial: Incumbent) -> None:
        """Add a completed trial; if there are more than two, drop the worst one."""
        sign = 1 if study.direction == optuna.study.StudyDirection.MINIMIZE else -1
        with self._lock:
            trials = self._trials.setdefault(study, {})
            trials[trial.number] = trial
            if len(trials) > _MAX_INCUMBENTS:
                del trials[max(trials, key=lambda number: (sign * trials[number].value, number))]


def _best_reported(study: optuna.Study) -> FrozenTrial | None:
    """Return the best completed trial that has reported values; None if there is none."""
    sign = 1 if study.direction == optuna.study.StudyDirection.MINIMIZE else -1
    completed = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    reported = [trial for trial in completed if trial.intermediate_values]
    return min(reported, key=lambda trial: sign * cast(float, trial.value), default=None)


def _incumbent_of(trial: FrozenTrial, run: Run, losses: RaceLosses | None) -> Incumbent | None:
    """Return the incumbent for a trial of another process, whose losses are computed again.

    Return None if trials are compared in the first pass and the trial's method has none. Ensembles
    are not grown again, because this would take too long; their incumbents have no losses.
    """
    assert trial.value is not None
    settings = run.request.settings
    if settings.is_growing:
        return Incumbent(trial.number, trial.value, None)
    if not settings.is_early:
        run = run.with_row_scores()
        losses = losses if run.request.needs_rows else None
        parts = [part for _ in run.events() if (part := _part_losses(run, losses)[0]) is not None]
        rows = np.concatenate(parts) if parts else None
        return Incumbent(trial.number, trial.value, rows, folds=_fold_losses(run))
    if run.early_report_error:
        return None
    assert losses is not None
    losses_of = losses.of
    # The first pass yields its events before all other events.
    early = cast(Iterator[RowProgress], run.events(Watch()))
    n_steps = len(spine_steps(run.plan.repeats[0].plan))
    rows = losses_of([next(early).scores for _ in range(n_steps)][-1].values)
    return Incumbent(trial.number, trial.value, rows, lambda: losses_of(next(early).scores.values))


def _fold_losses(run: Run) -> Array:
    """Return the losses of the folds scored so far, in the order of the tree."""
    sign = 1.0 if run.request.scoring.first.direction == "minimize" else -1.0
    return sign * run.book.scores[run.request.scoring.optimized[0], : run.book.n_scored]


def _part_losses(run: Run, losses: RaceLosses | None) -> tuple[Array | None, Array | None]:
    """Return the losses and weights of the rows of the most recently scored folds, if known."""
    if losses is None or run.book.part_rows is None:
        return None, None
    scores, weights = run.book.part_rows
    return losses.of(scores), weights


def evaluate_reporting(
    trial: AnyTrial, run: Run, should_prune: Callable[[AnyTrial], bool], race: Race | None
) -> None:
    """Evaluate a run, report intermediate values, and prune the trial if the pruner decides so.

    Parameters
    ----------
    trial : optuna.trial.Trial, FixedTrial or FrozenTrial
    run : Run
    should_prune : callable
        (trial) -> bool: the decision of the pruner.
    race : Race or None
        Compares the trial with the best one before each report.

    Raises
    ------
    optuna.TrialPruned
        If the pruner prunes the trial. Folds whose evaluation has started are completed.
    """
    settings = run.request.settings
    is_early, is_growing = settings.is_early, settings.is_growing
    if run.early_report_error:
        run.complete()
        return
    n_folds = run.request.cross_validation.n_folds
    watch = (race or Watch()) if is_growing else Watch() if is_early else None
    with closing(run.events(watch)) as events:
        n_before = 0  # the number of rows or folds at the last report
        for event in events:
            was_pruned = False
            if isinstance(event, RowProgress):
                early, was_pruned = event.scores, event.was_pruned
                previous, n_before = n_before, early.n_rows
                rows, progress = (
                    early.tail,
                    f"at step {event.step} of {LAST_STEP} of the first pass",
                )
                if event.step == NESTED_STEP:
                    rows, progress = slice(0, early.n_rows), f"after {NESTED_FOLDS} folds"
                if event.step < FIRST_STEP:
                    continue
                if race is not None:
                    race.before_report(event.step, early, rows)
                if settings.report == "blocks" and event.step != NESTED_STEP:
                    rows = slice(previous, early.n_rows)
                _report(trial, early.mean(rows), event.step)
            elif isinstance(event, TreeProgress):
                if race is not None:
                    race.before_trees(event)
                _report(trial, event.value, event.step)
                progress = f"after {event.n_trees} trees in {event.n_folds} of {n_folds} folds"
                if event.n_folds == n_folds and event.n_left == 0:
                    continue  # the last report would come after the evaluation
            elif is_early or is_growing:
                continue  # the final score is reported below
            else:
                previous = n_before if settings.report == "folds" else 0
                n_before = run.book.n_scored
                if race is not None:
                    race.before_part(event, run)
                scores = run.book.scores[run.request.scoring.optimized[0], previous:n_before]
                _report(trial, mean_and_std(scores)[0], event)
                progress = f"after {n_before} of {run.book.scores.shape[1]} folds"
            if was_pruned or (not run.book.is_complete and should_prune(trial)):
                raise optuna.TrialPruned(f"pruned {progress}")
    if is_early:
        n_passes = run.cost.n_needed / run.request.data.n_rows
        _report(trial, run.result().mean, int(np.ceil(LAST_STEP * n_passes)))


def _report(trial: BaseTrial, value: float, step: int) -> None:
    """Report a value unless it is NaN. FixedTrial and FrozenTrial ignore reports."""
    if not isnan(value):
        trial.report(float(np.clip(value, -HUGE, HUGE)), step)
