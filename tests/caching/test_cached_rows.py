"""Transformed rows are shared by trials, within the bound of the cache."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import ModelCache
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.preprocessing.fitted import FittedSteps

N_ROWS = 300


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"kind": rng.integers(0, 4, N_ROWS), "size": rng.normal(size=N_ROWS)})
    return X, X["size"].to_numpy() + rng.normal(size=N_ROWS)


@pytest.fixture
def pipeline():
    steps = ColumnTransformer(
        [
            ("kind", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["kind"]),
            ("size", PolynomialFeatures(), ["size"]),
        ]
    )
    return Pipeline([("prepare", steps), ("learn", AveragedSGDRegressor(step_size=1e-3))])


@pytest.fixture
def transformed(monkeypatch):
    """Return the list of all calls that transform all rows."""
    calls = []
    transform = FittedSteps.transform

    def noted(self, X):
        calls.append(self)
        return transform(self, X)

    monkeypatch.setattr(FittedSteps, "transform", noted)
    return calls


POINTS = [
    {"prepare__size__degree": degree, "learn__alpha": alpha}
    for alpha in (1e-4, 1e-2)
    for degree in (1, 2, 3)
]


@pytest.mark.slow
@pytest.mark.parametrize(("room", "n_made"), [(2**20, 3), (2**12, 7), (0, 7)])
def test_rows_are_kept_while_the_cache_has_room(room, n_made, table, pipeline, transformed):
    X, y = table
    cache = ModelCache(max_bytes=room)
    grid = {"prepare__size__degree": [1, 2, 3], "learn__alpha": [1e-4, 1e-2]}
    options = {"cv": 5, "random_state": 0}
    objective = treecv_objective(pipeline, X, y, param_grid=grid, cache=cache, **options)
    found = [objective.evaluate(point).mean for point in POINTS]
    assert len(transformed) == n_made  # once for the pipeline as given, of degree 2
    assert cache.n_bytes <= room
    for point, mean in zip(POINTS, found, strict=True):
        alone = clone(pipeline).set_params(**point)
        assert tree_cross_validate(alone, X, y, **options).mean == mean


def test_trials_with_the_same_steps_share_the_last_rows(table, pipeline, transformed):
    X, y = table
    grid = {"learn__alpha": [1e-4, 1e-3, 1e-2]}
    objective = treecv_objective(pipeline, X, y, cv=5, param_grid=grid, cache=None)
    for alpha in grid["learn__alpha"]:
        objective.evaluate({"learn__alpha": alpha})
    assert len(transformed) == 1
