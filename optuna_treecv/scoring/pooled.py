"""One score over the out-of-fold outputs of all rows, with its standard error.

The mean over folds needs folds on which a score is defined and means something: one row has no
area under a curve. A pooled score does not. It compares what different models say on one scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from typing import TypeAlias

import numpy as np

from optuna_treecv.learners.names import name_of
from optuna_treecv.scoring.fold_metrics import fold_metric
from optuna_treecv.scoring.losses import Loss
from optuna_treecv.scoring.scorers import response_of
from optuna_treecv.scoring.scorers import Scorer
from optuna_treecv.scoring.scorers import StandIn
from optuna_treecv.scoring.tested_rows import TestedRows

# The most groups of folds that the jackknife leaves out.
_MOST_GROUPS = 50


@dataclass(frozen=True)
class Pooled:
    """A loss or a scorer that is computed over the out-of-fold outputs of all rows.

    Attributes
    ----------
    of : Loss or Scorer
    """

    of: Loss | Scorer

    @property
    def name(self) -> str:
        return f"pooled_{self.of.name}"

    @property
    def direction(self) -> str:
        return self.of.direction

    @property
    def if_diverged(self) -> float:
        return self.of.if_diverged

    @property
    def is_registered(self) -> bool:
        return self.of.is_registered

    @property
    def methods(self) -> Any:
        """The method of an estimator that gives the response, or one of several."""
        return self.of.methods


#: One thing to score by.
Metric: TypeAlias = Loss | Scorer | Pooled


def pooled_score(
    metric: Pooled, rows: TestedRows, estimator: Any, classes: np.ndarray | None
) -> tuple[float, float]:
    r"""Return a score over all rows, and its standard error, which is NaN where it is unknown.

    The standard error is that of the infinitesimal jackknife,
    :math:`\sqrt{\sum_i (w_i \, \partial \theta / \partial w_i)^2}` for a score
    :math:`\theta` and rows of weights :math:`w_i` (Jaeckel 1972; Efron 1982, chapter 6). For a
    scorer without known derivatives it is that of the jackknife, which leaves out up to 50 groups
    of folds.

    Parameters
    ----------
    metric : Pooled
    rows : TestedRows
    estimator : estimator
        One of the kind that was tested.
    classes : ndarray or None

    Raises
    ------
    ValueError
        If the score is not defined on the rows.
    """
    method = response_of(metric, estimator)
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    targets: Any = rows.targets
    if isinstance(metric.of, Loss):
        with np.errstate(all="ignore"):
            losses = metric.of.of_rows(rows.response(method), rows.targets)
            losses = np.where(rows.rows_of(rows.diverged()), metric.of.if_diverged, losses)
            mean = float(np.average(losses, weights=rows.weights))
            if not np.isfinite(mean):
                return metric.if_diverged, np.nan
            influence = (losses - mean) / weights.sum()
        return mean, _length(weights * influence)
    if np.any(rows.diverged()):
        return metric.if_diverged, np.nan
    known = fold_metric(metric.of, classes)
    response = rows.response(method)
    if method == "predict" and classes is not None:
        response = response.astype(np.intp)  # class codes, perhaps beside other outputs as floats
    if known is not None:
        value = known.of_folds(response, targets, rows.weights, np.zeros(1, np.int64))[0]
        if np.isfinite(value):
            influence = known.influence(response, targets, rows.weights)
            return float(value), _length(weights * influence)
    if method == "predict" and classes is not None and np.any(response < 0):
        raise ValueError(
            f"scoring={metric.of.name!r} cannot be pooled for {name_of(estimator)}, which "
            "predicts a label that is no class of y, or none; 'error' would be right."
        )
    stand_in = StandIn(estimator, classes, method)

    def score(part: Any) -> float:
        y = None if targets is None else targets[part]
        weights = None if rows.weights is None else rows.weights[part]
        assert isinstance(metric.of, Scorer)
        return stand_in.scored(metric.of, response[part], y, weights, is_pooled=True)

    return score(slice(None)), _jackknife(score, rows)


def _jackknife(score: Any, rows: TestedRows) -> float:
    """Return the standard error of a score by leaving out groups of folds."""
    n_groups = min(rows.n_folds, _MOST_GROUPS)
    if n_groups == 1:
        return np.nan
    group_of_fold = np.arange(rows.n_folds) * n_groups // rows.n_folds
    group_of_row = group_of_fold if rows.begins is None else rows.rows_of(group_of_fold)
    try:
        left = np.array([score(group_of_row != group) for group in range(n_groups)])
    except ValueError:  # it is undefined without a group
        return np.nan
    if not np.all(np.isfinite(left)):
        return np.nan
    return float(np.sqrt((n_groups - 1) * np.var(left)))


def _length(parts: np.ndarray) -> float:
    return float(np.sqrt(np.sum(np.square(parts))))
