"""Lanes say of each row what their models say alone, and go on as they were when some leave."""

from __future__ import annotations

from lane_families import assert_same_bits
from lane_families import FAMILIES
from lane_families import fits
from lane_families import make
from learners import learners_of
import numpy as np
from pairs import pairs
import pytest

from optuna_treecv import PegasosClassifier
from optuna_treecv.engines.treecv.kernels.pegasos import Pegasos
from optuna_treecv.engines.treecv.kernels.sgd import SGD
from optuna_treecv.engines.treecv.learners.compiled import Lanes

ORDER = np.random.default_rng(4).permutation(60).astype(np.uint32)[:25]


def said_along(learner, state, n_models=1):
    """Train on the rows 0 to 29 and on those of an order; return what was said of them."""
    found = []
    for rows, n_rows in ((slice(0, 30), 30), (ORDER, 25)):
        out = np.full((n_models * n_rows, learner.n_outputs), 7, learner.dtype)
        learner.test_then_train(state, rows, out)
        found.append(out.reshape(n_models, n_rows, -1))
    return np.concatenate(found, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        weighed=[False, True],
        dtype=[np.float64, np.float32],
        is_sparse=[False, True],
        n_classes=[0, 2, 3],
        family=FAMILIES,
        where=fits,
    )
)
def test_lanes_say_what_models_say_alone(family, n_classes, is_sparse, dtype, weighed):
    estimators = FAMILIES[family]
    X, y = make(dtype, is_sparse, n_classes)
    weights = np.random.default_rng(0).choice([0.5, 1.0, 3.0], 60) if weighed else None
    learners = learners_of(estimators, X, y, weights)
    alone = [said_along(learner, learner.start())[0] for learner in learners]
    lanes = Lanes(learners)
    assert_same_bits(said_along(lanes, lanes.start(), len(learners)), np.array(alone))


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        balanced=[False, True],
        dtype=[np.float64, np.float32],
        n_classes=[0, 2, 3],
        family=FAMILIES,
        where=lambda family, n_classes, balanced, **_: (
            fits(family, n_classes) and not (balanced and n_classes == 0)
        ),
    )
)
def test_what_stays_is_as_if_the_others_had_never_been(family, n_classes, dtype, balanced):
    estimators = FAMILIES[family]
    if balanced:
        estimators = [type(one)(**one.get_params()) for one in estimators]
        for estimator in estimators:
            estimator.class_weight = "balanced"
    X, y = make(dtype, False, n_classes)
    learners = learners_of(estimators, X, y)
    lanes = Lanes(learners)
    state = lanes.start()
    said_along(lanes, state, len(learners))
    chosen = [len(learners) - 1, 1, 2][: len(learners)]
    fewer = lanes.only(chosen)
    taken = fewer.take(lanes, state, chosen)
    expected = fewer.start()
    said_along(fewer, expected, len(chosen))
    assert np.array_equal(taken, expected)
    again = fewer.only([2]).take(fewer, taken, [2])
    alone = fewer.only([2])
    one = alone.start()
    said_along(alone, one)
    assert np.array_equal(again, one)


def test_taking_lanes_checks_its_arguments():
    X, y = make()
    X = np.ascontiguousarray(np.pad(X, [(0, 0), (0, 7)]))
    y = y.astype(np.int32)
    three = Pegasos(X, y, 2, [0.1, 1.0, 2.0], False, False, True)
    two = Pegasos(X, y, 2, [0.1, 2.0], False, False, True)
    averaged = Pegasos(X, y, 2, [0.1, 2.0], True, False, True)
    values = [(0.1, 0.1, np.inf)] * 2
    other = SGD(X, y, 2, "hinge", 0.0, 0.5, False, 0, values, in_lanes=True)
    state = np.zeros(three.state_bytes, np.uint8)
    out = np.zeros(two.state_bytes, np.uint8)
    with pytest.raises(IndexError, match="no model 3"):
        two.take(three, state, np.array([0, 3]), out)
    with pytest.raises(ValueError, match="2 models, got 1"):
        two.take(three, state, np.array([0]), out)
    for unlike in (averaged, other):
        with pytest.raises(ValueError, match="same layout"):
            unlike.take(three, state, np.array([0, 1]), np.zeros(unlike.state_bytes, np.uint8))
    with pytest.raises(ValueError, match="bytes"):
        two.take(three, state[:-1], np.array([0, 1]), out)


def test_lanes_of_one_model():
    X, y = make()
    lanes = Lanes(learners_of([PegasosClassifier(0.1)], X, y))
    assert lanes.only([0]).take(lanes, lanes.start(), [0]).tobytes() == lanes.start().tobytes()
