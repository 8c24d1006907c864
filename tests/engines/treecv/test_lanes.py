"""Models trained side by side are bit for bit the same as models trained alone."""

from __future__ import annotations

from lane_families import assert_same_bits
from lane_families import FAMILIES
from lane_families import fits
from lane_families import make
from learners import learner_of
from learners import learners_of
import numpy as np
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.base import is_regressor
from spread import spread

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.engines.treecv.kernels.linear import VECTOR_BYTES
from optuna_treecv.engines.treecv.kernels.pegasos import Pegasos
from optuna_treecv.engines.treecv.learners.compiled import Lanes
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.rows.partition import Partition


def outputs_of(estimators, X, y, cv, order, lanes):
    """Return the out-of-fold outputs of learners side by side, or one after the other."""
    plan = Partition(X.shape[0], cv, None, order == "random", 5)
    learners = learners_of(estimators, X, y)
    found = []
    for part in [learners] if lanes else [[learner] for learner in learners]:
        learner = Lanes(part) if lanes else part[0]
        out = np.full((len(part) * plan.n_rows, learner.n_outputs), 7, X.dtype)
        learner.walk_subtree(plan, plan.root, learner.start(), out)
        found.append(out.reshape(len(part), plan.n_rows, -1))
    return np.concatenate(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        order=["fixed", "random"],
        dtype=[np.float64, np.float32],
        is_sparse=[False, True],
        n_classes=[0, 2, 3],
        family=FAMILIES,
        where=fits,
    )
)
def test_each_lane_is_what_it_is_alone(family, n_classes, is_sparse, dtype, order):
    estimators = FAMILIES[family]
    for n_features in (7, 17):
        X, y = make(dtype, is_sparse, n_classes, n_features=n_features)
        for cv, n in ((3, len(estimators)), (60, 1), (60, len(estimators))):
            some = estimators[:n]
            alone = outputs_of(some, X, y, cv, order, False)
            assert_same_bits(outputs_of(some, X, y, cv, order, True), alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    *spread(
        family=FAMILIES,
        n_classes=[0, 2, 3],
        dtype=[np.float64, np.float32],
        is_sparse=[False, True],
        where=fits,
    )
)
def test_lanes_that_diverge_do_as_they_do_alone(family, n_classes, dtype, is_sparse):
    estimators = FAMILIES[family]
    X, y = make(dtype, is_sparse, n_classes)
    X = (X * dtype(np.finfo(dtype).max / 16)).astype(dtype)
    with np.errstate(all="ignore"):
        results = tree_cross_validate_many(estimators, X, y, cv=6)
        alone = [tree_cross_validate(estimator, X, y, cv=6) for estimator in estimators]
    assert any(result.diverged_folds for result in alone)
    for found, one in zip(results, alone, strict=True):
        assert found.diverged_folds == one.diverged_folds
        assert np.array_equal(found.test_score, one.test_score)
    with np.errstate(all="ignore"):
        alone = outputs_of(estimators, X, y, 6, "fixed", False)
        assert_same_bits(outputs_of(estimators, X, y, 6, "fixed", True), alone)


