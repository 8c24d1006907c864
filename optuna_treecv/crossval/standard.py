"""The engine "standard": k trainings from scratch, one pass each. It is the paper's baseline.

With several epochs each training makes as many passes, each but the first in a new random order.
"""

from collections.abc import Generator

import numpy as np

from optuna_treecv._kernels.order import random_order
from optuna_treecv.crossval.engine import cost_of_trainings
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.trained import Trained
from optuna_treecv.crossval.trained import why_not_trained_further
from optuna_treecv.learners.trees.estimators import HistTree
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.tree.plan import Learner
from optuna_treecv.tree.plan import ModelTrainer
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.walk import make_pool
from optuna_treecv.tree.walk import TestedBlock


class Standard(Trained):
    """(k - 1) n row updates per epoch for k folds of n rows in all; any splits."""

    name = "standard"
    methods = ("standard",)

    def why_not(self, job: Job) -> str:
        """Return why models cannot be trained in passes, a clause."""
        return why_not_trained_further(job) if isinstance(job.estimator, HistTree) else ""

    def cost(self, job: Job) -> str:
        """Return the number of trainings and of their rows."""
        kind = "trainings of one pass"
        if job.n_epochs > 1:
            kind = f"trainings of {job.n_epochs} passes"
        return cost_of_trainings(job, kind)

    def test_folds(
        self, repeat: Repeat, learner: Learner, leaves: Leaves, n_jobs: int
    ) -> Generator[TestedBlock]:
        """Train a model for each fold on its training rows, and test it."""

        def run(block: Node) -> TestedBlock:
            n_updates = 0
            for chunk in range(block.first, block.last):
                state = learner.start()
                for epoch in range(repeat.plan.n_epochs):
                    rows = _training_rows(repeat, chunk, epoch)
                    if epoch == 0:
                        learner.update(state, rows)
                    else:
                        assert isinstance(learner, ModelTrainer)
                        learner.replay(state, rows)
                    n_updates += len(rows)
                leaves.test_leaf(Node(chunk, chunk + 1), state)
            return block, n_updates

        if n_jobs == 1:
            yield from map(run, repeat.blocks)
            return
        pool = make_pool(n_jobs)
        try:
            yield from pool.map(run, repeat.blocks)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _training_rows(repeat: Repeat, chunk: int, epoch: int) -> np.ndarray:
    """Return the prepared rows that the model of a chunk is trained on, in their order.

    The rows of splits come as they lie in the prepared order, or in a random order of their own,
    which epochs after the first one always have.
    """
    cut, plan = repeat.cut, repeat.plan
    if isinstance(cut, Folds):
        return plan.rest(Node(chunk, chunk + 1), epoch)
    rows = np.sort(cut.prepared(cut.split(chunk).train_rows()))
    if not plan.random and epoch == 0:
        return rows
    order, number, n_seen = np.empty(len(rows), np.uint32), cut.number(chunk), epoch * len(rows)
    random_order(plan.seed, number, number + len(rows), n_seen, order)
    return rows[order - np.uint32(number)]
