"""Compares a trial with the best one on the folds that both have been tested on so far."""

from __future__ import annotations

import numpy as np
import optuna

from optuna_treecv.crossval.run import Run
from optuna_treecv.study.comparison import compared
from optuna_treecv.study.comparison import differences_of
from optuna_treecv.study.comparison import Early
from optuna_treecv.study.comparison import Losses
from optuna_treecv.study.comparison import sums_of
from optuna_treecv.study.racing import RacingPruner

# Fewer folds give no standard error that one can trust.
_FEWEST_FOLDS = 5


class FoldLosses:
    """The losses of a trial's folds, and of their rows where the score is a mean over rows.

    Attributes
    ----------
    folds : ndarray
        Along the tree, as far as they are known.
    losses : Losses or None
        How the losses of rows are compared.
    rows : ndarray or None
        Those of all rows of these folds.
    """

    def __init__(self, sign: float, losses: Losses | None) -> None:
        self._sign = sign
        self.losses = losses
        self._parts: list[np.ndarray] = []
        self.folds = np.empty(0)

    def add(self, run: Run) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Take note of the last part of a run; return its rows' losses and weights."""
        self.folds = self._sign * run.chunk_scores[run.scoring.optimized[0], : run.n_scored]
        if self.losses is None or run.part_rows is None:
            return None, None
        scores, weights = run.part_rows
        self._parts.append(self.losses.of(scores))
        return self._parts[-1], weights

    @property
    def rows(self) -> np.ndarray | None:
        return np.concatenate(self._parts) if self._parts else None


class FoldRace:
    """Compares one trial with the best one while it runs.

    Parameters
    ----------
    trial : optuna.trial.Trial
    run : Run
        The trial's.
    pruner : RacingPruner
    best : FoldLosses or None
        Those of the best trial; None: there is no completed trial yet.
    """

    def __init__(
        self, trial: optuna.Trial, run: Run, pruner: RacingPruner, best: FoldLosses | None
    ) -> None:
        self.trial = trial
        self.own = fold_losses(run, pruner)
        self._width = None if self.own.losses is None else self.own.losses.width
        self._pruner = pruner
        self._best = best
        self._best_rows = None if best is None else best.rows
        self._sums = np.zeros(3)
        self._n_rows = 0
        self._largest_weight = 0.0
        self._n_looks = run.n_parts
        self.early: Early = "mean" if run.evaluation.report == "folds" else "last"

    def before_report(self, step: int, run: Run) -> None:
        """Tell the pruner how the trial compares on the folds so far."""
        losses, weights = self.own.add(run)
        comparison = None
        if self._best is not None and losses is not None and self._best_rows is not None:
            stop = self._n_rows + len(losses)
            differences = differences_of(losses, self._best_rows[self._n_rows : stop])
            self._sums += sums_of(differences, weights)
            self._n_rows = stop
            largest = 1.0
            if weights is not None:
                largest = self._largest_weight = max(self._largest_weight, float(weights.max()))
            comparison = compared(
                stop, self._sums, self._width, largest or 1.0, self._n_looks, self.early
            )
        elif self._best is not None and run.n_scored >= _FEWEST_FOLDS:
            with np.errstate(invalid="ignore"):  # two infinite scores have no difference
                differences = self.own.folds - self._best.folds[: run.n_scored]
            if np.all(np.isfinite(differences)):
                sums = sums_of(differences, None)
                comparison = compared(run.n_scored, sums, None, early=self.early)
        self._pruner.tell(self.trial, step, comparison)

    def end(self) -> None:
        """Forget what the pruner was told."""
        self._pruner.forget(self.trial)


def fold_losses(run: Run, pruner: RacingPruner) -> FoldLosses:
    """Return room for the losses of a run's folds, and ask it for those of rows if it has them."""
    metric = run.scoring.first
    losses = None
    if run.ask_for_rows():
        losses = Losses(metric, pruner.loss_range, pruner.futility is None)
    return FoldLosses(1.0 if metric.direction == "minimize" else -1.0, losses)
