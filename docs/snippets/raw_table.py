"""From a raw table to a deployed model: bikes hired by the hour."""

import joblib
import numpy as np
import optuna
import pandas as pd
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import select
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective


def bike_hours(n_hours, seed):
    """Return a table of hours at a station, and whether a bike was hired in each of them."""
    rng = np.random.default_rng(seed)
    time = pd.date_range("2024-01-01", periods=n_hours, freq="h")
    warmth = -np.cos(2 * np.pi * (time.day_of_year - 20) / 365)
    temperature = 11 + 9 * warmth - 3 * np.cos(2 * np.pi * (time.hour - 3) / 24)
    table = pd.DataFrame(
        {
            "season": pd.Categorical.from_codes(
                time.month % 12 // 3, ["winter", "spring", "summer", "autumn"]
            ),
            "weather": pd.array(
                rng.choice(["clear", "cloudy", "rain"], n_hours, p=[0.5, 0.35, 0.15]), "string"
            ),
            "weekday": pd.Categorical(time.day_name()),
            "hour": pd.array(time.hour, "Int64"),
            "temperature": (temperature + rng.normal(0, 3, n_hours)).round(1),
            "humidity": rng.uniform(30, 100, n_hours).round(),
            "wind": rng.gamma(3, 4, n_hours).round(1),
        }
    )
    demand = (
        0.09 * (table["temperature"] - 11)
        - 0.02 * (table["humidity"] - 65)
        - 0.05 * (table["wind"] - 12)
        + table["weather"].map({"clear": 0.4, "cloudy": 0.0, "rain": -1.6}).astype(float)
        + np.select([time.hour < 6, (time.hour > 15) & (time.hour < 20)], [-2.5, 1.8], 0.3)
        - 0.5 * (time.day_of_week > 4)
    )
    hired = rng.uniform(size=n_hours) < 1 / (1 + np.exp(-demand))
    return table, np.where(hired, "hired", "none")


optuna.logging.set_verbosity(optuna.logging.WARNING)
X, y = bike_hours(20_000, seed=0)
print(X.dtypes.to_string())
print(X[7:10].to_string())

kinds = ["season", "weather", "weekday", "hour"]
numbers = ["temperature", "humidity", "wind"]
prepare = ColumnTransformer(
    [
        ("kinds", OneHotEncoder(handle_unknown="ignore"), kinds),
        ("numbers", StandardScaler(), numbers),
    ]
)
learner = AveragedSGDClassifier(loss="log_loss")
pipeline = Pipeline([("prepare", prepare), ("learn", learner)])
grid = {
    "learn__alpha": [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1],
    "learn__step_size": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0],
}
objective = treecv_objective(pipeline, X, y, param_grid=grid, cv=10)
print(objective.explain())

sampler = objective.grid_sampler(seed=0)
study = optuna.create_study(direction=objective.direction, sampler=sampler)
study.optimize(objective)
n_updates = sum(trial.user_attrs["treecv"]["n_updates"] for trial in study.trials)
print(f"{len(study.trials)} trials, {n_updates:,} row updates")

simpler = {"learn__step_size": "smaller", "learn__alpha": "larger"}
choice = select(study, objective, rule="one_se", simpler=simpler)
for name, trial in (("best", choice.best), ("chosen", choice.trial)):
    print(f"{name}: {trial.params}, error {trial.value:.4f}")
print(f"not distinguishable from the best: {len(choice.not_distinguishable)}")
print(choice.interval)

chosen = clone(pipeline).set_params(**choice.trial.params)
loo = tree_cross_validate(chosen, X, y, cv="loo")
print(f"error {loo.mean:.4f}, {loo.n_folds:,} folds, {loo.n_updates:,} row updates")
print(loo.interval())

model = objective.best_estimator(study, rule="one_se", simpler=simpler)
joblib.dump(model, "bike_model.joblib")

loaded = joblib.load("bike_model.joblib")
X_later, y_later = bike_hours(200_000, seed=1)
error = np.mean(loaded.predict(X_later) != y_later)
print(f"error on {len(X_later):,} other hours: {error:.4f}")

new = X[7:10].assign(weather=["clear", "hail", "rain"])
print(loaded.predict_proba(new).round(3))

try:
    loaded.predict(new.drop(columns="wind"))
except ValueError as error:
    print(error)
