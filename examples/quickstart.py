"""Tune a linear support vector machine by leave-one-out cross-validation, on a grid of alpha."""

import numpy as np
import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective

STUDY = "sqlite:///treecv.db"  # Optuna's trials
STORE = "sqlite:///treecv_store.db"  # the score of every fold

X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(
    PegasosClassifier(),
    scale(X),
    y,
    param_grid={"alpha": np.geomspace(1e-5, 1e2, 15)},
    cv="loo",
    store=STORE,
)
optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    storage=STUDY, direction=objective.direction, sampler=objective.grid_sampler()
)
study.optimize(objective)

print("   alpha   leave-one-out error")
for trial in sorted(study.trials, key=lambda trial: trial.params["alpha"]):
    print(f"{trial.params['alpha']:8.2g}   {trial.value:.2%}")
print(f"Best: alpha = {study.best_params['alpha']:.2g}, error {study.best_value:.2%}")

done, reused, seconds = (
    sum(trial.user_attrs[name] for trial in study.trials)
    for name in ("n_updates", "n_updates_saved", "seconds")
)
n_alphas, n_rows = len(study.trials), len(X)
n_separate = n_alphas * n_rows * (n_rows - 1)
print(f"\n{n_alphas} values of alpha x {n_rows} folds = {n_alphas * n_rows:,} trained models.")
print(f"Separate trainings would process {n_separate:,} rows, TreeCV {done + reused:,}.")
print(f"This run: {done:,} rows in {1000 * seconds:.1f} ms; from the store: {reused:,} rows.")

try:
    from optuna_treecv.dashboard import publish

    publish(study, STORE)  # a note and four figures
    print(f"\nTo see the study in a browser, run: optuna-dashboard {STUDY}")
except ImportError:
    print("\nTo see the study in a browser, install optuna-dashboard and run this example again:")
    print("python -m pip install '.[dashboard]'")
