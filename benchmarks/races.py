"""Measure what early reports cost and what races save in seconds, on Covertype.

    OMP_NUM_THREADS=1 python benchmarks/races.py [TRIALS]

Three Markdown tables: trials with early reports over those without, of which none is pruned;
studies of random search with a race by bounds and without; and a grid of 64 values by
leave-one-out, whose points race while they are trained together. Studies take turns, and medians
are of trials.
"""

from __future__ import annotations

from statistics import median
import sys
from time import perf_counter
from typing import Any
import warnings

from datasets import covertype
import numpy as np
import optuna
from optuna.distributions import FloatDistribution

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import RacingPruner
from optuna_treecv import treecv_objective

TRIALS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
SGD = {"learning_rate": "invscaling", "power_t": 0.5, "loss": "log_loss", "alpha": 0.0}
LEARNERS = {
    "PEGASOS": (PegasosClassifier(), "alpha", 1e-7, 10.0),
    "averaged PEGASOS": (PegasosClassifier(average=True), "alpha", 1e-7, 10.0),
    "SGD": (AveragedSGDClassifier(average=False, **SGD), "step_size", 1e-3, 1e3),
    "averaged SGD": (AveragedSGDClassifier(average=True, **SGD), "step_size", 1e-3, 1e3),
}


def study_of(pruner: Any) -> optuna.Study:
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1), pruner=pruner)


def costs(X: np.ndarray, y: np.ndarray) -> None:
    """Print what reports cost where nothing is pruned."""
    print("| rows, cache | learner | seconds: 'mean' | 'progressive' | trial: 'mean' | ", end="")
    print("'progressive' |\n|---|---|---|---|---|---|")
    for n_rows, cache in ((len(y), None), (100_000, "memory")):
        for learner, (estimator, name, low, high) in LEARNERS.items():
            space = {name: FloatDistribution(low, high, log=True)}
            objectives = {
                report: treecv_objective(
                    estimator,
                    X[:n_rows],
                    y[:n_rows],
                    param_distributions=space,
                    report=report,
                    cache=cache,
                )
                for report in (None, "mean", "progressive")
            }
            studies = {report: study_of(optuna.pruners.NopPruner()) for report in objectives}
            whole: dict[Any, list[float]] = {report: [] for report in objectives}
            for _ in range(max(10, TRIALS // 4)):
                for report, objective in objectives.items():
                    began = perf_counter()
                    studies[report].optimize(objective, n_trials=1)
                    whole[report].append(perf_counter() - began)
            inside = {
                report: median(trial.user_attrs["treecv"]["seconds"] for trial in study.trials)
                for report, study in studies.items()
            }
            reports = ("mean", "progressive")
            ratios = [inside[report] / inside[None] for report in reports]
            ratios += [median(whole[report]) / median(whole[None]) for report in reports]
            cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"| {n_rows:,}, {cache} | {learner} | {cells} |")


def savings(X: np.ndarray, y: np.ndarray) -> None:
    """Print what a race saves in a random search."""
    print(
        "\n| rows, folds | learner | seconds without | with a race | saved | work saved | ratio |"
    )
    print("|---|---|---|---|---|---|---|")
    for n_rows, cv in ((200_000, "loo"), (len(y), 100), (len(y), 10)):
        for learner, (estimator, name, low, high) in LEARNERS.items():
            seconds, updates = [], []
            for report, pruner in (
                (None, optuna.pruners.NopPruner()),
                ("progressive", RacingPruner(futility=None)),
            ):
                objective = treecv_objective(
                    estimator,
                    X[:n_rows],
                    y[:n_rows],
                    param_distributions={name: FloatDistribution(low, high, log=True)},
                    cv=cv,
                    report=report,
                    cache=None,
                )
                study = study_of(pruner)
                began = perf_counter()
                study.optimize(objective, n_trials=TRIALS)
                seconds.append(perf_counter() - began)
                updates.append(
                    sum(trial.user_attrs["treecv"]["n_updates"] for trial in study.trials)
                )
            saved, work = seconds[0] / seconds[1], updates[0] / updates[1]
            print(
                f"| {n_rows:,}, {cv} | {learner} | {seconds[0]:.2f} | {seconds[1]:.2f} | "
                f"{saved:.1f} | {work:.1f} | {saved / work:.2f} |"
            )


def lanes(X: np.ndarray, y: np.ndarray) -> None:
    """Print what a race saves within batches of a grid."""
    print("\n| 64 values of alpha, PEGASOS, leave-one-out | seconds | pruned |\n|---|---|---|")
    for report, pruner in (
        (None, optuna.pruners.NopPruner()),
        ("progressive", optuna.pruners.NopPruner()),
        ("progressive", RacingPruner()),
    ):
        objective = treecv_objective(
            PegasosClassifier(),
            X,
            y,
            param_grid={"alpha": np.geomspace(1e-7, 10, 64).tolist()},
            cv="loo",
            report=report,
            cache=None,
        )
        study = optuna.create_study(sampler=objective.grid_sampler(seed=0), pruner=pruner)
        began = perf_counter()
        study.optimize(objective)
        seconds = perf_counter() - began
        pruned = sum(trial.state == optuna.trial.TrialState.PRUNED for trial in study.trials)
        print(f"| report={report!r}, {type(pruner).__name__} | {seconds:.2f} | {pruned} |")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    X, y, _ = covertype()
    costs(X, y)
    savings(X, y)
    lanes(X, y)
