"""Weights of rows and groups of them: no group is on both sides, and scores are weighted means."""

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import GroupKFold

from optuna_treecv import tree_cross_validate

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 4))
y = X @ np.arange(4) + rng.normal(size=300)
weights, groups = rng.uniform(0.5, 2, 300), rng.integers(20, size=300)
result = tree_cross_validate(Ridge(), X, y, cv=GroupKFold(5), groups=groups, sample_weight=weights)
expected = []
for train, test in GroupKFold(5).split(X, y, groups):
    assert not set(groups[train]) & set(groups[test])
    model = Ridge().fit(X[train], y[train], weights[train])
    expected.append(
        mean_squared_error(y[test], model.predict(X[test]), sample_weight=weights[test])
    )
np.testing.assert_allclose(result.test_score, expected, rtol=1e-9)
