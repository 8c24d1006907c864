"""The list of engines, the choice among them, and the choice in words."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from copy import copy
from math import inf
from math import prod
from types import NoneType
from typing import Any

from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline

from optuna_treecv.crossval.engine import Engine
from optuna_treecv.crossval.exact import Exact
from optuna_treecv.crossval.fit import Fit
from optuna_treecv.crossval.forest import FOREST
from optuna_treecv.crossval.forest import Forest
from optuna_treecv.crossval.forest import ForestOneByOne
from optuna_treecv.crossval.growing import BAGGING
from optuna_treecv.crossval.growing import BOOSTING
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.neighbors import Neighbors
from optuna_treecv.crossval.newton import Newton
from optuna_treecv.crossval.passes import Chain
from optuna_treecv.crossval.passes import Progressive
from optuna_treecv.crossval.passes import Standard
from optuna_treecv.crossval.placed import Placed
from optuna_treecv.crossval.placed_sums import PlacedExact
from optuna_treecv.crossval.row_order import warning_of_order
from optuna_treecv.crossval.settings import Settings
from optuna_treecv.crossval.task import Task
from optuna_treecv.crossval.trained import NO_PARTIAL_FIT
from optuna_treecv.crossval.trained import why_not_in_time
from optuna_treecv.crossval.trained import why_not_trained_further
from optuna_treecv.crossval.treecv import most_updates
from optuna_treecv.crossval.treecv import TreeCV
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.incremental import is_incremental
from optuna_treecv.learners.incremental import last_step
from optuna_treecv.learners.names import name_of
from optuna_treecv.learners.one_pass import why_fit_differs
from optuna_treecv.learners.steps.decisions import BY_FIT
from optuna_treecv.learners.steps.decisions import BY_KERNEL
from optuna_treecv.learners.steps.decisions import BY_PARTIAL_FIT
from optuna_treecv.learners.steps.decisions import decisions_for
from optuna_treecv.learners.steps.decisions import has_branches
from optuna_treecv.learners.steps.decisions import IN_ROW
from optuna_treecv.learners.steps.decisions import split
from optuna_treecv.learners.trees.estimators import HistTree
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.folds import Splits
from optuna_treecv.sharing.caches import ModelCache
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import first_key
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.tree.sweeps import rows_to_read


class PlacedNewton(PlacedExact, Newton):
    """Newton's method over rows that lie elsewhere."""


# What precedes a reason that lies in the splits.
_TREE_TRAINS = "the tree trains each model on all rows that it does not test, but "

#: "auto" takes the first one that can evaluate an estimator.
ENGINES: tuple[Engine, ...] = (
    Progressive(),
    ForestOneByOne(),
    Standard(),
    FOREST,
    Exact(),
    PlacedExact(),
    Newton(),
    PlacedNewton(),
    Neighbors(),
    BOOSTING,
    BAGGING,
    TreeCV(),
    Placed(),
    Chain(),
    Fit(),
)


def job_for(task: Task, estimator: Any, n_epochs: int | None = None, **options: Any) -> Job:
    """Return a job for an estimator, planned by the engine that evaluates it.

    Parameters
    ----------
    task : Task
    estimator : estimator
    n_epochs : int or None
        The epochs of this estimator; None: those of the task.
    **options : Any
        ``searched``, ``of_class`` and ``is_scored`` of a ``Job``.
    """
    return Job(task, estimator, n_epochs, choose=choose, **options)


def task_for(X: Any, y: Any, settings: Settings, estimators: Sequence[Any]) -> Task:
    """Return a task for several estimators, which are searched where they form a grid.

    Ensembles of a grid will grow once for it.
    """
    grow = any(one.grows and one.concerns(each) for one in ENGINES for each in estimators)
    task = Task(X, y, settings, cache=ModelCache() if grow else None)
    task.searched = _grid_of(estimators)
    if grow:
        task.grid = task.searched
    return task


# The types of values that tell points of a grid apart.
_PLAIN = (int, float, str, NoneType)


