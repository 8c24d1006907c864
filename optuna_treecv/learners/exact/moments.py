"""The moments of rows: weight, mean and centred scatter; and how those of two sets are merged.

A variance that is a difference of two large sums loses its digits. Here nothing is subtracted: the
moments of all rows but a chunk are merged from those of the rows before and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from optuna_treecv.learners.exact.blocks import blocks
from optuna_treecv.learners.exact.blocks import copy_rows
from optuna_treecv.learners.exact.blocks import n_rows_of
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.spread import merge_spreads
from optuna_treecv.learners.exact.spread import Spread
from optuna_treecv.learners.exact.spread import spread_of
from optuna_treecv.rows.data import PreparedRows


class Moments(NamedTuple):
    """The moments of rows, each of which is a row of X followed by what is predicted of it.

    Attributes
    ----------
    weight : float
        The sum of the weights w.
    mean : ndarray of shape (n_columns,)
        sum w z / weight.
    scatter : ndarray of shape (n_columns, n_columns)
        sum w (z - mean) (z - mean)'.
    spread : Spread or None
        What a ``StandardScaler`` learns of X, in which all rows weigh alike.
    """

    weight: float
    mean: np.ndarray
    scatter: np.ndarray
    spread: Spread | None


def moments_of(
    rows: PreparedRows,
    part: RowNumbers,
    n_targets: int,
    copy_targets: Callable[[RowNumbers, np.ndarray], None],
    with_spread: bool,
    shift: np.ndarray | None = None,
) -> Moments:
    """Return the moments of some rows.

    Parameters
    ----------
    rows : PreparedRows
    part : slice or ndarray of int
    n_targets : int
        The columns after those of X.
    copy_targets : callable
        (part, out) -> None, copies the further columns of some rows.
    with_spread : bool
    shift : ndarray of shape (n_columns,) or None
        What is subtracted from each row first. A mean that is large beside the differences of
        rows has more digits as a small difference from this.
    """
    n_features = rows.n_features
    n_columns = n_features + n_targets
    buffer = np.empty((min(1024, n_rows_of(part)), n_columns))
    found = no_moments(n_columns, n_features if with_spread else None)
    for some in blocks(part):
        block = buffer[: n_rows_of(some)]
        copy_rows(rows, some, block[:, :n_features])
        copy_targets(some, block[:, n_features:])
        if shift is not None:
            block -= shift
        weights = None if rows.weights is None else rows.weights[some].astype(np.float64)
        spread = spread_of(block[:, :n_features]) if with_spread else None
        found = merge(found, _of_block(block, weights, spread), in_place=True)
    return found


def no_moments(n_columns: int, n_features: int | None) -> Moments:
    """Return the moments of no rows; ``n_features`` is given where there is a spread."""
    spread = None if n_features is None else Spread.of_nothing(n_features)
    return Moments(0.0, np.zeros(n_columns), np.zeros((n_columns, n_columns)), spread)


def _of_block(block: np.ndarray, weights: np.ndarray | None, spread: Spread | None) -> Moments:
    """Return the moments of a block, which is overwritten.

    A shift by the first row comes before the mean, which of large offsets is exact only then.
    """
    shift = block[0].copy()
    block -= shift
    if weights is None:
        weight = float(len(block))
        mean = np.add.reduce(block) / weight
    else:
        weight = float(weights.sum())
        mean = weights @ block / (weight or 1.0)
    block -= mean
    if weights is not None:
        block *= np.sqrt(weights)[:, None]
    return Moments(weight, shift + mean, block.T @ block, spread)


def merge(one: Moments, other: Moments, in_place: bool = False) -> Moments:
    r"""Return the moments of two sets of rows together (Chan, Golub & LeVeque 1979).

    .. math:: S = S_1 + S_2 + \frac{w_1 w_2}{w_1 + w_2} (m_2 - m_1) (m_2 - m_1)^\top

    Parameters
    ----------
    one, other : Moments
    in_place : bool
        Whether the scatter of ``one`` may be overwritten.
    """
    spread = None
    if one.spread is not None and other.spread is not None:
        spread = merge_spreads(one.spread, other.spread)
    weight = one.weight + other.weight
    if weight == 0:
        return Moments(weight, other.mean, other.scatter, spread)
    if one.weight == 0 or other.weight == 0:
        full = one if other.weight == 0 else other
        return Moments(weight, full.mean, full.scatter, spread)
    step = other.mean - one.mean
    mean = one.mean + step * (other.weight / weight)
    step *= np.sqrt(one.weight / weight * other.weight)
    scatter = np.add(one.scatter, other.scatter, out=one.scatter if in_place else None)
    scatter += np.outer(step, step)
    return Moments(weight, mean, scatter, spread)


def about(moments: Moments, origin: np.ndarray) -> np.ndarray:
    """Return the second moments about another point than the mean."""
    step = moments.mean - origin
    return moments.scatter + moments.weight * np.outer(step, step)
