"""The nonzero numbers of prepared rows, dense or sparse, in blocks of float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse

from optuna_treecv.learners.exact.blocks import blocks
from optuna_treecv.learners.exact.blocks import n_rows_of
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import SparseRows

#: The numbers of one block, which take a few megabytes together with their columns.
BLOCK = 2**18


class Nonzeros(NamedTuple):
    """The nonzero numbers of some rows, row after row.

    Attributes
    ----------
    part : slice or ndarray
        The prepared rows.
    values : ndarray of shape (n_nonzeros,), float64
    columns : ndarray of shape (n_nonzeros,), int
        In ascending order within each row.
    begins : ndarray of shape (n_rows + 1,), int64
        Row i holds ``values[begins[i]:begins[i + 1]]``.
    """

    part: RowNumbers
    values: np.ndarray
    columns: np.ndarray
    begins: np.ndarray

    @property
    def n_rows(self) -> int:
        return len(self.begins) - 1

    def behind(self, of_rows: np.ndarray) -> np.ndarray:
        """Repeat what belongs to a row for each of its numbers."""
        return np.repeat(of_rows, np.diff(self.begins))

    def row_sums(self) -> np.ndarray:
        """Return the sum of each row."""
        return np.bincount(self.behind(np.arange(self.n_rows)), self.values, self.n_rows)

    def as_matrix(self, places: np.ndarray, n_places: int) -> sparse.csr_array:
        """Return the rows as a matrix whose columns are given places."""
        begins = self.begins.astype(places.dtype, copy=False)
        return sparse.csr_array((self.values, places, begins), shape=(self.n_rows, n_places))

    def above(self, threshold: float) -> Nonzeros:
        """Return ones in place of the numbers above a threshold, and nothing for the others."""
        is_above = self.values > threshold
        begins = np.concatenate([[0], np.cumsum(is_above)])[self.begins]
        return Nonzeros(self.part, np.ones(begins[-1]), self.columns[is_above], begins)


def count_nonzeros(rows: PreparedRows, part: RowNumbers) -> np.ndarray:
    """Return the numbers that each row takes in a block; of dense rows, all of them."""
    if isinstance(rows.X, SparseRows):
        if isinstance(part, slice):
            return np.diff(rows.X.begins[part.start : part.stop + 1])
        return rows.X.begins[part + 1] - rows.X.begins[part]
    return np.full(n_rows_of(part), rows.n_features)


def nonzeros(rows: PreparedRows, part: RowNumbers, size: int = BLOCK) -> Iterator[Nonzeros]:
    """Yield the nonzero numbers of some rows in blocks of about ``size`` numbers."""
    if not isinstance(rows.X, SparseRows):
        for some in blocks(part, max(1, size // rows.n_features)):
            yield _of_dense(rows, some)
        return
    ends = np.cumsum(count_nonzeros(rows, part))
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + size, side="right")))
        if isinstance(part, slice):
            yield _of_sparse(rows.X, slice(part.start + start, part.start + stop))
        else:
            yield _of_sparse(rows.X, part[start:stop])
        start = stop


def _of_dense(rows: PreparedRows, part: RowNumbers) -> Nonzeros:
    block = np.asarray(rows.X[part, : rows.n_features])
    is_nonzero = block != 0
    begins = np.concatenate([[0], np.cumsum(np.count_nonzero(is_nonzero, axis=1))])
    values = block[is_nonzero].astype(np.float64, copy=False)
    return Nonzeros(part, values, np.nonzero(is_nonzero)[1], begins)


def _of_sparse(X: SparseRows, part: RowNumbers) -> Nonzeros:
    if isinstance(part, slice):
        begins = X.begins[part.start : part.stop + 1]
        where: RowNumbers = slice(int(begins[0]), int(begins[-1]))
        begins = begins - begins[0]
    else:
        lengths = X.begins[part + 1] - X.begins[part]
        begins = np.concatenate([[0], np.cumsum(lengths)])
        where = np.repeat(X.begins[part] - begins[:-1], lengths) + np.arange(begins[-1])
    values = X.values[where].astype(np.float64, copy=False)
    return Nonzeros(part, values, X.columns[where], begins)
