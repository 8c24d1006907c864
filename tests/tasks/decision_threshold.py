"""A decision threshold with a constraint on recall, chosen on out-of-fold probabilities."""

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split

from optuna_treecv import treecv_objective

X, y = make_classification(6000, weights=[0.9], class_sep=0.7, random_state=0)
X, new_X, y, new_y = train_test_split(X, y, stratify=y, random_state=0)
objective = treecv_objective(
    LogisticRegression(),
    X,
    y,
    param_distributions={"C": FloatDistribution(1e-3, 1e3, log=True)},
    scoring="neg_log_loss",
)
study = optuna.create_study(
    direction=objective.direction, sampler=optuna.samplers.TPESampler(seed=0)
)
study.optimize(objective, n_trials=10)

best_f1 = objective.threshold(study, "f1")
model = objective.best_estimator(study, threshold=best_f1)
default = objective.best_estimator(study)
assert f1_score(new_y, model.predict(new_X)) > f1_score(new_y, default.predict(new_X))
assert best_f1.honest_score <= best_f1.score
assert best_f1.low <= best_f1.threshold <= best_f1.high < 0.5

sensitive = objective.threshold(study, "precision", constraint="recall >= 0.8")
predicted = objective.best_estimator(study, threshold=sensitive).predict(new_X)
assert recall_score(new_y, predicted) > 0.7
# The curve is that of the out-of-fold probabilities.
probabilities = objective.predict_oof(study, "predict_proba")[:, 1]
assert np.isclose(f1_score(y, probabilities >= best_f1.threshold), best_f1.score, atol=1e-3)
