"""Writes the result of a trial to the store and to the trial's attributes."""

from __future__ import annotations

from importlib.metadata import version

from optuna_treecv.crossval.run import CVResult
from optuna_treecv.crossval.run import Run
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import record
from optuna_treecv.storage.evaluations import RUN_ATTRIBUTE
from optuna_treecv.storage.tables import EvaluationRow
from optuna_treecv.study.grid import AnyTrial

_VERSIONS = {name: version(name) for name in ("optuna-treecv", "optuna", "scikit-learn", "numpy")}


def record_trial(trial: AnyTrial, run: Run, database: Database | None) -> CVResult:
    """Write a run to the store, if there is one, and to the trial's user attributes.

    A trial gets at most 8 attributes, since Optuna's storage is slow.
    """
    result = run.result()
    if database is not None:
        is_complete = run.n_scored == len(run.chunk_scores)
        row = EvaluationRow(
            **run.describe(),
            study_name=getattr(getattr(trial, "study", None), "study_name", None),
            trial_number=trial.number,
            state="complete" if is_complete else "pruned",
            parameters=trial.params,
            mean=result.mean,
            std=result.std,
            folds_scored=run.n_scored,
            diverged_folds=result.diverged_folds,
            n_updates=result.n_updates,
            n_updates_saved=result.n_updates_saved,
            n_updates_standard=result.n_updates_standard,
            seconds=result.seconds,
            seconds_prepare=result.seconds_prepare,
            versions=_VERSIONS,
        )
        if record(database, row, run.fold_scores()):
            trial.set_user_attr(RUN_ATTRIBUTE, row.run)
    trial.set_user_attr("mean_test_score", _for_display(result.mean))
    if result.std is not None:
        trial.set_user_attr("std_test_score", _for_display(result.std))
    trial.set_user_attr("folds_scored", run.n_scored)
    trial.set_user_attr("n_updates", result.n_updates)
    trial.set_user_attr("treecv_method", result.method)
    trial.set_user_attr("seconds", round(result.seconds, 6))
    if result.diverged_folds:
        trial.set_user_attr("diverged_folds", result.diverged_folds)
    return result


def _for_display(score: float) -> float:
    """Round to 6 significant digits; the store keeps full precision."""
    return float(f"{score:.6g}")
