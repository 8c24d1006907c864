"""The plan of the tree: which folds each node holds out, and which rows its children train on.

It is the tree of Joulani, Gyorgy & Szepesvari (2015). A plan is immutable and knows nothing about
learners.

Chunks are numbered from 0, and a node is a half-open range of them. The paper numbers from 1 and
includes both ends, so its (s, e) is our (first + 1, last).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optuna_treecv._kernels.order import random_order

#: Prepared rows in training order: a range, or row numbers (uint32).
Rows = slice | np.ndarray


class Phase(NamedTuple):
    """A training phase: the rows start to stop - 1, in their prepared or in a random order.

    The random order follows from (seed, range, rows seen before). These numbers therefore identify
    the rows and their order; ``rows`` computes the order when it is needed.
    """

    start: int
    stop: int
    n_seen: int = 0
    seed: int | None = None  # None: in prepared order

    @property
    def n_rows(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> Rows:
        if self.seed is None or self.n_rows < 2:
            return slice(self.start, self.stop)
        rows = np.empty(self.n_rows, np.uint32)
        random_order(self.seed, self.start, self.stop, self.n_seen, rows)
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
class Plan:
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
        Seed of these orders, 64 bits.
    """

    n_rows: int
    n_folds: int
    bounds: np.ndarray | None = None
    random: bool = False
    seed: int = 0

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
        return Phase(0, self.begin(0), 0, self.seed if self.random else None)

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
        return Phase(start, stop, n_seen, self.seed if self.random else None)

    def rest(self, fold: Node) -> np.ndarray:
        """Return all rows that ``fold`` does not hold out, for the standard method.

        A random order is drawn for the range that begins after the fold and wraps around at the
        last row.
        """
        start, stop = self.rows(fold)
        if not self.random:
            everything = np.arange(self.n_rows, dtype=np.uint32)
            return np.concatenate([everything[:start], everything[stop:]])
        rows = np.empty(self.n_rows - (stop - start), np.uint32)
        random_order(self.seed, stop, start + self.n_rows, 0, rows)
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
