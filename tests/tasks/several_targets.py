"""Several targets: a multi-output ridge, its scores and its out-of-fold predictions."""

import numpy as np
import optuna
from sklearn.datasets import load_linnerud
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import treecv_objective

X, y = load_linnerud(return_X_y=True)
pipeline = make_pipeline(StandardScaler(), Ridge())
objective = treecv_objective(
    pipeline, X, y, param_grid={"ridge__alpha": [0.1, 1.0, 10.0]}, cv=KFold(4)
)
study = optuna.create_study(sampler=objective.grid_sampler())
study.optimize(objective)
expected = cross_val_predict(pipeline.set_params(**study.best_params), X, y, cv=KFold(4))
np.testing.assert_allclose(objective.predict_oof(study), expected, rtol=1e-9)
assert objective.best_estimator(study).predict(X).shape == y.shape
