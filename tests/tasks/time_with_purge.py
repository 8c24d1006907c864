"""Folds along time with a purge: every row before the gap trains, and none after it."""

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_squared_error

from optuna_treecv import tree_cross_validate

rng = np.random.default_rng(0)
X = rng.normal(size=(600, 5))
y = X @ np.arange(5) + rng.normal(size=600)


def purged(n_rows, n_folds, gap):
    """Yield training and test rows; those within ``gap`` of the test rows are left out."""
    for test in np.array_split(np.arange(n_rows), n_folds):
        near = np.arange(max(0, test[0] - gap), min(n_rows, test[-1] + 1 + gap))
        yield np.setdiff1d(np.arange(n_rows), near), test


folds = list(purged(600, 6, gap=10))
result = tree_cross_validate(Ridge(), X, y, cv=purged(600, 6, gap=10), shuffle=False)
expected = [
    mean_squared_error(y[test], Ridge().fit(X[train], y[train]).predict(X[test]))
    for train, test in folds
]
np.testing.assert_allclose(result.test_score, expected, rtol=1e-9)
