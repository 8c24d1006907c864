"""The best trial of a study, and how another trial compares with it on the rows of the first pass.

A pruner of Optuna sees at most 32 numbers per trial. So the objective itself holds the scores of
the best trial's rows, and tells a ``RacingPruner`` the sums of the differences.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
import optuna

from optuna_treecv.crossval.early import EarlyRepeat
from optuna_treecv.crossval.early_scores import NESTED_STEP
from optuna_treecv.crossval.early_scores import RowScores
from optuna_treecv.crossval.run import Run
from optuna_treecv.study.racing import Comparison
from optuna_treecv.study.racing import RacingPruner


class Losses:
    """The losses of rows as they are compared: within a range, with few bytes.

    Parameters
    ----------
    run : Run
        Whose first optimised metric scores the rows.
    pruner : RacingPruner

    Raises
    ------
    ValueError
        If scores have no bounds, and none are given.
    """

    def __init__(self, run: Run, pruner: RacingPruner) -> None:
        metric = run.scoring.first
        row_range: tuple[float, float] | None = getattr(metric, "row_range", None)
        bounds = pruner.loss_range or row_range
        if bounds is None:
            raise ValueError(
                f"loss_range must be given to RacingPruner for scoring={metric.name!r}, whose "
                "values for single rows have no bounds; RacingPruner(loss_range=(0, 10)) takes "
                "losses above 10 as 10."
            )
        self._low, self._high = bounds
        self._is_count = row_range == bounds  # errors are 0 or 1
        self._sign = 1.0 if metric.direction == "minimize" else -1.0
        self.width = 2 * (self._high - self._low)

    def of(self, scores: np.ndarray) -> np.ndarray:
        """Return scores as losses, 1 byte per row where they are 0 or 1, else 4 bytes."""
        if scores.dtype == np.int8 and self._is_count:
            return scores if self._sign > 0 else -scores
        within = np.clip(scores, self._low, self._high)
        if self._is_count:
            return within.astype(np.int8) * np.int8(self._sign)
        return (self._sign * within).astype(np.float32)


class Incumbent:
    """The best trial.

    Attributes
    ----------
    number : int
    value : float
    progressive : ndarray
        The losses of the rows of the first pass.
    """

    def __init__(
        self, number: int, value: float, progressive: np.ndarray, nested: np.ndarray | None
    ) -> None:
        self.number = number
        self.value = value
        self.progressive = progressive
        self._nested = nested
        self._compute: Callable[[], np.ndarray] | None = None
        self._lock = Lock()

    @classmethod
    def again(cls, trial: optuna.trial.FrozenTrial, run: Run, losses: Losses) -> Incumbent:
        """Return a trial that was made elsewhere: its first pass is computed now.

        Its 16 folds are computed when they are needed.
        """
        early = run.begin_early()
        for _ in early.first_pass():
            pass
        assert trial.value is not None
        found = cls(trial.number, trial.value, losses.of(early.progressive.values), None)
        found._compute = lambda: losses.of(early.nested().values)
        return found

    @property
    def nested(self) -> np.ndarray:
        """The losses of all rows by the models of 16 folds."""
        with self._lock:
            if self._nested is None:
                assert self._compute is not None
                self._nested = self._compute()
                self._compute = None
            return self._nested


class Race:
    """Compares one trial with the best one while it runs.

    Parameters
    ----------
    trial : optuna.trial.Trial
    pruner : RacingPruner
    losses : Losses
    incumbent : Incumbent or None
        None: there is no completed trial yet.
    """

    def __init__(
        self,
        trial: optuna.Trial,
        pruner: RacingPruner,
        losses: Losses,
        incumbent: Incumbent | None,
    ) -> None:
        self.losses = losses
        self.nested: np.ndarray | None = None
        self.trial = trial
        self._pruner = pruner
        self._incumbent = incumbent
        self._sums = {0: np.zeros(3)}
        self._n_rows = 0
        self._largest_weight = 0.0

    def end(self) -> None:
        """Forget what the pruner was told."""
        self._pruner.forget(self.trial)

    def before_report(self, step: int, scores: RowScores, rows: slice) -> None:
        """Tell the pruner how the trial compares on some rows, the last of those scored so far."""
        comparison = None
        if step == NESTED_STEP:
            self.nested = self.losses.of(scores.values)
        if self._incumbent is not None:
            if step == NESTED_STEP:
                assert self.nested is not None
                comparison = _of_level(self.nested, self._incumbent.nested, scores.weights)
            else:
                comparison = self._of_pass(self._incumbent.progressive, scores, rows)
        self._pruner.tell(self.trial, step, comparison)

    def losses_of_best(self, step: int) -> np.ndarray | None:
        """Return the losses of the best trial's rows at a step; None if there is none."""
        if self._incumbent is None:
            return None
        return self._incumbent.nested if step == NESTED_STEP else self._incumbent.progressive

    def loses(
        self, step: int, losses: np.ndarray, best: np.ndarray, weights: np.ndarray | None
    ) -> bool:
        """Return whether losses of rows lose against the best ones at a step."""
        width, largest = None, 1.0
        if step != NESTED_STEP:
            width = self.losses.width
            largest = 1.0 if weights is None else float(weights.max())
        sums = _sums(_differences(losses, best), weights)
        compared = _comparison(len(losses), sums, width, largest)
        return compared is not None and self._pruner.loses(step, compared)

    def _of_pass(self, best: np.ndarray, scores: RowScores, rows: slice) -> Comparison | None:
        """Return the comparison on some rows of the first pass, the last ones so far.

        The sums from the first row on are kept wherever such rows may begin later.
        """
        ends = [end for end in scores.marks if self._n_rows < end <= scores.n_rows]
        for end in ends:
            part = slice(self._n_rows, end)
            weights = None if scores.weights is None else scores.weights[part]
            differences = _differences(self.losses.of(scores.values[part]), best[part])
            self._sums[end] = self._sums[self._n_rows] + _sums(differences, weights)
            if weights is not None:
                self._largest_weight = max(self._largest_weight, float(weights.max()))
            self._n_rows = end
        sums = self._sums[rows.stop] - self._sums[rows.start]
        width = self.losses.width
        return _comparison(rows.stop - rows.start, sums, width, self._largest_weight or 1.0)


