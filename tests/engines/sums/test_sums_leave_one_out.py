"""Ridge regression without single rows or small chunks, beside models fitted without them."""

from __future__ import annotations

from dataclasses import replace

from exact_chunks import kept
import numpy as np
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_val_predict
from optuna_treecv.engines.sums.equations import Penalties
from optuna_treecv.engines.sums.equations import RidgeRows
from optuna_treecv.engines.sums.left_out import HeldOutRidge
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.layout import RowLayout

ALPHAS = [1e-3, 0.1, 1.0, 30.0, 1e4]
SCALERS = {
    "none": None,
    "scaler": StandardScaler(),
    "no mean": StandardScaler(with_mean=False),
    "no std": StandardScaler(with_std=False),
}


def left_out(X, y, alphas, bounds=None, weights=None, fit_intercept=True, scaler=None, n_jobs=1):
    n_rows = X.shape[0]
    y = np.asarray(y, dtype=np.float64).reshape(n_rows, -1)
    order = np.arange(n_rows, dtype=np.uint32)
    layout = RowLayout(padded=True, sparse=True, target="value")
    rows = replace(Data(X, y[:, 0]).prepare(layout, order), targets=y, weights=weights)
    of = RidgeRows(rows, fit_intercept, scaler)
    chunks = Chunks(n_rows, np.arange(n_rows + 1) if bounds is None else np.asarray(bounds))
    return HeldOutRidge(of, np.asarray(alphas, dtype=np.float64), chunks, kept, n_jobs)


def predictions(tested):
    return np.concatenate([outputs for _, outputs in tested], axis=1)


def single_rows(*args, most_rows=64, **kwargs):
    return predictions(left_out(*args, **kwargs).test(most_rows, True))


def refits(X, y, alphas, chunks, weights=None, fit_intercept=True, scaler=None):
    """Return what models that are fitted without each chunk, by QR, say of its rows."""
    X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64).reshape(len(X), -1)
    weights = np.ones(len(X)) if weights is None else weights
    said = np.empty((len(alphas), sum(len(chunk) for chunk in chunks), y.shape[1]))
    end = 0
    for chunk in chunks:
        begin, end = end, end + len(chunk)
        train = np.setdiff1d(np.arange(len(X)), chunk)
        A, B, b = X[train], y[train], X[chunk]
        if scaler is not None:
            fitted = clone(scaler).fit(A)
            A, b = fitted.transform(A), fitted.transform(b)
        w, base = weights[train], np.zeros(y.shape[1])
        if fit_intercept:
            mean, base = np.average(A, axis=0, weights=w), np.average(B, axis=0, weights=w)
            A, B, b = A - mean, B - base, b - mean
        roots = np.sqrt(w)[:, None]
        for point, alpha in enumerate(alphas):
            upper = np.vstack([roots * A, np.sqrt(alpha) * np.identity(A.shape[1])])
            lower = np.vstack([roots * B, np.zeros((A.shape[1], B.shape[1]))])
            Q, R = np.linalg.qr(upper)
            said[point, begin:end] = base + b @ np.linalg.solve(R, Q.T @ lower)
    return said


