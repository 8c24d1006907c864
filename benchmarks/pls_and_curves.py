"""PLS regression, permutation tests and curves from sums over rows, beside scikit-learn and ikpls.

    OMP_NUM_THREADS=1 python benchmarks/sums2.py TABLE

TABLE is one of

* ``pls``: ``PLSRegression`` with 1 to 20 components on 5 folds, beside ``GridSearchCV`` and, if it
  is installed, the fast cross-validation of ikpls with the same folds, divisors and errors.
* ``permutations``: ``permutation_test_score`` with 200 permutations and 5 folds.
* ``curves``: ``learning_curve`` with 5 sizes and ``validation_curve`` with 10 values, 5 folds.

A time of scikit-learn that would exceed 2 minutes is estimated from a few of its fits, and is then
followed by "est."; the largest difference is that of the scores that were computed. Ours is the
median of 3 runs. All run in one process with one thread. Files are read from $OPTUNA_TREECV_DATA.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from io import StringIO
from statistics import median
from time import perf_counter
from typing import Any

import datasets
import numpy as np
from sklearn import model_selection
from sklearn.cross_decomposition import PLSRegression
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold

from optuna_treecv import accelerate
from optuna_treecv import tree_cross_validate_many

RUNS = 3
MOST_SECONDS = 120  # of a run of scikit-learn
N_COMPONENTS, N_PERMUTATIONS = 20, 200
CV = KFold(5)
SQUARES = "neg_mean_squared_error"


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a data set of numbers; columns of codes are one-hot."""
    if name == "bike":
        X, y, _ = datasets.bike()
        one_hot = [np.eye(int(c.max()) + 1)[c.astype(int)] for c in X.T[:8]]
        varying = [block[:, block.any(axis=0)] for block in one_hot]
        return np.hstack([X[:, 8:], *varying]), y
    if name == "flights":
        X, y, _ = datasets.nycflights13()
        return X[:100_000], y[:100_000]
    X, y, _ = datasets.pol() if name == "pol" else datasets.fashion_mnist()
    n_rows = 15_000 if name == "pol" else 10_000
    return X[:n_rows].astype(float), y[:n_rows].astype(float)


def seconds_of(call: Callable[[], Any], runs: int = 1) -> tuple[float, Any]:
    """Return the median duration of several calls, and the last result."""
    times = []
    for _ in range(runs):
        begin = perf_counter()
        result = call()
        times.append(perf_counter() - begin)
    return median(times), result


def line(name: str, ours: float, theirs: float, is_estimate: bool, difference: float) -> str:
    est = " est." if is_estimate else ""
    return (
        f"| {name} | {ours:.3f} s | {theirs:.1f} s{est} | {theirs / ours:.0f} | {difference:.0e} |"
    )


def pls() -> Iterator[str]:
    """Yield the table of PLS regression."""
    yield "| rows | ours | GridSearchCV | times | difference | ikpls | times |"
    yield "|---|---|---|---|---|---|---|"
    counts = list(range(1, N_COMPONENTS + 1))
    for name in ("bike", "flights", "pol", "fashion"):
        X, y = rows_of(name)
        seconds, scores = seconds_of(partial(scores_of_pls, X, y, counts), RUNS)
        few = [1, 10, 20]
        grid = {"n_components": few}
        search = GridSearchCV(PLSRegression(), grid, scoring=SQUARES, cv=CV, refit=False)
        theirs, _ = seconds_of(partial(search.fit, X, y))
        theirs *= N_COMPONENTS / len(few)
        is_estimate = theirs > MOST_SECONDS
        if not is_estimate:
            search.param_grid, few = {"n_components": counts}, counts
            theirs, _ = seconds_of(partial(search.fit, X, y))
        columns = [search.cv_results_[f"split{fold}_test_score"] for fold in range(5)]
        expected = np.column_stack(columns)
        difference = np.abs(scores[np.array(few) - 1] / expected - 1).max()
        start = line(
            f"{name} {X.shape[0]:,} x {X.shape[1]}", seconds, theirs, is_estimate, difference
        )
        if find_spec("ikpls") is None:
            yield f"{start} not installed | |"
            continue
        other, ikpls_scores = seconds_of(partial(errors_of_ikpls, X, y), RUNS)
        assert np.allclose(ikpls_scores, -scores.T, rtol=1e-6)
        yield f"{start} {other:.3f} s | {other / seconds:.1f} |"


