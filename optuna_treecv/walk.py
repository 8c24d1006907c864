"""The recursion. Python walks the top of the tree, where reports, threads and cancelling are; a
compiled learner walks each block below it in one call, any other learner in the same recursion.

Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015): a node's model is trained on the right half of
what it holds out and becomes the left child's, and the other way round; a leaf tests on its own
chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from concurrent.futures import Future
from concurrent.futures import InvalidStateError
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any
from typing import NamedTuple
from typing import TypeGuard

from sklearn import get_config
from sklearn import set_config

from optuna_treecv.learners.base import Learner
from optuna_treecv.learners.base import PairTrainer
from optuna_treecv.plan import Node
from optuna_treecv.plan import Phase
from optuna_treecv.plan import Plan

#: Tests all folds of a node given the state with its model, which it may use up; returns the row
#: updates that took.
TestNode = Callable[[Node, Any], int]


class Done(NamedTuple):
    """A tested block, and the row updates done since the block before."""

    block: Node
    n_updates: int


def walk_tree(
    plan: Plan, learner: Learner, test: TestNode, blocks: list[Node], n_jobs: int
) -> Generator[Done]:
    """TreeCV: test all blocks of the tree and yield them from the left, whatever finishes first.

    Closing the iterator cancels what is left.
    """
    if n_jobs == 1:
        return _descend(plan, learner, test, set(blocks), plan.root, learner.start(), 0)
    return _descend_in_threads(plan, learner, test, blocks, n_jobs)


def walk_standard(
    plan: Plan, learner: Learner, test: TestNode, blocks: list[Node], n_jobs: int
) -> Generator[Done]:
    """The baseline: for each fold train from scratch on all other rows."""

    def run(block: Node) -> Done:
        n_updates = 0
        for chunk in range(block.first, block.last):
            fold = Node(chunk, chunk + 1)
            state = learner.start()
            rows = plan.rest(fold)
            learner.update(state, rows)
            n_updates += len(rows) + test(fold, state)
        return Done(block, n_updates)

    if n_jobs == 1:
        yield from map(run, blocks)
        return
    pool = make_pool(n_jobs)
    try:
        yield from pool.map(run, blocks)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def replay(blocks: list[Node], n_updates: int) -> Generator[Done]:
    """Blocks whose results are there already; what they once took is said of the first."""
    for block in blocks:
        yield Done(block, n_updates)
        n_updates = 0


def walk_to_leaves(
    plan: Plan, learner: Learner, test_leaf: Callable[[Node, Any], None], node: Node, state: Any
) -> int:
    """The tree below ``node`` down to single folds; the row updates done."""
    if node.n_folds == 1:
        test_leaf(node, state)
        return 0
    left, right = plan.split(node)
    child = learner.snapshot(state)
    n_updates = train(learner, child, plan.phase(node, left))
    n_updates += walk_to_leaves(plan, learner, test_leaf, left, child)
    n_updates += train(learner, state, plan.phase(node, right))
    return n_updates + walk_to_leaves(plan, learner, test_leaf, right, state)


def make_pool(n_jobs: int) -> ThreadPoolExecutor:
    """Threads with the caller's scikit-learn configuration, which is one of each thread."""
    return ThreadPoolExecutor(n_jobs, "treecv", initializer=partial(set_config, **get_config()))


def train(learner: Learner, state: Any, phase: Phase) -> int:
    """One training phase; its rows."""
    learner.update(state, phase)
    return phase.n_rows


def trains_pairs(learner: Learner) -> TypeGuard[PairTrainer]:
    """Whether siblings are trained together."""
    return isinstance(learner, PairTrainer) and learner.trains_pairs


def train_both(plan: Plan, learner: PairTrainer, node: Node, left: Any, right: Any) -> int:
    """The models of a node's children, of two copies of its own; the rows of both phases."""
    phase, other_phase = (plan.phase(node, child) for child in plan.split(node))
    learner.update_both(left, phase, right, other_phase)
    return phase.n_rows + other_phase.n_rows


def _descend(
    plan: Plan,
    learner: Learner,
    test: TestNode,
    blocks: set[Node],
    node: Node,
    state: Any,
    n_updates: int,
) -> Generator[Done]:
    """The same recursion down to blocks, as an iterator."""
    if node in blocks:
        yield Done(node, n_updates + test(node, state))
        return
    left, right = plan.split(node)
    child = learner.snapshot(state)
    if trains_pairs(learner):
        n_updates += train_both(plan, learner, node, child, state)
        yield from _descend(plan, learner, test, blocks, left, child, n_updates)
        yield from _descend(plan, learner, test, blocks, right, state, 0)
        return
    n_updates += train(learner, child, plan.phase(node, left))
    yield from _descend(plan, learner, test, blocks, left, child, n_updates)
    n_updates = train(learner, state, plan.phase(node, right))
    yield from _descend(plan, learner, test, blocks, right, state, n_updates)


def _descend_in_threads(
    plan: Plan, learner: Learner, test: TestNode, blocks: list[Node], n_jobs: int
) -> Generator[Done]:
    """The same with the branches shared out: who comes to a node goes on with its left child, the
    right one is queued, by its parent's model or, if siblings are trained together, its own.

    So the largest branches are taken up first, and the leftmost blocks, which are reported first,
    are never behind others.
    """
    done: dict[Node, Future[int]] = {block: Future() for block in blocks}
    cancelled = Event()
    pool = make_pool(n_jobs)

    def run(parent: Node | None, node: Node, state: Any) -> None:
        try:
            n_updates = 0
            while not cancelled.is_set():
                if parent is not None:
                    n_updates += train(learner, state, plan.phase(parent, node))
                if node in done:
                    done[node].set_result(n_updates + test(node, state))
                    return
                left, right = plan.split(node)
                child = learner.snapshot(state)
                if trains_pairs(learner):
                    n_updates += train_both(plan, learner, node, child, state)
                    parent = None
                else:
                    parent = node
                pool.submit(run, parent, right, state)
                node, state = left, child
        except BaseException as error:  # whoever waits for any block must hear of it
            cancelled.set()
            for future in done.values():
                with suppress(InvalidStateError):  # it has a result, or another error
                    future.set_exception(error)

    try:
        pool.submit(run, None, plan.root, learner.start())
        for block in blocks:
            yield Done(block, done[block].result())
    finally:
        cancelled.set()
        pool.shutdown(wait=True, cancel_futures=True)