def vector_in(state, n_numbers, dtype):
    """The last vector in a state whose size is a whole number of cache lines."""
    return state[-n_numbers * np.dtype(dtype).itemsize :].view(dtype)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "family",
    [
        # A scale of -0.5^k is multiplied into weights of which some are 0.
        [AveragedSGDClassifier(alpha=15.0, step_size=0.1 + eta) for eta in (0.0, 1e-3, 2e-3)],
        [
            StreamingSVRGRegressor(
                "huber", epsilon=1e-9, alpha=15.0, step_size=step_size, initial_batch_size=3
            )
            for step_size in (0.1, 0.101, 0.102)
        ],
    ],
    ids=["SGD", "SVRG"],
)
def test_no_weight_is_minus_zero(family, dtype, is_sparse):
    # Lanes add 0 times a row where a model alone adds nothing, which turns -0 into 0.
    X, y = make(dtype, False, 0 if is_regressor(family[0]) else 2, n_features=15)
    X[:, 3] = 0
    learners = learners_of(family, sparse.csr_matrix(X) if is_sparse else X, y)
    lanes = Lanes(learners)
    together, alone = lanes.start(), [learner.start() for learner in learners]
    width = learners[0].rows.X.shape[1]
    n_vectors = 2 if is_regressor(family[0]) else 1
    n_lanes = VECTOR_BYTES // np.dtype(dtype).itemsize
    for row in range(len(y)):
        lanes.update(together, slice(row, row + 1))
        of_lanes = vector_in(together, n_vectors * width * n_lanes, dtype).reshape(-1, n_lanes)
        for lane, (learner, state) in enumerate(zip(learners, alone, strict=True)):
            learner.update(state, slice(row, row + 1))
            weights = vector_in(state, n_vectors * width, dtype)
            assert weights.tobytes() == of_lanes[:, lane].tobytes()
            assert not np.signbit(weights[weights == 0]).any()


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("model", [AveragedSGDClassifier, StreamingSVRGClassifier])
def test_a_weight_that_overflows_shows_in_rows_without_it(model, n_classes):
    """With equal values, gradients cancel in one class and overflow in another.

    There is no penalty and only one stage, so the weights are never rewritten, which would find
    the overflow.
    """
    X, y = make(is_sparse=True, n_classes=n_classes, n_rows=200)
    X.data[:] = 4
    steps = np.geomspace(1e305, 1.7e308, 17)
    some = [model(alpha=0.0, step_size=eta, fit_intercept=False) for eta in steps]
    for one in some:
        if model is AveragedSGDClassifier:
            one.set_params(loss="log_loss", average=False)
        else:
            one.set_params(initial_batch_size=4, inner_steps=10**6)
    with np.errstate(all="ignore"):
        alone = outputs_of(some, X, y, 5, "fixed", False)
        assert np.isnan(alone[:, ::7]).any()  # rows without nonzeros
        assert_same_bits(outputs_of(some, X, y, 5, "fixed", True), alone)


def test_a_wide_sparse_model_is_undone_in_all_lanes():
    rng = np.random.default_rng(0)
    X = sparse.random(200, 5000, 0.002, "csr", random_state=rng)
    y = rng.integers(0, 2, 200)
    alphas = (1e-6, 1e-3, 0.1, 10)
    for some in (
        [PegasosClassifier(alpha) for alpha in alphas],
        [PegasosClassifier(alpha, project=True) for alpha in alphas],
        [AveragedSGDClassifier(alpha=alpha) for alpha in alphas],
        [
            StreamingSVRGClassifier(alpha, 0.5, initial_batch_size=4, inner_steps=20)
            for alpha in alphas
        ],
    ):
        for cv in (8, 200):
            alone = outputs_of(some, X, y, cv, "fixed", False)
            assert_same_bits(outputs_of(some, X, y, cv, "fixed", True), alone)


@pytest.mark.slow
@pytest.mark.parametrize(("n_jobs", "scoring"), [(1, None), (1, "hinge"), (2, "accuracy")])
def test_many_are_as_one_by_one(n_jobs, scoring):
    X, y = make(n_rows=300)
    mixed = [
        *FAMILIES["PEGASOS"],
        *FAMILIES["averaged PEGASOS"][:1],
        *FAMILIES["projected PEGASOS"],
        PegasosClassifier(0.1),
        PegasosClassifier(0.1),
        PegasosClassifier(0.1, fit_intercept=False),
        *(
            PegasosClassifier(alpha, class_weight=class_weight)
            for alpha in (0.01, 0.1)
            for class_weight in ("balanced", {0: 0.2, 1: 3})
        ),
    ]
    options = {"cv": 9, "order": "random", "n_repeats": 2, "scoring": scoring, "n_jobs": n_jobs}
    results = tree_cross_validate_many(iter(mixed), X, y, **options)
    assert len(results) == len(mixed)
    for estimator, found in zip(mixed, results, strict=True):
        alone = tree_cross_validate(estimator, X, y, **options)
        assert np.array_equal(found.test_score, alone.test_score)
        assert (found.n_updates, found.n_updates_saved) == (alone.n_updates, 0)
        assert (found.mean, found.std, found.n_folds) == (alone.mean, alone.std, alone.n_folds)


