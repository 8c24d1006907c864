"""
Leave-one-out on a grid
=======================

Tune a linear support vector machine by leave-one-out cross-validation, on a grid of ``alpha``.
"""

import warnings

import numpy as np
import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from optuna_treecv import PegasosClassifier
from optuna_treecv import select
from optuna_treecv import treecv_objective

STUDY = "sqlite:///treecv.db"  # trials
STORE = "sqlite:///treecv_store.db"  # fold scores

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
    print(f"{trial.params['alpha']:8.3g}   {trial.value:.2%}")
best = objective.evaluate(study.best_params)  # finds its models
error = f"error {best.mean:.2%}, standard error {best.std_error:.2%}"
print(f"Best: alpha = {study.best_params['alpha']:.3g}, {error}")
choice = select(study, objective, rule="one_se")
print(f"Largest within one paired standard error: alpha = {choice.trial.params['alpha']:.3g}")

done, seconds = (
    sum(trial.user_attrs["treecv"][name] for trial in study.trials)
    for name in ("n_updates", "seconds")
)
n_alphas, n_rows = len(study.trials), len(X)
n_steps = n_alphas * (best.n_updates + best.n_updates_saved)  # each alpha has as many
n_models = n_alphas * n_rows
print(f"\n{n_alphas} values of alpha x {n_rows} folds = {n_models:,} models")
print("Training steps (one model, one row):")
print(f"  separate trainings    {n_models * (n_rows - 1):9,}")
print(f"  TreeCV                {n_steps:9,}")
print(f"    done in this run    {done:9,}  ({1000 * seconds:.1f} ms)")
print(f"    found in the store  {n_steps - done:9,}")

warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
if optuna.visualization.matplotlib.is_available():  # needs matplotlib
    optuna.visualization.matplotlib.plot_slice(study).figure.savefig("treecv.svg")
try:
    from optuna_treecv.dashboard import publish

    publish(study, STORE)  # a note and figures
    print("\nTo see the study in a browser, run")
    print(f"  optuna-dashboard {STUDY}")
except ImportError:
    print("\nTo see the study in a browser, run")
    print("  python -m pip install '.[dashboard]'")
    print("and this example again.")
