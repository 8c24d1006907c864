"""Measure TreeCVSearchCV beside GridSearchCV: a table in Markdown.

    OMP_NUM_THREADS=1 python benchmarks/search.py [RUNS [GROUP ...]]

GROUP is "covertype" (32 values of alpha, ten folds), "small" (1,000 rows, 8 values, five folds),
"nested" (both of these inside ``cross_val_score`` with five outer folds) or "optuna" (as many
trials of OptunaSearchCV, of optuna-integration, which is left out where that is not installed);
default: all. Times are those of whole calls with the fit on all rows, in one thread, medians of
RUNS runs in turn (default 3). Theirs search ``SGDClassifier(max_iter=1, tol=None)``, on Covertype
with every eighth value, whose time is taken eight times.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
import sys
from time import perf_counter
from typing import Any
import warnings

import datasets
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import GridSearchCV

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import TreeCVSearchCV

GROUPS = ("covertype", "small", "nested", "optuna")
LEARNERS = {
    "PEGASOS": PegasosClassifier(),
    "averaged SGD": AveragedSGDClassifier("hinge", step_size=0.01),
}


def ours(estimator: Any, alphas: np.ndarray, k: int) -> TreeCVSearchCV:
    return TreeCVSearchCV(estimator, param_grid={"alpha": alphas}, cv=k, random_state=0)


def theirs(alphas: np.ndarray, k: int) -> GridSearchCV:
    learner = SGDClassifier(max_iter=1, tol=None, random_state=0)
    return GridSearchCV(learner, {"alpha": alphas}, cv=k)


def in_turn(programs: dict[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(runs):
        for name, program in programs.items():
            began = perf_counter()
            program()
            seconds[name].append(perf_counter() - began)
    return {name: median(found) for name, found in seconds.items()}


def show(name: str, data: str, found: dict[str, float], times: int) -> None:
    others = found.pop("theirs") * times
    for learner, seconds in found.items():
        print(
            f"| {name} | {data} | {learner} | {seconds:.4g} | {others:.4g} | "
            f"{others / seconds:.1f} |",
            flush=True,
        )


def searched(data: Any, n_values: int, k: int, every: int, nested: bool, runs: int) -> None:
    X, y, name = data
    alphas = np.logspace(-6, -1, n_values)

    def run(search: Any) -> Callable[[], Any]:
        if nested:
            return lambda: cross_val_score(search, X, y, cv=5)
        return lambda: search.fit(X, y)

    programs = {label: run(ours(learner, alphas, k)) for label, learner in LEARNERS.items()}
    programs["theirs"] = run(theirs(alphas[::every], k))
    what = f"{n_values} values, k={k}{', nested' if nested else ''}"
    show(what, name, in_turn(programs, runs), every)


def few_rows() -> Any:
    X, y, name = datasets.covertype()
    return X[:1000], y[:1000], f"{name}, 1,000 rows"


def covertype(runs: int) -> None:
    searched(datasets.covertype(), 32, 10, 8, False, runs)


def small(runs: int) -> None:
    searched(few_rows(), 8, 5, 1, False, 7 * runs)


def nested(runs: int) -> None:
    searched(few_rows(), 8, 5, 1, True, 7 * runs)
    searched(datasets.covertype(), 32, 10, 8, True, 1)


def optuna_search(runs: int) -> None:
    try:
        from optuna_integration import OptunaSearchCV
    except ImportError:
        return
    X, y, name = datasets.covertype()
    alphas = CategoricalDistribution(np.logspace(-6, -1, 32).tolist())
    learner = SGDClassifier(max_iter=1, tol=None, random_state=0)
    programs: dict[str, Callable[[], Any]] = {
        label: lambda learner=learner: TreeCVSearchCV(
            learner, {"alpha": alphas}, n_trials=4, random_state=0
        ).fit(X, y)
        for label, learner in LEARNERS.items()
    }
    search = OptunaSearchCV(learner, {"alpha": alphas}, cv=10, n_trials=4, random_state=0)
    programs["theirs"] = lambda: search.fit(X, y)
    show("4 trials, k=10", name, in_turn(programs, runs), 1)


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # of optuna-integration
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print("| search | data | ours | s | theirs, s | theirs / ours |\n|---|---|---|---|---|---|")
    for group in sys.argv[2:] or GROUPS:
        {"optuna": optuna_search}.get(group, globals().get(group))(runs)


if __name__ == "__main__":
    main()
