import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.svm import SVC

from optuna_treecv import treecv_objective

optuna.logging.set_verbosity(optuna.logging.WARNING)  # one line per trial would break the bar
X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(SVC(), X, y, param_grid={"C": [0.1, 1.0, 10.0, 100.0]})
study = optuna.create_study(direction=objective.direction, sampler=objective.grid_sampler())
study.optimize(objective, n_trials=4, show_progress_bar=True)
