"""Siblings trained in one loop: each bit for bit what it is when they take turns."""

from __future__ import annotations

from ids import said
from lane_families import make
from learners import learner_of
import numpy as np
from pairs import pairs
import pytest
from sklearn.base import is_classifier

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv.engines.treecv.walk import trains_pairs
from optuna_treecv.engines.treecv.walk import walk_tree
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.rows.memory import aligned_empty
from optuna_treecv.rows.partition import Partition

ROWS = {"n_rows": 90, "n_features": 11}
ALPHAS = (5e-324, 1e-7, 1e-3, 0.05, 0.3, 2.0, 1e3, 1e300)
BALANCED = [PegasosClassifier(alpha, class_weight="balanced") for alpha in (1e-4, 0.1, 2.0)]
SGD = [
    AveragedSGDClassifier(),
    AveragedSGDClassifier(loss="log_loss", alpha=0.0, step_size=0.3, average=False),
    # The scale shrinks, grows or changes its sign until it is multiplied into the weights.
    AveragedSGDClassifier(alpha=1.0, step_size=0.5, average=True),
    AveragedSGDClassifier(alpha=30.0, step_size=0.1, average_start=40),
    AveragedSGDClassifier(alpha=35.0, step_size=0.1, average=False),
    AveragedSGDClassifier(alpha=10.0, step_size=0.1),
    AveragedSGDClassifier(loss="log_loss", alpha=15.0, step_size=0.1, radius=0.2),
    AveragedSGDClassifier(batch_size=4, step_size=1.0, radius=0.5),
    AveragedSGDRegressor(learning_rate="invscaling", power_t=0.3, step_size=0.1),
    AveragedSGDRegressor(loss="huber", step_size=0.2, average_start=20, radius=0.3),
    AveragedSGDRegressor(loss="epsilon_insensitive", alpha=0.1, step_size=0.5, average=False),
    AveragedSGDClassifier(average=True),
    AveragedSGDRegressor(alpha=0.1, batch_size=3),
    LSQSGDRegressor(step_size=0.05),
]


def in_pairs(learner, plan):
    """Row updates, outputs, and the states of all nodes."""
    out = np.full((plan.n_rows, learner.n_outputs), 7, learner.dtype)
    kept = aligned_empty((2 * plan.n_folds - 1, learner.state_bytes))
    n_updates = learner.walk_subtree(plan, plan.root, learner.start(), out, kept)
    return n_updates, out, kept


def in_turns(learner, plan):
    """The same, one phase after the other."""
    out = np.full((plan.n_rows, learner.n_outputs), 7, learner.dtype)
    kept = []

    def walk(node, state):
        kept.append(state.copy())
        if node.n_folds == 1:
            start, stop = plan.rows(node)
            learner.outputs(state, start, stop, out)
            return 0
        n_updates = 0
        for child in plan.split(node):
            model = learner.snapshot(state)
            phase = plan.phase(node, child)
            learner.update(model, phase)
            n_updates += phase.n_rows + walk(child, model)
        return n_updates

    n_updates = walk(plan.root, learner.start())
    return n_updates, out, np.array(kept)


def partition_of(cv, order):
    """Return a partition of 90 rows."""
    bounds = np.array([0, 1, 40, 42, 43, 80, 90]) if cv == "uneven" else None
    n_folds = {"uneven": 6, "loo": 90}.get(cv, cv)
    return Partition(90, n_folds, bounds, order == "random", 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        order=["fixed", "random"],
        cv=["loo", 7, 2, "uneven"],
        dtype=[np.float64, np.float32],
        n_classes=[2, 3],
        model=[*map(PegasosClassifier, ALPHAS), *SGD],
    ),
    ids=said,
)
def test_pairs_are_what_they_are_in_turns(model, n_classes, dtype, cv, order):
    X, y = make(dtype, n_classes=n_classes, **ROWS)
    plan = partition_of(cv, order)
    learner = learner_of(model, X, y if is_classifier(model) else (y - 0.7).astype(dtype))
    assert trains_pairs(learner)
    pairs, turns = in_pairs(learner, plan), in_turns(learner, plan)
    assert pairs[0] == turns[0]
    for one, other in zip(pairs[1:], turns[1:], strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    *pairs(
        order=["fixed", "random"],
        dtype=[np.float64, np.float32],
        n_rows=[2, 3, 90],
        n_classes=[2, 3],
        alpha=ALPHAS,
        weighted=[False, True],
        size=[1, 1e30, 1e200],
    )
)
def test_two_rows_are_tested_without_their_states(
    size, weighted, alpha, n_classes, n_rows, dtype, order
):
    X, y = make(dtype, n_classes=n_classes, **ROWS)
    X = (X * min(size, np.sqrt(np.finfo(dtype).max))).astype(dtype)
    weights = np.random.default_rng(1).integers(4, size=n_rows) / 2 + 0.5 if weighted else None
    data = X[:n_rows], y[:n_rows], weights
    learner = learner_of(PegasosClassifier(alpha), *data, classes=np.arange(n_classes))
    plan = Partition(n_rows, n_rows, None, order == "random", 5)
    out = np.full((n_rows, learner.n_outputs), 7, dtype)
    n_updates, outputs, _ = in_turns(learner, plan)
    with np.errstate(all="ignore"):
        assert learner.walk_subtree(plan, plan.root, learner.start(), out) == n_updates
    assert np.array_equal(out, outputs, equal_nan=True)


