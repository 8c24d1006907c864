"""Losing trials are pruned after some of their folds."""

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from optuna_treecv import treecv_objective

optuna.logging.set_verbosity(optuna.logging.WARNING)
X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(
    make_pipeline(StandardScaler(), SVC()),
    X,
    y,
    param_distributions={
        "svc__C": FloatDistribution(1e-2, 1e3, log=True),
        "svc__gamma": FloatDistribution(1e-5, 1.0, log=True),
    },
    report="auto",
)
study = optuna.create_study(
    direction=objective.direction,
    sampler=optuna.samplers.RandomSampler(seed=1),
    pruner=objective.pruner(),
)
study.optimize(objective, n_trials=30)

pruned = study.get_trials(states=[TrialState.PRUNED])
n_fits = sum(trial.user_attrs["treecv"]["folds_scored"] for trial in study.trials)
print(f"{len(pruned)} of 30 trials pruned, {n_fits} of 300 models fitted")
print(f"best error {study.best_value:.3f}")
