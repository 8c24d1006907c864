"""The difference of two cross-validated means, paired by rows or by folds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any
from typing import Literal

import numpy as np
from scipy import stats

from optuna_treecv.crossval.intervals import check_level
from optuna_treecv.crossval.intervals import fold_error
from optuna_treecv.crossval.intervals import Interval


@dataclass(frozen=True)
class PairedDifference:
    """The mean of one evaluation minus that of another on the same folds.

    Attributes
    ----------
    mean : float
        The difference of the means, in the units of the score.
    std_error : float
        Its standard error.
    interval : Interval
        The interval around it.
    by : {"rows", "folds"}
        What was paired. Rows give more pairs, so that fewer differences are lost in noise.
    n_pairs : int
        The number of pairs.
    """

    mean: float
    std_error: float
    interval: Interval
    by: Literal["rows", "folds"]
    n_pairs: int

    def __repr__(self) -> str:
        """Return all but the target of the interval."""
        return (
            f"PairedDifference(mean={self.mean:.6g}, std_error={self.std_error:.6g}, "
            f"low={self.interval.low:.6g}, high={self.interval.high:.6g}, by={self.by!r}, "
            f"n_pairs={self.n_pairs})"
        )


_TARGET = "the difference of the mean scores on new rows of the models of the folds"


@lru_cache
def student_quantile(level: float, degrees: int) -> float:
    """Return how many standard errors Student's interval reaches to each side."""
    return float(stats.t.ppf((1 + level) / 2, degrees))


def difference_by_rows(
    mean: float,
    one: np.ndarray,
    other: np.ndarray,
    shares: np.ndarray,
    level: Any,
    note: str = "",
) -> PairedDifference:
    r"""Return a difference with the standard error over rows.

    With :math:`d_i` the difference of row i, whose share in the mean D is :math:`a_i`, it is
    :math:`\sqrt{\sum_i a_i^2 (d_i - D)^2}`, the estimator of Bayle et al. (2020) for differences.

    Parameters
    ----------
    mean : float
        The difference of the means.
    one, other : ndarray of shape (n_rows,)
        The scores of the rows; NaN for rows that no fold tests.
    shares : ndarray of shape (n_rows,)
        Those of the rows in a mean.
    level : float
    note : str
        Why the interval may be too narrow.
    """
    level = check_level(level)
    differences = np.subtract(one, other, dtype=np.float64)
    are_tested = ~np.isnan(differences)
    differences = differences[are_tested]
    if not np.all(np.isfinite(differences)):
        raise ValueError("other must have finite scores as self has, but some row's is infinite.")
    error = sqrt(float(np.square(shares[are_tested] * (differences - mean)).sum()))
    half = float(stats.norm.ppf((1 + level) / 2)) * error
    interval = Interval(mean - half, mean + half, "bayle", _TARGET, level, note)
    return PairedDifference(mean, error, interval, "rows", len(differences))


def difference_by_folds(
    one: np.ndarray, other: np.ndarray, n_folds: int, level: Any, overlap: float | None = None
) -> PairedDifference:
    r"""Return a difference with the standard error over folds, and Student's interval.

    Parameters
    ----------
    one, other : ndarray of shape (n_repeats * n_folds,)
        The scores of the folds.
    n_folds : int
        Per repeat: the repeats have the same rows, so they do not count as further folds.
    level : float
    overlap : float or None
        As for ``fold_error``.
    """
    level = check_level(level)
    differences = one - other
    if not np.all(np.isfinite(differences)):
        raise ValueError("other must have finite scores as self has, but some fold's is infinite.")
    if n_folds < 2:
        raise ValueError(
            "other must be compared over two or more folds, got one; row_losses=True compares "
            "over rows."
        )
    mean, error = float(differences.mean()), fold_error(differences, n_folds, overlap)
    half = student_quantile(level, n_folds - 1) * error
    interval = Interval(mean - half, mean + half, "student", _TARGET, level)
    return PairedDifference(mean, error, interval, "folds", differences.size)
