"""The plan of the tree, and the protocol of the learners that are trained by it.

A plan says which folds each node of the tree of Joulani, Gyorgy & Szepesvari (2015) holds out, and
which rows its children train on. It is immutable and knows nothing about learners.

Chunks are numbered from 0, and a node is a half-open range of them. The paper numbers from 1 and
includes both ends, so its (s, e) is our (first + 1, last).
"""

from dataclasses import dataclass
from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import runtime_checkable

import numpy as np

from optuna_treecv._kernels.order import order_with_replays
from optuna_treecv._kernels.order import random_order
from optuna_treecv.rows.data import PreparedRows

#: Prepared rows in training order: a range, or row numbers (uint32).
Rows = slice | np.ndarray


class Replays(NamedTuple):
    """The further updates of a phase of several epochs: replays of rows that the model may see.

    Each new row is followed by ``n_epochs - 1`` replays. They are drawn from the rows 0 to
    n_rows - 1 without those that are held out, held_start to held_stop - 1; new rows are among
    them. No row is drawn again before all have been.
    """

    n_epochs: int
    seed: int
    held_start: int
    held_stop: int
    n_rows: int


class Phase(NamedTuple):
    """A training phase: the rows start to stop - 1, in their prepared or in a random order.

    The random order follows from (seed, range, rows seen before). These numbers therefore identify
    the rows and their order; ``rows`` computes the order when it is needed. ``n_seen`` counts
    rows, not updates. With replays, the first of every ``n_epochs`` rows in order is a new one.
    """

    start: int
    stop: int
    n_seen: int = 0
    seed: int | None = None  # None: in prepared order
    replays: Replays | None = None

    @property
    def n_rows(self) -> int:
        """The number of new rows."""
        return self.stop - self.start

    @property
    def n_epochs(self) -> int:
        return 1 if self.replays is None else self.replays.n_epochs

    @property
    def n_updates(self) -> int:
        """The number of rows trained on, replays included."""
        return self.n_epochs * self.n_rows

    @property
    def rows(self) -> Rows:
        """The rows to train on, in their order."""
        replays = self.replays
        if replays is None:
            if self.seed is None or self.n_rows < 2:
                return slice(self.start, self.stop)
            rows = np.empty(self.n_rows, np.uint32)
            random_order(self.seed, self.start, self.stop, self.n_seen, rows)
            return rows
        rows = np.empty(self.n_updates, np.uint32)
        order_with_replays(
            replays.seed,
            self.start,
            self.stop,
            self.n_seen,
            self.seed is not None,
            replays.held_start,
            replays.held_stop,
            replays.n_rows,
            replays.n_epochs,
            rows,
        )
        return rows


def rows_of(phase: Phase | Rows) -> Rows:
    """Return the rows of a phase; rows are returned unchanged."""
    return phase.rows if isinstance(phase, Phase) else phase


def cut(rows: Rows, begin: int, end: int) -> Rows:
    """Return the rows begin to end - 1 among rows in their order."""
    if isinstance(rows, slice):
        return slice(rows.start + begin, rows.start + end)
    return rows[begin:end]


