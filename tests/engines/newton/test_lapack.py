"""The routines of LAPACK that let other threads run."""

from __future__ import annotations

from beside import others_run_during
import numpy as np
import pytest

from optuna_treecv._kernels import lapack


def positive(n, seed=0):
    rows = np.random.default_rng(seed).normal(size=(n + 3, n))
    return rows.T @ rows


@pytest.mark.parametrize("n", [2, 3, 40, 150])
def test_tridiagonal(n):
    a = positive(n)
    reflectors, diagonal, beside, tau = lapack.tridiagonal(a)
    Q = np.identity(n)
    for i in range(n - 1):  # Q = H_1 H_2 ..., H_i = I - tau v v'
        v = np.concatenate([np.zeros(i + 1), [1], reflectors[i + 2 :, i]])
        Q = Q - tau[i] * np.outer(Q @ v, v)
    T = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    np.testing.assert_allclose(Q @ T @ Q.T, a, atol=1e-12 * np.abs(a).max())


@pytest.mark.parametrize("n", [1, 2, 40])
def test_cholesky(n):
    a, b = positive(n), np.random.default_rng(1).normal(size=(n, 3))
    factor = lapack.cholesky(a)
    np.testing.assert_allclose(np.tril(factor), np.linalg.cholesky(a), atol=1e-12 * a.max())
    solved, diagonal = lapack.solve_positive(a, 0.5, b)
    np.testing.assert_allclose(a @ solved + 0.5 * solved, b, atol=1e-10)
    shifted = np.linalg.cholesky(a + 0.5 * np.identity(n))
    np.testing.assert_allclose(diagonal, shifted.diagonal(), rtol=1e-10)
    assert not lapack.solve_positive(-a, 0.0, b)[1].any()
    inverse = lapack.inverse_of_triangle(factor)
    np.testing.assert_allclose(inverse @ np.tril(factor), np.identity(n), atol=1e-12)
    assert lapack.cholesky(-a) is None


def test_pivoted_cholesky():
    rows = np.random.default_rng(0).normal(size=(4, 9))
    a = rows.T @ rows
    factor, pivots, rank = lapack.pivoted_cholesky(a)
    assert rank == 4
    upper = np.triu(factor)[:rank]
    np.testing.assert_allclose(upper.T @ upper, a[np.ix_(pivots, pivots)], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tridiagonal", "cholesky", "pivoted_cholesky"])
def test_other_threads_run_meanwhile(name):
    a = positive(1200)
    assert others_run_during(lambda: getattr(lapack, name)(a))
