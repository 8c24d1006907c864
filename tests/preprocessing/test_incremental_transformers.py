"""Running steps in kernels give the scores and models of ``partial_fit``, and leave no traces."""

from __future__ import annotations

from itertools import cycle

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
from pairs import pairs
from pipelines_by_hand import by_hand
from pipelines_by_hand import CLASSIFIERS
from pipelines_by_hand import name_of
from pipelines_by_hand import REGRESSORS
from pipelines_by_hand import rows_on_different_scales
from pipelines_by_hand import SEED
from pipelines_by_hand import UNSUPERVISED
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv._kernels.moments import Blocks
from optuna_treecv.preprocessing.decisions import compiled_part
from optuna_treecv.preprocessing.decisions import split
from optuna_treecv.preprocessing.fitted import FittedSteps
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.partition import Phase

EVERY = [*CLASSIFIERS, *REGRESSORS, *UNSUPERVISED]


@pytest.fixture
def rows():
    return rows_on_different_scales()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_folds", "order", "estimator"),
    [
        *zip(cycle([30]), cycle(["fixed", "random"]), EVERY, strict=False),
        *zip(cycle([2, 5]), cycle(["random", "random", "fixed"]), EVERY, strict=False),
    ],
    ids=name_of,
)
def test_scaled_folds_are_those_of_partial_fit(estimator, order, n_folds, rows, training_paths):
    X, y = (some[::3] for some in rows)
    if is_classifier(estimator):
        y = np.digitize(y, [-0.5, 0.8]) if estimator.get_params().get("alpha") == 0.01 else y > 0
    if estimator in UNSUPERVISED:
        y = None
    pipeline = make_pipeline(StandardScaler(), estimator)
    assert compiled_part(pipeline) is estimator
    options = {"cv": n_folds, "order": order, "stratify": False, "random_state": SEED}
    ours = tree_cross_validate(pipeline, X, y, **options)
    paths = training_paths(len(X), n_folds, order, random_state=SEED)
    assert ours.method == "treecv"
    np.testing.assert_allclose(ours.test_score, by_hand(pipeline, X, y, paths), rtol=1e-9)


@pytest.mark.parametrize("with_std", [True, False])
@pytest.mark.parametrize("with_mean", [True, False])
def test_a_fitted_pipeline_is_that_of_partial_fit(with_mean, with_std, rows):
    X, y = rows
    scaler = StandardScaler(with_mean=with_mean, with_std=with_std)
    pipeline = make_pipeline(scaler, AveragedSGDRegressor(shuffle=False))
    front = FittedSteps(split(pipeline), X)
    prepared = Data(front.transform(X), y).prepare(
        pipeline[-1].row_layout, np.arange(90, dtype="u4")
    )
    learner = pipeline[-1].make_learner(prepared, 0, front)
    state = learner.start()
    expected = clone(pipeline)
    for start, stop in [(10, 50), (50, 51), (0, 10), (51, 90)]:
        learner.update(state, Phase(start, stop))
        part = slice(start, stop)
        seen = expected[0].partial_fit(X[part]).transform(X[part])
        expected[1].partial_fit(seen, y[part])
    found = learner.estimator(state)
    assert list(found.named_steps) == list(pipeline.named_steps)
    for name in ("mean_", "var_", "scale_", "n_samples_seen_", "n_features_in_"):
        value, right = getattr(found[0], name), getattr(expected[0], name)
        assert (value is None) == (right is None)
        if right is not None:
            np.testing.assert_allclose(value, right, rtol=1e-12, atol=1e-30)
    np.testing.assert_allclose(found[1].coef_, expected[1].coef_, rtol=1e-9)
    np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=1e-9)


def test_a_column_that_is_constant_up_to_rounding_has_scale_1():
    x = np.full(40, 1e9)
    x[::3] += 1e-7  # below the rounding error of the mean
    front_of = make_pipeline(StandardScaler(), AveragedSGDRegressor(shuffle=False))
    X = np.column_stack([x, np.arange(40.0)])
    scaler = StandardScaler().fit(X)
    front = FittedSteps(split(front_of), X)
    rows = Data(X, np.arange(40.0)).prepare(front_of[-1].row_layout, np.arange(40, dtype="u4"))
    learner = front_of[-1].make_learner(rows, 0, front)
    state = learner.start()
    learner.update(state, slice(0, 40))
    found = learner.estimator(state)[0]
    assert found.scale_[0] == scaler.scale_[0] == 1
    np.testing.assert_allclose(found.scale_[1], scaler.scale_[1], rtol=1e-15)


