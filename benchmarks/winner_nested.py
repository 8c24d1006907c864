"""Measure nested cross-validation beside the plain one of the same candidates.

    OMP_NUM_THREADS=1 python benchmarks/winner_nested.py [RUNS [WORK ...]]

WORK is a name in WORKS, or the first part of one (default: all of them). The output is a Markdown
table of medians of RUNS runs (default 5), which take turns. datasets.py describes the data; there
are 10 folds.

* *Plain* is a new objective, and a study that visits its grid.
* *Nested, cold* is ``nested`` of another new objective, which knows no score of the study: for
  each of the 10 folds, 9 inner ones and the fold itself.
* *Nested, after the study* is ``nested`` of the objective of the study.
* *Ratio* is nested, cold, by plain, the median of the ratios of all runs. It must be at most 2 for
  ridge; others are for information.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
import sys
from time import perf_counter
from typing import Any

import datasets
import numpy as np
import optuna
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import scale
from sklearn.tree import DecisionTreeClassifier
from threadpoolctl import threadpool_limits

from optuna_treecv import treecv_objective


@dataclass
class Work:
    """A grid of one parameter on some rows."""

    load: Callable[[], datasets.DataSet]
    estimator: Any
    parameter: str
    values: list[Any]
    scoring: str
    must: float | None = None


def scaled_magic() -> datasets.DataSet:
    X, y, name = datasets.magic()
    return scale(X), y, name


PENALTIES = np.geomspace(1e-3, 1e6, 30).tolist()
WORKS = {
    "ridge-flights": Work(
        datasets.nycflights13, Ridge(), "alpha", PENALTIES, "squared_error", must=2.0
    ),
    "lasso-flights": Work(
        datasets.nycflights13, Lasso(), "alpha", np.geomspace(1e-4, 1, 30).tolist(), "r2"
    ),
    "discriminant-magic": Work(
        *(datasets.magic, LinearDiscriminantAnalysis(solver="eigen"), "shrinkage"),
        np.linspace(0.01, 1, 30).tolist(),
        "log_loss",
    ),
    "logistic-magic": Work(
        *(scaled_magic, LogisticRegression(), "C"),
        np.geomspace(1e-4, 1e2, 10).tolist(),
        "log_loss",
    ),
    "neighbors-magic": Work(
        *(scaled_magic, KNeighborsClassifier(), "n_neighbors"), [*range(1, 31)], "error"
    ),
    "tree-magic": Work(
        *(datasets.magic, DecisionTreeClassifier(random_state=0), "max_depth"),
        [2, 4, 6, 8],
        "error",
    ),
}


def measure(work: Work, X: Any, y: np.ndarray) -> list[float]:
    """Return the seconds of plain, nested after the study, and cold nested."""
    options = {"param_grid": {work.parameter: work.values}, "scoring": work.scoring, "cv": 10}
    seconds = []
    began = perf_counter()
    objective = treecv_objective(work.estimator, X, y, **options)
    sampler = objective.grid_sampler(seed=0)
    study = optuna.create_study(direction=objective.direction, sampler=sampler)
    study.optimize(objective)
    seconds.append(perf_counter() - began)
    began = perf_counter()
    after = objective.nested(study)
    seconds.append(perf_counter() - began)
    began = perf_counter()
    cold = treecv_objective(work.estimator, X, y, **options).nested(study)
    seconds.append(perf_counter() - began)
    np.testing.assert_allclose(cold.test_score, after.test_score, rtol=1e-5)
    return seconds


def main(n_runs: int, asked: list[str]) -> None:
    """Print the table."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    works = {
        name: work
        for name, work in WORKS.items()
        if not asked or any(name.startswith(one) for one in asked)
    }
    seconds: dict[str, list[list[float]]] = {name: [] for name in works}
    data: dict[Any, datasets.DataSet] = {}
    for _ in range(n_runs):
        for name, work in works.items():
            if work.load not in data:
                data[work.load] = work.load()
            X, y, _ = data[work.load]
            seconds[name].append(measure(work, X, y))
    print(
        "| work | candidates | plain, s | nested, cold | nested, after the study | ratio | must |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, work in works.items():
        plain, after, cold = map(median, zip(*seconds[name], strict=True))
        ratio = median(one[2] / one[0] for one in seconds[name])
        must = (
            ""
            if work.must is None
            else f"{work.must:g}: {'met' if ratio <= work.must else 'missed'}"
        )
        print(
            f"| {name} | {len(work.values)} | {plain:.3f} | {cold:.3f} | {after:.3f} | "
            f"{ratio:.2f} | {must} |"
        )


if __name__ == "__main__":
    with threadpool_limits(1):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:])
