"""A first study of a StandardScaler and a LogisticRegression: thirty trials of ten folds."""

import optuna
from optuna.distributions import FloatDistribution
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import treecv_objective

optuna.logging.set_verbosity(optuna.logging.WARNING)  # no line for each trial
X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(
    make_pipeline(StandardScaler(), LogisticRegression()),
    X,
    y,
    param_distributions={"logisticregression__C": FloatDistribution(1e-4, 1e2, log=True)},
    scoring="neg_log_loss",
    cv=10,
)
print(objective.explain())

sampler = optuna.samplers.TPESampler(seed=0)
study = optuna.create_study(direction=objective.direction, sampler=sampler)
study.optimize(objective, n_trials=30)
print(f"best score: {study.best_value:.3f}")
print(f"C of the best trial: {study.best_params['logisticregression__C']:.2f}")

result = objective.evaluate(study.best_params)
interval = result.interval()
print(f"95 % interval: {interval.low:.3f} to {interval.high:.3f}")
print(f"It is an interval for {interval.target}.")
print(f"corrected for the choice: {objective.honest(study).mean:.3f}")

model = objective.best_estimator(study)
print(f"predictions: {model.predict(X[18:22])}")