def model_that_tests(row, pipeline, X, y, **options):
    """Return the steps that are fitted without a row, as a scorer gets them."""
    found = []

    def keep(fitted, X, y):
        found.append(fitted)
        return 0.0

    tree_cross_validate(pipeline, X, y, cv="loo", shuffle=False, scoring=keep, **options)
    return found[row]


def assert_same_models(one, other):
    for step, other_step in zip(one, other, strict=True):
        for name in ("statistics_", "mean_", "var_", "scale_", "coef_", "intercept_"):
            values = getattr(step, name, None), getattr(other_step, name, None)
            np.testing.assert_array_equal(*values)


@pytest.mark.slow
@pytest.mark.parametrize("form", [np.float64, np.float32, "sparse"])
@pytest.mark.parametrize("estimator", [*CLASSIFIERS[:3], StreamingSVRGClassifier()], ids=name_of)
def test_a_row_leaves_no_trace_in_the_model_that_tests_it(estimator, form, rows):
    X, y = rows[0], rows[1] > 0
    scaler = StandardScaler(with_mean=form != "sparse")
    if form == "sparse":
        X[np.random.default_rng(4).random(X.shape) < 0.8] = 0
    models = []
    for factor in (1, 1e12):
        changed = X.copy()
        changed[37] *= factor
        changed = sparse.csr_array(changed) if form == "sparse" else changed.astype(form)
        models.append(model_that_tests(37, make_pipeline(scaler, estimator), changed, y))
    assert_same_models(*models)
    if form == "sparse":
        right = StandardScaler(with_mean=False).fit(sparse.csr_array(np.delete(X, 37, axis=0)))
        np.testing.assert_allclose(models[0][0].scale_, right.scale_, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize("estimator", CLASSIFIERS[:3], ids=name_of)
def test_one_seed_gives_the_same_bits(estimator, order, rows):
    X, y = rows[0], rows[1] > 0
    options = {"cv": 30, "order": order, "stratify": False, "scoring": "hinge", "random_state": 0}
    name = f"{type(estimator).__name__.lower()}__alpha"
    points = [{name: alpha} for alpha in np.geomspace(1e-4, 1, 9)]
    pipeline = make_pipeline(StandardScaler(), estimator)
    alone = [
        tree_cross_validate(clone(pipeline).set_params(**point), X, y, **options)
        for point in points
    ]
    threads = tree_cross_validate(
        clone(pipeline).set_params(**points[0]), X, y, n_jobs=2, **options
    )
    np.testing.assert_array_equal(threads.test_score, alone[0].test_score)
    beside = tree_cross_validate_many(
        [clone(pipeline).set_params(**point) for point in points], X, y, **options
    )
    objective = treecv_objective(pipeline, X, y, param_grid={name: [1.0]}, **options)
    for point, one, other in zip(points, alone, beside, strict=True):
        np.testing.assert_array_equal(one.test_score, other.test_score)
        shared = objective.evaluate(point)
        np.testing.assert_array_equal(one.test_score, shared.test_score)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.integers(2, 700), st.integers(0, 699), st.integers(1, 700), st.sampled_from(["f4", "f8"])
)
def test_the_moments_of_a_range_follow_from_blocks(n_rows, start, n, dtype):
    rng = np.random.default_rng(n_rows)
    X = np.zeros((n_rows, 8), dtype)
    X[:, :5] = rng.normal(size=(n_rows, 5)) * 3 + 7
    y = rng.normal(size=n_rows)
    start = min(start, n_rows - 1)
    stop = min(start + n, n_rows)
    estimator = AveragedSGDRegressor(shuffle=False, fit_intercept=False)
    pipeline = make_pipeline(StandardScaler(), estimator)
    front = FittedSteps(split(pipeline), X[:, :5])
    rows = Data(X[:, :5], y).prepare(estimator.row_layout, np.arange(n_rows, dtype="u4"))
    assert isinstance(rows.blocks, Blocks)
    learner = estimator.make_learner(rows, 0, front)
    state = learner.start()
    learner.update(state, Phase(start, stop))
    found = learner.estimator(state)[0]
    part = X[start:stop, :5].astype(np.float64)
    np.testing.assert_allclose(found.mean_, part.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(found.var_, part.var(axis=0), rtol=1e-10, atol=1e-14)


# Sparse rows.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "dtype", "order", "n_folds"),
    [
        (AveragedSGDClassifier(shuffle=False, loss="log_loss"), np.float64, "fixed", 30),
        (
            AveragedSGDClassifier(class_weight="balanced", fit_intercept=False, shuffle=False),
            np.float32,
            "random",
            7,
        ),
        (AveragedSGDRegressor(shuffle=False), np.float32, "fixed", 2),
        (AveragedSGDRegressor(shuffle=False), np.float64, "random", 30),
        (StreamingSVRGRegressor(shuffle=False, random_state=0), np.float64, "fixed", 7),
        (StreamingSVRGRegressor(shuffle=False, random_state=0), np.float32, "random", 2),
    ],
    ids=name_of,
)
def test_sparse_rows_are_scaled_without_their_means(
    estimator, dtype, order, n_folds, training_paths
):
    rng = np.random.default_rng(4)
    X = sparse.random_array((30, 700), density=0.02, format="csr", random_state=rng).astype(dtype)
    X = sparse.csr_array(X * (10.0 ** rng.integers(-2, 3, 700)).astype(dtype))
    X[:, [3]] = 2.0  # a constant column
    y = X[:, [5, 9, 20]].sum(axis=1) + rng.normal(size=30)
    if is_classifier(estimator):
        y = y > np.median(y)
    pipeline = make_pipeline(StandardScaler(with_mean=False), estimator)
    assert compiled_part(pipeline) is estimator
    options = {"cv": n_folds, "order": order, "stratify": False, "random_state": SEED}
    paths = training_paths(30, n_folds, order, random_state=SEED)
    right = by_hand(pipeline, X, y, paths)
    found = tree_cross_validate(pipeline, X, y, **options)
    np.testing.assert_allclose(found.test_score, right, rtol=1e-9 if dtype == np.float64 else 1e-3)
    threads = tree_cross_validate(pipeline, X, y, n_jobs=2, **options)
    np.testing.assert_array_equal(threads.test_score, found.test_score)


