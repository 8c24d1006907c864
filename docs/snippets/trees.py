"""A hundred pruned trees, ten folds each, from one growth."""

import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from sklearn.datasets import load_breast_cancer

from optuna_treecv import HistTreeClassifier
from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(
    HistTreeClassifier(random_state=0),
    X,
    y,
    param_distributions={
        "max_depth": IntDistribution(1, 12),
        "ccp_alpha": FloatDistribution(1e-4, 1e-1, log=True),
    },
)
sampler = optuna.samplers.RandomSampler(seed=0)
study = optuna.create_study(direction=objective.direction, sampler=sampler)
study.optimize(objective, n_trials=100)
n_grown = sum(trial.user_attrs["treecv"]["n_updates"] > 0 for trial in study.trials)
print(study.best_trial.user_attrs["treecv"]["method"], len(study.trials), n_grown)
model = objective.best_estimator(study)
