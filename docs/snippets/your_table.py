"""A table with categories and missing values: thirty trials, and a model for new rows."""

import numpy as np
import optuna
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler

from optuna_treecv import treecv_objective

optuna.logging.set_verbosity(optuna.logging.WARNING)
rng = np.random.default_rng(0)
city = rng.choice(["Basel", "Graz", "Lille"], 2_000)
size, age = rng.normal(70, 20, 2_000), rng.uniform(0, 90, 2_000)
y = np.where(size - age + 30 * (city == "Graz") + rng.normal(0, 20, 2_000) > 30, "sold", "open")
age[::10] = np.nan  # unknown
table = pd.DataFrame({"city": city, "size": size, "age": age})

prepare = make_column_transformer(
    (OneHotEncoder(handle_unknown="ignore"), ["city"]),
    (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), ["size", "age"]),
)
pipeline = make_pipeline(prepare, LogisticRegression())
grid = {"logisticregression__C": np.geomspace(1e-3, 1e2, 30)}
objective = treecv_objective(pipeline, table, y, param_grid=grid, scoring="neg_log_loss")
print(objective.explain())

study = optuna.create_study(direction=objective.direction, sampler=objective.grid_sampler(seed=0))
study.optimize(objective)
print(f"{len(study.trials)} trials, best score {study.best_value:.3f}")

model = objective.best_estimator(study)
new = pd.DataFrame({"age": [80.0, np.nan], "city": ["Graz", "Oslo"], "size": [70.0, 80.0]})
for probability in model.predict_proba(new)[:, 1]:
    print(f"{model.classes_[1]}: {probability:.2f}")
