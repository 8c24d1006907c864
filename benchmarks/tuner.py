"""The same time for Optuna's ``LightGBMTunerCV`` and for a study of ours: the loss of the winners.

    OMP_NUM_THREADS=1 python benchmarks/tuner.py [SEED] [DATA ...]

It needs the package optuna-integration. The tuner takes its own steps until it ends; a study of
TPE over the 8 parameters of ``boosters.py`` has as long. Both see the same folds and up to 200
trees. The winners are fitted on all their rows and tested on withheld ones.
"""

import sys
from time import perf_counter
from typing import Any
import warnings

from boosters import folds_of
from boosters import is_classes
from boosters import MOST_TREES
from boosters import ours
from boosters import PATIENCE
from boosters import rows
import lightgbm
import numpy as np
import optuna
from optuna_integration.lightgbm import LightGBMTunerCV
from sklearn.metrics import log_loss


def tuned(X: np.ndarray, y: np.ndarray, seed: int) -> tuple[float, float, Any]:
    """Return the seconds of the tuner, its best score, and its winner."""
    name = "binary_logloss" if is_classes(y) else "l2"
    params = {"objective": "binary" if is_classes(y) else "regression", "metric": name}
    params |= {"verbose": -1, "num_threads": 1, "seed": 0}
    tuner = LightGBMTunerCV(
        params,
        lightgbm.Dataset(X, y),
        MOST_TREES,
        folds=folds_of(X, y),
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
        optuna_seed=seed,
        show_progress_bar=False,
        return_cvbooster=True,
    )
    began = perf_counter()
    tuner.run()
    seconds = perf_counter() - began
    n_trees = tuner.get_best_booster().best_iteration
    return seconds, tuner.best_score, (tuner.best_params, n_trees)


def main(seed: str = "0", *names: str) -> None:
    """Print the losses of both for each data set."""
    for name in names or ("magic", "bike"):
        X, y = rows(name, 100_000)
        n_rows = min(50_000, int(0.8 * len(X)))
        train, test = slice(0, n_rows), slice(n_rows, None)
        seconds, value, (params, n_trees) = tuned(X[train], y[train], int(seed))
        booster = lightgbm.train(params, lightgbm.Dataset(X[train], y[train]), n_trees)
        objective = ours(X[train], y[train], "lightgbm")
        sampler = optuna.samplers.TPESampler(seed=int(seed))
        study = optuna.create_study(sampler=sampler, pruner=objective.pruner())
        study.optimize(objective, timeout=seconds)
        estimator = objective.best_estimator(study)
        found = objective.evaluate(study.best_trial.params)
        error = float(found.curve.std_error[found.curve.best - 1])
        if is_classes(y):
            losses = [
                log_loss(y[test], one)
                for one in (booster.predict(X[test]), estimator.predict_proba(X[test])[:, 1])
            ]
        else:
            predicted = booster.predict(X[test]), estimator.predict(X[test])
            losses = [float(np.mean((one - y[test]) ** 2)) for one in predicted]
        print(
            f"{name}, seed {seed}: {seconds:.0f} s; LightGBMTunerCV {value:.5g} in the folds, "
            f"{losses[0]:.5g} on withheld rows; ours {study.best_value:.5g} and {losses[1]:.5g}, "
            f"in {len(study.trials)} trials; ours is worse by "
            f"{(study.best_value - value) / error:+.2f} and {(losses[1] - losses[0]) / error:+.2f}"
            " standard errors of the mean over folds",
            flush=True,
        )


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    main(*sys.argv[1:])