@pytest.mark.parametrize(*pairs(n_jobs=[1, 3], order=["fixed", "random"], cv=["loo", 7, "uneven"]))
def test_pairs_above_the_blocks_too(cv, order, n_jobs):
    X, y = make(n_classes=3, **ROWS)
    plan = partition_of(cv, order)
    learner = learner_of(PegasosClassifier(0.01), X, y)
    assert trains_pairs(learner)
    out = np.full((plan.n_rows, learner.n_outputs), 7, learner.dtype)

    def test(node, state, *rows):
        return learner.walk_subtree(plan, node, state, out)

    blocks = walk_tree(plan, learner, test, plan.blocks(8), n_jobs)
    n_updates = sum(of_block for _, of_block in blocks)
    expected, outputs, *_ = in_turns(learner, plan)
    assert n_updates == expected
    assert out.tobytes() == outputs.tobytes()


@pytest.mark.parametrize(
    *pairs(
        dtype=[np.float64, np.float32],
        n_classes=[2, 3],
        weighted=[False, True],
        model=[*map(PegasosClassifier, ALPHAS), *BALANCED, *SGD[:4], SGD[7]],
    ),
    ids=said,
)
def test_two_states_of_different_ages(model, weighted, n_classes, dtype):
    X, y = make(dtype, n_classes=n_classes, **ROWS)
    weights = np.random.default_rng(1).choice([0, 0.5, 1, 20], 90) if weighted else None
    learner = learner_of(model, X, y, weights)
    order = np.random.default_rng(3).permutation(90).astype(np.uint32)
    for seen, other in ((0, 30), (30, 0), (20, 35), (35, 20)):
        for rows, other_rows in (
            (slice(40, 60), slice(60, 90)),
            (order[40:70], order[70:90]),
            (order[:0], order[:5]),
            (slice(3, 3), slice(0, 4)),
        ):
            together, apart = [], []
            for states in (together, apart):
                for n_rows in (seen, other):
                    state = learner.start()
                    learner.update(state, slice(0, n_rows))
                    states.append(state)
            learner.update_both(together[0], rows, together[1], other_rows)
            learner.update(apart[0], rows)
            learner.update(apart[1], other_rows)
            assert np.array_equal(together[0], apart[0])
            assert np.array_equal(together[1], apart[1])


def test_what_is_no_pair_is_refused():
    X, y = make(**ROWS)
    learner = learner_of(PegasosClassifier(), X, y)
    first, second = learner.start(), learner.start()
    update = learner._kernel.update_both
    with pytest.raises(IndexError, match="^rows 0:91 must be a range of the 90 prepared rows"):
        update(first, 0, 91, second, 0, 1, None)
    with pytest.raises(IndexError, match="^order contains row 90"):
        update(first, 0, 1, second, 1, 2, np.array([0, 90], np.uint32))
    alone = learner_of(PegasosClassifier(average=True), X, y)
    assert not trains_pairs(alone)
    with pytest.raises(ValueError, match="^this kernel cannot train two states together"):
        alone._kernel.update_both(alone.start(), 0, 1, alone.start(), 1, 2, None)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "model", [PegasosClassifier(1e-3), AveragedSGDClassifier(step_size=0.01)], ids=said
)
def test_a_pair_that_diverges_says_so(model, dtype):
    X, y = make(dtype, **ROWS)
    X *= dtype(np.finfo(dtype).max / 16)
    learner = learner_of(model, X, y)
    plan = Partition(len(y), len(y), None, False, 5)
    with np.errstate(all="ignore"):
        pairs, turns = in_pairs(learner, plan), in_turns(learner, plan)
    assert not np.isfinite(pairs[1]).all()
    np.testing.assert_array_equal(pairs[1], turns[1])
