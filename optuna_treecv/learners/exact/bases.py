"""Bases in which (G + alpha I)^-1 is diagonal for many alphas."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from optuna_treecv.learners.exact.lapack import cholesky
from optuna_treecv.learners.exact.lapack import inverse_of_triangle
from optuna_treecv.learners.exact.penalties import LEAST_PIVOT

# Eigenvectors mix columns, so that their rounding errors are those of the largest column. They
# are taken where the diagonal varies less than this.
_MOST_RATIO = 1e3

# The greatest condition number of an equation relative to its reference alpha.
_MOST_CONDITION = 1e4


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
