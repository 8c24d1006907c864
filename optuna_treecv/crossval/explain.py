"""Says in words how an estimator is evaluated, why so, and what it costs."""

from __future__ import annotations

from typing import Any

from sklearn.pipeline import Pipeline

from optuna_treecv.crossval.engines import answers_of
from optuna_treecv.crossval.engines import job_for
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.task import Task
from optuna_treecv.crossval.treecv import most_updates
from optuna_treecv.learners.incremental import is_incremental
from optuna_treecv.learners.names import name_of
from optuna_treecv.learners.one_pass import why_fit_differs
from optuna_treecv.learners.steps.decisions import BY_FIT
from optuna_treecv.learners.steps.decisions import BY_KERNEL
from optuna_treecv.learners.steps.decisions import BY_PARTIAL_FIT
from optuna_treecv.learners.steps.decisions import decisions_for
from optuna_treecv.learners.steps.decisions import FROM_SUMS
from optuna_treecv.learners.steps.decisions import IN_ROW
from optuna_treecv.rows.folds import Folds


def explain(task: Task, estimator: Any, n_epochs: int | None = None) -> str:
    """Return how an estimator is evaluated, why so, and what it costs.

    ``n_epochs`` are those of a trial; None: those of the task.
    """
    job = job_for(task, estimator, n_epochs, is_scored=False)
    why = f", since {job.why}" if job.why else ", which was asked for"
    how = f"{name_of(job.estimator)} is evaluated by method={job.engine.name!r}{why}."
    epochs = f" Models are trained for {job.n_epochs} epochs." if job.n_epochs > 1 else ""
    first = f"{how}{epochs} {job.engine.cost(job)}{_alternative(job)}"
    return "\n".join([first, *_steps(job), *_others(job)])


def _alternative(job: Job) -> str:
    """Return a sentence about the tree where "auto" fits what it could train further."""
    task, estimator = job.task, job.estimator
    is_chosen = job.engine.name == "fit" and job.why == why_fit_differs(estimator)
    in_tree = isinstance(task.repeats[0].cut, Folds) and task.n_folds > 1
    if not job.why or not is_chosen or not in_tree:
        return ""
    if not is_incremental(estimator) and isinstance(job.front, str):
        return ""
    return (
        f" With method='treecv' or n_epochs, the tree takes at most {most_updates(task):,} row "
        "updates per epoch; models are then those after these passes of partial_fit, and not "
        "those of fit."
    )


def _steps(job: Job) -> list[str]:
    """Return a line for each step before the last one of a Pipeline."""
    if not isinstance(job.estimator, Pipeline):
        return []
    models = FROM_SUMS if job.engine.name == "exact" else BY_FIT
    if job.engine.trains_further:
        models = IN_ROW
        if not isinstance(job.front, str):
            models = BY_KERNEL if job.front.steps.is_compiled else BY_PARTIAL_FIT
    return [f"  {decision}" for decision in decisions_for(job.estimator, models)]


def _others(job: Job) -> list[str]:
    """Return a line for each engine that "auto" has passed over, with its reason."""
    if not job.why:
        return []
    return [
        f"  not by method={engine.name!r}: {why_not}"
        for engine, why_not in answers_of(job)
        if why_not
    ]
