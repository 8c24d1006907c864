"""What choosing among the trials of a study scores."""

import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.neighbors import KNeighborsClassifier

from optuna_treecv import treecv_objective

optuna.logging.set_verbosity(optuna.logging.WARNING)
X, y = load_breast_cancer(return_X_y=True)
grid = {"n_neighbors": list(range(1, 31)), "weights": ["uniform", "distance"]}
objective = treecv_objective(KNeighborsClassifier(), X[:150], y[:150], param_grid=grid)
study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
study.optimize(objective)
nested = objective.nested(study)
print(nested)
