"""Calibrated probabilities of a model that has none, as by ``CalibratedClassifierCV``."""

import numpy as np
import optuna
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import scale

from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
X = scale(X)
folds = StratifiedKFold(5)
objective = treecv_objective(
    RidgeClassifier(), X, y, param_grid={"alpha": [0.1, 1.0, 10.0]}, cv=folds, scoring="roc_auc"
)
study = optuna.create_study(direction=objective.direction, sampler=objective.grid_sampler())
study.optimize(objective)
ours = objective.best_estimator(study, calibrate="sigmoid").predict_proba(X)
theirs = CalibratedClassifierCV(
    RidgeClassifier(**study.best_params), method="sigmoid", cv=folds, ensemble=False
)
expected = theirs.fit(X, y).predict_proba(X)
np.testing.assert_allclose(ours, expected, atol=1e-4)  # outputs are kept as float32
assert log_loss(y, ours) < 0.2
