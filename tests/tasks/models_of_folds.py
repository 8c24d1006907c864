"""The models of the folds: what each has learned, and their average as one model."""

import numpy as np
import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.preprocessing import scale

from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
X, folds = scale(X), KFold(5)
model = LogisticRegression(tol=1e-8, max_iter=1000)
objective = treecv_objective(model, X, y, param_grid={"C": [0.01, 0.1, 1.0]}, cv=folds)
study = optuna.create_study(sampler=objective.grid_sampler())
study.optimize(objective)
models = objective.fold_models(study)
fits = cross_validate(model.set_params(**study.best_params), X, y, cv=folds, return_estimator=True)
coefficients = np.array([m.coef_ for m in models])
expected = np.array([m.coef_ for m in fits["estimator"]])
np.testing.assert_allclose(coefficients, expected, rtol=1e-3, atol=1e-5)
assert np.std(coefficients, axis=0).max() < np.abs(coefficients).max() / 4  # how stable they are
average = objective.best_estimator(study, kind="folds")
assert np.mean(average.predict(X) == y) > 0.97
