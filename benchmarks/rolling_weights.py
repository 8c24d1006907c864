"""Measure what weights of rolling validation save in a race of first passes, and what they cost.

    OMP_NUM_THREADS=1 python benchmarks/rolling_weights.py [SEEDS]

The studies of ``futility.py`` and, near ties, studies of averaged SGD over narrow ranges run whole
and are then replayed with a ``RacingPruner`` that compares the second half of the rows so far, as
it does, or all of them with the weights t^p of weighted rolling validation (Zhang & Lei 2023,
arXiv:2310.12140). Each line has the median share of the work that is saved, and the mean regret in
standard errors of the best score.
"""

from __future__ import annotations

import sys
from typing import Any
import warnings

import futility
from futility import data_sets
from futility import REGRESSIONS
import numpy as np
import optuna
import pruning

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import RacingPruner
from optuna_treecv.core.row_scores import RowScores
from optuna_treecv.scoring.metrics import make_scoring
from optuna_treecv.study.race import RaceLosses

SEEDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
POWERS = (None, 1, 4, 8, 16)  # None: the second half of the rows, with equal weights
TAIL, WEIGHTS, MEAN = RowScores.tail, RowScores.weights, RowScores.mean


def near_ties(trial: optuna.Trial, is_regression: bool, _: bool) -> Any:
    """Return what a trial suggests near the best step size."""
    low, high = (0.05, 0.8) if is_regression else (0.5, 8)
    options: dict[str, Any] = {
        "step_size": trial.suggest_float("step_size", low, high, log=True),
        "alpha": trial.suggest_float("alpha", 1e-6, 1e-4, log=True),
        "learning_rate": "invscaling",
    }
    if is_regression:
        return AveragedSGDRegressor(**options)
    return AveragedSGDClassifier("log_loss", **options)


def weigh(power: int | None) -> None:
    """Let races compare the second half of the rows, or all of them with weights t^power."""
    made: Any = RowScores
    made.tail, made.weights, made.mean = TAIL, WEIGHTS, MEAN
    if power is not None:
        made.tail = property(lambda scores: slice(0, scores.n_rows))
        made.weights = property(lambda scores: (1.0 + np.arange(scores.n_rows)) ** power)
        made.mean = lambda scores, rows: np.average(scores.values, weights=scores.weights)


def main() -> None:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for kind, suggest in (("wide", futility.estimator_of), ("near ties", near_ties)):
        futility.estimator_of = suggest
        found: dict[int | None, list[tuple[float, float]]] = {power: [] for power in POWERS}
        for name, X, y in data_sets():
            is_regression = name in REGRESSIONS
            scoring = "squared_error" if is_regression else "error"
            pruning.LOSSES = RaceLosses(make_scoring(scoring).first, None, needs_bounds=False)
            for seed in range(SEEDS):
                weigh(None)
                cross_validation = futility.cross_validation_of(X, y, scoring, seed)
                sampler = optuna.samplers.RandomSampler(seed=seed)
                trials, error = futility.sequence(
                    cross_validation, sampler, is_regression, seed % 2 == 1
                )
                full, best = sum(t.passes for t in trials), min(t.score for t in trials)
                for power in POWERS:
                    weigh(power)
                    order, pruner = np.arange(len(trials)), RacingPruner(seed=seed)
                    work, score = pruning.simulated(trials, order, "progressive", pruner, False)
                    found[power].append((1 - work / full, (score - best) / error))
        for power, each in found.items():
            saved, regret = np.median(each, axis=0)[0], np.mean(each, axis=0)[1]
            rows = "second half" if power is None else f"t^{power}"
            print(f"{kind}, {rows}: saved {saved:.3f}, regret {regret:.3f}", flush=True)


if __name__ == "__main__":
    main()
