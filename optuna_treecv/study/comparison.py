"""Compares two trials row by row: the losses of rows, and sums of their differences."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any
from typing import Literal

import numpy as np

Early = Literal["last", "mean"] | None

# Sums of squares of such losses are finite.
_NO_BOUNDS = -1e30, 1e30


@dataclass(frozen=True)
class Comparison:
    """How a trial compares with the best one on the same rows.

    Attributes
    ----------
    n_rows : int
        The rows, or folds, on which both were tested.
    total, squares : float
        The sum, and the sum of the squares, of the differences; they are positive where the trial
        is worse.
    width : float or None
        The largest difference minus the smallest that are possible. None where a z-test decides:
        for whole levels of the tree, and for scores of folds.
    n_looks : int
        How often such a comparison may be looked at in one trial.
    early : {"last", "mean"} or None
        Which of the trial's reports so far foretell its final loss: the last one, or their mean.
        None: nothing is foretold.
    """

    n_rows: int
    total: float
    squares: float
    width: float | None
    n_looks: int = 1
    early: Early = None

    @property
    def mean(self) -> float:
        return self.total / self.n_rows

    @property
    def variance(self) -> float:
        """The variance of the differences; infinite for a single one."""
        if self.n_rows < 2:
            return inf
        return max(0.0, self.squares - self.total * self.mean) / (self.n_rows - 1)


class Losses:
    """The losses of rows as they are compared: within a range, with few bytes.

    Parameters
    ----------
    metric : Loss or Scorer
        Scores the rows.
    loss_range : (float, float) or None
        That of the pruner.
    needs_bounds : bool
        Whether the differences decide by a bound alone.

    Raises
    ------
    ValueError
        If scores have no bounds, none are given, and they are needed.
    """

    def __init__(
        self, metric: Any, loss_range: tuple[float, float] | None, needs_bounds: bool = True
    ) -> None:
        row_range: tuple[float, float] | None = getattr(metric, "row_range", None)
        bounds = loss_range or row_range
        if bounds is None and needs_bounds:
            raise ValueError(
                f"loss_range must be given to RacingPruner with futility=None for "
                f"scoring={metric.name!r}, whose values for single rows have no bounds; "
                "RacingPruner(futility=None, loss_range=(0, 10)) takes losses above 10 as 10."
            )
        self._low, self._high = bounds or _NO_BOUNDS
        self._is_count = row_range == bounds  # errors are 0 or 1
        self._sign = 1.0 if metric.direction == "minimize" else -1.0
        self.width = 2 * (self._high - self._low)

    def of(self, scores: np.ndarray) -> np.ndarray:
        """Return scores as losses, 1 byte per row where they are 0 or 1, else 4 bytes."""
        if scores.dtype == np.int8 and self._is_count:
            return scores if self._sign > 0 else -scores
        within = np.clip(scores, self._low, self._high)
        if self._is_count:
            return within.astype(np.int8) * np.int8(self._sign)
        return (self._sign * within).astype(np.float32)


def differences_of(losses: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Return by how much losses are larger than the best ones."""
    if losses.dtype == np.int8:  # -1, 0 or 1
        return losses - best
    return np.subtract(losses, best, dtype=np.float64)


def sums_of(differences: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the sums of differences, of their squares, and of the weights."""
    if differences.dtype == np.int8 and weights is None:
        n_worse, n_others = np.count_nonzero(differences == 1), np.count_nonzero(differences)
        return np.array([2 * n_worse - n_others, n_others, len(differences)], np.float64)
    if weights is None:
        return np.array([differences.sum(), differences @ differences, len(differences)])
    weighed = weights * differences
    return np.array([weighed.sum(), weighed @ weighed, weights.sum()])


def compared(
    n_rows: int,
    sums: np.ndarray,
    width: float | None,
    largest_weight: float = 1.0,
    n_looks: int = 1,
    early: Early = None,
) -> Comparison | None:
    """Return a comparison where the weights have the mean 1; None if they are all 0.

    Parameters
    ----------
    n_rows : int
    sums : ndarray of shape (3,)
        What ``sums_of`` returns for these rows.
    width : float or None
        The range of the differences.
    largest_weight : float
        Of all rows.
    n_looks : int
    early : {"last", "mean"} or None
    """
    total, squares, weight = sums.tolist()
    if not weight > 0:
        return None
    mean = weight / n_rows
    if width is not None:
        width *= largest_weight / mean
    return Comparison(n_rows, total / mean, squares / mean**2, width, n_looks, early)
