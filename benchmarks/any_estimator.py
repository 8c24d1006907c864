"""Measure the method "fit" and the chain: overhead, time series, and what pruning saves.

    OMP_NUM_THREADS=1 python benchmarks/any_estimator.py [RUNS [PART ...]]

PART is "overhead", "chain" or "pruning" (default: all). The output is Markdown tables of medians
over RUNS runs (default 5; for "pruning" as many seeds). "pruning" counts fits, takes about 10
minutes per seed and needs LightGBM. datasets.py describes the data.

* overhead: seconds of ``tree_cross_validate`` and of ``cross_validate`` of scikit-learn with the
  same folds, in turn, and what ours takes longer.
* chain: PEGASOS on all of Covertype with ``TimeSeriesSplit(10)``, by the chain and by ten
  trainings of our own, in turn.
* pruning: 60 trials of TPE with 10 folds each and ``WilcoxonPruner(p_threshold=0.1)``. Afterwards
  the pruned trials are evaluated in full. The regret is the value of the chosen trial less that of
  the best of all 60, over the standard error of the best one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import math
from statistics import median
import sys
from time import perf_counter
from typing import Any

import datasets
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_validate
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import TimeSeriesSplit

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective


def seconds(work: Callable[[], Any]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def overhead(runs: int) -> None:
    print("| k | ours, ms | scikit-learn, ms | longer by, ms | per fold, ms |")
    print("|---|---|---|---|---|")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20_000, 20)), rng.integers(0, 2, 20_000)
    for k in (5, 50):
        options = {"cv": StratifiedKFold(k, shuffle=True, random_state=0), "scoring": "accuracy"}
        ask = partial(cross_validate, DummyClassifier(), X, y, **options)
        ask_ours = partial(tree_cross_validate, DummyClassifier(), X, y, **options)
        ours, theirs = [], []
        for _ in range(2 * runs + 1):
            theirs.append(seconds(ask))
            ours.append(seconds(ask_ours))
        mine, other = 1000 * median(ours), 1000 * median(theirs)
        longer = mine - other
        print(f"| {k} | {mine:.1f} | {other:.1f} | {longer:.1f} | {longer / k:.2f} |", flush=True)


def chain(runs: int) -> None:
    X, y, name = datasets.covertype()
    cv = TimeSeriesSplit(10)
    times: dict[str, list[float]] = {"treecv": [], "standard": []}
    found = {}
    for _ in range(runs):
        for method, taken in times.items():
            result = tree_cross_validate(PegasosClassifier(), X, y, cv=cv, method=method)
            taken.append(result.seconds)
            found[method] = result
    one, many = found["treecv"], found["standard"]
    assert np.array_equal(one.test_score, many.test_score)
    ratio = median(times["standard"]) / median(times["treecv"])
    print(f"| {name}, TimeSeriesSplit(10) | seconds | row updates / n |")
    print("|---|---|---|")
    print(f"| {one.method} | {median(times['treecv']):.4f} | {one.n_updates / len(y):.3f} |")
    print(f"| standard | {median(times['standard']):.4f} | {many.n_updates / len(y):.3f} |")
    print(f"| times faster | {ratio:.2f} | {many.n_updates / one.n_updates:.2f} |", flush=True)


def boosting() -> tuple[Any, dict[str, Any], Any, Any, str]:
    from lightgbm import LGBMClassifier

    X, y, name = datasets.covertype()
    model = LGBMClassifier(n_estimators=40, n_jobs=1, verbose=-1)
    space = {
        "learning_rate": FloatDistribution(0.01, 0.5, log=True),
        "num_leaves": IntDistribution(4, 128, log=True),
        "min_child_samples": IntDistribution(5, 500, log=True),
        "reg_lambda": FloatDistribution(1e-3, 100, log=True),
    }
    return model, space, X[:50_000], y[:50_000], f"LightGBM, 50,000 rows of {name}"


def forest() -> tuple[Any, dict[str, Any], Any, Any, str]:
    X, y, name = datasets.magic()
    space = {
        "max_depth": IntDistribution(2, 30),
        "max_features": IntDistribution(1, 10),
        "min_samples_leaf": IntDistribution(1, 100, log=True),
    }
    return RandomForestClassifier(20, random_state=0), space, X, y, f"random forest, {name}"


def pruning(runs: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print("| | seed | fits | of | saved | pruned trials | regret, standard errors |")
    print("|---|---|---|---|---|---|---|")
    for make in (boosting, forest):
        model, space, X, y, name = make()
        for seed in range(runs):
            objective = treecv_objective(
                model, X, y, param_distributions=space, cv=10, report="folds"
            )
            study = optuna.create_study(
                sampler=optuna.samplers.TPESampler(seed=seed),
                pruner=optuna.pruners.WilcoxonPruner(p_threshold=0.1),
            )
            study.optimize(objective, n_trials=60)
            n_fits = sum(len(trial.intermediate_values) for trial in study.trials)
            pruned = [trial for trial in study.trials if trial.state.name == "PRUNED"]
            values = [objective.evaluate(trial.params) for trial in study.trials]
            best = min(values, key=lambda result: result.mean)
            assert best.std is not None
            regret = (study.best_value - best.mean) / (best.std / math.sqrt(10))
            print(
                f"| {name} | {seed} | {n_fits} | 600 | {1 - n_fits / 600:.0%} | {len(pruned)} | "
                f"{regret:.3f} |",
                flush=True,
            )


def main(runs: str = "5", *parts: str) -> None:
    known = {"overhead": overhead, "chain": chain, "pruning": pruning}
    for name in parts or known:
        print(f"\n## {name}\n", flush=True)
        known[name](int(runs))


if __name__ == "__main__":
    main(*sys.argv[1:])
