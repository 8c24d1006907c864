"""Writes the result of a trial to the store and to the trial's attribute."""

from __future__ import annotations

from importlib.metadata import version
from time import perf_counter
from typing import Any
from uuid import uuid4

from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.result import CVResult
from optuna_treecv.storage.attributes import SCORE_PREFIX
from optuna_treecv.storage.attributes import TRIAL_ATTRIBUTE
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import further_run
from optuna_treecv.storage.evaluations import record

_VERSIONS = {name: version(name) for name in ("optuna-treecv", "optuna", "scikit-learn", "numpy")}


def record_trial(trial: Any, job: Job, database: Database | None) -> CVResult:
    """Write a job to the store, if there is one, and to the trial's user attribute ``treecv``.

    It is a single attribute, since each one is a transaction of Optuna's storage, which takes
    longer than a short evaluation.
    """
    result = job.result()
    known: dict[str, Any] = {}
    if job.book.n_scored:  # otherwise the trial was pruned before its first fold
        known["mean_test_score"] = _for_display(result.mean)
    if result.std is not None:
        known["std_test_score"] = _for_display(result.std)
    elif result.std_error is not None:
        known["std_error"] = _for_display(result.std_error)
    if job.book.n_scored and len(result.scores) > 1:
        for name, score in result.scores.items():
            known[f"{SCORE_PREFIX}{name}"] = _for_display(score.mean)
    known["folds_scored"] = job.book.n_scored
    known["n_updates"] = result.n_updates
    known["method"] = result.method
    known["seconds"] = round(result.seconds, 6)
    if result.diverged_folds:
        known["diverged_folds"] = result.diverged_folds
    if database is not None:
        began = perf_counter()
        written = _record_in_store(trial, job, result, database)
        known["seconds_store"] = round(perf_counter() - began, 6)
        if written is not None:
            known["run"] = written
    trial.set_user_attr(TRIAL_ATTRIBUTE, known)
    return result


def _record_in_store(trial: Any, job: Job, result: CVResult, database: Database) -> str | None:
    """Write a row for each score, the first optimised one first; return its name if all are there.

    The work stands in the row of that score alone, so that sums over rows are right.
    """
    scoring = job.scoring
    first = scoring.optimized[0]
    run, rows = uuid4().hex[:16], []
    numbers = sorted(range(len(scoring.names)), key=lambda number: number != first)
    for i, number in enumerate(numbers):
        score = result.scores[scoring.names[number]]
        is_first = number == first
        row = dict(
            **job.describe(),
            run=further_run(run, i) if i else run,
            scoring=scoring.names[number],
            direction=score.direction,
            study_name=getattr(getattr(trial, "study", None), "study_name", None),
            trial_number=trial.number,
            state="complete" if job.is_complete else "pruned",
            parameters=trial.params,
            mean=score.mean if job.book.n_scored else None,
            std=score.std,
            folds_scored=job.book.n_scored,
            diverged_folds=result.diverged_folds,
            n_updates=result.n_updates if is_first else 0,
            n_updates_saved=result.n_updates_saved if is_first else 0,
            n_updates_standard=result.n_updates_standard if is_first else 0,
            seconds=result.seconds if is_first else 0.0,
            seconds_prepare=result.seconds_prepare if is_first else 0.0,
            versions=_VERSIONS,
        )
        rows.append((row, job.fold_scores(number)))
    return run if record(database, *rows[0], rows[1:]) else None


def _for_display(score: float) -> float:
    """Round to 6 significant digits; the store keeps full precision."""
    return float(f"{score:.6g}")
