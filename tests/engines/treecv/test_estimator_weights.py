"""Weights of rows in ``fit``, ``partial_fit`` and ``score`` of the compiled estimators."""

from __future__ import annotations

from dataclasses import replace
import pickle

from ids import said
import numpy as np
from pairs import pairs
import pytest
import reference
from scipy import sparse
import sklearn
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.metrics import accuracy_score
from sklearn.metrics import get_scorer
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv.engines.treecv.learners.compiled import CompiledLearner
from optuna_treecv.engines.treecv.learners.compiled import Lanes
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.memory import pad_rows
from optuna_treecv.rows.partition import Partition

SVRG = {"initial_batch_size": 5, "inner_steps": 9, "random_state": 0}
SVRG_STAGES = (5, 2.0, 9, 0, False)
# Each estimator with the constructor of its NumPy twin, which gets zeros of the width of a row.
LINEAR = [
    (PegasosClassifier(0.01), lambda zeros, _: reference.Pegasos(0.01, False, False, zeros)),
    (
        PegasosClassifier(0.01, average=True, project=True),
        lambda zeros, _: reference.Pegasos(0.01, True, True, zeros),
    ),
    (
        AveragedSGDClassifier(alpha=0.1, step_size=0.05, average=True, average_start=20),
        lambda zeros, _: reference.SGD("hinge", 0.0, 0.1, 0.05, 0.0, np.inf, 1, True, 20, zeros),
    ),
    (
        AveragedSGDClassifier("log_loss"),
        lambda zeros, _: reference.SGD(
            "log_loss", 0.0, 1e-4, 0.0, 0.0, np.inf, 1, True, 0, zeros, is_linear=True
        ),
    ),
    (
        StreamingSVRGClassifier(**SVRG),
        lambda zeros, seed: reference.StreamingSVRG(
            "log_loss", 0.0, 1e-4, 0.0, *SVRG_STAGES, seed, zeros
        ),
    ),
    (
        AveragedSGDRegressor("huber", epsilon=0.5, batch_size=3),
        lambda zeros, _: reference.SGD(
            "huber", 0.5, 1e-4, 0.0, 0.0, np.inf, 3, True, 0, zeros, is_linear=True
        ),
    ),
    (
        LSQSGDRegressor(step_size=0.1, fit_intercept=True),
        lambda zeros, _: reference.SGD(
            "squared_error", 0.0, 0.0, 0.1, 0.0, 1.0, 1, True, 0, zeros
        ),
    ),
    (
        StreamingSVRGRegressor(**SVRG),
        lambda zeros, seed: reference.StreamingSVRG(
            "squared_error", 1.35, 1e-4, 0.0, *SVRG_STAGES, seed, zeros
        ),
    ),
]
ESTIMATORS = [
    *(estimator for estimator, _ in LINEAR),
    StreamingKMeans(3),
    StreamingGaussianDensity(),
    StreamingGaussianDensity("full"),
]


