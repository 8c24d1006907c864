"""Studies of boosters: an objective that calls the library's own cross-validation, and ours.

    OMP_NUM_THREADS=1 python benchmarks/boosters.py study [LIBRARY] [N_TRIALS] [DATA ...]
    OMP_NUM_THREADS=1 python benchmarks/boosters.py evaluation [LIBRARY] [N_REPEATS] [DATA ...]
    OMP_NUM_THREADS=1 python benchmarks/boosters.py floor [LIBRARY] [N_REPEATS] [DATA ...]
    python benchmarks/boosters.py threads

LIBRARY is "lightgbm" (the default), "xgboost" or "sklearn". A study has 20 trials of TPE over four
parameters, up to 300 trees and 5 folds of 20,000 rows. It runs with the library's own
cross-validation, without a pruner and (LightGBM only) with pruners of Optuna, and with ours. They
run in turns on one thread, and the seconds are those of the processor. Regret is the loss of the
winner on up to 20,000 withheld rows minus that of the winner without a pruner, in standard errors
of the mean over the folds; TPE takes another path if trials are pruned, so a single seed says
little (--seeds N). ``evaluation`` compares single evaluations of five candidates without a
pruner, after one that has prepared the rows. ``floor`` shows which parts of them are LightGBM's
own: updates, predictions of the test rows, and its metric. ``threads`` compares threads for folds
with those of the library.
"""

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter
from time import process_time
from typing import Any
import warnings

import datasets
from joblib import cpu_count
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
from sklearn.metrics import log_loss
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold
import xgboost
from xgboost import XGBClassifier
from xgboost import XGBRegressor

from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

MOST_TREES, PATIENCE, N_FOLDS, N_ROWS = 300, 20, 5, 20_000
DATA = ("elec2", "covertype", "magic", "bike", "protein", "flights")


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
    },
    "xgboost": {
        "learning_rate": _log(0.01, 0.3),
        "max_depth": IntDistribution(3, 8),
        "min_child_weight": _log(1, 30),
        "colsample_bytree": FloatDistribution(0.3, 1),
    },
    "sklearn": {
        "learning_rate": _log(0.01, 0.3),
        "max_leaf_nodes": _log(8, 128),
        "min_samples_leaf": _log(5, 100),
        "max_features": FloatDistribution(0.3, 1),
    },
}


def rows(name: str, most: int = N_ROWS) -> tuple[np.ndarray, np.ndarray]:
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


def by_lightgbm(
    X: np.ndarray, y: np.ndarray, reports: bool = False
) -> Callable[[optuna.Trial], float]:
    """Return an objective that calls ``lightgbm.cv`` with a Dataset that is kept.

    If ``reports`` is true, it reports every tenth mean to the pruner.
    """
    fixed = {"verbose": -1, "num_threads": 1, "seed": 0, "subsample_freq": 1}
    fixed |= {"feature_pre_filter": False}
    name = "binary_logloss" if is_classes(y) else "l2"
    fixed |= {"objective": "binary" if is_classes(y) else "regression", "metric": name}
    data = lightgbm.Dataset(X, y, params=dict(fixed), free_raw_data=False).construct()
    folds = list(folds_of(X, y).split(X, y))

    def objective(trial: optuna.Trial) -> float:
        params = fixed | suggested(trial, "lightgbm")

        def report(state: Any) -> None:
            end = state.iteration + 1
            if reports and end % 10 == 0:
                trial.report(state.evaluation_result_list[0][2], end)
                if trial.should_prune():
                    raise optuna.TrialPruned

        stop = lightgbm.early_stopping(PATIENCE, verbose=False)
        found = lightgbm.cv(params, data, MOST_TREES, folds=folds, callbacks=[stop, report])
        losses = found[f"valid {name}-mean"]
        trial.set_user_attr("n_trees", int(np.argmin(losses)) + 1)
        return float(min(losses))

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
    """Return an objective that scores the staged predictions of each fold."""
    kind = HistGradientBoostingClassifier if is_classes(y) else HistGradientBoostingRegressor
    method, loss = "staged_predict", mean_squared_error
    if is_classes(y):
        method, loss = "staged_predict_proba", log_loss

    def objective(trial: optuna.Trial) -> float:
        estimator = kind(max_iter=MOST_TREES, early_stopping=False, random_state=0)
        estimator.set_params(**suggested(trial, "sklearn"))
        curves = []
        for train, test in folds_of(X, y).split(X, y):
            estimator.fit(X[train], y[train])
            curves.append([loss(y[test], p) for p in getattr(estimator, method)(X[test])])
        return float(np.mean(curves, axis=0).min())

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


