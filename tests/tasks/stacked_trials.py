"""Several trials as one model: an average, and a final estimator on out-of-fold predictions."""

import optuna
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import treecv_objective

X, y = load_diabetes(return_X_y=True)
X, new_X, y, new_y = train_test_split(X, y, random_state=0)
SCALER = StandardScaler()


def make_model(trial):
    """Create a model of one of three kinds."""
    kind = trial.suggest_categorical("kind", ["ridge", "neighbours", "forest"])
    if kind == "ridge":
        return make_pipeline(SCALER, Ridge(trial.suggest_float("alpha", 0.1, 100, log=True)))
    if kind == "neighbours":
        return make_pipeline(SCALER, KNeighborsRegressor(trial.suggest_int("k", 3, 40)))
    return RandomForestRegressor(trial.suggest_int("trees", 20, 60), max_depth=4, random_state=0)


objective = treecv_objective(make_model, X, y, cv=5)
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=20)
best = objective.best_estimator(study)
constant = mean_squared_error(new_y, [y.mean()] * len(new_y))
for model in (objective.ensemble(study), objective.ensemble(study, stack=Ridge(1e3))):
    error = mean_squared_error(new_y, model.predict(new_X))
    assert error < 1.1 * mean_squared_error(new_y, best.predict(new_X)) < constant
    assert model.oof_score_ < 1.05 * study.best_value
