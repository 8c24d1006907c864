"""The tree of Joulani, Gyorgy & Szepesvari (2015): which chunks a node holds out, and what its
children train on.

Frozen data: no learner, no clock. Chunks are numbered from 0 and a node is a half-open range of
them; the paper numbers from 1 and writes both ends, so its (s, e) is our (first + 1, last).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optuna_treecv._kernels.order import random_order

#: Prepared rows, in order: a range of them, or their numbers (uint32).
Rows = slice | np.ndarray


class Phase(NamedTuple):
    """A training phase: the rows start..stop-1, as they lie or in an order of their own.

    The order is drawn from (seed, range, rows seen before), so these numbers stand for the rows;
    they are written out when somebody trains on them.
    """

    start: int
    stop: int
    n_seen: int = 0
    seed: int | None = None  # None: as they lie

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
    """The rows of a phase, or rows as they are."""
    return phase.rows if isinstance(phase, Phase) else phase


class Node(NamedTuple):
    """Chunks first..last-1, held out; the model that belongs here has seen all the other rows."""

    first: int
    last: int

    @property
    def n_folds(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Plan:
    """How the rows are cut and fed.

    Attributes
    ----------
    n_rows, n_folds : int
    bounds : ndarray of shape (n_folds + 1,), int64, or None
        Where chunks begin; None: chunk i begins at ``i * n_rows // n_folds``, so that powers of
        two nest.
    random : bool
        Feed the rows of a training phase in a fresh uniformly random order, else as they lie.
    seed : int
        Of those orders, 64 bits.
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
        """The first prepared row of a chunk."""
        return (
            chunk * self.n_rows // self.n_folds if self.bounds is None else int(self.bounds[chunk])
        )

    def begins(self, node: Node) -> np.ndarray:
        """The first prepared row of each chunk of a node, int64."""
        if self.bounds is not None:
            return self.bounds[node.first : node.last]
        return np.arange(node.first, node.last, dtype=np.int64) * self.n_rows // self.n_folds

    def rows(self, node: Node) -> tuple[int, int]:
        """The prepared rows start..stop-1 that a node holds out."""
        return self.begin(node.first), self.begin(node.last)

    def split(self, node: Node) -> tuple[Node, Node]:
        """The children of a node: Algorithm 1's m = floor((s + e) / 2) is the last chunk of the
        left one.
        """
        middle = (node.first + node.last + 1) // 2
        return Node(node.first, middle), Node(middle, node.last)

    def phase(self, parent: Node, child: Node) -> Phase:
        """What turns the model of ``parent`` into that of ``child``: the rows that only the
        parent holds out.
        """
        start, stop = self.rows(parent)
        n_seen = self.n_rows - (stop - start)
        if child.first == parent.first:
            start = self.begin(child.last)
        else:
            stop = self.begin(child.first)
        return Phase(start, stop, n_seen, self.seed if self.random else None)

    def rest(self, fold: Node) -> np.ndarray:
        """All rows that ``fold`` does not hold out, as the standard method trains on them at once.

        The random order belongs to the range that begins behind the fold and wraps around at the
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
        """The subtrees at the greatest depth where they are at most ``most`` (at least 1), from
        the left.

        A leaf above that depth is a block of its own.
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
