"""A study of LightGBM: the best number of trees in each trial, and races while trees grow."""

from lightgbm import LGBMClassifier
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from sklearn.datasets import load_breast_cancer

from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
objective = treecv_objective(
    LGBMClassifier(n_estimators=300, early_stopping_round=20, n_jobs=1, verbose=-1),
    X,
    y,
    param_distributions={
        "learning_rate": FloatDistribution(0.02, 0.3, log=True),
        "num_leaves": IntDistribution(4, 32, log=True),
        "min_child_samples": IntDistribution(5, 50, log=True),
    },
    cv=5,
    scoring="log_loss",
    n_estimators="best",
    report="auto",
)
sampler = optuna.samplers.TPESampler(seed=0)
study = optuna.create_study(sampler=sampler, pruner=objective.pruner())
study.optimize(objective, n_trials=30)
model = objective.best_estimator(study)
print(model.n_estimators, "trees")