def _of_level(
    losses: np.ndarray, best: np.ndarray, weights: np.ndarray | None
) -> Comparison | None:
    """Return the comparison where both trials have tested all rows."""
    return _comparison(len(losses), _sums(_differences(losses, best), weights), None)


def _differences(losses: np.ndarray, best: np.ndarray) -> np.ndarray:
    if losses.dtype == np.int8:  # -1, 0 or 1
        return losses - best
    return np.subtract(losses, best, dtype=np.float64)


def _sums(differences: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the sums of differences, of their squares, and of the weights."""
    if differences.dtype == np.int8 and weights is None:
        n_worse, n_others = np.count_nonzero(differences == 1), np.count_nonzero(differences)
        return np.array([2 * n_worse - n_others, n_others, len(differences)], np.float64)
    if weights is None:
        return np.array([differences.sum(), differences @ differences, len(differences)])
    weighed = weights * differences
    return np.array([weighed.sum(), weighed @ weighed, weights.sum()])


def _comparison(
    n_rows: int, sums: np.ndarray, width: float | None, largest_weight: float = 1.0
) -> Comparison | None:
    """Return a comparison where the weights have the mean 1; None if they are all 0."""
    total, squares, weight = sums.tolist()
    if not weight > 0:
        return None
    mean = weight / n_rows
    if width is not None:
        width *= largest_weight / mean
    return Comparison(n_rows, total / mean, squares / mean**2, width)


class Incumbents:
    """The best trial of each study, with the losses of its rows."""

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[optuna.Study, Incumbent] = WeakKeyDictionary()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Incumbents], tuple[()]]:
        return Incumbents, ()  # the losses are computed again

    def race(
        self,
        trial: optuna.Trial,
        run: Run,
        pruner: RacingPruner,
        run_of: Callable[[optuna.trial.FrozenTrial], Run],
    ) -> Race:
        """Return the comparison of a trial with the best one that is completed now.

        Parameters
        ----------
        trial : optuna.trial.Trial
        run : Run
            The trial's.
        pruner : RacingPruner
        run_of : callable
            Makes the run of a trial that another worker has made, or an earlier process.
        """
        losses = Losses(run, pruner)
        try:
            best = trial.study.best_trial
        except ValueError:  # no trial is completed yet
            return Race(trial, pruner, losses, None)
        with self._lock:
            held = self._held.get(trial.study)
            if held is None or held.number != best.number:
                held = Incumbent.again(best, run_of(best), losses)
                self._held[trial.study] = held
        return Race(trial, pruner, losses, held)

    def note(self, race: Race, value: float, early: EarlyRepeat) -> None:
        """Hold the losses of a trial that is completed, if it is the best one so far."""
        study, number = race.trial.study, race.trial.number
        is_minimized = study.direction == optuna.study.StudyDirection.MINIMIZE
        with self._lock:
            held = self._held.get(study)
            if held is None or (value < held.value if is_minimized else value > held.value):
                progressive = race.losses.of(early.progressive.values)
                self._held[study] = Incumbent(number, value, progressive, race.nested)


class BatchRace:
    """Decides which points of a grid that are trained together are left out.

    Each is compared with the best of them so far, and with the best completed trial.

    Parameters
    ----------
    race : Race
        Of the trial that has asked for the batch.
    """

    def __init__(self, race: Race) -> None:
        self._race = race

    def losers(self, step: int, scores: Sequence[RowScores], rows: slice) -> list[int]:
        """Return the numbers of those that lose."""
        race = self._race
        losses = [race.losses.of(one.values[rows]) for one in scores]
        weights = None if scores[0].weights is None else scores[0].weights[rows]
        means = [float(np.average(one, weights=weights)) for one in losses]
        best = int(np.argmin(means))
        others = [losses[best]]
        if (incumbent := race.losses_of_best(step)) is not None:
            others.append(incumbent[rows])
        return [
            number
            for number, own in enumerate(losses)
            if any(race.loses(step, own, other, weights) for other in others)
        ]
