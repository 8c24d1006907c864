"""Moments of rows whose classes are balanced, by weights that depend on the training rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import numpy as np

from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.moments import merge
from optuna_treecv.learners.exact.moments import Moments


class SumsByClass(NamedTuple):
    """The number of rows and the moments of each class."""

    counts: np.ndarray
    moments: tuple[Moments, ...]


def sums_by_class(
    codes: np.ndarray,
    part: RowNumbers,
    n_classes: int,
    moments_of: Callable[[RowNumbers], Moments],
) -> SumsByClass:
    """Return the moments of some rows by class.

    Parameters
    ----------
    codes : ndarray of shape (n_rows,)
        The class of each prepared row.
    part : slice or ndarray of int
    n_classes : int
    moments_of : callable
        (rows) -> their moments.
    """
    own = codes[part]
    numbers = np.arange(part.start, part.stop) if isinstance(part, slice) else part
    each = tuple(moments_of(numbers[own == code]) for code in range(n_classes))
    return SumsByClass(np.bincount(own, minlength=n_classes).astype(np.float64), each)


def merge_classes(one: SumsByClass, other: SumsByClass) -> SumsByClass:
    """Return the sums of two sets of rows together."""
    both = zip(one.moments, other.moments, strict=True)
    return SumsByClass(one.counts + other.counts, tuple(merge(a, b) for a, b in both))


def balanced(sums: SumsByClass) -> Moments:
    """Return the moments with the weights n / (n_classes n_class) of ``class_weight="balanced"``.

    As in scikit-learn these count rows, whatever their own weights are.
    """
    present = sums.counts > 0
    weights = np.zeros(len(sums.counts))
    weights[present] = sums.counts.sum() / (np.count_nonzero(present) * sums.counts[present])
    scaled = (
        Moments(w * one.weight, one.mean, w * one.scatter, one.spread)
        for w, one in zip(weights, sums.moments, strict=True)
    )
    return reduce(merge, scaled)
