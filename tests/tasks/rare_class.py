"""A rare class, judged by average precision: the trial's value is that of the kept scorer."""

import optuna
from optuna.distributions import FloatDistribution
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import treecv_objective

X, y = make_classification(3000, weights=[0.95], flip_y=0.02, random_state=0)
X = scale(X)
folds = StratifiedKFold(5, shuffle=True, random_state=0)
objective = treecv_objective(
    AveragedSGDClassifier("log_loss"),
    X,
    y,
    cv=folds,
    scoring="average_precision",
    param_distributions={"alpha": FloatDistribution(1e-6, 0.1, log=True)},
)
study = optuna.create_study(
    direction=objective.direction, sampler=optuna.samplers.TPESampler(seed=0)
)
study.optimize(objective, n_trials=15)
plain = cross_val_score(LogisticRegression(), X, y, cv=folds, scoring="average_precision")
assert objective.direction == "maximize"
assert study.best_value > plain.mean() - 2 * plain.std() / 5**0.5
assert objective.best_estimator(study).decision_function(X).shape == (3000,)
