"""Work that follows from sums over rows beside scikit-learn: transformers that reduce columns.

    OMP_NUM_THREADS=1 python benchmarks/sums2.py TABLE [WORDS]

TABLE is one of

* ``ridge``: PCA or SelectKBest, a scaler, and Ridge: 10 x 12 candidates, 5 folds.
* ``logistic``: PCA or SelectKBest, a scaler, and LogisticRegression: 8 x 8 candidates, 5 folds.
* ``others``: PCA with neighbours and SVC, whose folds are fitted on slices of one PCA.
* ``small``: one candidate on 500 rows, beside ``cross_validate``;
* a table of ``feature_selection.py`` (``sfs``, ``rfecv``) or of ``pls_and_curves.py`` (``pls``,
  ``permutations``, ``curves``).

Only rows whose names contain one of WORDS are measured. Ours is the median of 3 runs. A time of
``GridSearchCV`` above a minute is that of three candidates, multiplied by the number of candidates
(est.). Scores are compared for these.
Files are read from $OPTUNA_TREECV_DATA.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from statistics import median
import sys
from time import perf_counter
from typing import Any
import warnings

import datasets
import feature_selection
import numpy as np
import pls_and_curves
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.feature_selection import f_regression
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from optuna_treecv import tree_cross_validate
from optuna_treecv import TreeCVSearchCV

# The number of candidates for which scikit-learn is measured if all would take more seconds.
N_MEASURED, MOST_SECONDS = 3, 60


def flights() -> tuple[Any, Any]:
    X, y, _ = datasets.nycflights13()
    return X[:100_000].astype(np.float64), y[:100_000].astype(np.float64)


def fashion(n_rows: int, labels: tuple[int, ...] = ()) -> tuple[Any, Any]:
    X, y, _ = datasets.fashion_mnist()
    is_chosen = np.isin(y, labels) if labels else np.ones(len(y), bool)
    return X[is_chosen][:n_rows].astype(np.float64), y[is_chosen][:n_rows]


def pol() -> tuple[Any, Any]:
    X, y, _ = datasets.pol()
    return X, y


def compare(name: str, pipeline: Any, X: Any, y: Any, grid: dict[str, Any], cv: Any) -> None:
    """Print the seconds of both searches, their ratio, and the largest difference of scores."""
    times = []
    for _ in range(3):
        began = perf_counter()
        ours = TreeCVSearchCV(pipeline, param_grid=grid, cv=cv, refit=False).fit(X, y)
        times.append(perf_counter() - began)
    seconds = median(times)
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    chosen = [points[i] for i in np.linspace(0, len(points) - 1, N_MEASURED).astype(int)]
    for _ in range(2):
        began = perf_counter()
        search = GridSearchCV(pipeline, [{k: [v] for k, v in point.items()} for point in chosen])
        theirs = search.set_params(cv=cv, refit=False).fit(X, y)
        estimated = (perf_counter() - began) * len(points) / len(chosen)
        if estimated > MOST_SECONDS or len(chosen) == len(points):
            break
        chosen = points
    est = "     " if len(chosen) == len(points) else "est. "

    def scores(search: Any) -> dict[tuple[float, ...], float]:
        found, names = search.cv_results_, sorted(grid)
        points = [tuple(float(point[name]) for name in names) for point in found["params"]]
        return dict(zip(points, found["mean_test_score"], strict=True))

    of_ours = scores(ours)
    differences = [abs(of_ours[point] - score) for point, score in scores(theirs).items()]
    print(
        f"{name:54} {seconds:8.3f} s {estimated:9.1f} s {est} {estimated / seconds:8.1f} "
        f"{max(differences):.1e}",
        flush=True,
    )


def ridge(is_asked: Callable[[str], bool]) -> None:
    alphas = np.logspace(-2, 4, 12).tolist()
    for name, load, largest in (
        ("flights", flights, 130),
        ("fashion_mnist 10,000", lambda: fashion(10_000), 200),
        ("pol", pol, 26),
    ):
        sizes = np.unique(np.linspace(2, largest, 10).astype(int)).tolist()
        for reducer, key in ((PCA(), "n_components"), (SelectKBest(f_regression), "k")):
            title = f"{type(reducer).__name__} -> Ridge: {name}"
            if is_asked(title):
                pipeline = make_pipeline(StandardScaler(), reducer, Ridge())
                step = pipeline.steps[1][0]
                grid = {f"{step}__{key}": sizes, "ridge__alpha": alphas}
                compare(title, pipeline, *load(), grid, KFold(5, shuffle=True, random_state=0))


def logistic(is_asked: Callable[[str], bool]) -> None:
    Cs = np.logspace(-3, 2, 8).tolist()

    def two_halves() -> tuple[Any, Any]:
        X, y = pol()
        return X, (y > np.median(y)).astype(int)

    for name, load, largest in (
        ("fashion_mnist, 2 classes", lambda: fashion(14_000, (0, 6)), 100),
        ("pol", two_halves, 26),
        ("digits", lambda: load_digits(return_X_y=True), 40),
    ):
        sizes = np.unique(np.linspace(5, largest, 8).astype(int)).tolist()
        for reducer, key in ((PCA(), "n_components"), (SelectKBest(), "k")):
            title = f"{type(reducer).__name__} -> LogisticRegression: {name}"
            if is_asked(title):
                model = LogisticRegression(max_iter=1000)
                pipeline = make_pipeline(reducer, StandardScaler(), model)
                step = pipeline.steps[0][0]
                grid = {f"{step}__{key}": sizes, "logisticregression__C": Cs}
                cv = StratifiedKFold(5, shuffle=True, random_state=0)
                compare(title, pipeline, *load(), grid, cv)


def others(is_asked: Callable[[str], bool]) -> None:
    models = [
        (KNeighborsClassifier(), {"kneighborsclassifier__n_neighbors": [1, 5, 15]}),
        (SVC(), {"svc__C": [0.1, 1.0, 10.0]}),
    ]
    for name, load, largest in (
        ("fashion_mnist 10,000", lambda: fashion(10_000), 100),
        ("digits", lambda: load_digits(return_X_y=True), 60),
    ):
        for model, grid in models:
            title = f"PCA -> {type(model).__name__}: {name}"
            if is_asked(title):
                sizes = np.unique(np.linspace(5, largest, 8).astype(int)).tolist()
                searched = {"pca__n_components": sizes, **grid}
                cv = StratifiedKFold(5, shuffle=True, random_state=0)
                compare(title, make_pipeline(PCA(), model), *load(), searched, cv)


def small(is_asked: Callable[[str], bool]) -> None:
    X, y = pol()
    X, y = X[:500], y[:500]
    for reducer in (PCA(5), SelectKBest(f_regression, k=5)):
        for model in (Ridge(), KNeighborsClassifier()):
            labels = y if isinstance(model, Ridge) else (y > np.median(y)).astype(int)
            if isinstance(reducer, SelectKBest) and model.__class__ is KNeighborsClassifier:
                continue
            pipeline, cv, seconds = make_pipeline(reducer, model), KFold(5), ([], [])
            if not is_asked(str(pipeline)):
                continue
            for _ in range(21):
                for number, call in enumerate((tree_cross_validate, cross_validate)):
                    began = perf_counter()
                    call(pipeline, X, labels, cv=cv)
                    seconds[number].append(perf_counter() - began)
            ours, theirs = map(median, seconds)
            print(f"{pipeline[0]} -> {model}: {1e3 * ours:.1f} ms, {1e3 * theirs:.1f} ms")


TABLES = {"ridge": ridge, "logistic": logistic, "others": others, "small": small}

if __name__ == "__main__":
    table, *words = sys.argv[1:]
    if table in TABLES:
        warnings.simplefilter("ignore")
        TABLES[table](lambda title: not words or any(word in title for word in words))
    else:
        for row in (feature_selection.TABLES | pls_and_curves.TABLES)[table]():
            print(row, flush=True)
