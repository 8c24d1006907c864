"""The trials of a search: evaluates each, and keeps its row of ``cv_results_``."""

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

from optuna_treecv.crossval.fold_task import FoldsFailed
from optuna_treecv.crossval.result import CVResult
from optuna_treecv.scoring import ReturnsSeveral
from optuna_treecv.search.fit_tasks import FitTasks
from optuna_treecv.search.points import Points
from optuna_treecv.search.results import earlier_row
from optuna_treecv.search.results import failed_row
from optuna_treecv.search.results import lines_of
from optuna_treecv.search.results import MOST_SPLITS
from optuna_treecv.search.results import Row
from optuna_treecv.search.results import row_of
from optuna_treecv.search.results import sign_of
from optuna_treecv.study.objective import TreeCVObjective


class Trials:
    """The function that a study runs: an objective, and what is kept of its trials.

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
        self._rows: dict[int, Row] = {}
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
                signs = [sign_of(one) for one in self.objective.score_directions.values()]
                splits = np.array(signs)[:, None] * error.scores
                is_raised = self._error_score == "raise"
                splits[:, list(error.errors)] = np.nan if is_raised else self._error_score
                self._keep(trial, failed_row(splits))
            if not isinstance(error, FoldsFailed) or error.errors:
                self.errors[trial.number] = error
            if self._error_score == "raise":
                raise
            # Optuna logs a failed trial with its traceback: without ours that is a few lines.
            raise error.with_traceback(None) from None
        self._keep(trial, row_of(result, self.n_splits))
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

    def _keep(self, trial: optuna.Trial, row: Row) -> None:
        self._rows[trial.number] = row
        if self._verbose > 2:
            for line in lines_of(row, trial.params, self._names):
                print(line)

    def rows(self, study: optuna.Study, points: Points | None, optimized: int) -> list[Row]:
        """Return the rows of ``cv_results_``, of all trials but those that failed in earlier runs.

        Parameters
        ----------
        study : optuna.Study
        points : Points or None
            Rows are in their order, unless they are a sample.
        optimized : int
            The number of the score that is the value of trials.
        """
        trials = [
            trial
            for trial in study.get_trials(deepcopy=False)
            if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
            or trial.number in self.errors
            or trial.number in self._rows
        ]
        if points is None or points.is_sample:
            pairs = [(self.objective.values_of(trial.params), trial) for trial in trials]
        else:
            pairs = points.tried(self.objective._space.axes, trials)
        trials = [trial for _, trial in pairs]
        self._check(trials)
        stored: Mapping[int, Mapping[str, np.ndarray]] = {}
        if self.n_splits <= MOST_SPLITS:
            earlier = [trial for trial in trials if trial.number not in self._rows]
            stored = self.objective._known_scores.stored(earlier, self.n_splits)
        directions = self.objective.score_directions
        return [
            self._row(trial, directions, optimized, stored)._replace(params=params, trial=trial)
            for params, trial in pairs
        ]

    def _row(
        self,
        trial: FrozenTrial,
        directions: Mapping[str, str],
        optimized: int,
        stored: Mapping[int, Mapping[str, np.ndarray]],
    ) -> Row:
        """Return the row of a trial, as far as it is known."""
        row = self._rows.get(trial.number)
        if row is not None and len(row.means) == len(directions):
            return row
        if trial.state == TrialState.FAIL:
            shape = len(directions), self.n_splits
            return failed_row(np.full(shape, float(self._error_score)))
        return earlier_row(trial, directions, optimized, stored.get(trial.number, {}))

    def _check(self, trials: Sequence[FrozenTrial]) -> None:
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
        failures: list[Exception] = []
        for error in errors:  # one of a whole trial stands for all of its folds
            by_fold = error.errors.values() if isinstance(error, FoldsFailed) else None
            failures += [error] * self.n_splits if by_fold is None else by_fold
        n_failed, n_fits = len(failures), len(trials) * self.n_splits
        counts = Counter(f"{type(one).__name__}: {one}" for one in failures)
        each = (f"{n} fits failed with the following error: {what}" for what, n in counts.items())
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
