"""The honest score of the best of many trials, and a better model from the same trials."""

import optuna
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.svm import SVR

from optuna_treecv import select
from optuna_treecv import treecv_objective

optuna.logging.set_verbosity(optuna.logging.WARNING)
X, y = load_diabetes(return_X_y=True)


def suggest(trial):
    family = trial.suggest_categorical("family", ["ridge", "neighbors", "svm"])
    if family == "ridge":
        return Ridge(alpha=trial.suggest_float("alpha", 1e-3, 1e2, log=True))
    if family == "neighbors":
        return KNeighborsRegressor(trial.suggest_int("n_neighbors", 1, 50))
    return SVR(C=trial.suggest_float("C", 1.0, 1e4, log=True))


objective = treecv_objective(suggest, X[:150], y[:150], scoring="absolute_error")
sampler = optuna.samplers.RandomSampler(seed=1)
study = optuna.create_study(direction=objective.direction, sampler=sampler)
study.optimize(objective, n_trials=60)

honest, choice = objective.honest(study), select(study, objective)
low, high = honest.interval.low, honest.interval.high
print(f"best value {honest.value:.1f}, honest score {honest.mean:.1f} ({low:.1f} to {high:.1f})")
print(f"{len(choice.not_distinguishable)} trials may be as good as the best one")
ensemble = objective.ensemble(study)
for name, model in (("best trial", objective.best_estimator(study)), ("ensemble", ensemble)):
    print(f"{name} on new rows: {abs(model.predict(X[150:]) - y[150:]).mean():.1f}")
print(str(objective.advise(study)).partition(". ")[2])
