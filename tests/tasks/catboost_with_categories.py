"""CatBoost on a table with categories: the number of trees is chosen along the way."""

from catboost import CatBoostRegressor
import numpy as np
import optuna
import pandas as pd
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import KFold

from optuna_treecv import treecv_objective

rng = np.random.default_rng(0)
X = pd.DataFrame(rng.normal(size=(600, 4)), columns=list("abcd"))
X["shop"] = rng.choice(["north", "south", "west"], 600)
y = X["a"] + 2 * (X["shop"] == "west") + rng.normal(0, 0.3, 600)
model = CatBoostRegressor(
    learning_rate=0.1,
    cat_features=("shop",),
    allow_writing_files=False,
    logging_level="Silent",
    thread_count=1,
    random_seed=0,
)
objective = treecv_objective(
    model,
    X,
    y,
    param_grid={"iterations": [10, 40, 80], "depth": [3, 5]},
    cv=KFold(3),
    scoring="r2",
)
study = optuna.create_study(direction=objective.direction, sampler=objective.grid_sampler())
study.optimize(objective)
model.set_params(**study.best_params)
expected = cross_val_score(model, X, y, cv=KFold(3), scoring="r2")
assert np.isclose(study.best_value, expected.mean(), rtol=1e-12)
