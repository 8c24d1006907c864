"""Blocks of rows, and the spread of their columns: count, mean, squares about it, and extremes."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.types import Array
from optuna_treecv.types import Opaque

#: The prepared rows of a training or a test set.
RowIndices = slice | Array

#: The rows of one block of float64, so that no copy of all rows is ever widened. With a hundred
#: columns it fits into a second-level cache.
BLOCK = 1024


def blocks(part: RowIndices, size: int = BLOCK) -> Iterator[RowIndices]:
    """Yield row numbers in blocks; those of a slice are slices."""
    if isinstance(part, slice):
        for start in range(part.start, part.stop, size):
            yield slice(start, min(start + size, part.stop))
        return
    for start in range(0, len(part), size):
        yield part[start : start + size]


def count_rows(part: RowIndices) -> int:
    """Return the number of rows."""
    return part.stop - part.start if isinstance(part, slice) else len(part)


class Spread(NamedTuple):
    """Number, mean, sum of squares about the mean, minimum and maximum of each column.

    The number may differ between columns. The sum of squares of a constant column need not be 0 in
    floating point, but its minimum and maximum are equal.
    """

    n_rows: Opaque
    mean: Array
    squares: Array
    low: Array
    high: Array


def spread_of(block: Array) -> Spread:
    """Return the spread of the columns of an array (n_rows, n_columns)."""
    shift = block[0].copy()
    shifted = block - shift
    mean = np.add.reduce(shifted) / len(block)
    shifted -= mean
    squares = np.einsum("ij,ij->j", shifted, shifted)
    return Spread(len(block), shift + mean, squares, block.min(axis=0), block.max(axis=0))


def merge_spreads(first: Spread, second: Spread) -> Spread:
    """Return the spread of two sets of rows together, as ``merge``."""
    n_rows = first.n_rows + second.n_rows
    share = second.n_rows / np.maximum(n_rows, 1)
    step = second.mean - first.mean
    mean = first.mean + step * share
    squares = first.squares + second.squares
    squares += step * step * (first.n_rows * share)
    low, high = np.minimum(first.low, second.low), np.maximum(first.high, second.high)
    return Spread(n_rows, mean, squares, low, high)


def scale_of(scaler: StandardScaler, spread: Spread) -> Array:
    """Return the divisors of columns by a scaler.

    Like scikit-learn it does not scale a column that is constant, or whose variance is below the
    rounding errors of its mean.
    """
    if not scaler.with_std:
        return np.ones_like(spread.mean)
    return np.where(is_constant(spread), 1.0, np.sqrt(spread.squares / spread.n_rows))


def is_constant(spread: Spread) -> Array:
    """Return a mask of the columns that a ``StandardScaler`` does not scale."""
    variance = spread.squares / spread.n_rows
    return (spread.low == spread.high) | is_rounding(variance, spread.n_rows, spread.mean)


def is_rounding(variance: Array, n_rows: int | Array, mean: Array) -> Array:
    """Return whether variances are below the rounding errors of their means."""
    tiny = n_rows * np.finfo(np.float64).eps
    return np.asarray(variance <= tiny * variance + np.square(tiny * mean))
