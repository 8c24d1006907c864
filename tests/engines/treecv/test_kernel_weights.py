"""Weights of rows in the kernels: each kernel equals its NumPy twin with the same weights."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from math import inf

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from kernel_cases import CLASSIFIERS
from kernel_cases import FLOATS
from kernel_cases import fresh
from kernel_cases import KINDS
from kernel_cases import name_of
from kernel_cases import problem
from kernel_cases import REGRESSORS
from kernel_cases import rows_of
from kernel_cases import takes_sparse
from kernel_cases import Twins
from kernel_cases import walked
from kernel_cases import weigh
from kernel_cases import Weigher
from kernel_cases import weights as model_of
from kernel_cases import weights_of
from kernel_families import CASES
from kernel_families import FAMILIES
from kernel_families import N_ROWS
from kernel_families import trained
from kernel_families import VALUES
import numpy as np
from pairs import pairs
import pytest
import reference
from scipy import sparse

from optuna_treecv.engines.treecv.kernels.gaussian import Gaussian
from optuna_treecv.engines.treecv.kernels.kmeans import KMeans
from optuna_treecv.engines.treecv.kernels.pegasos import Pegasos
from optuna_treecv.engines.treecv.kernels.sgd import SGD
from optuna_treecv.engines.treecv.kernels.svrg import StreamingSVRG
from optuna_treecv.rows.memory import aligned_empty
from optuna_treecv.rows.memory import pad_rows
from optuna_treecv.testing import treecv

# K-means and its twin.


@pytest.mark.parametrize("dtype", FLOATS)
def test_weighted_kmeans_equals_its_twin(dtype):
    X, _ = rows_of(120, 7, dtype)
    X[20:24] = X[3]
    given = weights_of(120, dtype)
    kernel, twin = KMeans(X, 6), reference.KMeans(6)
    kernel.weigh(given)
    state = fresh(kernel)
    order = np.random.default_rng(2).permutation(120).astype(np.uint32)
    kernel.update(state, 0, 50)
    kernel.update(state, 0, 70, order)
    for row in [*range(50), *order[:70]]:
        twin.train(X[row], float(given[row]))
    model = aligned_empty((kernel.model_bytes,))
    kernel.read_out(state, model)
    assert np.array_equal(model.view(dtype).reshape(6, -1), twin.centres)
    assert kernel.counts(state) == list(twin.masses)
    assert kernel.n_seen(state) == 120


# Trees: pairs of dense rows, the undo log of sparse rows, random orders.


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        random=[False, True],
        kind=KINDS[1:],
        dtype=FLOATS,
        case=[*CLASSIFIERS[::2], *REGRESSORS[::2]],
        where=lambda kind, case, **_: kind == "weights" or case in CLASSIFIERS,
    ),
    ids=name_of,
)
def test_weighted_trees_equal_the_naive_tree(case, dtype, kind, random):
    make, _, options = case
    n, n_folds = 26, 13
    dense, sparse_rows, y, n_classes = problem(case, n, dtype, 3, density=0.3)
    given = weights_of(n, dtype)
    bounds = [i * n // n_folds for i in range(n_folds + 1)]
    chunks = [range(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
    expected = np.zeros((1, n, 3 if n_classes else 1), dtype)

    def train(twins, rows, n_seen):
        twins = deepcopy(twins)
        if random and len(rows) > 1:
            rows = reference.random_order(5, rows[0], rows[-1] + 1, n_seen)
        twins.train(rows)
        return twins

    def test(twins, fold):
        for row in chunks[fold]:
            expected[0, row] = [reference.dot(w, dense[row]) for w in twins.weights()]

    start = Twins(case, dense, y, n_classes, Weigher(kind, given, y, n_classes))
    treecv(chunks, train, test, start)
    for X in [dense, sparse_rows] if takes_sparse(case) else [dense]:
        kernel = make(X, y, n_classes, *options)
        weigh(kernel, kind, given)
        assert np.array_equal(walked(kernel, n_folds, random, 5), expected)


# Lanes. A kernel with lanes, and the kernel of each lane alone.

ALPHAS = [1e-6, 1e-3, 0.03, 0.3, 2.0]
SGD_VALUES = [(0.01, 0.05, inf), (0.3, 0.0, inf), (15.0, 0.1, inf), (0.01, 0.3, 0.5)]
SVRG_VALUES = [(1e-3, 0.05), (0.1, 0.0), (0.5, 0.5)]
STAGES = (4, 2.0, 7, 0, False, 3)
LANES = {
    **{
        f"PEGASOS {average} {project}": (
            lambda X, y, k, a=average, p=project: Pegasos(X, y, k, ALPHAS, a, p, True),
            [
                partial(Pegasos, alphas=[alpha], average=average, project=project)
                for alpha in ALPHAS
            ],
        )
        for average in (False, True)
        for project in (False, True)
    },
    **{
        f"SGD {loss} {power}": (
            lambda X, y, k, n=loss, p=power: SGD(
                X, y, k, n, 0.1, p, True, 9, SGD_VALUES, in_lanes=True
            ),
            [
                lambda X, y, k, n=loss, p=power, v=values: SGD(X, y, k, n, 0.1, p, True, 9, [v])
                for values in SGD_VALUES
            ],
        )
        for loss, power in (("hinge", 0.0), ("log_loss", 0.5), ("squared_error", 0.3))
    },
    **{
        f"SVRG {loss} {len(values)}": (
            lambda X, y, k, n=loss, v=values: StreamingSVRG(X, y, k, n, 0.1, *STAGES, v, True),
            [
                lambda X, y, k, n=loss, v=one: StreamingSVRG(X, y, k, n, 0.1, *STAGES, [v])
                for one in values
            ],
        )
        for loss in ("log_loss", "huber")
        for values in (SVRG_VALUES, SVRG_VALUES[:1])  # with and without the automatic step
    },
}


def is_of_classes(family):
    return not family.endswith(("squared_error 0.3", "huber 3", "huber 1"))


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        random=[False, True],
        is_sparse=[False, True],
        kind=KINDS[1:],
        dtype=FLOATS,
        family=LANES,
        where=lambda family, kind, **_: kind == "weights" or is_of_classes(family),
    )
)
def test_each_weighted_lane_is_what_it_is_alone(family, dtype, kind, is_sparse, random):
    together, alone = LANES[family]
    is_classifier = is_of_classes(family)
    for d, n_folds in ((11, 5), (200, 60)):
        X = rows_of(60, d, dtype, 0.05 if is_sparse else 0.6)[is_sparse]
        given = weights_of(60, dtype)
        codes = np.random.default_rng(1).integers(0, 3, 60).astype(np.int32)
        y, n_classes = (codes, 3) if is_classifier else (codes.astype(dtype), None)
        kernels = [make(X, y, n_classes) for make in (together, *alone)]
        for kernel in kernels:
            weigh(kernel, kind, given)
        lanes, *others = [walked(kernel, n_folds, random, 3) for kernel in kernels]
        assert np.any(lanes)
        for lane, other in zip(lanes, others, strict=True):
            np.testing.assert_array_equal(lane, other[0])
            assert np.array_equal(np.signbit(lane), np.signbit(other[0]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_number_of_pegasos_is_minus_zero(dtype):
    # The projection at row 1 is multiplied into the tiny number that row 0 has added.
    X = np.zeros((2, 8), dtype)
    X[0, 5], X[1, 0] = -1, 1
    kernel = Pegasos(X, np.ones(2, np.int32), 2, [1e-6], False, True)
    kernel.weigh(np.array([np.finfo(dtype).smallest_subnormal, 1], dtype))
    state = fresh(kernel)
    kernel.update(state, 0, 1)
    z = state[64 : 64 + X[0].nbytes].view(dtype)
    assert z[5] < 0
    kernel.update(state, 1, 2)
    assert z[0] > 0 and z[5] == 0
    assert not np.any(np.signbit(z))


# What weights mean.


@pytest.mark.parametrize(("family", "dtype", "form"), CASES)
def test_weights_of_1_change_no_bit(family, dtype, form):
    values = VALUES.astype(dtype)
    X = pad_rows(
        sparse.csr_array(values) if form == "sparse" else values,
        np.arange(N_ROWS, dtype=np.uint32),
        True,
    )
    options = {
        "y_type": lambda y: y if y.dtype == np.int32 else y.astype(dtype),
        "is_sparse": form == "sparse",
    }
    make, _ = FAMILIES[family]
    for plain, weighted in zip(make(X, **options), make(X, **options), strict=True):
        weighted.weigh(np.ones(N_ROWS, dtype))
        assert trained(weighted) == trained(plain)


@pytest.mark.parametrize("step_size", [0.05, 0.0])
@pytest.mark.parametrize("loss", ["hinge", "log_loss", "squared_error", "huber"])
def test_a_row_of_weight_0_adds_nothing(loss, step_size):
    # Without penalty, decay and averaging, the number of steps does not matter.
    dense, _ = rows_of(80, 9, np.float64)
    y = np.random.default_rng(1).integers(0, 2, 80).astype(np.int32)
    targets, n_classes = (y, 2) if loss in ("hinge", "log_loss") else (y - 0.5, None)
    dense[::3] *= 1000
    given = np.where(np.arange(80) % 3 == 0, 0.0, 1.0)
    kernel = SGD(dense, targets, n_classes, loss, 0.1, 0.0, False, 0, [(0.0, step_size, inf)])
    without = SGD(dense, targets, n_classes, loss, 0.1, 0.0, False, 0, [(0.0, step_size, inf)])
    kernel.weigh(given)
    state, state_without = fresh(kernel), fresh(without)
    kernel.update(state, 0, 80)
    rows_in_order = np.flatnonzero(given).astype(np.uint32)
    without.update(state_without, 0, len(rows_in_order), rows_in_order)
    found = model_of(kernel, state, np.float64)
    assert np.any(found)
    assert np.array_equal(found, model_of(without, state_without, np.float64))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=30, max_size=30), st.integers(0, 9))
def test_a_weight_in_kmeans_is_that_many_rows_at_once(repeats, seed):
    X, _ = rows_of(30, 3, np.float64, seed=seed)
    X[9] = X[4]
    weighted, repeated = KMeans(X, 4), KMeans(X, 4)
    weighted.weigh(np.array(repeats, float))
    state, state_of_repeated = fresh(weighted), fresh(repeated)
    weighted.update(state, 0, 30)
    rows_in_order = np.repeat(np.arange(30, dtype=np.uint32), repeats)
    repeated.update(state_of_repeated, 0, len(rows_in_order), rows_in_order)
    models = []
    for kernel, of in ((weighted, state), (repeated, state_of_repeated)):
        models.append(aligned_empty((kernel.model_bytes,)))
        kernel.read_out(of, models[-1])
    np.testing.assert_allclose(*(model.view(np.float64) for model in models), atol=1e-12)
    counts = weighted.counts(state)
    assert counts == repeated.counts(state_of_repeated)
    assert all(isinstance(count, int) for count in counts)


@pytest.mark.parametrize("full", [False, True])
@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=20, max_size=20), st.integers(0, 99))
def test_a_weight_of_a_density_is_that_many_rows_anywhere(full, repeats, seed):
    X, _ = rows_of(20, 3, np.float64, seed=seed)
    if not any(repeats):
        repeats[3] = 1
    weighted, repeated = Gaussian(X, 3, full, 1e-3), Gaussian(X, 3, full, 1e-3)
    weighted.weigh(np.array(repeats, float))
    state, state_of_repeated = fresh(weighted), fresh(repeated)
    rows = np.repeat(np.arange(20, dtype=np.uint32), repeats)
    weighted.update(state, 0, 20)
    rows_in_order = np.random.default_rng(seed).permutation(rows)
    repeated.update(state_of_repeated, 0, len(rows_in_order), rows_in_order)
    assert weighted.n_seen(state) == 20
    out, out_of_repeated = np.zeros((20, 1)), np.zeros((20, 1))
    for kernel, of, to in ((weighted, state, out), (repeated, state_of_repeated, out_of_repeated)):
        model = aligned_empty((kernel.model_bytes,))
        kernel.test(of, model, 0, 20, to.view(np.uint8))
    np.testing.assert_allclose(out, out_of_repeated, rtol=1e-9)
    # A row of weight 0 is absent, bit for bit.
    absent = fresh(weighted)
    rows_in_order = np.flatnonzero(repeats).astype(np.uint32)
    weighted.update(absent, 0, len(rows_in_order), rows_in_order)
    assert np.array_equal(absent[8:], state[8:])


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_weighted_density_is_that_of_weighted_moments(dtype, full):
    X, _ = rows_of(40, 7, dtype)
    given = weights_of(40, dtype)
    kernel, twin = Gaussian(X, 8, full, 0.1), reference.Gaussian(full, 0.1)
    kernel.weigh(given)
    state = fresh(kernel)
    kernel.update(state, 0, 40)
    for x, weight in zip(X, given, strict=True):
        twin.train(x, float(weight))
    out = np.zeros((40, 1), dtype)
    kernel.test(state, aligned_empty((kernel.model_bytes,)), 0, 40, out.view(np.uint8))
    expected = [twin.log_density(x) for x in X]
    np.testing.assert_allclose(out[:, 0], expected, rtol=1e-4 if dtype == np.float32 else 1e-11)
