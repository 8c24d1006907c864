"""What exact folds are cut into, and how their rows are read."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import SparseRows

#: The prepared rows of a training or a test set.
RowNumbers = slice | np.ndarray

#: The rows of one block of float64, so that no copy of all rows is ever widened. With a hundred
#: columns it fits into a second-level cache.
BLOCK = 1024

#: (name, size, make) -> a read-only array of ``size`` float64. ``make`` fills a new one where none
#: is kept under this name.
Keep = Callable[[str, int, Callable[[np.ndarray], None]], np.ndarray]


#: Several consecutive chunks, and what models say of their test rows: an array of shape
#: (n_points, n_rows, n_outputs), for the rows of ``Chunks.test_rows``; not finite where a model is
#: not.
TestedChunks = tuple[slice, np.ndarray]


@dataclass(frozen=True)
class Chunks:
    """The training and the test rows of each fold, as numbers of prepared rows.

    Attributes
    ----------
    n_rows : int
        The number of prepared rows.
    bounds : ndarray of shape (n_chunks + 1,), int64
        The tested rows ``bounds[c]`` to ``bounds[c + 1] - 1`` are those of chunk c.
    tested : ndarray of shape (bounds[-1],) or None
        The prepared row behind each tested row; None: the same.
    trains : list of (int or ndarray) or None
        The prepared rows that each model is trained on; an int n means the first n rows. None: all
        rows outside of the chunk.
    """

    n_rows: int
    bounds: np.ndarray
    tested: np.ndarray | None = None
    trains: list[int | np.ndarray] | None = None

    @property
    def n_chunks(self) -> int:
        return len(self.bounds) - 1

    @property
    def are_single_rows(self) -> bool:
        """Whether each model is trained on all rows but one, and every row is left out once."""
        return self.trains is None and self.n_chunks == self.n_rows

    @property
    def sizes(self) -> np.ndarray:
        """The number of test rows of each chunk."""
        return np.diff(self.bounds)

    @property
    def n_read(self) -> int:
        """How many rows are read for the sums of all training sets."""
        if self.trains is None:
            return self.n_rows if self.n_chunks > 1 else int(self.bounds[0])
        sizes = [one for one in self.trains if isinstance(one, int)]
        if len(sizes) == len(self.trains) and sizes == sorted(sizes):
            return sizes[-1]
        return sum(one if isinstance(one, int) else len(one) for one in self.trains)

    def train_parts(self, chunk: int) -> list[RowNumbers]:
        """Return the prepared rows that a chunk's model is trained on."""
        if self.trains is None:
            start, stop = int(self.bounds[chunk]), int(self.bounds[chunk + 1])
            return [slice(0, start), slice(stop, self.n_rows)]
        rows = self.trains[chunk]
        return [slice(0, rows) if isinstance(rows, int) else rows]

    def test_rows(self, first: int, last: int) -> RowNumbers:
        """Return the prepared rows that the chunks ``first`` to ``last - 1`` test."""
        part = slice(int(self.bounds[first]), int(self.bounds[last]))
        return part if self.tested is None else self.tested[part]

    def groups(self, most_rows: int, most_chunks: int) -> Iterator[tuple[int, int]]:
        """Yield the first and the last + 1 of consecutive chunks that have so many test rows."""
        first = 0
        while first < self.n_chunks:
            most = np.searchsorted(self.bounds, self.bounds[first] + most_rows, side="right")
            last = max(first + 1, min(int(most) - 1, first + most_chunks, self.n_chunks))
            yield first, last
            first = last


def blocks(part: RowNumbers, size: int = BLOCK) -> Iterator[RowNumbers]:
    """Cut row numbers into blocks; a slice is cut into slices."""
    if isinstance(part, slice):
        for start in range(part.start, part.stop, size):
            yield slice(start, min(start + size, part.stop))
        return
    for start in range(0, len(part), size):
        yield part[start : start + size]


def n_rows_of(part: RowNumbers) -> int:
    """Return how many rows there are."""
    return part.stop - part.start if isinstance(part, slice) else len(part)


def copy_rows(rows: PreparedRows, part: RowNumbers, out: np.ndarray) -> None:
    """Copy the features of some rows, dense or sparse, into an array (n_rows, n_features)."""
    X = rows.X
    if not isinstance(X, SparseRows):
        out[:] = X[part, : rows.n_features]
        return
    if isinstance(part, slice):
        out[:] = X.as_given(part.start, part.stop, rows.n_features).toarray()
        return
    low, high = int(part.min()), int(part.max()) + 1
    out[:] = X.as_given(low, high, rows.n_features)[part.astype(np.intp) - low].toarray()
