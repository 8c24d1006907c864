"""The scores of folds and of rows, from outputs of models or from sums of squares alone."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from optuna_treecv.scoring.fold_metrics import fold_metric
from optuna_treecv.scoring.losses import Loss
from optuna_treecv.scoring.pooled import Metric
from optuna_treecv.scoring.pooled import Pooled
from optuna_treecv.scoring.scorers import response_of
from optuna_treecv.scoring.scorers import Scorer
from optuna_treecv.scoring.scorers import StandIn
from optuna_treecv.scoring.tested_rows import by_loss
from optuna_treecv.scoring.tested_rows import by_metric
from optuna_treecv.scoring.tested_rows import FoldScores
from optuna_treecv.scoring.tested_rows import Scored
from optuna_treecv.scoring.tested_rows import TestedRows
from optuna_treecv.scoring.tested_rows import unknown_spreads


def scores_of_folds(
    metrics: Sequence[Metric],
    rows: TestedRows,
    estimator: Any,
    classes: np.ndarray | None,
    called: Mapping[int, np.ndarray] | None = None,
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
        The sorted classes of all rows.
    called : mapping of int to ndarray of shape (n_folds,), or None
        By the number of the metric, the scores that are known.
    """
    called = called or {}
    scores = np.full((len(metrics), rows.n_folds), np.nan)
    diverged = np.zeros(rows.n_folds, bool)
    spreads = None if rows.begins is None else unknown_spreads(*scores.shape)
    for i, metric in enumerate(metrics):
        if i in called:
            scored = Scored(called[i], called[i] == metric.if_diverged, None)
        elif isinstance(metric, Loss):
            scored = by_loss(metric, rows)
        elif isinstance(metric, Pooled):
            scored = Scored(scores[i], rows.diverged(), None)
        elif (known := fold_metric(metric, classes)) is not None:
            scored = by_metric(known, metric, response_of(metric, estimator), rows, estimator)
        else:
            of_scorer = scores_of_called(metric, rows, estimator, classes)
            scored = Scored(of_scorer, of_scorer == metric.if_diverged, None)
        scores[i] = scored.scores
        if scored.diverged is not None:
            diverged |= scored.diverged
        if scored.spread is not None and spreads is not None:
            spreads[i] = scored.spread
    return FoldScores(scores, diverged, spreads)


def scores_of_called(
    scorer: Scorer, rows: TestedRows, estimator: Any, classes: np.ndarray | None
) -> np.ndarray:
    """Return the scores of folds, (n_folds,), by a scorer that is called for each of them."""
    method = response_of(scorer, estimator)
    stand_in = StandIn(estimator, classes, method)
    begins = np.arange(len(rows)) if rows.begins is None else rows.begins
    ends = np.append(begins[1:], len(rows))
    scores = np.where(rows.diverged(), scorer.if_diverged, np.nan)
    for fold in np.flatnonzero(np.isnan(scores)):
        part = slice(begins[fold], ends[fold])
        scores[fold] = stand_in.scored(
            scorer,
            rows.response(method)[part],
            None if rows.targets is None else rows.targets[part],
            None if rows.weights is None else rows.weights[part],
        )
    return scores


def scores_rows(metric: Metric, classes: np.ndarray | None) -> bool:
    """Return whether a metric is a mean over rows whose scores are known row by row."""
    if isinstance(metric, Scorer):
        known = fold_metric(metric, classes)
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
    estimator : estimator
        One of the kind that was tested.
    classes : ndarray or None
        The sorted classes of all rows.
    """
    rows = rows.each_a_fold()
    if isinstance(metric, Loss):
        return by_loss(metric, rows).scores
    known = fold_metric(metric, classes)
    assert isinstance(metric, Scorer) and known is not None and known.of_rows is not None
    targets: Any = rows.targets
    with np.errstate(all="ignore"):
        scores = known.of_rows(rows.response(response_of(metric, estimator)), targets)
    scores = scores.astype(np.float64)
    scores[~np.isfinite(scores) | rows.diverged()] = metric.if_diverged
    return scores


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