def _grid_of(estimators: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """Return the values of parameters in which estimators differ; empty if they form no grid."""
    params = [one.get_params() for one in estimators]
    if any(one.keys() != params[0].keys() for one in params):
        return {}
    grid: dict[str, tuple[Any, ...]] = {}
    for name in params[0]:
        values = dict.fromkeys(one[name] for one in params if isinstance(one.get(name), _PLAIN))
        if len(values) > 1:
            grid[name] = tuple(values)
    return grid if prod(map(len, grid.values())) == len(estimators) else {}


def jobs_for(task: Task, estimators: Iterable[Any]) -> list[Job]:
    """Return a job for each estimator; those that differ in free parameters alone share a plan."""
    jobs: list[Job] = []
    plans: dict[bytes, Job] = {}
    free: dict[type, Collection[str]] = {}
    for estimator in estimators:
        name = _name_of_plan(estimator, free.get(type(estimator), ()))
        if name in plans:
            jobs.append(plans[name].like(estimator))
            continue
        job = job_for(task, estimator)
        free[type(estimator)] = job.free_parameters
        if name := _name_of_plan(estimator, job.free_parameters):
            plans[name] = job
        jobs.append(job)
    return jobs


def _name_of_plan(estimator: Any, free: Collection[str]) -> bytes:
    """Return what tells an estimator from those with another plan; empty if nothing does.

    Free parameters do not while they are positive and finite numbers.
    """
    if not free:
        return b""
    of_plan = last = copy(estimator)
    prefix = ""
    while type(last) is Pipeline:
        *before, (name, inner) = last.steps
        last.steps, prefix = [*before, (name, copy(inner))], f"{prefix}{name}__"
        last = last.steps[-1][1]
    for name in free:
        value: Any = getattr(last, own := name.removeprefix(prefix), None)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name.startswith(prefix) and is_number and 0 < value < inf:
            setattr(last, own, None)
    return first_key(of_plan, encode, lasting_key) or b""


def choose(job: Job) -> tuple[Engine, str, Collection[str]]:
    """Return the engine that evaluates a job, why so, and the parameters that do not decide it.

    Why is "" if the user has chosen the engine. Parameters do not decide while they are positive
    numbers. Warn once where the choice may surprise.

    Raises
    ------
    ValueError
        If no engine can evaluate the estimator in the way that was asked for.
    """
    method, answers = job.task.settings.method, dict(answers_of(job))
    engine = next((engine for engine, why_not in answers.items() if not why_not), None)
    if engine is None:
        raise ValueError(_refusal(job, answers))
    for argument in ("n_estimators", "truncate"):
        if getattr(job.task.settings, argument) and not engine.grows:
            raise ValueError(
                f"{argument} must be left out for {name_of(job.estimator)}, which is evaluated by "
                f"method={engine.name!r}; it is for ensembles that grow tree by tree."
            )
    _check_metadata_and_steps(job, engine)
    free = set.intersection(*(set(one.free_parameters(job)) for one in answers))
    if method not in ("auto", "holdout"):
        return engine, "", free
    if engine.name == "treecv":
        job.task.warn_once("order", lambda: warning_of_order(job))
    if engine.name != "fit":
        return engine, engine.why(job), free
    reasons = {one.name: why_not for one, why_not in answers.items()}
    # What keeps the engine away that is nearest to the estimator.
    nearest = "forest" if isinstance(job.estimator, HistTree) else "treecv"
    why = reasons[nearest]
    in_time = reasons.get("chain") if _grows(job) else ""
    if in_time and in_time == why_not_in_time(job):
        return engine, in_time, free
    if why == NO_PARTIAL_FIT:
        last = last_step(job.estimator)  # an engine of its kind may be kept away by a step before
        of_family = (
            one.name
            for one in answers
            if one.parameters_beside(last) or (one.grows and one.concerns(job.estimator))
        )
        why = reasons[next(of_family, "exact")]
    if not job.task.data.why_only_fit(is_classifier(job.estimator)):
        if not why_not_trained_further(job):
            n_folds = job.task.n_folds
            trees = "" if job.metadata.why_not_further(job.estimator) == why else _TREE_TRAINS
            job.task.warn_once(
                "method",
                lambda: (
                    f"{name_of(job.estimator)} is fitted {n_folds} times (method='fit'), since "
                    f"{trees}{why}."
                ),
            )
    return engine, why, free


def _grows(job: Job) -> bool:
    """Return whether the training sets are growing first parts of the rows."""
    cut = job.task.repeats[0].cut
    return isinstance(cut, Splits) and cut.grows


def _refusal(job: Job, answers: dict[Engine, str]) -> str:
    """Return the error where no engine that was asked for can evaluate an estimator."""
    if not answers or job.task.data.is_placed:
        of_family = (why for one, why in answers.items() if one.parameters_beside(job.estimator))
        others = "no other method trains models there", *answers.values()
        why_not = next(of_family, others[-1])
        raise ValueError(
            f"X must be in the memory of this process for {name_of(job.estimator)} with "
            f"method={job.task.settings.method!r}, got {type(job.task.data.X).__name__}, since "
            f"{why_not}."
        )
    engine, why_not = list(answers.items())[-1]
    if isinstance(job.estimator, HistTree):
        forests = [one for one in answers.items() if isinstance(one[0], Forest)]
        if not forests:
            return (
                f"method must be 'auto', 'forest', 'fit' or 'standard' for "
                f"{name_of(job.estimator)}, whose nodes are searched anew and not trained "
                f"further, got {job.task.settings.method!r}."
            )
        if engine.name != "fit":
            engine, why_not = forests[0]
    return engine.refusal(job, why_not)


def answers_of(job: Job) -> Iterator[tuple[Engine, str]]:
    """Yield the engines that were asked for, with why they cannot evaluate a job, or ""."""
    method = job.task.settings.method
    only_fit = job.task.data.why_only_fit(is_classifier(job.estimator))
    is_compiled = isinstance(last_step(job.estimator), CompiledEstimator)
    if only_fit and (is_compiled or method not in ("auto", "fit", "holdout")):
        whose = f" for {name_of(job.estimator)}" if is_compiled else f" for {method=}"
        raise ValueError(
            f"X must have 2 dimensions, rows and features, and y one column of classes, or "
            f"columns of numbers{whose}, but {only_fit}."
        )
    for engine in ENGINES:
        if method not in engine.methods or engine.takes_placed != job.task.data.is_placed:
            continue
        why_not = only_fit if engine.name != "fit" else ""
        why_not = why_not or engine.why_not(job)
        yield engine, why_not
        if not why_not:
            return


def _check_metadata_and_steps(job: Job, engine: Engine) -> None:
    """Refuse metadata and steps that an engine cannot take."""
    estimator, searched = job.estimator, job.searched
    if not engine.trains_further:
        if hasattr(estimator, "fit"):
            job.metadata.check_fit(estimator, searched)
        return
    if why := job.metadata.why_not_further(estimator):
        argument = "params" if job.metadata.others else "sample_weight"
        right = "; method='fit' would use it" if hasattr(estimator, "fit") else ""
        raise ValueError(f"{argument} must be None for {name_of(estimator)}, since {why}{right}.")
    # Where all steps stand in a row, the engine itself says which one it cannot train.
    if searched or (isinstance(split(estimator), str) and not has_branches(estimator)):
        return
    front = job.front
    if isinstance(front, str) and front and not is_incremental(estimator):
        raise ValueError(
            f"method must be 'fit' or 'auto' for this {name_of(estimator)}, since {front}, got "
            f"{job.task.settings.method!r}."
        )


def evaluate_together(jobs: Iterable[Job], are_leased: bool = False) -> bool:
    """Compute the results of those jobs that can be evaluated side by side.

    A job that cannot is left to evaluate itself. So is a job with a wrong parameter, which raises
    there.

    Parameters
    ----------
    jobs : iterable of Job
        All of one task.
    are_leased : bool
        Whether other processes may wait for the outputs, so that they go to the store at once.

    Returns
    -------
    bool
        Whether anything was computed.
    """
    by_engine: dict[str, list[Job]] = {}
    for job in jobs:
        if job.engine.parameters_beside(job.estimator):
            by_engine.setdefault(job.engine.name, []).append(job)
    is_any = False
    for alike in by_engine.values():
        if len(alike) > 1:
            watch = next((job.watch for job in alike if job.watch is not None), None)
            is_any |= alike[0].engine.together(alike, watch, are_leased)
    return is_any


def explain(task: Task, estimator: Any, n_epochs: int | None = None) -> str:
    """Return how an estimator is evaluated, why so, and what it costs.

    ``n_epochs`` are those of a trial; None: those of the task.
    """
    job = job_for(task, estimator, n_epochs, is_scored=False)
    why = f", since {job.why}" if job.why else ", which was asked for"
    how = f"{name_of(job.estimator)} is evaluated by method={job.engine.name!r}{why}."
    epochs = f" Models are trained for {job.n_epochs} epochs." if job.n_epochs > 1 else ""
    first = f"{how}{epochs} {job.engine.cost(job)}{_readings(job)}{_alternative(job)}"
    by_reason: dict[str, str] = {}
    for engine, why_not in answers_of(job):
        if why_not not in ("", job.why) and engine.concerns(job.estimator):
            by_reason.setdefault(why_not, engine.name)
    others = [f"  not by method={name!r}: {why_not}" for why_not, name in by_reason.items()]
    return "\n".join([first, *_steps(job), *(others if job.why else [])])


def _readings(job: Job) -> str:
    """Return a sentence about the file of the rows, if they are in one."""
    data = job.task.data
    if not data.is_large:
        return ""
    in_file = f" The prepared rows, {data.n_bytes / 1e9:,.2f} GB, are in a file"
    if job.engine.name != "treecv":
        return f"{in_file}."
    n_block = max(1, data.room.block_bytes * data.n_rows // data.n_bytes)
    n_read = rows_to_read(job.repeats[0].plan, n_block)
    return f"{in_file}, which is read {n_read / data.n_rows:.1f} times."


def _alternative(job: Job) -> str:
    """Return a sentence about the tree where "auto" fits what it could train further."""
    task, estimator = job.task, job.estimator
    if job.engine.name == "fit" and _grows(job) and job.why == why_not_in_time(job):
        return (
            " With method='treecv', one model is trained forward through time, on each row once, "
            "and results call it 'chain'; models are then not those of fit."
        )
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
    models = job.engine.models if isinstance(job.engine, Exact) else BY_FIT
    if job.engine.trains_further:
        models = IN_ROW
        if not isinstance(job.front, str):
            models = BY_KERNEL if job.front.steps.is_compiled else BY_PARTIAL_FIT
    return [f"  {decision}" for decision in decisions_for(job.estimator, models)]
