"""What a ``StandardScaler`` that is fitted without a row changes in ridge regression.

Without a row the scales of the columns differ a little. In terms of the scales of all rows, the
penalty of column j is alpha (1 - e_j), where e_j is of the order of 1 / n_rows. So A^-1 u becomes
t = (A - alpha E)^-1 u with E = diag(e). A series in A^-1 alpha E gives u't and B't. It ends where
a bound on the rest is small enough, which differs between rows and alphas.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optuna_treecv.learners.exact.moments import Spread
from optuna_treecv.learners.exact.penalties import Basis

# The error that is left, as a share of the mean absolute residual of a block of rows.
_TOLERANCE = 1e-13
# The same as a share of the targets, for models without residuals.
_ROUNDING = 1e-16

# A term whose bound is below so many times the error that is left is computed in float32.
_MOST_NARROW = 1e6

# Rows with a larger |e|, or that need more terms, are given back.
_MOST_CHANGE = 0.5
_MOST_TERMS = 60
_LEAST_GAP = 1e-2

# The bytes of inverse matrices, which save a product with the eigenvectors.
_MOST_BYTES = 2**26

# Where so many rows go on, all do, since choosing them would take longer.
_MOST_OF = 0.7


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


def changes_without(X: np.ndarray, spread: Spread, is_constant: np.ndarray) -> np.ndarray:
    """Return e for each row and column: the squared scales without a row, as a share of all rows'.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
    spread : Spread
        Of all rows.
    is_constant : ndarray of shape (n_features,), bool
        The columns that are not scaled.
    """
    n = spread.n_rows
    changes = X - spread.mean
    changes *= changes
    changes *= np.where(
        is_constant, 0, (n / (n - 1)) ** 2 / np.where(is_constant, 1, spread.squares)
    )
    changes -= np.where(is_constant, 0, 1 / (n - 1))
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
        self._squared_shrinks = np.square(basis.shrinks)
        # alpha A^-1, of which no number is above 1
        self._inverses: np.ndarray | None = None
        if 8 * len(alphas) * basis.vectors.size <= _MOST_BYTES:
            self._inverses = np.empty((len(alphas), *basis.vectors.shape))
            for alpha, shrinks, out in zip(alphas, basis.shrinks, self._inverses, strict=True):
                out[:] = basis.vectors * (alpha * shrinks) @ basis.vectors.T

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
        is_usual = ~is_far & (gaps > _LEAST_GAP)
        errors = np.where(is_usual[:, None], np.abs((said - rows.v) / gaps[:, None]), 0)
        per_said = rows.r / gaps / (1 - np.minimum(most, _MOST_CHANGE))
        per_said[~is_usual] = 0
        per_leverage = (rows.c * per_said)[:, None] * errors
        total = (rows.r * errors).sum(axis=2)
        least = _TOLERANCE * total / np.maximum(is_usual.sum(axis=1), 1)[:, None]
        least = np.maximum(least, _ROUNDING * np.abs(rows.v).mean(axis=1))[:, :, None]
        least = np.maximum(least, np.finfo(np.float64).tiny)  # of targets that are all 0
        # |A^-1 u|^2 and |E coef|
        if self._basis.is_orthonormal:
            squares = self._squared_shrinks @ rows.squared_z.T
        else:
            squares = leverages / np.where(alphas == 0, np.inf, alphas)
        of_coef = np.sqrt(self._squared_coef @ np.square(rows.changes).T).reshape(said.shape)
        limits = _Limits(
            of_coef * (alphas * per_said)[:, None], per_leverage * alphas[:, :, None], least
        )
        ratios = limits.ratios(np.sqrt(squares), most * squares)
        is_open = np.broadcast_to(is_far, leverages.shape).copy()
        narrow: tuple[np.ndarray, np.ndarray] | None = None
        for point in np.flatnonzero((ratios > 1).any(axis=1)):
            if narrow is None:
                narrow = rows.z.astype(np.float32), rows.changes.astype(np.float32)
            ratio = ratios[point]
            is_wide = _mostly(ratio > _MOST_NARROW)
            is_narrow = (ratio > 1) & ~is_wide
            if not is_wide.any():
                is_narrow = _mostly(is_narrow)
            for which, (z, changes) in ((is_wide, (rows.z, rows.changes)), (is_narrow, narrow)):
                if which.any():
                    some = slice(None) if which.all() else np.flatnonzero(which)
                    of_some = limits.of(int(point), some)
                    more = self._sum_terms(z[some], changes[some], int(point), of_some)
                    leverages[point, some] += more[0]
                    said[point][:, some] += more[1]
                    is_open[point, some] |= more[2]
        return is_open

    def _sum_terms(
        self, z: np.ndarray, changes: np.ndarray, point: int, limits: _Limits
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what is added to u't and B't of some rows, and which need more terms.

        With s_0 = A^-1 u and s_k = A^-1 alpha E s_(k-1), the terms of B't are coef' alpha E s_k,
        and those of u't are s_k' alpha E s_k and s_k' alpha E s_(k-1). What then is missing
        follows from the norm of E s_k.
        """
        alpha, vectors = self._alphas[point], self._basis.vectors
        coef = (alpha * self._coef[point]).astype(z.dtype)
        step = z @ (vectors * self._basis.shrinks[point]).T.astype(z.dtype)
        n_rows = len(z)
        leverages, said = np.zeros(n_rows), np.zeros((len(coef), n_rows))
        is_open = np.ones(n_rows, bool)
        rest: np.ndarray | None = None
        left: slice | np.ndarray = slice(None)
        for _ in range(_MOST_TERMS):
            if rest is not None:
                step = self._apply(rest, point)
                leverages[left] += alpha * _products(rest, step)
            rest = changes * step
            leverages[left] += alpha * _products(rest, step)
            said[:, left] += coef @ rest.T
            squares = _products(rest, rest)
            ratios = limits.ratios(np.sqrt(squares), squares)
            goes_on = ratios > 1
            is_open[left] = goes_on
            if not goes_on.any():
                break
            if goes_on.mean() < _MOST_OF:
                left = np.arange(n_rows)[left][goes_on]
                rest, changes, limits = rest[goes_on], changes[goes_on], limits.of_rows(goes_on)
            if rest.dtype != np.float32 and np.max(ratios) <= _MOST_NARROW:
                rest, changes = rest.astype(np.float32), changes.astype(np.float32)
                coef = coef.astype(np.float32)
        return leverages, said, is_open

    def _apply(self, rest: np.ndarray, point: int) -> np.ndarray:
        """Return alpha A^-1 times each row."""
        if self._inverses is not None:
            return rest @ self._inverses[point].astype(rest.dtype, copy=False)
        vectors = self._basis.vectors.astype(rest.dtype)
        shrinks = (self._alphas[point] * self._basis.shrinks[point]).astype(rest.dtype)
        return np.asarray(((rest @ vectors) * shrinks) @ vectors.T)


