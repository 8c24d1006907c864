"""Leave-one-out ridge regression, and small chunks, from one factorisation of all rows.

Without row i, G becomes G - c u u' and B becomes B - c u v', so that with A = G + alpha I

.. math:: f_i = \frac{u' A^{-1} B - c \\, g v'}{1 - c g}, \\quad g = u' A^{-1} u

is the prediction of row i by the model without it, for two products with the basis of A. Rows with
a leverage of nearly 1 lose digits by this, and get their model from the moments of all other rows.

Corrections for a ``StandardScaler``, which is fitted without the row:

Without a row the scales of the columns differ a little. In terms of the scales of all rows, the
penalty of column j is alpha (1 - e_j), where e_j is of the order of 1 / n_rows. So A^-1 u becomes
t = (A - alpha E)^-1 u with E = diag(e). A series in A^-1 alpha E gives u't and B't. It ends when a
bound on the remainder is small enough, which differs between rows and alphas.
"""

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from functools import reduce
from itertools import starmap
from typing import NamedTuple

import numpy as np

from optuna_treecv.engines.sums.equations import bases
from optuna_treecv.engines.sums.equations import Basis
from optuna_treecv.engines.sums.equations import is_singular
from optuna_treecv.engines.sums.equations import no_weight_error
from optuna_treecv.engines.sums.equations import Penalties
from optuna_treecv.engines.sums.equations import RidgeRows
from optuna_treecv.engines.sums.equations import singular_error
from optuna_treecv.numerics.moments import about
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.numerics.moments import merge
from optuna_treecv.numerics.moments import Moments
from optuna_treecv.numerics.moments import moments_of_chunks
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.numerics.spread import Spread

# The most parts of the rows whose moments are cached, for the few chunks that are solved directly.
_MOST_PARTS = 32

# If 1 - leverage of a row or chunk is below this, digits are lost, and it is solved directly.
_LEAST_GAP = 1e-2

# A row or chunk with a larger share of a target's scatter is solved directly.
_MOST_SHARE = 0.5

# The numbers of a block of rows, which fits into a second-level cache with its products.
_BLOCK = 2**17

# The remaining error, as a share of the mean absolute residual of a block of rows.
_TOLERANCE = 1e-13
# The remaining error as a share of the targets, for models without residuals.
_ROUNDING = 1e-16

# A term whose bound is below this multiple of the remaining error is computed in float32.
_MOST_NARROW = 1e6

# Rows with a larger |e|, or that need more terms, are solved directly.
_MOST_CHANGE = 0.5
_MOST_TERMS = 60

# The most bytes of inverse matrices, which save a product with the eigenvectors.
_MOST_BYTES = 2**26

# If a larger share of rows continues, all do, because selecting rows would take longer.
_MOST_OF = 0.7


