"""The score of predictions that do not depend on the features: what any model should beat."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.dummy import DummyClassifier
from sklearn.dummy import DummyRegressor

from optuna_treecv.rows.data import as_codes
from optuna_treecv.rows.data import Data
from optuna_treecv.scoring import Loss
from optuna_treecv.scoring import Metric
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import Scorer


def baseline(metric: Metric, estimator: Any, data: Data) -> tuple[float, str] | None:
    """Return the score of a constant prediction on all rows, and in words what is predicted.

    None if there is no such score: for estimators without targets, for "hinge", for scorers that
    may look at more than predictions, and for scorers of classifiers that are not means over rows.
    A constant has a trivial score by these, such as 0 for F1, with a warning that only a change of
    the whole process's filters could suppress.

    Parameters
    ----------
    metric : Loss, Scorer or Pooled
    estimator : estimator
        Tells classifiers from regressors.
    data : Data
        The rows as given.
    """
    y = data.y
    scoring = metric.of if isinstance(metric, Pooled) else metric
    if y is None or (isinstance(scoring, Loss) and scoring.name == "hinge"):
        return None
    if isinstance(scoring, Scorer) and not scoring.is_made:
        return None
    if is_classifier(estimator):
        if isinstance(scoring, Scorer) and not scoring.is_mean:
            return None
        dummy, what = DummyClassifier(), "the most frequent class"
        if isinstance(scoring, Loss) and scoring.response_method == "predict_proba":
            what = "the frequencies of the classes"
    elif is_regressor(estimator):
        dummy, what = DummyRegressor(), "the mean of y" if y.ndim == 1 else "the means of y"
    else:
        return None
    nothing = np.zeros((data.n_rows, 1))
    try:
        dummy.fit(nothing, y, sample_weight=data.weights)
        score = _score(scoring, dummy, nothing, data)
    except (TypeError, ValueError):  # a scorer of another kind; the trial will say so
        return None
    return (score, what) if np.isfinite(score) else None


def _score(scoring: Loss | Scorer, dummy: Any, nothing: np.ndarray, data: Data) -> float:
    weights = data.score_weights
    if isinstance(scoring, Scorer):
        weighted = {} if weights is None else {"sample_weight": weights}
        return float(scoring.score(dummy, nothing, data.y, **weighted))
    response = getattr(dummy, scoring.response_method)(nothing[:1])
    targets = data.y
    if isinstance(dummy, DummyClassifier):
        targets = as_codes(data.y, dummy.classes_)
        if scoring.response_method == "predict":
            response = as_codes(response, dummy.classes_)
    responses = np.repeat(response, data.n_rows, axis=0)
    return float(np.average(scoring.of_rows(responses, targets), weights=weights))
