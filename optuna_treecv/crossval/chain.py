"""The method "chain": one model walks forward through time and is tested at each split.

It is for training sets that are growing first parts of the rows, such as those of scikit-learn's
``TimeSeriesSplit``. Each of them begins with the one before, so all k trainings together take as
many row updates as the longest.
"""

from __future__ import annotations

from collections.abc import Generator

from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.trained import Trained
from optuna_treecv.rows.splits import Splits
from optuna_treecv.scoring import Leaves
from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Phase
from optuna_treecv.tree.plan import Plan
from optuna_treecv.tree.plan import Replays
from optuna_treecv.tree.walk import TestedBlock
from optuna_treecv.tree.walk import train


class Chain(Trained):
    """As many row updates as the largest training set has rows, per epoch."""

    name = "chain"

    def test_folds(
        self, repeat: Repeat, learner: Learner, leaves: Leaves, n_jobs: int
    ) -> Generator[TestedBlock]:
        """Train one model on, and test a copy of it at each split."""
        cut, plan = repeat.cut, repeat.plan
        assert isinstance(cut, Splits)
        state, n_seen = learner.start(), 0
        for block in repeat.blocks:
            n_updates = 0
            for chunk in range(block.first, block.last):
                stop = cut.trains[chunk]
                assert isinstance(stop, int)
                n_updates += train(learner, state, _phase(plan, n_seen, stop, cut.n_rows))
                n_seen = stop
                leaves.test_leaf(Node(chunk, chunk + 1), learner.snapshot(state))
            yield TestedBlock(block, n_updates)


def _phase(plan: Plan, n_seen: int, stop: int, n_rows: int) -> Phase:
    """Return the phase on the rows from ``n_seen`` on; all rows from ``stop`` on are held out."""
    seed = plan.seed if plan.random else None
    replays = Replays(plan.n_epochs, plan.seed, stop, n_rows, n_rows)
    return Phase(n_seen, stop, n_seen, seed, replays if plan.n_epochs > 1 else None)