class RowsOutOfSums:
    """Models for all alphas without each of many chunks.

    Parameters
    ----------
    of : RidgeRows
    alphas : ndarray of shape (n_alphas,)
    chunks : Chunks
        Chunks without explicit training rows.
    keep : callable
    n_jobs : int
    """

    def __init__(
        self, of: RidgeRows, alphas: np.ndarray, chunks: Chunks, keep: ArrayCache, n_jobs: int
    ) -> None:
        of = of.shifted()
        self._of, self._alphas, self._chunks, self._n_jobs = of, alphas, chunks, n_jobs
        d = of.rows.n_features
        # Reading a part of the rows costs about as much as factorising a matrix, and the moments
        # of all parts take an eighth of the memory of X at most.
        k, n_tested = chunks.n_chunks, int(chunks.bounds[-1])
        n_parts = min(max(1, n_tested // max(1024, 16 * of.n_columns)), _MOST_PARTS, k)
        self._ends = np.linspace(0, k, n_parts + 1).astype(int)
        parts = replace(chunks, bounds=chunks.bounds[self._ends])
        sums = moments_of_chunks(of, parts, keep, n_jobs, "parts of all rows")
        self._always, self._moments = of.before(chunks), [*map(of.view, sums)]
        moments = self._moments_without()
        mean, self._weight = moments.means[0], float(moments.weights[0])
        self._equations = of.equations(moments)
        gram, b, origin, scale, _ = self._equations
        if np.any(alphas == 0) and is_singular(gram):
            raise singular_error("the rows")
        self._centre = mean[d:] if of.has_centre else np.zeros(of.n_targets)
        self._squares = about(moments, np.append(mean[:d], self._centre)).diagonal()[d:]
        self._parts = []
        triangle = partial(of.triangle, [slice(0, chunks.n_rows)], origin, scale)
        for basis in bases(gram, b, alphas, triangle):
            projected = basis.projected.T  # (n_targets, n_features)
            vectors = basis.vectors / scale[:, None]  # for unscaled columns
            self._parts.append((basis, vectors, basis.shrinks[:, None] * projected))
        self._spread: Spread | None = None
        if of.scaler is not None and of.scaler.with_std:
            assert moments.spread is not None
            self._spread = moments.spread
            self._corrections = [
                Corrections(alphas[basis.points], basis, coef @ basis.vectors.T)
                for basis, _, coef in self._parts
            ]

    def _moments_without(self, chunk: int | None = None) -> Moments:
        """Return the moments of all rows outside a chunk; None: of all rows.

        They are merged from those of the other parts of the rows, and of the chunk's part, which
        is read again without the chunk.
        """
        parts = self._moments
        if chunk is not None:
            index = int(np.searchsorted(self._ends, chunk, side="right")) - 1
            others = [
                self._of.collect(self._chunks.test_rows(first, last))
                for first, last in ((self._ends[index], chunk), (chunk + 1, self._ends[index + 1]))
                if self._chunks.bounds[first] < self._chunks.bounds[last]
            ]
            parts = [*parts[:index], *others, *parts[index + 1 :]]
        return reduce(merge, [*self._always, *parts], self._of.nothing())

    def test(self, most_rows: int, row_by_row: bool) -> Iterator[TestedChunks]:
        """Test each chunk with the models that are trained on all others.

        Chunks of several rows take less time this way than a factorisation for each if they have
        fewer rows than a quarter of the columns. A scaler must then not divide by standard
        deviations, and without an intercept it must not subtract means.

        Parameters
        ----------
        most_rows : int
        row_by_row : bool
            Whether each chunk is a single row.
        """
        assert row_by_row or self._spread is None
        most = max(64, _BLOCK // self._of.rows.n_features)
        test_block = self._test_equal_chunks
        if row_by_row:
            most, test_block = min(2048, most), self._test_rows
        groups = self._chunks.groups(most_rows, self._chunks.n_chunks)
        test = partial(self._test, test_block, most)
        yield from in_order(self._n_jobs, test, starmap(slice, groups))

    def _test(self, test_block: Callable[..., np.ndarray], most: int, part: slice) -> TestedChunks:
        """Test some chunks, ``most`` rows of chunks of one size together."""
        bounds = self._chunks.bounds[part.start : part.stop + 1]
        bounds = bounds - bounds[0]
        outputs = np.empty((len(self._alphas), self._of.n_targets, bounds[-1]))
        sizes = np.diff(bounds)
        ends = np.append(np.flatnonzero(np.diff(sizes)) + 1, len(sizes))
        first = 0
        while first < len(sizes):
            size = int(sizes[first])
            end = int(ends[np.searchsorted(ends, first, side="right")])
            last = min(first + max(1, most // max(size, 1)), end)
            chunks = slice(part.start + first, part.start + last)
            out = outputs[:, :, bounds[first] : bounds[last]]
            with np.errstate(all="ignore"):  # rows that are not finite are solved directly
                direct = test_block(chunks, size, out)
            for number in np.flatnonzero(direct.any(axis=0)):
                points = np.flatnonzero(direct[:, number])
                predictions = self._directly(chunks.start + int(number), points)
                out[points, :, number * size : (number + 1) * size] = predictions
            first = last
        return part, outputs.transpose(0, 2, 1)

    def _test_equal_chunks(self, chunks: slice, size: int, out: np.ndarray) -> np.ndarray:
        """Test chunks of one size; return a mask of the alphas and chunks to solve directly.

        The residuals of a chunk's rows are r = (I - K W)^-1 e with the residuals e of the model of
        all rows, K = U A^-1 U' + 1 / weight and the weights W. This is solved as
        r = e + K S (I - S K S)^-1 S e with S = sqrt(W), which weights of 0 do not hurt.
        """
        of, equations = self._of, self._equations
        X, y, weights = of.copy(self._chunks.test_rows(chunks.start, chunks.stop))
        n_chunks = chunks.stop - chunks.start
        X -= equations.origin[: of.rows.n_features]
        v = y - self._centre
        roots = np.sqrt(weights).reshape(n_chunks, size)
        base = self._centre + of.shift[-of.n_targets :]
        totals = (weights[:, None] * np.square(v)).reshape(n_chunks, size, -1).sum(axis=1)
        has_most = (totals > _MOST_SHARE * self._squares).any(axis=1)
        is_direct = np.empty((len(self._alphas), n_chunks), dtype=bool)
        for basis, vectors, coef in self._parts:
            z = X @ vectors
            predictions = (z @ coef.reshape(-1, z.shape[1]).T).reshape(len(z), *coef.shape[:2])
            of_chunks = z.reshape(n_chunks, size, -1)
            order = np.argsort(self._alphas[basis.points], kind="stable")
            is_safe = np.zeros(n_chunks, dtype=bool)  # also for larger alphas
            for number in order:
                shrunk = of_chunks * basis.shrinks[number]
                K = shrunk @ of_chunks.transpose(0, 2, 1)
                if of.fit_intercept:
                    K += 1 / self._weight
                gaps = K * (-roots[:, :, None] * roots[:, None, :])
                gaps[:, range(size), range(size)] += 1
                if not is_safe.all():
                    is_safe[~is_safe] = _least_eigenvalues(gaps[~is_safe]) >= _LEAST_GAP
                e = (v - predictions[:, number]).reshape(n_chunks, size, -1)
                gaps[~is_safe] = np.identity(size)
                solved = np.linalg.solve(gaps, roots[:, :, None] * e)
                e += K @ (roots[:, :, None] * solved)
                point = basis.points[number]
                out[point] = (base + v - e.reshape(v.shape)).T
                is_direct[point] = ~is_safe | has_most
        return is_direct

    def _test_rows(self, chunks: slice, size: int, out: np.ndarray) -> np.ndarray:
        """Test a block of single rows; return a mask of the alphas and rows to solve directly."""
        of, equations = self._of, self._equations
        X, y, weights = of.copy(self._chunks.test_rows(chunks.start, chunks.stop))
        changes = None
        if self._spread is not None:
            changes = changes_without(X, self._spread, equations.is_constant)
        X -= equations.origin[: of.rows.n_features]
        v = (y - self._centre).T
        c, r, base = self._downdate(weights, v)
        is_direct = np.empty((len(self._alphas), len(X)), dtype=bool)
        z = np.empty_like(X)
        for number, (basis, vectors, coef) in enumerate(self._parts):
            np.matmul(X, vectors, out=z)
            squares = z * z
            leverages = basis.shrinks @ squares.T
            predictions = (coef.reshape(-1, z.shape[1]) @ z.T).reshape(-1, *v.shape)
            is_open: np.ndarray | bool = False
            if changes is not None:
                rows = Rows(z, squares, changes, c, r, v)
                is_open = self._corrections[number].correct(rows, leverages, predictions)
            leverages *= c
            gaps = 1 - leverages
            is_direct[basis.points] = ~(gaps >= _LEAST_GAP * r) | is_open
            predictions -= leverages[:, None] * v
            predictions /= gaps[:, None]
            predictions *= r
            predictions += base
            out[basis.points] = predictions
        has_most = weights * np.square(v) > _MOST_SHARE * self._squares[:, None]
        return is_direct | has_most.any(axis=0)

    def _downdate(
        self, weights: np.ndarray, v: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return c, and the factor and the summand of predictions."""
        of = self._of
        if of.fit_intercept:
            others = self._weight - weights
            r = self._weight / others
            mean = (self._centre + of.shift[-of.n_targets :])[:, None]
            return weights * r, r, mean - weights / others * v
        if not of.has_centre:
            return weights, np.ones_like(weights), np.zeros_like(v)
        if of.rows.weights is not None:  # the mean is not that of weighted rows
            return np.full_like(weights, np.nan), np.ones_like(weights), np.zeros_like(v)
        n_rows = self._weight
        r = np.full_like(weights, n_rows / (n_rows - 1))
        return r, r, np.zeros_like(v)

    def _directly(self, chunk: int, points: np.ndarray) -> np.ndarray:
        """Return the predictions of a chunk's rows by models from the moments of all others.

        Returns
        -------
        ndarray of shape (n_candidates, n_targets, n_rows)
        """
        moments = self._moments_without(chunk)
        rows = self._chunks.test_rows(chunk, chunk + 1)
        if moments.weights[0] == 0:
            raise no_weight_error()
        d, t = self._of.rows.n_features, self._of.n_targets
        equations = self._of.equations(moments)
        penalties = Penalties(np.empty(Penalties.size(d, t)), d, t)
        alphas, chunks = self._alphas[points], self._chunks
        penalties.factor(equations.gram, equations.b, alphas)
        coef = self._of.solve(penalties, alphas, chunks, chunk, equations.origin, equations.scale)
        X, _, _ = self._of.copy(rows)
        X -= equations.origin[:d]
        X /= equations.scale
        return coef.transpose(0, 2, 1) @ X.T + (equations.origin + self._of.shift)[d:, None]


def _least_eigenvalues(matrices: np.ndarray) -> np.ndarray:
    """Return the least eigenvalue of each symmetric matrix, -inf if that is not finite."""
    least = np.full(len(matrices), -np.inf)
    is_finite = np.isfinite(matrices).all(axis=(1, 2))
    if is_finite.any():
        least[is_finite] = np.linalg.eigvalsh(matrices[is_finite])[:, 0]
    return least


class Rows(NamedTuple):
    """A block of rows, and the factors by which their predictions depend on u't and B't.

    The prediction of a row without it is r (B't - c u't v) / (1 - c u't), plus a summand that does
    not depend on t.

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
    """Return e for each row and column: the relative changes of squared scales without the row.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
    spread : Spread
        The spread of all rows.
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
    """Correct predictions for the scales without each row.

    Parameters
    ----------
    alphas : ndarray of shape (n_candidates,)
        The alphas that the basis serves.
    basis : Basis
        The basis of the scaled columns.
    coef : ndarray of shape (n_candidates, n_targets, n_features)
        The coefficients of the models of all rows.
    """

    def __init__(self, alphas: np.ndarray, basis: Basis, coef: np.ndarray) -> None:
        self._alphas, self._basis, self._coef = alphas, basis, coef
        self._squared_coef = np.square(coef).reshape(-1, coef.shape[2])
        self._squared_shrinks = np.square(basis.shrinks)
        # alpha A^-1; no entry is above 1
        self._inverses: np.ndarray | None = None
        if 8 * len(alphas) * basis.vectors.size <= _MOST_BYTES:
            self._inverses = np.empty((len(alphas), *basis.vectors.shape))
            for alpha, shrinks, out in zip(alphas, basis.shrinks, self._inverses, strict=True):
                out[:] = basis.vectors * (alpha * shrinks) @ basis.vectors.T

    def correct(self, rows: Rows, leverages: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Correct u't and B't in place; the input is for E = 0.

        Parameters
        ----------
        rows : Rows
        leverages : ndarray of shape (n_candidates, n_rows)
            u't.
        predictions : ndarray of shape (n_candidates, n_targets, n_rows)
            B't.

        Returns
        -------
        ndarray of shape (n_candidates, n_rows), bool
            A mask of the rows whose series is too long.
        """
        alphas = self._alphas[:, None]
        most = np.abs(rows.changes).max(axis=1)
        is_far = most > _MOST_CHANGE
        # The errors of predictions per error of u't and of B't.
        gaps = 1 - rows.c * leverages
        is_usual = ~is_far & (gaps > _LEAST_GAP)
        errors = np.where(is_usual[:, None], np.abs((predictions - rows.v) / gaps[:, None]), 0)
        per_prediction = rows.r / gaps / (1 - np.minimum(most, _MOST_CHANGE))
        per_prediction[~is_usual] = 0
        per_leverage = (rows.c * per_prediction)[:, None] * errors
        total = (rows.r * errors).sum(axis=2)
        least = _TOLERANCE * total / np.maximum(is_usual.sum(axis=1), 1)[:, None]
        least = np.maximum(least, _ROUNDING * np.abs(rows.v).mean(axis=1))[:, :, None]
        least = np.maximum(least, np.finfo(np.float64).tiny)  # if all targets are 0
        # |A^-1 u|^2 and |E coef|
        if self._basis.is_orthonormal:
            squares = self._squared_shrinks @ rows.squared_z.T
        else:
            squares = leverages / np.where(alphas == 0, np.inf, alphas)
        of_coef = np.sqrt(self._squared_coef @ np.square(rows.changes).T).reshape(
            predictions.shape
        )
        limits = _Limits(
            of_coef * (alphas * per_prediction)[:, None], per_leverage * alphas[:, :, None], least
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
                    part = slice(None) if which.all() else np.flatnonzero(which)
                    of_some = limits.of(part, int(point))
                    more = self._sum_terms(z[part], changes[part], int(point), of_some)
                    leverages[point, part] += more[0]
                    predictions[point][:, part] += more[1]
                    is_open[point, part] |= more[2]
        return is_open

    def _sum_terms(
        self, z: np.ndarray, changes: np.ndarray, point: int, limits: "_Limits"
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the summands of u't and B't of some rows, and which rows need more terms.

        With s_0 = A^-1 u and s_k = A^-1 alpha E s_(k-1), the terms of B't are coef' alpha E s_k,
        and those of u't are s_k' alpha E s_k and s_k' alpha E s_(k-1). The
        remainder follows from the norm of E s_k.
        """
        alpha, vectors = self._alphas[point], self._basis.vectors
        coef = (alpha * self._coef[point]).astype(z.dtype)
        step = z @ (vectors * self._basis.shrinks[point]).T.astype(z.dtype)
        n_rows = len(z)
        leverages, predictions = np.zeros(n_rows), np.zeros((len(coef), n_rows))
        is_open = np.ones(n_rows, bool)
        term: np.ndarray | None = None
        left: slice | np.ndarray = slice(None)
        for _ in range(_MOST_TERMS):
            if term is not None:
                step = self._apply(term, point)
                leverages[left] += alpha * _products(term, step)
            term = changes * step
            leverages[left] += alpha * _products(term, step)
            predictions[:, left] += coef @ term.T
            squares = _products(term, term)
            ratios = limits.ratios(np.sqrt(squares), squares)
            goes_on = ratios > 1
            is_open[left] = goes_on
            if not goes_on.any():
                break
            if goes_on.mean() < _MOST_OF:
                left = np.arange(n_rows)[left][goes_on]
                term, changes, limits = term[goes_on], changes[goes_on], limits.of(goes_on)
            if term.dtype != np.float32 and np.max(ratios) <= _MOST_NARROW:
                term, changes = term.astype(np.float32), changes.astype(np.float32)
                coef = coef.astype(np.float32)
        return leverages, predictions, is_open

    def _apply(self, numbers: np.ndarray, point: int) -> np.ndarray:
        """Return alpha A^-1 times each row of ``numbers``."""
        if self._inverses is not None:
            return numbers @ self._inverses[point].astype(numbers.dtype, copy=False)
        vectors = self._basis.vectors.astype(numbers.dtype)
        shrinks = (self._alphas[point] * self._basis.shrinks[point]).astype(numbers.dtype)
        return np.asarray(((numbers @ vectors) * shrinks) @ vectors.T)


class _Limits(NamedTuple):
    """Bounds on the errors of predictions.

    Attributes
    ----------
    of_predictions, of_leverages : ndarray of shape (..., n_targets, n_rows)
        The factors of the errors of B't and u't.
    least : ndarray of shape (..., n_targets, 1)
        The largest error that may remain.
    """

    of_predictions: np.ndarray
    of_leverages: np.ndarray
    least: np.ndarray

    def ratios(self, predictions: np.ndarray, leverages: np.ndarray) -> np.ndarray:
        """Return the greatest error of each row as a share of the largest that may remain."""
        bounds = self.of_predictions * predictions[..., None, :]
        bounds += self.of_leverages * leverages[..., None, :]
        bounds /= self.least
        return np.asarray(bounds.max(axis=-2))

    def of(self, rows: slice | np.ndarray, point: int | None = None) -> "_Limits":
        """Return the bounds of some rows, for one of several points or for a single one."""
        parts = self if point is None else (part[point] for part in self)
        predictions, leverages, least = parts
        return _Limits(predictions[:, rows], leverages[:, rows], least)


def _products(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the scalar products of the rows of two arrays."""
    return np.einsum("ij,ij->i", first, second)


def _mostly(which: np.ndarray) -> np.ndarray:
    """Return a mask of all rows if it has most of them, else the mask."""
    return np.ones_like(which) if which.mean() > _MOST_OF else which
