r"""Linear discriminant analysis without single rows.

Without a row x of class c, the covariance is :math:`C_c - f u u^\top` with :math:`u = x - m_c`, a
change of rank one. The squared distances of x to all means then follow from products of u with the
differences between the other means and that of class c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class OwnClass(NamedTuple):
    """The rows of one class c, each of which is left out in its turn.

    Attributes
    ----------
    code : int
        The class c.
    mean : ndarray of shape (n_features,)
        That of all its rows.
    others : ndarray of shape (n_classes + 1, n_features)
        The means of all classes and the reference point, minus ``mean``.
    factor : float
        f.
    own : float
        x minus the mean of the others of its class is ``own * u``.
    reference : (float, float)
        (a, b): x minus the reference point without x is a (x - reference point) + b u.
    log_priors : ndarray of shape (n_classes, 1)
        Without a row of this class.
    trace : float
        That of C_c, divided by the number of features.
    """

    code: int
    mean: np.ndarray
    others: np.ndarray
    factor: float
    own: float
    reference: tuple[float, float]
    log_priors: np.ndarray
    trace: float


class Point(NamedTuple):
    """The covariance of one class for one shrinkage.

    Attributes
    ----------
    shrinkage : float
    basis : int
        The number of the basis.
    values : ndarray of shape (n_features, 1)
        The eigenvalues of C_c in this basis.
    inverse : ndarray of shape (n_features, 1)
        Those of the inverse, with shrinkage or without.
    """

    shrinkage: float
    basis: int
    values: np.ndarray
    inverse: np.ndarray


class Products(NamedTuple):
    """Products with the inverse of (1 - s) C_c + s t I, in which t is that without the row.

    Attributes
    ----------
    uu : ndarray of shape (n_rows,)
    vv, uv : ndarray of shape (n_classes + 1, n_rows)
        v is x minus each mean and the reference point.
    left : ndarray of shape (n_rows,)
        1 - (1 - s) f uu, which is 0 where the matrix without the row is singular.
    """

    uu: np.ndarray
    vv: np.ndarray
    uv: np.ndarray
    left: np.ndarray


class Rotated:
    """Some rows of a class in the coordinates of its bases.

    Parameters
    ----------
    own : OwnClass
    block : ndarray of shape (n_rows, n_features)
        The rows minus the mean of the class.
    matrices : sequence of ndarray of shape (n_features, n_features)
    """

    def __init__(self, own: OwnClass, block: np.ndarray, matrices: Sequence[np.ndarray]) -> None:
        self._own = own
        self._us = [matrix.T @ block.T for matrix in matrices]
        self._others = [own.others @ matrix for matrix in matrices]
        self._squares = [np.square(others) for others in self._others]
        self._traces = own.trace - own.factor / block.shape[1] * np.einsum(
            "ij,ij->i", block, block
        )
        self._inverse = np.empty_like(self._us[0])
        self._weighted = np.empty_like(self._us[0])

    def products(self, point: Point) -> Products:
        """Return the products for one shrinkage."""
        u, others = self._us[point.basis], self._others[point.basis]
        share = 1 - point.shrinkage
        inverse = point.inverse
        if point.shrinkage:
            inverse = self._inverse
            np.add(share * point.values, point.shrinkage * self._traces, out=inverse)
            np.reciprocal(inverse, out=inverse)
        weighted = np.multiply(u, inverse, out=self._weighted)
        uv = others @ weighted
        uu = np.einsum("ij,ij->j", u, weighted)
        vv = uu - 2 * uv
        vv += self._squares[point.basis] @ inverse
        np.subtract(uu, uv, out=uv)
        return Products(uu, vv, uv, 1 - share * self._own.factor * uu)

    def scores(self, point: Point) -> np.ndarray:
        """Return the score of each class, (n_classes, n_rows)."""
        with np.errstate(divide="ignore", invalid="ignore"):  # these are left out directly
            return self._scores(point)

    def _scores(self, point: Point) -> np.ndarray:
        own = self._own
        uu, vv, uv, left = self.products(point)
        gain = (1 - point.shrinkage) * own.factor / left
        a, b = own.reference
        to_reference = a * a * vv[-1] + 2 * a * b * uv[-1] + b * b * uu
        to_reference += gain * np.square(a * uv[-1] + b * uu)
        distances, uv = vv[:-1], uv[:-1]
        uv *= uv
        uv *= gain
        distances += uv
        distances[own.code] *= own.own**2
        np.subtract(to_reference, distances, out=distances)
        distances *= 0.5
        distances += own.log_priors
        return distances
