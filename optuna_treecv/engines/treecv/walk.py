"""Walks over the tree: the recursion, and a single pass along its left spine.

The recursion is Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015), who call the test rows of a
fold a chunk. Training a node's model on the right half of the node's chunks gives the model of the
left child, and training it on the left half gives the model of the right child. The model of a
leaf is tested on the leaf's chunk.

A walk divides the tree into blocks, which are subtrees of neighbouring folds. Python walks the
nodes above the blocks, where folds are reported, threads are started and a walk can be cancelled.
Inside a block, compiled learners walk in one call of a kernel, other learners in Python.
"""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import InvalidStateError
from contextlib import closing
from contextlib import nullcontext
from contextlib import suppress
from threading import Event
from typing import Any
from typing import cast
from typing import NamedTuple
from typing import TypeGuard

import numpy as np

from optuna_treecv.core.row_scores import spine_steps
from optuna_treecv.engines.treecv.learner import Learner
from optuna_treecv.engines.treecv.learner import ModelTrainer
from optuna_treecv.engines.treecv.learner import PairTrainer
from optuna_treecv.engines.treecv.learner import PartTrainer
from optuna_treecv.engines.treecv.learner import Trainer
from optuna_treecv.engines.treecv.sweeps import Sweep
from optuna_treecv.engines.treecv.sweeps import sweep_tree
from optuna_treecv.numerics.moments import make_pool
from optuna_treecv.rows.partition import cut
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.rows.partition import Phase
from optuna_treecv.rows.partition import Rows
from optuna_treecv.types import Opaque

#: A function (node, state, start, stop) -> number of row updates. It tests all folds of a node,
#: given the node's state, which it may modify. The node holds out the rows start to stop - 1. In a
#: sweep over rows on disk, a fold may be tested in several calls, from its first row to its last.
TestNode = Callable[[Node, Any, int, int], int]

#: A block whose folds have all been tested, and the number of row updates since the previous
#: block.
TestedBlock = tuple[Node, int]


class Pending(NamedTuple):
    """A subtree that has not been walked yet.

    Attributes
    ----------
    node : Node
        The root of the subtree.
    state : state
        The state of ``node``, or of its parent if ``parent`` is given. The walk modifies it.
    parent : Node or None
        The parent, if the state must still be trained from the parent to ``node``.
    """

    node: Node
    state: Opaque
    parent: Node | None = None


def walk_tree(
    plan: Partition,
    learner: Trainer,
    test: TestNode,
    blocks: list[Node],
    n_threads: int,
    pending: list[Pending] | None = None,
    stops_at_blocks: bool = False,
) -> Generator[TestedBlock]:
    """Test all blocks of the tree, and yield them from left to right.

    Closing the generator cancels the remaining work.

    Parameters
    ----------
    plan : Partition
    learner : Trainer
    test : callable
        A ``TestNode``.
    blocks : list of Node
        The blocks of the tree, from the left.
    n_threads : int
        The number of threads.
    pending : list of Pending or None
        The subtrees still to walk, from the left, each of one or more whole blocks. None stands
        for the whole tree.
    stops_at_blocks : bool
        Whether ``test`` only tests the model of a block itself, instead of training the models of
        the block's folds.
    """
    if (file := learner.rows.file) is not None:
        pool = make_pool(n_threads) if n_threads > 1 else None
        with pool or nullcontext():
            ends = blocks if stops_at_blocks else ()
            sweep = Sweep(plan, cast(PartTrainer, learner), test, ends, file, pool)
            if pending is None:
                sweep.begin(learner.start())
            for subtree in pending or ():
                sweep.add(*subtree)
            yield from sweep_tree(sweep, blocks)
        return
    n_updates = 0
    if pending is None:
        root, phase = learner.start(), plan.first_phase
        n_updates = train(learner, root, phase) if phase.n_rows else 0
        pending = [Pending(plan.root, root)]
    elif n_threads == 1 and trains_pairs(learner):
        pending, n_updates = _train_in_pairs(plan, learner, pending)
    if n_threads > 1:
        yield from _descend_in_threads(plan, learner, test, blocks, n_threads, pending, n_updates)
        return
    for node, state, parent in pending:
        if parent is not None:
            n_updates = train(learner, state, plan.phase(parent, node))
        yield from _descend(plan, learner, test, set(blocks), node, state, n_updates)
        n_updates = 0


