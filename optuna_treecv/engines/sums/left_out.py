"""Leave-one-out ridge regression, and small test folds, from one factorisation of all rows.

Removing row i, with centred features u and centred targets v, changes G = X'X into G - c u u' and
B = X'y into B - c u v'. With A = G + alpha I, the model that is trained without row i predicts

.. math:: f_i = \\frac{u' A^{-1} B - c \\, g v'}{1 - c g}, \\quad g = u' A^{-1} u

for row i, which takes two products with the basis of A. If c g, the leverage of a row, is nearly
1, this formula loses digits. The model is then computed from the moments of all other rows.

Corrections for a ``StandardScaler``, which is fitted without the test row:

The standard deviations of the columns change a little if a row is removed. If the columns are
still divided by the standard deviations of all rows, the penalty of column j becomes
alpha (1 - e_j), and e_j is of the order of 1 / n_rows. With E = diag(e), this replaces A^-1 u by
t = (A - alpha E)^-1 u. A series in A^-1 alpha E gives u't and B't. The series is summed until a
bound on its remainder is small enough, which takes more terms for some rows and alphas than for
others.
"""

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from functools import reduce
from itertools import starmap
from typing import NamedTuple

import numpy as np

from optuna_treecv.engines.sums.equations import Basis
from optuna_treecv.engines.sums.equations import compute_bases
from optuna_treecv.engines.sums.equations import Equations
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

# All rows are read in at most this many segments, whose moments are cached. The few chunks that
# are solved directly then read only their own segment again.
_MAX_SEGMENTS = 32

# If 1 - leverage of a row or chunk is below this, the update loses digits, and the row or chunk is
# solved directly.
_MIN_GAP = 1e-2

# A row or chunk that contributes a larger share of the scatter of a target is solved directly.
_MAX_SHARE = 0.5

# The number of float64 values of a block of rows. The block and its products fit into a
# second-level cache.
_BLOCK = 2**17

# The error that may remain, relative to the mean absolute residual of a block of rows.
_TOLERANCE = 1e-13

# The error that may remain in models without residuals, relative to the mean absolute target.
_ROUNDING = 1e-16

# A term whose error bound is below this multiple of the error that may remain is computed in
# float32.
_MAX_RATIO_FOR_FLOAT32 = 1e6

# Rows with a larger |e_j| are solved directly.
_MAX_CHANGE = 0.5

# Rows that need more terms of the series are solved directly.
_MAX_TERMS = 60

# The maximum number of bytes of inverse matrices in memory. With the inverse of A, A^-1 u takes
# one matrix product instead of two with the eigenvectors.
_MAX_BYTES = 2**26

# If a larger share of the rows needs another term, it is added to all rows, because selecting rows
# would take longer.
_MAX_SELECTED_SHARE = 0.7


