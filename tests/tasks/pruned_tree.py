"""A decision tree with ccp_alpha, grown once for all folds: the scores of direct fits."""

import numpy as np
import optuna
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer

from optuna_treecv import HistTreeClassifier
from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
folds = np.arange(len(y)) % 5
grid = {"ccp_alpha": [0.0, 0.002, 0.005, 0.01, 0.02, 0.05]}
objective = treecv_objective(
    HistTreeClassifier(random_state=0), X, y, param_grid=grid, cv=folds, shuffle=False
)
study = optuna.create_study(sampler=objective.grid_sampler())
study.optimize(objective)
tree = clone(HistTreeClassifier(random_state=0)).set_params(**study.best_params)
direct = treecv_objective(
    tree,
    X,
    y,
    param_grid={"ccp_alpha": [study.best_params["ccp_alpha"]]},
    cv=folds,
    shuffle=False,
    method="standard",
)
assert direct.evaluate(study.best_params).mean == study.best_value
assert objective.best_estimator(study).score(X, y) > 0.93
