"""Ridge regression from the rows, where sums of their squares cannot tell columns apart.

X'X has the squares of X's singular values. Where the largest is 1e8 times the smallest, rounding
hides the latter. R of X = QR has the singular values themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optuna_treecv.learners.exact.blocks import blocks
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.ridge_rows import RidgeRows


def solve_from_rows(
    of: RidgeRows,
    parts: Sequence[RowNumbers],
    origin: np.ndarray,
    scale: np.ndarray,
    alphas: np.ndarray,
) -> np.ndarray:
    """Return (X'X + alpha I)^-1 X'y of centred and scaled rows.

    Parameters
    ----------
    of : RidgeRows
    parts : sequence of slice or ndarray
        The training rows.
    origin, scale : ndarray
        What is subtracted from shifted X and targets, and by what X is divided.
    alphas : ndarray of shape (n_alphas,)
        Above 0.

    Returns
    -------
    ndarray of shape (n_alphas, n_features, n_targets)
    """
    d = of.rows.n_features
    triangle = triangle_of(of, parts, origin, scale)
    left, values, right = np.linalg.svd(triangle[:d, :d])
    projected = left.T @ triangle[:d, d:]
    shrinks = values / (np.square(values) + alphas[:, None])
    return np.asarray(right.T @ (shrinks[:, :, None] * projected))


def triangle_of(
    of: RidgeRows, parts: Sequence[RowNumbers], origin: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Return R of [X, y] = QR, of centred and scaled rows, with the columns of both."""
    d = of.rows.n_features
    triangle: np.ndarray = np.zeros(
        (0, d + of.n_targets)
    )  # no more rows than columns after each block
    for part in parts:
        for some in blocks(part):
            X, y, weights = of.copy(some)
            X -= origin[:d]
            X /= scale
            both = np.hstack([X, y - origin[d:]]) * np.sqrt(weights)[:, None]
            triangle = np.asarray(np.linalg.qr(np.vstack([triangle, both]), mode="r"))
    return triangle
