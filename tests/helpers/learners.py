"""Learners of the tree, made from estimators, and what estimators have learned."""

from __future__ import annotations

import numpy as np
from sklearn.base import clone

from optuna_treecv.engines.treecv.learners.from_estimator import make_learner
from optuna_treecv.estimators.base import layout_for
from optuna_treecv.rows.data import Data


def learners_of(estimators, X, y, sample_weight=None, *, classes=None, response="predict", seed=0):
    """Return a learner for each estimator, over the same prepared rows.

    Parameters
    ----------
    estimators : list of estimators
    X, y, sample_weight : array-like or None
    classes : ndarray or None
        The classes; None: those of y.
    response : str or None
    seed : int
    """
    data = Data(X, y)
    if classes is not None:
        data._classes = classes
    data.weights = sample_weight
    rows = data.prepare(layout_for(estimators[0]), np.arange(X.shape[0], dtype=np.uint32))
    return [make_learner(estimator, rows, response, seed) for estimator in estimators]


def learner_of(estimator, X, y, sample_weight=None, **options):
    return learners_of([estimator], X, y, sample_weight, **options)[0]


def in_order(estimator, **parameters):
    return clone(estimator).set_params(shuffle=False, **parameters)


def learned(model):
    """Return all numbers that an estimator has learned."""
    names = ("coef_", "intercept_", "cluster_centers_", "counts_", "mean_", "covariance_")
    return np.concatenate([np.ravel(getattr(model, n)) for n in names if hasattr(model, n)])


def assert_same(one, other):
    assert learned(one).tobytes() == learned(other).tobytes()
