"""Blocks of prepared rows as float64, so that no copy of all rows is ever widened."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import SparseRows

#: The rows of one block. With a hundred columns it fits into a second-level cache.
BLOCK = 1024


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
