"""Measure Pipelines before compiled learners: tables in Markdown.

    OMP_NUM_THREADS=1 python benchmarks/pipelines.py [RUNS [GROUP ...]]

GROUP is "scaled" (PEGASOS on Covertype behind a StandardScaler, beside PEGASOS alone on rows that
were standardised before; one model with ten folds and leave-one-out, and 32 lanes), "wide"
(flights of nycflights13 with 2,300 one-hot columns, and numbers with gaps, which are filled in and
scaled; beside ten fits of the same Pipeline), "beside" (seven numbers and five categories in
20,000 made rows, by the number of columns: centred columns beside sparse rows, and dense rows) or
"tables" (64 trials on raw tables: one-hot, scaler, averaged SGD with the logistic or squared loss,
ten folds, beside OptunaSearchCV on the same Pipeline with scikit-learn's SGD); default: all. One
thread, medians of RUNS runs in turn (default 5; of fits and of OptunaSearchCV one run). Times of
"scaled" and "beside" are those of the walk alone; the rows are prepared and their blocks surveyed
before.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
import sys
from typing import Any
from unittest.mock import patch
import warnings

import datasets
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pandas as pd
from search import in_turn
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.engines.treecv.learners.compiled import Lanes
from optuna_treecv.preprocessing.decisions import split
from optuna_treecv.preprocessing.fitted import FittedSteps
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.partition import Partition

GROUPS = ("scaled", "wide", "beside", "tables")


def scaled(runs: int) -> None:
    X, y, name = datasets.covertype()
    order = np.random.default_rng(0).permutation(len(y)).astype(np.uint32)
    estimator = PegasosClassifier(alpha=1e-5)
    front = FittedSteps(split(make_pipeline(StandardScaler(), estimator)), X)
    behind = Data(X, y).prepare(estimator.row_layout, order)
    alone = Data(StandardScaler().fit_transform(X), y).prepare(estimator.row_layout, order)

    def learner(alpha: float, is_behind: bool) -> Any:
        one = clone(estimator).set_params(alpha=alpha)
        return one.make_learner(behind, 0, front) if is_behind else one.make_learner(alone, 0)

    def walk(trainer: Any, k: int, n_models: int) -> Callable[[], Any]:
        plan, out = Partition(len(y), k), np.empty((n_models * len(y), 1))
        return lambda: trainer.walk_subtree(plan, plan.root, trainer.start(), out)

    def lanes(is_behind: bool) -> Lanes:
        return Lanes([learner(alpha, is_behind) for alpha in np.geomspace(1e-7, 1e-2, 32)])

    print("| Covertype | alone, s | behind a scaler, s | times |\n|---|---|---|---|")
    for what, k, n_models in (
        ("k=10", 10, 1),
        ("leave-one-out", len(y), 1),
        ("32 lanes, k=10", 10, 32),
    ):
        make = lanes if n_models > 1 else lambda is_behind: learner(1e-5, is_behind)
        programs = {str(one): walk(make(one), k, n_models) for one in (False, True)}
        found = in_turn(programs, runs)
        ratio = found["True"] / found["False"]
        print(f"| {what} | {found['False']:.4g} | {found['True']:.4g} | {ratio:.2f} |", flush=True)


def bike_sharing() -> tuple[pd.DataFrame, np.ndarray, list[str]]:
    f = np.load(datasets.file_of("bike_sharing_hour.npz"))
    X = pd.DataFrame(f["X"], columns=f["feature_names"].astype(str))
    kinds = ["season", "mnth", "hr", "weekday", "weathersit"]
    for column in kinds:
        X[column] = X[column].astype(int).astype("category")
    return X, f["y"].astype(np.float64), kinds


def weather() -> tuple[pd.DataFrame, np.ndarray, list[str]]:
    f = np.load(datasets.file_of("weather_noaa.npz"))
    X = pd.DataFrame(f["X"], columns=[f"x{i}" for i in range(8)])
    return X, f["y"], []  # all of them are numbers


def steps(X: pd.DataFrame, kinds: list[str]) -> Any:
    numbers = [column for column in X if column not in kinds]
    return make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), kinds), (StandardScaler(), numbers)
    )


def flights() -> tuple[pd.DataFrame, np.ndarray, list[str]]:
    f = np.load(datasets.file_of("nycflights13.npz"))
    X = pd.DataFrame(f["numeric"], columns=f["numeric_names"].astype(str)).astype(np.float64)
    X.loc[np.random.default_rng(0).random(len(X)) < 0.05, "distance"] = np.nan
    kinds = ["carrier", "origin", "dest"]
    for column in kinds:
        X[column] = pd.Categorical(f[f"{column}_names"][f[column]])
    return X, f["arr_delay"].astype(np.float64), [*kinds, "sched_dep_time", "sched_arr_time"]


def wide(runs: int) -> None:
    X, y, kinds = flights()
    numbers = [column for column in X if column not in kinds]
    before = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), kinds),
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
    )
    pipeline = make_pipeline(before, AveragedSGDRegressor(alpha=1e-6))
    n_columns = before.fit_transform(X).shape[1]
    print(f"| {len(X):,} flights, {n_columns:,} columns | call, s | walk, s |\n|---|---|---|")
    for name, k, options in (
        ("k=10", 10, {}),
        ("leave-one-out", "loo", {}),
        ("k=10, fits", 10, {"method": "fit"}),
    ):
        walks: list[float] = []

        def call(k: Any = k, options: Any = options, walks: list[float] = walks) -> None:
            walks.append(tree_cross_validate(pipeline, X, y, cv=k, **options).seconds)

        whole = in_turn({name: call}, 1 if options else runs)[name]
        print(f"| {name} | {whole:.3g} | {median(walks):.3g} |", flush=True)


def beside(runs: int) -> None:
    n_rows, rng = 20_000, np.random.default_rng(0)
    order = rng.permutation(n_rows).astype(np.uint32)
    print("| learner, columns, lanes | beside, s | dense, s | times |\n|---|---|---|---|")
    for estimator in (
        PegasosClassifier(alpha=1e-4),
        AveragedSGDClassifier(alpha=1e-4, step_size=0.01),
    ):
        for n_columns in (64, 128, 500):
            numbers = rng.normal(3, 2, (n_rows, 7))
            codes = rng.integers(0, (n_columns - 7) // 5, (n_rows, 5))
            X, y = np.hstack([numbers, codes]), (numbers[:, 0] > 3).astype(int)
            before = make_column_transformer(
                (StandardScaler(), slice(0, 7)),
                (OneHotEncoder(handle_unknown="ignore"), slice(7, 12)),
                sparse_threshold=1,
            )
            for n_lanes in (1, 32):
                programs = {}
                for kind, most in (("beside", 0), ("dense", n_columns)):
                    with patch("optuna_treecv.preprocessing.fitted._MOST_DENSE", most):
                        front = FittedSteps(split(make_pipeline(before, estimator)), X)
                    layout = front.layout_for(make_pipeline(before, estimator))
                    rows = Data(X, y).transformed(front.transform).prepare(layout, order)
                    learners = [estimator.make_learner(rows, 0, front) for _ in range(n_lanes)]
                    trainer: Any = learners[0] if n_lanes == 1 else Lanes(learners)
                    plan, out = Partition(n_rows, 10), np.empty((n_lanes * n_rows, 1))

                    def walk(trainer: Any = trainer, plan: Any = plan, out: Any = out) -> None:
                        trainer.walk_subtree(plan, plan.root, trainer.start(), out)

                    programs[kind] = walk
                found = in_turn(programs, runs)
                name = f"{type(estimator).__name__}, {n_columns}, {n_lanes}"
                ratio = found["dense"] / found["beside"]
                print(f"| {name} | {found['beside']:.3g} | {found['dense']:.3g} | {ratio:.2f} |")


def tables(runs: int) -> None:
    try:
        from optuna_integration import OptunaSearchCV
    except ImportError:
        print("optuna-integration is not installed")
        return
    options = {"average": True, "max_iter": 1, "tol": None, "random_state": 0}
    print("| 64 trials, k=10 | ours, s | OptunaSearchCV, s | times |\n|---|---|---|---|")
    for name, (X, y, kinds), own, other in (
        (
            "bike sharing by hour",
            bike_sharing(),
            AveragedSGDRegressor(step_size=0.01),
            SGDRegressor(learning_rate="constant", eta0=0.01, **options),
        ),
        (
            "weather",
            weather(),
            AveragedSGDClassifier(loss="log_loss", step_size=0.01),
            SGDClassifier(loss="log_loss", **options),
        ),
    ):
        space = {"learn__alpha": FloatDistribution(1e-7, 1e-1, log=True)}

        def pipeline(learner: Any, X: Any = X, kinds: Any = kinds) -> Pipeline:
            return Pipeline([("prepare", steps(X, kinds)), ("learn", learner)])

        search = TreeCVSearchCV(pipeline(own), space, n_trials=64, cv=10, random_state=0)
        theirs = OptunaSearchCV(pipeline(other), space, cv=10, n_trials=64, random_state=0)
        found = in_turn({"ours": lambda s=search, X=X, y=y: s.fit(X, y)}, runs)["ours"]
        other_found = in_turn({"theirs": lambda s=theirs, X=X, y=y: s.fit(X, y)}, 1)["theirs"]
        print(
            f"| {name}, {len(X):,} rows | {found:.3g} | {other_found:.3g} | "
            f"{other_found / found:.0f} |",
            flush=True,
        )


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # of optuna-integration, and of one pass
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for group in sys.argv[2:] or GROUPS:
        globals()[group](runs)


if __name__ == "__main__":
    main()
