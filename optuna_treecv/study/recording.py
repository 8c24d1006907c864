"""Writes the result of a trial to the store and to the trial's attributes."""

from __future__ import annotations

from importlib.metadata import version
import json

import numpy as np

from optuna_treecv.crossval.result import CVResult
from optuna_treecv.crossval.run import Run
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import further_run
from optuna_treecv.storage.evaluations import record
from optuna_treecv.storage.evaluations import RUN_ATTRIBUTE
from optuna_treecv.storage.evaluations import SCORES_ATTRIBUTE
from optuna_treecv.storage.evaluations import STD_ATTRIBUTE
from optuna_treecv.storage.evaluations import STD_ERROR_ATTRIBUTE
from optuna_treecv.storage.tables import EvaluationRow
from optuna_treecv.storage.tables import plain
from optuna_treecv.study.grid import AnyTrial

_VERSIONS = {name: version(name) for name in ("optuna-treecv", "optuna", "scikit-learn", "numpy")}


def record_trial(trial: AnyTrial, run: Run, database: Database | None) -> CVResult:
    """Write a run to the store, if there is one, and to the trial's user attributes.

    A trial gets at most 8 attributes, since Optuna's storage is slow.
    """
    result = run.result()
    if database is not None:
        written = _record_in_store(trial, run, result, database)
        if written is not None:
            trial.set_user_attr(RUN_ATTRIBUTE, written)
    if run.n_scored == 0:
        pass  # the trial was pruned before its first fold
    elif len(result.scores) > 1:
        means = {name: _for_display(score.mean) for name, score in result.scores.items()}
        trial.set_user_attr(SCORES_ATTRIBUTE, json.dumps(plain(means)))
    else:
        trial.set_user_attr("mean_test_score", _for_display(result.mean))
    if result.std is not None:
        trial.set_user_attr(STD_ATTRIBUTE, _for_display(result.std))
    elif result.std_error is not None:
        trial.set_user_attr(STD_ERROR_ATTRIBUTE, _for_display(result.std_error))
    trial.set_user_attr("folds_scored", run.n_scored)
    trial.set_user_attr("n_updates", result.n_updates)
    trial.set_user_attr("treecv_method", result.method)
    trial.set_user_attr("seconds", round(result.seconds, 6))
    if result.diverged_folds:
        trial.set_user_attr("diverged_folds", result.diverged_folds)
    return result


def _record_in_store(
    trial: AnyTrial, run: Run, result: CVResult, database: Database
) -> str | None:
    """Write a row for each score, the first optimised one first; return its name if all are there.

    The work stands in the row of that score alone, so that sums over rows are right.
    """
    scoring = run.scoring
    first = scoring.optimized[0]
    written: list[tuple[EvaluationRow, np.ndarray]] = []
    for number in sorted(range(len(scoring.names)), key=lambda number: number != first):
        score = result.scores[scoring.names[number]]
        is_first = number == first
        row = EvaluationRow(
            **run.describe(),
            scoring=scoring.names[number],
            direction=score.direction,
            study_name=getattr(getattr(trial, "study", None), "study_name", None),
            trial_number=trial.number,
            state="complete" if run.is_complete else "pruned",
            parameters=trial.params,
            mean=score.mean if run.n_scored else None,
            std=score.std,
            folds_scored=run.n_scored,
            diverged_folds=result.diverged_folds,
            n_updates=result.n_updates if is_first else 0,
            n_updates_saved=result.n_updates_saved if is_first else 0,
            n_updates_standard=result.n_updates_standard if is_first else 0,
            seconds=result.seconds if is_first else 0.0,
            seconds_prepare=result.seconds_prepare if is_first else 0.0,
            versions=_VERSIONS,
        )
        if not is_first:
            row.run = further_run(written[0][0].run, len(written))
        written.append((row, run.fold_scores(number)))
    first_row, *further = written
    return first_row[0].run if record(database, *first_row, further) else None


def _for_display(score: float) -> float:
    """Round to 6 significant digits; the store keeps full precision."""
    return float(f"{score:.6g}")
