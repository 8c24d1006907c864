"""What is known of an estimator before its folds are: progressive losses, and 16 folds of many.

In a tree, the training of the first leaf's model is one pass over all rows but its own. Each row
is tested before the model is trained on it (Blum, Kalai & Langford 1999). With many folds, the
tree is then walked breadth-first to 16 nodes: their models are those of a cross-validation with 16
folds.
"""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import Any

import numpy as np

from optuna_treecv.crossval.early_scores import EarlyAhead
from optuna_treecv.crossval.early_scores import empty_scores
from optuna_treecv.crossval.early_scores import FEWEST_FOLDS
from optuna_treecv.crossval.early_scores import FIRST_LEAF
from optuna_treecv.crossval.early_scores import NESTED_FOLDS
from optuna_treecv.crossval.early_scores import RowScores
from optuna_treecv.crossval.early_scores import scored
from optuna_treecv.crossval.methods import Method
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Request
from optuna_treecv.crossval.subtrees import divided
from optuna_treecv.crossval.subtrees import node_test
from optuna_treecv.crossval.trained import Trained
from optuna_treecv.crossval.trained import TrainedRepeat
from optuna_treecv.sharing.shared_learner import SharedLearner
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Rows
from optuna_treecv.tree.spine import length_of_spine
from optuna_treecv.tree.spine import Spine
from optuna_treecv.tree.spine import steps_of_spine
from optuna_treecv.tree.walk import Begun
from optuna_treecv.tree.walk import beside_the_spine
from optuna_treecv.tree.walk import TestedBlock
from optuna_treecv.tree.walk import walk_tree


def why_no_first_pass(method: Method, report: str | None) -> str:
    """Return why a method cannot make an early kind of reports, a sentence; "" if it can."""
    if method.name == "treecv":
        return ""
    return (
        f"report={report!r} needs the tree, in which one training pass tests each row before it "
        f"acts, but the folds are evaluated by method={method.name!r}; report='folds' or 'mean' "
        "would be right."
    )


class EarlyRepeat(TrainedRepeat):
    """One estimator's way through a tree, with scores before those of its folds.

    Ask for ``first_pass`` and for ``nested`` first, to their end; then for ``blocks``.

    Attributes
    ----------
    progressive : RowScores
        Of the rows of the first pass.
    """

    def __init__(self, method: Trained, request: Request, repeat: Repeat) -> None:
        super().__init__(method, request, repeat)
        self._spine = Spine(repeat.plan, self._learner)
        self._metric = request.scoring.first
        self._ends = steps_of_spine(repeat.plan)
        n_rows = length_of_spine(repeat.plan)
        self.progressive = empty_scores(self._metric, n_rows, self._learner.rows, self._ends)
        self._ahead: EarlyAhead | None = getattr(request.ahead.get(repeat.number), "early", None)
        self._n_before = 0  # rows trained on before the blocks are asked for
        self._n_needed = 0  # those of them that the tree needs
        self._begun: list[Begun] | None = None

    @property
    def n_updates(self) -> int:
        """The rows trained on so far."""
        return super().n_updates + self._n_before

    @property
    def lost_at(self) -> int | None:
        """The step at which it has lost against others that were evaluated together with it."""
        return None if self._ahead is None else self._ahead.lost_at

    @property
    def n_nested(self) -> int:
        """The folds that are known before all are; 0 if that does not pay."""
        return NESTED_FOLDS if self._repeat.plan.n_folds >= FEWEST_FOLDS else 0

    def first_pass(self) -> Generator[int]:
        """Train on the first pass, and yield each step once its rows are in ``progressive``."""
        if self._ahead is not None:
            yield from self._replay(self._ahead)
            return
        began = perf_counter()
        self._trains_now = True
        for part in self._spine.walk():
            self.progressive.add(*self._scored(part.outputs, part.rows))
            self._count(len(part.outputs))
            if part.step is not None:
                self.seconds_before += perf_counter() - began
                yield part.step
                began = perf_counter()
        if not self._spine.states:
            self._n_needed = 0  # the tree needs another pass
        self.seconds_before += perf_counter() - began

    def _replay(self, ahead: EarlyAhead) -> Generator[int]:
        """Yield the steps of a pass that is done."""
        if ahead.lost_at is not None:
            self._n_before = ahead.n_updates
        for n_rows, step in self._ends.items():
            if n_rows > ahead.progressive.n_rows:
                return
            self.progressive = ahead.progressive.first(n_rows)
            yield step

    def _scored(self, outputs: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray | None]:
        return scored(self._learner, self._metric, self._request.estimator, outputs, rows)

    def nested(self) -> RowScores:
        """Walk the tree to its 16 nodes of level 4; return the scores of all rows they test."""
        if self._ahead is not None and self._ahead.nested is not None:
            return self._ahead.nested
        began = perf_counter()
        plan, learner = self._repeat.plan, self._learner
        nodes = plan.blocks(NESTED_FOLDS)
        outputs = np.empty((plan.n_rows, learner.n_outputs), learner.dtype)
        held: dict[Node, Any] = {}

        def hold(node: Node, state: Any) -> int:
            learner.outputs(state, *plan.rows(node), outputs)
            held[node] = state
            return 0

        n_jobs = self._request.evaluation.n_jobs
        begun = self._left(plan.root, nodes[0])
        for block in walk_tree(plan, learner, hold, nodes, n_jobs, begun):
            self._count(block.n_updates)
        self._begun = self._left(nodes[0], FIRST_LEAF) or [Begun(nodes[0], held[nodes[0]])]
        self._begun += [Begun(node, held[node]) for node in nodes[1:]]
        start, stop = plan.rows(plan.root)
        scores = empty_scores(self._metric, stop - start, self._learner.rows)
        scores.add(*self._scored(outputs[start:stop], slice(start, stop)))
        self.seconds_before += perf_counter() - began
        return scores

    def blocks(self) -> Generator[TestedBlock]:
        """Evaluate the folds from where the first pass or the 16 nodes have come to."""
        kept = self._kept_blocks()
        if kept is not None:
            yield from kept
            return
        self._trains_now = True
        plan, n_jobs = self._repeat.plan, self._request.evaluation.n_jobs
        begun = self._begun or self._left(plan.root, FIRST_LEAF)
        nodes = [plan.root] if begun is None else [one.node for one in begun]
        blocks = divided(plan, nodes, n_jobs)
        test = node_test(plan, self._learner, self._leaves)
        for block in walk_tree(plan, self._learner, test, blocks, n_jobs, begun):
            self._n_trained += block.n_updates
            n_needed, self._n_needed = self._n_needed, 0
            yield TestedBlock(block.block, block.n_updates + n_needed)

    def _left(self, top: Node, bottom: Node) -> list[Begun] | None:
        """Return what is left to walk between two nodes on the spine; None: everything."""
        states = self._spine.states
        return beside_the_spine(self._repeat.plan, states, top, bottom) if states else None

    def _count(self, n_rows: int) -> None:
        """Count rows of the tree's phases that are done before its blocks are asked for."""
        self._n_needed += n_rows
        if not isinstance(self._learner, SharedLearner):
            self._n_before += n_rows
