"""Studies of boosters: an objective that calls the library's own cross-validation, and ours.

    OMP_NUM_THREADS=1 python benchmarks/boosters.py [LIBRARY] [N_TRIALS] [DATA ...]

LIBRARY is "lightgbm" (the default), "xgboost" or "sklearn". Each study has 60 trials of TPE over
8 parameters, up to 200 trees and 5 folds. They run in turns on one thread. TPE takes another path
where trials are pruned, so one seed says little: with --seeds N, the last line has medians.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any
import warnings

import datasets
import lightgbm
from lightgbm import LGBMClassifier
from lightgbm import LGBMRegressor
import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold
import xgboost
from xgboost import XGBClassifier
from xgboost import XGBRegressor

from optuna_treecv import treecv_objective

MOST_TREES, PATIENCE, N_FOLDS = 200, 20, 5


def _log(low: float, high: float) -> BaseDistribution:
    if isinstance(low, int):
        return IntDistribution(low, int(high), log=True)
    return FloatDistribution(low, high, log=True)


SPACES: dict[str, dict[str, BaseDistribution]] = {
    "lightgbm": {
        "learning_rate": _log(0.01, 0.3),
        "num_leaves": _log(8, 128),
        "min_child_samples": _log(5, 100),
        "colsample_bytree": FloatDistribution(0.3, 1),
        "subsample": FloatDistribution(0.5, 1),
        "reg_lambda": _log(1e-6, 10.0),
        "reg_alpha": _log(1e-6, 10.0),
        "min_split_gain": _log(1e-8, 1.0),
    },
    "xgboost": {
        "learning_rate": _log(0.01, 0.3),
        "max_depth": IntDistribution(3, 8),
        "min_child_weight": _log(1, 30),
        "colsample_bytree": FloatDistribution(0.3, 1),
        "subsample": FloatDistribution(0.5, 1),
        "reg_lambda": _log(1e-3, 10.0),
        "reg_alpha": _log(1e-6, 10.0),
        "gamma": _log(1e-8, 1.0),
    },
    "sklearn": {
        "learning_rate": _log(0.01, 0.3),
        "max_leaf_nodes": _log(8, 128),
        "min_samples_leaf": _log(5, 100),
        "l2_regularization": _log(1e-6, 10.0),
        "max_features": FloatDistribution(0.3, 1),
        "max_depth": IntDistribution(3, 12),
    },
}


def rows(name: str, most: int = 50_000) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a data set, so many at most, and the classes 0 and 1 or the targets."""
    if name == "covertype":
        X, y, _ = datasets.covertype()
        y = np.asarray(y)
    else:
        X, y, _ = getattr(datasets, {"flights": "nycflights13"}.get(name, name))()
    order = np.random.default_rng(7).permutation(len(X))[:most]
    X, y = np.asarray(X, dtype=np.float64)[order], np.asarray(y)[order]
    if set(np.unique(y)) == {-1, 1}:
        y = (y > 0).astype(int)
    return X, y


def is_classes(y: np.ndarray) -> bool:
    """Return whether the targets are classes."""
    return len(np.unique(y)) == 2


def folds_of(X: np.ndarray, y: np.ndarray) -> Any:
    """Return the splitter."""
    kind = StratifiedKFold if is_classes(y) else KFold
    return kind(N_FOLDS, shuffle=True, random_state=0)


def by_lightgbm(X: np.ndarray, y: np.ndarray) -> Callable[[optuna.Trial], float]:
    """Return an objective that calls ``lightgbm.cv`` with a Dataset that is kept."""
    fixed = {"verbose": -1, "num_threads": 1, "seed": 0, "subsample_freq": 1}
    fixed |= {"feature_pre_filter": False}
    name = "binary_logloss" if is_classes(y) else "l2"
    fixed |= {"objective": "binary" if is_classes(y) else "regression", "metric": name}
    data = lightgbm.Dataset(X, y, params=dict(fixed), free_raw_data=False).construct()
    folds = list(folds_of(X, y).split(X, y))

    def objective(trial: optuna.Trial) -> float:
        params = fixed | suggested(trial, "lightgbm")
        stop = lightgbm.early_stopping(PATIENCE, verbose=False)
        found = lightgbm.cv(params, data, MOST_TREES, folds=folds, callbacks=[stop])
        return float(min(found[f"valid {name}-mean"]))

    return objective


