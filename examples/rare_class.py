"""
A rare class, two objectives
============================

Find class 4 of Covertype, which has 0.5 % of 581,012 rows. Trials search the penalty and the
weight of the rare class. Each trial has three scores from one training. The study optimises two of
them, so it has a Pareto front.

scikit-learn downloads the data once (11 MB) or finds it in ``$SCIKIT_LEARN_DATA``. If it can do
neither, a table of 20,000 rows takes the place of Covertype. The argument is the number of
trials::

    python -m pip install '.[dashboard,docs]' && python examples/rare_class.py 40
    optuna-dashboard sqlite:///rare_class.db
"""

import sys

import matplotlib.pyplot as plt
import optuna
from sklearn.datasets import fetch_covtype
from sklearn.datasets import make_classification

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

print("Loading Covertype ...")
try:
    X, y = fetch_covtype(return_X_y=True)
except OSError:
    print("There is no Covertype and no way to download it: a made table takes its place.")
    X, y = make_classification(
        20_000, 54, n_informative=10, weights=[0.98], flip_y=0.01, random_state=0
    )
    y *= 4
X /= X.std(axis=0)
y = (y == 4).astype(int)


def estimator(trial):
    return AveragedSGDClassifier(
        loss="log_loss",
        alpha=trial.suggest_float("alpha", 1e-7, 1e-3, log=True),
        class_weight={1: trial.suggest_float("weight", 1, 300, log=True)},
    )


scoring = ["error", "balanced_accuracy", "average_precision"]
objective = treecv_objective(
    estimator, X, y, cv=10, scoring=scoring, optimize=["balanced_accuracy", "average_precision"]
)
optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    study_name="rare class",
    storage="sqlite:///rare_class.db",
    load_if_exists=True,
    directions=objective.directions,
    sampler=optuna.samplers.TPESampler(seed=0),
)
n_trials = int(sys.argv[1]) if len(sys.argv) > 1 else 40
study.optimize(objective, n_trials=n_trials, show_progress_bar=True)

LINE = "{:>17}  {:>17}  {:>6}  {:>7}  {}"
print(f"\nThe Pareto front of {len(study.trials)} trials:")
print(LINE.format("balanced accuracy", "average precision", "error", "alpha", "weight of class 4"))
for trial in sorted(study.best_trials, key=lambda trial: trial.values):
    error = trial.user_attrs["treecv"]["score_error"]
    values = [f"{value:.3f}" for value in trial.values]
    alpha, weight = trial.params["alpha"], trial.params["weight"]
    print(LINE.format(*values, f"{error:.2%}", f"{alpha:.0e}", f"{weight:.3g}"))

# %%
# The same scores without a search, with no class weights and with balanced ones:

figure, axis = plt.subplots(layout="constrained")
for trials, label in ((study.trials, "trials"), (study.best_trials, "Pareto front")):
    axis.plot(*zip(*(trial.values for trial in trials), strict=True), "o", label=label)
for class_weight in (None, "balanced"):
    model = AveragedSGDClassifier(loss="log_loss", class_weight=class_weight)
    error, *others = tree_cross_validate(model, X, y, scoring=scoring).scores.values()
    values = [f"{score.mean:.3f}" for score in others]
    print(LINE.format(*values, f"{error.mean:.2%}", f"{model.alpha:.0e}", class_weight))
    axis.plot(*(score.mean for score in others), "s", label=f"class_weight={class_weight!r}")
axis.set(xlabel="balanced accuracy", ylabel="average precision")
axis.legend()
figure.savefig("rare_class.svg")
