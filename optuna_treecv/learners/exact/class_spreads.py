"""Mean and variance of each column within each class, and how those of two sets are merged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from optuna_treecv.learners.exact.blocks import blocks
from optuna_treecv.learners.exact.blocks import copy_rows
from optuna_treecv.learners.exact.blocks import n_rows_of
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.spread import merge_spreads
from optuna_treecv.learners.exact.spread import Spread
from optuna_treecv.learners.exact.spread import spread_of
from optuna_treecv.rows.data import PreparedRows


class ClassSpreads(NamedTuple):
    """Moments by class, in which rows have their weights, and those of all rows without weights.

    Attributes
    ----------
    weights : ndarray of shape (n_classes,)
        The sum of the weights w of each class.
    means : ndarray of shape (n_classes, n_features)
        sum w x / weight; 0 for a class without weight.
    squares : ndarray of shape (n_classes, n_features)
        sum w (x - mean)^2.
    spread : Spread
        Of all rows.
    """

    weights: np.ndarray
    means: np.ndarray
    squares: np.ndarray
    spread: Spread

    @classmethod
    def of_nothing(cls, n_classes: int, n_features: int) -> ClassSpreads:
        """Return the moments of no rows."""
        zeros = np.zeros((n_classes, n_features))
        return cls(np.zeros(n_classes), zeros, zeros, Spread.of_nothing(n_features))


def class_spreads_of(rows: PreparedRows, part: RowNumbers) -> ClassSpreads:
    """Return the moments of some rows, whose targets are class codes."""
    assert rows.classes is not None and rows.targets is not None
    n_classes = len(rows.classes)
    found = ClassSpreads.of_nothing(n_classes, rows.n_features)
    for some in blocks(part):
        block = np.empty((n_rows_of(some), rows.n_features))
        copy_rows(rows, some, block)
        weights = None if rows.weights is None else rows.weights[some].astype(np.float64)
        found = merge_class_spreads(
            found, _of_block(block, rows.targets[some], weights, n_classes)
        )
    return found


def _of_block(
    block: np.ndarray, codes: np.ndarray, weights: np.ndarray | None, n_classes: int
) -> ClassSpreads:
    """Return the moments of a block, which is overwritten.

    The sum of what is left after subtracting a mean corrects it, since the first sum of large
    numbers is rounded.
    """
    spread = spread_of(block)
    n = len(block)
    values = np.ones(n) if weights is None else weights
    sums_by_class = sparse.csc_array((values, codes, np.arange(n + 1)), shape=(n_classes, n))
    totals = np.bincount(codes, weights, n_classes).astype(np.float64)
    divisors = np.where(totals > 0, totals, 1.0)[:, None]
    means = sums_by_class @ block / divisors
    block -= means[codes]
    left = sums_by_class @ block / divisors
    np.square(block, out=block)
    squares = sums_by_class @ block
    squares -= totals[:, None] * left * left
    return ClassSpreads(totals, means + left, np.maximum(squares, 0, out=squares), spread)


def merge_class_spreads(one: ClassSpreads, other: ClassSpreads) -> ClassSpreads:
    """Return the moments of two sets of rows together (Chan, Golub & LeVeque 1979)."""
    weights = one.weights + other.weights
    share = (other.weights / np.where(weights > 0, weights, 1.0))[:, None]
    step = other.means - one.means
    squares = one.squares + other.squares
    squares += (one.weights[:, None] * share) * (step * step)
    return ClassSpreads(
        weights, one.means + share * step, squares, merge_spreads(one.spread, other.spread)
    )


def check_weights(weights: np.ndarray, codes: np.ndarray, rows: PreparedRows) -> None:
    """Refuse classes without weight in a training set.

    Parameters
    ----------
    weights : ndarray of shape (n,)
        Weights of classes in training sets.
    codes : ndarray of shape (n,)
        Their classes.
    rows : PreparedRows
    """
    place = int(np.argmin(weights))
    if weights[place] <= 0:
        assert rows.classes is not None
        label = rows.classes[codes[place]]
        raise ValueError(
            "sample_weight must be above 0 for some row of each class in each training set, got a "
            f"training set in which class {label} has weight 0."
        )
