"""Bases in which (G + alpha I)^-1 is diagonal for many alphas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy.linalg import lapack

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
    is_orthonormal : bool
        Whether the vectors are.
    """

    points: np.ndarray
    vectors: np.ndarray
    shrinks: np.ndarray
    is_orthonormal: bool


def bases(gram: np.ndarray, alphas: np.ndarray) -> list[Basis]:
    """Return bases that together serve all alphas; mostly it is one.

    Where the columns have very different scales, G + alpha I = L L' is factorised for a reference
    alpha r, as the scales do not hurt a Cholesky factorisation. With the eigenvalues m and
    eigenvectors W of (L'L)^-1, the vectors L^-T W are a basis in which G + alpha I is
    1 + (alpha - r) m. Alphas that are near each other share their reference.

    Parameters
    ----------
    gram : ndarray of shape (n, n)
    alphas : ndarray of shape (n_alphas,)
        An alpha of 0 demands that G is not singular.
    """
    own = gram.diagonal()
    are_even = own.max() + alphas <= _MOST_RATIO * (own.min() + alphas)
    found = []
    if np.any(are_even):
        found.append(_by_eigenvectors(gram, alphas, np.flatnonzero(are_even)))
    found += _by_references(gram, alphas, np.flatnonzero(~are_even))
    return found


def _by_eigenvectors(gram: np.ndarray, alphas: np.ndarray, points: np.ndarray) -> Basis:
    values, vectors = linalg.eigh(gram, driver="evd")
    shrinks = 1 / (np.maximum(values, 0) + alphas[points, None])
    return Basis(points, vectors, shrinks, True)


def _by_references(gram: np.ndarray, alphas: np.ndarray, points: np.ndarray) -> Iterator[Basis]:
    if not len(points):
        return
    some = alphas[points]
    positive = some[some > 0]
    reference = float(np.exp(np.log(positive).mean())) if len(positive) else 0.0
    if len(points) == 1:
        reference = float(some[0])
    factor, failed = lapack.dpotrf(
        gram + reference * np.identity(len(gram)), lower=1, overwrite_a=True
    )
    if failed:  # G is singular but for its rounding errors
        yield _by_eigenvectors(gram, alphas, points)
        return
    inverse, _ = lapack.dtrtri(factor, lower=1, overwrite_c=True)
    values, vectors = linalg.eigh(inverse @ inverse.T, driver="evd")
    shrinks = 1 + np.multiply.outer(some - reference, values)
    # No eigenvalue of G is below 0.
    least = np.minimum(1, some / reference) if reference else np.ones_like(some)
    np.maximum(shrinks, least[:, None], out=shrinks)
    serves = shrinks.max(axis=1) <= _MOST_CONDITION * shrinks.min(axis=1)
    if np.any(serves):
        yield Basis(points[serves], inverse.T @ vectors, 1 / shrinks[serves], False)
    yield from _by_references(gram, alphas, points[~serves & (some < reference)])
    yield from _by_references(gram, alphas, points[~serves & (some >= reference)])
