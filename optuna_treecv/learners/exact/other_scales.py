"""What a ``StandardScaler`` that is fitted without a row changes in ridge regression.

Without a row the scales of the columns differ a little. In terms of the scales of all rows, the
penalty of column j is alpha (1 - e_j), where e_j is of the order of 1 / n_rows. So A^-1 u becomes
t = (A - alpha E)^-1 u with E = diag(e). A series in A^-1 alpha E gives u't and B't. It ends where
a bound on the rest is small enough, which differs between rows and alphas.
"""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.learners.exact.bases import Basis
from optuna_treecv.learners.exact.spread import Spread

# The error that is left, as a share of the mean absolute residual of a block of rows.
_TOLERANCE = 1e-13
# The same as a share of the targets, for models without residuals.
_ROUNDING = 1e-16

# A term whose bound is below so many times the error that is left is computed in float32.
_MOST_NARROW = 1e5

# Rows with a larger |e|, or that need more terms, are given back.
_MOST_CHANGE = 0.5
_MOST_TERMS = 60
_LEAST_GAP = 1e-2


class Rows(NamedTuple):
    """A block of rows, and how what their models say depends on u't and B't.

    Without a row the model says r (B't - c u't v) / (1 - c u't) of it, plus what does not depend
    on t.

    Attributes
    ----------
    z : ndarray of shape (n_rows, n_features)
        The rows u in a basis.
    squared_z : ndarray of shape (n_rows, n_features)
    changes : ndarray of shape (n_rows, n_features)
        e for each row and column.
    c, r : ndarray of shape (n_rows,)
    v : ndarray of shape (n_targets, n_rows)
    """

    z: np.ndarray
    squared_z: np.ndarray
    changes: np.ndarray
    c: np.ndarray
    r: np.ndarray
    v: np.ndarray


class ScalesWithout:
    """The squared scales without each row, as a share of those of all rows.

    Parameters
    ----------
    spread : Spread
        Of all rows.
    is_constant : ndarray of shape (n_features,), bool
        The columns that are not scaled.
    """

    def __init__(self, spread: Spread, is_constant: np.ndarray) -> None:
        n = spread.n_rows
        self._mean = spread.mean
        squares = np.where(is_constant, 1, spread.squares)
        self._factor = np.where(is_constant, 0, (n / (n - 1)) ** 2 / squares)
        self._shift = np.where(is_constant, 0, 1 / (n - 1))

    def changes(self, X: np.ndarray) -> np.ndarray:
        """Return e for each row and column."""
        changes = X - self._mean
        changes *= changes
        changes *= self._factor
        changes -= self._shift
        return changes


