"""The equations (X'X + alpha I) z = X'y for many alphas, beside a solver in long double."""

from __future__ import annotations

import numpy as np
import pytest

from optuna_treecv.engines.sums.equations import compute_bases
from optuna_treecv.engines.sums.equations import Penalties

ALPHAS = np.array([1e-6, 1e-2, 1.0, 1e3, 1e8])


def solve_exactly(X, y, alpha):
    """Return the solution by Householder's QR of the stacked rows, in long double."""
    wide = np.longdouble
    n = X.shape[1]
    rows = np.vstack([X, np.sqrt(wide(alpha)) * np.eye(n)]).astype(wide)
    targets = np.vstack([y, np.zeros((n, y.shape[1]))]).astype(wide)
    for j in range(n):
        v = rows[j:, j].copy()
        v[0] += np.copysign(np.sqrt(v @ v), v[0])
        v /= np.sqrt(v @ v)
        rows[j:] -= 2 * np.outer(v, v @ rows[j:])
        targets[j:] -= 2 * np.outer(v, v @ targets[j:])
    z = np.zeros((n, y.shape[1]), wide)
    for j in range(n)[::-1]:
        z[j] = (targets[j] - rows[j, j + 1 :] @ z[j + 1 :]) / rows[j, j]
    return z.astype(float)


def rows_of(n, scales, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3 * n, n)) * scales
    return X, rng.normal(size=(3 * n, 2)) + (X / scales).sum(axis=1, keepdims=True)


SCALES = {"alike": np.ones, "far apart": lambda n: np.geomspace(1e-4, 1e4, n)}


@pytest.mark.parametrize("n", [1, 7, 60])  # 60: too many columns for a batch of matrices
@pytest.mark.parametrize("scales", SCALES)
def test_solutions_are_those_of_the_rows(n, scales):
    X, y = rows_of(n, SCALES[scales](n))
    penalties = Penalties(np.empty(Penalties.size(n, 2)), n, 2)
    penalties.factor(X.T @ X, X.T @ y, ALPHAS)
    for alpha, solution in zip(ALPHAS, penalties.solve(ALPHAS), strict=True):
        outputs, expected = X @ solution, X @ solve_exactly(X, y, alpha)
        np.testing.assert_allclose(outputs, expected, atol=1e-9 * np.abs(y).max())


@pytest.mark.parametrize("seed", range(5))  # not every singular matrix has a small pivot
@pytest.mark.parametrize("n", [7, 60])
@pytest.mark.parametrize("scales", SCALES)
def test_dependent_columns_have_no_solution_without_a_penalty(n, scales, seed):
    X, y = rows_of(n, SCALES[scales](n), seed)
    X[:, 2] = X[:, 1] * (X[:, 2].std() / X[:, 1].std())
    penalties = Penalties(np.empty(Penalties.size(n, 2)), n, 2)
    alphas = np.array([0.0, 1.0])
    penalties.factor(X.T @ X, X.T @ y, alphas)
    without, with_penalty = penalties.solve(alphas)
    assert np.isnan(without).all() and np.isfinite(with_penalty).all()


@pytest.mark.parametrize("n", [7, 60])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("is_dependent", [False, True])
def test_each_alpha_has_a_basis_with_its_solution(n, scales, is_dependent):
    """Alphas that lie far apart need several bases; dependent columns need those of the rows."""
    X, y = rows_of(n, SCALES[scales](n))
    if is_dependent:
        X[:, 2] = X[:, 1] * (X[:, 2].std() / X[:, 1].std())

    def triangle():
        return np.linalg.qr(np.hstack([X, y]), mode="r")

    bases = compute_bases(X.T @ X, X.T @ y, ALPHAS, triangle)
    indices = np.concatenate([basis.alpha_indices for basis in bases])
    assert sorted(indices) == list(range(len(ALPHAS)))
    if scales == "far apart" and not is_dependent:
        assert len(bases) > 1
    for basis in bases:
        for index, shrinks in zip(basis.alpha_indices, basis.shrinks, strict=True):
            outputs = X @ (basis.vectors @ (shrinks[:, None] * basis.projected))
            expected = X @ solve_exactly(X, y, ALPHAS[index])
            np.testing.assert_allclose(outputs, expected, atol=1e-7 * np.abs(y).max())
