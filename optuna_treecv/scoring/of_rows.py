"""Scores of single rows, for metrics that are means over rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from optuna_treecv.scoring.asked import Metric
from optuna_treecv.scoring.asked import response_of
from optuna_treecv.scoring.fold_metrics import fold_metric
from optuna_treecv.scoring.losses import Loss
from optuna_treecv.scoring.scorers import Scorer
from optuna_treecv.scoring.tested_rows import by_loss
from optuna_treecv.scoring.tested_rows import TestedRows


def scores_rows(metric: Metric, classes: np.ndarray | None) -> bool:
    """Return whether a metric is a mean over rows whose scores are known row by row."""
    if isinstance(metric, Scorer):
        known = fold_metric(metric.name, classes) if metric.is_registered else None
        return metric.is_mean and known is not None and known.of_rows is not None
    return isinstance(metric, Loss)


def scores_of_rows(
    metric: Metric, rows: TestedRows, estimator: Any, classes: np.ndarray | None
) -> np.ndarray:
    """Return the score of each row, (n_rows,) of float64.

    Parameters
    ----------
    metric : Loss or Scorer
        One that ``scores_rows``.
    rows : TestedRows
        Each of them is a fold.
    estimator : estimator
        One of the kind that was tested.
    classes : ndarray or None
        The sorted classes of all rows.
    """
    if isinstance(metric, Loss):
        return by_loss(metric, rows).scores
    assert isinstance(metric, Scorer)
    known = fold_metric(metric.name, classes)
    assert known is not None and known.of_rows is not None
    targets: Any = rows.targets
    with np.errstate(all="ignore"):
        scores = known.of_rows(rows.response(response_of(metric, estimator)), targets)
    scores = scores.astype(np.float64)
    scores[~np.isfinite(scores) | rows.diverged()] = metric.if_diverged
    return scores
