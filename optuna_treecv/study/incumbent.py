"""The best trial of a study, and how another trial compares with it on the rows of the first pass.

A pruner of Optuna sees at most 32 numbers per trial. So the objective itself holds the scores of
the best trial's rows, and tells a ``RacingPruner`` the sums of the differences.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from threading import Lock
from typing import Any
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import optuna

from optuna_treecv.crossval.early import EarlyRepeat
from optuna_treecv.crossval.early_scores import FIRST_STEP
from optuna_treecv.crossval.early_scores import LAST_STEP
from optuna_treecv.crossval.early_scores import NESTED_STEP
from optuna_treecv.crossval.early_scores import RowScores
from optuna_treecv.crossval.run import Run
from optuna_treecv.study.comparison import compared
from optuna_treecv.study.comparison import Comparison
from optuna_treecv.study.comparison import differences_of
from optuna_treecv.study.comparison import Early
from optuna_treecv.study.comparison import Losses
from optuna_treecv.study.comparison import sums_of
from optuna_treecv.study.fold_race import fold_losses
from optuna_treecv.study.fold_race import FoldLosses
from optuna_treecv.study.fold_race import FoldRace
from optuna_treecv.study.racing import loses
from optuna_treecv.study.racing import RacingPruner

# The most trials of a study whose losses are held.
_MOST_HELD = 2

# The reports of a first pass.
_LOOKS = LAST_STEP + 1 - FIRST_STEP


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
        if early.n_nested:
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
    early : {"last", "mean"} or None
        See ``Comparison``.
    """

    def __init__(
        self,
        trial: optuna.Trial,
        pruner: RacingPruner,
        losses: Losses,
        incumbent: Incumbent | None,
        early: Early = "last",
    ) -> None:
        self.losses = losses
        self.nested: np.ndarray | None = None
        self.trial = trial
        self.early = early
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
                differences = differences_of(self.nested, self._incumbent.nested)
                sums = sums_of(differences, scores.weights)
                comparison = compared(scores.n_rows, sums, None, early=self.early)
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
        sums = sums_of(differences_of(losses, best), weights)
        found = compared(len(losses), sums, width, largest, _LOOKS)
        return found is not None and loses(self._pruner, step, found)

    def _of_pass(self, best: np.ndarray, scores: RowScores, rows: slice) -> Comparison | None:
        """Return the comparison on some rows of the first pass, the last ones so far.

        The sums from the first row on are kept wherever such rows may begin later.
        """
        ends = [end for end in scores.marks if self._n_rows < end <= scores.n_rows]
        for end in ends:
            part = slice(self._n_rows, end)
            weights = None if scores.weights is None else scores.weights[part]
            differences = differences_of(self.losses.of(scores.values[part]), best[part])
            self._sums[end] = self._sums[self._n_rows] + sums_of(differences, weights)
            if weights is not None:
                self._largest_weight = max(self._largest_weight, float(weights.max()))
            self._n_rows = end
        sums = self._sums[rows.stop] - self._sums[rows.start]
        width = self.losses.width
        n_rows, largest = rows.stop - rows.start, self._largest_weight or 1.0
        return compared(n_rows, sums, width, largest, _LOOKS, self.early)


class _BestFolds(NamedTuple):
    """The best trial, where trials are compared on folds."""

    number: int
    value: float
    losses: FoldLosses


_Best = Incumbent | _BestFolds


class Incumbents:
    """The best trials of each study, with the losses of their rows.

    Two are held: in threads, a trial is better than the best one shortly before the study says so.
    """

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[optuna.Study, dict[int, _Best]] = WeakKeyDictionary()
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
        losses = Losses(run.scoring.first, pruner.loss_range, pruner.futility is None)
        early: Early = "mean" if run.evaluation.report == "blocks" else "last"

        def again(best: optuna.trial.FrozenTrial) -> Incumbent:
            return Incumbent.again(best, run_of(best), losses)

        return Race(trial, pruner, losses, self._best(trial.study, again), early)

    def fold_race(
        self,
        trial: optuna.Trial,
        run: Run,
        pruner: RacingPruner,
        run_of: Callable[[optuna.trial.FrozenTrial], Run],
    ) -> FoldRace:
        """Return the comparison on folds of a trial with the best one that is completed now.

        The parameters are those of ``race``. A trial that was made elsewhere is evaluated again,
        where its results are not kept.
        """

        def again(best: optuna.trial.FrozenTrial) -> _BestFolds:
            other = run_of(best)
            found = fold_losses(other, pruner)
            for _ in other:
                found.add(other)
            assert best.value is not None
            return _BestFolds(best.number, best.value, found)

        held = self._best(trial.study, again)
        return FoldRace(trial, run, pruner, None if held is None else held.losses)

    def _best(
        self, study: optuna.Study, again: Callable[[optuna.trial.FrozenTrial], Any]
    ) -> Any | None:
        """Return what is held of the best completed trial; None if there is no such trial."""
        try:
            best = study.best_trial
        except ValueError:
            return None
        with self._lock:
            found = self._held.get(study, {}).get(best.number)
            if found is None:
                found = again(best)
                self._hold(study, found)
            return found

    def note(self, race: Race, value: float, early: EarlyRepeat) -> None:
        """Hold the losses of a trial that is completed, if it is the best one so far."""
        progressive = race.losses.of(early.progressive.values)
        self._note(race.trial, Incumbent(race.trial.number, value, progressive, race.nested))

    def note_folds(self, race: FoldRace, value: float) -> None:
        """Do the same for a trial that was compared on folds."""
        self._note(race.trial, _BestFolds(race.trial.number, value, race.own))

    def _note(self, trial: optuna.Trial, found: _Best) -> None:
        with self._lock:
            self._hold(trial.study, found)

    def _hold(self, study: optuna.Study, found: _Best) -> None:
        """Hold a trial; of more than two, the worst one goes."""
        sign = 1 if study.direction == optuna.study.StudyDirection.MINIMIZE else -1
        held = self._held.setdefault(study, {})
        held[found.number] = found
        if len(held) > _MOST_HELD:
            del held[max(held, key=lambda number: (sign * held[number].value, number))]


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
