"""What the best of many trials will score, and an ensemble of them."""

import optuna
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor

from optuna_treecv import treecv_objective

optuna.logging.set_verbosity(optuna.logging.WARNING)
X, y = load_diabetes(return_X_y=True)


def suggest(trial):
    family = trial.suggest_categorical("family", ["ridge", "neighbors", "forest"])
    if family == "ridge":
        return Ridge(alpha=trial.suggest_float("alpha", 1e-3, 1e2, log=True))
    if family == "neighbors":
        return KNeighborsRegressor(trial.suggest_int("n_neighbors", 1, 50))
    return RandomForestRegressor(20, max_depth=trial.suggest_int("max_depth", 1, 12))


objective = treecv_objective(suggest, X[:150], y[:150])
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
study.optimize(objective, n_trials=60)
honest = objective.honest(study)
ensemble = objective.ensemble(study)
for model in (objective.best_estimator(study), ensemble):
    print(f"on withheld rows: {((model.predict(X[150:]) - y[150:]) ** 2).mean():.5g}")
print(f"{len(ensemble.estimators_)} members, honest score {ensemble.honest_score_:.5g}")
print(honest)
print(str(objective.advise(study)).replace(". ", ".\n"))
