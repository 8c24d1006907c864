"""Eigenvalues of scatter matrices whose columns may have very different scales."""

from __future__ import annotations

import numpy as np
from scipy import linalg
from scipy.linalg import lapack

# Up to this ratio of two columns' squares, rounding errors of the largest eigenvalue are 1e-10 of
# the smaller square.
_MOST_RATIO = 1e6


def eigen_of_scatter(scatter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues, none of them negative, and the eigenvectors in columns.

    Where columns have very different scales, small eigenvalues would drown in the rounding errors
    of large ones. The singular values of a Cholesky factor with pivots keep their digits, and take
    two to three times as long.
    """
    squares = scatter.diagonal()
    squares = squares[squares > 0]
    if len(squares) == 0 or squares.max() <= _MOST_RATIO * squares.min():
        values, vectors = linalg.eigh(scatter, driver="evd")
        return np.maximum(values, 0), vectors
    factor, pivots, rank, _ = lapack.dpstrf(scatter, lower=0, tol=0)
    factor = np.triu(factor)
    factor[rank:] = 0
    _, sizes, directions = linalg.svd(factor)
    vectors = np.empty_like(directions)
    vectors[pivots - 1] = directions.T
    return np.square(sizes), vectors
