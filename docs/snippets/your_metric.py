"""A study with several scores, row weights and a pooled score."""

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import pooled
from optuna_treecv import treecv_objective

optuna.logging.set_verbosity(optuna.logging.WARNING)
X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(
    make_pipeline(StandardScaler(), LogisticRegression()),
    X,
    y,
    param_distributions={"logisticregression__C": FloatDistribution(1e-3, 1e2, log=True)},
    scoring=["log_loss", "accuracy", "roc_auc", pooled("roc_auc")],
    optimize="log_loss",
    sample_weight=np.where(y == 0, 5.0, 1.0),  # a malignant tumour counts five times
)
sampler = optuna.samplers.TPESampler(seed=0)
study = optuna.create_study(direction=objective.direction, sampler=sampler)
study.optimize(objective, n_trials=10)
best = objective.evaluate(study.best_params)
for name, score in best.scores.items():
    print(f"{name:15} {score.direction}  {score.mean:.3f} +- {score.std_error:.3f}")
