"""Eigenvalues of scatter matrices whose columns may have very different scales."""

from __future__ import annotations

import numpy as np

from optuna_treecv.learners.exact.lapack import pivoted_cholesky

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
        values, vectors = np.linalg.eigh(scatter)
        return np.maximum(values, 0), vectors
    factor, pivots, rank = pivoted_cholesky(scatter)
    factor = np.triu(factor)
    factor[rank:] = 0
    _, sizes, directions = np.linalg.svd(factor)
    vectors = np.empty_like(directions)
    vectors[pivots] = directions.T
    return np.square(sizes), vectors
