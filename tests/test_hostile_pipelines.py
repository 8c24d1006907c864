"""Steps before compiled learners in less usual forms."""

from __future__ import annotations

import numpy as np
import optuna
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import SGDRegressor
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.learners.steps.split import compiled_part

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
@pytest.mark.parametrize("learner", [LEARNER, SGDRegressor(max_iter=1, tol=None, shuffle=False)])
def test_a_step_that_passes_rows_on_changes_nothing(learner, steps, passed, nested, rows):
    X, y = rows
    if learner is not LEARNER and "imputer" in steps:
        return  # it runs in kernels alone
    if "imputer" in steps:
        X[3, 1] = X[40, 2] = np.nan
    made = {"scaler": StandardScaler(), "imputer": SimpleImputer(), "passed": passed}
    before = Pipeline([(name, made[name]) for name in steps])
    pipeline = Pipeline([*before.steps, ("last", learner)])
    if nested:
        pipeline = make_pipeline(ColumnTransformer([("some", before, [1, 2])]), learner)
    assert (compiled_part(pipeline) is not None) == (learner is LEARNER)
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


def test_one_pipeline_whose_parameters_are_set_by_each_trial(rows):
    X, y = rows
    pipeline = make_pipeline(PolynomialFeatures(), StandardScaler(), clone(LEARNER))

    def make(trial):
        degree = trial.suggest_int("degree", 1, 3)
        return pipeline.set_params(polynomialfeatures__degree=degree)

    objective = treecv_objective(make, X, y, cv=KFold(4), shuffle=False, method="standard")
    study = optuna.create_study()
    for degree in (1, 2, 3):
        study.enqueue_trial({"degree": degree})
    study.optimize(objective, 3)
    for trial in study.trials:
        expected = np.mean(errors_by_hand(make(trial), X, y))
        assert trial.value == pytest.approx(expected, rel=1e-9)
    for trial in study.trials:
        best = objective.best_estimator(trial)
        make(study.trials[0])
        assert best[0].degree == trial.params["degree"]


def test_an_evaluation_fits_copies_of_the_steps():
    rng = np.random.default_rng(0)
    X, other = rng.choice(list("abc"), (60, 1)), rng.choice(list("vwxyz"), (60, 1))
    y = rng.integers(0, 2, 60)
    encoder = OneHotEncoder(handle_unknown="ignore")
    pipeline = make_pipeline(encoder, AveragedSGDClassifier())
    values = {"averagedsgdclassifier__alpha": optuna.distributions.FloatDistribution(0.01, 1)}
    objective = treecv_objective(pipeline, X, y, param_distributions=values, cv=4)
    trial = optuna.trial.FixedTrial({"averagedsgdclassifier__alpha": 0.1})
    score = objective(trial)
    assert not hasattr(encoder, "categories_")
    study = optuna.create_study()
    study.enqueue_trial(trial.params)
    study.optimize(objective, 1)
    first, second = objective.best_estimator(study), objective.best_estimator(study)
    expected = first.predict(X)
    second.fit(other, y)
    np.testing.assert_array_equal(first.predict(X), expected)
    assert objective(trial) == score
    np.testing.assert_array_equal(objective.best_estimator(study).predict(X), expected)


def test_no_placeholder_is_left_in_a_fitted_column_transformer(rows):
    X, y = rows
    steps = ColumnTransformer([("some", "passthrough", [0])], remainder=StandardScaler())
    values = {"averagedsgdregressor__alpha": optuna.distributions.FloatDistribution(0.01, 1)}
    objective = treecv_objective(make_pipeline(steps, LEARNER), X, y, param_distributions=values)
    study = optuna.create_study()
    study.optimize(objective, 1)
    found, expected = vars(objective.best_estimator(study)[0]), vars(clone(steps).fit(X))
    assert {name: repr(value) for name, value in found.items()} == {
        name: repr(value) for name, value in expected.items()
    }


@pytest.mark.parametrize("values", [{"max_df": 1}, {"min_df": 1.0}])
def test_one_row_is_not_a_share_of_1(values):
    texts = np.array([f"word{i % 20} all row{i}" for i in range(60)], object)
    y = np.arange(60) % 2
    pipeline = make_pipeline(CountVectorizer(**values), AveragedSGDClassifier(shuffle=False))
    found = tree_cross_validate(pipeline, texts, y, cv=KFold(4), shuffle=False)
    assert found.method == "fit"
    assert next(iter(values)) in found.why


def test_the_drop_of_an_encoder_may_be_an_array():
    rng = np.random.default_rng(0)
    X, y = rng.choice(list("abc"), (60, 2)), rng.integers(0, 2, 60)
    encoder = OneHotEncoder(handle_unknown="ignore", drop=np.array(["a", "b"]))
    found = tree_cross_validate(make_pipeline(encoder, AveragedSGDClassifier()), X, y, cv=4)
    assert "its drop comes from the rows" in found.why


def test_a_search_takes_objects_that_a_step_encodes():
    rng = np.random.default_rng(0)
    X, y = rng.choice(list("abc"), (60, 1)).astype(object), rng.integers(0, 2, 60)
    pipeline = make_pipeline(OneHotEncoder(handle_unknown="ignore"), AveragedSGDClassifier())
    grid = {"averagedsgdclassifier__alpha": [0.01, 0.1]}
    search = TreeCVSearchCV(pipeline, param_grid=grid, cv=4).fit(X, y)
    assert search.predict(X).shape == (60,)
