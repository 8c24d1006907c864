"""The moments of rows by class: number, mean and centred scatter; and how they are merged."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.blocks import BLOCK
from optuna_treecv.learners.exact.blocks import blocks
from optuna_treecv.learners.exact.blocks import copy_rows
from optuna_treecv.learners.exact.blocks import n_rows_of
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.spread import merge_spreads
from optuna_treecv.learners.exact.spread import scale_by
from optuna_treecv.learners.exact.spread import Spread
from optuna_treecv.learners.exact.spread import spread_of
from optuna_treecv.rows.data import PreparedRows

# The rows that are sorted by class together.
_SORTED = 8 * BLOCK


class ClassMoments(NamedTuple):
    """The moments of rows of several classes.

    Attributes
    ----------
    counts : ndarray of shape (n_classes,), float64
    means : ndarray of shape (n_classes, n_features)
        Zeros for a class without rows.
    scatters : ndarray of shape (n_classes or 1, n_features, n_features)
        Of each class about its mean, or their sum.
    spread : Spread or None
        What a ``StandardScaler`` learns of X.
    """

    counts: np.ndarray
    means: np.ndarray
    scatters: np.ndarray
    spread: Spread | None


def class_moments_of(
    rows: PreparedRows, part: RowNumbers, are_pooled: bool, with_spread: bool
) -> ClassMoments:
    """Return the moments of some rows.

    Parameters
    ----------
    rows : PreparedRows
        Dense.
    part : slice or ndarray of int
    are_pooled : bool
        Whether the scatters of all classes are added.
    with_spread : bool
    """
    assert rows.classes is not None
    assert rows.targets is not None
    n_classes, d = len(rows.classes), rows.n_features
    counts, means = np.zeros(n_classes), np.zeros((n_classes, d))
    scatters = np.zeros((1 if are_pooled else n_classes, d, d))
    spread = Spread.of_nothing(d) if with_spread else None
    buffer = np.empty((min(BLOCK, n_rows_of(part)), d))
    for piece in blocks(part, _SORTED):
        for code, numbers in by_class(rows, piece):
            scatter = scatters[0 if are_pooled else code]
            for some in row_blocks(numbers, BLOCK):
                block = buffer[: len(some)]
                copy_rows(rows, some, block)
                if spread is not None:
                    spread = merge_spreads(spread, spread_of(block))
                count, mean = float(len(block)), _centre(block)
                scatter += block.T @ block
                weight, step = counts[code] + count, mean - means[code]
                means[code] += step * (count / weight)
                if counts[code]:
                    step *= np.sqrt(counts[code] / weight * count)
                    scatter += np.outer(step, step)
                counts[code] = weight
    return ClassMoments(counts, means, scatters, spread)


def by_class(rows: PreparedRows, part: RowNumbers) -> list[tuple[int, np.ndarray]]:
    """Return the code and the row numbers of each class that has rows among these."""
    assert rows.targets is not None
    codes = rows.targets[part]
    order = np.argsort(codes, kind="stable")
    numbers = order + part.start if isinstance(part, slice) else part[order]
    ends = np.cumsum(np.bincount(codes))
    each = np.split(numbers, ends[:-1])
    return [(code, some) for code, some in enumerate(each) if len(some)]


def row_blocks(numbers: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut row numbers into blocks."""
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def _centre(block: np.ndarray) -> np.ndarray:
    """Subtract the mean from a block, and return it.

    A shift by the first row comes before the mean, which of large offsets is exact only then.
    """
    shift = block[0].copy()
    block -= shift
    mean = np.add.reduce(block) / len(block)
    block -= mean
    return shift + mean


def merge_classes(one: ClassMoments, other: ClassMoments) -> ClassMoments:
    """Return the moments of two sets of rows together, as ``moments.merge`` for each class."""
    counts = one.counts + other.counts
    share = other.counts / np.maximum(counts, 1)
    steps = other.means - one.means
    means = one.means + steps * share[:, None]
    steps *= np.sqrt(one.counts * share)[:, None]
    scatters = one.scatters + other.scatters
    if len(scatters) == 1:
        scatters[0] += steps.T @ steps
    else:
        for scatter, step in zip(scatters, steps, strict=True):
            scatter += np.outer(step, step)
    spread = None
    if one.spread is not None and other.spread is not None:
        spread = merge_spreads(one.spread, other.spread)
    return ClassMoments(counts, means, scatters, spread)


def scaled(moments: ClassMoments, centre: np.ndarray, scale: np.ndarray) -> ClassMoments:
    """Return the moments of (x - centre) / scale."""
    means = (moments.means - centre) / scale
    return ClassMoments(
        moments.counts, means, moments.scatters / scale / scale[:, None], moments.spread
    )


def scaling_of(
    scaler: StandardScaler | None, moments: ClassMoments
) -> tuple[np.ndarray, np.ndarray]:
    """Return what a scaler that is fitted on these rows subtracts, and by what it divides."""
    d = moments.means.shape[1]
    if scaler is None or moments.spread is None:
        return np.zeros(d), np.ones(d)
    centre, scale = scale_by(scaler, moments.spread)
    return np.zeros(d) if centre is None else centre, scale


def check_classes(counts: np.ndarray, classes: np.ndarray, least: int) -> None:
    """Refuse training rows without ``least`` rows of each class."""
    few = np.flatnonzero(counts < least)
    if len(few):
        label = classes.tolist()[few[0]]
        raise ValueError(
            f"y must have at least {least} {'row' if least == 1 else 'rows'} of each class in "
            f"each training set, got {int(counts[few[0]])} of class {label!r}; "
            "fewer folds, or stratified ones, would be right."
        )


@cache
def divide_by_rows() -> bool:
    """Return whether scikit-learn's svd solvers divide scatters by the number of rows.

    Older versions, such as 1.8, divide by the degrees of freedom.
    """
    fitted = QuadraticDiscriminantAnalysis().fit([[0.0], [2.0], [0.0], [2.0]], [0, 0, 1, 1])
    return bool(fitted.scalings_[0][0] < 1.5)
