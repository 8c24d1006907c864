"""The walk over the tree for rows on disk: all models that need a block use the same reading.

If the rows consist of B blocks, each of which fits into memory, a depth-first walk reads the rows
1 + log2(B) times. A sweep instead reads the blocks in a cycle, and trains every model that needs
the current block next. Reading the left half of the rows that a node holds out trains its right
child. Reading the right half next trains the left child, and in the same reading the descendants
of the right child. This reduces the readings to 1 + log2(B) / 2. Each model still sees the same
rows in the same order.
"""

from bisect import bisect_left
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from optuna_treecv.engines.treecv.learner import Part
from optuna_treecv.engines.treecv.learner import PartTrainer
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.rows.partition import Phase
from optuna_treecv.rows.row_file import RowFile


@dataclass
class Waiting:
    """A model that waits for the next rows on which it will be trained or tested.

    Attributes
    ----------
    node : Node
        The node whose model it is, or will be after training on ``phase``.
    state : state
    phase : Phase or None
        The phase on which the model is being trained. None if it waits for its test rows.
    start, stop : int
        The rows start to stop - 1 remain.
    """

    node: Node
    state: Any
    phase: Phase | None
    start: int
    stop: int


def piece_bounds(plan: Partition, n_block: int) -> list[int]:
    """Divide the rows into pieces of about ``n_block`` rows; return the bounds of the pieces.

    A node that holds out at most one and a half blocks of rows becomes a single piece, because
    each further level at which the tree is divided into pieces costs half a reading of the rows.
    The rows of larger nodes consist of whole pieces.
    """
    bounds = [*range(0, plan.begin(0), n_block)]
    nodes = [plan.root]
    while nodes:
        node = nodes.pop()
        start, stop = plan.rows(node)
        if stop - start <= n_block * 3 // 2:
            bounds.append(start)
        elif node.n_folds > 1:
            nodes += reversed(plan.split(node))
        else:
            bounds += range(start, stop, n_block)
    return [*bounds, plan.n_rows]


