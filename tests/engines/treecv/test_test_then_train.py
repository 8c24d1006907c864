"""Kernels test each row before they train on it, and nothing else changes."""

from __future__ import annotations

from kernel_cases import CLASSIFIERS
from kernel_cases import FLOATS
from kernel_cases import fresh
from kernel_cases import name_of
from kernel_cases import prepared
from kernel_cases import REGRESSORS
from kernel_cases import takes_sparse
import numpy as np
from pairs import pairs
import pytest
from scipy import sparse

from optuna_treecv.engines.treecv.kernels.kmeans import KMeans
from optuna_treecv.rows.memory import aligned_empty
from optuna_treecv.rows.memory import pad_rows

N_ROWS = 120
ORDER = np.random.default_rng(2).permutation(N_ROWS).astype(np.uint32)[:70]
TRAINED = [*range(50), *ORDER]


def said_by(kernel, state, start, stop, order=None):
    out = np.full((stop - start, kernel.n_outputs), np.nan, f"f{kernel.itemsize}")
    kernel.test_then_train(state, start, stop, order, out.view(np.uint8))
    return out


def said_along(kernel, state):
    """Train on the rows 0 to 49 and on those of an order, and return what was said of them."""
    return np.concatenate([said_by(kernel, state, 0, 50), said_by(kernel, state, 0, 70, ORDER)])


def twins_say(twin, settings, X, targets, row_weights):
    model = twin(*settings, np.zeros(X.shape[1], X.dtype))
    return [model.train(X[row], targets[row], row_weights[row]) for row in TRAINED]


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(weighed=[False, True], dtype=FLOATS, d=[1, 8, 30], case=CLASSIFIERS, n_classes=[2, 4]),
    ids=name_of,
)
def test_classifiers_say_what_their_twins_say(case, dtype, d, n_classes, weighed):
    make, twin, settings = case
    X = prepared(N_ROWS, d, dtype)
    rng = np.random.default_rng(1)
    y = rng.integers(0, n_classes, N_ROWS).astype(np.int32)
    row_weights = rng.choice([0.0, 0.5, 2.0], N_ROWS) if weighed else np.ones(N_ROWS)
    kernel = make(X, y, n_classes, *settings)
    if weighed:
        kernel.weigh(row_weights.astype(dtype))
    state, trained = fresh(kernel), fresh(kernel)
    said = said_along(kernel, state)
    for c in range(kernel.n_outputs):
        signs = np.where(y == c + (n_classes == 2), 1, -1)
        expected = twins_say(twin, settings, X, signs, row_weights)
        assert np.array_equal(said[:, c], expected)
    kernel.update(trained, 0, 50)
    kernel.update(trained, 0, len(ORDER), ORDER)
    assert np.array_equal(state, trained)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", REGRESSORS, ids=name_of)
def test_regressors_say_what_their_twins_say(case, dtype):
    make, twin, settings = case
    X = prepared(N_ROWS, 9, dtype)
    y = np.random.default_rng(1).normal(size=N_ROWS).astype(dtype)
    kernel = make(X, y, None, *settings)
    state, trained = fresh(kernel), fresh(kernel)
    said = said_along(kernel, state)
    targets = [float(target) for target in y]
    assert np.array_equal(said[:, 0], twins_say(twin, settings, X, targets, np.ones(N_ROWS)))
    kernel.update(trained, 0, 50)
    kernel.update(trained, 0, len(ORDER), ORDER)
    assert np.array_equal(state, trained)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CLASSIFIERS + REGRESSORS, ids=name_of)
def test_what_is_said_is_what_the_model_says_in_a_test(case, dtype):
    # The second time the row comes, its model is read out and tested as at a leaf of the tree.
    make, _, settings = case
    n_classes = 3 if case in CLASSIFIERS else None
    X = prepared(N_ROWS, 9, dtype)
    rng = np.random.default_rng(1)
    y = rng.normal(size=N_ROWS).astype(dtype)
    if n_classes is not None:
        y = rng.integers(0, n_classes, N_ROWS).astype(np.int32)
    kernel = make(X, y, n_classes, *settings)
    state = fresh(kernel)
    said = said_along(kernel, fresh(kernel))
    tested = np.empty((N_ROWS, kernel.n_outputs), dtype)
    model = aligned_empty((kernel.model_bytes,))
    expected = []
    for row in TRAINED:
        kernel.test(state, model, row, row + 1, tested.view(np.uint8))
        expected.append(tested[row].copy())
        kernel.update(state, row, row + 1)
    rounding = 1e-9 if dtype is np.float64 else 1e-2
    np.testing.assert_allclose(said, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("case", filter(takes_sparse, CLASSIFIERS), ids=name_of)
def test_sparse_rows_say_what_dense_rows_say(case):
    make, _, settings = case
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N_ROWS, 30)) * (rng.random((N_ROWS, 30)) < 0.2)
    y = rng.integers(0, 3, N_ROWS).astype(np.int32)
    order = np.arange(N_ROWS, dtype=np.uint32)
    said = []
    for given in (X, sparse.csr_array(X)):
        kernel = make(pad_rows(given, order, True), y, 3, *settings)
        said.append(said_along(kernel, fresh(kernel)))
    assert np.array_equal(*said)


def test_arguments_are_checked():
    X = prepared(20, 3, np.float64)
    make, _, settings = REGRESSORS[0]
    kernel = make(X, np.zeros(20), None, *settings)
    state = fresh(kernel)
    out = np.empty((5, 8), np.uint8)
    for start, stop in ((-1, 4), (3, 3), (16, 21)):
        with pytest.raises(IndexError, match="^rows "):
            kernel.test_then_train(state, start, stop, None, out)
    with pytest.raises(IndexError, match="row 20"):
        kernel.test_then_train(state, 0, 1, np.array([20], np.uint32), out)
    with pytest.raises(ValueError, match="room"):
        kernel.test_then_train(state, 0, 6, None, out)
    with pytest.raises(ValueError, match="bytes"):
        kernel.test_then_train(state[:-1], 0, 5, None, out)
    clusters = KMeans(X, 2)
    assert kernel.tests_rows
    assert not clusters.tests_rows
    with pytest.raises(TypeError, match="^this kernel"):
        clusters.test_then_train(fresh(clusters), 0, 5, None, np.empty((5, 16), np.uint8))
