"""The estimators as scikit-learn sees them, and the learners as the tree does."""

from __future__ import annotations

from functools import partial
from typing import get_args
from typing import get_origin
from typing import get_type_hints
from typing import Literal

from ids import said
import joblib
from learners import learner_of
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.preprocessing import scale
from sklearn.utils import get_tags
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.estimator_checks import parametrize_with_checks

import optuna_treecv
from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.estimators.base import CompiledEstimator
import optuna_treecv.paper
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans

COMPILED = [
    PegasosClassifier(alpha=0.01),
    PegasosClassifier(alpha=1e-5, average=True, project=True, fit_intercept=False),
    AveragedSGDClassifier("log_loss", average_start=20, random_state=0),
    StreamingSVRGClassifier(initial_batch_size=5, inner_steps=10, random_state=0),
    LSQSGDRegressor(fit_intercept=True),
    LSQSGDRegressor(step_size=0.02, radius=np.inf, average=False),
    AveragedSGDRegressor("epsilon_insensitive", batch_size=3),
    StreamingSVRGRegressor("huber", initial_batch_size=5, inner_steps=10, random_state=0),
]


def fails_of(estimator):
    """Return scikit-learn's checks that an estimator must fail, and why."""
    if isinstance(estimator, StreamingGaussianDensity):
        return {}
    kinds = ("dense", "sparse") if get_tags(estimator).input_tags.sparse else ("dense",)
    why = "after one pass, rows repeated at other places are not the same as weights"
    return {f"check_sample_weight_equivalence_on_{kind}_data": why for kind in kinds}


checks_of = partial(parametrize_with_checks, expected_failed_checks=fails_of, xfail_strict=True)


