"""The memory layout of prepared rows, and sparse rows for kernels."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse


@dataclass(frozen=True)
class RowLayout:
    """The layout of the rows that a learner needs.

    Attributes
    ----------
    padded : bool
        Copy the rows into one block of memory, float64 or float32, padded with zeros to a multiple
        of 8 columns. Otherwise the rows keep their form: an array, a sparse matrix or a data
        frame.
    sparse : bool
        With ``padded``: also accept sparse rows, as ``SparseRows``.
    intercept : bool
        With ``padded``: add a column of ones after the features.
    target : {"class", "number"} or None
        The targets of predictions: class codes 0, 1, ... (int32), or float64, which may
        have several columns. A padded learner trains on the codes, or on the numbers in the type
        of X.
    missing : bytes
        With ``padded``: one byte per feature, not 0 if values may be missing (NaN). If empty, no
        values may be missing. In sparse rows, such features must be dense columns.
    beside : bytes
        With ``sparse``: one byte per feature, not 0 if it is a dense column next to the sparse
        rows. If empty, there are no dense columns.
    """

    padded: bool = False
    sparse: bool = False
    intercept: bool = False
    target: str | None = None
    missing: bytes = b""
    beside: bytes = b""


@dataclass(frozen=True)
class SparseRows:
    """Sparse rows in CSR format; the columns of each row are in ascending order.

    Columns without zeros may be stored separately as dense columns.

    Attributes
    ----------
    values : ndarray of shape (n_nonzeros,), float64 or float32
    columns : ndarray of shape (n_nonzeros,), int32
    begins : ndarray of shape (n_rows + 1,), int64
        Row i is ``values[begins[i]:begins[i + 1]]``.
    shape : (n_rows, a multiple of 8)
    dense : ndarray of shape (n_rows, a multiple of 8) or None
        The dense columns, padded with zeros.
    """

    values: np.ndarray
    columns: np.ndarray
    begins: np.ndarray
    shape: tuple[int, int]
    dense: np.ndarray | None = None

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    def __getitem__(self, rows: slice | np.ndarray) -> "SparseRows":
        """Return the rows of a slice or of an array of row indices."""
        at: slice | np.ndarray
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            begins = self.begins[start : stop + 1]
            at, begins = slice(begins[0], begins[-1]), begins - begins[0]
        else:
            rows = rows.astype(np.intp)
            sizes = self.begins[rows + 1] - self.begins[rows]
            begins = np.append(0, np.cumsum(sizes))
            at = np.arange(begins[-1]) + np.repeat(self.begins[rows] - begins[:-1], sizes)
        shape = len(begins) - 1, self.shape[1]
        dense = None if self.dense is None else self.dense[rows]
        return SparseRows(self.values[at], self.columns[at], begins, shape, dense)

    def as_given(self, start: int, stop: int, n_features: int) -> sparse.csr_array:
        """Return the rows start to stop - 1 without the intercept column."""
        rows = self[start:stop]
        parts = rows.values, rows.columns, rows.begins
        return sparse.csr_array(parts, shape=rows.shape)[:, :n_features]
