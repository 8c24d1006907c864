"""The engine "chain": one model walks forward through time and is tested at each split.

It is for training sets that are growing first parts of the rows, such as those of scikit-learn's
``TimeSeriesSplit``. Each of them begins with the one before, so all k trainings together take as
many row updates as the longest.
"""

from collections.abc import Generator

from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.trained import Trained
from optuna_treecv.crossval.trained import why_not_in_tree
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.folds import Splits
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.tree.plan import Learner
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Phase
from optuna_treecv.tree.plan import Replays
from optuna_treecv.tree.walk import TestedBlock
from optuna_treecv.tree.walk import train


class Chain(Trained):
    """As many row updates as the largest training set has rows, per epoch."""

    name = "chain"
    methods = ("auto", "holdout", "treecv")

    def why_not(self, job: Job) -> str:
        """Return why one model cannot walk forward through the splits, a clause."""
        cut = job.task.repeats[0].cut
        if why := why_not_in_tree(job):
            return why
        if isinstance(cut, Folds):
            return "the training sets of its folds do not grow"
        return "" if cut.grows else cut.why_no_tree

    def cost(self, job: Job) -> str:
        """Return the length of the way."""
        n_rows, n_folds = job.task.data.n_rows, job.task.n_folds
        return (
            f"One model walks forward through the {n_rows:,} rows and is tested {n_folds:,} times."
        )

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
                replays = None
                if plan.n_epochs > 1:  # all rows from stop on are held out
                    replays = Replays(plan.n_epochs, plan.seed, stop, cut.n_rows, cut.n_rows)
                phase = Phase(n_seen, stop, n_seen, plan.seed if plan.random else None, replays)
                n_updates += train(learner, state, phase)
                n_seen = stop
                leaves.test_leaf(Node(chunk, chunk + 1), learner.snapshot(state))
            yield block, n_updates
