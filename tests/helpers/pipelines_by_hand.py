"""Trainings of Pipelines by hand, which the tests of compiled steps compare with."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

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


def loss_of(model, X, y):
    if is_classifier(model):
        return np.mean(model.predict(X) != y)
    if y is not None:
        return np.mean((model.predict(X) - y) ** 2)
    if hasattr(model, "transform"):
        return np.mean(model.transform(X).min(axis=1) ** 2)
    return -model.score_samples(X).mean()


def by_hand(pipeline, X, y, paths, weights=None, loss=loss_of):
    """Train each fold's Pipeline along its path of the tree by ``partial_fit``, and score it."""
    errors = []
    for test, phases in paths:
        *steps, last = clone(pipeline) if isinstance(pipeline, Pipeline) else [clone(pipeline)]
        prepare = preparing(make_pipeline(*steps, None), _safe_indexing(X, np.concatenate(phases)))
        for i, rows in enumerate(phases):
            known = {"classes": np.unique(y)} if i == 0 and is_classifier(last) else {}
            known |= {} if weights is None else {"sample_weight": weights[rows]}
            labels = () if y is None else (y[rows],)
            last.partial_fit(prepare(_safe_indexing(X, rows), True), *labels, **known)
        now = prepare(_safe_indexing(X, test), False)
        errors.append(loss(last, now, None if y is None else y[test]))
    return np.array(errors)


def preparing(step, X):
    """Return a function of rows, and of whether a step is trained on them before they pass it.

    What has no ``partial_fit`` is fitted to the rows X, all training rows of a fold; imputers take
    the means of the rows so far.
    """
    if step in (None, "passthrough"):
        return lambda rows, is_new: rows
    if isinstance(step, Pipeline):
        parts = []
        for one in step:
            parts.append(preparing(one, X))
            X = X if one in (None, "passthrough") else clone(one).fit_transform(X)
        return lambda rows, is_new: reduce(lambda now, part: part(now, is_new), parts, rows)
    if isinstance(step, ColumnTransformer | FeatureUnion):
        return preparing_branches(step, X)
    seen = []

    def fill(rows, is_new):
        seen.extend([rows] if is_new else [])
        known = np.vstack(seen)
        counts = np.maximum((~np.isnan(known)).sum(axis=0), 1)
        return np.where(np.isnan(rows), np.nansum(known, axis=0) / counts, rows)

    def train(rows, is_new):
        return (step.partial_fit(rows) if is_new else step).transform(rows)

    if isinstance(step, SimpleImputer) and step.strategy == "mean":
        return fill
    if hasattr(step, "partial_fit"):
        return train
    fitted = step.fit(X)
    return lambda rows, is_new: fitted.transform(rows)


def preparing_branches(step, X):
    """Return a function as ``preparing`` does, which joins what branches make of the rows."""
    fitted = clone(step).fit(X)
    is_sparse = sparse.issparse(fitted.transform(X))
    parts = [(slice(None), preparing(one, X)) for _, one in getattr(step, "transformer_list", [])]
    given = {name: one for name, one, _ in getattr(step, "transformers", [])}
    for name, _, columns in getattr(fitted, "transformers_", []):
        one = given.get(name, getattr(step, "remainder", None))
        if one != "drop" and len(columns):
            part = clone(one) if hasattr(one, "fit") else one
            parts.append((columns, preparing(part, _safe_indexing(X, columns, axis=1))))

    def prepare(rows, is_new):
        blocks = [part(_safe_indexing(rows, columns, axis=1), is_new) for columns, part in parts]
        if is_sparse:
            return sparse.hstack([sparse.csr_array(block) for block in blocks], format="csr")
        return np.hstack([b.toarray() if sparse.issparse(b) else b for b in blocks])

    return prepare


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