class _Limits(NamedTuple):
    """Bounds on the error of what models say.

    Attributes
    ----------
    of_said, of_leverages : ndarray of shape (..., n_targets, n_rows)
        The error of B't, and that of u't, is multiplied by this.
    least : ndarray of shape (..., n_targets, 1)
        The error that may be left.
    """

    of_said: np.ndarray
    of_leverages: np.ndarray
    least: np.ndarray

    def ratios(self, said: np.ndarray, leverages: np.ndarray) -> np.ndarray:
        """Return the greatest error of each row as a share of what may be left."""
        bounds = self.of_said * said[..., None, :]
        bounds += self.of_leverages * leverages[..., None, :]
        bounds /= self.least
        return np.asarray(bounds.max(axis=-2))

    def of(self, point: int, some: slice | np.ndarray) -> _Limits:
        """Return the bounds of one point and some rows."""
        said, leverages = self.of_said[point], self.of_leverages[point]
        return _Limits(said[:, some], leverages[:, some], self.least[point])

    def of_rows(self, some: np.ndarray) -> _Limits:
        """Return the bounds of some rows."""
        return _Limits(self.of_said[:, some], self.of_leverages[:, some], self.least)


def _products(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the scalar product of each row with that of another array."""
    return np.einsum("ij,ij->i", one, other)


def _mostly(which: np.ndarray) -> np.ndarray:
    """Return all rows instead of most of them."""
    return np.ones_like(which) if which.mean() > _MOST_OF else which
