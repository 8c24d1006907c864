"""What a user waits for: whole calls beside their walks, and beside fits of scikit-learn.

    OMP_NUM_THREADS=1 python benchmarks/call.py PYTHON
    OMP_NUM_THREADS=1 python benchmarks/call.py PYTHON lanes

PYTHON belongs to an environment with another build, such as that of the release before (drift.py
shows how to make one). Both builds and the fits take turns on all of Covertype; the tables have
medians of five rounds. It takes about five minutes and 2 GB, on Linux. ``lanes`` compares only the
walks of 32 models side by side, on tables with and without zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from functools import partial
import subprocess
import sys
from time import perf_counter
from typing import Any

import datasets
from drift import ALPHAS
from drift import answer
from drift import in_turns
import numpy as np
import optuna
from peak import peak_bytes
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective

N_ROUNDS = 5
FLOATS = ("float64", "float32")
TABLES = ("Covertype / std", "one-hot flights", "standardised Covertype")


def table_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the labels of one of ``TABLES``."""
    if name == "one-hot flights":
        X, delays = datasets.nycflights13()[:2]
        return X, (delays > 0).astype(int)
    X, y = datasets.covertype(as_is=True)[:2]
    X -= X.mean(axis=0) if name == "standardised Covertype" else 0
    return X / X.std(axis=0), (y == 2).astype(int)


def rows_of(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return Covertype, class 2 against the others."""
    X, y = datasets.covertype()[:2]
    return np.ascontiguousarray(X, dtype), y


def seconds(function: Callable[..., Any], *args: Any, **options: Any) -> float:
    """Return how long a call takes."""
    began = perf_counter()
    function(*args, **options)
    return perf_counter() - began


def walk(estimator: Any, rows: Any, **options: Any) -> float:
    """Return the seconds of a call that are spent in the walk."""
    return tree_cross_validate(estimator, *rows, **options).seconds


def study(rows: Any) -> float:
    """Return the seconds of a study over a grid of 32 values."""
    grid = {"alpha": ALPHAS}
    objective = treecv_objective(PegasosClassifier(), *rows, param_grid=grid, cv=10)
    one = optuna.create_study(sampler=objective.grid_sampler(seed=0))
    return seconds(one.optimize, objective)


def lanes(rows: Any) -> float:
    """Return the seconds of the walk of 32 models in one batch."""
    models = [PegasosClassifier(alpha=alpha) for alpha in ALPHAS]
    return sum(one.seconds for one in tree_cross_validate_many(models, *rows, cv=10))


@cache
def updates(name: str) -> int:
    """Return the number of updates of one model in the walk over a table."""
    return tree_cross_validate(PegasosClassifier(), *table_of(name), cv=10).n_updates


def lanes_of(name: str, dtype: str) -> float:
    """Return the nanoseconds of a row and lane in the walk of 32 models over a table."""
    X, y = table_of(name)
    took = lanes((np.ascontiguousarray(X, dtype), y))
    return 1e9 * took / (len(ALPHAS) * updates(name))


def work_of_lanes() -> dict[str, Callable[[], float]]:
    """Return what ``lanes`` times, by its name."""
    return {
        f"{name}, {dtype}": partial(lanes_of, name, dtype) for name in TABLES for dtype in FLOATS
    }


def work() -> dict[str, Callable[[], float]]:
    """Return what is timed, by its name."""
    found: dict[str, Callable[[], float]] = {}
    for dtype in FLOATS:
        rows = rows_of(dtype)
        n_rows = len(rows[1])
        pegasos, one_epoch = PegasosClassifier(), SGDClassifier(max_iter=1, tol=None)
        scaled = make_pipeline(StandardScaler(), pegasos)
        call = partial(seconds, tree_cross_validate)
        found |= {
            f"epoch, {dtype}": partial(seconds, one_epoch.fit, *rows),
            f"fits, {dtype}": partial(seconds, cross_val_score, one_epoch, *rows, cv=10),
            f"walk, {dtype}": partial(walk, pegasos, rows, cv=10),
            f"call, {dtype}": partial(call, pegasos, *rows, cv=10),
            f"leave-one-out, {dtype}": partial(call, pegasos, *rows, cv=n_rows),
            f"scaled, {dtype}": partial(call, scaled, *rows, cv=10),
            f"scaled leave-one-out, {dtype}": partial(call, scaled, *rows, cv=n_rows),
            f"lanes, {dtype}": partial(lanes, rows),
            f"study, {dtype}": partial(study, rows),
        }
    return found


def first_call(dtype: str) -> None:
    """Print the seconds of the first call of a process, and its peak of memory above X, in X."""
    X, y = rows_of(dtype)
    took: list[float] = []

    def one() -> None:
        took.append(seconds(tree_cross_validate, PegasosClassifier(), X, y, cv=10))

    grown = peak_bytes(one)
    print(took[0], grown / X.nbytes)


def first_calls(python: str, dtype: str) -> list[float]:
    """Return the medians of both numbers over some processes."""
    command = [python, __file__, "--first", dtype]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(N_ROUNDS)
    ]
    return [float(one) for one in np.median(np.array(runs, float), axis=0)]


def main(python: str, only: str = "") -> None:
    """Print the times of both builds, and the ratios that matter."""
    pythons = [sys.executable, python]
    if only == "lanes":
        print("| ns per row and lane | now | before | ratio |\n|---|---|---|---|")
        for name, (now, before) in in_turns(__file__, pythons, N_ROUNDS, answered="--lanes"):
            print(f"| {name} | {now:.2f} | {before:.2f} | {now / before:.2f} |")
        return
    times = dict(in_turns(__file__, pythons, N_ROUNDS))
    print("| | now, s | before, s |\n|---|---|---|")
    for name, (now, before) in times.items():
        print(f"| {name} | {now:.4f} | {before:.4f} |")
    print("\n| | now | before |\n|---|---|---|")
    for dtype in FLOATS:
        of = {name.split(", ")[0]: np.array(each) for name, each in times.items() if dtype in name}
        first = np.array([first_calls(one, dtype) for one in pythons]).T
        one = tree_cross_validate(PegasosClassifier(), *rows_of(dtype), cv=10)
        n_updates = len(ALPHAS) * one.n_updates
        for name, values in {
            "first call / walk": first[0] / of["walk"],
            "second call / walk": of["call"] / of["walk"],
            "fits of SGDClassifier / call": of["fits"] / of["call"],
            "leave-one-out, epochs": of["leave-one-out"] / of["epoch"],
            "study of 32 lambdas, epochs": of["study"] / of["epoch"],
            "32 lanes, ns per row and lane": 1e9 * of["lanes"] / n_updates,
            "scaled / bare, k = 10": of["scaled"] / of["call"],
            "scaled / bare, leave-one-out": of["scaled leave-one-out"] / of["leave-one-out"],
            "peak above X of a first call, X": first[1],
        }.items():
            print(f"| {name}, {dtype} | {values[0]:.2f} | {values[1]:.2f} |")


if __name__ == "__main__":
    if sys.argv[1:] == ["--answer"]:
        answer(work())
    elif sys.argv[1:] == ["--lanes"]:
        answer(work_of_lanes())
    elif sys.argv[1] == "--first":
        first_call(sys.argv[2])
    else:
        main(*sys.argv[1:])
