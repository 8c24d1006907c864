"""The scores of folds by all metrics, from what the models say of the folds' rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optuna_treecv.scoring.asked import Metric
from optuna_treecv.scoring.asked import response_of
from optuna_treecv.scoring.fold_metrics import fold_metric
from optuna_treecv.scoring.losses import Loss
from optuna_treecv.scoring.pooled import Pooled
from optuna_treecv.scoring.scorers import Scorer
from optuna_treecv.scoring.spread import FoldScores
from optuna_treecv.scoring.spread import unknown_spreads
from optuna_treecv.scoring.stand_in import StandIn
from optuna_treecv.scoring.tested_rows import by_loss
from optuna_treecv.scoring.tested_rows import by_metric
from optuna_treecv.scoring.tested_rows import TestedRows


def scores_of_folds(
    metrics: Sequence[Metric], rows: TestedRows, estimator: Any, classes: np.ndarray | None
) -> FoldScores:
    """Return the scores of folds.

    Parameters
    ----------
    metrics : sequence of Loss, Scorer or Pooled
        The scorers need nothing of an estimator but its predictions.
    rows : TestedRows
    estimator : estimator
        One of the kind that was tested.
    classes : ndarray or None
    """
    scores = np.full((len(metrics), rows.n_folds), np.nan)
    diverged = np.zeros(rows.n_folds, bool)
    spreads = None if rows.begins is None else unknown_spreads(*scores.shape)
    for i, metric in enumerate(metrics):
        bad: np.ndarray | None
        spread: np.ndarray | None = None
        if isinstance(metric, Loss):
            scores[i], bad, spread = by_loss(metric, rows)
        elif isinstance(metric, Pooled):
            bad = rows.diverged()
        else:
            known = fold_metric(metric.name, classes) if metric.is_registered else None
            method = response_of(metric, estimator)
            if known is not None:
                scores[i], bad, spread = by_metric(known, metric, method, rows, estimator)
            else:
                scores[i] = _called(metric, method, rows, estimator, classes)
                bad = scores[i] == metric.if_diverged
        if bad is not None:
            diverged |= bad
        if spread is not None and spreads is not None:
            spreads[i] = spread
    return FoldScores(scores, diverged, spreads)


def _called(
    scorer: Scorer, method: str, rows: TestedRows, estimator: Any, classes: np.ndarray | None
) -> np.ndarray:
    """Return the scores of a scorer that is called for each fold."""
    stand_in = StandIn(estimator, classes, method)
    begins = np.arange(len(rows)) if rows.begins is None else rows.begins
    ends = np.append(begins[1:], len(rows))
    scores = np.where(rows.diverged(), scorer.if_diverged, np.nan)
    for fold in np.flatnonzero(np.isnan(scores)):
        part = slice(begins[fold], ends[fold])
        scores[fold] = stand_in.score(
            scorer,
            rows.response(method)[part],
            None if rows.targets is None else rows.targets[part],
            None if rows.weights is None else rows.weights[part],
        )
    return scores
