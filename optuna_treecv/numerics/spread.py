"""Read rows in blocks, and compute the statistics of their columns.

The statistics, a ``Spread``, are those that a ``StandardScaler`` needs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.types import Array
from optuna_treecv.types import Opaque

#: The rows of a training or test set: a slice, or an array of row indices. They refer to the
#: prepared rows, which are in the order of the folds.
RowIndices = slice | Array

#: The number of rows that are converted to float64 together, which avoids a copy of all rows. With
#: a hundred columns, a block fits into a second-level cache.
BLOCK = 1024


def blocks(rows: RowIndices, size: int = BLOCK) -> Iterator[RowIndices]:
    """Divide row indices into blocks of at most ``size``; a slice is divided into slices."""
    if isinstance(rows, slice):
        for start in range(rows.start, rows.stop, size):
            yield slice(start, min(start + size, rows.stop))
        return
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def count_rows(rows: RowIndices) -> int:
    """Return the number of rows in a slice or an array of row indices."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


class Spread(NamedTuple):
    """The mean, sum of squares, minimum and maximum of each column.

    Attributes
    ----------
    n_rows : int or ndarray of shape (n_columns,)
        The number of values. It may differ between columns, for example without missing values.
    mean : ndarray of shape (n_columns,)
    squares : ndarray of shape (n_columns,)
        The sum of squared differences from the mean. That of a constant column need not be 0 in
        floating point.
    low, high : ndarray of shape (n_columns,)
        The minimum and the maximum. They are equal for a constant column.
    """

    n_rows: Opaque
    mean: Array
    squares: Array
    low: Array
    high: Array


def spread_of(block: Array) -> Spread:
    """Compute the statistics of the columns of an array of shape (n_rows, n_columns)."""
    shift = block[0].copy()
    shifted = block - shift
    mean = np.add.reduce(shifted) / len(block)
    shifted -= mean
    squares = np.einsum("ij,ij->j", shifted, shifted)
    return Spread(len(block), shift + mean, squares, block.min(axis=0), block.max(axis=0))


def merge_spreads(first: Spread, second: Spread) -> Spread:
    """Compute the statistics of the union of two sets of rows from the statistics of each set."""
    n_rows = first.n_rows + second.n_rows
    share = second.n_rows / np.maximum(n_rows, 1)
    step = second.mean - first.mean
    mean = first.mean + step * share
    squares = first.squares + second.squares
    squares += step * step * (first.n_rows * share)
    low, high = np.minimum(first.low, second.low), np.maximum(first.high, second.high)
    return Spread(n_rows, mean, squares, low, high)


def scale_of(scaler: StandardScaler, spread: Spread) -> Array:
    """Return the ``scale_`` of a ``StandardScaler`` that is fitted on these rows.

    As in scikit-learn, this is 1 for a column that is constant, or whose variance is below the
    rounding errors of its mean.
    """
    if not scaler.with_std:
        return np.ones_like(spread.mean)
    return np.where(is_constant(spread), 1.0, np.sqrt(spread.squares / spread.n_rows))


def is_constant(spread: Spread) -> Array:
    """Return a mask of the columns that a ``StandardScaler`` treats as constant."""
    variance = spread.squares / spread.n_rows
    return (spread.low == spread.high) | is_rounding(variance, spread.n_rows, spread.mean)


def is_rounding(variance: Array, n_rows: int | Array, mean: Array) -> Array:
    """Return a mask of the variances that are below the rounding errors of their means."""
    tiny = n_rows * np.finfo(np.float64).eps
    return np.asarray(variance <= tiny * variance + np.square(tiny * mean))
