"""The function that the study of a search runs, and what it keeps of each trial."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
import warnings

import numpy as np
import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from sklearn.exceptions import FitFailedWarning

from optuna_treecv.search.fit_tasks import FitTasks
from optuna_treecv.search.results import failed
from optuna_treecv.search.results import Found
from optuna_treecv.search.results import found_before
from optuna_treecv.search.results import found_by
from optuna_treecv.search.results import MOST_SPLITS
from optuna_treecv.study.objective import TreeCVObjective


class Keeper:
    """The function that a study runs: an objective, and what is kept of its results.

    Parameters
    ----------
    objective : TreeCVObjective
    error_score : "raise" or float
    tasks : FitTasks
    verbose : int
        As for ``TreeCVSearchCV``.
    """

    def __init__(
        self, objective: TreeCVObjective, error_score: Any, tasks: FitTasks, verbose: int
    ) -> None:
        self._objective = objective
        self._error_score = error_score
        self._tasks = tasks
        self._verbose = verbose
        self._found: dict[int, Found] = {}
        self._stored: Mapping[int, Mapping[str, np.ndarray]] = {}
        self.errors: dict[int, Exception] = {}
        self.n_splits = objective.n_splits

    def __call__(self, trial: optuna.Trial) -> float:
        try:
            with self._tasks.trial(self.n_splits):
                result = self._objective.evaluate_trial(trial)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            self.errors[trial.number] = error
            if self._error_score == "raise":
                raise
            # Optuna logs a failed trial with its traceback: without ours that is a few lines.
            raise error.with_traceback(None) from None
        self._found[trial.number] = found_by(result, self.n_splits)
        return result.mean

    def found(self, trial: FrozenTrial, metrics: dict[str, str], optimized: int) -> Found:
        """Return what is known of a trial."""
        if trial.number in self._found:
            return self._found[trial.number]
        if trial.state == TrialState.FAIL:
            return failed(len(metrics), self.n_splits, float(self._error_score))
        stored = self._stored.get(trial.number, {})
        return found_before(trial, list(metrics), list(metrics.values()), optimized, stored)

    def read_earlier(self, trials: Sequence[FrozenTrial]) -> None:
        """Read the fold scores of trials of earlier runs, where a store keeps them."""
        if self.n_splits <= MOST_SPLITS:
            earlier = [trial for trial in trials if trial.number not in self._found]
            self._stored = self._objective._stored_scores(earlier)

    def check(self, n_rows: int) -> None:
        """Refuse a search in which all trials have failed; warn of some that have."""
        if not n_rows:
            raise ValueError("timeout must leave time for one trial, but none is complete.")
        if not self.errors:
            return
        n_failed, first = len(self.errors), next(iter(self.errors.values()))
        about = (
            f"{n_failed} of {n_rows} trials have failed, the first one with: {first!r}; "
            "error_score='raise' shows where."
        )
        if n_failed == n_rows:
            raise ValueError(
                f"estimator must be one that can be fitted, but all {about}"
            ) from first
        warnings.warn(
            f"{about} They score error_score={self._error_score}.", FitFailedWarning, stacklevel=3
        )