def numbers(n_rows=40, n_targets=2, seed=0):
    """Return rows with a far one, a constant column, and a dummy that is set in one row."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 7)) * [1, 30, 1, 1, 1, 1, 1]
    X[:, 2] += 5
    X[:, 3] = rng.random(n_rows) < 0.2
    X[3] *= 20
    X[:, 4] = np.arange(n_rows) == 7
    X[:, 5] = 3.0
    y = X[:, :1] + rng.normal(size=(n_rows, n_targets))
    y[11] *= 1000
    weights = rng.random(n_rows) * (rng.random(n_rows) < 0.9)
    return X, y, weights


def each(n_rows):
    return [np.array([row]) for row in range(n_rows)]


def assert_near(found, expected, y, rtol=1e-10):
    assert found.shape == expected.shape
    atol = rtol * np.std(y)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(scaler=SCALERS, fit_intercept=[True, False], is_weighted=[False, True])
)
def test_models_without_single_rows(scaler, fit_intercept, is_weighted):
    X, y, weights = numbers()
    options = {"fit_intercept": fit_intercept, "scaler": SCALERS[scaler]}
    options["weights"] = weights if is_weighted else None
    found = single_rows(X, y, ALPHAS, most_rows=17, **options)
    assert_near(found, refits(X, y, ALPHAS, each(len(X)), **options), y)


@pytest.mark.parametrize("scaler", [None, StandardScaler()])
@pytest.mark.parametrize("kind", ["float32", "sparse"])
def test_float32_and_sparse_rows(kind, scaler):
    X, y, _ = numbers()
    X = (X * (np.abs(X) > 0.3)).astype(np.float32 if kind == "float32" else np.float64)
    found = single_rows(X if kind == "float32" else sparse.csr_array(X), y, ALPHAS, scaler=scaler)
    assert_near(found, refits(X, y, ALPHAS, each(len(X)), scaler=scaler), y)


@pytest.mark.parametrize("scaler", [None, StandardScaler()])
def test_many_rows_in_several_parts(scaler):
    """The parts of all rows stay as they are while models without some rows are made."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 3))
    rare = [0, 1023, 2500, 4999]
    for i, row in enumerate(rare):
        X[row, i % 3] = 10.0 ** (i + 3)
    y = X[:, 0] + rng.normal(size=5000)
    models = left_out(X, y, [1e-2, 1e3], scaler=scaler)
    found = predictions(models.test(3000, True))
    rows = [*rare, 17, 4000]
    expected = refits(X, y, [1e-2, 1e3], [np.array([row]) for row in rows], scaler=scaler)
    assert_near(found[:, rows], expected, y, 1e-11)
    np.testing.assert_array_equal(predictions(models.test(3000, True)), found)


def test_corrections_in_float32_are_small_enough():
    """Of 3,000 rows, no scale changes much when one is left out."""
    rng = np.random.default_rng(0)
    X, alphas = rng.normal(size=(3000, 20)), np.logspace(-4, 7, 12)
    X[:, 3] = rng.random(3000) < 0.003
    y = X[:, 0] + rng.normal(size=3000)
    rows = [0, 1, 2, int(np.flatnonzero(X[:, 3] != X[0, 3])[0])]
    found = single_rows(X, y, alphas, scaler=StandardScaler(), most_rows=4096)[:, rows]
    chunks = [np.array([row]) for row in rows]
    expected = refits(X, y, alphas, chunks, scaler=StandardScaler())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("max_bytes", [2**26, 0])  # 0: too little memory for the inverses
def test_few_rows_with_a_scaler(max_bytes, monkeypatch):
    """Each row changes the scales much, so that series are long."""
    monkeypatch.setattr("optuna_treecv.engines.sums.left_out._MAX_BYTES", max_bytes)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(9, 3)), rng.normal(size=9)
        found = single_rows(X, y, ALPHAS, scaler=StandardScaler())
        assert_near(found, refits(X, y, ALPHAS, each(9), scaler=StandardScaler()), y, 1e-11)


def test_targets_without_residuals():
    X = np.random.default_rng(0).normal(size=(50, 3))
    y = np.column_stack([X @ [1, 2, 3], np.full(50, 4.0), np.zeros(50)])
    found = single_rows(X, y, [1e-9, 1.0], scaler=StandardScaler())
    assert_near(found, refits(X, y, [1e-9, 1.0], each(50), scaler=StandardScaler()), y, 1e-11)