def scores_of_pls(X: np.ndarray, y: np.ndarray, counts: list[int]) -> np.ndarray:
    """Return our scores, (n_counts, n_folds)."""
    models = [PLSRegression(n) for n in counts]
    results = tree_cross_validate_many(models, X, y, cv=CV, scoring=SQUARES)
    assert {result.method for result in results} == {"exact"}
    return np.array([result.test_score for result in results])


def errors_of_ikpls(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the mean squared errors of ikpls, (n_folds, n_components)."""
    from ikpls.fast_cross_validation.numpy import PLS

    folds = np.repeat(np.arange(5), [len(test) for _, test in CV.split(X)])
    model = PLS(algorithm=1, ddof=1)
    with redirect_stdout(StringIO()):
        by_fold = model.cross_validate(
            *(X, y[:, None], N_COMPONENTS, folds),
            lambda true, predicted: np.square(true - predicted).mean(axis=(1, 2)),
            n_jobs=1,
            verbose=0,
        )
    return np.array([by_fold[fold] for fold in range(5)])


def accelerated(name: str, *arguments: Any, **options: Any) -> tuple[float, Any]:
    """Return the duration and the result of a function of scikit-learn under accelerate."""
    accelerate.install()
    try:
        function = getattr(model_selection, name)
        seconds, result = seconds_of(lambda: function(*arguments, **options), RUNS)
        report = accelerate.report()
    finally:
        accelerate.uninstall()
    assert "method='exact'" in report, report
    return seconds, result


def permutations() -> Iterator[str]:
    """Yield the table of permutation tests."""
    yield "| rows, estimator | ours | scikit-learn | times | difference |"
    yield "|---|---|---|---|---|"
    for name, model in (("bike", Ridge()), ("bike", LinearRegression()), ("flights", Ridge())):
        X, y = rows_of(name)
        test = partial(model_selection.permutation_test_score, model, X, y, cv=CV, random_state=0)
        n = 3
        theirs, right = seconds_of(partial(test, n_permutations=n))
        theirs *= (N_PERMUTATIONS + 1) / (n + 1)
        is_estimate = theirs > MOST_SECONDS
        if not is_estimate:
            n = N_PERMUTATIONS
            theirs, right = seconds_of(partial(test, n_permutations=n))
        options = {"cv": CV, "random_state": 0, "n_permutations": N_PERMUTATIONS}
        seconds, ours = accelerated("permutation_test_score", model, X, y, **options)
        difference = max(abs(ours[0] - right[0]), np.abs(ours[1][:n] - right[1]).max())
        what = f"{name} {X.shape[0]:,} x {X.shape[1]}, {type(model).__name__}"
        yield line(what, seconds, theirs, is_estimate, difference)


def curves() -> Iterator[str]:
    """Yield the table of learning curves and validation curves."""
    yield "| rows, curve | ours | scikit-learn | times | difference |"
    yield "|---|---|---|---|---|"
    values = {"param_name": "alpha", "param_range": np.geomspace(0.1, 1e4, 10)}
    of_pls = {"param_name": "n_components", "param_range": np.arange(1, 11)}
    lasso = Lasso(tol=1e-8, max_iter=10_000)
    calls = [
        ("learning_curve", Ridge(), {}),
        ("learning_curve", Ridge(), {"shuffle": True, "random_state": 0}),
        ("validation_curve", Ridge(), values),
        ("validation_curve", lasso, values),
        ("validation_curve", PLSRegression(), of_pls),
    ]
    for name in ("bike", "flights"):
        X, y = rows_of(name)
        for function, model, options in calls:
            seconds, ours = accelerated(function, model, X, y, cv=CV, **options)
            run = getattr(model_selection, function)
            theirs, right = seconds_of(partial(run, model, X, y, cv=CV, **options))
            pairs = zip(ours, right, strict=True)
            difference = max(np.abs(a - b).max() for a, b in pairs)
            shuffled = ", shuffled" if options.get("shuffle") else ""
            what = f"{name} {X.shape[0]:,} x {X.shape[1]}, {function} of {type(model).__name__}"
            yield line(what + shuffled, seconds, theirs, False, difference)


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "pls": pls,
    "permutations": permutations,
    "curves": curves,
}
