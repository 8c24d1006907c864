"""Ridge regression without single rows or small chunks, from one factorisation of all rows.

Without row i, G becomes G - c u u' and B becomes B - c u v', so that with A = G + alpha I

.. math:: f_i = \\frac{u' A^{-1} B - c \\, g v'}{1 - c g}, \\quad g = u' A^{-1} u

is what the model without the row says of it, all for two products with the basis of A. Rows whose
leverage is nearly 1 lose digits by this, and get their model from the moments of all other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from functools import partial
from itertools import starmap

import numpy as np

from optuna_treecv.learners.exact.all_but import AllBut
from optuna_treecv.learners.exact.chunks import Chunks
from optuna_treecv.learners.exact.chunks import Keep
from optuna_treecv.learners.exact.chunks import TestedChunks
from optuna_treecv.learners.exact.moments import about
from optuna_treecv.learners.exact.moments import Spread
from optuna_treecv.learners.exact.other_scales import changes_without
from optuna_treecv.learners.exact.other_scales import Corrections
from optuna_treecv.learners.exact.other_scales import Rows
from optuna_treecv.learners.exact.penalties import bases
from optuna_treecv.learners.exact.penalties import is_singular
from optuna_treecv.learners.exact.penalties import Penalties
from optuna_treecv.learners.exact.ridge_rows import RidgeRows
from optuna_treecv.learners.exact.ridge_rows import singular_error
from optuna_treecv.learners.exact.threads import in_order

# Below this share of a row or chunk in its own prediction, digits are lost: a model of its own.
_LEAST_GAP = 1e-2

# A row or chunk with a larger share of a target's scatter gets a model of its own.
_MOST_SHARE = 0.5

# The numbers of a block of rows, which fits into a second-level cache with its products.
_BLOCK = 2**17


class LeftOut:
    """Models for all alphas without each of many chunks.

    Parameters
    ----------
    of : RidgeRows
    alphas : ndarray of shape (n_alphas,)
    chunks : Chunks
        Without given training rows.
    keep : callable
    n_jobs : int
    """

    def __init__(
        self, of: RidgeRows, alphas: np.ndarray, chunks: Chunks, keep: Keep, n_jobs: int
    ) -> None:
        of = of.shifted()
        self._of, self._alphas, self._chunks, self._n_jobs = of, alphas, chunks, n_jobs
        d = of.rows.n_features
        self._all_but = AllBut(of, chunks, keep, n_jobs)
        moments = self._all_but.all_rows()
        mean, self._weight = moments.means[0], float(moments.weights[0])
        self._equations = found = of.equations(moments)
        if np.any(alphas == 0) and is_singular(found.gram):
            raise singular_error("the rows")
        self._centre = mean[d:] if of.has_centre else np.zeros(of.n_targets)
        self._squares = about(moments, np.append(mean[:d], self._centre)).diagonal()[d:]
        self._parts = []

        def triangle() -> np.ndarray:
            return of.triangle([slice(0, chunks.n_rows)], found.origin, found.scale)

        for basis in bases(found.gram, found.b, alphas, triangle):
            projected = basis.projected.T  # (n_targets, n_features)
            vectors = basis.vectors / found.scale[:, None]  # for columns that are not scaled
            self._parts.append((basis, vectors, basis.shrinks[:, None] * projected))
        self._spread: Spread | None = None
        if of.scaler is not None and of.scaler.with_std:
            assert moments.spread is not None
            self._spread = moments.spread
            self._corrections = [
                Corrections(alphas[basis.points], basis, coef @ basis.vectors.T)
                for basis, _, coef in self._parts
            ]

    def test(self, most_rows: int, row_by_row: bool) -> Iterator[TestedChunks]:
        """Test each chunk with the models that are trained on all others.

        Chunks of several rows take less time this way than a factorisation for each where they
        have fewer rows than a quarter of the columns. A scaler must not divide by standard
        deviations then, and without an intercept it must not subtract means.

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
            with np.errstate(all="ignore"):  # what is not finite is computed once more
                direct = test_block(chunks, size, out)
            for number in np.flatnonzero(direct.any(axis=0)):
                points = np.flatnonzero(direct[:, number])
                said = self._directly(chunks.start + int(number), points)
                out[points, :, number * size : (number + 1) * size] = said
            first = last
        return part, outputs.transpose(0, 2, 1)

    def _test_equal_chunks(self, chunks: slice, size: int, out: np.ndarray) -> np.ndarray:
        """Test chunks of one size; return which alphas and chunks need a model of their own.

        The residuals of a chunk's rows are r = (I - K W)^-1 e with the residuals e of the model of
        all rows, K = U A^-1 U' + 1 / weight and the weights W. This is solved as
        r = e + K S (I - S K S)^-1 S e with S = sqrt(W), which weights of 0 do not hurt.
        """
        of, found = self._of, self._equations
        X, y, weights = of.copy(self._chunks.test_rows(chunks.start, chunks.stop))
        n_chunks = chunks.stop - chunks.start
        X -= found.origin[: of.rows.n_features]
        v = y - self._centre
        roots = np.sqrt(weights).reshape(n_chunks, size)
        base = self._centre + of.shift[-of.n_targets :]
        totals = (weights[:, None] * np.square(v)).reshape(n_chunks, size, -1).sum(axis=1)
        has_most = (totals > _MOST_SHARE * self._squares).any(axis=1)
        is_direct = np.empty((len(self._alphas), n_chunks), dtype=bool)
        for basis, vectors, coef in self._parts:
            z = X @ vectors
            said = (z @ coef.reshape(-1, z.shape[1]).T).reshape(len(z), *coef.shape[:2])
            of_chunks = z.reshape(n_chunks, size, -1)
            order = np.argsort(self._alphas[basis.points], kind="stable")
            is_safe = np.zeros(n_chunks, dtype=bool)  # so are then those of larger alphas
            for number in order:
                shrunk = of_chunks * basis.shrinks[number]
                K = shrunk @ of_chunks.transpose(0, 2, 1)
                if of.fit_intercept:
                    K += 1 / self._weight
                gaps = K * (-roots[:, :, None] * roots[:, None, :])
                gaps[:, range(size), range(size)] += 1
                if not is_safe.all():
                    is_safe[~is_safe] = _least_eigenvalues(gaps[~is_safe]) >= _LEAST_GAP
                e = (v - said[:, number]).reshape(n_chunks, size, -1)
                gaps[~is_safe] = np.identity(size)
                solved = np.linalg.solve(gaps, roots[:, :, None] * e)
                e += K @ (roots[:, :, None] * solved)
                point = basis.points[number]
                out[point] = (base + v - e.reshape(v.shape)).T
                is_direct[point] = ~is_safe | has_most
        return is_direct

    def _test_rows(self, chunks: slice, size: int, out: np.ndarray) -> np.ndarray:
        """Test a block of single rows; return which alphas and rows need a model of their own."""
        of, found = self._of, self._equations
        X, y, weights = of.copy(self._chunks.test_rows(chunks.start, chunks.stop))
        changes = None
        if self._spread is not None:
            changes = changes_without(X, self._spread, found.is_constant)
        X -= found.origin[: of.rows.n_features]
        v = (y - self._centre).T
        c, r, base = self._downdate(weights, v)
        is_direct = np.empty((len(self._alphas), len(X)), dtype=bool)
        z = np.empty_like(X)
        for number, (basis, vectors, coef) in enumerate(self._parts):
            np.matmul(X, vectors, out=z)
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
        """Return what models from the moments of all other rows say of a chunk's rows.

        Returns
        -------
        ndarray of shape (n_points, n_targets, n_rows)
        """
        moments = self._all_but.without(chunk)
        rows = self._chunks.test_rows(chunk, chunk + 1)
        if moments.weights[0] == 0:
            raise ValueError(
                "sample_weight must be above 0 in some row of each training set, got one with 0 "
                "in all rows."
            )
        d, t = self._of.rows.n_features, self._of.n_targets
        found = self._of.equations(moments)
        equations = Penalties(np.empty(Penalties.size(d, t)), d, t)
        equations.factor(found.gram, found.b, self._alphas[points])
        coef = equations.solve(self._alphas[points])  # (n_points, d, t)
        failed = np.isnan(coef).any(axis=(1, 2))
        if failed.any() and np.all(np.isfinite(found.gram)):
            alphas, parts = self._alphas[points[failed]], self._chunks.train_parts(chunk)
            coef[failed] = self._of.solve_from_rows(parts, found.origin, found.scale, alphas)
        X, _, _ = self._of.copy(rows)
        X -= found.origin[:d]
        X /= found.scale
        return coef.transpose(0, 2, 1) @ X.T + (found.origin + self._of.shift)[d:, None]


def _least_eigenvalues(matrices: np.ndarray) -> np.ndarray:
    """Return the least eigenvalue of each symmetric matrix, -inf if that is not finite."""
    found = np.full(len(matrices), -np.inf)
    is_finite = np.isfinite(matrices).all(axis=(1, 2))
    if is_finite.any():
        found[is_finite] = np.linalg.eigvalsh(matrices[is_finite])[:, 0]
    return found
