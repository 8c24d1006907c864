"""A support vector machine behind a scaler: C and gamma, and the same labels as scikit-learn."""

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from optuna_treecv import treecv_objective

X, y = load_digits(return_X_y=True)
folds = StratifiedKFold(5, shuffle=True, random_state=0)
pipeline = make_pipeline(StandardScaler(), SVC())
objective = treecv_objective(
    pipeline,
    X,
    y,
    param_distributions={
        "svc__C": FloatDistribution(0.1, 100, log=True),
        "svc__gamma": FloatDistribution(1e-3, 1e-1, log=True),
    },
    cv=folds,
    scoring="accuracy",
)
assert "kernel" in objective.explain()
study = optuna.create_study(
    direction=objective.direction, sampler=optuna.samplers.TPESampler(seed=0)
)
study.optimize(objective, n_trials=10)
assert study.best_value > 0.97
expected = cross_val_predict(pipeline.set_params(**study.best_params), X, y, cv=folds)
assert np.mean(objective.predict_oof(study) == expected) > 0.999
