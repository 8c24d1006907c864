"""Ridge regression without single rows or small chunks, from one factorisation of all rows.

Without row i, G becomes G - c u u' and B becomes B - c u v', so that with A = G + alpha I

.. math:: f_i = \\frac{u' A^{-1} B - c \\, g v'}{1 - c g}, \\quad g = u' A^{-1} u

is what the model without the row says of it, all for two products with the basis of A. Rows whose
leverage is nearly 1 lose digits by this, and get their model from the moments of all other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.all_but import AllBut
from optuna_treecv.learners.exact.bases import bases
from optuna_treecv.learners.exact.blocks import blocks
from optuna_treecv.learners.exact.blocks import copy_rows
from optuna_treecv.learners.exact.blocks import n_rows_of
from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.family import Kept
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.family import Tested
from optuna_treecv.learners.exact.moments import about
from optuna_treecv.learners.exact.moments import Moments
from optuna_treecv.learners.exact.moments import moments_of
from optuna_treecv.learners.exact.other_scales import Corrections
from optuna_treecv.learners.exact.other_scales import Rows
from optuna_treecv.learners.exact.other_scales import ScalesWithout
from optuna_treecv.learners.exact.penalties import is_singular
from optuna_treecv.learners.exact.penalties import Penalties
from optuna_treecv.learners.exact.spread import is_constant
from optuna_treecv.learners.exact.spread import scale_by
from optuna_treecv.learners.exact.threads import in_order
from optuna_treecv.rows.data import PreparedRows

# Below this share of a row or chunk in its own prediction, digits are lost: a model of its own.
_LEAST_GAP = 1e-2

# A row or chunk with a larger share of a target's scatter gets a model of its own.
_MOST_SHARE = 0.5

# The numbers of a block of rows, which fits into a second-level cache with its products.
_BLOCK = 2**18


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
        What is subtracted from X and from the targets first, so that large offsets cost no
        digits: the median of a few rows where a mean is subtracted, else 0.
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
        d = rows.n_features
        self.shift = np.zeros(d + n_targets)
        few = np.unique(np.linspace(0, len(rows.order) - 1, 15).astype(int))
        X, y, _ = self.copy(few)
        if self.has_centre:
            self.shift[:d] = np.median(X, axis=0)
        if fit_intercept:
            self.shift[d:] = np.median(y, axis=0)

    def moments_of(self, part: RowNumbers) -> Moments:
        """Return the moments of some shifted rows."""
        with_spread = self.scaler is not None
        return moments_of(
            self.rows, part, self.n_targets, self._copy_targets, with_spread, self.shift
        )

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


class LeftOut:
    """Models for all alphas without each of many chunks.

    Parameters
    ----------
    of : RidgeRows
    alphas : ndarray of shape (n_alphas,)
    chunks : Chunks
        Without given training rows.
    kept : Kept
    n_jobs : int
    """

    def __init__(
        self, of: RidgeRows, alphas: np.ndarray, chunks: Chunks, kept: Kept, n_jobs: int
    ) -> None:
        self._of, self._alphas, self._chunks, self._n_jobs = of, alphas, chunks, n_jobs
        d = of.rows.n_features
        with_spread = of.scaler is not None
        self._all_but = AllBut(
            of.moments_of, chunks, d, d + of.n_targets, with_spread, kept, n_jobs
        )
        moments = self._all_but.all_rows()
        self._weight = moments.weight
        self._equations = found = equations_of(moments, of)
        if np.any(alphas == 0) and is_singular(found.gram):
            raise singular_error("the rows")
        self._squares = moments.scatter.diagonal()[d:]
        self._centre = np.zeros(of.n_targets) if not of.has_centre else moments.mean[d:]
        self._parts = []
        for basis in bases(found.gram, alphas):
            projected = (basis.vectors.T @ found.b).T  # (n_targets, n_features)
            self._parts.append((basis, basis.shrinks[:, None] * projected))
        self._scales: ScalesWithout | None = None
        if of.scaler is not None and of.scaler.with_std:
            assert moments.spread is not None
            self._scales = ScalesWithout(moments.spread, found.is_constant)
            self._corrections = [
                Corrections(alphas[basis.points], basis, coef @ basis.vectors.T)
                for basis, coef in self._parts
            ]

    def single_rows(self, most_rows: int) -> Iterator[Tested]:
        """Test each row with the models that are trained on all others."""
        k = self._chunks.n_chunks
        parts = [slice(first, min(first + most_rows, k)) for first in range(0, k, most_rows)]
        yield from in_order(self._n_jobs, self._test_rows, parts)

    def _test_rows(self, part: slice) -> Tested:
        shape = len(self._alphas), self._of.n_targets, part.stop - part.start
        outputs = np.empty(shape)
        size = max(64, min(2048, _BLOCK // self._of.rows.n_features))
        for some in blocks(part, size):
            assert isinstance(some, slice)
            out = outputs[:, :, some.start - part.start : some.stop - part.start]
            with np.errstate(all="ignore"):  # what is not finite is computed once more
                direct = self._test_block(some, out)
            for row in np.flatnonzero(direct.any(axis=0)):
                points = np.flatnonzero(direct[:, row])
                out[points, :, row] = self._directly(some.start + int(row), points)[:, :, 0]
        return Tested(part.start, part.stop, outputs.transpose(0, 2, 1))

    def _test_block(self, some: slice, out: np.ndarray) -> np.ndarray:
        """Test a block of rows; return which alphas and rows need a model of their own."""
        of, found = self._of, self._equations
        X, y, weights = of.copy(self._chunks.test_rows(some.start, some.stop))
        changes = None if self._scales is None else self._scales.changes(X)
        X -= found.origin[: of.rows.n_features]
        X /= found.scale
        v = (y - self._centre).T
        c, r, base = self._downdate(weights, v)
        is_direct = np.empty((len(self._alphas), len(X)), dtype=bool)
        z = np.empty_like(X)
        for number, (basis, coef) in enumerate(self._parts):
            np.matmul(X, basis.vectors, out=z)
            squares = z * z
            leverages = basis.shrinks @ squares.T
            said = (coef.reshape(-1, z.shape[1]) @ z.T).reshape(-1, *v.shape)
            is_open: np.ndarray | bool = False
            if changes is not None:
                rows = Rows(z, squares, changes, c, r, v)
                is_open = self._corrections[number].correct(rows, leverages, said)
            leverages *= c
            gaps = 1 - leverages
            is_direct[basis.points] = ~(gaps >= _LEAST_GAP * r) | is_open
            said -= leverages[:, None] * v
            said /= gaps[:, None]
            said *= r
            said += base
            out[basis.points] = said
        has_most = weights * np.square(v) > _MOST_SHARE * self._squares[:, None]
        return is_direct | has_most.any(axis=0)

    def _downdate(
        self, weights: np.ndarray, v: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return c, by what predictions are multiplied, and what is added to them."""
        of = self._of
        if of.fit_intercept:
            r = self._weight / (self._weight - weights)
            base = (self._centre + of.shift[-of.n_targets :])[:, None] - weights / (
                self._weight - weights
            ) * v
            return weights * r, r, base
        if not of.has_centre:
            return weights, np.ones_like(weights), np.zeros_like(v)
        if of.rows.weights is not None:  # the mean is not that of weighted rows
            return np.full_like(weights, np.nan), np.ones_like(weights), np.zeros_like(v)
        n_rows = self._weight
        r = np.full_like(weights, n_rows / (n_rows - 1))
        return r, r, np.zeros_like(v)

    def _directly(self, chunk: int, points: np.ndarray) -> np.ndarray:
        """Return what models from the moments of all other rows say of a chunk's rows.

        Returns
        -------
        ndarray of shape (n_points, n_targets, n_rows)
        """
        moments = self._all_but.without(chunk)
        rows = self._chunks.test_rows(chunk, chunk + 1)
        if moments.weight == 0:
            raise ValueError(
                "sample_weight must be above 0 in some row of each training set, got one with 0 "
                "in all rows."
            )
        d, t = self._of.rows.n_features, self._of.n_targets
        found = equations_of(moments, self._of)
        equations = Penalties(np.empty(Penalties.size(d, t)), d, t)
        equations.factor(found.gram, found.b)
        coef = equations.solve(self._alphas[points])  # (n_points, d, t)
        if np.any(np.isnan(coef)):
            raise singular_error("a training set")
        X, _, _ = self._of.copy(rows)
        X -= found.origin[:d]
        X /= found.scale
        return coef.transpose(0, 2, 1) @ X.T + (found.origin + self._of.shift)[d:, None]
