"""
LightGBM on bikes, split by time
================================

Tune LightGBM on hourly bike rentals: pruned, resumed, shown in the dashboard. 30 trials::

    python -m pip install '.[dashboard]' lightgbm && python examples/bike_sharing.py 30

You may kill the program at any moment: started again, it goes on at the next fold. It reads the
file ``bike_sharing_hour.npz`` (UCI Bike Sharing, as the arrays X, y and feature_names) in the
folder ``$OPTUNA_TREECV_DATA``. Without this file, a made table of two years takes its place.
"""

import os
from pathlib import Path
import sys
import warnings

from lightgbm import LGBMRegressor
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.trial import TrialState
import pandas as pd
from sklearn.model_selection import TimeSeriesSplit

from optuna_treecv import treecv_objective
from optuna_treecv.dashboard import publish

STUDY = "sqlite:///bike_study.db"  # Optuna's storage: trials, the note and the figures
STORE = "sqlite:///bike_store.db"  # the store of optuna_treecv: the score of every fold


def load():
    """Return a table with a row for each hour from 2011 to 2012, and the bikes rented in it."""
    path = Path(os.environ.get("OPTUNA_TREECV_DATA", ".")) / "bike_sharing_hour.npz"
    if path.exists():
        with np.load(path) as file:
            table = pd.DataFrame(file["X"], columns=file["feature_names"])
            y = file["y"]
    else:
        print(f"There is no file {path}: a made table takes its place.")
        hr, day = np.tile(np.arange(24), 730), np.repeat(np.arange(730), 24)
        table = pd.DataFrame({"season": day // 91 % 4 + 1, "hr": hr, "weekday": day % 7})
        table["weathersit"] = weather = np.random.default_rng(0).integers(1, 4, len(day))
        y = np.random.default_rng(1).poisson(day / weather * (2 - np.cos(hr / 4)))
    day = (table["weekday"].diff() != 0).cumsum() - 1
    hours = pd.to_timedelta(24 * day + table["hr"], unit="h")
    table.index = pd.Index(pd.Timestamp("2011-01-01") + hours, name="hour")
    for column in ("season", "weekday", "weathersit"):
        table[column] = table[column].astype(int).astype("category")
    return table, pd.Series(y.astype(float), table.index)


X, y = load()
objective = treecv_objective(
    LGBMRegressor(n_jobs=1, verbose=-1),  # one thread, no messages
    X,
    y,
    param_distributions={
        "learning_rate": FloatDistribution(0.01, 0.3, log=True),
        "n_estimators": IntDistribution(50, 400, step=50),
        "num_leaves": IntDistribution(4, 128, log=True),
        "min_child_samples": IntDistribution(5, 100, log=True),
    },
    cv=TimeSeriesSplit(10, test_size=28 * 24, gap=24),  # tests four weeks, after a day's gap
    scoring="absolute_error",
    report="folds",
    store=STORE,
)

warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
study = optuna.create_study(
    # A killed trial gives no sign of life, and is tried again after three seconds.
    storage=optuna.storages.RDBStorage(
        STUDY,
        heartbeat_interval=1,
        grace_period=3,
        heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
    ),
    study_name=f"bikes in {len(X):,} hours",
    direction=objective.direction,
    sampler=optuna.samplers.TPESampler(),  # a seed would repeat its draws after each start
    pruner=optuna.pruners.WilcoxonPruner(p_threshold=0.1),
    load_if_exists=True,
)
n_trials = int(sys.argv[1]) if len(sys.argv) > 1 else 30
n_done = len(study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED]))
print(f"{n_done} of {n_trials} trials are done.")
study.optimize(objective, n_trials=max(0, n_trials - n_done))
publish(study, STORE)
if optuna.visualization.matplotlib.is_available():  # needs matplotlib
    history = optuna.visualization.matplotlib.plot_optimization_history(study)
    history.figure.savefig("bike_study.svg")

print(f"Best: {study.best_params}")
print(f"Off by {study.best_value:.1f} bikes per hour, of {y.mean():.0f} rented on average.")
print(f"Look at the study with: optuna-dashboard {STUDY}")
