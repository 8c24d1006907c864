"""One worker of a study: python worker.py STORAGE [--covertype].

Start it as often as there are cores. STORAGE is the URL of a PostgreSQL database, which has the
study and the store. Each worker takes the next point of the grid, and points that another worker
has trained are found in the store.
"""

import argparse

import numpy as np
import optuna
from sklearn.datasets import fetch_covtype
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import treecv_objective

parser = argparse.ArgumentParser()
parser.add_argument("storage")
parser.add_argument("--covertype", action="store_true", help="581,012 rows, which it downloads")
arguments = parser.parse_args()

X, y = (fetch_covtype if arguments.covertype else load_digits)(return_X_y=True)
objective = treecv_objective(
    make_pipeline(StandardScaler(), AveragedSGDClassifier()),
    X,
    y,
    param_grid={
        "averagedsgdclassifier__alpha": np.geomspace(1e-6, 1e-1, 6),
        "averagedsgdclassifier__step_size": np.geomspace(1e-3, 1.0, 4),
    },
    cv=100,
    store=arguments.storage,
)
study = optuna.create_study(
    study_name="workers",
    storage=arguments.storage,
    load_if_exists=True,
    direction=objective.direction,
    sampler=objective.grid_sampler(),
)
study.optimize(objective)
print(f"best: {study.best_params}, error {study.best_value:.4f}")
