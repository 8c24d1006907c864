"""Each kernel equals its NumPy twin bit for bit, and the textbook algorithm up to rounding."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

from beside import others_run_during
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from kernel_cases import CLASSIFIERS
from kernel_cases import FLOATS
from kernel_cases import fresh
from kernel_cases import KINDS
from kernel_cases import name_of
from kernel_cases import one_svrg
from kernel_cases import prepared
from kernel_cases import problem
from kernel_cases import REGRESSORS
from kernel_cases import takes_sparse
from kernel_cases import Twins
from kernel_cases import walked
from kernel_cases import weigh
from kernel_cases import Weigher
from kernel_cases import weights
from kernel_cases import weights_of
import numpy as np
from pairs import pairs
import pytest
import reference
from scipy import sparse

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv._kernels.order import random_order
from optuna_treecv._kernels.order import sort_by_key
from optuna_treecv._kernels.prepare import copy_rows
from optuna_treecv._kernels.prepare import inverse
from optuna_treecv.engines.treecv.kernels.kmeans import KMeans
from optuna_treecv.engines.treecv.kernels.pegasos import Pegasos
from optuna_treecv.engines.treecv.kernels.sgd import SGD
from optuna_treecv.engines.treecv.kernels.svrg import StreamingSVRG
from optuna_treecv.rows.memory import aligned_empty
from optuna_treecv.rows.memory import pad_rows
from optuna_treecv.rows.memory import padded_width
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition

# Numbers of features around the 8 partial sums: fewer than 8, exactly 8, 9, and several times 8.
WIDTHS = [1, 7, 8, 9, 30]


# Orders.


@pytest.mark.parametrize("arguments", [(0, 0, 1, 0), (7, 3, 40, 12), (2**64 - 1, 10, 1034, 2**40)])
def test_order_equals_twin(arguments):
    seed, start, stop, n_seen = arguments
    order = np.empty(stop - start, np.uint32)
    random_order(seed, start, stop, n_seen, order)
    assert order.tolist() == reference.random_order(seed, start, stop, n_seen)


@pytest.mark.slow
def test_long_order_equals_twin():
    # Long enough for five rejected draws: with i open places, 2^32 mod i of 2^32 are rejected.
    order = np.empty(260_000, np.uint32)
    random_order(1, 0, len(order), 0, order)
    assert order.tolist() == reference.random_order(1, 0, len(order), 0)


def test_order_is_uniform():
    counts = Counter()
    order = np.empty(4, np.uint32)
    n = 24_000
    for seed in range(n):
        random_order(seed, 0, 4, 0, order)
        counts[tuple(order.tolist())] += 1
    assert set(counts) == set(permutations(range(4)))
    chi2 = sum((count - n / 24) ** 2 / (n / 24) for count in counts.values())
    assert chi2 < 49.7  # the 0.999 quantile of chi-squared with 23 degrees of freedom


def test_derived_seeds_differ():
    assert len({derive_seed(seed, label) for seed in range(50) for label in range(50)}) == 2500


# Preparing rows.


LAYOUTS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": lambda X: np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda X: np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
}


@pytest.mark.parametrize(*pairs(dtype=FLOATS, d=WIDTHS, layout=LAYOUTS))
def test_gathered_rows_equal_twin(dtype, d, layout):
    X = LAYOUTS[layout](np.random.default_rng(0).normal(size=(40, d)).astype(dtype))
    order = np.random.default_rng(1).permutation(40)[:33].astype(np.uint32)
    for last in (0.0, 1.0):
        width = padded_width(d + 1)
        out = np.full((33, width), np.nan, dtype)
        assert copy_rows(X, last, out, source=order)
        assert np.array_equal(out, reference.gather_rows(X, order, last, width))


@pytest.mark.slow
@pytest.mark.parametrize(*pairs(dtype=FLOATS, n=[40, 25_000], d=[40, 47, 48], layout=LAYOUTS))
def test_scattered_rows_equal_twin(dtype, n, d, layout):
    # 25,000 rows are written past the cache.
    X = LAYOUTS[layout](np.random.default_rng(0).normal(size=(n, d)).astype(dtype))
    order = np.random.default_rng(1).permutation(n).astype(np.uint32)
    place = np.empty_like(order)
    assert inverse(order, place)
    width = padded_width(d + 1)
    out = aligned_empty((n, width), dtype)
    out[:] = np.nan
    assert copy_rows(X, 1.0, out, target=place)
    assert np.array_equal(out, reference.gather_rows(X, order, 1.0, width))
    # Memory that is not aligned is not written past the cache.
    shifted = aligned_empty((n * width + 1,), dtype)[1:].reshape(n, width)
    assert copy_rows(X, 1.0, shifted, order, np.arange(n, dtype=np.uint32))
    assert np.array_equal(shifted, out)


def test_an_order_has_an_inverse_if_each_row_is_there_once():
    order = np.array([2, 0, 1, 3], np.uint32)
    place = np.empty_like(order)
    assert inverse(order, place)
    assert place.tolist() == [1, 2, 0, 3]
    for rows in ([2, 0, 2, 3], [4, 0, 1, 2]):
        assert not inverse(np.array(rows, np.uint32), place)
    with pytest.raises(ValueError, match="as long as order"):
        inverse(order, place[:3])


def test_repeated_rows_are_prepared_as_they_come():
    X = np.random.default_rng(0).normal(size=(20, 5))
    order = np.random.default_rng(1).integers(20, size=20).astype(np.uint32)
    assert np.array_equal(pad_rows(X, order, True), reference.gather_rows(X, order, 1, 8))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 7, 8])
def test_copying_sees_what_is_not_finite(dtype, bad, column):
    X = np.ones((20, 9), dtype)
    X[13, column] = bad
    out = np.empty((20, 16), dtype)
    order = np.arange(20, dtype=np.uint32)
    for places in ({}, {"source": order}, {"target": order}):
        X[13, column] = bad
        assert not copy_rows(X, 1.0, out, **places)
        X[13, column] = np.finfo(dtype).max
        assert copy_rows(X, 1.0, out, **places)


def test_rows_go_only_where_there_is_room():
    X, out = np.ones((20, 9)), np.empty((20, 16))
    order = np.arange(20, dtype=np.uint32)
    with pytest.raises(IndexError, match="source contains row 20, but there are only 20 rows"):
        copy_rows(X, 1.0, out, source=order + 1)
    with pytest.raises(IndexError, match="target contains row 20, but there are only 20 rows"):
        copy_rows(X, 1.0, out, target=order + 1)
    with pytest.raises(ValueError, match="20 rows of X must go to as many rows of out"):
        copy_rows(X, 1.0, out[:19])
    with pytest.raises(ValueError, match="a multiple of 8 columns"):
        copy_rows(X, 1.0, np.empty((20, 8)))


# Sorting rows.


@given(st.integers(0, 2**32), st.integers(1, 400), st.sampled_from([2, 300, 70_000]))
def test_rows_are_sorted_by_their_keys(seed, n_rows, n_keys):
    generator = np.random.default_rng(seed)
    keys = generator.integers(n_keys, size=n_rows).astype(np.min_scalar_type(n_keys - 1))
    rows = generator.integers(n_rows, size=generator.integers(n_rows + 1)).astype(np.uint32)
    begins, out = np.empty(n_keys + 1, np.int64), np.empty_like(rows)
    sort_by_key(rows, keys, begins, out)
    assert np.array_equal(out, rows[np.argsort(keys[rows], kind="stable")])
    counts = np.bincount(keys[rows], minlength=n_keys)
    assert np.array_equal(begins, np.append(0, np.cumsum(counts)))


def test_only_rows_with_keys_are_sorted():
    rows, keys, begins = np.arange(3, dtype=np.uint32), np.arange(3, dtype=np.uint8), np.zeros(4)
    begins = begins.astype(np.int64)
    for wrong in ((rows + 1, keys, begins), (rows, keys + 1, begins)):
        with pytest.raises(IndexError, match="has no key below 3"):
            sort_by_key(*wrong, rows.copy())
    with pytest.raises(ValueError, match="out must be as long as rows"):
        sort_by_key(rows, keys, begins, rows[:2].copy())


# Every learner and its twin.


ORDER = np.random.default_rng(2).permutation(120).astype(np.uint32)[:70]
TRAINED = [*range(50), *ORDER]


def outputs_along(kernel, state):
    """Train on the rows 0 to 49 and on those of an order; return their outputs before that."""
    found = []
    for stop, order in ((50, None), (70, ORDER)):
        out = np.full((stop, kernel.n_outputs), np.nan, f"f{kernel.itemsize}")
        kernel.test_then_train(state, 0, stop, order, out.view(np.uint8))
        found.append(out)
    return np.concatenate(found)


def check_against_twins(case, dtype, d, n_classes, kind):
    make, _, settings = case
    dense, sparse_rows, y, n_classes = problem(case, 120, dtype, n_classes, d, density=0.6)
    given = weights_of(120, dtype)
    twins = Twins(case, dense, y, n_classes, Weigher(kind, given, y, n_classes))
    outputs = twins.train(TRAINED)
    expected = twins.weights()
    assert np.all(np.isfinite(expected)) and np.any(expected)
    for X in [dense, sparse_rows] if takes_sparse(case) else [dense]:
        kernel = make(X, y, n_classes, *settings)
        weigh(kernel, kind, given)
        trained, tested = fresh(kernel), fresh(kernel)
        kernel.update(trained, 0, 50)
        kernel.update(trained, 0, 70, ORDER)
        assert kernel.n_seen(trained) == 120
        assert np.array_equal(weights(kernel, trained, dtype), expected)
        assert np.array_equal(outputs_along(kernel, tested), outputs)
        assert np.array_equal(tested, trained)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(dtype=FLOATS, d=WIDTHS, n_classes=[2, 4], kind=KINDS, case=CLASSIFIERS), ids=name_of
)
def test_classifier_equals_twin(case, dtype, d, n_classes, kind):
    check_against_twins(case, dtype, d, n_classes, kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(dtype=FLOATS, d=WIDTHS, kind=[None, "weights"], case=REGRESSORS), ids=name_of
)
def test_regressor_equals_twin(case, dtype, d, kind):
    check_against_twins(case, dtype, d, 2, kind)


# PEGASOS.


def test_a_margin_of_one_is_no_violation():
    X = np.zeros((2, 8))
    X[:, 0] = 1
    kernel = Pegasos(X, np.ones(2, np.int32), 2, [1.0], False, False)
    state = fresh(kernel)
    kernel.update(state, 0, 2)  # w_2 = x, so row 2 has margin 1
    assert weights(kernel, state, np.float64)[0, 0] == 0.5


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 0.1, 5.0])
@pytest.mark.parametrize("project", [False, True])
def test_weighted_pegasos_is_the_textbooks(alpha, project):
    """It is figure 1 of the PEGASOS paper, with one row per step."""
    X = prepared(300, 11, np.float64)
    given = np.where(np.arange(300) % 7 == 0, 0, weights_of(300, np.float64))
    codes = (X[:, 0] + 0.3 * X[:, 1] > 0.2).astype(np.int32)
    for row_weights in (np.ones(300), given):
        w = np.zeros(X.shape[1])
        hypotheses = [w]
        for t, (x, y, weight) in enumerate(zip(X, 2 * codes - 1, row_weights, strict=True), 1):
            violated = y * (w @ x) < 1
            w = (1 - 1 / t) * w + (weight * y * x / (alpha * t) if violated else 0)
            if project:
                w = min(1, 1 / np.sqrt(alpha) / max(np.linalg.norm(w), 1e-300)) * w
            hypotheses.append(w)
        for average, expected in ((False, w), (True, np.mean(hypotheses[:-1], axis=0))):
            kernel = Pegasos(X, codes, 2, [alpha], average, project)
            kernel.weigh(row_weights)
            state = fresh(kernel)
            kernel.update(state, 0, 300)
            found = weights(kernel, state, np.float64)[0]
            atol = 1e-9 * np.abs(expected).max()
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=atol)


def test_projected_average_keeps_its_digits_in_float32():
    # With a weak penalty every early step projects and shrinks the scale by orders of magnitude.
    X = prepared(3000, 10, np.float32)
    y = (X[:, 0] > 0).astype(np.int32)
    found = []
    for rows in (X, X.astype(np.float64)):
        kernel = Pegasos(rows, y, 2, [1e-6], True, True)
        state = fresh(kernel)
        kernel.update(state, 0, 3000)
        found.append(weights(kernel, state, rows.dtype)[0])
    angle = found[0] @ found[1] / np.linalg.norm(found[0]) / np.linalg.norm(found[1])
    assert angle > 0.99


# SGD.


def test_last_step_off_the_finite_numbers_shows_in_the_average():
    X = np.ones((3, 8))
    y = np.array([0.0, 0.0, 1e308])
    kernel = SGD(X, y, None, "squared_error", 0.0, 0.0, True, 0, [(0.0, 1e10, np.inf)])
    state = fresh(kernel)
    kernel.update(state, 0, 2)
    assert np.all(np.isfinite(weights(kernel, state, np.float64)))
    kernel.update(state, 2, 3)
    assert np.all(np.isnan(weights(kernel, state, np.float64)))


# Requirements of the tree on all kernels.


SPARSE = [case for case in [*CLASSIFIERS, *REGRESSORS] if takes_sparse(case)]


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.sampled_from(SPARSE),
    st.sampled_from(FLOATS),
    st.sampled_from(KINDS),
    st.integers(2, 70),
    st.sampled_from([0.0, 0.02, 0.2]),
    st.integers(0, 2**32),
    st.booleans(),
    st.tuples(st.integers(1, 40), st.sampled_from([1.0, 1.5, 3.0]), st.integers(1, 100)),
)
def test_sparse_rows_are_undone_in_a_whole_tree(
    case, dtype, kind, n_folds, density, seed, random, schedule
):
    # Few nonzeros in many columns: every kind of phase is undone somewhere. Dense rows are copied.
    make, _, options = case
    if make is one_svrg:
        options = (*options[:4], *schedule, *options[7:])
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(70, 250)) * (rng.uniform(size=(70, 250)) < density)).astype(dtype)
    order = np.arange(70, dtype=np.uint32)
    y, n_classes = rng.integers(0, 3, 70).astype(np.int32), 3
    if case in REGRESSORS:
        y, n_classes, kind = X[:, 0] + 1, None, kind and "weights"
    outs = []
    for rows in (pad_rows(X, order, False), pad_rows(sparse.csr_array(X), order, False)):
        kernel = make(rows, y, n_classes, *options)
        weigh(kernel, kind, weights_of(70, dtype, seed))
        outs.append(walked(kernel, n_folds, random, seed))
    assert np.array_equal(*outs)


@pytest.mark.slow
def test_long_loops_hold_no_lock():
    # If a loop held the GIL, no other thread could run, and Optuna's heartbeats would stop.
    X = np.zeros((3_000_000, 8))
    y = np.zeros(len(X), np.int32)
    kernel = Pegasos(X, y, 2, [0.1], False, False)
    states = aligned_empty((20, kernel.state_bytes))
    kernel.start(states[0])
    model, out = aligned_empty((kernel.model_bytes,)), aligned_empty((len(X), 8))
    order = np.arange(len(X), dtype=np.uint32)
    keys = np.random.default_rng(0).integers(9, size=len(X), dtype=np.uint8)
    plan = Partition(kernel.n_rows, 4, None, True)
    loops = [
        lambda: kernel.update(states[0], 0, len(X)),
        lambda: kernel.walk_subtree(plan, plan.root, states, model, out, None, order),
        lambda: random_order(0, 0, len(X), 0, order),
        lambda: copy_rows(X, 0.0, np.empty_like(X), source=order),
        lambda: inverse(order, np.empty_like(order)),
        lambda: sort_by_key(order, keys, np.empty(10, np.int64), np.empty_like(order)),
        lambda: kernel.test(states[0], model, 0, len(X), out),
    ]
    assert all(map(others_run_during, loops))


def test_wrong_buffers_are_refused():
    X = prepared(10, 3, np.float64)
    y = np.zeros(10, np.int32)
    kernel = Pegasos(X, y, 2, [0.1], False, False)
    state = fresh(kernel)
    with pytest.raises(ValueError, match="^a state must have .* bytes, got"):
        kernel.update(state[:-1], 0, 5)
    with pytest.raises(IndexError, match="^rows 0:11 must be a range of the 10 prepared rows"):
        kernel.update(state, 0, 11)
    with pytest.raises(IndexError, match="^order contains row 10"):
        kernel.update(state, 0, 2, np.array([3, 10], np.uint32))
    with pytest.raises(TypeError, match="float64 or float32"):
        Pegasos(X.astype(np.int64), y, 2, [0.1], False, False)
    with pytest.raises(ValueError, match="multiple of 8 columns"):
        Pegasos(np.ascontiguousarray(X[:, :5]), y, 2, [0.1], False, False)
    model = np.empty(kernel.model_bytes, np.uint8)
    out = np.empty((10, 8), np.uint8)
    with pytest.raises(ValueError, match="each level"):
        states = np.empty((2, kernel.state_bytes), np.uint8)
        kernel.walk_subtree(Partition(kernel.n_rows, 4), Node(0, 4), states, model, out)
    states, order = np.empty((4, kernel.state_bytes), np.uint8), np.empty(3, np.uint32)
    memory = states, model, out, None, order
    with pytest.raises(ValueError, match="room for the rows"):
        kernel.walk_subtree(Partition(kernel.n_rows, 4, None, True), Node(0, 4), *memory)
    with pytest.raises(ValueError, match="no node"):
        kernel.walk_subtree(Partition(kernel.n_rows, 11), Node(0, 11), *memory)
    kept = np.empty((7, kernel.state_bytes), np.uint8)
    with pytest.raises(ValueError, match="a state per node"):
        kernel.walk_subtree(
            Partition(kernel.n_rows, 4), Node(0, 4), *memory, kept=kept, least_folds=2
        )
    with pytest.raises(TypeError):
        kernel.walk_subtree(Partition(10, 4), Node(0, 4), None, model, out)


@pytest.mark.parametrize(
    ("weights", "is_balanced", "message"),
    [
        (np.ones(5), False, r"float64 of shape \(6,\), one per row of X, got .* shape \(5,\)"),
        (np.ones(6, np.float32), False, "got float32"),
        (np.ones((6, 1)), False, r"got float64 of shape \(6, 1\)"),
        (np.ones(12)[::2], False, "contiguous"),
        (np.array([1, 1, -1e-300, 1, 1, 1]), False, "finite and at least 0"),
        (np.array([1, 1, np.nan, 1, 1, 1]), False, "finite and at least 0"),
        (np.array([1, 1, np.inf, 1, 1, 1]), False, "finite and at least 0"),
        (None, True, "class codes below 2, got 2"),
    ],
)
def test_wrong_weights_are_refused(weights, is_balanced, message):
    kernel = Pegasos(np.ones((6, 8)), np.arange(6, dtype=np.int32) % 3, 2, [0.1], False, False)
    with pytest.raises(ValueError, match=message):
        kernel.weigh(weights, is_balanced)
    kernel.weigh(np.ones(6))
    with pytest.raises(ValueError, match="called once"):
        kernel.weigh(np.ones(6))
    with pytest.raises(ValueError, match="two or more classes"):
        KMeans(np.ones((6, 8)), 2).weigh(None, True)


def test_arguments_of_test_then_train_are_checked():
    X = prepared(20, 3, np.float64)
    make, _, settings = REGRESSORS[0]
    kernel = make(X, np.zeros(20), None, *settings)
    state = fresh(kernel)
    out = np.empty((5, 8), np.uint8)
    for start, stop in ((-1, 4), (3, 3), (16, 21)):
        with pytest.raises(IndexError, match=r"^rows \S+ must (be a range of|include)"):
            kernel.test_then_train(state, start, stop, None, out)
    with pytest.raises(IndexError, match="contains row 20"):
        kernel.test_then_train(state, 0, 1, np.array([20], np.uint32), out)
    with pytest.raises(ValueError, match="^out must have room for the outputs"):
        kernel.test_then_train(state, 0, 6, None, out)
    with pytest.raises(ValueError, match="^a state must have .* bytes"):
        kernel.test_then_train(state[:-1], 0, 5, None, out)
    clusters = KMeans(X, 2)
    assert kernel.tests_rows
    assert not clusters.tests_rows
    with pytest.raises(TypeError, match="^this kernel cannot test each row before training on it"):
        clusters.test_then_train(fresh(clusters), 0, 5, None, np.empty((5, 16), np.uint8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "n_classes", "is_sparse"),
    [
        ("log_loss", 2, False),
        ("log_loss", 4, True),
        ("squared_error", None, True),
        ("huber", None, False),
    ],
)
def test_streaming_svrg_equals_its_twin_near_the_end_of_float32(loss, n_classes, is_sparse):
    # Step sizes around the one with which rows of 3e36 make weights overflow. One class of several
    # may diverge while the twins of the others, which are models of their own, stay finite.
    rng = np.random.default_rng(0)
    n_finite = n_diverged = 0
    for step_size in (0.0, *np.geomspace(1e-40, 1e-33, 22)):
        X = (rng.normal(size=(60, 9)) * (rng.random((60, 9)) < 0.5) * 3e36).astype(np.float32)
        order = np.arange(60, dtype=np.uint32)
        dense = pad_rows(X, order, True)
        rows = pad_rows(sparse.csr_array(X), order, True) if is_sparse else dense
        codes = rng.integers(0, n_classes or 2, 60).astype(np.int32)
        y = codes if n_classes else (2.0 * codes - 1).astype(np.float32)
        stages, values = (5, 2.0, 7, 0, False, 3), (1e-4, step_size)
        kernel = StreamingSVRG(rows, y, n_classes, loss, 1.0, *stages, [values])
        zeros = np.zeros(dense.shape[1], np.float32)
        twins = [
            reference.StreamingSVRG(loss, 1.0, *values, *stages, zeros)
            for _ in range(kernel.n_outputs)
        ]
        own = [c + (kernel.n_outputs == 1) for c in range(kernel.n_outputs)]
        state = fresh(kernel)
        for row in range(60):
            kernel.update(state, row, row + 1)
            with np.errstate(all="ignore"):
                for twin, code in zip(twins, own, strict=True):
                    twin.train(dense[row], 1.0 if codes[row] == code else -1.0)
                expected = np.array([twin.weights() for twin in twins])
            found = weights(kernel, state, np.float32)
            if not np.all(np.isfinite(expected)):
                assert not np.all(np.isfinite(found))
                n_diverged += 1
                break
            np.testing.assert_array_equal(found, expected)
        else:
            n_finite += 1
    assert n_finite and n_diverged
