"""A raw table with categories and holes becomes a tuned model as good as a logistic regression."""

import numpy as np
import optuna
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import treecv_objective

rng = np.random.default_rng(0)
n = 4000
table = pd.DataFrame(
    {
        "city": rng.choice(["Oslo", "Rome", "Lima", "Kyoto"], n),
        "size": rng.lognormal(3, 1, n),
        "age": np.where(rng.random(n) < 0.1, np.nan, rng.uniform(0, 90, n)),
    }
)
log_odds = np.log(table["size"]) - 3 + 2 * (table["city"] == "Rome") - table["age"].fillna(45) / 40
sold = rng.random(n) < 1 / (1 + np.exp(-2 * log_odds))
train, test, y_train, y_test = train_test_split(table, sold, random_state=0)

numbers = make_pipeline(SimpleImputer(), StandardScaler())
prepare = ColumnTransformer(
    [
        ("kinds", OneHotEncoder(handle_unknown="ignore"), ["city"]),
        ("rest", numbers, ["size", "age"]),
    ]
)
pipeline = make_pipeline(prepare, AveragedSGDClassifier("log_loss"))
objective = treecv_objective(pipeline, train, y_train, param_distributions="auto")
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=20)
tuned = objective.best_estimator(study).score(test, y_test)
plain = make_pipeline(prepare, LogisticRegression()).fit(train, y_train).score(test, y_test)
standard_error = np.sqrt(plain * (1 - plain) / len(y_test))
assert tuned > plain - standard_error, (tuned, plain)
