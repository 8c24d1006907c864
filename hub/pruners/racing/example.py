"""Race the configurations of a linear classifier inside their first pass over the data."""

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
from optuna_treecv import AveragedSGDClassifier
import optunahub
from sklearn.datasets import load_digits


racing = optunahub.load_module("pruners/racing")

X, y = load_digits(return_X_y=True)
objective = racing.treecv_objective(
    AveragedSGDClassifier(),
    X / 16,
    y,
    param_distributions={
        "alpha": FloatDistribution(1e-6, 10.0, log=True),
        "step_size": FloatDistribution(1e-5, 10.0, log=True),
    },
    cv=10,
    report="progressive",  # tests each row just before the model is trained on it
)
study = optuna.create_study(
    sampler=optuna.samplers.RandomSampler(seed=0), pruner=racing.RacingPruner()
)
study.optimize(objective, n_trials=60)

pruned = len(study.get_trials(states=[TrialState.PRUNED]))
updates = sum(trial.user_attrs["treecv"]["n_updates"] for trial in study.trials)
print(f"best error {study.best_value:.4f} with {study.best_params}")
print(f"{pruned} of {len(study.trials)} trials were pruned; all trained on {updates:,} rows")