def test_sparse_rows_in_lanes_and_shared():
    rng = np.random.default_rng(4)
    X = sparse.random_array((80, 300), density=0.05, format="csr", random_state=rng)
    y = X[:, [5, 9, 20]].sum(axis=1) > 0.1
    pipeline = make_pipeline(StandardScaler(with_mean=False), PegasosClassifier())
    points = [{"pegasosclassifier__alpha": alpha} for alpha in np.geomspace(1e-4, 1, 9)]
    options = {"cv": 20, "scoring": "hinge"}
    estimators = [clone(pipeline).set_params(**point) for point in points]
    alone = [tree_cross_validate(one, X, y, **options) for one in estimators]
    beside = tree_cross_validate_many(estimators, X, y, **options)
    grid = {"pegasosclassifier__alpha": [1.0]}
    objective = treecv_objective(pipeline, X, y, param_grid=grid, **options)
    for point, one, other in zip(points, alone, beside, strict=True):
        np.testing.assert_array_equal(one.test_score, other.test_score)
        np.testing.assert_array_equal(objective.evaluate(point).test_score, one.test_score)


# Missing values.


@pytest.fixture
def gaps(rows):
    """Return rows with missing values: in some columns a few, in one most, in one almost all."""
    rng = np.random.default_rng(6)
    X, y = rows
    X = X.copy()
    X[rng.random(X.shape) < 0.15] = np.nan
    X[rng.random(90) < 0.9, 7] = np.nan
    X[:, 8] = np.nan
    X[[12, 40], 8] = [3.0, -4.0]
    return X, y


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        n_folds=[3, 8, 90],
        order=["fixed", "random"],
        is_scaled=[True, False],
        estimator=[CLASSIFIERS[2], REGRESSORS[0]],
    ),
    ids=name_of,
)
def test_missing_values_become_the_mean_of_those_seen(
    estimator, is_scaled, order, n_folds, gaps, training_paths
):
    X, y = gaps
    if not is_scaled:
        X = np.where(np.abs(X) > 100, np.sign(X), X)
        X[:, 4:6] = np.nan_to_num(X[:, 4:6]) * 0
    if is_classifier(estimator):
        y = y > 0
    steps = [SimpleImputer(), StandardScaler()] if is_scaled else [SimpleImputer()]
    pipeline = make_pipeline(*steps, estimator)
    assert compiled_part(pipeline) is estimator
    options = {"cv": n_folds, "order": order, "stratify": False, "random_state": SEED}
    found = tree_cross_validate(pipeline, X, y, **options)
    assert found.method == "treecv"
    paths = training_paths(len(X), n_folds, order, random_state=SEED)
    right = by_hand(pipeline, X, y, paths)
    np.testing.assert_allclose(found.test_score, right, rtol=1e-8)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_fitted_imputer_knows_the_means_of_all_rows(dtype, gaps):
    X, y = gaps[0].astype(dtype), gaps[1]
    X[:, 2] = np.nan  # the imputer leaves it out
    pipeline = make_pipeline(SimpleImputer(), StandardScaler(), AveragedSGDRegressor())
    space = {"averagedsgdregressor__alpha": [1e-3]}
    objective, study = searched(pipeline, (X, y), space, cv=4, shuffle=False)
    best = objective.best_estimator(study)
    right = make_pipeline(SimpleImputer(), StandardScaler()).fit(X.astype(np.float64))
    rtol = 1e-10 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(best[0].statistics_, right[0].statistics_, rtol=rtol)
    varies = [column for column in range(10) if column not in (3, 4)]
    np.testing.assert_allclose(best[1].mean_[varies], right[1].mean_[varies], rtol=rtol)
    np.testing.assert_allclose(best[1].scale_[varies], right[1].scale_[varies], rtol=rtol)
    assert best.predict(X).shape == y.shape