class Node(NamedTuple):
    """The held-out chunks first to last - 1; the node's model has seen all other rows."""

    first: int
    last: int

    @property
    def n_folds(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Partition:
    """How the rows are cut into chunks, and in which order they are trained on.

    Attributes
    ----------
    n_rows, n_folds : int
    bounds : ndarray of shape (n_folds + 1,), int64, or None
        The first row of each chunk. Rows before the first chunk are trained on by all models. None
        means that chunk i begins at ``i * n_rows // n_folds``; then the chunks of 2k folds
        subdivide those of k folds.
    random : bool
        Train on the rows of each phase in a new uniformly random order, else in prepared order.
    seed : int
        Seed of these orders and of replays, 64 bits.
    n_epochs : int
        The updates of a phase per row: one for the row itself, the others for replays.
    """

    n_rows: int
    n_folds: int
    bounds: np.ndarray | None = None
    random: bool = False
    seed: int = 0
    n_epochs: int = 1

    @property
    def root(self) -> Node:
        return Node(0, self.n_folds)

    def begin(self, chunk: int) -> int:
        """Return the first prepared row of a chunk."""
        return (
            chunk * self.n_rows // self.n_folds if self.bounds is None else int(self.bounds[chunk])
        )

    def begins(self, node: Node) -> np.ndarray:
        """Return the first prepared row of each chunk of a node, int64."""
        if self.bounds is not None:
            return self.bounds[node.first : node.last]
        return np.arange(node.first, node.last, dtype=np.int64) * self.n_rows // self.n_folds

    def rows(self, node: Node) -> tuple[int, int]:
        """Return (start, stop): a node holds out the prepared rows start to stop - 1."""
        return self.begin(node.first), self.begin(node.last)

    @property
    def first_phase(self) -> Phase:
        """The phase on which the root's model is trained, usually of no rows."""
        return self.phase_of(0, self.begin(0), 0, (self.begin(0), self.n_rows))

    def phase_of(self, start: int, stop: int, n_seen: int, held: tuple[int, int]) -> Phase:
        """Return the phase on the rows start to stop - 1.

        Parameters
        ----------
        start, stop : int
        n_seen : int
            The number of rows that the model has seen before.
        held : (int, int)
            The range of rows that the model holds out afterwards, so that no replay may be one of
            them: start and stop.
        """
        replays = Replays(self.n_epochs, self.seed, *held, self.n_rows)
        return Phase(
            start,
            stop,
            n_seen,
            self.seed if self.random else None,
            replays if self.n_epochs > 1 else None,
        )

    def split(self, node: Node) -> tuple[Node, Node]:
        """Return the children of a node.

        The last chunk of the left child is m = floor((s + e) / 2) of Algorithm 1.
        """
        middle = (node.first + node.last + 1) // 2
        return Node(node.first, middle), Node(middle, node.last)

    def phase(self, parent: Node, child: Node) -> Phase:
        """Return the phase that turns the model of ``parent`` into that of ``child``.

        It consists of the rows that only the parent holds out.
        """
        start, stop = self.rows(parent)
        n_seen = self.n_rows - (stop - start)
        if child.first == parent.first:
            start = self.begin(child.last)
        else:
            stop = self.begin(child.first)
        return self.phase_of(start, stop, n_seen, self.rows(child))

    def rest(self, fold: Node, epoch: int = 0) -> np.ndarray:
        """Return all rows that ``fold`` does not hold out, for the standard method.

        Epochs after the first one have random orders of their own. A random order is drawn for the
        range that begins after the fold and wraps around at the last row.
        """
        start, stop = self.rows(fold)
        if not self.random and epoch == 0:
            everything = np.arange(self.n_rows, dtype=np.uint32)
            return np.concatenate([everything[:start], everything[stop:]])
        rows = np.empty(self.n_rows - (stop - start), np.uint32)
        random_order(self.seed, stop, start + self.n_rows, epoch * len(rows), rows)
        return np.where(rows < self.n_rows, rows, rows - np.uint32(self.n_rows))

    def blocks(self, most: int) -> list[Node]:
        """Return the subtrees at the greatest depth with at most ``most`` of them, from the left.

        ``most`` is at least 1. A leaf above that depth is a block of its own.
        """
        nodes = [self.root]
        while len(nodes) < self.n_folds:
            below = [
                child
                for node in nodes
                for child in (self.split(node) if node.n_folds > 1 else (node,))
            ]
            if len(below) > most:
                break
            nodes = below
        return nodes


# A learner is an estimator's settings bound to prepared rows. Training changes a *state*, which
# depends on the settings and on the rows fed so far, in their order, and on nothing else. A state
# is cheap to copy, and the tree depends on that.


class Trainer(Protocol):
    """What the walk asks of a learner."""

    rows: PreparedRows

    def start(self) -> Any:
        """Return the state before the first row."""

    def update(self, state: Any, phase: Phase | Rows) -> None:
        """Train a state in place on the rows of a phase, or on given rows, in their order."""

    def snapshot(self, state: Any) -> Any:
        """Return a copy of a state that can be trained independently."""


class Learner(Trainer, Protocol):
    """A learner over prepared rows: it trains, and its models can be tested."""

    #: How many numbers ``outputs`` writes per row, and their type.
    n_outputs: int
    dtype: np.dtype

    def outputs(self, state: Any, start: int, stop: int, out: np.ndarray) -> None:
        """Write the model's outputs for the rows start to stop - 1 into the same rows of ``out``.

        ``out`` is of shape (n_rows, n_outputs) and type ``dtype``.
        """

    #: Whether a state is the same if a phase is trained in several parts.
    phases_may_be_cut: bool

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Turn outputs (rows, n_outputs) into the response that a loss needs.

        ``method`` is one of "predict" (class codes or numbers), "decision_function",
        "predict_proba" and "distance".
        """

    def estimator(self, state: Any) -> Any:
        """Return a fitted scikit-learn estimator with this state's model.

        None if the model is not finite.
        """

    def score_rows(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return X and y of the rows start to stop - 1 in the form that a scorer takes."""


@runtime_checkable
class ModelTrainer(Trainer, Protocol):
    """A learner that holds its models itself, instead of sharing those of other trials.

    It trains a state on rows again, or on each row after it has tested it. Its models are vectors
    of numbers, so that they can be averaged.
    """

    def replay(self, state: Any, rows: Rows) -> None:
        """Train a state in place on rows that it has seen before, in their order.

        What is counted once per row, such as the moments of a step that scales, stays as it is.
        """

    def test_then_train(self, state: Any, rows: Rows, out: np.ndarray) -> None:
        """Train a state in place on rows in their order, and write what its model says of them.

        It says so of each row before the row acts; a learner that is trained on whole blocks says
        so of all ``rows`` before any of them acts. ``out`` is of shape (len(rows), n_outputs).
        """

    def numbers(self, state: Any) -> np.ndarray:
        """Return the numbers of a state's model, float64; NaN if it is not finite."""

    def with_numbers(self, numbers: np.ndarray) -> Any:
        """Return a fitted estimator whose model has these numbers."""


@runtime_checkable
class PairTrainer(Trainer, Protocol):
    """A learner that may train two states at once, interleaving their instructions."""

    @property
    def trains_pairs(self) -> bool:
        """Whether training two states at once is possible, and faster than one by one."""

    def update_both(
        self, first: Any, phase: Phase | Rows, second: Any, other: Phase | Rows
    ) -> None:
        """Train two states in place, each on the rows of a phase, or on given rows."""


class Part(NamedTuple):
    """A state, and the rows begin to end - 1 of a phase, on which it is to be trained."""

    state: Any
    phase: Phase
    begin: int
    end: int


class PartTrainer(Trainer, Protocol):
    """A learner that is trained part by part of a phase, from the left."""

    trains_pairs: bool

    def update_part(self, part: Part) -> None:
        """Train a state in place on a part of a phase."""

    def update_both_parts(self, part: Part, other: Part) -> None:
        """Train two states in place, each on its part, where ``trains_pairs``."""


#: Its name in pickles of earlier versions.
Plan = Partition
