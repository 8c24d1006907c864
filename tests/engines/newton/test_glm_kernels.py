"""The loops of generalised linear models, beside the same in NumPy."""

from __future__ import annotations

from beside import others_run_during
import numpy as np
from pairs import pairs
import pytest
from scipy import sparse

from optuna_treecv.engines.newton.kernels import glm


@pytest.mark.parametrize("has_ones", [False, True])
@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_products_of_sparse_rows(number: type, has_ones: bool) -> None:
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((60, 9)) < 0.3, rng.normal(size=(60, 9)), 0).astype(number)
    dense[:3], dense[3] = 0, 1
    rows, weights = sparse.csr_array(dense), rng.normal(size=60)
    weights[[0, 10]] = 0
    columns = np.column_stack([dense, np.ones(60)]) if has_ones else dense
    expected = columns.T.astype(float) * weights @ columns
    products, size = np.zeros(expected.shape), len(expected)
    parts = rows.data, rows.indices.astype(np.int32), rows.indptr.astype(np.int64)
    for times in (1, 2):  # they are added to what is there
        glm.add_products(*parts, weights, 9, products)
        np.testing.assert_allclose(products, times * expected, rtol=1e-13, atol=1e-13)
        assert np.array_equal(products, products.T)
    for wrong in (weights[1:], weights[:0]):
        with pytest.raises(ValueError, match="one entry for each row"):
            glm.add_products(*parts, wrong, 9, products)
    with pytest.raises(ValueError, match="products must be square"):
        glm.add_products(*parts, weights, size - 2, products)


@pytest.mark.parametrize(
    *pairs(
        n_lanes=[1, 2, 3, 5, 8, 13, 16, 21, 40, 43, 100],
        density=[0.0, 0.5],
        number=[np.float32, np.float64],
        where=lambda n_lanes, density, **_: density > 0 or n_lanes == 21,
    )
)
def test_products_of_sparse_rows_and_lanes(number: type, density: float, n_lanes: int) -> None:
    rng = np.random.default_rng(0)
    rows = sparse.random_array((50, 30), density=density, format="csr", random_state=rng).astype(
        number
    )
    of_columns = rng.normal(size=(30, n_lanes)).astype(number)
    parts = rows.data, rows.indices.astype(np.int32), rows.indptr.astype(np.int64)
    of_rows = np.full((50, n_lanes), 9, number)
    glm.multiply_sparse(*parts, of_columns, of_rows, False)
    rtol = 1e-4 if number == np.float32 else 1e-12
    np.testing.assert_allclose(of_rows, rows @ of_columns, rtol, atol=rtol)
    expected = of_columns + rows.T @ of_rows
    glm.multiply_sparse(*parts, of_columns, of_rows, True)
    np.testing.assert_allclose(of_columns, expected, rtol, atol=rtol)
    for wrong in (of_rows[1:], of_rows[:0]):
        with pytest.raises(ValueError, match="one row for each sparse row"):
            glm.multiply_sparse(*parts, of_columns, wrong, True)
    with pytest.raises(ValueError, match="the same number of columns"):
        glm.multiply_sparse(*parts, np.empty((30, n_lanes + 1), number), of_rows, False)


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_products_of_columns(number: type) -> None:
    X = np.random.default_rng(0).normal(size=(7, 5)).astype(number)
    products = np.empty((7, 15), number)
    glm.multiply_columns(X, products)
    first, second = np.triu_indices(5)
    assert np.array_equal(products, X[:, first] * X[:, second])
    for wrong in (products[1:], products[:, 1:].copy()):
        with pytest.raises(ValueError, match="one column for each pair"):
            glm.multiply_columns(X, wrong)


