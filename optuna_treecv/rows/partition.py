"""The partition of the rows by the tree: which folds a node holds out, and the training phases.

The tree is the one of Joulani, Gyorgy & Szepesvari (2015). A partition is immutable and does not
depend on a learner.

Chunks are numbered from 0, and a node is a half-open range of chunks. The paper numbers chunks
from 1 and includes both ends, so (s, e) in the paper is (first + 1, last) here.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optuna_treecv._kernels.order import order_with_replays
from optuna_treecv._kernels.order import random_order

#: Prepared rows in training order: a range, or an array of row indices (uint32).
Rows = slice | np.ndarray


class Replays(NamedTuple):
    """Repeated updates in a phase with several epochs, by rows that are not held out.

    Each new row is followed by ``n_epochs - 1`` replays. They are drawn without replacement from
    the rows 0 to n_rows - 1 except the held-out rows held_start to held_stop - 1; new rows are
    included. The draws start again after all rows have been drawn.
    """

    n_epochs: int
    seed: int
    held_start: int
    held_stop: int
    n_rows: int


class Phase(NamedTuple):
    """A training phase: the prepared rows start to stop - 1, in prepared or in random order.

    The random order depends only on the seed, the range and ``n_seen``, the number of rows (not
    updates) seen before. Therefore these numbers identify the rows and their order, which ``rows``
    computes on demand. With replays, the first of every ``n_epochs`` rows is a new row.
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
        """The number of rows trained on, including replays."""
        return self.n_epochs * self.n_rows

    @property
    def rows(self) -> Rows:
        """The rows to train on, in training order."""
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
    """Return the rows of a phase; return rows unchanged."""
    return phase.rows if isinstance(phase, Phase) else phase


def cut(rows: Rows, begin: int, end: int) -> Rows:
    """Return the elements begin to end - 1 of a sequence of rows."""
    if isinstance(rows, slice):
        return slice(rows.start + begin, rows.start + end)
    return rows[begin:end]


class Node(NamedTuple):
    """A node of the tree. Its model is trained on all rows except the chunks first to last - 1."""

    first: int
    last: int

    @property
    def n_folds(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Partition:
    """The partition of the rows into chunks, and the training order of the rows.

    Attributes
    ----------
    n_rows, n_folds : int
    bounds : ndarray of shape (n_folds + 1,), int64, or None
        The first row of each chunk. Rows before the first chunk are in all training sets. None:
        chunk i begins at ``i * n_rows // n_folds``, so that the chunks of 2k folds subdivide those
        of k folds.
    random : bool
        Whether the rows of each phase are in a new uniformly random order, else in prepared order.
    seed : int
        The 64-bit seed of these orders and of replays.
    n_epochs : int
        The number of updates per row in a phase: one with the row itself, the others are replays.
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
        """Return the offset of a chunk: the index of its first prepared row."""
        return (
            chunk * self.n_rows // self.n_folds if self.bounds is None else int(self.bounds[chunk])
        )

    def begins(self, node: Node) -> np.ndarray:
        """Return the offset of each chunk of a node (int64)."""
        if self.bounds is not None:
            return self.bounds[node.first : node.last]
        return np.arange(node.first, node.last, dtype=np.int64) * self.n_rows // self.n_folds

    def rows(self, node: Node) -> tuple[int, int]:
        """Return (start, stop) of the prepared rows that a node holds out."""
        return self.begin(node.first), self.begin(node.last)

    @property
    def first_phase(self) -> Phase:
        """The training phase of the root's model, which usually has no rows."""
        return self.phase_of(0, self.begin(0), 0, (self.begin(0), self.n_rows))

    def phase_of(self, start: int, stop: int, n_seen: int, held: tuple[int, int]) -> Phase:
        """Return the training phase for the prepared rows start to stop - 1.

        Parameters
        ----------
        start, stop : int
        n_seen : int
            The number of rows that the model has seen before.
        held : (int, int)
            The range (start, stop) of rows that the model holds out after the phase, which must
            not be replayed.
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

        The last chunk of the left child is m = floor((s + e) / 2) in Algorithm 1.
        """
        middle = (node.first + node.last + 1) // 2
        return Node(node.first, middle), Node(middle, node.last)

    def phase(self, parent: Node, child: Node) -> Phase:
        """Return the phase that trains the model of ``parent`` into the model of ``child``.

        The phase consists of the rows that the parent holds out and the child does not.
        """
        start, stop = self.rows(parent)
        n_seen = self.n_rows - (stop - start)
        if child.first == parent.first:
            start = self.begin(child.last)
        else:
            stop = self.begin(child.first)
        return self.phase_of(start, stop, n_seen, self.rows(child))

    def rest(self, fold: Node, epoch: int = 0) -> np.ndarray:
        """Return all training rows of a fold, for method="standard".

        Each epoch after the first one has a new random order. It is drawn for the range of rows
        that starts after the fold and wraps around at the last row.
        """
        start, stop = self.rows(fold)
        if not self.random and epoch == 0:
            everything = np.arange(self.n_rows, dtype=np.uint32)
            return np.concatenate([everything[:start], everything[stop:]])
        rows = np.empty(self.n_rows - (stop - start), np.uint32)
        random_order(self.seed, stop, start + self.n_rows, epoch * len(rows), rows)
        return np.where(rows < self.n_rows, rows, rows - np.uint32(self.n_rows))

    def blocks(self, most: int) -> list[Node]:
        """Return the subtrees at the greatest depth that has at most ``most`` subtrees.

        ``most`` must be at least 1. A leaf above this depth is a separate subtree.
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


#: The name of ``Partition`` in pickles of earlier versions.
Plan = Partition
