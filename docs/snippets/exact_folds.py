"""Leave-one-out of 100 penalties, with the scaler inside each fold."""

import numpy as np
import optuna
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import treecv_objective

X, y = load_diabetes(return_X_y=True)
objective = treecv_objective(
    make_pipeline(StandardScaler(), Ridge()),
    X,
    y,
    param_grid={"ridge__alpha": np.geomspace(1e-3, 1e4, 100)},
    cv="loo",
)
study = optuna.create_study(direction=objective.direction, sampler=objective.grid_sampler())
study.optimize(objective)
print(study.best_trial.user_attrs["treecv"]["method"], len(study.trials), len(y))
model = objective.best_estimator(study)
