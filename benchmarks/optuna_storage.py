"""Measure the cost of Optuna's storage beside that of a study whose objective returns a float.

    OMP_NUM_THREADS=1 python benchmarks/optuna_storage.py [RUNS [TRIALS]]

Two Markdown tables: seconds per study, and calls of the storage per trial. The plain objective
suggests the same parameter, computes as long as our last evaluation did, and returns a float.
Trials of the two studies take turns, in databases side by side. Medians are of runs.
"""

from __future__ import annotations

from collections import Counter
import sys
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from sklearn.datasets import make_classification

from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.study.objective import TreeCVObjective

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
TRIALS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
N_ROWS = 50_000
SPACE = {"alpha": FloatDistribution(1e-8, 1e2, log=True)}


class Calls:
    """A storage that counts its calls.

    Parameters
    ----------
    storage : optuna.storages.BaseStorage
    """

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.counts[name] += 1
            return method(*arguments, **options)

        return counted


class Plain:
    """An objective that suggests alpha, computes for some seconds and returns a float."""

    seconds = 0.0

    def __call__(self, trial: optuna.Trial) -> float:
        end = perf_counter() + self.seconds
        alpha = trial.suggest_float("alpha", 1e-8, 1e2, log=True)
        while perf_counter() < end:
            pass
        return alpha


def one_run(ours: TreeCVObjective, storages: list[Any]) -> tuple[float, list[float]]:
    """Return the seconds of evaluation, and those of our study and the plain one."""
    plain, evaluation = Plain(), 0.0

    def evaluated(trial: optuna.Trial) -> float:
        nonlocal evaluation
        result = ours.evaluate_trial(trial)
        plain.seconds = result.seconds
        evaluation += result.seconds
        return result.mean

    studies = [
        optuna.create_study(storage=storage, sampler=optuna.samplers.TPESampler(seed=1))
        for storage in storages
    ]
    for study, storage in zip(studies, storages, strict=True):
        study._storage = storage
    whole = [0.0, 0.0]
    for _ in range(TRIALS):
        for number, objective in enumerate((evaluated, plain)):
            began = perf_counter()
            studies[number].optimize(objective, n_trials=1)
            whole[number] += perf_counter() - began
    return evaluation, whole


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    X, y = make_classification(N_ROWS, 10, random_state=0)
    objective = treecv_objective(PegasosClassifier(), X, y, param_distributions=SPACE, cache=None)
    objective.evaluate({"alpha": 1.0})  # prepares the rows
    print("| storage | evaluation | plain | ours | ratio |\n|---|---|---|---|---|")
    for name, url in (("memory", None), ("SQLite", "sqlite:///{}/{}.db")):
        runs = []
        for _ in range(RUNS):
            with TemporaryDirectory() as folder:
                urls = [url and url.format(folder, i) for i in range(2)]
                storages = [Calls(optuna.storages.get_storage(one)) for one in urls]
                evaluation, (ours, plain) = one_run(objective, storages)
            runs.append((evaluation, plain, ours, ours / plain))
        evaluation, plain, ours, ratio = np.median(runs, axis=0)
        print(f"| {name} | {evaluation:.2f} s | {plain:.2f} s | {ours:.2f} s | {ratio:.2f} |")
    print("\n| call of the storage, per trial | plain | ours |\n|---|---|---|")
    ours, plain = (storage.counts for storage in storages)
    for call in sorted(ours | plain):
        print(f"| `{call}` | {plain[call] / TRIALS:.2f} | {ours[call] / TRIALS:.2f} |")


if __name__ == "__main__":
    main()
