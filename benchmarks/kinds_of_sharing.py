"""Measure what each kind of kept thing saves, as a Markdown table.

python benchmarks/kinds_of_sharing.py [ROUNDS]

Each number is the CPU time of a workload beside that of the same without this kind: medians of
pairs, of which each begins with an empty cache. The last workload shares nothing, so that it shows
what keeping costs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextlib import contextmanager
from contextlib import nullcontext
from statistics import median
import sys
from time import process_time
from typing import Any
from unittest import mock
import warnings

from datasets import a9a
from datasets import covertype
from datasets import magic
from datasets import newsgroups
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective

K = 10


@contextmanager
def without(*units: bytes):
    """Keep nothing of these units."""
    keep, keep_all = ModelCache.keep, ModelCache.keep_all

    def keep_some(cache, key, array, seconds):
        if getattr(key, "unit", None) not in units:
            keep(cache, key, array, seconds)

    def keep_all_or_none(cache, keys, arrays, seconds):
        if b"model" not in units:
            keep_all(cache, keys, arrays, seconds)

    with (
        mock.patch.object(ModelCache, "keep", keep_some),
        mock.patch.object(ModelCache, "keep_all", keep_all_or_none),
    ):
        yield


ALPHA = {"alpha": FloatDistribution(1e-9, 1e3, log=True)}


def objective_of(X, y, cache="memory", estimator=None, **options):
    options = {"cv": K, "param_distributions": ALPHA, **options}
    return treecv_objective(estimator or PegasosClassifier(), X, y, cache=cache, **options)


def evaluated(X, y, cache, alpha=1e-4, **options):
    objective = objective_of(X, y, cache, **options)
    objective.evaluate({"alpha": 1e3})  # prepares the rows
    return objective.evaluate({"alpha": alpha}).seconds


def seconds_of_trials(objective, study, n_trials):
    begin = process_time()
    study.optimize(objective, n_trials=n_trials)
    return process_time() - begin


def starts(X, y):
    """Averages that begin after 0, 1, ..., 7 eighths of the rows."""
    if not isinstance(X, np.ndarray):
        return np.nan  # averages of wide sparse rows take minutes
    cache, total = ModelCache(), 0.0
    estimator = AveragedSGDClassifier("log_loss", alpha=1e-4)
    for eighth in range(8):
        estimator.set_params(average_start=eighth * len(y) // 8)
        objective = objective_of(X, y, cache, estimator=estimator)
        objective.evaluate({"alpha": 1e3})  # prepares the rows
        total += objective.evaluate({"alpha": 1e-4}).seconds
    return total


def folds(X, y):
    """8, 16 and 32 folds."""
    cache = ModelCache()
    return sum(evaluated(X, y, cache, cv=k, stratify=False) for k in (8, 16, 32))


def losses(X, y):
    """Another loss."""
    cache = ModelCache()
    return sum(evaluated(X, y, cache, scoring=loss) for loss in ("error", "hinge"))


def resumed(X, y):
    """A run of leave-one-out that was left after half of its folds; of 64 where rows are wide."""
    cv = 64 if X.shape[1] > 1000 else "loo"
    space = {"alpha": CategoricalDistribution([1e-4])}
    objective = objective_of(X, y, cv=cv, report="folds", param_distributions=space)
    study = optuna.create_study(direction=objective.direction)

    class Left(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return trial.number == 0 and len(trial.intermediate_values) >= 16

    study.pruner = Left()
    objective.evaluate({"alpha": 1e-5})  # prepares the rows
    return seconds_of_trials(objective, study, 2)


def pruned(X, y):
    """40 trials of 15 values, of which many are pruned in their first pass."""
    values = [float(value) for value in np.logspace(-7, 0, 15)]
    space = {"alpha": CategoricalDistribution(values)}
    objective = objective_of(X, y, report="progressive", batch_size=1, param_distributions=space)
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(
        direction=objective.direction, sampler=sampler, pruner=objective.pruner()
    )
    objective.evaluate({"alpha": 1.0})  # prepares the rows
    return seconds_of_trials(objective, study, 40)


def others(X, y):
    """20 values of alpha, which share nothing."""
    cache = ModelCache()
    return sum(evaluated(X, y, cache, float(alpha)) for alpha in np.logspace(-8, 0, 20))


MODELS, BELOW, PASS = b"model", b"outputs below", b"outputs before they act"
LINES: list[tuple[str, Callable[[Any, Any], None], tuple[bytes, ...]]] = [
    ("models; averages from 8 starts on", starts, (MODELS, BELOW)),
    ("models; 8, 16, 32 folds", folds, (MODELS, BELOW)),
    ("outputs; two losses", losses, (b"outputs", BELOW, MODELS)),
    ("models and outputs below; left at a half, and resumed", resumed, (MODELS, BELOW)),
    ("outputs below alone; the same", resumed, (BELOW,)),
    ("outputs of first passes; 40 trials of 15 values, pruned", pruned, (PASS,)),
    ("all; 20 values of alpha, which share nothing", others, (MODELS, BELOW, PASS, b"outputs")),
]


def seconds_of(work, X, y, context: AbstractContextManager[None]):
    with context:
        return work(X, y)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    X, y, _ = covertype()
    sets = {"Covertype, 100,000": (X[:100_000], y[:100_000])}
    sets |= {name: make()[:2] for name, make in (("magic", magic), ("a9a", a9a))}
    sets["20 newsgroups"] = newsgroups()[:2]
    print(f"| kept; workload | {' | '.join(sets)} |\n|{'---|' * (1 + len(sets))}")
    for name, work, units in LINES:
        found = []
        for X, y in sets.values():
            ratios = []
            for _ in range(rounds):
                kept = seconds_of(work, X, y, nullcontext())
                ratios.append(kept / seconds_of(work, X, y, without(*units)))
            found.append(f"{median(ratios):.2f}")
        print(f"| {name} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