@pytest.mark.parametrize("n_models", [1, 16])
@pytest.mark.parametrize("k", [6, 7, 8])
def test_a_sum_that_overflows_at_the_last_row_shows_in_sparse_rows(k, n_models):
    # The first of k rows is huge. At the seventh, the scale is multiplied into the weights.
    X = np.zeros((2 * k, 2))
    X[:, 1] = 1
    X[k] = 0.49e300, 0
    y = np.zeros(2 * k)
    y[k] = 9
    options = {"loss": "epsilon_insensitive", "epsilon": 1.0, "step_size": 1e8}
    models = [
        AveragedSGDRegressor(alpha=alpha, fit_intercept=False, **options)
        for alpha in np.linspace(0.5e-8, 0.501e-8, n_models)
    ]
    with np.errstate(all="ignore"):
        scores = [
            [
                result.test_score[0]
                for result in tree_cross_validate_many(models, rows, y, cv=2, shuffle=False)
            ]
            for rows in (X, sparse.csr_array(X))
        ]
    assert scores[0] == scores[1]
    assert k != 7 or np.isinf(scores[0]).any()  # else nothing has overflowed


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_a_step_that_overflows_shows_in_empty_rows(loss):
    X = np.zeros((40, 64), np.float32)
    X[3, 5] = 1
    y = np.arange(40) % 2
    some = [
        AveragedSGDClassifier(
            loss=loss, alpha=0.0, step_size=eta, average=False, fit_intercept=False
        )
        for eta in np.geomspace(1e39, 1e60, 20)
    ]
    with np.errstate(all="ignore"):
        alone = outputs_of(some, sparse.csr_array(X), y, 40, "fixed", False)
        found = outputs_of(some, sparse.csr_array(X), y, 40, "fixed", True)
    assert np.isnan(alone).all()  # also for row 3, whose feature no other row has
    np.testing.assert_array_equal(found, alone)


def test_weights_that_overflow_where_they_shrink_are_seen_in_sparse_rows_too():
    """Streaming SVRG, alone and in lanes, with a step size times alpha that soon overflows."""
    n_diverged = 0
    for seed in range(20, 26):
        rng = np.random.default_rng(seed)
        n_rows = int(rng.integers(5, 25))
        X, y = sparse.random(n_rows, 24, 0.1, "csr", random_state=rng), np.arange(n_rows) % 2
        some = [
            StreamingSVRGClassifier(
                alpha=10 ** rng.uniform(-1, 1),
                step_size=10 ** rng.uniform(60, 180),
                initial_batch_size=2,
                inner_steps=1,
                fit_intercept=False,
                random_state=1,
            )
            for _ in range(8)
        ]
        with np.errstate(all="ignore"):
            dense = outputs_of(some, X.toarray(), y, 3, "fixed", False)
            alone = outputs_of(some, X, y, 3, "fixed", False)
            found = outputs_of(some, X, y, 3, "fixed", True)
        np.testing.assert_array_equal(np.isfinite(alone), np.isfinite(dense))
        np.testing.assert_array_equal(found, alone)
        n_diverged += np.isnan(alone).sum()
    assert n_diverged


def test_models_without_lanes_and_with_too_many_outputs_for_them_are_evaluated_one_by_one():
    X, y = make(n_rows=280)
    for models, labels in (
        ([StreamingGaussianDensity()] * 3, None),
        ([StreamingSVRGClassifier(a, random_state=0) for a in (1e-4, 1e-2)], np.arange(280) % 129),
    ):
        for model, result in zip(
            models, tree_cross_validate_many(models, X, labels, cv=3), strict=True
        ):
            alone = tree_cross_validate(model, X, labels, cv=3)
            assert np.array_equal(result.test_score, alone.test_score)


def test_a_kernel_has_as_many_lanes_as_it_has_room():
    X = np.zeros((4, 8))
    y = np.array([0, 1, 0, 1], np.int32)
    assert Pegasos(X, y, 2, [0.1] * 128, False, False, True).n_models == 128
    for n in (0, 129):
        with pytest.raises(ValueError, match="there must be 1 to 128 lanes"):
            Pegasos(X, y, 2, [0.1] * n, False, False, True)


@pytest.mark.parametrize("model", [AveragedSGDClassifier, StreamingSVRGClassifier])
def test_learners_that_rewrite_their_weights_often_have_no_lanes_for_sparse_rows(model):
    for is_sparse in (False, True):
        X, y = make(is_sparse=is_sparse)
        for alpha, step_size, often in ((1e-4, 0.1, False), (0.5, 0.1, True), (1e-3, 20.0, True)):
            learner = learner_of(model(alpha=alpha, step_size=step_size), X, y)
            assert bool(learner.lane_parameters) is not (often and is_sparse)
