"""Scores that are functions of sums of squares, for which no row need be predicted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from optuna_treecv.scoring.pooled import Metric


def _mean(errors: np.ndarray, totals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.asarray((errors / weights[:, None]).mean(axis=-1))


def _negative(errors: np.ndarray, totals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return -_mean(errors, totals, weights)


def _root(errors: np.ndarray, totals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.asarray(-np.sqrt(errors / weights[:, None]).mean(axis=-1))


def _r2(errors: np.ndarray, totals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.asarray((1 - errors / totals).mean(axis=-1))


#: By the name of the metric: (errors, totals, weights) -> the scores, with several targets their
#: mean. The arguments are of shape (n_points, n_folds, n_targets), (n_folds, n_targets) and
#: (n_folds,).
_FROM_SQUARES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "squared_error": _mean,
    "neg_mean_squared_error": _negative,
    "neg_root_mean_squared_error": _root,
    "r2": _r2,
}


def follows_from_squares(metric: Metric) -> bool:
    """Return whether a score is a function of sums of squares."""
    return metric.is_registered and metric.name in _FROM_SQUARES


def scores_from_squares(
    metric: Metric, errors: np.ndarray, totals: np.ndarray, weights: np.ndarray
) -> np.ndarray | None:
    """Return the scores, (n_points, n_folds); None where one is not defined by these sums alone.

    Parameters
    ----------
    metric : Metric
    errors : ndarray of shape (n_points, n_folds, n_targets)
        sum w (y - prediction)^2 of each fold.
    totals : ndarray of shape (n_folds, n_targets)
        sum w (y - mean)^2.
    weights : ndarray of shape (n_folds,)
        sum w.
    """
    if metric.name == "r2" and np.any(totals <= 0):
        return None
    return _FROM_SQUARES[metric.name](errors, totals, weights)