@pytest.mark.parametrize("number", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(90, 1), (40, 37), (3, 100), (0, 3)])
def test_slopes_of_logistic_losses(number: type, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, shape[0]).astype(np.int32)
    signs = (2 * y - 1)[:, None]
    for width in (1e-3, 1, 30, 1e5):
        z = (width * rng.normal(size=shape)).astype(number)
        ours = z.copy()
        glm.logistic_slopes(ours, y)
        with np.errstate(over="ignore"):
            expected = -signs / (1 + np.exp(signs * z.astype(np.longdouble)))
        # Below the range of exp they have lost their digits, and are as small as numbers are.
        smallest = 4 * np.finfo(number).tiny
        np.testing.assert_allclose(ours, expected, rtol=4 * np.finfo(number).eps, atol=smallest)
    z = np.array([[np.nan, np.inf, -np.inf]] * 2, number)
    glm.logistic_slopes(z, np.array([0, 1], np.int32))
    np.testing.assert_allclose(z, [[np.nan, 1, 0], [np.nan, 0, -1]], atol=1e-37)
    with pytest.raises(ValueError, match="one entry for each row"):
        glm.logistic_slopes(z, np.zeros(3, np.int32))


def twin(z: np.ndarray, y: np.ndarray | None) -> np.ndarray:
    shares = np.exp(z.astype(np.longdouble) - z.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    if y is not None:
        shares[np.arange(len(y)), y] -= 1
    return shares


@pytest.mark.parametrize("number", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(50, 3, 1), (40, 7, 37), (3, 2, 100), (0, 3, 4), (5, 1, 2)])
def test_softmax(number: type, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    for width in (1e-3, 1, 30, 1e5):
        z = (width * rng.normal(size=shape)).astype(number)
        for y in (None, rng.integers(0, shape[1], shape[0]).astype(np.int32)):
            ours = z.copy()
            glm.softmax(ours, y)
            np.testing.assert_allclose(ours, twin(z, y), rtol=0, atol=4 * np.finfo(number).eps)
    with pytest.raises(ValueError, match="one entry for each row"):
        glm.softmax(z, np.zeros(shape[0] + 1, np.int32))


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_numbers_that_are_not_finite_reach_all_shares_of_a_model(number: type) -> None:
    z = np.zeros((1, 3, 40), number)
    z[0, [0, 1, 2], [3, 4, 5]] = np.nan, np.inf, -np.inf
    glm.softmax(z)
    assert np.all(np.isnan(z[:, :, [3, 4]]))
    assert np.all(z[:, :2, 5] == 0.5) and z[0, 2, 5] < 1e-30
    assert np.array_equal(np.isfinite(z).all(axis=(0, 1)), ~np.isin(np.arange(40), [3, 4]))


@pytest.mark.parametrize(("number", "begin"), [(np.float32, -87), (np.float64, -708)])
def test_exponentials_are_near(number: type, begin: float) -> None:
    # Where e^x is below half a unit in the last place of 1, it is the share of a class beside 0.
    end = np.log(np.finfo(number).eps / 4)
    x = np.random.default_rng(0).uniform(begin, end, 200_000).astype(number)
    z = np.stack([np.zeros_like(x), x])[None]
    glm.softmax(z)
    exact = np.exp(x.astype(np.longdouble))
    assert np.all(np.abs(z[0, 1] - exact) < 2 * np.spacing(exact.astype(number)))


@pytest.mark.slow
def test_other_threads_run_meanwhile() -> None:
    z = np.random.default_rng(0).normal(size=(40_000, 3, 30))
    assert others_run_during(lambda: glm.softmax(z))
    rows = sparse.random_array(
        (10_000, 100), density=0.5, format="csr", random_state=np.random.default_rng(0)
    )
    weights, products = np.ones(10_000), np.zeros((100, 100))
    parts = rows.data, rows.indices.astype(np.int32), rows.indptr.astype(np.int64)
    assert others_run_during(lambda: glm.add_products(*parts, weights, 100, products))
    of_rows = np.ones((10_000, 100))
    assert others_run_during(lambda: glm.multiply_sparse(*parts, products, of_rows, True))
