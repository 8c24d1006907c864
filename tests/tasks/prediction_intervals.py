"""Prediction intervals for new rows, and their coverage."""

import numpy as np
import optuna
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import treecv_objective

X, y = load_diabetes(return_X_y=True)
X, new_X, y, new_y = train_test_split(X, y, test_size=0.4, random_state=0)
for model, grid in (
    (make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": np.geomspace(0.1, 1e3, 9)}),
    (RandomForestRegressor(random_state=0), {"n_estimators": [20, 50], "max_depth": [3, 5]}),
):
    objective = treecv_objective(model, X, y, param_grid=grid)
    study = optuna.create_study(sampler=objective.grid_sampler())
    study.optimize(objective)
    estimator = objective.conformal(study)
    low, high = estimator.predict_interval(new_X, level=0.9).T
    assert np.all(low < high)
    assert 0.82 < np.mean((low <= new_y) & (new_y <= high)) < 0.98
    narrow = estimator.predict_interval(new_X, level=0.5)
    assert np.all(narrow[:, 1] - narrow[:, 0] < high - low)