@pytest.mark.slow
@checks_of(
    [
        PegasosClassifier(average=True, project=True),
        StreamingSVRGClassifier(step_size=0.1, initial_batch_size=10, inner_steps=20),
        AveragedSGDRegressor(),
        StreamingKMeans(),
        StreamingGaussianDensity("full"),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.nightly
@checks_of(
    [
        AveragedSGDClassifier("log_loss", batch_size=2),
        LSQSGDRegressor(fit_intercept=True, average=False),
        StreamingSVRGRegressor(initial_batch_size=5),
    ]
)
def test_scikit_learn_checks_of_like_estimators(estimator, check):
    """They share their code with those above, up to kernels and the names of parameters."""
    check(estimator)


@pytest.mark.parametrize("estimator", COMPILED[:4], ids=said)
def test_three_blobs_are_told_apart(estimator):
    # scikit-learn's checks demand this too, but not of estimators with the tag poor_score. They
    # have it because one pass over fifty rows is too short for class weights of 1000 and 0.0001.
    X, y = make_blobs(n_samples=300, random_state=0)
    X = scale(X)
    model = clone(estimator).set_params(random_state=0)
    assert model.fit(X, y).score(X, y) > 0.83


@pytest.mark.parametrize("estimator", COMPILED, ids=said)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_outputs_are_those_of_the_coefficients(estimator, dtype, three_classes):
    X, y = three_classes
    X = X.astype(dtype)
    learner = learner_of(estimator, X, y, seed=3)
    state = learner.start()
    learner.update(state, slice(0, len(y)))
    fitted = learner.estimator(state)
    assert fitted.coef_.dtype == dtype
    out = np.empty((len(y), learner.n_outputs), learner.dtype)
    learner.outputs(state, 0, len(y), out)
    decision = X @ np.atleast_2d(fitted.coef_).T + fitted.intercept_
    np.testing.assert_allclose(
        out, decision, rtol=1e-3 if dtype == np.float32 else 1e-9, atol=1e-5
    )


def test_auto_step_is_settled_once():
    X, y = np.ones((100, 2)), np.linspace(0, 1, 100)
    model = LSQSGDRegressor().partial_fit(X[:25], y[:25])
    assert model.step_size_ == 0.2
    assert model.partial_fit(X, y).step_size_ == 0.2
    assert model.fit(X, y).step_size_ == 0.1
    assert LSQSGDRegressor(step_size=0.3).fit(X, y).step_size_ == 0.3


def test_decision_of_zero_is_the_first_class():
    model = PegasosClassifier(fit_intercept=False, shuffle=False).fit(
        [[1.0, 0], [-1, 0]], ["b", "a"]
    )
    assert model.decision_function([[0.0, 5.0]]) == 0
    assert model.predict([[0.0, 5.0]]) == ["a"]


def test_unknown_labels_in_partial_fit():
    model = PegasosClassifier().partial_fit([[1.0], [2.0]], ["a", "b"], classes=["a", "b"])
    with pytest.raises(ValueError, match=r"y must hold labels from classes=\['a', 'b'\], got 'c'"):
        model.partial_fit([[1.0]], ["c"])


@pytest.mark.parametrize(
    ("estimator", "match"),
    [
        (PegasosClassifier(alpha=0.0), "'alpha' parameter of PegasosClassifier must be a float"),
        (PegasosClassifier(alpha=np.nan), "'alpha' parameter of PegasosClassifier must be a f"),
        (PegasosClassifier(average="yes"), "'average' parameter"),
        (LSQSGDRegressor(step_size=0), "'step_size' parameter of LSQSGDRegressor must be"),
        (LSQSGDRegressor(radius=-1.0), "'radius' parameter of LSQSGDRegressor must be"),
        (StreamingSVRGClassifier(initial_batch_size=-5), r"in the range \[1, .*Got -5 instead"),
        (StreamingSVRGClassifier(inner_steps=0), r"'inner_steps' .* in the range \[1, .*Got 0"),
        (StreamingSVRGRegressor(batch_growth=0.9), r"'batch_growth' .* range \[1.0, inf\)"),
        (StreamingSVRGRegressor(warm_stages=-1), "'warm_stages' parameter"),
        (StreamingSVRGRegressor(schedule="linear"), "'schedule' parameter .*'factorial'"),
        (StreamingSVRGRegressor(step_size=0.0), "'step_size' parameter"),
        (StreamingSVRGRegressor(loss="hinge"), "'loss' parameter .*'squared_error'"),
        (AveragedSGDClassifier(loss="squared_error"), "'loss' parameter .*'hinge'"),
        (AveragedSGDClassifier(batch_size=0), "'batch_size' parameter"),
        (AveragedSGDClassifier(average_start=-1), "'average_start' parameter"),
        (AveragedSGDRegressor(epsilon=-0.1), "'epsilon' parameter"),
        (AveragedSGDRegressor(learning_rate="optimal"), "'learning_rate' parameter"),
        (StreamingKMeans(0), "'n_clusters' parameter"),
        (StreamingKMeans(2**61), "'n_clusters' parameter"),
        (StreamingGaussianDensity("tied"), "'covariance_type' parameter"),
        (StreamingGaussianDensity(reg_covar=0.0), "'reg_covar' parameter"),
    ],
)
def test_wrong_parameters(estimator, match, binary):
    with pytest.raises(ValueError, match=match):
        estimator.fit(*binary)
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(estimator, *binary)


def test_numbers_of_rows_beyond_all_rows(binary):
    X, y = binary
    for estimator in (
        StreamingSVRGClassifier(initial_batch_size=2**70, inner_steps=2**70, warm_stages=2**70),
        AveragedSGDClassifier(batch_size=2**70, average_start=2**70),
    ):
        assert not estimator.fit(X, y).coef_.any()
    model = AveragedSGDClassifier(average_start=2**70, random_state=0).fit(X, y)
    last = AveragedSGDClassifier(average=False, random_state=0).fit(X, y)
    assert np.array_equal(model.coef_, last.coef_)


def test_modes_do_not_change_in_the_middle(binary):
    X, y = binary
    for change in ({"average": True}, {"project": True}):
        model = PegasosClassifier().fit(X, y).set_params(**change)
        with pytest.raises(ValueError, match=f"^{[*change][0]} must not change between calls"):
            model.partial_fit(X, y)
        model.fit(X, y).partial_fit(X, y)
    model = LSQSGDRegressor().fit(X, y).set_params(average=False)
    with pytest.raises(ValueError, match="average must not change between calls"):
        model.partial_fit(X, y)


def test_a_model_loaded_as_a_memory_map_goes_on(binary, tmp_path):
    X, y = binary
    joblib.dump(PegasosClassifier(shuffle=False).fit(X, y), tmp_path / "model")
    loaded = joblib.load(tmp_path / "model", mmap_mode="r").partial_fit(X, y)
    again = joblib.load(tmp_path / "model").partial_fit(X, y)
    assert np.array_equal(loaded.coef_, again.coef_)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("label", ["i1", "i4"])
def test_fields_of_packed_records(dtype, label, binary):
    X, y = binary
    records = np.zeros(len(y), [("label", label), ("x", dtype, (5,))])
    records["x"], records["label"] = X, y
    plain = PegasosClassifier(shuffle=False).fit(records["x"].copy(), y)
    packed = PegasosClassifier(shuffle=False).fit(records["x"], records["label"])
    assert np.array_equal(plain.coef_, packed.coef_)
    a = tree_cross_validate(PegasosClassifier(), records["x"], records["label"])
    b = tree_cross_validate(PegasosClassifier(), records["x"].copy(), y)
    assert np.array_equal(a.test_score, b.test_score)


@pytest.mark.parametrize(
    ("model", "loss"), [(AveragedSGDClassifier, "log_loss"), (StreamingSVRGRegressor, "huber")]
)
def test_names_may_come_from_an_array(model, loss, binary):
    X, y = binary
    (name,) = np.array([loss])
    found = tree_cross_validate_many([model(loss=name, alpha=a) for a in range(16)], X, y)
    for alpha, result in enumerate(found):
        expected = tree_cross_validate(model(loss=loss, alpha=alpha), X, y)
        assert np.array_equal(result.test_score, expected.test_score)


def choices_of(annotation):
    """The strings that a type names."""
    if get_origin(annotation) is Literal:
        return {choice for choice in get_args(annotation) if isinstance(choice, str)}
    return set().union(*(choices_of(part) for part in get_args(annotation)))


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in {**vars(optuna_treecv), **vars(optuna_treecv.paper)}.values()
        if isinstance(kind, type) and issubclass(kind, CompiledEstimator)
    ],
)
def test_types_name_the_choices_that_are_taken(kind):
    annotations = get_type_hints(kind.__init__)
    for name in kind._get_param_names():
        constraints = kind._parameter_constraints[name]
        taken = set().union(*(c.options for c in constraints if isinstance(c, StrOptions)))
        assert choices_of(annotations[name]) == taken, name


@pytest.mark.filterwarnings("error")
def test_kmeans_with_data_frames():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3)), columns=["a", "b", "c"])
    plain = StreamingKMeans(2, random_state=0).fit(frame.to_numpy())
    model = StreamingKMeans(2, random_state=0).fit(frame).partial_fit(frame)
    plain.partial_fit(frame.to_numpy())
    names = ["streamingkmeans0", "streamingkmeans1"]
    assert list(model.get_feature_names_out()) == names
    expected = plain.transform(frame.to_numpy())
    model.set_output(transform="pandas")
    found = model.transform(frame)
    assert list(found.columns) == names
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(model.predict(frame), expected.argmin(axis=1))
    np.testing.assert_array_equal(model.labels_, expected.argmin(axis=1))
    assert model.score(frame) == plain.score(frame.to_numpy())
    assert list(clone(model).fit(frame).labels_) == list(model.fit(frame).labels_)
    squared = tree_cross_validate(model, frame, cv=4).mean
    assert squared == tree_cross_validate(plain, frame.to_numpy(), cv=4).mean
