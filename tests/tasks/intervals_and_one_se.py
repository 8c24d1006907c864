"""Intervals, a comparison in pairs, and the simplest of those that are about as good."""

import optuna
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from optuna_treecv import select
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

X, y = load_diabetes(return_X_y=True)
grid = {"alpha": [0.001, 0.01, 0.1, 1.0, 10.0, 100.0]}
objective = treecv_objective(Ridge(), X, y, param_grid=grid, row_losses=True)
study = optuna.create_study(sampler=objective.grid_sampler())
study.optimize(objective)
choice = select(study, objective, rule="one_se", simpler={"alpha": "larger"})
assert choice.trial.params["alpha"] >= study.best_params["alpha"]
best = objective.evaluate(study.best_params)
assert choice.trial.value <= best.mean + best.std_error
interval = best.interval()
assert interval.low < best.mean < interval.high
far = tree_cross_validate(Ridge(100.0), X, y, row_losses=True)
assert far.compare(best).interval.low > 0
