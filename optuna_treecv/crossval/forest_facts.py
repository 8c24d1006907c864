"""What a forest says besides scores: how long folds agree, and how pruning acts."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.base import clone

from optuna_treecv.crossval.arguments import check_integer
from optuna_treecv.crossval.engines import job_for
from optuna_treecv.crossval.forest import forest_of
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.result import CVResult
from optuna_treecv.crossval.task import Task
from optuna_treecv.learners.names import name_of
from optuna_treecv.learners.trees.estimators import weakest_links
from optuna_treecv.learners.trees.forest import Limits


class PruningStep(NamedTuple):
    """One penalty of a pruning path.

    Attributes
    ----------
    alpha : float
        The value of ``ccp_alpha``.
    n_leaves : int
        Of the tree of all rows.
    result : CVResult
    """

    alpha: float
    n_leaves: int
    result: CVResult


def grown(task: Task, estimator: Any) -> Job:
    """Return a job for an estimator; refuse one that is not evaluated by a forest."""
    job = job_for(task, estimator)
    if job.engine.name != "forest":
        raise ValueError(
            "objective must evaluate a HistTreeClassifier or a HistTreeRegressor by "
            f"method='forest', got {name_of(estimator)} by method={job.engine.name!r}."
        )
    return job


def agreement_by_depth(task: Task, estimator: Any) -> np.ndarray:
    """Return the share of rows in nodes that fold trees share with the tree of all rows."""
    return forest_of(grown(task, estimator)).agreement(Limits.of(estimator))


def pruning_path(task: Task, estimator: Any, most: int = 60) -> tuple[str, list[PruningStep]]:
    """Return the name of the score, and scores along the pruning path of the tree of all rows.

    Between two penalties at which that tree changes, their geometric mean is evaluated (Breiman et
    al. 1984, section 3.4.2).

    Parameters
    ----------
    task : Task
    estimator : HistTreeClassifier or HistTreeRegressor
        Its ``ccp_alpha`` is not used.
    most : int
        The most penalties; of more, those at equal steps of their numbers are taken.
    """
    most = check_integer("most", most, 10_000)
    grown(task, estimator)
    whole = clone(estimator).set_params(ccp_alpha=0.0)
    tree = forest_of(job_for(task, whole)).tree(0, Limits.of(whole))
    alphas, _, n_leaves = weakest_links(tree.nodes)
    is_last = np.append(alphas[1:] > alphas[:-1], True)  # of equal penalties
    alphas, n_leaves = alphas[is_last], n_leaves[is_last]
    chosen = np.unique(np.linspace(0, len(alphas) - 1, min(most, len(alphas))).round().astype(int))
    steps, name = [], ""
    for i in chosen.tolist():
        above = alphas[i + 1] if i + 1 < len(alphas) else alphas[i]
        alpha = float(np.sqrt(alphas[i] * above))
        job = job_for(task, clone(whole).set_params(ccp_alpha=alpha))
        name = job.scoring.name
        steps.append(PruningStep(alpha, int(n_leaves[i]), job.finish()))
    return name, steps