def subtrees_beside_spine(
    plan: Partition, states: dict[Node, Any], top: Node, bottom: Node
) -> list[Pending]:
    """Return the subtrees still to walk below ``top``, from the left.

    ``top`` and ``bottom`` are nodes on the left spine, and ``states`` has the state of each node
    on the spine. The first of the subtrees is ``bottom``; the others are the right children of the
    nodes above it.
    """
    pending = []
    node = top
    while node != bottom:
        left, right = plan.split(node)
        pending.append(Pending(right, states[node], node))
        node = left
    pending.append(Pending(bottom, states[bottom]))
    return pending[::-1]


def walk_to_leaves(
    plan: Partition,
    learner: Trainer,
    test_leaf: Callable[[Node, Any], None],
    node: Node,
    state: Any,
    sums: list[np.ndarray] | None = None,
) -> int:
    """Walk the tree below ``node`` down to single folds; return the number of row updates.

    If ``sums`` is a list, the sum of all fold models below ``node`` is appended to it.
    """
    if node.n_folds == 1:
        test_leaf(node, state)
        if sums is not None:
            assert isinstance(learner, ModelTrainer)
            sums.append(learner.numbers(state))
        return 0
    left, right = plan.split(node)
    child = learner.snapshot(state)
    n_updates = train(learner, child, plan.phase(node, left))
    n_updates += walk_to_leaves(plan, learner, test_leaf, left, child, sums)
    n_updates += train(learner, state, plan.phase(node, right))
    n_updates += walk_to_leaves(plan, learner, test_leaf, right, state, sums)
    if sums is not None:
        of_right = sums.pop()
        sums[-1] = sums[-1] + of_right
    return n_updates


def sum_along_tree(plan: Partition, sums: dict[Node, np.ndarray], node: Node) -> np.ndarray:
    """Return the sum of all fold models of a node, given the sum of each block.

    The sums are added along the tree, siblings first. Rounding therefore does not depend on how
    the tree is divided into blocks.
    """
    if node in sums:
        return sums[node]
    left, right = plan.split(node)
    return sum_along_tree(plan, sums, left) + sum_along_tree(plan, sums, right)


def train(learner: Trainer, state: Any, phase: Phase) -> int:
    """Train a state on one phase; return the number of row updates."""
    learner.update(state, phase)
    return phase.n_updates


def trains_pairs(learner: Trainer) -> TypeGuard[PairTrainer]:
    """Return whether the learner trains the two children of a node at once."""
    return isinstance(learner, PairTrainer) and learner.trains_pairs


def train_both(plan: Partition, learner: PairTrainer, node: Node, left: Any, right: Any) -> int:
    """Train two copies of a node's state into its children's states; return the row updates."""
    phase, other_phase = (plan.phase(node, child) for child in plan.split(node))
    learner.update_both(left, phase, right, other_phase)
    return phase.n_updates + other_phase.n_updates


def _train_in_pairs(
    plan: Partition, learner: PairTrainer, pending: list[Pending]
) -> tuple[list[Pending], int]:
    """In pairs, train the states of all pending subtrees that still have their parent's state.

    The last of these subtrees has the longest phase. This phase is divided into pieces, and each
    piece is trained together with the phase of another subtree.

    Returns
    -------
    pending : list of Pending
        The same subtrees with their own states.
    n_updates : int
        The number of row updates.
    """
    children = [subtree for subtree in pending if subtree.parent is not None]
    if not children:
        return pending, 0
    phases = [plan.phase(c.parent, c.node) for c in children if c.parent is not None]
    *others, longest = children
    long_rows, n_rows, done = phases[-1].rows, phases[-1].n_updates, 0
    for child, phase in zip(others, phases, strict=False):
        stop = min(done + phase.n_updates, n_rows)
        learner.update_both(longest.state, cut(long_rows, done, stop), child.state, phase.rows)
        done = stop
    learner.update(longest.state, cut(long_rows, done, n_rows))
    trained = [Pending(subtree.node, subtree.state) for subtree in pending]
    return trained, sum(phase.n_updates for phase in phases)


