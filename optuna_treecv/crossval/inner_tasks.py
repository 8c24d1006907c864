"""The cross-validations inside of a nested one: tasks without two folds, or without one."""

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.routing import part_of
from optuna_treecv.crossval.task import Task
from optuna_treecv.rows.folds import FoldPairs
from optuna_treecv.rows.folds import Folds
from optuna_treecv.sharing.caches import ModelCache

#: The engines that make one model for both folds of a pair.
OF_PAIRS = ("exact", "newton", "fit")

# The folds of which pairs are left out: 4,950 models.
_MOST_FOLDS = 100


def check_folds(job: Job) -> None:
    """Refuse folds that cannot be left out in pairs."""
    cut, tested = job.task.repeats[0].cut, job.task.tested(job.method_name)
    if job.task.data.is_placed:
        raise ValueError(
            "X must be in the memory of this process for nested cross-validation, got "
            f"{type(job.task.data.X).__name__}."
        )
    if job.is_pooled:
        raise ValueError(
            "scoring must be a score of each fold for nested cross-validation, got the pooled "
            f"{job.scoring.name!r}."
        )
    why = "" if 3 <= cut.n_folds <= _MOST_FOLDS else f"it makes {cut.n_folds}"
    if tested.goes_forward:
        why = "those that would choose for one of a time series lie after it too"
    elif cut.n_folds > 1 and not isinstance(cut, Folds):
        why = "some have rows in common" if tested.shares_test_rows else cut.why_no_tree
    if why:
        raise ValueError(
            f"cv must make 3 to {_MOST_FOLDS} folds, each tested by a model of all other rows, "
            f"for nested cross-validation, but {why}."
        )


def task_of_pairs(task: Task, with_single: bool) -> Task:
    """Return a task that leaves out all pairs of folds, and all single folds ``with_single``."""
    folds = [repeat.cut for repeat in task.repeats]
    return task.cut_as([FoldPairs.of(cut, with_single) for cut in folds if isinstance(cut, Folds)])


def by_pairs(task: Task, scores: np.ndarray) -> np.ndarray:
    """Return the scores of a task of pairs by the numbers of folds, (n_repeats, k, k).

    In row i and column j it is that of the model without the folds i and j on fold j.
    """
    table = []
    for repeat, of_repeat in zip(task.repeats, scores.reshape(task.n_repeats, -1), strict=True):
        cut = repeat.cut
        assert isinstance(cut, FoldPairs)
        k = cut.folds.n_folds
        numbers = np.array([cut.folds.number(chunk) for chunk in range(k)])
        tested = numbers[np.concatenate(cut.models)]
        others = numbers[np.concatenate([model[::-1] for model in cut.models])]
        of_pairs = np.full((k, k), np.nan)
        of_pairs[others, tested] = of_repeat
        table.append(of_pairs)
    return np.array(table)


def task_without(task: Task, number: int, fold: int) -> Task:
    """Return a task with the rows and the folds of a repeat without one fold, and its seed."""
    cut, data, settings = task.repeats[number].cut, task.data, task.settings
    ids = np.full(cut.n_rows, -1)  # rows that are never tested
    for chunk in range(cut.n_folds):
        ids[cut.test_rows(chunk)] = cut.number(chunk)
    rows = np.flatnonzero(ids != fold)

    def some(of_rows: Any) -> Any:
        return of_rows if of_rows is None else _safe_indexing(of_rows, rows)

    weights = settings.score_weight
    inner = replace(
        settings,
        cv=ids[rows],
        stratify=False,
        n_repeats=1,
        random_state=settings.seed + number,
        sample_weight=some(settings.sample_weight),
        score_weight=weights if isinstance(weights, str) else some(weights),
        params=settings.params and part_of(settings.params, data.X_given, rows),
        report=None,
        row_losses=False,
    )
    made = Task(some(data.X_given), some(data.y_given), inner, cache=ModelCache())
    made.topics = task.topics  # what was said of all rows is not said again
    return made
