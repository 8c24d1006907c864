"""How the folds of one repeat are evaluated: the protocol of a method, and the methods there are.

A new method is a new file, and one line in ``METHODS``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from optuna_treecv.crossval.standard import Standard
from optuna_treecv.crossval.treecv import TreeCV
from optuna_treecv.scoring import Leaves
from optuna_treecv.sharing.prefixes import Prefix
from optuna_treecv.sharing.stored_cache import AnyCache
from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan
from optuna_treecv.tree.walk import TestedBlock


class Method(Protocol):
    """A way to evaluate the folds of one repeat."""

    @property
    def name(self) -> str:
        """The name by which users ask for it and under which its results are kept."""

    @property
    def has_lanes(self) -> bool:
        """Whether several compiled learners can be evaluated side by side."""

    def share(self, learner: Learner, cache: AnyCache, root: Prefix) -> Learner:
        """Return the learner that shares models with other evaluations of the same rows.

        Parameters
        ----------
        learner : Learner
        cache : ModelCache or StoredModelCache
            Where the models are kept.
        root : Prefix
            The prefix before the first prepared row.
        """

    def test_folds(
        self, plan: Plan, learner: Learner, leaves: Leaves, blocks: list[Node], n_jobs: int
    ) -> Generator[TestedBlock]:
        """Test each fold with a model that has not seen its rows.

        Parameters
        ----------
        plan : Plan
            The folds, and the tree over them.
        learner : Learner
            Bound to the prepared rows.
        leaves : Leaves
            Takes what the models say.
        blocks : list of Node
            The parts that are yielded, from the left.
        n_jobs : int
            Threads.

        Yields
        ------
        TestedBlock
            A block once all its folds are tested, and the row updates since the block before.
        """


METHODS: dict[str, Method] = {method.name: method for method in (TreeCV(), Standard())}
