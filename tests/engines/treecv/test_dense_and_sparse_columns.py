"""Centred columns beside sparse ones: the scores, models and bits are those of other paths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler
from spread import spread

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv._kernels.moments import Blocks
from optuna_treecv.engines.treecv.kernels.pegasos import Pegasos
from optuna_treecv.engines.treecv.kernels.scaled import MOST_NUMBERS
from optuna_treecv.engines.treecv.kernels.scaled import Scaled
from optuna_treecv.engines.treecv.learners import compiled
from optuna_treecv.preprocessing import fitted as fitted_steps
from optuna_treecv.rows.layout import SparseRows
from optuna_treecv.rows.memory import aligned_empty
from optuna_treecv.rows.memory import split_columns

N_ROWS = 120
NUMBERS = ["size", "count", "constant"]
LEARNERS = [
    PegasosClassifier(alpha=0.01),
    PegasosClassifier(alpha=0.01, class_weight="balanced"),
    AveragedSGDClassifier(alpha=0.01, fit_intercept=False),
    AveragedSGDRegressor(step_size=1e-3),
    StreamingSVRGClassifier(random_state=0),
]


@pytest.fixture
def table():
    """Return a table of numbers with gaps and columns of 90 and 70 categories, and targets."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "city": [f"city {code}" for code in rng.integers(0, 90, N_ROWS)],
            "size": rng.lognormal(size=N_ROWS) * 1e3,
            "count": rng.integers(0, 5, N_ROWS) * (rng.random(N_ROWS) < 0.5),
            "constant": 2.5,
            "day": rng.integers(0, 70, N_ROWS),
        }
    )
    y = np.log(X["size"]) + X["count"] + rng.normal(size=N_ROWS)
    X.loc[rng.random(N_ROWS) < 0.2, "size"] = np.nan
    return X, y.to_numpy()


def pipeline_for(learner, with_gaps=True):
    numbers = [SimpleImputer(), StandardScaler()] if with_gaps else [StandardScaler()]
    steps = ColumnTransformer(
        [
            ("city", OneHotEncoder(handle_unknown="ignore"), ["city"]),
            ("numbers", make_pipeline(*numbers), NUMBERS),
            (
                "day",
                make_pipeline(
                    OneHotEncoder(handle_unknown="ignore"), StandardScaler(with_mean=False)
                ),
                ["day"],
            ),
        ]
    )
    return Pipeline([("prepare", steps), ("learn", learner)])


def models_of(pipeline, X, y, **options):
    """Return the fitted Pipelines of the folds, and the result."""
    found = []

    def keep(fitted, X, y):
        found.append(fitted)
        return np.mean((fitted.predict(X) - y) ** 2)

    return found, tree_cross_validate(pipeline, X, y, scoring=keep, **options)


def targets_for(learner, y):
    return (y > np.median(y)) * 1.0 if is_classifier(learner) else y


def name_of(estimator):
    return type(estimator).__name__


@settings(max_examples=60)
@given(st.data())
def test_split_columns_takes_columns_out(data):
    n_rows, n_columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    density = data.draw(st.sampled_from([0, 0.2, 1]))
    X = sparse.random_array((n_rows, n_columns), density=density, format="csr", random_state=rng)
    is_beside = rng.random(n_columns) < data.draw(st.sampled_from([0, 0.5, 1]))
    rest, dense = split_columns(X, is_beside)
    np.testing.assert_array_equal(dense, X.toarray()[:, is_beside])
    np.testing.assert_array_equal(rest.toarray(), np.where(is_beside, 0, X.toarray()))
    assert not np.any(is_beside[rest.indices])


