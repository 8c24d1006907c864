"""Steps before compiled learners in less usual forms."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.learners.steps.front import compiled_part

LEARNER = AveragedSGDRegressor(shuffle=False)


@pytest.fixture
def rows():
    """Return rows on different scales and far from 0, and targets."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((60, 4)) * [1, 10, 0.1, 3] + [0, 5, 1, 2]
    return X, X @ [1, 0.1, 10, 0.3] + 0.1 * rng.standard_normal(60)


def errors_by_hand(pipeline, X, y):
    """Fit each fold of ``KFold(4)``."""
    errors = []
    for train, test in KFold(4).split(X):
        model = clone(pipeline).fit(X[train], y[train])
        errors.append(np.mean((model.predict(X[test]) - y[test]) ** 2))
    return errors


@pytest.mark.parametrize("passed", ["passthrough", None])
@pytest.mark.parametrize(
    "steps",
    [("scaler", "passed"), ("imputer", "passed", "scaler"), ("imputer", "scaler", "passed")],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_step_that_passes_rows_on_changes_nothing(steps, passed, nested, rows):
    X, y = rows
    if "imputer" in steps:
        X[3, 1] = X[40, 2] = np.nan
    made = {"scaler": StandardScaler(), "imputer": SimpleImputer(), "passed": passed}
    before = Pipeline([(name, made[name]) for name in steps])
    pipeline = Pipeline([*before.steps, ("last", LEARNER)])
    if nested:
        pipeline = make_pipeline(ColumnTransformer([("some", before, [1, 2])]), LEARNER)
    assert compiled_part(pipeline) is not None
    found = tree_cross_validate(pipeline, X, y, cv=KFold(4), shuffle=False, method="standard")
    np.testing.assert_allclose(found.test_score, errors_by_hand(pipeline, X, y), rtol=1e-9)


def test_learners_behind_the_same_steps_get_their_own_rows(rows):
    X, y = rows
    pipelines = [
        Pipeline([("scaler", StandardScaler()), ("last", clone(LEARNER).set_params(**values))])
        for values in ({}, {"fit_intercept": False})
    ]
    found = tree_cross_validate_many(
        pipelines, X, y + 5, cv=KFold(4), shuffle=False, method="standard"
    )
    for pipeline, result in zip(pipelines, found, strict=True):
        expected = errors_by_hand(pipeline, X, y + 5)
        np.testing.assert_allclose(result.test_score, expected, rtol=1e-9)
