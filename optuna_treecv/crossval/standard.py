"""The method "standard": k trainings from scratch, one pass each. It is the paper's baseline."""

from __future__ import annotations

from collections.abc import Generator

from optuna_treecv.scoring import Leaves
from optuna_treecv.sharing.prefixes import Prefix
from optuna_treecv.sharing.stored_cache import AnyCache
from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan
from optuna_treecv.tree.walk import make_pool
from optuna_treecv.tree.walk import TestedBlock


class Standard:
    """(k - 1) n row updates for k folds of n rows in all."""

    name = "standard"
    has_lanes = False

    def share(self, learner: Learner, cache: AnyCache, root: Prefix) -> Learner:
        """Return the learner itself: its trainings have no prefix in common."""
        return learner

    def test_folds(
        self, plan: Plan, learner: Learner, leaves: Leaves, blocks: list[Node], n_jobs: int
    ) -> Generator[TestedBlock]:
        """Train a model for each fold on all other rows, and test it."""

        def run(block: Node) -> TestedBlock:
            n_updates = 0
            for chunk in range(block.first, block.last):
                fold = Node(chunk, chunk + 1)
                state = learner.start()
                rows = plan.rest(fold)
                learner.update(state, rows)
                leaves.test_leaf(fold, state)
                n_updates += len(rows)
            return TestedBlock(block, n_updates)

        if n_jobs == 1:
            yield from map(run, blocks)
            return
        pool = make_pool(n_jobs)
        try:
            yield from pool.map(run, blocks)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