def test_a_value_is_missing_only_where_it_is_filled_in(gaps):
    X, y = gaps
    numbers = make_column_transformer(
        (SimpleImputer(), [0, 1]), (StandardScaler(), [6]), ("passthrough", [9])
    )
    pipeline = make_pipeline(numbers, AveragedSGDRegressor())
    with pytest.raises(ValueError, match="contains NaN"):
        tree_cross_validate(pipeline, X, y, cv=4)
    X = X.copy()
    X[:, [6, 9]] = 0.5
    assert np.all(np.isfinite(tree_cross_validate(pipeline, X, y, cv=4).test_score))
    X[3, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        tree_cross_validate(pipeline, X, y, cv=4)


@pytest.mark.slow
@pytest.mark.parametrize("row", [12, 33])
def test_a_missing_or_huge_value_leaves_no_trace_in_the_model_that_tests_it(row, gaps):
    X, y = gaps
    pipeline = make_pipeline(SimpleImputer(), StandardScaler(), AveragedSGDRegressor())
    models = []
    for value in (1.0, np.nan, 1e12):
        changed = X.copy()
        changed[row] = value
        models.append(model_that_tests(row, pipeline, changed, y))
    assert_same_models(models[0], models[1])
    assert_same_models(models[0], models[2])


def test_a_scaler_that_does_nothing_to_sparse_rows_counts_them():
    X = sparse.random_array(
        (40, 200), density=0.1, format="csr", random_state=np.random.default_rng(0)
    )
    found = []

    def keep(fitted, X, y):
        found.append(fitted[0].n_samples_seen_)
        return 0.0

    scaler = StandardScaler(with_mean=False, with_std=False)
    pipeline = make_pipeline(scaler, PegasosClassifier())
    tree_cross_validate(pipeline, X, np.arange(40) % 2, cv=4, scoring=keep)
    assert found == [30] * 4