class Corrections:
    """Corrects what follows from the scales of all rows.

    Parameters
    ----------
    alphas : ndarray of shape (n_points,)
        Those that the basis serves.
    basis : Basis
        Of the scaled columns.
    coef : ndarray of shape (n_points, n_targets, n_features)
        The coefficients of the models of all rows.
    """

    def __init__(self, alphas: np.ndarray, basis: Basis, coef: np.ndarray) -> None:
        self._alphas, self._basis, self._coef = alphas, basis, coef
        self._squared_coef = np.square(coef).reshape(-1, coef.shape[2])
        self._vectors = {dtype: basis.vectors.astype(dtype) for dtype in (np.float64, np.float32)}

    def correct(self, rows: Rows, leverages: np.ndarray, said: np.ndarray) -> np.ndarray:
        """Correct u't and B't, which are given for E = 0, in place.

        Parameters
        ----------
        rows : Rows
        leverages : ndarray of shape (n_points, n_rows)
            u't.
        said : ndarray of shape (n_points, n_targets, n_rows)
            B't.

        Returns
        -------
        ndarray of shape (n_points, n_rows), bool
            The rows whose series is too long.
        """
        alphas = self._alphas[:, None]
        most = np.abs(rows.changes).max(axis=1)
        is_far = most > _MOST_CHANGE
        # What an error of u't and one of B't means for what the models say.
        gaps = 1 - rows.c * leverages
        errors = (said - rows.v) / gaps[:, None]
        per_said = np.abs(rows.r / gaps)
        per_leverage = (rows.c * per_said)[:, None] * np.abs(errors)
        is_usual = ~is_far & (gaps > _LEAST_GAP)
        total = np.abs(rows.r * errors).sum(axis=2, where=is_usual[:, None])
        least = _TOLERANCE * total / np.maximum(is_usual.sum(axis=1), 1)[:, None]
        least = np.maximum(least, _ROUNDING * np.abs(rows.v).mean(axis=1))[:, :, None]
        # |A^-1 u|^2 and |E coef|
        if self._basis.is_orthonormal:
            squares = np.square(self._basis.shrinks) @ rows.squared_z.T
        else:
            squares = leverages / np.where(alphas == 0, np.inf, alphas)
        of_coef = np.sqrt(self._squared_coef @ np.square(rows.changes).T).reshape(said.shape)
        rest = 1 / (1 - np.minimum(most, _MOST_CHANGE))
        of_coef *= rest * per_said[:, None]
        per_leverage *= rest
        bounds = of_coef * (alphas * np.sqrt(squares))[:, None]
        bounds += per_leverage * (alphas * most * squares)[:, None]
        ratios = (bounds / least).max(axis=1)
        ratios[~is_usual] = 0
        is_open = np.broadcast_to(is_far, leverages.shape).copy()
        for point in np.flatnonzero((ratios > 1).any(axis=1)):
            ratio = ratios[point]
            for dtype, is_chosen in (
                (np.float32, (ratio > 1) & (ratio <= _MOST_NARROW)),
                (np.float64, ratio > _MOST_NARROW),
            ):
                some = np.flatnonzero(is_chosen)
                if len(some):
                    limits = _Limits(
                        of_coef[point][:, some],
                        per_leverage[point][:, some] / self._alphas[point],
                        least[point],
                    )
                    found = self._sum_terms(rows, some, int(point), limits, dtype)
                    leverages[point, some] += found.leverages
                    said[point][:, some] += found.said
                    is_open[point, some] = found.is_open
        return is_open

    def _sum_terms(
        self, rows: Rows, some: np.ndarray, point: int, limits: _Limits, dtype: Any
    ) -> _Added:
        """Return what is added to u't and B't of some rows.

        An approximate t leaves the residual rest = u - (A - alpha E) t. It adds t'rest to u't, and
        what then is missing of u't is of the second order in the rest.
        """
        shrinks = self._basis.shrinks[point].astype(dtype)
        vectors = self._vectors[dtype]
        coef = self._coef[point].astype(dtype)
        n_rows = len(some)
        z = rows.z if n_rows == len(rows.z) else rows.z[some]
        changes = rows.changes if n_rows == len(rows.z) else rows.changes[some]
        changes = np.multiply(changes, self._alphas[point], dtype=dtype, casting="same_kind")
        first = np.multiply(z, shrinks, dtype=dtype, casting="same_kind") @ vectors.T
        t, rest = first, changes * first
        found = _Added(np.zeros(n_rows), np.zeros((len(coef), n_rows)), np.ones(n_rows, bool))
        is_left = np.arange(n_rows)
        before = np.zeros(n_rows)
        for _ in range(_MOST_TERMS):
            found.leverages[is_left] = before + _products(t, rest)
            found.said[:, is_left] += coef @ rest.T
            ratios = limits.ratios(_products(rest, rest), is_left)
            goes_on = ratios > 1
            found.is_open[is_left[~goes_on]] = False
            if not goes_on.any():
                break
            before += _products(first, rest)
            if not goes_on.all():
                is_left, before = is_left[goes_on], before[goes_on]
                first, t, rest, changes = (one[goes_on] for one in (first, t, rest, changes))
            if dtype == np.float64 and ratios.max() <= _MOST_NARROW:
                dtype = np.float32
                shrinks, coef, first, t, rest, changes = (
                    one.astype(dtype) for one in (shrinks, coef, first, t, rest, changes)
                )
                vectors = self._vectors[dtype]
            step = rest @ vectors
            step *= shrinks
            step = step @ vectors.T
            t = t + step
            rest = changes * step
        return found


class _Limits(NamedTuple):
    """Bounds on the error of what models say, for each target and row.

    Attributes
    ----------
    of_said, of_leverages : ndarray of shape (n_targets, n_rows)
        Times the norm of the rest, and times its square.
    least : ndarray of shape (n_targets, 1)
        The error that may be left.
    """

    of_said: np.ndarray
    of_leverages: np.ndarray
    least: np.ndarray

    def ratios(self, squares: np.ndarray, some: np.ndarray) -> np.ndarray:
        """Return the bounds that follow from the squared norms of rests, as a share of least."""
        bounds = self.of_said[:, some] * np.sqrt(squares)
        bounds += self.of_leverages[:, some] * squares
        return np.asarray((bounds / self.least).max(axis=0))


class _Added(NamedTuple):
    """What is added for some rows, and whether more terms would be needed.

    Attributes
    ----------
    leverages : ndarray of shape (n_rows,)
    said : ndarray of shape (n_targets, n_rows)
    is_open : ndarray of shape (n_rows,), bool
    """

    leverages: np.ndarray
    said: np.ndarray
    is_open: np.ndarray


def _products(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the scalar product of each row with that of another array."""
    return np.einsum("ij,ij->i", one, other)
