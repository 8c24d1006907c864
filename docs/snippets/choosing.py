"""The simplest trial within one standard error of the best."""

import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from optuna_treecv import PegasosClassifier
from optuna_treecv import select
from optuna_treecv import treecv_objective

optuna.logging.set_verbosity(optuna.logging.WARNING)
X, y = load_breast_cancer(return_X_y=True)
grid = {"alpha": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]}
objective = treecv_objective(PegasosClassifier(), scale(X), y, param_grid=grid, cv="loo")
study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
study.optimize(objective)
choice = select(study, objective, rule="one_se")
model = objective.best_estimator(study, rule="one_se")
print(choice)