@pytest.mark.slow
@pytest.mark.parametrize(
    *spread(estimator=LEARNERS, n_folds=[3, 10, N_ROWS], order=["fixed", "random"]), ids=name_of
)
def test_scores_are_those_of_dense_rows(estimator, n_folds, order, table, monkeypatch):
    X, y = table
    y = targets_for(estimator, y)
    options = {"cv": n_folds, "order": order, "stratify": False, "random_state": 0}
    options["scoring"] = "hinge" if is_classifier(estimator) else "neg_mean_squared_error"
    pipeline = pipeline_for(estimator)
    made = []
    monkeypatch.setattr(compiled, "Scaled", lambda *args: made.append(args) or Scaled(*args))
    found = tree_cross_validate(pipeline, X, y, **options)
    assert found.method == "treecv"
    threads = tree_cross_validate(pipeline, X, y, n_jobs=2, **options)
    np.testing.assert_array_equal(threads.test_score, found.test_score)
    monkeypatch.setattr(fitted_steps, "_MOST_DENSE", 1000)
    dense = tree_cross_validate(pipeline, X, y, **options)
    assert [len(args) for args in made] == [5, 5, 4]  # the last one has no columns beside its rows
    np.testing.assert_allclose(found.test_score, dense.test_score, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_lanes_and_shared_trials_give_the_same_bits(table):
    X, y = table
    y = targets_for(PegasosClassifier(), y)
    pipeline = pipeline_for(PegasosClassifier())
    points = [{"learn__alpha": alpha} for alpha in np.geomspace(1e-4, 1, 9)]
    options = {"cv": 6, "scoring": "hinge"}
    estimators = [clone(pipeline).set_params(**point) for point in points]
    alone = [tree_cross_validate(one, X, y, **options) for one in estimators]
    beside = tree_cross_validate_many(estimators, X, y, **options)
    objective = treecv_objective(pipeline, X, y, param_grid={"learn__alpha": [1.0]}, **options)
    for point, one, other in zip(points, alone, beside, strict=True):
        np.testing.assert_array_equal(one.test_score, other.test_score)
        np.testing.assert_array_equal(objective.evaluate(point).test_score, one.test_score)


@pytest.mark.slow
def test_the_fitted_pipeline_transforms_as_scikit_learn_does(table):
    X, y = table
    pipeline = pipeline_for(AveragedSGDRegressor(step_size=1e-3))
    n_of_fold = 8
    cv = N_ROWS // n_of_fold
    models, found = models_of(pipeline, X, y, cv=cv, shuffle=False)
    for fold in (0, 4):
        rows = range(fold * n_of_fold, (fold + 1) * n_of_fold)
        others = X.drop(index=rows)
        fitted = models[fold]
        right = clone(pipeline[0]).fit(others)
        scaler, right_scaler = (
            steps.named_transformers_["numbers"][-1] for steps in (fitted[0], right)
        )
        np.testing.assert_allclose(
            fitted[0].named_transformers_["numbers"][0].statistics_,
            right.named_transformers_["numbers"][0].statistics_,
            rtol=1e-12,
        )
        # Missing values of early phases took the means of those phases.
        np.testing.assert_allclose(scaler.mean_[1:], right_scaler.mean_[1:], rtol=1e-12)
        np.testing.assert_allclose(scaler.scale_[1:], right_scaler.scale_[1:], rtol=1e-12)
        scales = fitted[0].named_transformers_["day"][-1].scale_
        days = OneHotEncoder().fit(X[["day"]]).transform(X[["day"]]).toarray()
        by_hand = np.delete(days, rows, axis=0).std(axis=0)
        np.testing.assert_allclose(scales, np.where(by_hand == 0, 1, by_hand), rtol=1e-12)
    predicted = tree_cross_val_predict(pipeline, X, y, cv=cv, shuffle=False)
    expected = np.square(predicted - y).reshape(cv, n_of_fold).mean(axis=1)
    np.testing.assert_allclose(found.test_score, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    *spread(estimator=LEARNERS, with_gaps=[True, False], row=[7, 40]), ids=name_of
)
def test_a_row_leaves_no_trace_in_the_model_that_tests_it(estimator, with_gaps, row, table):
    X, y = table
    if not with_gaps:
        X["size"] = X["size"].fillna(1.0)
    pipeline, target = pipeline_for(estimator, with_gaps), targets_for(estimator, y)
    models = []
    for factor in (1, 1e12):
        changed = X.copy()
        changed["count"] = changed["count"].astype(float)
        changed.loc[row, ["size", "count"]] = [5 * factor, 3 * factor]
        folds, _ = models_of(pipeline, changed, target, cv=5, shuffle=False, stratify=False)
        models.append(folds[row // (N_ROWS // 5)])
    one, other = models
    for before, after in zip(*(m[0].named_transformers_["numbers"] for m in models), strict=True):
        if isinstance(before, StandardScaler):
            np.testing.assert_array_equal(before.mean_, after.mean_)
            np.testing.assert_array_equal(before.scale_, after.scale_)
        else:
            np.testing.assert_array_equal(before.statistics_, after.statistics_)
    np.testing.assert_array_equal(one[1].coef_, other[1].coef_)


def kernel_over(rows, n_rows):
    return Pegasos(rows, np.zeros(n_rows, np.int32), 2, [1.0], False, False)


def test_the_kernel_refuses_other_rows():
    values, columns = np.ones(3), np.arange(3, dtype=np.int32)
    rows = SparseRows(values, columns, np.arange(4), (3, 8))
    blocks = Blocks(np.zeros((3, 8)))
    flags = np.array([0, 0, 0, 1], np.uint8)
    with pytest.raises(ValueError, match="^columns that are centred must be stored beside"):
        Scaled(kernel_over(rows, 3), flags, flags)
    with pytest.raises(ValueError, match="^beside must hold column indices"):
        Scaled(kernel_over(rows, 3), flags, flags, blocks, [4])
    with pytest.raises(ValueError, match="as many rows"):
        Scaled(kernel_over(rows, 3), flags, flags, Blocks(np.zeros((4, 8))), [3])
    with pytest.raises(ValueError, match="as many rows"):
        Scaled(kernel_over(rows, 3), flags, flags, Blocks(np.zeros((3, 8), np.float32)), [3])
    with pytest.raises(ValueError, match="for each column"):
        Scaled(kernel_over(rows, 3), flags, flags[:2], blocks, [3])
    with pytest.raises(ValueError, match="must be sparse"):
        Scaled(kernel_over(aligned_empty((3, 8), np.float64), 3), flags, flags, blocks, [3])
    wide = SparseRows(
        np.ones(MOST_NUMBERS),
        np.arange(MOST_NUMBERS, dtype=np.int32),
        np.array([0, MOST_NUMBERS]),
        (1, MOST_NUMBERS + 8),
    )
    assert fitted_steps.MOST_NUMBERS == MOST_NUMBERS
    flags = np.zeros(MOST_NUMBERS + 1, np.uint8)
    with pytest.raises(ValueError, match="at most"):
        Scaled(kernel_over(wide, 1), flags, flags, Blocks(np.zeros((1, 8))), [MOST_NUMBERS])


def test_learners_for_dense_rows_say_which_option_gives_them(table):
    X, y = table
    learner = AveragedSGDRegressor(batch_size=5)
    pipeline = pipeline_for(learner)
    with pytest.raises(ValueError, match="steps that pass dense rows to AveragedSGDRegressor"):
        tree_cross_validate(pipeline, X, y, cv=4)
    pipeline.set_params(prepare__sparse_threshold=0)
    assert tree_cross_validate(pipeline, X, y, cv=4).method == "treecv"