def data_for(estimator, n_classes=2, dtype=np.float64):
    """Return rows, what the estimator learns and weights, some of which are 0 or large."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 5)).astype(dtype)
    scores = X @ rng.normal(size=(5, n_classes)) + 0.3 * rng.normal(size=(90, n_classes))
    weights = rng.choice([0, 0.1, 1, 2.5, 7], 90) * rng.random(90)
    if is_classifier(estimator):
        return X, scores.argmax(axis=1), weights
    return X, scores[:, 0] if is_regressor(estimator) else None, weights


def in_order(estimator):
    return clone(estimator).set_params(shuffle=False)


def learned(model):
    """Return all numbers that were learned."""
    names = ("coef_", "intercept_", "cluster_centers_", "counts_", "mean_", "covariance_")
    return np.concatenate([np.ravel(getattr(model, n)) for n in names if hasattr(model, n)])


def assert_same(one, other):
    assert learned(one).tobytes() == learned(other).tobytes()


def classes_for(estimator, y):
    return {"classes": np.unique(y)} if is_classifier(estimator) else {}


@pytest.mark.parametrize(
    *pairs(
        dtype=[np.float64, np.float32],
        n_classes=[2, 3],
        case=LINEAR,
        where=lambda case, n_classes, **_: n_classes == 2 or not is_regressor(case[0]),
    ),
    ids=lambda value: said(value[0] if isinstance(value, tuple) else value),
)
def test_fit_equals_the_twin(case, n_classes, dtype):
    estimator, make_twin = case
    X, y, weights = data_for(estimator, n_classes, dtype)
    model = in_order(estimator).fit(X, y, weights)
    padded = pad_rows(X, np.arange(len(X), dtype=np.uint32), True)
    outputs = [y.astype(dtype)]
    if is_classifier(estimator):
        outputs = [np.where(y == c, 1, -1) for c in (range(3) if n_classes == 3 else [1])]
    for c, targets in enumerate(outputs):
        twin = make_twin(np.zeros(padded.shape[1], dtype), model._seed)
        for x, target, weight in zip(padded, targets, weights.astype(dtype), strict=True):
            twin.train(x, target.item(), weight.item())
        found = np.append(np.atleast_2d(model.coef_)[c], model.intercept_[c])
        assert np.array_equal(found, twin.weights()[:6])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_weights_act_and_weights_of_ones_do_not(estimator, dtype):
    X, y, weights = data_for(estimator, dtype=dtype)
    plain = in_order(estimator).fit(X, y)
    assert_same(in_order(estimator).fit(X, y, sample_weight=np.ones(len(X))), plain)
    assert_same(in_order(estimator).fit(X, y, sample_weight=1), plain)
    weighted = in_order(estimator).fit(X, y, sample_weight=weights)
    assert not np.array_equal(learned(weighted), learned(plain))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_a_number_is_the_weight_of_each_row(estimator):
    X, y, _ = data_for(estimator)
    each = in_order(estimator).fit(X, y, sample_weight=np.full(len(X), 0.3))
    assert_same(in_order(estimator).fit(X, y, sample_weight=0.3), each)
    halves = in_order(estimator)
    halves.partial_fit(
        X[:40], y if y is None else y[:40], **classes_for(estimator, y), sample_weight=0.3
    )
    halves.partial_fit(X[40:], y if y is None else y[40:], sample_weight=0.3)
    assert_same(halves, each)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_fit_may_be_cut_into_partial_fits(estimator, n_classes):
    X, y, weights = data_for(estimator, n_classes)
    whole = in_order(estimator).fit(X, y, sample_weight=weights)
    parts, classes = in_order(estimator), classes_for(estimator, y)
    for part in (slice(0, 30), slice(30, 31), slice(31, 90)):
        targets = None if y is None else y[part]
        parts.partial_fit(X[part], targets, **classes, sample_weight=weights[part])
        parts, classes = pickle.loads(pickle.dumps(parts)), {}
    assert_same(parts, whole)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_weights_move_with_their_rows(estimator, dtype):
    X, y, weights = data_for(estimator, dtype=dtype)
    weights[weights > 3] = 1e-3  # steps that are too large would hide a difference
    shuffled = clone(estimator).set_params(random_state=3).fit(X, y, sample_weight=weights)
    seed = np.random.RandomState(3).randint(np.iinfo(np.int32).max)
    order = np.array(reference.random_order(seed, 0, len(X), 0))
    moved = in_order(estimator).set_params(random_state=3)
    moved.fit(X[order], y if y is None else y[order], sample_weight=weights[order])
    assert_same(moved, shuffled)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_more_rows_than_are_padded_at_a_time(estimator):
    X, y, weights = (None if a is None else np.concatenate([a] * 60) for a in data_for(estimator))
    weights = weights / 100
    whole = in_order(estimator).fit(X, y, sample_weight=weights)
    parts = in_order(estimator)
    parts.partial_fit(
        X[:7], None if y is None else y[:7], **classes_for(estimator, y), sample_weight=weights[:7]
    )
    parts.partial_fit(X[7:], None if y is None else y[7:], sample_weight=weights[7:])
    assert_same(parts, whole)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("estimator", [one for one, _ in LINEAR if one._takes_sparse], ids=said)
def test_sparse_rows(estimator, dtype):
    X, y, weights = data_for(estimator, 3, dtype)
    X[abs(X) < 0.6] = 0
    dense = in_order(estimator).fit(X, y, sample_weight=weights)
    thin = in_order(estimator).fit(sparse.csr_array(X), y, sample_weight=weights)
    np.testing.assert_allclose(learned(thin), learned(dense), rtol=1e-4, atol=1e-5)
    if dtype == np.float64:
        np.testing.assert_allclose(learned(thin), learned(dense), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_an_estimator_is_its_learner(estimator, dtype):
    X, y, weights = data_for(estimator, 3, dtype)
    order = np.random.default_rng(1).permutation(len(X)).astype(np.uint32)
    rows = Data(X, y).prepare(estimator.row_layout, order)
    rows = replace(rows, weights=weights[order].astype(dtype))
    learner = estimator.make_learner(rows, 0)
    assert isinstance(learner, CompiledLearner)
    state = learner.start()
    learner.update(state, slice(0, len(X)))
    outside = in_order(estimator)
    outside.fit(X[order], y if y is None else y[order], sample_weight=weights[order])
    assert_same(learner.estimator(state), outside)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("estimator", [one for one, _ in LINEAR if one.lane_parameters], ids=said)
def test_lanes_have_the_weights_of_rows(estimator, dtype):
    X, y, weights = data_for(estimator, 3, dtype)
    rows = Data(X, y).prepare(estimator.row_layout, np.arange(len(X), dtype=np.uint32))
    rows = replace(rows, weights=weights.astype(dtype))
    (name, *_) = estimator.lane_parameters
    learners = [
        clone(estimator).set_params(**{name: value}).make_learner(rows, 0)
        for value in (0.001, 0.01, 0.1, 0.5, 1.0)
    ]
    lanes, plan = Lanes(learners), Partition(len(X), 9, None, True, 5)
    side_by_side = np.empty((5 * len(X), lanes.n_outputs), dtype)
    lanes.walk_subtree(plan, plan.root, lanes.start(), side_by_side)
    for learner, found in zip(learners, np.split(side_by_side, 5), strict=True):
        alone = np.empty_like(found)
        learner.walk_subtree(plan, plan.root, learner.start(), alone)
        assert found.tobytes() == alone.tobytes()


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_a_density_takes_integer_weights_for_repeated_rows(kind):
    X, _, _ = data_for(StreamingKMeans())
    weights = np.random.default_rng(1).integers(0, 5, len(X))
    weighted = StreamingGaussianDensity(kind, random_state=0).fit(X, sample_weight=weights)
    repeated = StreamingGaussianDensity(kind, random_state=1).fit(X.repeat(weights, axis=0))
    np.testing.assert_allclose(learned(weighted), learned(repeated), rtol=1e-11, atol=1e-13)
    assert weighted.t_ == len(X)


def test_kmeans_takes_integer_weights_for_rows_repeated_at_once():
    X, _, _ = data_for(StreamingKMeans())
    weights = np.random.default_rng(1).integers(0, 5, len(X))
    weighted = StreamingKMeans(4, shuffle=False).fit(X, sample_weight=weights)
    repeated = StreamingKMeans(4, shuffle=False).fit(X.repeat(weights, axis=0))
    np.testing.assert_allclose(learned(weighted), learned(repeated), rtol=1e-11)
    assert len(weighted.labels_) == len(X)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_scores_are_weighted_as_in_scikit_learn(estimator):
    X, y, weights = data_for(estimator)
    model = in_order(estimator).fit(X, y)
    found = model.score(X, y, sample_weight=weights)
    if y is None:
        each = [model.score(X[i : i + 1]) for i in range(len(X))]
        expected = np.dot(each, weights)
        if isinstance(model, StreamingGaussianDensity):
            expected /= weights.sum()
    else:
        metric = accuracy_score if is_classifier(model) else r2_score
        expected = metric(y, model.predict(X), sample_weight=weights)
    assert found == pytest.approx(expected, rel=1e-12)
    assert found != model.score(X, y)
    assert model.score(X, y, sample_weight=np.ones(len(X))) == pytest.approx(model.score(X, y))


BAD = [
    (np.where(np.arange(90) == 3, -1e-9, 1), "must hold finite weights .* got -1e-09 in row 3"),
    (np.where(np.arange(90) == 3, np.nan, 1), "must hold finite weights .* got nan in row 3"),
    (np.where(np.arange(90) == 3, np.inf, 1), "must hold finite weights .* got inf in row 3"),
    (-1.0, "must hold finite weights .* got -1.0 in row 0"),
    (np.ones(89), "one weight per row: X has 90 rows, sample_weight 89 entries"),
    ([], "one weight per row: X has 90 rows, sample_weight 0 entries"),
    (np.ones((90, 1)), r"must have the shape \(n_rows,\), got shape \(90, 1\)"),
    (np.array(1.0), r"must have the shape \(n_rows,\), got shape \(\)"),
    ([[1.0]] * 89 + [[1.0, 2.0]], "must hold one weight per row"),
    (["1"] * 90, "must hold numbers: got type <U1"),
    ("balanced", r"must have the shape \(n_rows,\)"),
    ([None] * 90, "must hold finite weights .* got nan in row 0"),
    (["a", 1] * 45, "must hold numbers: "),
    ([{}] * 90, "must hold numbers: "),
    ([10**400] * 90, "must hold numbers: "),
    (np.full(90, 1e308), "must have a finite sum"),
    (np.ones(90, complex), "sample_weight must hold real numbers"),
    (np.ma.ones(90), "sample_weight must not be a masked array"),
]


@pytest.mark.parametrize("estimator", [ESTIMATORS[0], ESTIMATORS[5], *ESTIMATORS[8:10]], ids=said)
@pytest.mark.parametrize(("weights", "match"), BAD)
def test_bad_weights(estimator, weights, match):
    X, y, _ = data_for(estimator)
    model = clone(estimator)
    with pytest.raises(
        ValueError, match=f"^(Complex data not supported: )?sample_weight.*{match}|{match}"
    ):
        model.fit(X, y, sample_weight=weights)
    assert vars(model) == vars(clone(estimator))
    model.fit(X, y)
    before = pickle.dumps(model)
    for call in (model.partial_fit, model.score):
        with pytest.raises(ValueError, match=match):
            call(X, y, sample_weight=weights)
    assert pickle.dumps(model) == before


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_weights_that_are_all_zero(estimator):
    X, y, weights = data_for(estimator)
    with pytest.raises(
        ValueError, match="^sample_weight must not be zero for all rows passed to fit"
    ):
        clone(estimator).fit(X, y, sample_weight=np.zeros(90))
    with pytest.raises(
        ValueError, match="^sample_weight must not be zero for all rows passed to fit"
    ):
        clone(estimator).fit(X.astype(np.float32), y, sample_weight=1e-60)
    model = in_order(estimator).fit(X, y)
    with pytest.raises(ValueError, match="^sample_weight must hold a weight above 0"):
        model.score(X, y, sample_weight=np.zeros(90))
    model.partial_fit(X[:4], None if y is None else y[:4], sample_weight=np.zeros(4))
    assert model.t_ == 94


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_weights_too_large_for_the_type_of_the_rows(estimator):
    X, y, weights = data_for(estimator)
    weights[3] = 1e39
    with pytest.raises(ValueError, match="sample_weight contains infinity or a value too large"):
        clone(estimator).fit(X.astype(np.float32), y, sample_weight=weights)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
@pytest.mark.parametrize("kind", [list, tuple, np.float32, np.int64, bool, object, "series"])
def test_forms_of_weights(estimator, kind):
    pd = pytest.importorskip("pandas")
    X, y, _ = data_for(estimator)
    plain = np.arange(90) % 2
    if kind == "series":
        weights = pd.Series(plain, index=np.arange(90)[::-1])  # an index has no meaning for fit
    else:
        weights = kind(plain) if kind in (list, tuple) else plain.astype(kind)
    expected = in_order(estimator).fit(X, y, sample_weight=plain.astype(float))
    assert_same(in_order(estimator).fit(X, y, sample_weight=weights), expected)


def test_fit_predict_and_fit_transform_take_weights():
    X, _, weights = data_for(StreamingKMeans())
    model = StreamingKMeans(3, shuffle=False)
    expected = clone(model).fit(X, sample_weight=weights)
    found = clone(model).fit_predict(X, sample_weight=weights)
    np.testing.assert_array_equal(found, expected.predict(X))
    found = clone(model).fit_transform(X, sample_weight=weights)
    np.testing.assert_array_equal(found, expected.transform(X))


# scikit-learn's metadata routing.


@pytest.fixture
def _routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("_routing")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_weights_are_requested(estimator):
    for method in ("fit", "partial_fit", "score"):
        model = getattr(clone(estimator), f"set_{method}_request")(sample_weight=True)
        assert getattr(model.get_metadata_routing(), method).requests["sample_weight"] is True
        assert repr(model) == repr(estimator)
        assert clone(model).get_metadata_routing().__dict__


@pytest.mark.usefixtures("_routing")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_weights_are_routed_through_a_pipeline(estimator):
    X, y, weights = data_for(estimator)
    asking = in_order(estimator).set_fit_request(sample_weight=True)
    asking.set_score_request(sample_weight=True)
    scaler = StandardScaler().set_fit_request(sample_weight=False)
    pipeline = make_pipeline(scaler, asking).fit(X, y, sample_weight=weights)
    scaled = StandardScaler().fit_transform(X)
    plain = in_order(estimator).fit(scaled, y, sample_weight=weights)
    assert_same(pipeline[-1], plain)
    expected = plain.score(scaled, y, sample_weight=weights)
    assert pipeline.score(X, y, sample_weight=weights) == expected


@pytest.mark.usefixtures("_routing")
def test_weights_are_routed_through_a_search():
    estimator = PegasosClassifier(shuffle=False)
    X, y, weights = data_for(estimator)
    asking = clone(estimator).set_fit_request(sample_weight=True)
    pipeline = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), asking)
    scorer = get_scorer("accuracy").set_score_request(sample_weight=True)
    alphas = [0.001, 0.1]
    search = GridSearchCV(
        pipeline, {"pegasosclassifier__alpha": alphas}, cv=KFold(3), scoring=scorer
    ).fit(X, y, sample_weight=weights)
    for i, alpha in enumerate(alphas):
        for fold, (train, test) in enumerate(KFold(3).split(X)):
            scaler = StandardScaler().fit(X[train])
            model = clone(estimator).set_params(alpha=alpha)
            model.fit(scaler.transform(X[train]), y[train], sample_weight=weights[train])
            found = model.predict(scaler.transform(X[test]))
            expected = accuracy_score(y[test], found, sample_weight=weights[test])
            assert search.cv_results_[f"split{fold}_test_score"][i] == expected
