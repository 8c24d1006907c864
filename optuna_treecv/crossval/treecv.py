"""The method "treecv": the k trainings do their common part only once, along a tree.

Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015); the recursion itself is in ``tree/walk.py``.
"""

from __future__ import annotations

from collections.abc import Generator

from optuna_treecv.crossval.early import EarlyRepeat
from optuna_treecv.crossval.fold_average import AveragingRepeat
from optuna_treecv.crossval.lanes import CompiledLanes
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Request
from optuna_treecv.crossval.subtrees import node_test
from optuna_treecv.crossval.trained import Trained
from optuna_treecv.crossval.trained import TrainedRepeat
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.scoring import Leaves
from optuna_treecv.sharing.prefixes import Prefix
from optuna_treecv.sharing.shared_learner import SharedLearner
from optuna_treecv.sharing.stored_cache import AnyCache
from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.walk import TestedBlock
from optuna_treecv.tree.walk import walk_tree


class TreeCV(Trained):
    """At most n log2(2k) row updates per epoch for k folds of n rows in all."""

    name = "treecv"
    side_by_side = CompiledLanes("treecv")

    def begin(self, request: Request, repeat: Repeat) -> TrainedRepeat:
        """Bind the estimator to the prepared rows."""
        if request.average is not None:
            return AveragingRepeat(self, request, repeat)
        if request.evaluation.is_early and repeat.number == 0:
            return EarlyRepeat(self, request, repeat)
        return super().begin(request, repeat)

    def share(self, learner: Learner, cache: AnyCache, root: Prefix, n_epochs: int) -> Learner:
        """Return a learner that looks models up in the cache, if its states have keys."""
        return (
            SharedLearner(learner, cache, root, n_epochs)
            if isinstance(learner, CompiledLearner)
            else learner
        )

    def test_folds(
        self, repeat: Repeat, learner: Learner, leaves: Leaves, n_jobs: int
    ) -> Generator[TestedBlock]:
        """Walk the tree; a compiled learner walks each block in one call."""
        test = node_test(repeat.plan, learner, leaves)
        return walk_tree(repeat.plan, learner, test, repeat.blocks, n_jobs)
