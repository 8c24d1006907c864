"""Weights of rows in ``fit``, ``partial_fit`` and ``score`` of the compiled estimators."""

from __future__ import annotations

from dataclasses import replace
import pickle

from ids import said
from learners import assert_same
from learners import in_order
from learners import learned
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
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans
from optuna_treecv.rows.data import Data

SVRG = {"initial_batch_size": 5, "inner_steps": 9, "random_state": 0}
ESTIMATORS = [
    PegasosClassifier(0.01),
    PegasosClassifier(0.01, average=True, project=True),
    AveragedSGDClassifier(alpha=0.1, step_size=0.05, average=True, average_start=20),
    AveragedSGDClassifier("log_loss"),
    StreamingSVRGClassifier(**SVRG),
    AveragedSGDRegressor("huber", epsilon=0.5, batch_size=3),
    LSQSGDRegressor(step_size=0.1, fit_intercept=True),
    StreamingSVRGRegressor(**SVRG),
    StreamingKMeans(3),
    StreamingGaussianDensity(),
    StreamingGaussianDensity("full"),
]
LEARNERS = [
    *ESTIMATORS,
    *(
        clone(one).set_params(class_weight=class_weight)
        for one in ESTIMATORS
        if is_classifier(one)
        for class_weight in ("balanced", {0: 0.2, 1: 3})
    ),
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


def classes_for(estimator, y):
    return {"classes": np.unique(y)} if is_classifier(estimator) else {}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=said)
def test_weights_of_ones_have_no_effect_and_a_number_is_the_weight_of_each_row(estimator):
    X, y, weights = data_for(estimator)
    plain = in_order(estimator).fit(X, y)
    assert_same(in_order(estimator).fit(X, y, sample_weight=np.ones(len(X))), plain)
    assert_same(in_order(estimator).fit(X, y, sample_weight=1), plain)
    weighted = in_order(estimator).fit(X, y, sample_weight=weights)
    assert not np.array_equal(learned(weighted), learned(plain))
    same = in_order(estimator).fit(X, y, sample_weight=np.full(len(X), 0.3))
    assert_same(in_order(estimator).fit(X, y, sample_weight=0.3), same)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        dtype=[np.float64, np.float32],
        is_weighted=[False, True],
        is_sparse=[False, True],
        estimator=LEARNERS,
        where=lambda estimator, is_sparse, **_: (
            not is_sparse or get_tags(estimator).input_tags.sparse
        ),
    ),
    ids=said,
)
def test_an_estimator_is_its_learner(estimator, is_sparse, is_weighted, dtype):
    X, y, weights = data_for(estimator, 3, dtype)
    if is_sparse:
        X[abs(X) < 0.5] = 0
        X = sparse.csr_array(X)
    order = np.random.default_rng(1).permutation(X.shape[0]).astype(np.uint32)
    rows = Data(X, y).prepare(estimator.row_layout, order)
    weights = weights[order] if is_weighted else None
    rows = replace(rows, weights=None if weights is None else weights.astype(dtype))
    learner = estimator.make_learner(rows, 0)
    state = learner.start()
    learner.update(state, slice(0, X.shape[0]))
    outside = in_order(estimator)
    outside.fit(X[order], y if y is None else y[order], sample_weight=weights)
    inside = learner.estimator(state)
    assert_same(inside, outside)
    assert inside.t_ == outside.t_ == X.shape[0]
    inside.set_params(shuffle=False).partial_fit(X, y)
    assert_same(inside, outside.partial_fit(X, y))


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
    (np.ones((90, 1)), r"must have the shape \(n_rows,\), got shape \(90, 1\)"),
    ([[1.0]] * 89 + [[1.0, 2.0]], "must hold one weight per row"),
    (["1"] * 90, "must hold numbers: got type <U1"),
    ("balanced", r"must have the shape \(n_rows,\)"),
    ([None] * 90, "must hold finite weights .* got nan in row 0"),
    (["a", 1] * 45, "must hold numbers: "),
    ([10**400] * 90, "must hold numbers: "),
    (np.full(90, 1e308), "must have a finite sum"),
    (np.ones(90, complex), "sample_weight must hold real numbers"),
    (np.ma.ones(90), "sample_weight must not be a masked array"),
]


@pytest.mark.parametrize("estimator", [ESTIMATORS[0], ESTIMATORS[8]], ids=said)
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
def test_weights_that_are_all_zero_or_too_large_are_refused(estimator):
    X, y, weights = data_for(estimator)
    zero = "^sample_weight must not be zero for all rows passed to fit"
    with pytest.raises(ValueError, match=zero):
        clone(estimator).fit(X, y, sample_weight=np.zeros(90))
    with pytest.raises(ValueError, match=zero):
        clone(estimator).fit(X.astype(np.float32), y, sample_weight=1e-60)
    weights[3] = 1e39
    with pytest.raises(ValueError, match="sample_weight contains infinity or a value too large"):
        clone(estimator).fit(X.astype(np.float32), y, sample_weight=weights)
    model = in_order(estimator).fit(X, y)
    with pytest.raises(ValueError, match="^sample_weight must hold a weight above 0"):
        model.score(X, y, sample_weight=np.zeros(90))
    model.partial_fit(X[:4], None if y is None else y[:4], sample_weight=np.zeros(4))
    assert model.t_ == 94


@pytest.mark.parametrize("estimator", [ESTIMATORS[0], ESTIMATORS[8]], ids=said)
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
