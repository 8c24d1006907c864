"""Rows that were tested by models that had not seen them, and their scores fold by fold."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from optuna_treecv.scoring.fold_metrics import FoldMetric
from optuna_treecv.scoring.losses import fold_means
from optuna_treecv.scoring.losses import fold_sizes
from optuna_treecv.scoring.losses import Loss
from optuna_treecv.scoring.scorers import Scorer
from optuna_treecv.scoring.scorers import undefined


class TestedRows:
    """Rows and what the models say of them, fold after fold.

    Parameters
    ----------
    outputs : ndarray of shape (n_rows, n_outputs)
        Not finite where a model is not.
    respond : callable
        (method) -> the response that follows from the outputs.
    targets : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
        Class codes or numbers.
    weights : ndarray of shape (n_rows,), float64, or None
    begins : ndarray of shape (n_folds,), int, or None
        The first row of each fold, 0 first; None: each row is a fold.
    """

    __test__ = False  # for pytest

    def __init__(
        self,
        outputs: np.ndarray,
        respond: Callable[[str], np.ndarray],
        targets: np.ndarray | None,
        weights: np.ndarray | None,
        begins: np.ndarray | None,
    ) -> None:
        self.outputs = outputs
        self.targets = targets
        self.weights = weights
        self.begins = begins
        self._respond = respond
        self._responses: dict[str, np.ndarray] = {}

    @cached_property
    def are_finite(self) -> bool:
        """Whether all outputs are finite."""
        with np.errstate(all="ignore"):
            # Any value that is not finite makes the sum not finite. So may a sum of large values.
            return bool(np.isfinite(self.outputs.sum()) or np.isfinite(self.outputs).all())

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def n_folds(self) -> int:
        return len(self) if self.begins is None else len(self.begins)

    def response(self, method: str) -> np.ndarray:
        if method not in self._responses:
            with np.errstate(all="ignore"):
                self._responses[method] = self._respond(method)
        return self._responses[method]

    def in_folds(self, rows: np.ndarray) -> np.ndarray:
        """Return in which folds any of these rows, (n_rows,) of bool, is."""
        return rows if self.begins is None else np.logical_or.reduceat(rows, self.begins)

    def diverged(self) -> np.ndarray:
        """Return which folds have outputs that are not finite, (n_folds,)."""
        if self.are_finite:
            return np.zeros(self.n_folds, bool)
        return self.in_folds(~np.isfinite(self.outputs).all(axis=1))

    def rows_of(self, folds: np.ndarray) -> np.ndarray:
        """Return which rows are in the given folds, (n_folds,) of bool."""
        if self.begins is None:
            return folds
        return np.repeat(folds, fold_sizes(self.begins, len(self)))


def by_loss(loss: Loss, rows: TestedRows) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the mean loss of each fold, and which folds have diverged; None if none have."""
    with np.errstate(all="ignore"):
        losses = loss.of_rows(rows.response(loss.response_method), rows.targets)
        scores = fold_means(losses, rows.weights, rows.begins)
        if np.isfinite(scores.sum()) and rows.are_finite:
            return scores, None
    diverged = rows.diverged() | rows.in_folds(~np.isfinite(losses)) | ~np.isfinite(scores)
    scores[diverged] = loss.if_diverged
    return scores, diverged


def by_metric(
    metric: FoldMetric, scorer: Scorer, method: str, rows: TestedRows, estimator: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each fold by a metric, and which folds have diverged.

    Parameters
    ----------
    metric : FoldMetric
        Gives the same scores as the scorer, for all folds at once.
    scorer : Scorer
    method : str
        The response that the scorer asks of the estimator.
    rows : TestedRows
    estimator : estimator
        One of the kind that was tested.

    Raises
    ------
    ValueError
        If the score is not defined on a fold.
    """
    diverged = rows.diverged()
    targets: Any = rows.targets
    begins = np.arange(len(rows)) if rows.begins is None else rows.begins
    with np.errstate(all="ignore"):
        scores = metric.of_folds(rows.response(method), targets, rows.weights, begins)
    missing = np.isnan(scores) & ~diverged
    if np.any(missing):
        n_rows = fold_sizes(begins, len(rows))[np.argmax(missing)]
        raise undefined(scorer, "NaN", estimator, int(n_rows))
    diverged |= ~np.isfinite(scores)
    scores[diverged] = scorer.if_diverged
    return scores, diverged
