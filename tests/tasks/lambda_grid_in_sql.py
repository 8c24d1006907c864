"""A grid of PEGASOS's lambda and of SVRG's steps, leave-one-out, with results in SQL."""

import os
import sqlite3
import tempfile

import numpy as np
import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.history import load_evaluations

X, y = load_breast_cancer(return_X_y=True)
X = scale(X)
with tempfile.TemporaryDirectory() as folder:
    store = f"sqlite:///{folder}/store.db"
    for estimator, grid in (
        (PegasosClassifier(), {"alpha": list(np.logspace(-4, 1, 6))}),
        (StreamingSVRGClassifier(), {"step_size": [0.001, 0.01, 0.1]}),
    ):
        objective = treecv_objective(estimator, X, y, param_grid=grid, cv="loo", store=store)
        study = optuna.create_study(sampler=objective.grid_sampler())
        study.optimize(objective)
        alone = tree_cross_validate(estimator.set_params(**study.best_params), X, y, cv="loo")
        assert study.best_value == alone.mean
        assert len(study.trials) == len(next(iter(grid.values())))
    evaluations = load_evaluations(store)
    assert len(evaluations) == 9
    assert sorted(evaluations["learner"].unique()) == [
        "PegasosClassifier",
        "StreamingSVRGClassifier",
    ]
    with sqlite3.connect(os.path.join(folder, "store.db")) as connection:
        (n_rows,) = connection.execute("SELECT count(*) FROM treecv_evaluations").fetchone()
    connection.close()
    assert n_rows == 9