def _descend(
    plan: Partition,
    learner: Trainer,
    test: TestNode,
    blocks: set[Node],
    node: Node,
    state: Any,
    n_updates: int,
) -> Generator[TestedBlock]:
    """Walk down from a node to its blocks, and yield these when they have been tested.

    ``n_updates`` is the number of earlier row updates, which the first block reports.
    """
    if node in blocks:
        yield node, n_updates + test(node, state, *plan.rows(node))
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
    plan: Partition,
    learner: Trainer,
    test: TestNode,
    blocks: list[Node],
    n_threads: int,
    pending: list[Pending],
    n_updates: int,
) -> Generator[TestedBlock]:
    """Walk down to the blocks in several threads, and yield the blocks from left to right.

    ``n_updates`` is the number of row updates of the root's state; 0 unless the root is pending.

    A thread walks on to the left child and queues the right child with the state of their parent,
    or with its own state if both children were trained as a pair. The largest subtrees therefore
    start first, and the leftmost blocks, which are reported first, never wait for other blocks.
    """
    done: dict[Node, Future[int]] = {block: Future() for block in blocks}
    cancelled = Event()
    pool = make_pool(n_threads)

    def run(parent: Node | None, node: Node, state: Any, n_updates: int = 0) -> None:
        try:
            while not cancelled.is_set():
                if parent is not None:
                    n_updates += train(learner, state, plan.phase(parent, node))
                if node in done:
                    done[node].set_result(n_updates + test(node, state, *plan.rows(node)))
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
        except BaseException as error:  # otherwise the caller would wait for a block forever
            cancelled.set()
            for future in done.values():
                with suppress(InvalidStateError):  # it already has a result or an error
                    future.set_exception(error)

    try:
        for node, state, parent in pending[::-1]:  # the largest subtree first
            pool.submit(run, parent, node, state, n_updates)
        for block in blocks:
            yield block, done[block].result()
    finally:
        cancelled.set()
        pool.shutdown(wait=True, cancel_futures=True)


# The left spine of the tree leads from the root to the first leaf. Together, its phases are one
# pass over all rows outside the first chunk. Testing the model on each row just before training on
# it gives the progressive losses of Blum, Kalai & Langford (1999).


def test_then_train(
    learner: ModelTrainer, state: Any, rows: Rows, ends: Sequence[int], out: np.ndarray
) -> Generator[int]:
    """Test a model on each row just before training on it; yield after each row count in ``ends``.

    When an entry n of ``ends`` is yielded, ``out[:n]`` has the outputs for the first n rows.
    ``out`` has the shape (len(rows), n_outputs).
    """
    begin = 0
    for end in ends:
        learner.test_then_train(state, cut(rows, begin, end), out[begin:end])
        begin = end
        yield end


def spine_phases(plan: Partition) -> list[tuple[Node, Phase]]:
    """Return the nodes from the root to the first leaf, each with the phase that leads to it."""
    node = plan.root
    phases = [(node, plan.first_phase)]
    while node.n_folds > 1:
        left, _ = plan.split(node)
        phases.append((left, plan.phase(node, left)))
        node = left
    return phases


def walk_spine(
    plan: Partition, learner: Learner, states: dict[Node, Any]
) -> Generator[tuple[Rows, np.ndarray, int | None]]:
    """Train a model along the left spine, and test it on each row just before training on it.

    Parameters
    ----------
    plan : Partition
    learner : Learner
    states : dict of Node to state
        Receives the states of the nodes on the spine, for the remaining walk. It stays empty if
        the learner's phases must not be cut.

    Yields
    ------
    rows : slice or ndarray
        Indices of prepared rows, in the order of training.
    outputs : ndarray of shape (len(rows), n_outputs)
        The outputs for these rows, each computed before the model was trained on the row.
    step : int or None
        The number of sixteenths of a pass that are complete after these rows; None if the rows
        end within a sixteenth.
    """
    state = learner.start()
    steps = spine_steps(plan)
    begin = 0
    for node, phase in spine_phases(plan):
        if phase.n_rows > 0:
            ends = step_ends_within(steps, begin, phase.n_rows)
            rows, done = phase.rows, 0
            out = np.empty((phase.n_rows, learner.n_outputs), learner.dtype)
            if isinstance(learner, ModelTrainer):
                tested = test_then_train(learner, state, rows, ends, out)
            else:  # a learner that shares its models
                assert hasattr(learner, "test_phase")
                tested = learner.test_phase(state, phase, rows, ends, out)
            with closing(tested):
                for end in tested:
                    yield cut(rows, done, end), out[done:end], steps.get(begin + end)
                    done = end
        begin += phase.n_rows
        if learner.phases_may_be_cut:
            states[node] = learner.snapshot(state)


def step_ends_within(steps: dict[int, int], begin: int, n_rows: int) -> list[int]:
    """Return the ends of the steps inside a phase, and the end of the phase.

    They are counted in rows from the beginning of the phase. ``begin`` is the number of rows on
    the spine before the phase.
    """
    return [*(end - begin for end in steps if begin < end < begin + n_rows), n_rows]
