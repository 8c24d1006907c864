"""Weights of classes in the compiled classifiers: dicts, and classes balanced as rows come."""

from __future__ import annotations

import pickle

from ids import said
from learners import assert_same
from learners import in_order
import numpy as np
from optuna.distributions import FloatDistribution
import pytest
from sklearn.base import clone

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.engines.treecv.learners.compiled import settings_key
from optuna_treecv.rows.data import Data

CLASSIFIERS = [
    PegasosClassifier(0.01),
    PegasosClassifier(0.01, average=True, project=True),
    AveragedSGDClassifier(alpha=0.1, step_size=0.05, average_start=20),
    AveragedSGDClassifier("log_loss", step_size="auto"),
    AveragedSGDClassifier("log_loss", batch_size=3),
    StreamingSVRGClassifier(initial_batch_size=5, inner_steps=9, random_state=0),
]


def rare_class(n_classes=2, dtype=np.float64, n_rows=90):
    """Return rows, of which those of the last class are rare, their classes and weights."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 5)).astype(dtype)
    scores = X @ rng.normal(size=(5, n_classes)) + 0.3 * rng.normal(size=(n_rows, n_classes))
    scores[:, -1] -= 1.5
    y = scores.argmax(axis=1)
    y[-n_classes:] = range(n_classes)
    return X, y, rng.choice([0, 0.5, 1, 2.5], n_rows)


# Dicts.


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=said)
def test_a_dict_is_the_same_as_weights_of_rows_in_the_tree(estimator, dtype):
    X, y, weights = rare_class(3, dtype)
    of_classes = {0: 0.3, 2: 4.1}
    weighted = clone(estimator).set_params(class_weight=of_classes)
    of_rows = np.array([of_classes.get(c, 1) for c in y])
    options = {"cv": 7, "scoring": "hinge"}
    for given in (None, weights):
        found = tree_cross_validate(
            weighted, X, y, sample_weight=given, score_weight=None, **options
        )
        product = of_rows if given is None else of_rows * given.astype(dtype)
        expected = tree_cross_validate(
            estimator, X, y, sample_weight=product, score_weight=None, **options
        )
        assert found.test_score.tobytes() == expected.test_score.tobytes()


LABELS = [
    np.array(["no", "yes"]),
    np.array(["no", "yes"], object),
    np.array([False, True]),
    np.array([-1, 1], np.int8),
    np.array([3, 2**40]),
    np.array([0.0, 1.0], np.float32),
    np.array(["2020-01-01", "2020-01-02"], "M8[D]"),
]


@pytest.mark.parametrize("labels", LABELS, ids=lambda labels: str(labels.dtype))
def test_labels_of_any_kind(labels):
    X, codes, _ = rare_class()
    expected = in_order(CLASSIFIERS[0], class_weight={0: 0.5, 1: 3}).fit(X, codes)
    y = labels[codes]
    for keys in (labels, labels.tolist()):
        model = in_order(CLASSIFIERS[0], class_weight=dict(zip(keys, (0.5, 3), strict=True)))
        assert_same(model.fit(X, y), expected)
    # Only one of the classes, and the other order of the dict.
    model = in_order(CLASSIFIERS[0], class_weight={labels[1]: 6, labels[0]: 1})
    other = in_order(CLASSIFIERS[0], class_weight={labels[1]: 6})
    assert_same(model.fit(X, y), other.fit(X, y))


def test_keys_do_not_depend_on_the_order_of_a_dict_nor_on_the_type_of_its_labels():
    X, y, _ = rare_class()

    def key(class_weight, labels=y, n_seen=50):
        estimator = PegasosClassifier(class_weight=class_weight)
        rows = Data(X, labels).prepare(estimator.row_layout, np.arange(len(X), dtype=np.uint32))
        return settings_key(estimator.make_learner(rows, 0), n_seen)

    expected = key({0: 0.5, 1: 3})
    assert key({1: 3.0, 0: np.float32(0.5)}) == key({np.int8(0): 0.5, 1.0: 3}) == expected
    assert key({"a": 0.5, "b": 3}, np.array(["a", "b"])[y]) == expected
    assert key({1: 3}) == key({0: 1, 1: 3})
    assert len({key(c) for c in (None, "balanced", {1: 3}, {0: 3}, {0: 0.5, 1: 3})}) == 5
    assert key("balanced", n_seen=0) != key(None, n_seen=0)


@pytest.mark.parametrize(
    ("class_weight", "match"),
    [
        ("balance", "must be an instance of 'dict', a str among {'balanced'} or None. Got 'balan"),
        ([1, 2], "must be an instance of 'dict', a str among {'balanced'} or None. Got"),
        ({0: -1.0}, "must be a dict of finite weights .* Got -1.0 for the label 0"),
        ({0: np.nan}, "must be a dict of finite weights .* Got nan for the"),
        ({1: np.inf}, "must be a dict of finite weights .* Got inf for the label 1"),
        ({1: "3"}, "must be a dict of finite weights .* Got '3' for the label 1"),
        ({1: 10**400}, "must be a dict of finite weights .* for the label 1"),
        ({1: np.ones(2)}, "must be a dict of finite weights of at least 0"),
    ],
    ids=said,
)
def test_wrong_class_weights(class_weight, match):
    X, y, _ = rare_class()
    X[3, 2] = np.nan  # which would be refused later
    estimator = AveragedSGDClassifier(class_weight=class_weight)
    match = f"^The 'class_weight' parameter of AveragedSGDClassifier {match}"
    for call in (
        lambda: estimator.fit(X, y),
        lambda: estimator.partial_fit(X, y, classes=[0, 1]),
        lambda: tree_cross_validate(estimator, X, y),
        lambda: treecv_objective(
            estimator, X, y, param_distributions={"alpha": FloatDistribution(0.1, 1)}
        ),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def test_class_weights_that_do_not_fit_the_labels():
    X, y, _ = rare_class()
    for class_weight, match in (
        ({2: 5.0}, r"class_weight must have only labels of y, \[0, 1\], as keys, got 2"),
        ({0: 1, "1": 5.0}, r"class_weight must have only labels of y, \[0, 1\], as keys, got '1'"),
        ({0: 0, 1: 0.0}, "class_weight must have a weight above 0 for at least one class of y"),
    ):
        estimator = PegasosClassifier(class_weight=class_weight)
        for call in (
            lambda model: model.fit(X, y),
            lambda model: model.partial_fit(X, y, classes=[0, 1]),
            lambda model: tree_cross_validate(model, X, y),
            lambda model: tree_cross_validate_many([model] * 40, X, y),
        ):
            with pytest.raises(ValueError, match=match):
                call(estimator)
        assert not hasattr(estimator, "classes_")
    # As in scikit-learn: a label too many, where all classes of y have weights.
    found = PegasosClassifier(shuffle=False, class_weight={0: 1, 1: 3, 2: 5}).fit(X, y)
    assert_same(found, PegasosClassifier(shuffle=False, class_weight={1: 3}).fit(X, y))


def test_class_weights_times_weights_of_rows_are_checked():
    X, y, weights = rare_class()
    model = PegasosClassifier(class_weight={0: 1e200, 1: 0})
    with pytest.raises(ValueError, match="^Input class_weight times sample_weight contains inf"):
        model.fit(X, y, sample_weight=weights + 1e200)
    with pytest.raises(ValueError, match="^Input class_weight times sample_weight contains inf"):
        model.fit(X.astype(np.float32), y)
    with pytest.raises(ValueError, match="^class_weight times sample_weight must not be zero for"):
        model.fit(X, y, sample_weight=y)
    model.partial_fit(X, y, classes=[0, 1], sample_weight=y)
    assert not model.coef_.any()


# Balanced classes.


def weights_so_far(y, weights, n_classes):
    """Return the inverse frequencies among the rows so far, smoothed by one, times the weights."""
    masses, total, found = np.zeros(n_classes), 0.0, np.empty(len(y))
    for i, (c, weight) in enumerate(zip(y, weights, strict=True)):
        masses[c] += weight
        total += weight
        found[i] = weight * ((total + n_classes) / (n_classes * (masses[c] + 1)))
    return found


@pytest.mark.parametrize("n_classes", [2, 9])
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=said)
def test_balanced_is_the_inverse_frequency_among_the_rows_so_far(estimator, n_classes):
    X, y, weights = rare_class(n_classes, n_rows=200)
    for given in (np.ones(len(y)), weights):
        of_rows = weights_so_far(y, given, n_classes)
        expected = in_order(estimator).fit(X, y, sample_weight=of_rows)
        balanced = in_order(estimator, class_weight="balanced")
        assert_same(balanced.fit(X, y, sample_weight=given), expected)
        parts, classes = clone(balanced), {"classes": range(n_classes)}
        for part in (slice(0, 30), slice(30, 31), slice(31, 200)):
            parts.partial_fit(X[part], y[part], **classes, sample_weight=given[part])
            parts, classes = pickle.loads(pickle.dumps(parts)), {}
        assert_same(parts, expected)
    assert_same(clone(balanced).fit(X, y), clone(balanced).fit(X, y, sample_weight=1.0))


# As an estimator.


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=said)
def test_balance_does_not_change_in_the_middle(estimator):
    X, y, _ = rare_class()
    for before, after in ((None, "balanced"), ("balanced", {1: 3}), ({1: 3}, "balanced")):
        model = in_order(estimator, class_weight=before).fit(X, y)
        model.set_params(class_weight=after)
        with pytest.raises(ValueError, match="^class_weight must not change between calls of p"):
            model.partial_fit(X, y)
        model.fit(X, y).partial_fit(X, y)
    # A dict only weights the rows to come.
    model = in_order(estimator).fit(X, y).set_params(class_weight={1: 3}).partial_fit(X, y)
    expected = in_order(estimator).fit(X, y).partial_fit(X, y, sample_weight=1 + 2 * y)
    assert_same(model, expected)


def test_class_weights_do_not_act_in_scores():
    X, y, _ = rare_class()
    model = PegasosClassifier(class_weight={1: 50}, random_state=0).fit(X, y)
    assert model.score(X, y) == np.mean(model.predict(X) == y)
