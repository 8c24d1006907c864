"""What ridge regression is trained on, and the equations that follow from moments."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.blocks import copy_rows
from optuna_treecv.learners.exact.blocks import n_rows_of
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.moments import about
from optuna_treecv.learners.exact.moments import Moments
from optuna_treecv.learners.exact.moments import moments_of
from optuna_treecv.learners.exact.spread import is_constant
from optuna_treecv.learners.exact.spread import scale_by
from optuna_treecv.rows.data import PreparedRows


class RidgeRows:
    """What the models of ridge regression are trained on.

    Parameters
    ----------
    rows : PreparedRows
    n_targets : int
    copy_targets : callable
        (part, out) -> None, copies the targets of some rows into an array (n_rows, n_targets).
    fit_intercept : bool
    scaler : StandardScaler or None
        Fitted on the training rows of each model, in which all rows weigh alike.

    Attributes
    ----------
    has_centre : bool
        Whether a mean is subtracted from X.
    shift : ndarray of shape (n_features + n_targets,)
        What is subtracted from X and from the targets first; 0 unless they are ``shifted``.
    """

    def __init__(
        self,
        rows: PreparedRows,
        n_targets: int,
        copy_targets: Callable[[RowNumbers, np.ndarray], None],
        fit_intercept: bool,
        scaler: StandardScaler | None,
    ) -> None:
        self.rows, self.n_targets, self._copy_targets = rows, n_targets, copy_targets
        self.fit_intercept, self.scaler = fit_intercept, scaler
        self.has_centre = fit_intercept or (scaler is not None and bool(scaler.with_mean))
        self.shift = np.zeros(rows.n_features + n_targets)

    def shifted(self) -> RidgeRows:
        """Return the same with a shift, so that large offsets cost no digits.

        Where a mean is subtracted, it is the median of a few rows, which may be test rows.
        """
        other = copy(self)
        other.shift = np.zeros_like(self.shift)
        d = self.rows.n_features
        few = np.unique(np.linspace(0, len(self.rows.order) - 1, 15).astype(int))
        X, y, _ = self.copy(few)
        if self.has_centre:
            other.shift[:d] = np.median(X, axis=0)
        if self.fit_intercept:
            other.shift[d:] = np.median(y, axis=0)
        return other

    def moments_of(self, part: RowNumbers) -> Moments:
        """Return the moments of some shifted rows."""
        with_spread = self.scaler is not None
        shift = self.shift if self.shift.any() else None
        return moments_of(self.rows, part, self.n_targets, self._copy_targets, with_spread, shift)

    def copy(self, part: RowNumbers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return shifted X and targets, and the weights, of some rows as float64."""
        d, n_rows = self.rows.n_features, n_rows_of(part)
        X, y = np.empty((n_rows, d)), np.empty((n_rows, self.n_targets))
        copy_rows(self.rows, part, X)
        self._copy_targets(part, y)
        X -= self.shift[:d]
        y -= self.shift[d:]
        weights = self.rows.weights
        return X, y, np.ones(n_rows) if weights is None else weights[part].astype(np.float64)


class Equations(NamedTuple):
    """(gram + alpha I) coef = b of centred and scaled rows.

    Attributes
    ----------
    gram : ndarray of shape (n_features, n_features)
    b : ndarray of shape (n_features, n_targets)
    origin : ndarray of shape (n_features + n_targets,)
        What is subtracted from shifted X and targets.
    scale : ndarray of shape (n_features,)
        By what X is divided.
    is_constant : ndarray of shape (n_features,), bool
        The columns that a scaler does not scale.
    """

    gram: np.ndarray
    b: np.ndarray
    origin: np.ndarray
    scale: np.ndarray
    is_constant: np.ndarray


def equations_of(moments: Moments, of: RidgeRows) -> Equations:
    """Return the equations of the models that are trained on rows with these moments."""
    d = of.rows.n_features
    origin = moments.mean if of.fit_intercept else np.zeros_like(moments.mean)
    scale, are_constant = np.ones(d), np.zeros(d, dtype=bool)
    if of.scaler is not None:
        assert moments.spread is not None
        spread = moments.spread
        whole = spread._replace(mean=spread.mean + of.shift[:d])
        _, scale = scale_by(of.scaler, whole)
        are_constant = is_constant(whole)
        if of.has_centre and not of.fit_intercept:
            origin[:d] = spread.mean
    second = moments.scatter if of.fit_intercept else about(moments, origin)
    gram = second[:d, :d] / scale / scale[:, None]
    return Equations(gram, second[:d, d:] / scale[:, None], origin, scale, are_constant)


def singular_error(whose: str) -> ValueError:
    """Return the error of an alpha of 0 where columns depend on each other."""
    return ValueError(
        f"alpha must be above 0 where columns of X depend on each other within {whose}, got "
        "alpha=0; a small alpha such as 1e-6 would be right."
    )
