"""Measure what trials save by sharing models, and what sharing costs, as a Markdown table.

python benchmarks/sharing.py [ROUNDS [FOLDER]]

FOLDER must hold magic.npz and higgs_7k5.npz (arrays X and y); without it, grids are left out.
scikit-learn fetches Covertype.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
import sys
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from sklearn.datasets import fetch_covtype
from sklearn.preprocessing import scale
from sqlalchemy import event

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import treecv_objective

ALPHA = {"alpha": FloatDistribution(1e-9, 1e3, log=True)}


def covertype():
    X, y = fetch_covtype(return_X_y=True)
    return scale(X), (y == 2).astype(int)


def row(what, must, measured):
    print(f"| {what} | {must} | {measured} |", flush=True)


def seconds_of(objective, params):
    begin = perf_counter()
    objective.evaluate(params)
    return perf_counter() - begin


def overhead(X, y, rounds):
    """Compare a fresh cache with no cache; return medians of the ratios of pairs of runs."""
    for cv, must in ((100, "under 3 %"), (10, ""), ("loo", "")):
        alone = treecv_objective(
            PegasosClassifier(), X, y, param_distributions=ALPHA, cv=cv, cache=None
        )
        ratios, again = [], []
        shared = treecv_objective(
            PegasosClassifier(),
            X,
            y,
            param_distributions=ALPHA,
            cv=cv,
            cache=(cache := ModelCache()),
        )
        for i in range(rounds):
            params = {"alpha": 1e-6 * 1.01**i}
            cache.__init__()
            seconds = [seconds_of(alone, params), seconds_of(shared, params)]
            ratios.append(seconds[1] / seconds[0] - 1)
            again.append(seconds_of(shared, params))
            assert shared.evaluate(params).n_updates == 0
        row(f"overhead where nothing is shared, Covertype, cv={cv}", must, f"{median(ratios):.1%}")
        row(
            f"the same configuration again, cv={cv}", "under 5 ms", f"{1e3 * median(again):.1f} ms"
        )


def strangers(name, X, y, rounds):
    """Compare trials of a continuous parameter, which share little, with and without a cache.

    Of each trial the fastest of the rounds counts.
    """
    alphas = 10 ** np.random.default_rng(1).uniform(-7, 1, 100)
    for cv in (10, 100, "loo"):
        best = {"memory": np.inf, None: np.inf}
        for _ in range(rounds):
            for cache in best:
                objective = treecv_objective(
                    PegasosClassifier(), X, y, param_distributions=ALPHA, cv=cv, cache=cache
                )
                objective.evaluate({"alpha": 1.0})
                seconds = [seconds_of(objective, {"alpha": alpha}) for alpha in alphas]
                best[cache] = np.minimum(best[cache], seconds)
        ratio = best["memory"].sum() / best[None].sum()
        row(f"trials that share little, {name}, cv={cv}: time", "at most 1.25", f"{ratio:.2f}")


def saved(results):
    done = sum(result.n_updates for result in results)
    return 1 - done / (done + sum(result.n_updates_saved for result in results))


def doubling(X, y):
    cache, results = ModelCache(), []
    for cv in (8, 16, 32, 64):
        objective = treecv_objective(
            AveragedSGDClassifier(step_size=0.01),
            *(X, y),
            param_distributions={"step_size": CategoricalDistribution([0.01])},
            cv=cv,
            cache=cache,
        )
        results.append(objective.evaluate({"step_size": 0.01}))
    row("8, then 16, 32, 64 folds: updates", "at most 0.40", f"{1 - saved(results):.3f}")


def lambda_grid(name, X, y, must, rounds):
    grid = np.random.default_rng(0).permutation(np.geomspace(1e-8, 1e2, 64))
    times = {}
    for cache in ("memory", None) * rounds:
        objective = treecv_objective(
            PegasosClassifier(), X, y, param_distributions=ALPHA, cache=cache
        )
        begin = perf_counter()
        results = [objective.evaluate({"alpha": alpha}) for alpha in grid]
        times.setdefault(cache, []).append(perf_counter() - begin)
        if cache:
            part = saved(results)
    seconds = ", ".join(f"{median(times[cache]):.2f} s" for cache in ("memory", None))
    row(
        f"64 lambdas, 1e-8..1e2, {name}: updates saved (with and without)",
        must,
        f"{part:.1%} ({seconds})",
    )


def svrg_grid(X, y, part, must):
    objective = treecv_objective(
        StreamingSVRGClassifier(initial_batch_size=len(y) // part),
        *(X, y),
        param_distributions={"step_size": FloatDistribution(1e-4, 10)},
        cv=16,
    )
    results = [objective.evaluate({"step_size": eta}) for eta in np.geomspace(1e-4, 1, 16)]
    row(f"16 step sizes of SVRG, k=16, k_0=n/{part}: updates saved", must, f"{saved(results):.1%}")


def commits(X, y):
    """Measure the commits of our objective, beyond those of one with the same suggestions."""
    for cv in (5, "loo"):
        counts = []
        for ours in (True, False):
            with TemporaryDirectory() as folder:
                storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/study.db")
                study = optuna.create_study(storage=storage)
                objective = treecv_objective(
                    PegasosClassifier(),
                    *(X, y),
                    param_distributions=ALPHA,
                    cv=cv,
                    store=f"sqlite:///{folder}/treecv.db",
                )
                n = 0

                def count(_):
                    nonlocal n
                    n += 1

                for engine in (storage.engine, objective.evaluator.database.engine):
                    event.listen(engine, "commit", count)
                study.optimize(
                    objective
                    if ours
                    else lambda trial: trial.suggest_float("alpha", 1e-9, 1e3, log=True),
                    n_trials=10,
                )
                counts.append(n / 10)
        row(f"commits a trial on SQLite, cv={cv}", "at most 8 + 2", f"{counts[0] - counts[1]:.1f}")


def main(rounds=9, folder=None):
    print("| what | must | measured |\n|---|---|---|")
    if folder is not None:
        for name, must in (("magic", "15 %, aim 25 %"), ("higgs_7k5", "25 %, aim 40 %")):
            data = np.load(Path(folder) / f"{name}.npz", allow_pickle=True)
            lambda_grid(name, scale(data["X"].astype(float)), data["y"], must, rounds)
            strangers(name, scale(data["X"].astype(float)), data["y"], rounds)
    X, y = covertype()
    strangers("Covertype, 100,000 rows", X[:100_000], y[:100_000], rounds)
    svrg_grid(X, y, 2, "20 %")
    svrg_grid(X, y, 8, "5 %")
    doubling(X, y)
    commits(X[:5000], y[:5000])
    overhead(X, y, rounds)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
