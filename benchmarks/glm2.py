"""Logistic regression with many coefficients, or with an L1 penalty, beside scikit-learn.

    OMP_NUM_THREADS=1 python benchmarks/glm2.py [WORDS]

Each row is a grid of 10 values of C from 1e-3 to 1e2 and 10 folds (20 newsgroups: 8 values and 5
folds), evaluated by log loss. Only rows whose names contain one of WORDS are measured. Ours are
medians of up to 3 runs. scikit-learn is measured by single fits and predictions of folds, spread
over the grid, and their mean is multiplied by the number of fits. The columns are seconds of ours,
seconds of scikit-learn, their ratio, and the largest difference of a fold's log loss from that of
a converged model, of ours and of scikit-learn's default fit. The differences are 0 for L1, where
they are not computed. There, ours has solver="saga" in all rows, because liblinear penalises the
intercept. The rows of skglm need its installation; its path from strong to weak penalties is
fitted per fold. "TPE" are 64 trials of C and l1_ratio. Files are read from $OPTUNA_TREECV_DATA.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
import sys
from time import perf_counter
from typing import Any
import warnings

import datasets
import numpy as np
import optuna
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import scale

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import treecv_objective
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


L1_NAMES = "magic", "elec2", "higgs", "a9a"
WORKS = {
    "letter, 26 classes": letter,
    "Covertype 50,000, 7 classes": covertype,
    "digits, 10 classes": digits,
    "20 newsgroups, 2 classes": partial(newsgroups, False),
    "20 newsgroups, 20 classes": partial(newsgroups, True),
    **{
        f"L1, {name}, beside {solver}": partial(l1, name, solver)
        for name in L1_NAMES
        for solver in ("saga", "liblinear")
    },
}


def measure(name: str, load: Callable[[], Work], n_measured: int = 6) -> None:
    """Print the seconds of a search, and those of scikit-learn from single fits."""
    X, y, estimator, Cs, n_folds = load()
    cv = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    ours_of = clone(estimator)
    if ours_of.l1_ratio:
        ours_of.set_params(solver="saga")
    search = TreeCVSearchCV(
        ours_of, param_grid={"C": Cs}, cv=cv, scoring="neg_log_loss", refit=False
    )
    seconds: list[float] = []
    while len(seconds) < 3 and sum(seconds) < 10:
        began = perf_counter()
        search.fit(X, y)
        seconds.append(perf_counter() - began)
    ours = median(seconds)
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


def measure_paths(name: str) -> None:
    """Print the seconds of a search, and those of skglm's path from strong to weak penalties."""
    from skglm.estimators import SparseLogisticRegression

    X, y, estimator, Cs, n_folds = l1(name, "saga")
    cv = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    options: dict[str, Any] = {"cv": cv, "scoring": "neg_log_loss", "refit": False}
    began = perf_counter()
    TreeCVSearchCV(estimator, param_grid={"C": Cs}, **options).fit(X, y)
    ours, theirs = perf_counter() - began, []
    for train, test in list(cv.split(X, y))[:4]:  # the first one compiles
        model, began = SparseLogisticRegression(warm_start=True, tol=1e-4), perf_counter()
        for C in Cs:
            model.set_params(alpha=1 / (C * len(train))).fit(X[train], y[train])
            log_loss(y[test], model.predict_proba(X[test]))
        theirs.append(perf_counter() - began)
    seconds = float(np.median(theirs[1:])) * n_folds
    row = f"L1, {name}, beside skglm's path"
    print(f"{row:30} {ours:8.2f} s {seconds:9.1f} s {seconds / ours:8.1f}", flush=True)


def measure_trials(n_trials: int = 64, n_measured: int = 6) -> None:
    """Print the seconds of TPE trials of C and l1_ratio, and of 5 fits of saga in each."""
    X, y, _ = datasets.covertype()
    X, y = scale(X[:100_000]), y[:100_000]
    model, cv = LogisticRegression(l1_ratio=0.5, solver="saga"), StratifiedKFold(5)
    ranges = {
        "C": optuna.distributions.FloatDistribution(1e-4, 1e2, log=True),
        "l1_ratio": optuna.distributions.FloatDistribution(0, 1),
    }
    objective = treecv_objective(
        model, X, y, param_distributions=ranges, cv=cv, scoring="neg_log_loss"
    )
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    began = perf_counter()
    study.optimize(objective, n_trials=n_trials)
    ours, theirs = perf_counter() - began, 0.0
    for trial in study.trials[:: n_trials // n_measured][:n_measured]:
        began = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.set_params(**trial.params)
            cross_val_score(model, X, y, cv=cv, scoring="neg_log_loss")
        theirs += (perf_counter() - began) * n_trials / n_measured
    methods = {trial.user_attrs["treecv"]["method"] for trial in study.trials}
    row = "64 TPE trials, Covertype"
    print(f"{row:30} {ours:8.2f} s {theirs:9.1f} s {theirs / ours:8.1f} {methods}", flush=True)


def main() -> None:
    words = sys.argv[1:]
    works = {name: partial(measure, name, load) for name, load in WORKS.items()}
    works |= {f"L1, {name}, skglm": partial(measure_paths, name) for name in L1_NAMES}
    works["TPE"] = measure_trials
    for name, run in works.items():
        if not words or any(word in name for word in words):
            run()


if __name__ == "__main__":
    main()
