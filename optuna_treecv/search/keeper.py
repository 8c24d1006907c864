"""The function that the study of a search runs, and what it keeps of each trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
import warnings

import numpy as np
import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from sklearn.exceptions import FitFailedWarning

from optuna_treecv.crossval.failed_folds import FoldsFailed
from optuna_treecv.crossval.result import CVResult
from optuna_treecv.scoring import ReturnsSeveral
from optuna_treecv.search.fit_tasks import FitTasks
from optuna_treecv.search.results import failed
from optuna_treecv.search.results import Found
from optuna_treecv.search.results import found_before
from optuna_treecv.search.results import found_by
from optuna_treecv.search.results import found_by_folds
from optuna_treecv.search.results import lines_of
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
    names : sequence of str
        Of the scores in the columns.
    with_names : callable
        (names) -> the objective to go on with if the scorer returns several scores by name.

    Attributes
    ----------
    objective : TreeCVObjective
        The one that evaluates the trials now.
    errors : dict of int to Exception
        By the numbers of the trials that have failed.
    wrong : Exception or None
        What is wrong with an argument, if a trial has shown it.
    """

    def __init__(
        self,
        objective: TreeCVObjective,
        error_score: Any,
        tasks: FitTasks,
        verbose: int,
        names: Sequence[str],
        with_names: Callable[[Sequence[str]], TreeCVObjective],
    ) -> None:
        self.objective = objective
        self._error_score = error_score
        self._tasks = tasks
        self._verbose = verbose
        self._names = names
        self._with_names = with_names
        self._found: dict[int, Found] = {}
        self._stored: Mapping[int, Mapping[str, np.ndarray]] = {}
        self.errors: dict[int, Exception] = {}
        self.wrong: Exception | None = None
        self.n_splits = objective.n_splits

    def __call__(self, trial: optuna.Trial) -> float:
        try:
            with self._tasks.trial(self.n_splits):
                result = self._evaluate(trial)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            if isinstance(error, FoldsFailed):
                directions = self.objective.score_directions.values()
                self._keep(trial, found_by_folds(error, list(directions), self._error_score))
            if not isinstance(error, FoldsFailed) or error.errors:
                self.errors[trial.number] = error
            if self._error_score == "raise":
                raise
            # Optuna logs a failed trial with its traceback: without ours that is a few lines.
            raise error.with_traceback(None) from None
        self._keep(trial, found_by(result, self.n_splits))
        return result.mean

    def _evaluate(self, trial: optuna.Trial) -> CVResult:
        """Evaluate a trial, anew if the scorer turns out to return several scores."""
        try:
            return self.objective.evaluate_trial(trial)
        except (FoldsFailed, ReturnsSeveral) as error:
            errors = error.errors.values() if isinstance(error, FoldsFailed) else [error]
            several = next((one for one in errors if isinstance(one, ReturnsSeveral)), None)
            if several is None:
                raise
        try:
            self.objective = self._with_names(several.names)
            self._names = several.names
        except ValueError as error:
            self.wrong = error
            trial.study.stop()
            raise
        return self.objective.evaluate_trial(trial)

    def _keep(self, trial: optuna.Trial, found: Found) -> None:
        self._found[trial.number] = found
        if self._verbose > 2:
            for line in lines_of(found, trial.params, self._names):
                print(line)

    def has(self, trial: FrozenTrial) -> bool:
        """Return whether a trial has a row: all but those that failed in an earlier run."""
        own = trial.number in self.errors or trial.number in self._found
        return own or trial.state != TrialState.FAIL

    def found(self, trial: FrozenTrial, metrics: dict[str, str], optimized: int) -> Found:
        """Return what is known of a trial."""
        known = self._found.get(trial.number)
        if known is not None and len(known.means) == len(metrics):
            return known
        if trial.state == TrialState.FAIL:
            return failed(len(metrics), self.n_splits, float(self._error_score))
        stored = self._stored.get(trial.number, {})
        return found_before(trial, list(metrics), list(metrics.values()), optimized, stored)

    def read_earlier(self, trials: Sequence[FrozenTrial]) -> None:
        """Read the fold scores of trials of earlier runs, where a store keeps them."""
        if self.n_splits <= MOST_SPLITS:
            earlier = [trial for trial in trials if trial.number not in self._found]
            self._stored = self.objective._known_scores.stored(earlier, self.n_splits)

    def check(self, trials: Sequence[FrozenTrial]) -> None:
        """Refuse a search in which all fits have failed; warn of some that have.

        Parameters
        ----------
        trials : sequence of FrozenTrial
            That of each row.
        """
        if self.wrong is not None:
            raise self.wrong
        if not trials:
            raise ValueError("timeout must leave time for one trial, but none is complete.")
        errors = [self.errors[trial.number] for trial in trials if trial.number in self.errors]
        if not errors:
            return
        n_failed, n_fits = sum(map(self._n_failed, errors)), len(trials) * self.n_splits
        said: Counter[str] = Counter()
        for error in errors:
            said.update(self._said(error))
        each = (f"{n} fits failed with the following error: {what}" for what, n in said.items())
        about = f"{'; '.join(each)}; error_score='raise' shows where."
        if n_failed == n_fits:
            raise ValueError(
                f"All the {n_fits} fits failed, so that your model is misconfigured, or the data "
                f"are not for it: {about}"
            ) from errors[0]
        warnings.warn(
            f"{n_failed} fits failed out of a total of {n_fits}; their splits score "
            f"error_score={self._error_score}: {about}",
            FitFailedWarning,
            stacklevel=3,
        )

    def _n_failed(self, error: Exception) -> int:
        """Return the number of folds behind an error; one of a whole trial stands for all."""
        return len(error.errors) if isinstance(error, FoldsFailed) else self.n_splits

    def _said(self, error: Exception) -> Counter[str]:
        """Return how often each error was raised."""
        one_by_one = error.errors.values() if isinstance(error, FoldsFailed) else None
        errors = [error] * self.n_splits if one_by_one is None else list(one_by_one)
        return Counter(f"{type(one).__name__}: {one}" for one in errors)
