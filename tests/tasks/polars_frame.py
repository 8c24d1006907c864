"""A frame of polars goes in; the scores are those of the same numbers in an array."""

import numpy as np
import polars as pl
from sklearn.linear_model import Ridge

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import tree_cross_validate

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 3))
y = X @ [1.0, 2.0, 3.0] + rng.normal(size=200)
frame = pl.DataFrame(X, schema=["a", "b", "c"])
for model in (Ridge(), AveragedSGDRegressor()):
    of_frame = tree_cross_validate(model, frame, pl.Series(y))
    assert np.array_equal(of_frame.test_score, tree_cross_validate(model, X, y).test_score)
