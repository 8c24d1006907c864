"""An L1 penalty: which columns survive, and the simplest model within one standard error."""

import numpy as np
import optuna
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import scale

from optuna_treecv import select
from optuna_treecv import treecv_objective

X, y = make_classification(1200, 60, n_informative=6, n_redundant=0, random_state=0)
X = scale(X)
model = LogisticRegression(l1_ratio=1.0, solver="saga", tol=1e-6, max_iter=5000)
objective = treecv_objective(
    model,
    X,
    y,
    param_grid={"C": np.geomspace(1e-3, 10, 12)},
    cv=5,
    shuffle=False,
    scoring="log_loss",
)
study = optuna.create_study(sampler=objective.grid_sampler())
study.optimize(objective)
simple = select(study, objective, rule="one_se", simpler={"C": "smaller"})
sparse = objective.best_estimator(simple.trial)
best = objective.best_estimator(study)
assert np.count_nonzero(sparse.coef_) < np.count_nonzero(best.coef_) < 60
expected = cross_val_score(
    model.set_params(**study.best_params), X, y, cv=5, scoring="neg_log_loss"
)
assert np.isclose(study.best_value, -expected.mean(), rtol=1e-4)
