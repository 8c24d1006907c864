"""Ridge with 100 values of alpha, leave-one-out: the choice of RidgeCV."""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeCV

from optuna_treecv import TreeCVSearchCV

X, y = load_diabetes(return_X_y=True)
alphas = np.logspace(-4, 2, 100)
search = TreeCVSearchCV(
    Ridge(),
    param_grid={"alpha": list(alphas)},
    cv="loo",
    scoring="neg_mean_squared_error",
    random_state=0,
)
search.fit(X, y)
theirs = RidgeCV(alphas, scoring="neg_mean_squared_error").fit(X, y)
assert search.best_params_["alpha"] == theirs.alpha_
np.testing.assert_allclose(search.best_score_, theirs.best_score_, rtol=1e-9)
np.testing.assert_allclose(search.best_estimator_.coef_, theirs.coef_, rtol=1e-6)