class HeldOutRidge:
    """Ridge models for all alphas that are each trained on all rows but one small chunk.

    Parameters
    ----------
    source : RidgeRows
    alphas : ndarray of shape (n_alphas,)
    chunks : Chunks
        The training rows of each chunk must be all other rows (``chunks.trains`` is None).
    cached : callable
        An ``ArrayCache``.
    n_jobs : int
    """

    def __init__(
        self,
        source: RidgeRows,
        alphas: np.ndarray,
        chunks: Chunks,
        cached: ArrayCache,
        n_jobs: int,
    ) -> None:
        source = source.shifted()
        self._source, self._alphas, self._chunks, self._n_jobs = source, alphas, chunks, n_jobs
        d = source.rows.n_features
        # Reading a segment costs about as much as factorising a matrix, and the moments of all
        # segments take at most an eighth of the memory of X.
        k, n_tested = chunks.n_chunks, int(chunks.bounds[-1])
        n_segments = min(max(1, n_tested // max(1024, 16 * source.n_columns)), _MAX_SEGMENTS, k)
        self._segment_bounds = np.linspace(0, k, n_segments + 1).astype(int)  # as chunk indices
        segments = replace(chunks, bounds=chunks.bounds[self._segment_bounds])
        sums = moments_of_chunks(source, segments, cached, n_jobs, "parts of all rows")
        self._before, self._segments = source.before(chunks), [*map(source.view, sums)]
        moments = self._moments_without()
        mean, self._weight = moments.means[0], float(moments.weights[0])
        self._equations = source.equations(moments)
        gram, b, origin, scale, _ = self._equations
        if np.any(alphas == 0) and is_singular(gram):
            raise singular_error("the rows")
        self._centre = mean[d:] if source.has_centre else np.zeros(source.n_targets)
        self._squares = about(moments, np.append(mean[:d], self._centre)).diagonal()[d:]
        self._bases = []
        triangle = partial(source.triangle, [slice(0, chunks.n_rows)], origin, scale)
        for basis in compute_bases(gram, b, alphas, triangle):
            projected = basis.projected.T  # (n_targets, n_features)
            vectors = basis.vectors / scale[:, None]  # for unscaled columns
            self._bases.append((basis, vectors, basis.shrinks[:, None] * projected))
        self._spread: Spread | None = None
        if source.scaler is not None and source.scaler.with_std:
            assert moments.spread is not None
            self._spread = moments.spread
            self._corrections = [
                Corrections(alphas[basis.alpha_indices], basis, coef @ basis.vectors.T)
                for basis, _, coef in self._bases
            ]

    def _moments_without(self, chunk: int | None = None) -> Moments:
        """Return the moments of all rows except a chunk, or of all rows if ``chunk`` is None.

        The segment that contains the chunk is read again without it. The result is merged with
        the moments of the other segments.
        """
        segments = self._segments
        if chunk is not None:
            index = int(np.searchsorted(self._segment_bounds, chunk, side="right")) - 1
            start, stop = self._segment_bounds[index : index + 2]
            others = [
                self._source.collect(self._chunks.test_rows(first, last))
                for first, last in ((start, chunk), (chunk + 1, stop))
                if self._chunks.bounds[first] < self._chunks.bounds[last]
            ]
            segments = [*segments[:index], *others, *segments[index + 1 :]]
        return reduce(merge, [*self._before, *segments], self._source.empty_moments())

    def test(self, most_rows: int, row_by_row: bool) -> Iterator[TestedChunks]:
        """Predict the rows of each chunk with models that are trained on all other rows.

        For chunks of several rows, this is faster than one factorisation per chunk if a chunk has
        fewer rows than a quarter of the number of columns. For these chunks, there must be no
        scaler that divides by standard deviations, or that subtracts means if there is no
        intercept.

        Parameters
        ----------
        most_rows : int
            The maximum number of test rows that are yielded together.
        row_by_row : bool
            Whether each chunk is a single row.
        """
        assert row_by_row or self._spread is None
        block_size = max(64, _BLOCK // self._source.rows.n_features)
        predict_block = self._predict_equal_chunks
        if row_by_row:
            block_size, predict_block = min(2048, block_size), self._predict_single_rows
        groups = self._chunks.groups(most_rows, self._chunks.n_chunks)
        predict = partial(self._predict_group, predict_block, block_size)
        yield from in_order(self._n_jobs, predict, starmap(slice, groups))

    def _predict_group(
        self, predict_block: Callable[..., np.ndarray], block_size: int, group: slice
    ) -> TestedChunks:
        """Predict consecutive chunks, in blocks of chunks with equal numbers of rows.

        A block has about ``block_size`` rows.
        """
        bounds = self._chunks.bounds[group.start : group.stop + 1]
        bounds = bounds - bounds[0]
        outputs = np.empty((len(self._alphas), self._source.n_targets, bounds[-1]))
        sizes = np.diff(bounds)
        stops = np.append(np.flatnonzero(np.diff(sizes)) + 1, len(sizes))  # of runs of equal sizes
        first = 0
        while first < len(sizes):
            size = int(sizes[first])
            stop = int(stops[np.searchsorted(stops, first, side="right")])
            last = min(first + max(1, block_size // max(size, 1)), stop)
            chunks = slice(group.start + first, group.start + last)
            out = outputs[:, :, bounds[first] : bounds[last]]
            with np.errstate(all="ignore"):  # rows that are not finite are solved directly
                is_direct = predict_block(chunks, size, out)
            for i in np.flatnonzero(is_direct.any(axis=0)):
                alpha_indices = np.flatnonzero(is_direct[:, i])
                predictions = self._predict_directly(chunks.start + int(i), alpha_indices)
                out[alpha_indices, :, i * size : (i + 1) * size] = predictions
            first = last
        return group, outputs.transpose(0, 2, 1)

    def _predict_equal_chunks(self, chunks: slice, size: int, out: np.ndarray) -> np.ndarray:
        """Predict chunks of ``size`` rows each; return a mask of those to solve directly.

        The residuals of a chunk's rows are r = (I - K W)^-1 e. Here e are their residuals in the
        model of all rows, K = U A^-1 U' + 1 / (sum of all weights), and W is the diagonal matrix
        of their weights. This is computed as r = e + K S (I - S K S)^-1 S e with S = sqrt(W),
        which is also valid for weights of 0.

        Returns
        -------
        ndarray of shape (n_alphas, n_chunks), bool
        """
        source, equations = self._source, self._equations
        X, y, weights = source.copy(self._chunks.test_rows(chunks.start, chunks.stop))
        n_chunks = chunks.stop - chunks.start
        X -= equations.origin[: source.rows.n_features]
        v = y - self._centre
        roots = np.sqrt(weights).reshape(n_chunks, size)
        base = self._centre + source.shift[-source.n_targets :]
        totals = (weights[:, None] * np.square(v)).reshape(n_chunks, size, -1).sum(axis=1)
        is_dominant = (totals > _MAX_SHARE * self._squares).any(axis=1)
        is_direct = np.empty((len(self._alphas), n_chunks), dtype=bool)
        for basis, vectors, coef in self._bases:
            z = X @ vectors
            predictions = (z @ coef.reshape(-1, z.shape[1]).T).reshape(len(z), *coef.shape[:2])
            z_chunks = z.reshape(n_chunks, size, -1)
            order = np.argsort(self._alphas[basis.alpha_indices], kind="stable")
            is_safe = np.zeros(n_chunks, dtype=bool)  # a safe chunk is safe for larger alphas too
            for i in order:
                shrunk = z_chunks * basis.shrinks[i]
                K = shrunk @ z_chunks.transpose(0, 2, 1)
                if source.fit_intercept:
                    K += 1 / self._weight
                gaps = K * (-roots[:, :, None] * roots[:, None, :])
                gaps[:, range(size), range(size)] += 1
                if not is_safe.all():
                    is_safe[~is_safe] = _smallest_eigenvalues(gaps[~is_safe]) >= _MIN_GAP
                e = (v - predictions[:, i]).reshape(n_chunks, size, -1)
                gaps[~is_safe] = np.identity(size)
                solved = np.linalg.solve(gaps, roots[:, :, None] * e)
                e += K @ (roots[:, :, None] * solved)
                alpha_index = basis.alpha_indices[i]
                out[alpha_index] = (base + v - e.reshape(v.shape)).T
                is_direct[alpha_index] = ~is_safe | is_dominant
        return is_direct

    def _predict_single_rows(self, chunks: slice, size: int, out: np.ndarray) -> np.ndarray:
        """Predict chunks of a single row each; return a mask of those to solve directly.

        Returns
        -------
        ndarray of shape (n_alphas, n_rows), bool
        """
        source, equations = self._source, self._equations
        X, y, weights = source.copy(self._chunks.test_rows(chunks.start, chunks.stop))
        changes = None
        if self._spread is not None:
            changes = relative_scale_changes(X, self._spread, equations.is_constant)
        X -= equations.origin[: source.rows.n_features]
        v = (y - self._centre).T
        c, r, base = self._downdate_factors(weights, v)
        is_direct = np.empty((len(self._alphas), len(X)), dtype=bool)
        z = np.empty_like(X)
        for basis_index, (basis, vectors, coef) in enumerate(self._bases):
            np.matmul(X, vectors, out=z)
            squares = z * z
            leverages = basis.shrinks @ squares.T
            predictions = (coef.reshape(-1, z.shape[1]) @ z.T).reshape(-1, *v.shape)
            is_open: np.ndarray | bool = False
            if changes is not None:
                rows = Rows(z, squares, changes, c, r, v)
                corrections = self._corrections[basis_index]
                is_open = corrections.correct(rows, leverages, predictions)
            leverages *= c
            gaps = 1 - leverages
            is_direct[basis.alpha_indices] = ~(gaps >= _MIN_GAP * r) | is_open
            predictions -= leverages[:, None] * v
            predictions /= gaps[:, None]
            predictions *= r
            predictions += base
            out[basis.alpha_indices] = predictions
        is_dominant = weights * np.square(v) > _MAX_SHARE * self._squares[:, None]
        return is_direct | is_dominant.any(axis=0)

    def _downdate_factors(
        self, weights: np.ndarray, v: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return c of each row, and the factor and the summand in its leave-one-out prediction.

        Returns
        -------
        c : ndarray of shape (n_rows,)
            G becomes G - c u u' without the row. NaN if no update exists.
        r : ndarray of shape (n_rows,)
            The factor.
        base : ndarray of shape (n_targets, n_rows)
            The summand.
        """
        source = self._source
        if source.fit_intercept:
            others = self._weight - weights
            r = self._weight / others
            mean = (self._centre + source.shift[-source.n_targets :])[:, None]
            return weights * r, r, mean - weights / others * v
        if not source.has_centre:
            return weights, np.ones_like(weights), np.zeros_like(v)
        if source.rows.weights is not None:  # the scaler subtracts a mean that ignores weights
            return np.full_like(weights, np.nan), np.ones_like(weights), np.zeros_like(v)
        n_rows = self._weight
        r = np.full_like(weights, n_rows / (n_rows - 1))
        return r, r, np.zeros_like(v)

    def linear_models(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the models that hold out a single row, for the first alpha; see ``Family``.

        There must be no scaler. With the coefficients w of all rows, those without a row are
        :math:`w - A^{-1} u c (v - u' w) / (1 - c g)`.
        """
        source, (basis, vectors, projected) = self._source, self._bases[0]
        d, n_rows = source.rows.n_features, self._chunks.n_chunks
        w, origin = projected[0] @ vectors.T, self._equations.origin[:d]
        mean = origin + source.shift[:d]  # 0 if no mean is subtracted
        coef, intercept = np.empty((n_rows, *w.shape)), np.empty((n_rows, len(w)))
        size = max(64, _BLOCK // d)
        for rows in starmap(slice, ((i, min(i + size, n_rows)) for i in range(0, n_rows, size))):
            X, y, weights = source.copy(self._chunks.test_rows(rows.start, rows.stop))
            X -= origin
            v = (y - self._centre).T
            c, r, base = self._downdate_factors(weights, v)
            z = X @ vectors
            shrunk = z * basis.shrinks[0]
            gaps = 1 - c * (shrunk * z).sum(axis=1)
            steps = c * (v - w @ X.T) / gaps
            directions = shrunk @ vectors.T
            # By how much the mean changes without a row, as a multiple of the row.
            shares = weights / (self._weight - weights) if source.fit_intercept else 0.0
            for target, models in enumerate(coef[rows].transpose(1, 0, 2)):
                np.multiply(directions, -steps[target][:, None], out=models)
                models += w[target]
                at_mean = models @ mean - shares * np.einsum("ij,ij->i", models, X)
                intercept[rows, target] = base[target] - at_mean
            is_dominant = weights * np.square(v) > _MAX_SHARE * self._squares[:, None]
            is_direct = ~(gaps >= _MIN_GAP * r) | is_dominant.any(axis=0)
            for row in (rows.start + np.flatnonzero(is_direct)).tolist():
                solved, equations = self._solve_directly(row, np.arange(1))
                coef[row] = (solved[0] / equations.scale[:, None]).T
                means = equations.origin + source.shift
                intercept[row] = means[d:] - coef[row] @ means[:d]
        return coef, intercept

    def _predict_directly(self, chunk: int, alpha_indices: np.ndarray) -> np.ndarray:
        """Predict a chunk's rows with models from the moments of all other rows.

        Returns
        -------
        ndarray of shape (len(alpha_indices), n_targets, n_rows)
        """
        coef, equations = self._solve_directly(chunk, alpha_indices)
        source, d = self._source, self._source.rows.n_features
        X, _, _ = source.copy(self._chunks.test_rows(chunk, chunk + 1))
        X -= equations.origin[:d]
        X /= equations.scale
        return coef.transpose(0, 2, 1) @ X.T + (equations.origin + source.shift)[d:, None]

    def _solve_directly(
        self, chunk: int, alpha_indices: np.ndarray
    ) -> tuple[np.ndarray, Equations]:
        """Return the models of scaled columns from the moments of all rows outside a chunk.

        Their shape is (len(alpha_indices), n_features, n_targets).
        """
        moments = self._moments_without(chunk)
        if moments.weights[0] == 0:
            raise no_weight_error()
        source, d, t = self._source, self._source.rows.n_features, self._source.n_targets
        equations = source.equations(moments)
        penalties = Penalties(np.empty(Penalties.size(d, t)), d, t)
        alphas, chunks = self._alphas[alpha_indices], self._chunks
        penalties.factor(equations.gram, equations.b, alphas)
        origin, scale = equations.origin, equations.scale
        return source.solve(penalties, alphas, chunks, chunk, origin, scale), equations


def _smallest_eigenvalues(matrices: np.ndarray) -> np.ndarray:
    """Return the smallest eigenvalue of each symmetric matrix; -inf for a non-finite matrix."""
    smallest = np.full(len(matrices), -np.inf)
    is_finite = np.isfinite(matrices).all(axis=(1, 2))
    if is_finite.any():
        smallest[is_finite] = np.linalg.eigvalsh(matrices[is_finite])[:, 0]
    return smallest


class Rows(NamedTuple):
    """A block of rows, and the constants in the formula of their leave-one-out predictions.

    The model that is trained without a row predicts r (B't - c u't v) / (1 - c u't) for it, plus a
    summand that does not depend on t.

    Attributes
    ----------
    z : ndarray of shape (n_rows, n_features)
        The rows u in the coordinates of a basis.
    squared_z : ndarray of shape (n_rows, n_features)
        The squares of ``z``.
    changes : ndarray of shape (n_rows, n_features)
        e of each row and column, see ``relative_scale_changes``.
    c : ndarray of shape (n_rows,)
        G becomes G - c u u' without the row.
    r : ndarray of shape (n_rows,)
    v : ndarray of shape (n_targets, n_rows)
        The centred targets.
    """

    z: np.ndarray
    squared_z: np.ndarray
    changes: np.ndarray
    c: np.ndarray
    r: np.ndarray
    v: np.ndarray


def relative_scale_changes(X: np.ndarray, spread: Spread, is_constant: np.ndarray) -> np.ndarray:
    """Return e, the relative decrease of each column's variance if a row is removed.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
    spread : Spread
        The mean and the squares of each column of all rows.
    is_constant : ndarray of shape (n_features,), bool
        The columns that are not scaled; their e is 0.

    Returns
    -------
    ndarray of shape (n_rows, n_features)
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
    """Correct leave-one-out predictions for a scaler that is fitted without the test row.

    Parameters
    ----------
    alphas : ndarray of shape (n_alphas,)
        The alphas for which the basis is valid.
    basis : Basis
        The basis of the scaled columns.
    coef : ndarray of shape (n_alphas, n_targets, n_features)
        The coefficients of the models that are trained on all rows.
    """

    def __init__(self, alphas: np.ndarray, basis: Basis, coef: np.ndarray) -> None:
        self._alphas, self._basis, self._coef = alphas, basis, coef
        self._squared_coef = np.square(coef).reshape(-1, coef.shape[2])
        self._squared_shrinks = np.square(basis.shrinks)
        # alpha A^-1, whose entries are at most 1 in absolute value.
        self._inverses: np.ndarray | None = None
        if 8 * len(alphas) * basis.vectors.size <= _MAX_BYTES:
            self._inverses = np.empty((len(alphas), *basis.vectors.shape))
            for alpha, shrinks, out in zip(alphas, basis.shrinks, self._inverses, strict=True):
                out[:] = basis.vectors * (alpha * shrinks) @ basis.vectors.T

    def correct(self, rows: Rows, leverages: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Correct u't and B't for the scales that are fitted without each row.

        They were computed with the scales of all rows, E = 0.

        Parameters
        ----------
        rows : Rows
        leverages : ndarray of shape (n_alphas, n_rows)
            u't, corrected in place.
        predictions : ndarray of shape (n_alphas, n_targets, n_rows)
            B't, corrected in place.

        Returns
        -------
        ndarray of shape (n_alphas, n_rows), bool
            A mask of the rows whose series does not reach the required precision.
        """
        alphas = self._alphas[:, None]
        largest_change = np.abs(rows.changes).max(axis=1)
        is_far = largest_change > _MAX_CHANGE
        # How much an error of u't or of B't changes a prediction.
        gaps = 1 - rows.c * leverages
        is_usual = ~is_far & (gaps > _MIN_GAP)
        errors = np.where(is_usual[:, None], np.abs((predictions - rows.v) / gaps[:, None]), 0)
        per_prediction = rows.r / gaps / (1 - np.minimum(largest_change, _MAX_CHANGE))
        per_prediction[~is_usual] = 0
        per_leverage = (rows.c * per_prediction)[:, None] * errors
        total = (rows.r * errors).sum(axis=2)
        tolerance = _TOLERANCE * total / np.maximum(is_usual.sum(axis=1), 1)[:, None]
        tolerance = np.maximum(tolerance, _ROUNDING * np.abs(rows.v).mean(axis=1))[:, :, None]
        tolerance = np.maximum(tolerance, np.finfo(np.float64).tiny)  # if all targets are 0
        # |A^-1 u|^2, or for a basis that is not orthonormal its bound u'A^-1 u / alpha.
        if self._basis.is_orthonormal:
            squares = self._squared_shrinks @ rows.squared_z.T
        else:
            squares = leverages / np.where(alphas == 0, np.inf, alphas)
        norms = np.sqrt(self._squared_coef @ np.square(rows.changes).T)  # |E coef|
        limits = _Limits(
            norms.reshape(predictions.shape) * (alphas * per_prediction)[:, None],
            per_leverage * alphas[:, :, None],
            tolerance,
        )
        ratios = limits.ratios(np.sqrt(squares), largest_change * squares)
        is_open = np.broadcast_to(is_far, leverages.shape).copy()
        narrow: tuple[np.ndarray, np.ndarray] | None = None
        for alpha_index in np.flatnonzero((ratios > 1).any(axis=1)):
            if narrow is None:
                narrow = rows.z.astype(np.float32), rows.changes.astype(np.float32)
            ratio = ratios[alpha_index]
            is_wide = _extend_to_all(ratio > _MAX_RATIO_FOR_FLOAT32)  # in float64
            is_narrow = (ratio > 1) & ~is_wide  # in float32
            if not is_wide.any():
                is_narrow = _extend_to_all(is_narrow)
            for mask, (z, changes) in ((is_wide, (rows.z, rows.changes)), (is_narrow, narrow)):
                if mask.any():
                    chosen = slice(None) if mask.all() else np.flatnonzero(mask)
                    selected = limits.select(chosen, int(alpha_index))
                    terms = self._sum_terms(z[chosen], changes[chosen], int(alpha_index), selected)
                    leverages[alpha_index, chosen] += terms[0]
                    predictions[alpha_index][:, chosen] += terms[1]
                    is_open[alpha_index, chosen] |= terms[2]
        return is_open

    def _sum_terms(
        self, z: np.ndarray, changes: np.ndarray, alpha_index: int, limits: "_Limits"
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the sums to add to u't and B't, and a mask of rows that need more terms.

        With s_0 = A^-1 u and s_k = A^-1 alpha E s_(k-1), the terms of B't are coef' alpha E s_k,
        and the terms of u't are s_k' alpha E s_k and s_k' alpha E s_(k-1). The norm of E s_k
        bounds the remainder.
        """
        alpha, vectors = self._alphas[alpha_index], self._basis.vectors
        coef = (alpha * self._coef[alpha_index]).astype(z.dtype)
        step = z @ (vectors * self._basis.shrinks[alpha_index]).T.astype(z.dtype)
        n_rows = len(z)
        leverages, predictions = np.zeros(n_rows), np.zeros((len(coef), n_rows))
        is_open = np.ones(n_rows, bool)
        term: np.ndarray | None = None
        remaining: slice | np.ndarray = slice(None)
        for _ in range(_MAX_TERMS):
            if term is not None:
                step = self._apply_inverse(term, alpha_index)
                leverages[remaining] += alpha * _products(term, step)
            term = changes * step
            leverages[remaining] += alpha * _products(term, step)
            predictions[:, remaining] += coef @ term.T
            squares = _products(term, term)
            ratios = limits.ratios(np.sqrt(squares), squares)
            needs_more = ratios > 1
            is_open[remaining] = needs_more
            if not needs_more.any():
                break
            if needs_more.mean() < _MAX_SELECTED_SHARE:
                remaining = np.arange(n_rows)[remaining][needs_more]
                term, changes = term[needs_more], changes[needs_more]
                limits = limits.select(needs_more)
            if term.dtype != np.float32 and np.max(ratios) <= _MAX_RATIO_FOR_FLOAT32:
                term, changes = term.astype(np.float32), changes.astype(np.float32)
                coef = coef.astype(np.float32)
        return leverages, predictions, is_open

    def _apply_inverse(self, vectors: np.ndarray, alpha_index: int) -> np.ndarray:
        """Return alpha A^-1 times each row of ``vectors``."""
        if self._inverses is not None:
            return vectors @ self._inverses[alpha_index].astype(vectors.dtype, copy=False)
        basis = self._basis.vectors.astype(vectors.dtype)
        shrinks = self._alphas[alpha_index] * self._basis.shrinks[alpha_index]
        return np.asarray(((vectors @ basis) * shrinks.astype(vectors.dtype)) @ basis.T)


class _Limits(NamedTuple):
    """Factors that bound the errors of predictions, and the tolerance for these errors.

    An error of a prediction comes from the errors of B't and u't. Both are bounded by the size of
    the last term of their series.

    Attributes
    ----------
    per_norm : ndarray of shape (..., n_targets, n_rows)
        The bound on the error due to B't, relative to the norm of the term.
    per_square : ndarray of shape (..., n_targets, n_rows)
        The bound on the error due to u't, relative to the squared norm of the term.
    tolerance : ndarray of shape (..., n_targets, 1)
        The largest error of a prediction that may remain.
    """

    per_norm: np.ndarray
    per_square: np.ndarray
    tolerance: np.ndarray

    def ratios(self, norms: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Return each row's largest error bound over all targets, relative to the tolerance.

        Parameters
        ----------
        norms, squares : ndarray of shape (..., n_rows)
            The norm of the last term of each row, and its square.
        """
        bounds = self.per_norm * norms[..., None, :]
        bounds += self.per_square * squares[..., None, :]
        bounds /= self.tolerance
        return np.asarray(bounds.max(axis=-2))

    def select(self, rows: slice | np.ndarray, alpha_index: int | None = None) -> "_Limits":
        """Return the limits for a selection of rows, and for one alpha if its index is given."""
        arrays = self if alpha_index is None else (array[alpha_index] for array in self)
        per_norm, per_square, tolerance = arrays
        return _Limits(per_norm[:, rows], per_square[:, rows], tolerance)


def _products(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the scalar product of each row of ``first`` with the same row of ``second``."""
    return np.einsum("ij,ij->i", first, second)


def _extend_to_all(mask: np.ndarray) -> np.ndarray:
    """Return a mask of all rows if the mask selects most of them, otherwise the mask itself."""
    return np.ones_like(mask) if mask.mean() > _MAX_SELECTED_SHARE else mask
