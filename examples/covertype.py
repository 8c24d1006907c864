"""Tune PEGASOS on Covertype (581,012 rows): a grid at 100 folds, then leave-one-out of the best.

As in the TreeCV paper, class 1 is classified against the rest and features have unit variance.
scikit-learn downloads the data once (11 MB) or finds it in $SCIKIT_LEARN_DATA.
"""

from time import perf_counter

import optuna
from optuna.distributions import FloatDistribution
from sklearn.datasets import fetch_covtype

from optuna_treecv import PegasosClassifier
from optuna_treecv import select
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

print("Loading Covertype ...")
X, y = fetch_covtype(return_X_y=True)
X /= X.std(axis=0)
y = y == 1

model = PegasosClassifier(average=True)
objective = treecv_objective(
    model,
    X,
    y,
    param_distributions={"alpha": FloatDistribution(1e-8, 1e-1, log=True)},
    cv=100,
)
grid = {"alpha": [10.0**i for i in range(-8, 0)]}

optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    storage="sqlite:///treecv.db",
    direction=objective.direction,
    sampler=optuna.samplers.GridSampler(grid, seed=0),
)
begin = perf_counter()
study.optimize(objective, n_trials=len(grid["alpha"]), show_progress_bar=True)
seconds = perf_counter() - begin

print(f"\n{'lambda':>8}  {'error':>7}  {'std of folds':>12}  {'seconds':>7}")
for trial in sorted(study.trials, key=lambda trial: trial.params["alpha"]):
    done = trial.user_attrs
    print(
        f"{trial.params['alpha']:8.0e}  {trial.value:7.3%}  {done['std_test_score']:12.3%}  "
        f"{done['seconds']:7.3f}"
    )
print(f"{len(study.trials)} trials of 100 folds each took {seconds:.2f} s, storage included.")

choice = select(study, objective, rule="one_se")
print(f"\nBest: lambda={study.best_params['alpha']:.0e}; not distinguishable from it: ", end="")
print(f"{len(choice.not_distinguishable)} of the {choice.n_trials - 1} others.")

best = tree_cross_validate(model.set_params(**study.best_params), X, y, cv="loo")
print(
    f"\nLeave-one-out at lambda={study.best_params['alpha']:.0e}: error {best.mean:.3%} over "
    f"{best.n_folds:,} folds, standard error {best.std_error:.3%}.\n"
    f"{best.n_updates:,} rows trained on in {best.seconds:.2f} s "
    f"(and {best.seconds_prepare:.2f} s to prepare them);\n"
    f"{best.n_folds:,} trainings from scratch would have taken {best.n_updates_standard:,}."
)
