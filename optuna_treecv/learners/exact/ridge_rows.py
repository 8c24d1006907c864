"""What ridge regression is trained on, and the equations that follow from moments or from rows."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.chunks import blocks
from optuna_treecv.learners.exact.chunks import n_rows_of
from optuna_treecv.learners.exact.chunks import RowNumbers
from optuna_treecv.learners.exact.moments import about
from optuna_treecv.learners.exact.moments import is_constant
from optuna_treecv.learners.exact.moments import Moments
from optuna_treecv.learners.exact.moments import scale_by
from optuna_treecv.learners.exact.moments import Source
from optuna_treecv.rows.data import count_targets
from optuna_treecv.rows.data import PreparedRows


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


class RidgeRows(Source):
    """Rows of X, followed by their targets.

    Parameters
    ----------
    rows : PreparedRows
        With class codes as targets, ridge regression is on labels of -1 and 1: those of the second
        of two classes, or of each class against the rest.
    fit_intercept : bool
    scaler : StandardScaler or None
        Fitted on the training rows of each model, in which all rows weigh alike.
    n_groups : int
        The number of classes where their weights depend on the training rows, otherwise 1.

    Attributes
    ----------
    n_targets : int
    has_centre : bool
        Whether a mean is subtracted from X.
    shift : ndarray of shape (n_features + n_targets,)
        What is subtracted from X and from the targets first; 0 unless they are ``shifted``. A mean
        that is large beside the differences of rows has more digits as a small difference from it.
    """

    def __init__(
        self,
        rows: PreparedRows,
        fit_intercept: bool,
        scaler: StandardScaler | None,
        n_groups: int = 1,
    ) -> None:
        super().__init__(rows, n_groups, with_spread=scaler is not None)
        if rows.classes is None:
            self.n_targets = count_targets(rows.targets)
        else:
            self.n_targets = 1 if len(rows.classes) == 2 else len(rows.classes)
        self.n_columns += self.n_targets
        self.fit_intercept, self.scaler = fit_intercept, scaler
        self.has_centre = fit_intercept or (scaler is not None and bool(scaler.with_mean))
        self.shift = np.zeros(self.n_columns)

    def shifted(self) -> RidgeRows:
        """Return the same with a shift, so that large offsets cost no digits.

        Where a mean is subtracted, it is the median of a few rows, which may be test rows.
        """
        other = copy(self)
        other.shift = np.zeros_like(self.shift)
        few = np.unique(np.linspace(0, len(self.rows.order) - 1, 15).astype(int))
        X, y, _ = self.copy(few)
        if self.has_centre:
            other.shift[: X.shape[1]] = np.median(X, axis=0)
        if self.fit_intercept:
            other.shift[X.shape[1] :] = np.median(y, axis=0)
        return other

    def fill(self, part: RowNumbers, out: np.ndarray) -> np.ndarray | None:
        """Copy shifted rows and their targets into an array, and return their weights."""
        weights = super().fill(part, out)
        assert self.rows.targets is not None
        targets, y = self.rows.targets[part], out[:, self.rows.n_features :]
        if self.rows.classes is None:
            y[:] = targets.reshape(y.shape)
        elif self.n_targets == 1:
            y[:, 0] = np.where(targets == 1, 1, -1)
        else:
            y[:] = -1
            y[np.arange(len(targets)), targets] = 1
        if self.shift.any():
            out -= self.shift
        return weights

    def copy(self, part: RowNumbers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return shifted X and targets, and the weights, of some rows as float64."""
        d, n_rows = self.rows.n_features, n_rows_of(part)
        both = np.empty((n_rows, self.n_columns))
        weights = self.fill(part, both)
        return both[:, :d], both[:, d:], np.ones(n_rows) if weights is None else weights

    def equations(self, moments: Moments) -> Equations:
        """Return the equations of the models that are trained on rows with these moments."""
        d = self.rows.n_features
        mean = moments.means[0]
        origin = mean if self.fit_intercept else np.zeros_like(mean)
        scale, are_constant = np.ones(d), np.zeros(d, dtype=bool)
        if self.scaler is not None:
            assert moments.spread is not None
            spread = moments.spread
            whole = spread._replace(mean=spread.mean + self.shift[:d])
            _, scale = scale_by(self.scaler, whole)
            are_constant = is_constant(whole)
            if self.has_centre and not self.fit_intercept:
                origin[:d] = spread.mean
        second = moments.scatters[0] if self.fit_intercept else about(moments, origin)
        gram = second[:d, :d] / scale / scale[:, None]
        return Equations(gram, second[:d, d:] / scale[:, None], origin, scale, are_constant)

    def triangle(
        self, parts: Sequence[RowNumbers], origin: np.ndarray, scale: np.ndarray
    ) -> np.ndarray:
        """Return R of [X, y] = QR, of centred and scaled rows, with the columns of both.

        X'X has the squares of X's singular values. Where the largest is 1e8 times the smallest,
        rounding hides the latter. R has the singular values themselves.
        """
        d = self.rows.n_features
        triangle: np.ndarray = np.zeros((0, self.n_columns))  # as many rows as columns at most
        for part in parts:
            for some in blocks(part):
                X, y, weights = self.copy(some)
                both = np.hstack([(X - origin[:d]) / scale, y - origin[d:]])
                both *= np.sqrt(weights)[:, None]
                triangle = np.asarray(np.linalg.qr(np.vstack([triangle, both]), mode="r"))
        return triangle

    def solve_from_rows(
        self,
        parts: Sequence[RowNumbers],
        origin: np.ndarray,
        scale: np.ndarray,
        alphas: np.ndarray,
    ) -> np.ndarray:
        """Return (X'X + alpha I)^-1 X'y of centred and scaled rows for alphas above 0.

        Returns
        -------
        ndarray of shape (n_alphas, n_features, n_targets)

        Raises
        ------
        ValueError
            For an alpha of 0, as columns depend on each other.
        """
        if np.any(alphas == 0):
            raise singular_error("a training set")
        d = self.rows.n_features
        triangle = self.triangle(parts, origin, scale)
        left, values, right = np.linalg.svd(triangle[:d, :d])
        projected = left.T @ triangle[:d, d:]
        shrinks = values / (np.square(values) + alphas[:, None])
        return np.asarray(right.T @ (shrinks[:, :, None] * projected))


def singular_error(whose: str) -> ValueError:
    """Return the error of an alpha of 0 where columns depend on each other."""
    return ValueError(
        f"alpha must be above 0 where columns of X depend on each other within {whose}, got "
        "alpha=0; a small alpha such as 1e-6 would be right."
    )
