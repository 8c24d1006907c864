"""Leave-one-out: the prediction of each row by the model of all other rows.

Let w be the minimum for all rows, H the Hessian at w, and g_i and S_i the first and second
derivatives of the loss of row i with respect to its predictors. At w, the objective without row i
has the Hessian H_i = H - x_i' S_i x_i and the gradient b_i = -x_i' g_i. One Newton step from w
therefore leads to the predictor

    z_i + (1 - Q_i S_i)^-1 Q_i g_i,   where Q_i = x_i H^-1 x_i'             (Sherman-Morrison).

1. One step. It is exact if the losses of the other rows are quadratic. Otherwise, its error is
   bounded by self-concordance, |loss'''| <= c loss''. The step d changes the predictor of another
   row j by |x_j d| <= r = sqrt(d' H_i d max_j q_j), where q_j = x_j H_i^-1 x_j', and

       |error of the predictor of row i| <= c / 2 exp(2 c r) sqrt(q_i) d' M d,
       M = sum_j sqrt(q_j) x_j' S_j x_j.

2. Refinement. If the bound is too large, the row gets further steps with the Hessian H_i, from

       H_i d = -b_i - sum_j (loss'(z_j + x_j d) - loss'(z_j) - loss''(z_j) x_j d) x_j.

   Often, a sum over the rows j with the largest q_j is enough: the error due to the other rows is
   bounded as above, with their terms of M and their r. Otherwise, the sum is over all rows.
3. A row is refit as a fold of one row if its refinement does not converge, or if its hat value,
   the trace of Q_i S_i, is close to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator

import numpy as np

from optuna_treecv.engines.newton.objective import L2Penalties
from optuna_treecv.engines.newton.objective import Objective
from optuna_treecv.engines.newton.solver import factor_hessians
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import RowIndices

# The largest bound on the error of a row's predictor, and of its loss in units of the tolerance.
_MAX_ERROR = 5e-5

# The largest bound on the error of the mean loss due to rows that are not refined: half of 1e-6.
# The other half is left for the rows that are refined.
_MAX_MEAN_ERROR = 5e-7

# Rows with a larger hat value are solved as folds.
_MAX_HAT_VALUE = 0.9

# The numbers of rows over which refinements sum, in turn, before they sum over all rows.
_N_EXACT = 2**12, 2**14, 2**16, 2**18

# The maximum number of rows that are refined together.
_BATCH_SIZE = 256

# The maximum number of Newton steps for the model of all rows, and of refinement steps for each
# row.
_MAX_STEPS = 40

# A refinement ends if the predictor will change by less than this.
_MAX_REMAINING_CHANGE = 1e-7

# The Newton decrement below which the model of all rows has converged.
_MAX_DECREMENT = 1e-9


class LeaveOneOutModels:
    """The leave-one-out models of one candidate.

    Parameters
    ----------
    objective : Objective
        Its only training set has all rows.
    penalty : L2Penalties
        The penalty of the model of all rows.
    relative_penalty_changes : callable or None
        (row indices, rows) -> an array of shape (n_rows, width): for each row, by which fraction
        of themselves the penalties of columns change if it is left out. None: they do not change.
    """

    def __init__(
        self,
        objective: Objective,
        penalty: L2Penalties,
        relative_penalty_changes: Callable[[RowIndices, np.ndarray], np.ndarray] | None,
    ) -> None:
        self._objective, self._penalty = objective, penalty
        self._relative_penalty_changes = relative_penalty_changes
        n_rows, n, rows = len(objective.targets), objective.n_outputs, objective.rows
        self._weights = np.ones(n_rows) if rows.weights is None else rows.weights.astype(float)
        if objective.class_weights is not None:
            self._weights *= objective.class_weights[-1][objective.targets]
        # z_i and g_i of each row.
        self._z, self._gradients = np.empty((2, n_rows, n))
        # S_i and Q_i of each row.
        self._S, self._Q = np.empty((2, n_rows, n, n))
        # The traces of Q_i.
        self._leverages = np.empty(n_rows)
        # The model of all rows, and M of all rows.
        self._model, self._M = np.empty((n, objective.width)), np.empty((0, 0))

    def _read(self, rows: RowIndices) -> Iterator[tuple[RowIndices, np.ndarray]]:
        """Yield blocks of row indices and rows, with a column of ones for the intercept."""
        for indices in blocks(rows):
            yield indices, self._objective.read(indices)

    def predict(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the leave-one-out predictors, and a mask of rows that must be solved as folds.

        The predictors (n_rows, n_outputs) are all NaN if the model of all rows has not converged.
        """
        n_rows = len(self._z)
        if not self._decrement < _MAX_DECREMENT:
            return np.full_like(self._z, np.nan), np.zeros(n_rows, bool)
        sizes = [*(size for size in _N_EXACT if 2 * size < n_rows), n_rows]
        predictors, errors = self._one_step(sizes[0] if len(sizes) > 1 else 0)
        inexact = np.arange(n_rows)
        for size in sizes:
            is_inexact = self._are_inexact(inexact, predictors[inexact], errors[inexact])
            inexact = inexact[is_inexact]
            if len(inexact) == 0:
                break
            exact: RowIndices = slice(0, n_rows) if size == n_rows else np.sort(self._order[:size])
            M_others, largest = None, 0.0
            if size < n_rows:
                M_others = self._M - self._compute_M(exact)
                largest = self._leverages[self._order[size]]
            for start in range(0, len(inexact), _BATCH_SIZE):
                batch = inexact[start : start + _BATCH_SIZE]
                predictors[batch], errors[batch] = self._refine(batch, exact, M_others, largest)
        return predictors, ~np.isfinite(errors)

    def _are_inexact(
        self, rows: np.ndarray, predictors: np.ndarray, errors: np.ndarray
    ) -> np.ndarray:
        """Return a mask of the rows whose errors are too large, alone or in the mean of losses."""
        derivatives = predictors[:, None].copy()
        self._objective.loss.differentiate(derivatives, self._objective.targets[rows])
        errors = np.where(np.isfinite(errors), errors, 0)
        loss_errors = errors * np.abs(derivatives).max(axis=(1, 2)) / self._objective.tolerance
        are_inexact = np.maximum(errors, loss_errors) > _MAX_ERROR
        order = np.argsort(loss_errors)
        sums = np.cumsum(loss_errors[order])
        are_inexact[order[sums > _MAX_MEAN_ERROR * len(self._z)]] = True
        return are_inexact

    def fit_full_model(self, model: np.ndarray) -> None:
        """Compute the model of all rows by Newton's method in float64, from a start close to it.

        Its Hessian and the derivatives of the loss of each row are stored.
        """
        for _ in range(_MAX_STEPS):
            gradient, hessian = np.zeros_like(model), np.zeros((*model.shape, *model.shape))
            for indices, X in self._read(slice(0, len(self._z))):
                y, weights = self._objective.targets[indices], self._weights[indices, None, None]
                self._z[indices] = X @ model.T
                derivatives = self._z[indices][:, None].copy()
                self._objective.loss.differentiate(derivatives, y)
                self._gradients[indices] = (derivatives * weights)[:, 0]
                self._S[indices] = self._objective.loss.hessians(self._z[indices], y) * weights
                gradient += self._gradients[indices].T @ X
                _add_hessian(hessian, X, self._S[indices])
            self._penalty.add_gradients(model[None], gradient[None])
            self._model, self._gradient = model, gradient
            self._hessian = hessian.reshape(gradient.size, -1)
            self._penalty.add_hessians(self._hessian[None])
            (factor,) = factor_hessians(self._hessian[None].copy(), self._penalty.is_free)
            self._inverse = factor.solve(np.eye(gradient.size))
            step = (self._inverse @ gradient.ravel()).reshape(model.shape)
            self._decrement = float(np.sum(step * gradient))
            if not self._decrement >= _MAX_DECREMENT:
                break
            model = model - step

    def _penalty_changes(self, indices: RowIndices, X: np.ndarray) -> np.ndarray:
        """Return, for each row, how the penalties of columns change if the row is left out.

        The shape is (n_rows, width).
        """
        if self._relative_penalty_changes is None:
            return np.zeros_like(X)
        return self._penalty.column_strengths * self._relative_penalty_changes(indices, X)

    def _multiply(self, X: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return x_i times a matrix (size, size), (n_rows, n_outputs, n_outputs, width)."""
        n, d = self._model.shape
        by_column = matrix.reshape(n, d, n, d).transpose(1, 0, 2, 3).reshape(d, -1)
        return (X @ by_column).reshape(len(X), n, n, d)

    def _one_step(self, n_large: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the predictors after one Newton step, and bounds of their errors.

        A bound is the sum of two terms: the error due to the ``n_large`` rows with the largest
        leverages, and the error due to all other rows.
        """
        n_rows, n = self._z.shape
        steps = np.empty((n_rows, n))
        penalty_terms, penalty_ratios = np.zeros(n_rows), np.zeros(n_rows)
        strengths = np.maximum(self._penalty.column_strengths, 1e-300)
        for indices, X in self._read(slice(0, n_rows)):
            products = self._multiply(X, self._inverse)
            self._Q[indices] = np.einsum("iabe,ie->iab", products, X)
            steps[indices] = np.einsum("iab,ib->ia", self._Q[indices], self._gradients[indices])
            if self._relative_penalty_changes is None:
                full_step = (self._inverse @ self._gradient.ravel()).reshape(n, -1)
                steps[indices] -= X @ full_step.T
                continue
            changes = self._penalty_changes(indices, X)
            gradients = self._gradient + changes[:, None] * self._model
            steps[indices] -= np.einsum("iabe,ibe->ia", products, gradients)
            squares = np.square(changes)[:, None] * np.square(self._model)
            penalty_terms[indices] = np.sum(squares / strengths, axis=(1, 2))
            penalty_ratios[indices] = np.max(np.abs(changes) / strengths, axis=1)
        # The hat values: the traces of Q_i S_i.
        self._hats = np.einsum("iab,iba->i", self._Q, self._S)
        needs_fold = ~(self._hats < _MAX_HAT_VALUE)  # solved as a fold of one row
        self._hats[needs_fold] = 0
        # (1 - Q_i S_i)^-1
        self._factors = np.eye(n) - self._Q @ self._S
        self._factors[needs_fold] = np.eye(n)
        self._factors = np.asarray(
            1 / self._factors if n == 1 else np.linalg.inv(self._factors), np.float64
        )
        steps = np.einsum("iab,ib->ia", self._factors, steps)
        self._leverages[:] = np.einsum("iaa->i", self._Q)
        # sqrt(q_i)
        traces = np.einsum("iaa->i", self._factors @ self._Q)
        self._norms = np.sqrt(np.maximum(traces, 0))
        # d = H^-1 x_i' u_i plus a remainder, which is due to the gradient and the penalties.
        u = self._gradients + np.einsum("iab,ib->ia", self._S, steps)
        remainder = np.sqrt(2 * (penalty_terms + self._decrement))
        norms = np.sqrt(np.maximum(np.einsum("ia,iab,ib->i", u, self._Q, u), 0))
        self._order = np.argsort(-np.where(self._weights > 0, self._leverages, 0))
        self._M = self._compute_M(slice(0, n_rows))
        M_large = self._compute_M(np.sort(self._order[:n_large]))
        # d' M d of each row, with M of the other rows and with M of the large ones.
        dMd = np.empty((2, n_rows))
        matrices = [self._inverse @ M @ self._inverse for M in (self._M - M_large, M_large)]
        for indices, X in self._read(slice(0, n_rows)):
            for matrix, out in zip(matrices, dMd, strict=True):
                products = np.einsum("iabe,ie->iab", self._multiply(X, matrix), X)
                out[indices] = np.einsum("ia,iab,ib->i", u[indices], products, u[indices])
        errors = np.zeros(n_rows)
        for values, first in zip(dMd, (n_large, 0), strict=True):
            largest = max(self._leverages[self._order[first]], 0)
            values = np.square(np.sqrt(np.maximum(values, 0)) + largest**0.25 * remainder)
            errors += self._bound_errors(slice(None), norms + remainder, values, largest)
        errors += self._norms * penalty_ratios * (norms + remainder)
        errors[needs_fold] = np.inf
        return self._z + steps, errors

    def _bound_errors(
        self, indices: RowIndices, norms: np.ndarray, dMd: np.ndarray, largest: float
    ) -> np.ndarray:
        """Return bounds of the errors of predictors (item 1 of the module's docstring).

        Parameters
        ----------
        indices : slice or ndarray of int
            The rows i.
        norms, dMd : ndarray of shape (n_rows,)
            sqrt(d' H d) and d' M d of each row.
        largest : float
            The maximum of q_j.
        """
        c, root = self._objective.loss.self_concordance, np.sqrt(1 - self._hats[indices])
        with np.errstate(over="ignore"):
            growth = np.exp(2 * c * norms * largest**0.5 / root)
            return np.asarray(c / 2 * growth * self._norms[indices] * dMd / root)

    def _compute_M(self, rows: RowIndices) -> np.ndarray:
        """Return the terms of M of some rows, with q_j = x_j H^-1 x_j' for the Hessian H."""
        n, d = self._model.shape
        M = np.zeros((n, d, n, d))
        for indices, X in self._read(rows):
            roots = np.sqrt(np.maximum(self._leverages[indices], 0))[:, None, None]
            _add_hessian(M, X, self._S[indices] * roots)
        return M.reshape(n * d, n * d)

    def _refine(
        self, rows: np.ndarray, exact: RowIndices, M_others: np.ndarray | None, largest: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the refined predictors of some rows, and bounds of their errors.

        Parameters
        ----------
        rows : ndarray of int
            The indices of the rows that are left out, at most ``_BATCH_SIZE``.
        exact : slice or ndarray of int
            The rows j of the sum in item 2 of the module's docstring. The losses of all other
            rows are approximated by quadratic ones.
        M_others : ndarray of shape (size, size) or None
            M of all other rows; None: there are none.
        largest : float
            Their largest leverage.
        """
        X = next(self._read(rows))[1]
        products = self._multiply(X, self._inverse)
        penalty_changes = self._penalty_changes(rows, X)[:, None]
        gradients = self._gradients[rows, :, None] * X[:, None] - self._gradient
        gradients -= penalty_changes * self._model
        factors = self._S[rows] @ self._factors[rows]

        def solve(active: np.ndarray, extra: np.ndarray | float) -> np.ndarray:
            """Return H_i^-1 (-b_i - extra) by the Sherman-Morrison formula."""
            vectors = (gradients[active] - extra).reshape(len(active), -1)
            steps = (vectors @ self._inverse).reshape(-1, *self._model.shape)
            changes = np.einsum("id,ikd->ik", X[active], steps)
            changes = np.einsum("iab,ib->ia", factors[active], changes)
            return np.asarray(steps + np.einsum("iabe,ia->ibe", products[active], changes))

        active = np.arange(len(rows))
        steps = solve(active, 0.0)
        norms = self._hessian_norms(steps) + 1e-300
        has_converged = np.zeros(len(rows), bool)
        for _ in range(_MAX_STEPS):
            current = steps[active]
            extra = self._nonquadratic_gradients(rows[active], current, exact)
            new = solve(active, penalty_changes[active] * current + extra)
            steps[active] = new
            previous_norms = norms[active]
            norms[active] = self._hessian_norms(new - current)
            ratio = norms[active] / previous_norms
            remaining = norms[active] * np.maximum(ratio / (1 - ratio), 1e-2)
            change = remaining * self._norms[rows[active]]
            is_end = (ratio < 1) & (change < _MAX_REMAINING_CHANGE)
            has_converged[active[is_end]] = True
            active = active[~is_end & np.isfinite(norms[active])]
            if len(active) == 0:
                break
        predictors = self._z[rows] + np.einsum("id,ikd->ik", X, steps)
        errors = np.zeros(len(rows))
        if M_others is not None:
            vectors = steps.reshape(len(rows), -1)
            dMd = np.maximum(np.sum(vectors @ M_others * vectors, axis=1), 0)
            errors = self._bound_errors(rows, self._hessian_norms(steps), dMd, largest)
        errors[~has_converged] = np.inf
        return predictors, errors

    def _hessian_norms(self, steps: np.ndarray) -> np.ndarray:
        """Return sqrt(d' H d) of each step d."""
        vectors = steps.reshape(len(steps), -1)
        return np.sqrt(np.maximum(np.sum(vectors @ self._hessian * vectors, axis=1), 0))

    def _nonquadratic_gradients(
        self, left_out: np.ndarray, steps: np.ndarray, exact: RowIndices
    ) -> np.ndarray:
        """Return sum_j (loss'(z_j + x_j d) - loss'(z_j) - loss''(z_j) x_j d) x_j for each step d.

        The sum is over the rows ``exact`` without the row that is left out for the step.
        """
        sums = np.zeros_like(steps)
        for indices, X in self._read(exact):
            changes = np.tensordot(X, steps, (1, 2))
            z = self._z[indices][:, None] + changes
            self._objective.loss.differentiate(z, self._objective.targets[indices])
            z *= self._weights[indices, None, None]
            z -= self._gradients[indices][:, None]
            z -= np.einsum("rab,rmb->rma", self._S[indices], changes)
            if isinstance(indices, slice):
                indices = np.arange(indices.start, indices.stop)
            z[indices[:, None] == left_out] = 0
            sums += np.tensordot(z, X, (0, 0))
        return sums


def _add_hessian(hessian: np.ndarray, X: np.ndarray, S: np.ndarray) -> None:
    """Add sum_i x_i' S_i x_i to a Hessian (n_outputs, width, n_outputs, width)."""
    n = S.shape[1]
    for a in range(n):
        root = X * np.sqrt(S[:, a, a, None])
        hessian[a, :, a] += root.T @ root
        for b in range(a):
            product = (X * S[:, a, b, None]).T @ X
            hessian[a, :, b] += product
            hessian[b, :, a] += product
