"""What a choice is made from: the trials of a study, and their scores as far as they are known."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv.crossval.intervals import note_of_dependence
from optuna_treecv.crossval.run import Run
from optuna_treecv.storage.attributes import runs_of_trial
from optuna_treecv.storage.attributes import STUDY_ATTRIBUTE
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import read_scores
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.held_scores import HeldScores

# The most bytes of fold scores that are read from a store at once.
_MOST_READ_BYTES = 2**28


def contest_of(
    study: Any,
    run_of: Callable[[FrozenTrial], Run],
    held: HeldScores,
    database: Database | None,
) -> Contest:
    """Return the trials of a study and their scores.

    Parameters
    ----------
    study : optuna.Study
    run_of : callable
        (trial) -> the run of a trial, which need not be evaluated.
    held : HeldScores
        What the objective holds itself.
    database : Database or None
        Its store.
    """
    trials = complete_trials(study)
    run = run_of(trials[0])
    evaluation, scoring = run.evaluation, run.scoring
    known = study.user_attrs.get(STUDY_ATTRIBUTE)
    digest = known.get("digest") if isinstance(known, dict) else None
    if digest is not None and digest != evaluation.digest(scoring):
        raise ValueError(
            "study must be one of this objective: its values come from other data, weights, folds "
            "or scoring, and cannot be compared with these."
        )
    known_scores = _KnownScores(held, database, evaluation.n_repeats * evaluation.n_folds)
    tested = evaluation.tested(run.method_name)
    is_progressive = tested.method == "progressive"
    has_interval = tested.n_folds > 1 and not tested.goes_forward and not is_progressive
    rows = known_scores.rows_of(trials)
    why_unknown = (
        "since they were evaluated elsewhere, or had no room in memory; a store keeps fold scores"
    )
    if run.is_pooled:
        why_unknown = "since a pooled score has none; a score of folds would be right"
    return Contest(
        trials=trials,
        folds_of=known_scores.folds_of,
        rows=rows,
        shares=tested.shares if rows else None,
        metric=scoring.name,
        n_folds=tested.n_folds,
        n_trained=tested.n_trained,
        test_share=tested.test_share if has_interval else None,
        score_range=run.score_range,
        overlap=tested.test_share if tested.shares_test_rows else None,
        note=note_of_dependence(tested),
        why_unknown=why_unknown,
    )


def complete_trials(study: Any) -> list[FrozenTrial]:
    """Return the complete trials with finite values, the best one first."""
    if not isinstance(study, optuna.Study):
        raise ValueError(f"study must be an optuna.Study, got {study!r}.")
    if len(study.directions) > 1:
        raise ValueError(
            "study must have one objective for a best trial; choose one of study.best_trials, the "
            "Pareto front."
        )
    sign = 1 if study.direction == optuna.study.StudyDirection.MINIMIZE else -1
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    finite = [trial for trial in trials if np.isfinite(trial.values[0]) and is_feasible(trial)]
    if not finite:
        raise ValueError(
            "study must have a complete trial with a finite value that keeps to the constraints, "
            "got none."
        )
    return sorted(finite, key=lambda trial: (sign * trial.values[0], trial.number))


def is_feasible(trial: FrozenTrial) -> bool:
    """Return whether a trial keeps to its constraints, as ``study.best_trial`` does."""
    return all(value <= 0 for value in trial.constraints.values())


class _KnownScores:
    """The scores that an objective holds itself, and those in its store.

    Parameters
    ----------
    held : HeldScores
    database : Database or None
    n_scores : int
        Those of one trial.
    """

    def __init__(self, held: HeldScores, database: Database | None, n_scores: int) -> None:
        self._held = held
        self._database = database
        self._n_scores = n_scores

    def folds_of(self, trials: Sequence[FrozenTrial]) -> dict[int, np.ndarray]:
        """Return the fold scores of trials; of the store at most 256 MiB, of the first ones."""
        found: dict[int, np.ndarray] = {}
        missing = []
        for trial in trials:
            held = self._held.find(trial)
            if held is not None and len(held.folds) == self._n_scores:
                found[trial.number] = held.folds
            else:
                missing.append(trial)
        if self._database is not None and missing:
            most = max(1, _MOST_READ_BYTES // (8 * self._n_scores))
            found |= self._in_store(missing[:most], self._database)
        return found

    def rows_of(self, trials: Sequence[FrozenTrial]) -> dict[int, np.ndarray]:
        """Return the scores of the rows of trials."""
        held = {trial.number: self._held.find(trial) for trial in trials}
        return {n: one.rows for n, one in held.items() if one is not None and one.rows is not None}

    def _in_store(
        self, trials: Sequence[FrozenTrial], database: Database
    ) -> dict[int, np.ndarray]:
        """Return the fold scores that the store holds in full."""
        runs = {
            run: trial.number for trial in trials for run in runs_of_trial(trial.user_attrs)[:1]
        }
        n_scores = dict.fromkeys(runs, self._n_scores)
        nothing: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        read = partial(read_scores, store=database, n_scores=n_scores)
        found = database.attempt(read, nothing, without="the fold scores of other trials")
        return {
            runs[run]: scores
            for run, (_, scores) in found.items()
            if len(scores) == self._n_scores
        }
