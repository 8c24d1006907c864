"""What is known of an estimator before its folds are: progressive losses, and 16 folds of many.

In a tree, the training of the first leaf's model is one pass over all rows but its own. Each row
is tested before the model is trained on it (Blum, Kalai & Langford 1999). With many folds, the
tree is then walked breadth-first to 16 nodes: their models are those of a cross-validation with 16
folds.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from optuna_treecv.crossval.engine import Early
from optuna_treecv.crossval.engine import empty_scores
from optuna_treecv.crossval.engine import FEWEST_FOLDS
from optuna_treecv.crossval.engine import FIRST_LEAF
from optuna_treecv.crossval.engine import NESTED_FOLDS
from optuna_treecv.crossval.engine import NESTED_STEP
from optuna_treecv.crossval.engine import RowScores
from optuna_treecv.crossval.engine import scored
from optuna_treecv.crossval.repeat import divided
from optuna_treecv.crossval.trained import Ahead
from optuna_treecv.crossval.trained import node_test
from optuna_treecv.crossval.trained import Training
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Rows
from optuna_treecv.tree.spine import length_of_spine
from optuna_treecv.tree.spine import steps_of_spine
from optuna_treecv.tree.spine import walk_spine
from optuna_treecv.tree.walk import Begun
from optuna_treecv.tree.walk import beside_the_spine
from optuna_treecv.tree.walk import TestedBlock
from optuna_treecv.tree.walk import walk_tree


def n_steps_of_first_pass(job: Any) -> int:
    """Return how many early scores a job yields along its first pass."""
    return len(steps_of_spine(job.repeats[0].plan))


class FirstPass:
    """The beginning of a walk over the tree, with scores before those of its folds.

    Ask for ``events`` to their end, and then for ``walk_rest``.

    Parameters
    ----------
    training : Training
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._plan = training.repeat.plan
        self._learner = training.learner
        self._metric = training.job.scoring.first
        self._n_threads = training.job.task.settings.n_threads
        self._states: dict[Node, Any] = {}  # of the nodes on the spine
        self._begun: list[Begun] | None = None

    def events(self) -> Generator[Early]:
        """Train on the first pass, and then down to 16 nodes; yield each step."""
        training = self._training
        is_large = self._plan.n_folds >= FEWEST_FOLDS
        if training.ahead is not None:
            yield from self._replayed(training.ahead, is_large)
            return
        training.is_training = True
        yield from self._first_pass()
        if is_large:
            yield Early(NESTED_STEP, self._nested())

    def _first_pass(self) -> Generator[Early]:
        ends, n_rows = steps_of_spine(self._plan), length_of_spine(self._plan)
        scores = empty_scores(self._metric, n_rows, self._learner.rows, ends)
        for rows, outputs, step in walk_spine(self._plan, self._learner, self._states):
            scores.add(*self._scored(outputs, rows))
            self._count(len(outputs))
            if step is not None:
                yield Early(step, scores)
        if not self._states:
            self._training.n_needed = 0  # the tree needs another pass

    def _replayed(self, ahead: Ahead, is_large: bool) -> Generator[Early]:
        """Yield what was computed together with other jobs, until it lost against them."""
        if ahead.lost_at is not None:
            self._training.count_ahead(ahead.n_updates)
        assert ahead.progressive is not None
        for n_rows, step in steps_of_spine(self._plan).items():
            if n_rows > ahead.progressive.n_rows:
                return
            yield Early(step, ahead.progressive.first(n_rows), step == ahead.lost_at)
        if is_large and ahead.nested is not None:
            yield Early(NESTED_STEP, ahead.nested, ahead.lost_at == NESTED_STEP)

    def _scored(self, outputs: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray | None]:
        estimator = self._training.job.estimator
        return scored(self._learner, self._metric, estimator, outputs, rows)

    def _nested(self) -> RowScores:
        """Walk the tree to its 16 nodes of level 4; return the scores of all rows they test."""
        plan, learner = self._plan, self._learner
        nodes = plan.blocks(NESTED_FOLDS)
        outputs = np.empty((plan.n_rows, learner.n_outputs), learner.dtype)
        held: dict[Node, Any] = {}

        def hold(node: Node, state: Any) -> int:
            learner.outputs(state, *plan.rows(node), outputs)
            held[node] = state
            return 0

        begun = self._left(plan.root, nodes[0])
        for block in walk_tree(plan, learner, hold, nodes, self._n_threads, begun):
            self._count(block.n_updates)
        self._begun = self._left(nodes[0], FIRST_LEAF) or [Begun(nodes[0], held[nodes[0]])]
        self._begun += [Begun(node, held[node]) for node in nodes[1:]]
        start, stop = plan.rows(plan.root)
        scores = empty_scores(self._metric, stop - start, self._learner.rows)
        scores.add(*self._scored(outputs[start:stop], slice(start, stop)))
        return scores

    def walk_rest(self) -> Generator[TestedBlock]:
        """Test the folds from where the first pass or the 16 nodes have come to."""
        plan, learner = self._plan, self._learner
        begun = self._begun or self._left(plan.root, FIRST_LEAF)
        nodes = [plan.root] if begun is None else [one.node for one in begun]
        blocks = divided(plan, nodes, self._n_threads)
        test = node_test(plan, learner, self._training.leaves)
        return walk_tree(plan, learner, test, blocks, self._n_threads, begun)

    def _left(self, top: Node, bottom: Node) -> list[Begun] | None:
        """Return what is left to walk between two nodes on the spine; None: everything."""
        return beside_the_spine(self._plan, self._states, top, bottom) if self._states else None

    def _count(self, n_rows: int) -> None:
        """Count rows of the tree's phases that are done before its blocks are asked for."""
        self._training.n_needed += n_rows
        self._training.n_walked += n_rows
