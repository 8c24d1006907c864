"""Losses of rows, which a study minimises; a fold's score is their mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Loss:
    """A loss per row; a fold's score is its mean.

    Attributes
    ----------
    name : str
    response_method : str
        The response of the model that the loss needs.
    of_rows : callable
        (response, targets) -> ndarray of shape (rows,), float64. With several targets it is the
        mean over them.
    if_diverged : float
        The score of a fold whose model is not finite.
    row_range : (float, float) or None
        The least and the largest score of a row; None if there are no such bounds.
    is_zero_one : bool
        Whether each row scores 0 or 1, and nothing between.
    """

    name: str
    response_method: str
    of_rows: Callable[[np.ndarray, Any], np.ndarray]
    if_diverged: float = np.inf
    row_range: tuple[float, float] | None = None
    is_zero_one: bool = False
    direction = "minimize"
    is_mean = True
    is_registered = True

    @property
    def methods(self) -> str:
        """The method of an estimator that gives the response."""
        return self.response_method


def fold_means(
    values: np.ndarray, weights: np.ndarray | None, begins: np.ndarray | None
) -> np.ndarray:
    """Return the mean of the values in each fold.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
    weights : ndarray of shape (n_rows,) or None
        No fold's weights are all 0.
    begins : ndarray of shape (n_folds,), int, or None
        The first row of each fold, 0 first. None: each row is a fold, so that its weight cancels.
    """
    if begins is None:
        return values
    if weights is None:
        return np.add.reduceat(values, begins) / fold_sizes(begins, len(values))
    return np.add.reduceat(weights * values, begins) / np.add.reduceat(weights, begins)


def fold_sizes(begins: np.ndarray, n_rows: int) -> np.ndarray:
    """Return the number of rows of each fold; ``np.diff`` takes longer for few folds."""
    sizes = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
    sizes[-1] = n_rows - begins[-1]
    return sizes


# The losses. Targets of classifiers are class codes.


def _error(predicted: np.ndarray, codes: np.ndarray) -> np.ndarray:
    return (predicted != codes).astype(np.float64)


def _hinge(decision: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return max(0, 1 - margin).

    For several classes this is the margin of Crammer & Singer, as in sklearn.metrics.hinge_loss.
    """
    decision = decision.astype(np.float64)
    if decision.ndim == 1:
        return np.maximum(0, 1 - np.where(codes == 1, decision, -decision))
    own = decision[np.arange(len(codes)), codes]
    others = decision.copy()
    others[np.arange(len(codes)), codes] = -np.inf
    return np.maximum(0, 1 - (own - others.max(axis=1)))


def _log_loss(probabilities: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return -log p of the true class.

    As in sklearn.metrics.log_loss, p is clipped to [eps, 1 - eps], eps being that of float64.
    """
    p = probabilities[np.arange(len(codes)), codes]
    return -np.log(np.clip(p, np.finfo(np.float64).eps, 1 - np.finfo(np.float64).eps))


def mean_over_targets(errors: np.ndarray) -> np.ndarray:
    """Return an error for each row from (rows,) or (rows, targets)."""
    return errors if errors.ndim == 1 else errors.mean(axis=1)


def _squared_error(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    return mean_over_targets(np.square(predicted.astype(np.float64) - y))


def _absolute_error(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    return mean_over_targets(np.abs(predicted.astype(np.float64) - y))


def _neg_log_density(log_density: np.ndarray, _: Any) -> np.ndarray:
    return -log_density.astype(np.float64)


def _squared_distance(distance: np.ndarray, _: Any) -> np.ndarray:
    return np.square(distance.astype(np.float64))


FOR_CLASSIFIERS = [
    Loss("error", "predict", _error, if_diverged=1.0, row_range=(0.0, 1.0), is_zero_one=True),
    Loss("hinge", "decision_function", _hinge),
    Loss("log_loss", "predict_proba", _log_loss),
]
FOR_REGRESSORS = [
    Loss("squared_error", "predict", _squared_error),
    Loss("absolute_error", "predict", _absolute_error),
]
FOR_CLUSTERERS = [Loss("squared_distance", "distance", _squared_distance)]
FOR_DENSITIES = [Loss("neg_log_density", "score_samples", _neg_log_density)]

LOSSES = {
    loss.name: loss for loss in FOR_CLASSIFIERS + FOR_REGRESSORS + FOR_CLUSTERERS + FOR_DENSITIES
}