def withheld_loss(trial: optuna.trial.FrozenTrial, n_trees: int, *data: np.ndarray) -> float:
    """Return the loss of a trial's booster, fitted on all rows, on withheld rows."""
    X, y, withheld_X, withheld_y = data
    kind = LGBMClassifier if is_classes(y) else LGBMRegressor
    estimator = kind(n_estimators=n_trees, n_jobs=1, random_state=0, verbose=-1, subsample_freq=1)
    estimator.set_params(**trial.params).fit(X, y)
    if is_classes(y):
        return float(log_loss(withheld_y, estimator.predict_proba(withheld_X)))
    return float(mean_squared_error(withheld_y, estimator.predict(withheld_X)))


def run(objective: Any, pruner: Any, n_trials: int, seed: int) -> tuple[float, optuna.Study]:
    """Return the seconds of a study, and the study."""
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    began = process_time()
    study.optimize(objective, n_trials=n_trials)
    return process_time() - began, study


PLAIN = {"lightgbm": by_lightgbm, "xgboost": by_xgboost, "sklearn": by_sklearn}


def studies(library: str, n_trials: int, names: list[str], n_seeds: int) -> None:
    """Print the seconds and regrets of studies."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, seed in product(names, range(n_seeds)):
        X, y = rows(name, 2 * N_ROWS)
        n_rows = min(N_ROWS, int(0.8 * len(X)))
        data = X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]
        objective, plain = ours(*data[:2], library), PLAIN[library](*data[:2])
        runs = {"no pruner": (plain, optuna.pruners.NopPruner())}
        if library == "lightgbm":
            reporting = by_lightgbm(*data[:2], reports=True)
            runs["MedianPruner"] = reporting, optuna.pruners.MedianPruner()
            runs["HyperbandPruner"] = reporting, optuna.pruners.HyperbandPruner()
        runs["ours"] = objective, objective.pruner()
        turns = [*runs]
        np.random.default_rng(seed).shuffle(turns)
        of_runs = {turn: run(*runs[turn], n_trials, seed) for turn in turns}
        losses = dict.fromkeys(runs, 0.0)
        if library == "lightgbm":
            for turn, (_, study) in of_runs.items():
                best = study.best_trial
                facts = best.user_attrs
                n_trees = facts["n_trees"] if turn != "ours" else facts["treecv"]["n_estimators"]
                losses[turn] = withheld_loss(best, n_trees, *data)
        error = objective.evaluate(of_runs["ours"][1].best_params).std_error
        seconds = of_runs["no pruner"][0]
        for turn in runs:
            share = of_runs[turn][0] / seconds
            regret = (losses[turn] - losses["no pruner"]) / error
            found.setdefault(turn, []).append((share, regret))
            n_pruned = sum(x.state.name == "PRUNED" for x in of_runs[turn][1].trials)
            print(
                f"{name:10} seed {seed} {turn:16} {of_runs[turn][0]:6.1f} s, share {share:.3f}, "
                f"{n_pruned} pruned, best {of_runs[turn][1].best_value:.5g}, "
                f"withheld {losses[turn]:.5g}, regret {regret:+.2f}",
                flush=True,
            )
    for turn, of_turn in found.items():
        share, regret = np.array(of_turn).T
        spread = regret.std() / len(regret) ** 0.5
        print(f"{turn:16} share {share.mean():.3f}, regret {regret.mean():+.2f} +- {spread:.2f}")


def evaluations(library: str, n_repeats: int, names: list[str]) -> None:
    """Print the ratios of seconds of single evaluations."""
    regularization = {"sklearn": "max_features"}.get(library, "colsample_bytree")
    for name in names:
        X, y = rows(name)
        plain, objective = PLAIN[library](X, y), ours(X, y, library)
        run(objective, optuna.pruners.NopPruner(), 1, 99)  # prepares the rows
        ratios = []
        for seed in range(5):
            sampler = optuna.samplers.RandomSampler(seed=seed)
            trial = optuna.create_study(sampler=sampler).ask()
            suggested(trial, library)
            seconds: dict[bool, list[float]] = {True: [], False: []}
            for repeat, is_ours in product(range(n_repeats), (True, False)):
                is_ours ^= bool(repeat % 2)
                study = optuna.create_study()
                # Slightly different, so that the scores are not cached.
                value = trial.params[regularization] - 1e-9 * repeat
                study.enqueue_trial(trial.params | {regularization: value})
                began = process_time()
                study.optimize(objective if is_ours else plain, n_trials=1)
                seconds[is_ours].append(process_time() - began)
            ratios.append(median(seconds[True]) / median(seconds[False]))
        print(
            f"{name:10} {library}: seconds of ours / theirs, median {median(ratios):.3f}, "
            f"from {min(ratios):.3f} to {max(ratios):.3f}",
            flush=True,
        )


def timed(name: str, seconds: Counter[str]) -> Callable[[], None]:
    """Add the seconds of a method of Booster to ``seconds``; return a function that ends this."""
    method = getattr(lightgbm.Booster, name)

    def call(*args: Any, **options: Any) -> Any:
        began = process_time()
        try:
            return method(*args, **options)
        finally:
            seconds[name] += process_time() - began

    setattr(lightgbm.Booster, name, call)
    return partial(setattr, lightgbm.Booster, name, method)


def floor(n_repeats: int, names: list[str]) -> None:
    """Print the seconds of evaluations, and of the parts of them that LightGBM does."""
    for name in names:
        X, y = rows(name)
        for_ours, plain = ours(X, y, "lightgbm"), PLAIN["lightgbm"](X, y)
        run(for_ours, optuna.pruners.NopPruner(), 1, 99)  # prepares the rows
        for seed in range(3):
            trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
            suggested(trial, "lightgbm")
            for repeat, (who, objective) in product(
                range(n_repeats), (("ours", for_ours), ("lightgbm.cv", plain))
            ):
                seconds: Counter[str] = Counter()
                methods = "update", "_Booster__inner_predict", "_Booster__inner_eval"
                ends = [timed(method, seconds) for method in methods]
                study = optuna.create_study()
                value = trial.params["colsample_bytree"] - 1e-9 * repeat
                study.enqueue_trial(trial.params | {"colsample_bytree": value})
                began = process_time()
                study.optimize(objective, n_trials=1)
                whole = process_time() - began
                for end in ends:
                    end()
                parts = ", ".join(f"{part} {seconds[part]:.2f}" for part in methods)
                print(f"{name} {seed} {who:11} {whole:.2f} s: {parts}", flush=True)


def threads(n_repeats: int) -> None:
    """Print the wall seconds of 5 folds, by the threads of folds and of the library."""
    n_cores = cpu_count()
    for n_rows, n_columns in ((2_000, 10), (20_000, 10), (20_000, 100)):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(n_rows, n_columns))
        y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=n_rows) > 0).astype(int)
        made = {
            "LightGBM": partial(LGBMClassifier, n_estimators=100, verbose=-1),
            "XGBoost": partial(XGBClassifier, n_estimators=100),
        }
        for library, make in made.items():
            seconds: dict[str, list[float]] = {}
            for _ in range(n_repeats):
                for name, of_folds, of_library in (
                    ("folds in threads", n_cores, 1),
                    ("library's threads", 1, n_cores),
                    ("both", n_cores, n_cores),
                ):
                    estimator = make(n_jobs=of_library, random_state=0)
                    began = perf_counter()
                    tree_cross_validate(estimator, X, y, cv=N_FOLDS, n_jobs=of_folds)
                    seconds.setdefault(name, []).append(perf_counter() - began)
            found = ", ".join(f"{name} {median(s):.2f} s" for name, s in seconds.items())
            print(f"{library}, {n_rows} x {n_columns}, {n_cores} cores: {found}", flush=True)


def main() -> None:
    """Print the seconds of both for each data set."""
    parser = ArgumentParser()
    parser.add_argument("what", choices=["study", "evaluation", "floor", "threads"])
    parser.add_argument("library", nargs="?", default="lightgbm", choices=SPACES)
    parser.add_argument("number", nargs="?", default=0, type=int)
    parser.add_argument("data", nargs="*", default=DATA)
    parser.add_argument("--seeds", default=1, type=int)
    given = parser.parse_args()
    if given.what == "study":
        studies(given.library, given.number or 20, given.data, given.seeds)
    elif given.what == "floor":
        floor(given.number or 2, given.data)
    elif given.what == "threads":
        threads(given.number or 5)
    else:
        evaluations(given.library, given.number or 3, given.data)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    main()