def by_xgboost(X: np.ndarray, y: np.ndarray) -> Callable[[optuna.Trial], float]:
    """Return an objective that calls ``xgboost.cv``."""
    name = "logloss" if is_classes(y) else "rmse"
    fixed = {"objective": "binary:logistic" if is_classes(y) else "reg:squarederror"}
    fixed |= {"nthread": 1, "seed": 0, "eval_metric": name}
    data = xgboost.DMatrix(X, y, nthread=1)
    folds = list(folds_of(X, y).split(X, y))

    def objective(trial: optuna.Trial) -> float:
        params = fixed | suggested(trial, "xgboost")
        found = xgboost.cv(
            params, data, MOST_TREES, folds=folds, early_stopping_rounds=PATIENCE, as_pandas=False
        )
        return float(min(found[f"test-{name}-mean"]) ** (1 if is_classes(y) else 2))

    return objective


def by_sklearn(X: np.ndarray, y: np.ndarray) -> Callable[[optuna.Trial], float]:
    """Return an objective that calls ``cross_val_score``."""
    kind = HistGradientBoostingClassifier if is_classes(y) else HistGradientBoostingRegressor
    scoring = "neg_log_loss" if is_classes(y) else "neg_mean_squared_error"

    def objective(trial: optuna.Trial) -> float:
        estimator = kind(max_iter=MOST_TREES, early_stopping=False, random_state=0)
        estimator.set_params(**suggested(trial, "sklearn"))
        return -float(cross_val_score(estimator, X, y, cv=folds_of(X, y), scoring=scoring).mean())

    return objective


def suggested(trial: optuna.Trial, library: str) -> dict[str, Any]:
    """Return the parameters of a trial."""
    values: dict[str, Any] = {}
    for name, one in SPACES[library].items():
        if isinstance(one, IntDistribution):
            values[name] = trial.suggest_int(name, one.low, one.high, log=one.log)
        else:
            assert isinstance(one, FloatDistribution)
            values[name] = trial.suggest_float(name, one.low, one.high, log=one.log)
    return values


def ours(X: np.ndarray, y: np.ndarray, library: str) -> Any:
    """Return our objective for the same."""
    options: dict[str, Any] = {"n_estimators": MOST_TREES, "n_jobs": 1, "random_state": 0}
    if library == "lightgbm":
        kind = LGBMClassifier if is_classes(y) else LGBMRegressor
        options |= {"early_stopping_round": PATIENCE, "verbose": -1, "subsample_freq": 1}
    elif library == "xgboost":
        kind = XGBClassifier if is_classes(y) else XGBRegressor
        options |= {"early_stopping_rounds": PATIENCE}
    else:
        kind = HistGradientBoostingClassifier if is_classes(y) else HistGradientBoostingRegressor
        options = {"max_iter": MOST_TREES, "early_stopping": False, "random_state": 0}
    return treecv_objective(
        kind(**options),
        X,
        y,
        param_distributions=SPACES[library],
        cv=folds_of(X, y),
        scoring="log_loss" if is_classes(y) else "squared_error",
        n_estimators="best",
        report="auto",
    )


def run(objective: Any, pruner: Any, n_trials: int, seed: int) -> tuple[float, float, int]:
    """Return the seconds of a study, its best value and the number of pruned trials."""
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    began = perf_counter()
    study.optimize(objective, n_trials=n_trials)
    seconds = perf_counter() - began
    pruned = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.PRUNED,))
    return seconds, study.best_value, len(pruned)


def main() -> None:
    """Print the seconds of both studies for each data set and seed."""
    parser = ArgumentParser()
    parser.add_argument("library", nargs="?", default="lightgbm", choices=SPACES)
    parser.add_argument("n_trials", nargs="?", default=60, type=int)
    parser.add_argument("data", nargs="*", default=["magic", "bike", "covertype", "flights"])
    parser.add_argument("--seeds", default=1, type=int)
    given = parser.parse_args()
    plain = {"lightgbm": by_lightgbm, "xgboost": by_xgboost, "sklearn": by_sklearn}[given.library]
    print(f"{given.library}: {given.n_trials} trials, {MOST_TREES} trees, {N_FOLDS} folds")
    for name in given.data:
        X, y = rows(name)
        ratios, gains = [], []
        for seed in range(given.seeds):
            objective = ours(X, y, given.library)
            runs = {
                "plain": partial(run, plain(X, y), optuna.pruners.NopPruner()),
                "ours": partial(run, objective, objective.pruner()),
            }
            found = {one: work(given.n_trials, seed) for one, work in runs.items()}
            ratios.append(found["plain"][0] / found["ours"][0])
            gains.append(1 - found["ours"][1] / found["plain"][1])
            print(f"{name:10} seed {seed}", end="")
            for one, (seconds, value, n_pruned) in found.items():
                print(f"  {one} {seconds:.1f} s, best {value:.5g}, {n_pruned} pruned", end="")
            print(f"  ratio {ratios[-1]:.2f}", flush=True)
        if given.seeds > 1:
            print(
                f"{name:10} medians: ratio {median(ratios):.2f}, "
                f"best value of ours lower by {median(gains):.2%}",
                flush=True,
            )


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore")
    main()
