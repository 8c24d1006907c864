"""Steps before compiled learners, done once or running, give the scores of trainings by hand."""

from __future__ import annotations

from unittest.mock import patch

from conftest import paths_of
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import optuna
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import make_union
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import LSQSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import RootSGDClassifier
from optuna_treecv import StreamingGaussianDensity
from optuna_treecv import StreamingKMeans
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv._kernels.moments import Blocks
from optuna_treecv.learners.steps.front import Front
from optuna_treecv.learners.steps.split import compiled_part
from optuna_treecv.learners.steps.split import split
from optuna_treecv.rows.data import Data
from optuna_treecv.tree.plan import Phase

SEED = 3

CLASSIFIERS = [
    PegasosClassifier(alpha=0.01, shuffle=False),
    PegasosClassifier(alpha=0.01, average=True, project=True, shuffle=False),
    AveragedSGDClassifier(alpha=0.01, shuffle=False),
    AveragedSGDClassifier(class_weight="balanced", fit_intercept=False, shuffle=False),
    StreamingSVRGClassifier(shuffle=False, random_state=0),
    RootSGDClassifier(shuffle=False, random_state=0),
]
REGRESSORS = [
    AveragedSGDRegressor(shuffle=False),
    LSQSGDRegressor(step_size=0.01, shuffle=False),
    StreamingSVRGRegressor(shuffle=False, random_state=0),
]
UNSUPERVISED = [
    StreamingKMeans(3, random_state=0, shuffle=False),
    StreamingGaussianDensity(shuffle=False),
]


def name_of(estimator):
    return repr(estimator).replace("\n", "")[:60]


def by_hand(pipeline, X, y, paths):
    """Train each fold's Pipeline along its path of the tree by ``partial_fit``, and score it."""
    errors = []
    for test, phases in paths:
        *steps, last = clone(pipeline)
        for i, rows in enumerate(phases):
            known = {"classes": np.unique(y)} if i == 0 and is_classifier(last) else {}
            labels = () if y is None else (y[rows],)
            now = X[rows]
            for step in steps:
                now = step.partial_fit(now).transform(now)
            last.partial_fit(now, *labels, **known)
        now = X[test]
        for step in steps:
            now = step.transform(now)
        errors.append(loss_of(last, now, None if y is None else y[test]))
    return np.array(errors)


def loss_of(model, X, y):
    if is_classifier(model):
        return np.mean(model.predict(X) != y)
    if y is not None:
        return np.mean((model.predict(X) - y) ** 2)
    if isinstance(model, StreamingKMeans):
        return np.mean(model.transform(X).min(axis=1) ** 2)
    return -model.score_samples(X).mean()


