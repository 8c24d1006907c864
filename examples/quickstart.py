"""Tune PEGASOS by leave-one-out: 569 folds cost about as much as ten trainings."""

import optuna
from optuna.distributions import FloatDistribution
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective

X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(
    PegasosClassifier(),
    scale(X),
    y,
    param_distributions={"alpha": FloatDistribution(1e-5, 1e2, log=True)},
    cv="loo",
)
grid = {"alpha": [10 ** (i / 2) for i in range(-10, 5)]}

optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    storage="sqlite:///treecv.db",
    direction=objective.direction,
    sampler=optuna.samplers.GridSampler(grid, seed=0),
)
study.optimize(objective, n_trials=len(grid["alpha"]), show_progress_bar=True)

print(f"\n{'alpha':>10}  {'error':>7}  {'rows trained':>12}  {'saved':>6}  {'ms':>5}")
for trial in sorted(study.trials, key=lambda trial: trial.params["alpha"]):
    done = trial.user_attrs
    print(
        f"{trial.params['alpha']:10.2g}  {trial.value:7.2%}  {done['n_updates']:12,}  "
        f"{done['n_updates_saved']:6,}  {1000 * done['seconds']:5.1f}"
    )
print("Saved: trained before by a trial that ran earlier, with another alpha.")
print(f"569 trainings of 568 rows would take {569 * 568:,} a trial.")
print(
    f"\nBest: alpha={study.best_params['alpha']:.2g}, leave-one-out error {study.best_value:.2%}."
)
print(
    "The study is in treecv.db: with the extra 'dashboard' installed, "
    "optuna-dashboard sqlite:///treecv.db shows it."
)
