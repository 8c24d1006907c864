"""Logistic regression with many coefficients, or with an L1 penalty, beside scikit-learn.

    OMP_NUM_THREADS=1 python benchmarks/glm2.py [WORDS]

Each row is a grid of 10 values of C from 1e-3 to 1e2 and 10 folds (20 newsgroups: 8 values and 5
folds), evaluated by log loss. Only rows whose names contain one of WORDS are measured.
scikit-learn is measured by single fits and predictions of folds, spread over the grid, and their
mean is multiplied by the number of fits. The columns are seconds of ours, seconds of scikit-learn,
their ratio, and the largest difference of a fold's log loss from that of a converged model, of
ours and of scikit-learn's default fit. The differences are 0 for L1, where they are not computed.
There, ours has solver="saga" in all rows, because liblinear penalises the intercept. Files are
read from $OPTUNA_TREECV_DATA.
"""

from __future__ import annotations

from functools import partial
import sys
from time import perf_counter
from typing import Any
import warnings

import datasets
import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import scale

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import TreeCVSearchCV

Work = tuple[Any, Any, Any, list[float], int]


def letter() -> Work:
    X, y, _ = datasets.letter()
    return scale(X), y, LogisticRegression(), np.geomspace(1e-3, 1e2, 10).tolist(), 10


def covertype() -> Work:
    X, y, _ = datasets.covertype(as_is=True)
    X, y = scale(X[:50_000]), y[:50_000]
    return X, y, LogisticRegression(), np.geomspace(1e-3, 1e2, 10).tolist(), 10


def digits() -> Work:
    X, y = load_digits(return_X_y=True)
    return X / 16, y, LogisticRegression(), np.geomspace(1e-3, 1e2, 10).tolist(), 10


def newsgroups(as_is: bool) -> Work:
    X, y, _ = datasets.newsgroups(as_is)
    return X, y, LogisticRegression(), np.geomspace(1e-2, 1e2, 8).tolist(), 5


def l1(name: str, solver: str) -> Work:
    X, y, _ = getattr(datasets, name)()
    X = scale(X.toarray() if hasattr(X, "toarray") else X)
    model = LogisticRegression(l1_ratio=1.0, solver=solver)
    return X, y, model, np.geomspace(1e-3, 1e2, 10).tolist(), 10


WORKS = {
    "letter, 26 classes": letter,
    "Covertype 50,000, 7 classes": covertype,
    "digits, 10 classes": digits,
    "20 newsgroups, 2 classes": partial(newsgroups, False),
    "20 newsgroups, 20 classes": partial(newsgroups, True),
    **{
        f"L1, {name}, beside {solver}": partial(l1, name, solver)
        for name in ("magic", "elec2", "higgs", "a9a")
        for solver in ("saga", "liblinear")
    },
}


def measure(name: str, work: Work, n_measured: int = 6) -> None:
    """Print the seconds of a search, and those of scikit-learn from single fits."""
    X, y, estimator, Cs, n_folds = work
    cv = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    ours_of = clone(estimator)
    if ours_of.l1_ratio:
        ours_of.set_params(solver="saga")
    began = perf_counter()
    search = TreeCVSearchCV(
        ours_of, param_grid={"C": Cs}, cv=cv, scoring="neg_log_loss", refit=False
    ).fit(X, y)
    ours = perf_counter() - began
    method = search.study_.trials[0].user_attrs["treecv"]["method"]
    splits, theirs, errors = list(cv.split(X, y)), 0.0, np.zeros(2)
    for number, index in enumerate(np.linspace(0, len(Cs) - 1, n_measured).round().astype(int)):
        train, test = splits[number % n_folds]
        model = clone(estimator).set_params(C=Cs[index])
        began = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = model.fit(X[train], y[train]).predict_proba(X[test])
        theirs += (perf_counter() - began) * len(Cs) * n_folds / n_measured
        if estimator.l1_ratio:
            continue
        exact = clone(model).set_params(solver="newton-cholesky", tol=1e-10, max_iter=1000)
        if X.shape[1] * len(model.classes_) > 1000:
            exact.set_params(solver="lbfgs", max_iter=20_000)
        limit = log_loss(y[test], exact.fit(X[train], y[train]).predict_proba(X[test]))
        options = {"cv": cv, "response_method": "predict_proba", "method": method}
        probabilities = tree_cross_val_predict(model, X, y, **options)[test]
        losses = [log_loss(y[test], p) for p in (probabilities, predicted)]
        errors = np.maximum(errors, np.abs(np.array(losses) - limit))
    print(
        f"{name:30} {ours:8.2f} s {theirs:9.1f} s {theirs / ours:8.1f} {method} "
        f"{errors[0]:.0e} {errors[1]:.0e}",
        flush=True,
    )


def main() -> None:
    words = sys.argv[1:]
    for name, load in WORKS.items():
        if not words or any(word in name for word in words):
            measure(name, load())


if __name__ == "__main__":
    main()