@pytest.fixture
def rows():
    """Return rows on different scales: one column is constant, one nearly, one is large."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(90, 11)) * 10.0 ** rng.integers(-3, 4, 11) + rng.normal(size=11) * 5
    X[:, 3] = 2.5
    X[:, 4] = 1e9 + rng.normal(size=90) * 1e-8
    X[:, 5] = 0
    scores = (X[:, :3] - X[:, :3].mean(axis=0)) / X[:, :3].std(axis=0) @ [1.0, -2.0, 0.5]
    return X, scores + 0.3 * rng.normal(size=90)


@pytest.mark.parametrize("n_folds", [2, 5, 90])
@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize("estimator", [*CLASSIFIERS, *REGRESSORS, *UNSUPERVISED], ids=name_of)
def test_scaled_folds_are_those_of_partial_fit(estimator, order, n_folds, rows, training_paths):
    X, y = rows
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
    front = Front(split(pipeline), X)
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
    front = Front(split(front_of), X)
    rows = Data(X, np.arange(40.0)).prepare(front_of[-1].row_layout, np.arange(40, dtype="u4"))
    learner = front_of[-1].make_learner(rows, 0, front)
    state = learner.start()
    learner.update(state, slice(0, 40))
    found = learner.estimator(state)[0]
    assert found.scale_[0] == scaler.scale_[0] == 1
    np.testing.assert_allclose(found.scale_[1], scaler.scale_[1], rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("estimator", [*CLASSIFIERS[:3], StreamingSVRGClassifier()], ids=name_of)
def test_a_row_leaves_no_trace_in_the_model_that_tests_it(estimator, dtype, rows):
    X, y = rows[0].astype(dtype), rows[1] > 0
    pipeline = make_pipeline(StandardScaler(), estimator)
    options = {"cv": 90, "stratify": False, "shuffle": False}
    row = 37
    models = []
    for factor in (1, 1e12):
        changed = X.copy()
        changed[row] *= factor
        found = []

        def keep(fitted, X, y, found=found):
            found.append(fitted)
            return 0.0

        tree_cross_validate(pipeline, changed, y, scoring=keep, **options)
        models.append(found[row])
    for name in ("mean_", "var_", "scale_"):
        np.testing.assert_array_equal(getattr(models[0][0], name), getattr(models[1][0], name))
    np.testing.assert_array_equal(models[0][1].coef_, models[1][1].coef_)
    np.testing.assert_array_equal(models[0][1].intercept_, models[1][1].intercept_)


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


def test_trials_share_what_their_trainings_have_in_common(rows):
    X, y = rows
    pipeline = make_pipeline(StandardScaler(), AveragedSGDRegressor(shuffle=False))
    name = "averagedsgdregressor__average_start"
    objective = treecv_objective(pipeline, X, y, cv=10, param_grid={name: [0]})
    first = objective.evaluate({name: 60})
    second = objective.evaluate({name: 70})
    assert first.n_updates_saved == 0
    assert second.n_updates_saved > 0
    alone = tree_cross_validate(clone(pipeline).set_params(**{name: 70}), X, y, cv=10)
    np.testing.assert_array_equal(second.test_score, alone.test_score)


@pytest.mark.parametrize("report", ["progressive", "blocks", "folds"])
def test_reports_do_not_change_the_scores(report, rows):
    X, y = rows[0], rows[1] > 0
    pipeline = make_pipeline(StandardScaler(), PegasosClassifier())
    space = {"pegasosclassifier__alpha": optuna.distributions.FloatDistribution(1e-4, 1, log=True)}
    values = []
    for asked in (report, None):
        objective = treecv_objective(
            pipeline, X, y, cv=40, param_distributions=space, report=asked, scoring="error"
        )
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
        study.optimize(objective, n_trials=3)
        values.append([trial.value for trial in study.trials])
    assert values[0] == values[1]


@settings(deadline=None, max_examples=60)
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
    front = Front(split(pipeline), X[:, :5])
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


@pytest.mark.parametrize("n_folds", [2, 7, 60])
@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "estimator",
    [
        AveragedSGDClassifier(shuffle=False, loss="log_loss"),
        AveragedSGDClassifier(class_weight="balanced", fit_intercept=False, shuffle=False),
        AveragedSGDRegressor(shuffle=False),
        StreamingSVRGRegressor(shuffle=False, random_state=0),
    ],
    ids=name_of,
)
def test_sparse_rows_are_scaled_without_their_means(
    estimator, dtype, order, n_folds, training_paths
):
    rng = np.random.default_rng(4)
    X = sparse.random_array((60, 700), density=0.02, format="csr", rng=rng).astype(dtype)
    X = sparse.csr_array(X * (10.0 ** rng.integers(-2, 3, 700)).astype(dtype))
    X[:, [3]] = 2.0  # a constant column
    y = X[:, [5, 9, 20]].sum(axis=1) + rng.normal(size=60)
    if is_classifier(estimator):
        y = y > np.median(y)
    pipeline = make_pipeline(StandardScaler(with_mean=False), estimator)
    assert compiled_part(pipeline) is estimator
    options = {"cv": n_folds, "order": order, "stratify": False, "random_state": SEED}
    paths = training_paths(60, n_folds, order, random_state=SEED)
    right = by_hand(pipeline, X, y, paths)
    found = tree_cross_validate(pipeline, X, y, **options)
    np.testing.assert_allclose(found.test_score, right, rtol=1e-9 if dtype == np.float64 else 1e-3)
    threads = tree_cross_validate(pipeline, X, y, n_jobs=2, **options)
    np.testing.assert_array_equal(threads.test_score, found.test_score)


def test_sparse_rows_in_lanes_and_shared():
    rng = np.random.default_rng(4)
    X = sparse.random_array((80, 300), density=0.05, format="csr", rng=rng)
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


def test_a_sparse_row_leaves_no_trace_in_the_model_that_tests_it():
    rng = np.random.default_rng(4)
    X = sparse.random_array((50, 300), density=0.05, format="csr", rng=rng)
    y = np.arange(50) % 2
    pipeline = make_pipeline(StandardScaler(with_mean=False), AveragedSGDClassifier())
    models = []
    for factor in (1, 1e12):
        changed = X.tolil()
        changed[[7]] = X[[7]] * factor
        found = []

        def keep(fitted, X, y, found=found):
            found.append(fitted)
            return 0.0

        tree_cross_validate(pipeline, changed.tocsr(), y, cv="loo", shuffle=False, scoring=keep)
        models.append(found[7])
    np.testing.assert_array_equal(models[0][0].scale_, models[1][0].scale_)
    np.testing.assert_array_equal(models[0][1].coef_, models[1][1].coef_)
    right = StandardScaler(with_mean=False).fit(X[np.arange(50) != 7])
    np.testing.assert_allclose(models[0][0].scale_, right.scale_, rtol=1e-10)


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


def filled_by_hand(pipeline, X, y, paths, is_scaled):
    """Fill in the means of the values known so far, scale by partial_fit, and train."""
    errors = []
    for test, phases in paths:
        scaler, last = StandardScaler(), clone(pipeline[-1])
        seen = np.empty((0, X.shape[1]))

        def prepare(part, means, scaler=scaler):
            part = np.where(np.isnan(part), means, part)
            return scaler.transform(part) if is_scaled else part

        for i, rows in enumerate(phases):
            known = {"classes": np.unique(y)} if i == 0 and is_classifier(last) else {}
            seen = np.vstack([seen, X[rows]])
            with np.errstate(invalid="ignore"):
                means = np.nansum(seen, axis=0) / np.maximum((~np.isnan(seen)).sum(axis=0), 1)
            if is_scaled:
                scaler.partial_fit(np.where(np.isnan(X[rows]), means, X[rows]))
            last.partial_fit(prepare(X[rows], means), y[rows], **known)
        errors.append(loss_of(last, prepare(X[test], means), y[test]))
    return np.array(errors)


@pytest.mark.parametrize("n_folds", [3, 8, 90])
@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("estimator", [CLASSIFIERS[2], REGRESSORS[0]], ids=name_of)
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
    right = filled_by_hand(pipeline, X, y, paths, is_scaled)
    np.testing.assert_allclose(found.test_score, right, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_fitted_imputer_knows_the_means_of_all_rows(dtype, gaps):
    X, y = gaps[0].astype(dtype), gaps[1]
    X[:, 2] = np.nan  # the imputer leaves it out
    pipeline = make_pipeline(SimpleImputer(), StandardScaler(), AveragedSGDRegressor())
    space = {"averagedsgdregressor__alpha": [1e-3]}
    objective = treecv_objective(pipeline, X, y, cv=4, param_grid=space, shuffle=False)
    study = optuna.create_study(sampler=objective.grid_sampler())
    study.optimize(objective)
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


@pytest.mark.parametrize("row", [12, 33])
def test_a_missing_or_huge_value_leaves_no_trace_in_the_model_that_tests_it(row, gaps):
    X, y = gaps
    pipeline = make_pipeline(SimpleImputer(), StandardScaler(), AveragedSGDRegressor())
    models = []
    for value in (1.0, np.nan, 1e12):
        changed = X.copy()
        changed[row] = value
        found = []

        def keep(fitted, X, y, found=found):
            found.append(fitted)
            return 0.0

        tree_cross_validate(pipeline, changed, y, cv=90, shuffle=False, scoring=keep)
        models.append(found[row])
    for other in models[1:]:
        np.testing.assert_array_equal(models[0][0].statistics_, other[0].statistics_)
        np.testing.assert_array_equal(models[0][1].scale_, other[1].scale_)
        np.testing.assert_array_equal(models[0][2].coef_, other[2].coef_)


# Steps that are done once.


@pytest.fixture
def table():
    """Return a table with categories, some of them in a single row, and numbers."""
    rng = np.random.default_rng(8)
    n = 120
    city = rng.choice(["Bern", "Graz", "Linz", "Ulm"], n).astype(object)
    city[17], city[60] = "Nis", "Pau"
    X = pd.DataFrame(
        {
            "city": pd.Categorical(city),
            "day": pd.array(rng.choice(["mo", "tu", "su"], n), dtype="string"),
            "size": rng.normal(size=n) * 1000 + 50,
            "count": pd.array(rng.integers(0, 9, n), dtype="Int64"),
        },
        index=np.arange(n) + 1000,
    )
    effect = pd.Series(city).map({"Bern": 2.0, "Graz": -1.0}).fillna(0.0).to_numpy()
    y = effect + (X["size"].to_numpy() - 50) / 1000 + rng.normal(size=n) * 0.1
    return X, y


def encoded_by_fold(pipeline, X, y, paths):
    """Fit the steps on the training rows of each fold, and train the learner along the tree."""
    errors = []
    for test, phases in paths:
        *steps, last = clone(pipeline)
        before = Pipeline([(str(i), step) for i, step in enumerate(steps)])
        take = X.iloc.__getitem__ if hasattr(X, "iloc") else X.__getitem__
        before.fit(take(np.concatenate(phases)))
        for i, rows in enumerate(phases):
            known = {"classes": np.unique(y)} if i == 0 and is_classifier(last) else {}
            last.partial_fit(before.transform(take(rows)), y[rows], **known)
        errors.append(loss_of(last, before.transform(take(test)), y[test]))
    return np.array(errors)


ONCE = {
    "one-hot": make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["city", "day"]), ("passthrough", ["count"])
    ),
    "dense": make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["city"]), remainder="drop"
    ),
    "products": make_pipeline(
        make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["city", "day"])),
        PolynomialFeatures(2, interaction_only=True, include_bias=False),
    ),
    "union": make_pipeline(
        make_column_transformer(("passthrough", ["count", "city"])),
        make_union(
            OneHotEncoder(handle_unknown="ignore"),
            make_pipeline(OneHotEncoder(handle_unknown="ignore"), FunctionTransformer()),
        ),
    ),
}


@pytest.mark.parametrize(
    "estimator",
    [
        AveragedSGDRegressor(shuffle=False),
        StreamingSVRGRegressor(shuffle=False, random_state=0),
        AveragedSGDClassifier(shuffle=False),
        StreamingSVRGClassifier(shuffle=False, random_state=0),
    ],
    ids=name_of,
)
@pytest.mark.parametrize("steps", ONCE.values(), ids=ONCE)
@pytest.mark.parametrize("n_folds", [4, 17])
def test_categories_may_be_encoded_once(steps, estimator, n_folds, table, training_paths):
    X, y = table
    if is_classifier(estimator):
        y = y > 0
    pipeline = make_pipeline(steps, estimator)
    assert compiled_part(pipeline) is estimator
    found = tree_cross_validate(pipeline, X, y, cv=n_folds, stratify=False, random_state=SEED)
    paths = training_paths(len(X), n_folds, random_state=SEED)
    np.testing.assert_allclose(found.test_score, encoded_by_fold(pipeline, X, y, paths), rtol=1e-9)


def test_texts_may_be_counted_once(training_paths):
    rng = np.random.default_rng(2)
    words = np.array("red green blue sun moon sea wind tree bird fish".split())
    X = np.array([" ".join(rng.choice(words, 5)) for _ in range(60)], dtype=object)
    X[7] += " unique"
    y = np.array(["sun" in text for text in X])
    for vectorizer in (CountVectorizer(), HashingVectorizer(n_features=2**10)):
        pipeline = make_pipeline(vectorizer, AveragedSGDClassifier(shuffle=False))
        assert compiled_part(pipeline) is pipeline[-1]
        found = tree_cross_validate(pipeline, X, y, cv=12, stratify=False, random_state=SEED)
        paths = training_paths(60, 12, random_state=SEED)
        right = encoded_by_fold(pipeline, X, y, paths)
        np.testing.assert_allclose(found.test_score, right, rtol=1e-9)


@pytest.mark.parametrize("learner", [AveragedSGDRegressor(shuffle=False), SGDRegressor()])
@pytest.mark.parametrize("n_known", [23, 24])
def test_a_column_that_a_fold_may_lack_is_not_filled_once(n_known, learner, rows):
    X, y = rows
    X = X[:, :3].copy()
    X[n_known:, 1] = np.nan
    imputer = SimpleImputer(strategy="constant", fill_value=7.0)
    pipeline = make_pipeline(imputer, clone(learner))
    options = {"cv": np.arange(90) // 23, "shuffle": False}
    found = tree_cross_validate(pipeline, X, y, **options)
    assert found.method == ("fit" if n_known == 23 else "treecv")
    if n_known == 23:
        assert "values in 23 rows, so that a fold may train on none of them" in found.why
    imputer.keep_empty_features = True
    assert tree_cross_validate(pipeline, X, y, **options).method == "treecv"


def by_steps(pipeline, X, y, paths, scaled):
    """Encode on the training rows of a fold, scale phase by phase, and train along the tree."""
    errors = []
    for test, phases in paths:
        model = clone(pipeline[-1])
        encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        encoder.fit(X[["city", "day"]].iloc[np.concatenate(phases)])
        scaler = StandardScaler()

        def encode(rows, encoder=encoder, scaler=scaler):
            return np.hstack(
                [
                    encoder.transform(X[["city", "day"]].iloc[rows]),
                    scaler.transform(X[scaled].iloc[rows].to_numpy(float)),
                ]
            )

        for rows in phases:
            scaler.partial_fit(X[scaled].iloc[rows].to_numpy(float))
            model.partial_fit(encode(rows), y[rows])
        errors.append(loss_of(model, encode(test), y[test]))
    return np.array(errors)


@pytest.mark.parametrize("n_folds", [3, 10])
def test_a_raw_table_is_encoded_once_and_scaled_while_it_runs(n_folds, table, training_paths):
    X, y = table
    scaled = ["size", "count"]
    prepared = ColumnTransformer(
        [
            ("kinds", OneHotEncoder(handle_unknown="ignore"), ["city", "day"]),
            ("numbers", StandardScaler(), scaled),
        ]
    )
    pipeline = Pipeline([("prepare", prepared), ("learn", AveragedSGDRegressor(shuffle=False))])
    found = tree_cross_validate(pipeline, X, y, cv=n_folds, random_state=SEED)
    assert found.method == "treecv"
    paths = training_paths(len(X), n_folds, random_state=SEED)
    right = by_steps(pipeline, X, y, paths, scaled)
    np.testing.assert_allclose(found.test_score, right, rtol=1e-9)
    predicted = tree_cross_val_predict(pipeline, X, y, cv=n_folds, random_state=SEED)
    losses = [np.mean((predicted[test] - y[test]) ** 2) for test, _ in paths]
    np.testing.assert_allclose(losses, right, rtol=1e-9)


def test_the_fitted_pipeline_predicts_raw_rows(table):
    X, y = table
    prepared = ColumnTransformer(
        [
            ("kinds", OneHotEncoder(handle_unknown="ignore"), ["city", "day"]),
            (
                "numbers",
                make_pipeline(SimpleImputer(strategy="constant"), StandardScaler()),
                ["size"],
            ),
        ],
        remainder=StandardScaler(),
    )
    pipeline = Pipeline([("prepare", prepared), ("learn", AveragedSGDRegressor(shuffle=False))])
    objective = treecv_objective(
        pipeline, X, y, cv=5, param_grid={"learn__alpha": [1e-4, 1e-2]}, shuffle=False
    )
    study = optuna.create_study(sampler=objective.grid_sampler())
    study.optimize(objective)
    best = objective.best_estimator(study)
    numbers = best.named_steps["prepare"].named_transformers_["numbers"][-1]
    right = StandardScaler().fit(X[["size"]])
    np.testing.assert_allclose(numbers.mean_, right.mean_, rtol=1e-12)
    np.testing.assert_allclose(numbers.scale_, right.scale_, rtol=1e-12)
    remainder = best.named_steps["prepare"].named_transformers_["remainder"]
    np.testing.assert_allclose(remainder.mean_, [X["count"].astype(float).mean()], rtol=1e-12)
    by_name = clone(prepared).fit(X)
    after = by_name.transform(X)
    after = after.toarray() if sparse.issparse(after) else after
    np.testing.assert_allclose(best[:-1].transform(X), after, rtol=1e-9, atol=1e-12)
    new = X.head(3).copy()
    new["city"] = "Oslo"
    assert np.all(np.isfinite(best.predict(new)))
    with pytest.raises(ValueError, match="columns are missing: {'size'}"):
        best.predict(X.drop(columns="size"))


class Lookalike(StandardScaler):
    """A scaler of somebody else."""


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([Lookalike()], "Lookalike learns from the rows"),
        ([MaxAbsScaler()], "MaxAbsScaler learns from the rows"),
        ([StandardScaler(), PolynomialFeatures()], "its scales change with the rows seen"),
        ([OneHotEncoder()], "treats a category that a fold has not seen"),
        ([OneHotEncoder(handle_unknown="ignore", min_frequency=3)], "its min_frequency"),
        ([OneHotEncoder(handle_unknown="ignore", drop="first")], "its drop"),
        ([OneHotEncoder(handle_unknown="ignore"), Normalizer()], "a later step would mix in"),
        ([OneHotEncoder(handle_unknown="ignore"), FunctionTransformer(np.exp)], "a later step"),
        (
            [
                OneHotEncoder(handle_unknown="ignore", sparse_output=False),
                SimpleImputer(missing_values=0, strategy="constant", fill_value=5),
            ],
            "a later step",
        ),
        ([SimpleImputer(strategy="median")], "its median comes from the rows"),
        ([SimpleImputer(add_indicator=True)], "its add_indicator looks at all rows"),
        ([SimpleImputer(missing_values=-1)], "it takes -1 for a missing value"),
        ([SimpleImputer(), PolynomialFeatures()], "its means change with the rows seen"),
        ([StandardScaler(), SimpleImputer()], "its scales change with the rows seen"),
        ([FunctionTransformer(lambda X: X - X.mean())], "its function may look at all rows"),
        ([CountVectorizer(min_df=2)], "its min_df counts rows"),
        ([FeatureUnion([("a", StandardScaler())], transformer_weights={"a": 2})], "weights"),
    ],
)
def test_what_cannot_be_done_before_a_compiled_learner(steps, why):
    found = split(make_pipeline(*steps, PegasosClassifier()))
    assert isinstance(found, str)
    assert why in found


def test_categories_count_where_an_untouched_column_does():
    pipeline = make_pipeline(OneHotEncoder(handle_unknown="ignore"), StreamingKMeans())
    assert "a category that no training row has would count" in split(pipeline)


def test_a_pipeline_of_another_kind_is_left_alone():
    class Own(Pipeline):
        pass

    own = Own([("a", StandardScaler()), ("b", PegasosClassifier())])
    assert split(own) == ""
    assert split(make_pipeline(PegasosClassifier())) == ""
    assert split(make_pipeline("passthrough", PegasosClassifier())) == ""


def test_explain_says_what_happens_to_each_step(table):
    X, y = table
    prepared = ColumnTransformer(
        [
            ("kinds", OneHotEncoder(handle_unknown="ignore"), ["city", "day"]),
            ("numbers", make_pipeline(FunctionTransformer(np.abs), StandardScaler()), ["size"]),
        ]
    )
    pipeline = Pipeline([("prepare", prepared), ("learn", PegasosClassifier())])
    space = {"learn__alpha": [0.1, 1.0]}
    lines = treecv_objective(pipeline, X, y > 0, param_grid=space).explain().split("\n")
    assert "method='treecv', since its steps run with the compiled PegasosClassifier" in lines[0]
    assert lines[1:] == [
        "  prepare__kinds (OneHotEncoder): once, since a column that only test rows have touches "
        "no weight in training",
        "  prepare__numbers__functiontransformer (FunctionTransformer): once, since it transforms "
        "each row for itself",
        "  prepare__numbers__standardscaler (StandardScaler): running, compiled, by the mean and "
        "scale of the rows that a model has seen",
    ]
    numbers = X[["size"]].to_numpy()
    running = make_pipeline(MaxAbsScaler(), FunctionTransformer(), PegasosClassifier())
    space = {"pegasosclassifier__alpha": [0.1, 1.0]}
    lines = treecv_objective(running, numbers, y > 0, param_grid=space).explain().split("\n")
    assert (
        "method='treecv', since Pipeline has partial_fit; its steps run in Python, since the step "
        "'maxabsscaler' cannot be done before the folds: MaxAbsScaler learns from the rows."
    ) in lines[0]
    assert lines[1:] == [
        "  maxabsscaler (MaxAbsScaler): running, in Python, by partial_fit on each training phase",
        "  functiontransformer (FunctionTransformer): running, in Python, on each training phase, "
        "since it is stateless",
    ]
    fitted = make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), PegasosClassifier())
    lines = treecv_objective(fitted, numbers, y > 0, param_grid=space).explain().split("\n")
    assert (
        "method='fit', since the step 'simpleimputer' cannot be done before the folds: its "
        "median comes" in lines[0]
    )
    assert lines[1:] == [
        "  simpleimputer (SimpleImputer): by fold, since its median comes from the rows",
        "  standardscaler (StandardScaler): by fold, since the models are fitted by fold",
    ]


# Several epochs.


@pytest.mark.parametrize("method", ["treecv", "standard"])
def test_replays_do_not_count_in_the_scales(method, rows):
    X, y = rows
    pipeline = make_pipeline(StandardScaler(), AveragedSGDRegressor())
    found = []

    def keep(fitted, X, y):
        found.append(fitted)
        return 0.0

    options = {"cv": 9, "method": method, "shuffle": False, "scoring": keep}
    one = tree_cross_validate(pipeline, X, y, **options)
    several = tree_cross_validate(pipeline, X, y, n_epochs=4, **options)
    assert several.n_updates == 4 * one.n_updates
    for first, other in zip(found[:9], found[9:], strict=True):
        assert other[0].n_samples_seen_ == 80
        np.testing.assert_array_equal(first[0].mean_, other[0].mean_)
        np.testing.assert_array_equal(first[0].scale_, other[0].scale_)
        assert np.any(first[1].coef_ != other[1].coef_)


def test_epochs_of_a_step_can_be_searched(rows):
    X, y = rows
    pipeline = make_pipeline(StandardScaler(), AveragedSGDRegressor())
    name = "averagedsgdregressor__n_epochs"
    grid = {name: [1, 3], "averagedsgdregressor__alpha": [1e-4, 1e-2, 1.0]}
    objective = treecv_objective(pipeline, X, y, cv=6, param_grid=grid)
    study = optuna.create_study(sampler=objective.grid_sampler())
    study.optimize(objective)
    for trial in study.trials:
        alone = tree_cross_validate(clone(pipeline).set_params(**trial.params), X, y, cv=6)
        assert alone.mean == trial.value
    fitted = objective.best_estimator(study)
    assert fitted[0].n_samples_seen_ == 90


# Mixtures of steps.

BRANCHES = ("kinds", "imputed", "imputed and scaled", "scaled", "centred", "divided", "as it is")


def running_branch(kind):
    """Return the transformer of a branch."""
    return {
        "kinds": lambda: OneHotEncoder(handle_unknown="ignore"),
        "imputed": SimpleImputer,
        "imputed and scaled": lambda: make_pipeline(SimpleImputer(), StandardScaler()),
        "scaled": StandardScaler,
        "centred": lambda: StandardScaler(with_std=False),
        "divided": lambda: StandardScaler(with_mean=False),
        "as it is": lambda: "passthrough",
    }[kind]()


class Branch:
    """A branch by hand: the rows of its columns as a model sees them that has seen some phases."""

    def __init__(self, kind, X, trained):
        self.kind, self.X = kind, X
        self.seen = np.empty((0, X.shape[1]))
        self.scaler = StandardScaler(with_mean=kind != "divided", with_std=kind != "centred")
        if kind == "kinds":
            self.encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
            self.encoder.fit(X[trained])

    def see(self, rows):
        if self.kind in ("kinds", "as it is"):
            return
        self.seen = np.vstack([self.seen, self.X[rows]])
        counts = (~np.isnan(self.seen)).sum(axis=0)
        self.means = np.nansum(self.seen, axis=0) / np.maximum(counts, 1)
        if self.kind != "imputed":
            self.scaler.partial_fit(self.filled(rows))

    def filled(self, rows):
        return np.where(np.isnan(self.X[rows]), self.means, self.X[rows])

    def of(self, rows):
        if self.kind == "kinds":
            return self.encoder.transform(self.X[rows])
        if self.kind == "as it is":
            return self.X[rows]
        return (
            self.filled(rows)
            if self.kind == "imputed"
            else self.scaler.transform(self.filled(rows))
        )


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_mixture_of_steps_is_that_by_hand(data):
    kinds = data.draw(st.lists(st.sampled_from(BRANCHES), min_size=1, max_size=5))
    n_rows = data.draw(st.integers(6, 90))
    n_folds = data.draw(st.integers(2, min(n_rows, 12)))
    order = data.draw(st.sampled_from(["fixed", "random"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    columns, parts, places = [], [], []
    for kind in kinds:
        width = int(rng.integers(1, 4))
        part = rng.normal(size=(n_rows, width)) * 3 + 1
        if kind == "kinds":
            part = rng.integers(0, 5, size=(n_rows, width)).astype(float)
        elif kind.startswith("imputed"):
            part[rng.random(part.shape) < 0.3] = np.nan
        places.append(list(range(len(columns), len(columns) + width)))
        columns += list(part.T)
        parts.append(part)
    X, y = np.column_stack(columns), rng.normal(size=n_rows)
    kept = [
        (str(i), running_branch(kind), place)
        for i, (kind, place) in enumerate(zip(kinds, places, strict=True))
        if not (kind.startswith("imputed") and np.isnan(parts[i]).all(axis=0).any())
    ]
    if not kept:
        return
    learner = AveragedSGDRegressor(step_size=0.001, shuffle=False)
    steps = ColumnTransformer(kept, sparse_threshold=data.draw(st.sampled_from([0, 0.3, 1])))
    pipeline = Pipeline([("prepare", steps), ("learn", learner)])
    assert compiled_part(pipeline) is learner
    options = {"cv": n_folds, "order": order, "random_state": SEED}
    most_dense = data.draw(st.sampled_from([0, 96]))
    with patch("optuna_treecv.learners.steps.front._MOST_DENSE", most_dense):
        found = tree_cross_validate(pipeline, X, y, **options).test_score
    right = []
    for test, phases in paths_of(n_rows, n_folds, order, random_state=SEED):
        trained = np.concatenate(phases)
        branches = [Branch(kinds[int(i)], parts[int(i)], trained) for i, _, _ in kept]
        model = clone(learner)
        for rows in phases:
            for branch in branches:
                branch.see(rows)
            model.partial_fit(np.hstack([branch.of(rows) for branch in branches]), y[rows])
        right.append(loss_of(model, np.hstack([branch.of(test) for branch in branches]), y[test]))
    np.testing.assert_allclose(found, right, rtol=1e-8)


# Hostile calls.


@pytest.mark.filterwarnings("error")
def test_steps_that_make_data_frames(table):
    X, y = table
    steps = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["city"]),
        (StandardScaler(), ["size"]),
    ).set_output(transform="pandas")
    pipeline = make_pipeline(steps, AveragedSGDRegressor())
    space = {"averagedsgdregressor__alpha": [0.1]}
    objective = treecv_objective(pipeline, X, y, cv=5, param_grid=space)
    study = optuna.create_study(sampler=objective.grid_sampler())
    study.optimize(objective)
    best = objective.best_estimator(study)
    assert list(best[-1].feature_names_in_) == list(best[:-1].transform(X).columns)
    assert best.predict(X).shape == y.shape


def test_a_lambda_among_the_steps_is_fitted_by_fold(table):
    X, y = table
    steps = make_column_transformer((StandardScaler(), lambda X: ["size"]))
    pipeline = make_pipeline(steps, AveragedSGDRegressor())
    space = {"averagedsgdregressor__alpha": [0.1]}
    said = treecv_objective(pipeline, X, y, cv=5, param_grid=space).explain()
    assert "method='fit', since its steps hold an object, such as a lambda" in said


def test_a_wrong_entry_is_named_by_the_column_as_given(table):
    X, y = table
    X["size"] = X["size"].where(np.arange(120) != 7)
    steps = ColumnTransformer(
        [
            ("kinds", OneHotEncoder(handle_unknown="ignore"), ["city"]),
            ("numbers", StandardScaler(), ["size"]),
        ]
    )
    with pytest.raises(ValueError, match=r"NaN in column 'numbers__size', row 7, but"):
        tree_cross_validate(make_pipeline(steps, AveragedSGDRegressor()), X, y, cv=3)
    numbers = make_pipeline(StandardScaler(), AveragedSGDRegressor())
    with pytest.raises(ValueError, match=r"NaN in column 'size', row 7, but"):
        tree_cross_validate(numbers, X[["count", "size"]], y, cv=3)
    mixed = make_pipeline(FunctionTransformer(np.sign), AveragedSGDRegressor())
    with pytest.raises(ValueError, match=r"in column 0 after the steps of the Pipeline, row 7"):
        tree_cross_validate(mixed, X[["size"]].to_numpy(), y, cv=3)


def test_sparse_rows_are_not_centred():
    X = sparse.random_array((40, 5), density=0.5, format="csr", rng=0)
    pipeline = make_pipeline(StandardScaler(), PegasosClassifier())
    with pytest.raises(ValueError, match="Cannot center sparse matrices"):
        tree_cross_validate(pipeline, X, np.arange(40) % 2, cv=4)


@pytest.mark.parametrize("learner", [PegasosClassifier(), SGDClassifier(max_iter=1, tol=None)])
@pytest.mark.parametrize("behind", [StandardScaler(), MaxAbsScaler(), SimpleImputer()])
def test_steps_that_change_the_number_of_rows(behind, learner):
    shorter = FunctionTransformer(lambda X: X[:-1])
    pipeline = make_pipeline(shorter, behind, learner)
    with pytest.raises(ValueError, match="must have steps that return a row for each row"):
        tree_cross_validate(pipeline, np.random.default_rng(0).random((40, 3)), np.arange(40) % 2)
