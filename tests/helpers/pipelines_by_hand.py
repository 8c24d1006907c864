"""Trainings of Pipelines by hand, which the tests of compiled steps compare with."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.base import is_classifier

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans

SEED = 3

CLASSIFIERS = [
    PegasosClassifier(alpha=0.01, shuffle=False),
    PegasosClassifier(alpha=0.01, average=True, project=True, shuffle=False),
    AveragedSGDClassifier(alpha=0.01, shuffle=False),
    AveragedSGDClassifier(class_weight="balanced", fit_intercept=False, shuffle=False),
    StreamingSVRGClassifier(shuffle=False, random_state=0),
]
REGRESSORS = [
    AveragedSGDRegressor(shuffle=False),
    LSQSGDRegressor(step_size=0.01, shuffle=False),
    StreamingSVRGRegressor(shuffle=False, random_state=0),
]
UNSUPERVISED = [
    StreamingKMeans(3, random_state=0, shuffle=False),
    StreamingGaussianDensity(shuffle=False),
]


def name_of(estimator):
    return repr(estimator).replace("\n", "")[:60]


CITIES = ["Bern", "Graz", "Linz", "Ulm", "Nis", "Pau"]
DAYS = ["mo", "tu", "su"]


def by_hand(pipeline, X, y, paths):
    """Train each fold's Pipeline along its path of the tree by ``partial_fit``, and score it."""
    errors = []
    for test, phases in paths:
        *steps, last = clone(pipeline)
        for i, rows in enumerate(phases):
            known = {"classes": np.unique(y)} if i == 0 and is_classifier(last) else {}
            labels = () if y is None else (y[rows],)
            now = X[rows]
            for step in steps:
                now = step.partial_fit(now).transform(now)
            last.partial_fit(now, *labels, **known)
        now = X[test]
        for step in steps:
            now = step.transform(now)
        errors.append(loss_of(last, now, None if y is None else y[test]))
    return np.array(errors)


def loss_of(model, X, y):
    if is_classifier(model):
        return np.mean(model.predict(X) != y)
    if y is not None:
        return np.mean((model.predict(X) - y) ** 2)
    if isinstance(model, StreamingKMeans):
        return np.mean(model.transform(X).min(axis=1) ** 2)
    return -model.score_samples(X).mean()


def rows_on_different_scales():
    """Return rows on different scales: one column is constant, one nearly, one is large."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(90, 11)) * 10.0 ** rng.integers(-3, 4, 11) + rng.normal(size=11) * 5
    X[:, 3] = 2.5
    X[:, 4] = 1e9 + rng.normal(size=90) * 1e-8
    X[:, 5] = 0
    scores = (X[:, :3] - X[:, :3].mean(axis=0)) / X[:, :3].std(axis=0) @ [1.0, -2.0, 0.5]
    return X, scores + 0.3 * rng.normal(size=90)


def table_of_kinds_and_numbers():
    """Return a table with categories, two of them in a single row, and numbers."""
    rng = np.random.default_rng(8)
    n = 120
    city = rng.choice(CITIES[:4], n).astype(object)
    city[17], city[60] = CITIES[4:]
    X = pd.DataFrame(
        {
            "city": pd.Categorical(city),
            "day": pd.array(rng.choice(DAYS, n), dtype="string"),
            "size": rng.normal(size=n) * 1000 + 50,
            "count": pd.array(rng.integers(0, 9, n), dtype="Int64"),
            "width": rng.normal(size=n).astype(np.float32),
        },
        index=np.arange(n) + 1000,
    )
    effect = pd.Series(city).map({"Bern": 2.0, "Graz": -1.0}).fillna(0.0).to_numpy()
    y = effect + (X["size"].to_numpy() - 50) / 1000 + rng.normal(size=n) * 0.1
    return X, y
