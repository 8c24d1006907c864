"""Solves (G + alpha I) z = b for many alphas, with one factorisation of G.

G = Q T Q' with a tridiagonal T takes O(d^3) once; each alpha then takes O(d) for T + alpha I and
O(d^2) for the product with Q.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from optuna_treecv._kernels.lapack import cholesky
from optuna_treecv._kernels.lapack import inverse_of_triangle
from optuna_treecv._kernels.lapack import rotate
from optuna_treecv._kernels.lapack import solve_positive
from optuna_treecv._kernels.lapack import solve_tridiagonal
from optuna_treecv._kernels.lapack import tridiagonal
from optuna_treecv.learners.exact.moments import views

# Orthogonal transformations mix columns, so that rounding errors are those of the largest one.
# Where the diagonal varies more than this, each alpha has a Cholesky factorisation of its own,
# which the scales of the columns do not hurt.
_MOST_RATIO = 1e3

#: A pivot is what is left of a column's squares after the columns before it. With a smaller share
#: than this it consists of rounding errors.
LEAST_PIVOT = 1e-13

# The greatest condition number of an equation relative to its reference alpha.
_MOST_CONDITION = 1e4

# Up to so many columns, one call of NumPy for all alphas takes less time than one for each.
_FEW_COLUMNS = 48


class Penalties:
    """The factorised equations, as views of one flat array that can be kept.

    Parameters
    ----------
    memory : ndarray of shape (size(n, n_targets),), float64
    n, n_targets : int
        The size of G, and the columns of b.

    Attributes
    ----------
    gram : ndarray of shape (n, n)
        G.
    """

    def __init__(self, memory: np.ndarray, n: int, n_targets: int) -> None:
        self.gram, reflectors, *others = views(memory, self._shapes(n, n_targets))
        self._reflectors = reflectors.T  # in Fortran's order
        self._diagonal, self._beside, self._tau, self._b, self._rotated = others

    @staticmethod
    def _shapes(n: int, n_targets: int) -> list[tuple[int, ...]]:
        of_rotations = [(n - 1, n - 1), (n,), (n - 1,), (n - 1,)]
        return [(n, n), *of_rotations, (n, n_targets), (n, n_targets)]

    @classmethod
    def size(cls, n: int, n_targets: int) -> int:
        """Return how many numbers the factorised equations take."""
        return sum(map(prod, cls._shapes(n, n_targets)))

    def factor(self, gram: np.ndarray, b: np.ndarray, alphas: np.ndarray) -> None:
        """Factorise a symmetric matrix, for these alphas and others that may follow."""
        self.gram[:] = gram
        self._b[:] = b
        self._diagonal[0] = np.nan  # which says that it is not factorised
        if len(gram) == 1 or not np.any(self._are_even(alphas)):
            return
        reduced, self._diagonal[:], self._beside[:], self._tau[:] = tridiagonal(gram)
        self._reflectors[:] = reduced[1:, :-1]
        self._rotated[:] = rotate(self._reflectors, self._tau, b, True)

    def solve(self, alphas: np.ndarray) -> np.ndarray:
        """Return (G + alpha I)^-1 b for each alpha.

        Parameters
        ----------
        alphas : ndarray of shape (n_alphas,)

        Returns
        -------
        ndarray of shape (n_alphas, n, n_targets)
            NaN for an alpha with which the matrix is singular, at least in floating point.
        """
        n, n_targets = self._b.shape
        if n == 1:
            with np.errstate(divide="ignore", invalid="ignore"):
                solved = self._b / (self.gram + alphas[:, None, None])
            return np.where(np.isfinite(solved), solved, np.nan)
        solved = np.full((len(alphas), n, n_targets), np.nan)
        own = self.gram.diagonal()
        if not np.all(np.isfinite(own)):
            return solved
        high = own.max()
        are_even = self._are_even(alphas) & np.isfinite(self._diagonal[0])
        for i, alpha in enumerate(alphas):
            if are_even[i]:
                solved[i], pivots = solve_tridiagonal(
                    self._diagonal + alpha, self._beside, self._rotated
                )
                are_even[i] = pivots.min() > LEAST_PIVOT * high
        if not are_even.all():
            solved[~are_even] = self._by_cholesky(alphas[~are_even])
        if np.any(are_even):
            z = solved[are_even].transpose(1, 0, 2).reshape(n, -1)
            back = rotate(self._reflectors, self._tau, z, False).reshape(n, -1, n_targets)
            solved[are_even] = back.transpose(1, 0, 2)
        if not own.all():  # rotations spread rounding errors over columns that are constant
            solved[np.ix_(alphas > 0, own == 0)] = 0
        return solved

    def _are_even(self, alphas: np.ndarray) -> np.ndarray:
        """Return for which alphas the columns have similar scales."""
        own = self.gram.diagonal()
        return np.asarray(own.max() + alphas <= _MOST_RATIO * (own.min() + alphas))

    def _by_cholesky(self, alphas: np.ndarray) -> np.ndarray:
        """Return (G + alpha I)^-1 b for each alpha, NaN where a pivot is lost."""
        n = len(self.gram)
        solved = np.full((len(alphas), *self._b.shape), np.nan)
        own = self.gram.diagonal()
        if n <= _FEW_COLUMNS:
            whole = self.gram + alphas[:, None, None] * np.identity(n)
            pivots = np.diagonal(_cholesky_factors(whole), axis1=1, axis2=2)
            good = np.all(np.square(pivots) >= LEAST_PIVOT * (own + alphas[:, None]), axis=1)
            b = np.broadcast_to(self._b, (int(np.count_nonzero(good)), *self._b.shape))
            solved[good] = np.linalg.solve(whole[good], b)
        else:
            for i, alpha in enumerate(alphas):
                found, pivots = solve_positive(self.gram, alpha, self._b)
                if np.all(np.square(pivots) >= LEAST_PIVOT * (own + alpha)):
                    solved[i] = found
        if not alphas.all() and is_singular(self.gram):
            solved[alphas == 0] = np.nan
        return solved


def _cholesky_factors(matrices: np.ndarray) -> np.ndarray:
    """Return L of each LL', (n_matrices, n, n); zeros where one is not positive definite."""
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:  # NumPy does not say which
        if len(matrices) == 1:
            return np.zeros_like(matrices)
        return np.concatenate([_cholesky_factors(one[None]) for one in matrices])


