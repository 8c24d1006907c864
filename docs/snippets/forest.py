"""A random forest: pruned between folds, with every fold score in a store."""

import optuna
from optuna.distributions import IntDistribution
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
objective = treecv_objective(
    RandomForestClassifier(10),
    X,
    y,
    param_distributions={
        "max_depth": IntDistribution(1, 8),
        "max_features": IntDistribution(1, 30),
    },
    cv=10,
    report="folds",
    store="sqlite:///treecv_store.db",
)
pruner = optuna.pruners.WilcoxonPruner(p_threshold=0.1)
study = optuna.create_study(direction=objective.direction, pruner=pruner)
study.optimize(objective, n_trials=10)
model = objective.best_estimator(study)