class Descent:
    """The progress of a walk over a tree: which models wait for which piece of the rows.

    Parameters
    ----------
    plan : Partition
        A partition with prepared order and one epoch.
    bounds : list of int
        The bounds of the pieces.
    copy : callable
        Returns a copy of a state.
    ends : collection of Node
        The nodes at which the walk stops, whose models are tested on all rows that they hold out.
    """

    def __init__(
        self,
        plan: Partition,
        bounds: list[int],
        copy: Callable[[Any], Any],
        ends: Collection[Node] = (),
    ) -> None:
        self.bounds = bounds
        self.waiting: dict[int, list[Waiting]] = defaultdict(list)
        self.plan = plan
        self._copy = copy
        self._ends = frozenset(ends)

    def begin(self, state: Any) -> None:
        """Add an untrained model, which the first phase trains to the model of the root."""
        phase = self.plan.first_phase
        self._enqueue(Waiting(self.plan.root, state, phase, phase.start, phase.stop))

    def add(self, node: Node, state: Any, parent: Node | None = None) -> None:
        """Add a node with its model, or with that of ``parent``, which must be trained first."""
        if parent is not None:
            phase = self.plan.phase(parent, node)
            self._enqueue(Waiting(node, state, phase, phase.start, phase.stop))
            return
        start, stop = self.plan.rows(node)
        is_whole = not self._ends and self._piece_of_row(start) == self._piece_of_row(stop - 1)
        if node in self._ends or node.n_folds == 1 or is_whole:
            self._enqueue(Waiting(node, state, None, start, stop))
            return
        left, right = self.plan.split(node)
        self.add(left, self._copy(state), node)
        self.add(right, state, node)

    def advance(self, model: Waiting, stop: int) -> bool:
        """Record that a model has been trained or tested on the rows up to ``stop``.

        Return whether the model has now been tested on all rows that its node holds out.
        """
        model.start = stop
        if model.start < model.stop:
            self._enqueue(model)
            return False
        if model.phase is not None:
            self.add(model.node, model.state)
        return model.phase is None

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the next piece to read and the piece after it, until no model waits any more.

        Pieces that no model waits for are skipped. After the last piece, the first one is next.
        """
        piece = 0
        while self.waiting:
            waiting = sorted(self.waiting)
            piece = next((p for p in waiting if p >= piece), waiting[0])
            yield piece, next((p for p in waiting if p > piece), waiting[0])

    def n_to_read(self) -> int:
        """Simulate the remaining walk; return the number of rows that it reads."""
        n_rows = 0
        for piece, _ in self.pieces():
            stop = self.bounds[piece + 1]
            n_rows += stop - self.bounds[piece]
            while models := self.waiting.pop(piece, []):
                for model in models:
                    self.advance(model, min(stop, model.stop))
        return n_rows

    def _enqueue(self, model: Waiting) -> None:
        if model.start == model.stop:  # a phase without rows
            self.add(model.node, model.state)
        else:
            self.waiting[self._piece_of_row(model.start)].append(model)

    def _piece_of_row(self, row: int) -> int:
        return bisect_right(self.bounds, row) - 1


class Sweep(Descent):
    """A walk over a tree for rows on disk, which are read piece by piece in a cycle.

    Parameters
    ----------
    plan : Partition
        A partition with prepared order and one epoch.
    learner : PartTrainer
    test : callable
        A function (node, state, start, stop) -> number of row updates. It tests all folds of a
        node. For a single fold or a node in ``ends``, it may be called several times, each time
        with further rows start to stop - 1. The call with the last rows may modify the state.
    ends : collection of Node
        The nodes at which the walk stops.
    file : RowFile
        The file that contains the rows.
    pool : Executor or None
        Trains and tests the models that need the same piece in several threads. None for one
        thread.

    Attributes
    ----------
    tested : list of Node
        The nodes whose folds have all been tested.
    """

    def __init__(
        self,
        plan: Partition,
        learner: PartTrainer,
        test: Callable[[Node, Any, int, int], int],
        ends: Collection[Node],
        file: RowFile,
        pool: Executor | None = None,
    ) -> None:
        super().__init__(plan, piece_bounds(plan, file.n_block), learner.snapshot, ends)
        self.tested: list[Node] = []
        self._learner = learner
        self._test = test
        self._file = file
        self._map = map if pool is None else pool.map

    def expect(self) -> None:
        """Tell the file how many rows will be read, for its progress reports."""

        def n_to_read() -> int:
            other = Descent(self.plan, self.bounds, lambda _: None, self._ends)
            for piece, models in self.waiting.items():
                other.waiting[piece] = [replace(model, state=None) for model in models]
            return other.n_to_read()

        self._file.expect("models are trained", n_to_read)

    def rounds(self) -> Generator[int]:
        """Read pieces until all folds have been tested; yield the row updates of each piece."""
        pieces = [*pairwise(self.bounds)]
        try:
            for piece, following in self.pieces():
                prefetched = (0, 0) if following == piece else pieces[following]
                self._file.hold(*pieces[piece], prefetched)
                n_updates = 0
                # After these models, their children may need the same piece.
                while models := self.waiting.pop(piece, []):
                    n_updates += self._process(models, self.bounds[piece + 1])
                yield n_updates
        finally:
            self._file.release()

    def _process(self, models: list[Waiting], stop: int) -> int:
        """Train and test models on rows before ``stop``; return the number of row updates."""
        calls: list[Callable[[], int]] = []
        parts: list[Part] = []
        for model in models:
            start, end, phase = model.start, min(stop, model.stop), model.phase
            if phase is None:
                calls.append(partial(self._test, model.node, model.state, start, end))
            else:
                parts.append(Part(model.state, phase, start - phase.start, end - phase.start))
        size = 2 if self._learner.trains_pairs else 1
        calls += [partial(self._train, *parts[i : i + size]) for i in range(0, len(parts), size)]
        n_updates = sum(self._map(lambda call: call(), calls))
        for model in models:
            if self.advance(model, min(stop, model.stop)):
                self.tested.append(model.node)
        return n_updates

    def _train(self, *parts: Part) -> int:
        if len(parts) == 2:
            self._learner.update_both_parts(*parts)
        else:
            self._learner.update_part(*parts)
        return sum(part.end - part.begin for part in parts)


def rows_to_read(plan: Partition, n_block: int) -> int:
    """Return how many rows a sweep over a whole tree reads, with blocks of ``n_block`` rows."""
    descent = Descent(plan, piece_bounds(plan, n_block), lambda _: None)
    descent.begin(None)
    return descent.n_to_read()


def sweep_tree(sweep: Sweep, blocks: Sequence[Node]) -> Generator[tuple[Node, int]]:
    """Yield each block with its row updates, from the left, as ``walk_tree`` does."""
    sweep.expect()
    firsts, n_left = [block.first for block in blocks], [block.n_folds for block in blocks]
    n_done = n_seen = n_updates = 0
    for n_more in sweep.rounds():
        n_updates += n_more
        for node in sweep.tested[n_seen:]:  # a node lies inside a block, or consists of blocks
            begin, end = bisect_right(firsts, node.first) - 1, bisect_left(firsts, node.last)
            for number, block in enumerate(blocks[begin:end], begin):
                n_left[number] -= min(node.last, block.last) - max(node.first, block.first)
        n_seen = len(sweep.tested)
        while n_done < len(blocks) and n_left[n_done] == 0:
            yield blocks[n_done], n_updates
            n_done, n_updates = n_done + 1, 0