def is_singular(gram: np.ndarray) -> bool:
    """Return whether columns depend on each other, whatever their scales are."""
    own = gram.diagonal()
    if own.min() <= 0:
        return True
    scale = np.sqrt(own)
    values = np.linalg.eigvalsh(gram / scale / scale[:, None])
    return bool(values[0] < 10 * len(own) * np.finfo(np.float64).eps)


class Basis(NamedTuple):
    """(G + alpha I)^-1 = vectors diag(shrinks) vectors' for some of the alphas.

    Attributes
    ----------
    points : ndarray of shape (n_points,), int
        Which alphas.
    vectors : ndarray of shape (n, n)
    shrinks : ndarray of shape (n_points, n)
    projected : ndarray of shape (n, n_targets)
        vectors' b.
    is_orthonormal : bool
        Whether the vectors are.
    """

    points: np.ndarray
    vectors: np.ndarray
    shrinks: np.ndarray
    projected: np.ndarray
    is_orthonormal: bool


def bases(
    gram: np.ndarray, b: np.ndarray, alphas: np.ndarray, triangle: Callable[[], np.ndarray]
) -> list[Basis]:
    """Return bases that together serve all alphas; mostly it is one.

    Where the columns have very different scales, G + alpha I = L L' is factorised for a reference
    alpha r, as the scales do not hurt a Cholesky factorisation. With the eigenvalues m and
    eigenvectors W of (L'L)^-1, the vectors L^-T W are a basis in which G + alpha I is
    1 + (alpha - r) m. Alphas that are near each other share their reference.

    Parameters
    ----------
    gram : ndarray of shape (n, n)
        G.
    b : ndarray of shape (n, n_targets)
    alphas : ndarray of shape (n_alphas,)
        An alpha of 0 demands that G is not singular.
    triangle : callable
        Returns R of [X, y] = QR with X'X = G and X'y = b. It is called where rounding errors hide
        small eigenvalues of G.
    """
    own = gram.diagonal()
    are_even = own.max() + alphas <= _MOST_RATIO * (own.min() + alphas)
    found = []
    if np.any(are_even):
        found.append(_by_eigenvectors(gram, b, alphas, np.flatnonzero(are_even)))
    uneven = np.flatnonzero(~are_even)
    found += _by_references(gram, b, alphas, uneven[np.argsort(alphas[uneven])])
    lost = [one.points for one in found if one.vectors.size == 0]
    found = [one for one in found if one.vectors.size]
    if lost:
        found.append(_from_triangle(triangle(), len(gram), alphas, np.concatenate(lost)))
    return found


def _lost(points: np.ndarray) -> Basis:
    """Return that some alphas have no basis from G."""
    nothing = np.empty((0, 0))
    return Basis(points, nothing, nothing, nothing, False)


def _by_eigenvectors(
    gram: np.ndarray, b: np.ndarray, alphas: np.ndarray, points: np.ndarray
) -> Basis:
    values, vectors = np.linalg.eigh(gram)
    if values[0] + alphas[points].min() < LEAST_PIVOT * values[-1]:
        return _lost(points)
    shrinks = 1 / (np.maximum(values, 0) + alphas[points, None])
    return Basis(points, vectors, shrinks, vectors.T @ b, True)


def _by_references(
    gram: np.ndarray, b: np.ndarray, alphas: np.ndarray, points: np.ndarray
) -> Iterator[Basis]:
    if not len(points):
        return
    some = alphas[points]
    positive = some[some > 0]
    reference = float(np.sqrt(positive[0] * positive[-1])) if len(positive) else 0.0
    if len(points) == 1:
        reference = float(some[0])
    whole = gram + reference * np.identity(len(gram))
    factor = cholesky(whole)
    if factor is None or np.any(np.square(factor.diagonal()) < LEAST_PIVOT * whole.diagonal()):
        yield _lost(points)
        return
    inverse = inverse_of_triangle(factor)
    values, vectors = np.linalg.eigh(inverse @ inverse.T)
    shrinks = 1 + np.multiply.outer(some - reference, values)
    # No eigenvalue of G is below 0.
    least = np.minimum(1, some / reference) if reference else np.ones_like(some)
    np.maximum(shrinks, least[:, None], out=shrinks)
    if len(points) == 1 or np.all(shrinks.max(axis=1) <= _MOST_CONDITION * shrinks.min(axis=1)):
        vectors = inverse.T @ vectors
        yield Basis(points, vectors, 1 / shrinks, vectors.T @ b, False)
        return
    n_low = min(max(1, int(np.searchsorted(some, reference))), len(some) - 1)
    yield from _by_references(gram, b, alphas, points[:n_low])
    yield from _by_references(gram, b, alphas, points[n_low:])


def _from_triangle(triangle: np.ndarray, n: int, alphas: np.ndarray, points: np.ndarray) -> Basis:
    """R has the singular values of X, of which G has the squares."""
    left, values, right = np.linalg.svd(triangle[:n, :n])
    shrinks = 1 / (np.square(values) + alphas[points, None])
    projected = values[:, None] * (left.T @ triangle[:n, n:])
    return Basis(points, right.T, shrinks, projected, True)
