"""A Pipeline whose first steps are fitted once per fold."""

import optuna
from optuna.distributions import FloatDistribution
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
C = FloatDistribution(1e-3, 1e3, log=True)
objective = treecv_objective(
    make_pipeline(StandardScaler(), PCA(10), LogisticRegression()),
    X,
    y,
    param_distributions={"logisticregression__C": C},
    cv=10,
)
study = optuna.create_study(direction=objective.direction)
study.optimize(objective, n_trials=10)
