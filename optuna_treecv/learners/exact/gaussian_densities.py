"""The logarithms of Gaussian densities with independent columns, for several smoothings."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from math import pi
from typing import NamedTuple

import numpy as np


class Densities(NamedTuple):
    """One density for each point and class; or several of them, between which is interpolated.

    Attributes
    ----------
    means : ndarray of shape (n_classes, n_features)
    terms : ndarray of shape (n_points, n_classes, n_nodes * (n_features + 1))
        For each node -1 / (2 variance) of each column, and what is added to their products with
        the squared distances from the means.
    """

    means: np.ndarray
    terms: np.ndarray

    def write(
        self, columns: np.ndarray, out: np.ndarray, shares: np.ndarray | None = None
    ) -> None:
        """Write the log-densities of rows.

        Parameters
        ----------
        columns : ndarray of shape (n_features, n_rows)
        out : ndarray of shape (n_points, n_classes, n_rows)
        shares : ndarray of shape (n_nodes, n_rows) or None
            What the log-density at each node is multiplied with; None: there is one node.
        """
        d, n_rows = columns.shape
        squares = np.empty((d + 1, n_rows))
        squares[d] = 1
        shared = None if shares is None else np.empty((len(shares), d + 1, n_rows))
        for code, mean in enumerate(self.means):
            distances = np.subtract(columns, mean[:, None], out=squares[:d])
            np.square(distances, out=distances)
            factors = squares
            if shares is not None and shared is not None:
                np.multiply(shares[:, None], squares, out=shared)
                factors = shared.reshape(-1, n_rows)
            np.matmul(self.terms[:, code], factors, out=out[:, code])


def densities(
    means: np.ndarray,
    variances: np.ndarray,
    added: np.ndarray,
    smoothings: np.ndarray,
    log_factors: np.ndarray,
) -> Densities:
    """Return densities with the variances ``variances + smoothing * added``.

    Parameters
    ----------
    means, variances : ndarray of shape (n_classes, n_features)
    added : ndarray of shape (n_features,)
    smoothings : ndarray of shape (n_points,)
    log_factors : ndarray of shape (n_classes,)
        The logarithm of what each density is multiplied with.
    """
    d = means.shape[1]
    smoothed = variances + smoothings[:, None, None] * added
    check_variances(smoothed)
    terms = np.empty((len(smoothings), len(means), d + 1))
    np.divide(-0.5, smoothed, out=terms[:, :, :d])
    logs = np.log(smoothed, out=smoothed)
    terms[:, :, d] = log_factors - 0.5 * (d * log(2 * pi) + logs.sum(axis=2))
    return Densities(means, terms)


def side_by_side(nodes: Sequence[Densities]) -> Densities:
    """Return densities with the same means as the nodes of an interpolation."""
    return Densities(nodes[0].means, np.concatenate([one.terms for one in nodes], axis=2))


def check_variances(smoothed: np.ndarray) -> None:
    """Refuse a variance of 0."""
    if np.min(smoothed) <= 0:
        raise ValueError(
            "var_smoothing must be above 0 where a column of X is constant within a class of a "
            "training set, got 0 or a number that is rounded to 0; 1e-9 would be right."
        )
