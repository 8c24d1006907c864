"""What a ``StandardScaler`` learns of rows, and how that of two sets of rows is merged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler


class Spread(NamedTuple):
    """Number, mean, sum of squares about the mean, minimum and maximum of each column.

    The sum of squares of a constant column need not be 0 in floating point. Its minimum and
    maximum are equal.
    """

    n_rows: int
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of_nothing(cls, n_columns: int) -> Spread:
        """Return the spread of no rows."""
        zeros, ends = np.zeros(n_columns), np.full(n_columns, np.inf)
        return cls(0, zeros, zeros, ends, -ends)


def spread_of(block: np.ndarray) -> Spread:
    """Return the spread of the columns of an array (n_rows, n_columns)."""
    shift = block[0].copy()
    shifted = block - shift
    mean = np.add.reduce(shifted) / len(block)
    shifted -= mean
    squares = np.einsum("ij,ij->j", shifted, shifted)
    return Spread(len(block), shift + mean, squares, block.min(axis=0), block.max(axis=0))


def merge_spreads(one: Spread, other: Spread) -> Spread:
    """Return the spread of two sets of rows together, as ``moments.merge``."""
    if one.n_rows == 0 or other.n_rows == 0:
        return one if other.n_rows == 0 else other
    n_rows = one.n_rows + other.n_rows
    step = other.mean - one.mean
    mean = one.mean + step * (other.n_rows / n_rows)
    squares = one.squares + other.squares
    squares += step * step * (one.n_rows * other.n_rows / n_rows)
    low, high = np.minimum(one.low, other.low), np.maximum(one.high, other.high)
    return Spread(n_rows, mean, squares, low, high)


def scale_by(scaler: StandardScaler, spread: Spread) -> tuple[np.ndarray | None, np.ndarray]:
    """Return what a scaler subtracts, None if nothing, and by what it divides.

    Like scikit-learn it does not scale a column that is constant, or whose variance is below the
    rounding errors of its mean.
    """
    centre = spread.mean if scaler.with_mean else None
    if not scaler.with_std:
        return centre, np.ones_like(spread.mean)
    variance = spread.squares / spread.n_rows
    return centre, np.where(is_constant(spread), 1.0, np.sqrt(variance))


def is_constant(spread: Spread) -> np.ndarray:
    """Return for each column whether a ``StandardScaler`` does not scale it."""
    variance = spread.squares / spread.n_rows
    return (spread.low == spread.high) | is_rounding(variance, spread.n_rows, spread.mean)


def is_rounding(variance: np.ndarray, n_rows: int, mean: np.ndarray) -> np.ndarray:
    """Return whether variances are below the rounding errors of their means."""
    tiny = n_rows * np.finfo(np.float64).eps
    return np.asarray(variance <= tiny * variance + np.square(tiny * mean))
