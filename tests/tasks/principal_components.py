"""The number of principal components in front of a ridge regression, fitted per fold."""

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import treecv_objective

X, y = load_digits(return_X_y=True)
pipeline = make_pipeline(StandardScaler(), PCA(svd_solver="full"), Ridge())
objective = treecv_objective(
    pipeline,
    X,
    y.astype(float),
    param_distributions={
        "pca__n_components": IntDistribution(2, 60),
        "ridge__alpha": FloatDistribution(1e-3, 1e3, log=True),
    },
    cv=KFold(5),
    scoring="r2",
)
assert "method='exact'" in objective.explain()
study = optuna.create_study(
    direction=objective.direction, sampler=optuna.samplers.TPESampler(seed=0)
)
study.optimize(objective, n_trials=20)
expected = cross_val_score(
    pipeline.set_params(**study.best_params), X, y.astype(float), cv=KFold(5), scoring="r2"
)
assert np.isclose(study.best_value, expected.mean(), rtol=1e-9)