@pytest.mark.parametrize("scaler", [None, StandardScaler()])
def test_a_far_row_does_not_change_the_model_that_is_trained_without_it(scaler):
    X, y, _ = numbers(n_targets=1)
    for row, times_X, times_y in ((0, 1e9, 1.0), (7, 1e9, 1e9), (20, 1.0, 1e9)):
        far, targets = X.copy(), y.copy()
        far[row] *= times_X
        targets[row] *= times_y
        found = single_rows(far, targets, [0.1, 10.0], scaler=scaler)[:, row]
        expected = refits(far, targets, [0.1, 10.0], [np.array([row])], scaler=scaler)[:, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_solutions_for_scales_from_a_thirtieth_to_thirty():
    """Orthogonal transformations would cost three digits here."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6)) @ (np.identity(6) + 0.3 * rng.normal(size=(6, 6)))
    y = X @ rng.normal(size=6) + rng.normal(size=120)
    X = (X - X.mean(axis=0)) * 10.0 ** np.linspace(-1.5, 1.5, 6)
    y = y - y.mean()
    alphas = np.array([1e-3, 1.0, 1e2])
    equations = Penalties(np.empty(Penalties.size(6, 1)), 6, 1)
    equations.factor(X.T @ X, (X.T @ y)[:, None], alphas)
    A = X.astype(np.longdouble)
    for alpha, coef in zip(alphas, equations.solve(alphas), strict=True):
        gram, exact = A.T @ A + alpha * np.identity(6), np.zeros(6, np.longdouble)
        for _ in range(4):  # residuals in long double refine solutions in float64
            exact += np.linalg.solve(gram.astype(float), (A.T @ y - gram @ exact).astype(float))
        assert np.abs(A @ (coef[:, 0] - exact)).max() < 1e-13 * np.std(y)


@pytest.mark.parametrize(
    *pairs(
        bounds=[range(0, 61, 3), (0, 4, 8, 9, 11, 16, 30, 60)],
        fit_intercept=[True, False],
        is_weighted=[False, True],
    )
)
def test_models_without_small_chunks(bounds, fit_intercept, is_weighted):
    X, y, weights = numbers(60)
    options = {"fit_intercept": fit_intercept, "weights": weights if is_weighted else None}
    models = left_out(X, y, ALPHAS, bounds=bounds, **options)
    chunks = np.split(np.arange(60), bounds[1:-1])
    assert_near(predictions(models.test(20, False)), refits(X, y, ALPHAS, chunks, **options), y)


def test_no_number_depends_on_threads():
    X, y, _ = numbers(200)
    one, several = (
        single_rows(X, y, ALPHAS, scaler=StandardScaler(), n_jobs=n_jobs) for n_jobs in (1, 3)
    )
    np.testing.assert_array_equal(one, several)


def test_alpha_0_and_weights_that_leave_no_rows():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    alphas = [0.0, 1e-3, 1e8]
    assert_near(single_rows(X, y, alphas), refits(X, y, alphas, each(30)), y)
    single = np.c_[X[:, :2], np.arange(30) == 4]  # without row 4 the column is 0
    some = np.arange(30) == 3.0
    for rows, alphas, weights, message in (
        (single, [0.0], None, "alpha must be above 0 .* within a training set"),
        (X[:, [0, 1, 1]], [0.0], None, "alpha must be above 0 .* within the rows"),
        (X, [1.0], some * 1.0, "sample_weight must be above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            single_rows(rows, y, alphas, weights=weights)


@pytest.mark.slow
@pytest.mark.parametrize(*pairs(fit_intercept=[True, False], is_weighted=[False, True]))
def test_small_chunks_behind_a_scaler_that_centres_alone(fit_intercept, is_weighted):
    """Without an intercept, the mean that is subtracted differs between chunks."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 12)) + 3, rng.normal(size=40) + 5
    weights = rng.random(40) if is_weighted else None
    model = make_pipeline(StandardScaler(with_std=False), Ridge(fit_intercept=fit_intercept))
    cv = KFold(20)
    found = tree_cross_val_predict(model, X, y, cv=cv, sample_weight=weights, method="exact")
    params = {"ridge__sample_weight": weights} if is_weighted else None
    expected = cross_val_predict(model, X, y, cv=cv, params=params)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
