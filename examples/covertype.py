"""
A grid at 100 folds, then leave-one-out of the best
===================================================

Tune PEGASOS on Covertype (581,012 rows). As in the TreeCV paper, class 1 is classified against the
rest, and features have unit variance. scikit-learn downloads the data once (11 MB) or finds it in
``$SCIKIT_LEARN_DATA``. If it can do neither, a table of 20,000 rows takes the place of Covertype.

::

    python -m pip install '.[docs]' && python examples/covertype.py
"""

from time import perf_counter

import matplotlib.pyplot as plt
import optuna
from optuna.distributions import FloatDistribution
from sklearn.datasets import fetch_covtype
from sklearn.datasets import make_classification

from optuna_treecv import PegasosClassifier
from optuna_treecv import select
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

print("Loading Covertype ...")
try:
    X, y = fetch_covtype(return_X_y=True)
except OSError:
    print("There is no Covertype and no way to download it: a made table takes its place.")
    X, y = make_classification(20_000, 54, n_informative=5, flip_y=0.2, random_state=0)
X /= X.std(axis=0)
y = y == 1

model = PegasosClassifier(average=True)
objective = treecv_objective(
    model, X, y, param_distributions={"alpha": FloatDistribution(1e-8, 1e-1, log=True)}, cv=100
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

# %%
# Each value of ``alpha`` (the paper's lambda) has the error of 100 folds.

print(f"{'lambda':>8}  {'error':>7}  {'std of folds':>12}  {'seconds':>7}")
for trial in sorted(study.trials, key=lambda trial: trial.params["alpha"]):
    done = trial.user_attrs["treecv"]
    print(
        f"{trial.params['alpha']:8.0e}  {trial.value:7.3%}  {done['std_test_score']:12.3%}  "
        f"{done['seconds']:7.3f}"
    )
print(f"{len(study.trials)} trials of 100 folds each took {seconds:.2f} s, storage included.")

# %%
# The folds are the same for all values, so each value can be compared with the best one in pairs.

choice = select(study, objective, rule="one_se")
print(f"Best: lambda={study.best_params['alpha']:.0e}; not distinguishable from it: ", end="")
print(f"{len(choice.not_distinguishable)} of the {choice.n_trials - 1} others.")

figure, axis = plt.subplots(layout="constrained")
for trial in study.trials:
    is_near = trial.number in (study.best_trial.number, *choice.not_distinguishable)
    axis.errorbar(
        trial.params["alpha"],
        trial.value,
        # The standard error of the mean of 100 folds.
        trial.user_attrs["treecv"]["std_test_score"] / 10,
        marker="o",
        color="#0072B2" if is_near else "grey",
    )
axis.set(xscale="log", xlabel="lambda", ylabel="error of 100 folds")
axis.set_title("blue: the best value and those not distinguishable from it")
figure.savefig("covertype.svg")

# %%
# Leave-one-out of the best value trains on each row about log2(n) times, and not n times.

best = tree_cross_validate(model.set_params(**study.best_params), X, y, cv="loo")
print(
    f"Leave-one-out at lambda={study.best_params['alpha']:.0e}: error {best.mean:.3%} over "
    f"{best.n_folds:,} folds, standard error {best.std_error:.3%}.\n"
    f"{best.n_updates:,} rows trained on in {best.seconds:.2f} s "
    f"(and {best.seconds_prepare:.2f} s to prepare them);\n"
    f"{best.n_folds:,} trainings from scratch would have taken {best.n_updates_standard:,}."
)
