"""Features selected one after the other, as by ``SequentialFeatureSelector``; the flat curve."""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.feature_selection import SequentialFeatureSelector
from sklearn.linear_model import LinearRegression

from optuna_treecv import select_features

X, y = load_diabetes(return_X_y=True, as_frame=True)
selection = select_features(
    LinearRegression(),
    X,
    y,
    n_features_to_select=5,
    cv=5,
    shuffle=False,
    scoring="neg_mean_squared_error",
)
theirs = SequentialFeatureSelector(
    LinearRegression(), n_features_to_select=5, cv=5, scoring="neg_mean_squared_error"
)
assert np.array_equal(selection.support, theirs.fit(X, y).get_support())
assert selection.fewest <= 5
path = selection.frame()
print(path)
assert len(path) == X.shape[1]
