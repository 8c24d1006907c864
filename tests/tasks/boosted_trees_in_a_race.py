"""LightGBM with folds that race: what is pruned saves fits, and costs less than one error."""

import lightgbm
import optuna
from sklearn.datasets import make_classification

from optuna_treecv import treecv_objective

X, y = make_classification(800, n_informative=6, random_state=0)
grid = {"learning_rate": [0.1, 0.001], "num_leaves": [3, 4, 7, 10, 15, 31]}
model = lightgbm.LGBMClassifier(n_estimators=10, verbose=-1, n_jobs=1, random_state=0)
objective = treecv_objective(model, X, y, param_grid=grid, report="auto", scoring="accuracy")
study = optuna.create_study(
    direction=objective.direction,
    sampler=objective.grid_sampler(seed=0),
    pruner=objective.pruner(),
)
study.optimize(objective)
plain = treecv_objective(model, X, y, param_grid=grid, scoring="accuracy")
whole = optuna.create_study(direction="maximize", sampler=plain.grid_sampler(seed=0))
whole.optimize(plain)
error = plain.evaluate(whole.best_params).std_error
assert study.best_value > whole.best_value - error, (study.best_value, whole.best_value, error)
assert any(trial.state == optuna.trial.TrialState.PRUNED for trial in study.trials)
