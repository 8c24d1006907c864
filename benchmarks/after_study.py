"""Thresholds chosen after a study, beside scikit-learn's ``TunedThresholdClassifierCV``.

    OMP_NUM_THREADS=1 python benchmarks/after_study.py [REPETITIONS]

For each data set and metric, a study of logistic regressions is made on some rows. The threshold
of its best trial is chosen by ``objective.threshold`` on its out-of-fold outputs, and by
``TunedThresholdClassifierCV`` with as many folds. Both are scored on withheld rows. Files are read
from $OPTUNA_TREECV_DATA. It takes about 3 minutes with 12 repetitions.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any
import warnings

import datasets
import numpy as np
import optuna
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import train_test_split
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import treecv_objective

N_TRAINED = 5_000
GRID = {"logisticregression__C": [0.01, 0.1, 1.0]}


def data_sets() -> dict[str, tuple[Any, np.ndarray]]:
    """Return the rows and labels of binary problems; of a9a, a tenth of the rare class."""
    found = {}
    for X, y, name in (datasets.magic(), datasets.elec2()):
        found[name] = X, (y > 0).astype(int)
    with np.load(datasets.file_of("weather_noaa.npz")) as file:
        found["weather"] = file["X"].astype(float), (file["y"] == 1).astype(int)
    X, y, name = datasets.a9a()
    is_kept = (y <= 0) | (np.arange(len(y)) % 10 == 0)
    X = X[is_kept]
    found[f"{name}, rare class"] = getattr(X, "toarray", lambda: X)(), (y[is_kept] > 0).astype(int)
    return found


def main(n_repetitions: str = "12") -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", "trial .* at the .* end of its range")
    print("| data | metric | ours - theirs | its SE | ours, ms | theirs, ms |")
    print("|---|---|---|---|---|---|")
    for name, (X, y) in data_sets().items():
        for metric in ("f1", "balanced_accuracy"):
            differences, ours, theirs = [], [], []
            for seed in range(int(n_repetitions)):
                A, B, a, b = train_test_split(
                    X, y, train_size=N_TRAINED, stratify=y, random_state=seed
                )
                model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
                cv = StratifiedKFold(10, shuffle=True, random_state=seed)
                objective = treecv_objective(
                    model, A, a, param_grid=GRID, scoring="log_loss", cv=cv
                )
                study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
                study.optimize(objective)
                began = perf_counter()
                threshold = objective.threshold(study, metric)
                ours.append(perf_counter() - began)
                chosen = objective.best_estimator(study, threshold=threshold)
                model.set_params(**objective.values_of(study.best_params))
                began = perf_counter()
                tuned = TunedThresholdClassifierCV(model, scoring=metric, cv=cv).fit(A, a)
                theirs.append(perf_counter() - began)
                scorer = get_scorer(metric)
                differences.append(scorer(chosen, B, b) - scorer(tuned, B, b))
            error = np.std(differences, ddof=1) / np.sqrt(len(differences))
            print(
                f"| {name} | {metric} | {np.mean(differences):+.4f} | {error:.4f} "
                f"| {1e3 * np.median(ours):.0f} | {1e3 * np.median(theirs):.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:2])
