"""
A table with words, and how sure the choice is
==============================================

Tune ``LogisticRegression`` behind a ``ColumnTransformer``, and see which values of ``C`` are as
good as the best one. With Covertype it takes half a minute::

    python -m pip install . matplotlib pandas && python examples/table.py

Without Covertype in scikit-learn's data folder, a made table of 2,000 rows takes its place.
"""

import matplotlib.pyplot as plt
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.datasets import fetch_covtype
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler

from optuna_treecv import select
from optuna_treecv import treecv_objective

try:
    X, y = fetch_covtype(return_X_y=True, as_frame=True, download_if_missing=False)
    numbers = X.columns[:10].tolist()
    table = X[numbers].assign(soil=X.filter(like="Soil_Type").idxmax(axis=1))
    y = y == 2  # is it lodgepole pine?
except OSError:
    rng, numbers = np.random.default_rng(0), ["height", "slope"]
    table = pd.DataFrame(rng.normal(size=(2000, 2)), columns=numbers)
    table["soil"] = rng.choice(["clay", "peat", "sand", "silt"], len(table))
    y = table["height"] + (table["soil"] == "peat") + rng.normal(size=len(table)) > 0

columns = make_column_transformer(
    (StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), ["soil"])
)
objective = treecv_objective(
    make_pipeline(columns, LogisticRegression(max_iter=1000)),
    table,
    y,
    param_distributions={"logisticregression__C": FloatDistribution(1e-4, 1e4, log=True)},
    scoring="neg_log_loss",
    cv=10,
)
print(objective.explain())

# %%
# Twenty trials. ``explain`` has said what each of them does.

optuna.logging.set_verbosity(optuna.logging.WARNING)
sampler = optuna.samplers.TPESampler(seed=0)
study = optuna.create_study(direction=objective.direction, sampler=sampler)
study.optimize(objective, n_trials=20)
choice = select(study, objective, rule="one_se")
print(choice)

# %%
# Error bars are standard errors of the mean. The differences between trials are known much better,
# since all trials have the same folds: the orange trials cannot be told from the best one.

alike = {choice.best.number, *choice.not_distinguishable}
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
for trial in study.trials:
    result = objective.evaluate(trial.params)  # it finds what the trial has computed
    colour = "#D55E00" if trial.number in alike else "#8C8C8C"
    c = trial.params["logisticregression__C"]
    axes.errorbar(c, -result.mean, result.std_error, fmt="o", color=colour)
axes.axvline(choice.trial.params["logisticregression__C"], color="#0072B2", label="one_se")
axes.set(xscale="log", xlabel="C", ylabel="log loss of 10 folds")
axes.legend()
plt.show()
