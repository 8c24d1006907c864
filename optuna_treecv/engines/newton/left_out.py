"""Leave-one-out: the prediction of each row by the model of all other rows.

Let w be the minimum for all rows, with the Hessian H, and g_i and S_i the first and second
derivatives of the loss of row i in its predictors. The other rows have the Hessian
H_i = H - x_i' S_i x_i and the slope b_i = -x_i' g_i there, so that one step leads to

    z_i + (1 - Q_i S_i)^-1 Q_i g_i,   where Q_i = x_i H^-1 x_i'             (Sherman-Morrison).

1. One step. It is exact if the losses of the other rows are quadratic. A bound on its error
   follows from |loss'''| <= c loss'' (self-concordance). With the step d, the predictor of another
   row j changes by |x_j d| <= r = sqrt(d' H_i d max_j q_j), where q_j = x_j H_i^-1 x_j', and

       |error of the predictor of row i| <= c / 2 exp(2 c r) sqrt(q_i) d' M d,
       M = sum_j sqrt(q_j) x_j' S_j x_j.

2. Refinement. Rows with too large a bound get further steps in the metric H_i, from

       H_i d = -b_i - sum_j (loss'(z_j + x_j d) - loss'(z_j) - loss''(z_j) x_j d) x_j.

   A sum over the rows j with the largest q_j is often enough: for the others, the bound above
   holds with their part of M and their r. Otherwise the sum is over all rows.
3. Rows whose steps do not converge, or that are a large part of H, are solved as folds of one row.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator

import numpy as np

from optuna_treecv.engines.newton.objective import LanePenalties
from optuna_treecv.engines.newton.objective import Objective
from optuna_treecv.engines.newton.solver import metrics_of
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import RowIndices

# The largest bounds on the errors of a row's predictor and loss, and of the mean of losses: half
# of them for the rows that are refined, and half for the others.
_MOST_ERROR, _MOST_MEAN_ERROR = 5e-5, 5e-7

# Rows with a larger hat value are solved as folds.
_MOST_LEVERAGE = 0.9

# The rows over which a refinement sums, in turn, before it sums over all rows.
_N_EXACT = 2**12, 2**14, 2**16, 2**18

# The rows that are refined at once, their most steps, and the change of a predictor that ends it.
_LANES, _MOST_STEPS, _MOST_REST = 256, 40, 1e-7

# The Newton decrement below which the model of all rows has converged.
_NEAR = 1e-9


class RowsOutOfModels:
    """The leave-one-out models at one penalty.

    Parameters
    ----------
    objective : Objective
        Without folds.
    penalty : LanePenalties
        The penalty of the model of all rows.
    changes : callable or None
        (row numbers, rows) -> the relative changes (n_rows, width) of the penalties of columns
        without each row; None: 0.
    """

    def __init__(
        self,
        objective: Objective,
        penalty: LanePenalties,
        changes: Callable[[RowIndices, np.ndarray], np.ndarray] | None,
    ) -> None:
        self._objective, self._penalty, self._changes = objective, penalty, changes
        n_rows, n, rows = len(objective.targets), objective.n_outputs, objective.rows
        self._weights = np.ones(n_rows) if rows.weights is None else rows.weights.astype(float)
        if objective.class_weights is not None:
            self._weights *= objective.class_weights[-1][objective.targets]
        # Of each row: predictors, first and second derivatives, x_i H^-1 x_i' and its trace.
        self._z, self._slopes = np.empty((2, n_rows, n))
        self._bends, self._squares = np.empty((2, n_rows, n, n))
        self._leverages = np.empty(n_rows)
        self._model, self._thirds = np.empty((n, objective.width)), np.empty((0, 0))

    def _read(self, rows: RowIndices) -> Iterator[tuple[RowIndices, np.ndarray]]:
        """Yield blocks of rows, with the column of an intercept."""
        for part in blocks(rows):
            yield part, self._objective.read(part)

    def outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the predictors (n_rows, n_outputs), and a mask of the rows without one.

        All are NaN if the model of all rows has not converged.
        """
        n_rows = len(self._z)
        if not self._decrement < _NEAR:
            return np.full_like(self._z, np.nan), np.zeros(n_rows, bool)
        sizes = [*(size for size in _N_EXACT if 2 * size < n_rows), n_rows]
        outputs, errors = self._one_step(sizes[0] if len(sizes) > 1 else 0)
        rough = np.arange(n_rows)
        for size in sizes:
            rough = rough[self._are_rough(rough, outputs[rough], errors[rough])]
            if len(rough) == 0:
                break
            exact: RowIndices = slice(0, n_rows) if size == n_rows else np.sort(self._order[:size])
            outside, largest = None, 0.0
            if size < n_rows:
                outside = self._thirds - self._sum_thirds(exact)
                largest = self._leverages[self._order[size]]
            for begin in range(0, len(rough), _LANES):
                part = rough[begin : begin + _LANES]
                outputs[part], errors[part] = self._refine(part, exact, outside, largest)
        return outputs, ~np.isfinite(errors)

    def _are_rough(self, rows: np.ndarray, outputs: np.ndarray, errors: np.ndarray) -> np.ndarray:
        """Return a mask of the rows whose errors are too large, alone or in the mean of losses."""
        slopes = outputs[:, None].copy()
        self._objective.loss.differentiate(slopes, self._objective.targets[rows])
        errors = np.where(np.isfinite(errors), errors, 0)
        of_losses = errors * np.abs(slopes).max(axis=(1, 2)) / self._objective.tolerance
        are_rough = np.maximum(errors, of_losses) > _MOST_ERROR
        order = np.argsort(of_losses)
        ends = np.cumsum(of_losses[order])
        are_rough[order[ends > _MOST_MEAN_ERROR * len(self._z)]] = True
        return are_rough

    def descend(self, model: np.ndarray) -> None:
        """Compute the model of all rows from a model near it, with sums in float64."""
        for _ in range(_MOST_STEPS):
            slope, hessian = np.zeros_like(model), np.zeros((*model.shape, *model.shape))
            for part, X in self._read(slice(0, len(self._z))):
                y, weights = self._objective.targets[part], self._weights[part, None, None]
                self._z[part] = X @ model.T
                z = self._z[part][:, None].copy()
                self._objective.loss.differentiate(z, y)
                self._slopes[part] = (z * weights)[:, 0]
                self._bends[part] = self._objective.loss.curvatures(self._z[part], y) * weights
                slope += self._slopes[part].T @ X
                _add_curvature(hessian, X, self._bends[part])
            self._penalty.add(model[None], slope[None])
            self._model, self._slope = model, slope
            self._hessian = hessian.reshape(slope.size, -1)
            self._penalty.add_to(self._hessian[None])
            (metric,) = metrics_of(self._hessian[None].copy(), self._penalty.is_free)
            self._inverse = metric.steps(np.eye(slope.size))
            step = (self._inverse @ slope.ravel()).reshape(model.shape)
            self._decrement = float(np.sum(step * slope))
            if not self._decrement >= _NEAR:
                break
            model = model - step

    def _penalty_changes(self, part: RowIndices, X: np.ndarray) -> np.ndarray:
        """Return the changes of the penalties of columns (n_rows, width) without each row."""
        if self._changes is None:
            return np.zeros_like(X)
        return self._penalty.of_columns * self._changes(part, X)

    def _products(self, X: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the products of rows and a matrix, (n_rows, n_outputs, n_outputs, width)."""
        n, d = self._model.shape
        of_columns = matrix.reshape(n, d, n, d).transpose(1, 0, 2, 3).reshape(d, -1)
        return (X @ of_columns).reshape(len(X), n, n, d)

    def _one_step(self, n_large: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the predictors after one step, and bounds of their errors.

        The bounds are sums of two: one for the ``n_large`` rows with the largest leverages, and
        one for all other rows.
        """
        n_rows, n = self._z.shape
        steps, of_penalties, parts = np.empty((n_rows, n)), np.zeros(n_rows), np.zeros(n_rows)
        of_columns = np.maximum(self._penalty.of_columns, 1e-300)
        for part, X in self._read(slice(0, n_rows)):
            products = self._products(X, self._inverse)
            self._squares[part] = np.einsum("iabe,ie->iab", products, X)
            steps[part] = np.einsum("iab,ib->ia", self._squares[part], self._slopes[part])
            if self._changes is None:
                steps[part] -= X @ (self._inverse @ self._slope.ravel()).reshape(n, -1).T
                continue
            grown = self._penalty_changes(part, X)
            slopes = self._slope + grown[:, None] * self._model
            steps[part] -= np.einsum("iabe,ibe->ia", products, slopes)
            slopes = np.square(grown)[:, None] * np.square(self._model)
            of_penalties[part] = np.sum(slopes / of_columns, axis=(1, 2))
            parts[part] = np.max(np.abs(grown) / of_columns, axis=1)
        # The hat values: the traces of Q_i S_i.
        self._hats = np.einsum("iab,iba->i", self._squares, self._bends)
        is_lost = ~(self._hats < _MOST_LEVERAGE)
        self._hats[is_lost] = 0
        # (1 - Q_i S_i)^-1
        self._factors = np.eye(n) - self._squares @ self._bends
        self._factors[is_lost] = np.eye(n)
        self._factors = np.asarray(
            1 / self._factors if n == 1 else np.linalg.inv(self._factors), np.float64
        )
        steps = np.einsum("iab,ib->ia", self._factors, steps)
        self._leverages[:] = np.einsum("iaa->i", self._squares)
        squares = self._factors @ self._squares
        self._norms = np.sqrt(np.maximum(np.einsum("iaa->i", squares), 0))
        # The step is x_i' H^-1 times this, plus a part of the slope and the penalties.
        shares = self._slopes + np.einsum("iab,ib->ia", self._bends, steps)
        remainder = np.sqrt(2 * (of_penalties + self._decrement))
        norms = np.sqrt(np.maximum(np.einsum("ia,iab,ib->i", shares, self._squares, shares), 0))
        self._order = np.argsort(-np.where(self._weights > 0, self._leverages, 0))
        self._thirds = self._sum_thirds(slice(0, n_rows))
        large = self._sum_thirds(np.sort(self._order[:n_large]))
        thirds = np.empty((2, n_rows))
        around = [self._inverse @ x @ self._inverse for x in (self._thirds - large, large)]
        for part, X in self._read(slice(0, n_rows)):
            for matrix, third in zip(around, thirds, strict=True):
                squares = np.einsum("iabe,ie->iab", self._products(X, matrix), X)
                third[part] = np.einsum("ia,iab,ib->i", shares[part], squares, shares[part])
        errors = np.zeros(n_rows)
        for third, first in zip(thirds, (n_large, 0), strict=True):
            largest = max(self._leverages[self._order[first]], 0)
            third = np.square(np.sqrt(np.maximum(third, 0)) + largest**0.25 * remainder)
            errors += self._errors(slice(None), norms + remainder, third, largest)
        errors += self._norms * parts * (norms + remainder)
        errors[is_lost] = np.inf
        return self._z + steps, errors

    def _errors(
        self, part: RowIndices, norms: np.ndarray, thirds: np.ndarray, largest: float
    ) -> np.ndarray:
        """Return bounds of the errors of predictors, from sqrt(d' H d), d' M d and max_j q_j."""
        bend, root = self._objective.loss.most_bend, np.sqrt(1 - self._hats[part])
        with np.errstate(over="ignore"):
            growth = np.exp(2 * bend * norms * largest**0.5 / root)
            return np.asarray(bend / 2 * growth * self._norms[part] * thirds / root)

    def _sum_thirds(self, rows: RowIndices) -> np.ndarray:
        """Return M of some rows, with q_j in the metric of all rows."""
        n, d = self._model.shape
        thirds = np.zeros((n, d, n, d))
        for part, X in self._read(rows):
            roots = np.sqrt(np.maximum(self._leverages[part], 0))[:, None, None]
            _add_curvature(thirds, X, self._bends[part] * roots)
        return thirds.reshape(n * d, n * d)

    def _refine(
        self, lanes: np.ndarray, exact: RowIndices, outside: np.ndarray | None, largest: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the predictors of some rows, and bounds of their errors.

        Parameters
        ----------
        lanes : ndarray of int
            The rows, at most ``_LANES``.
        exact : slice or ndarray of int
            The rows whose losses are not approximated by quadratic ones.
        outside : ndarray of shape (size, size) or None
            M of all other rows; None: there are none.
        largest : float
            Their largest leverage.
        """
        X = next(self._read(lanes))[1]
        products = self._products(X, self._inverse)
        grown = self._penalty_changes(lanes, X)[:, None]
        slopes = self._slopes[lanes, :, None] * X[:, None] - self._slope - grown * self._model
        factors = self._bends[lanes] @ self._factors[lanes]

        def step(active: np.ndarray, extra: np.ndarray | float) -> np.ndarray:
            vectors = (slopes[active] - extra).reshape(len(active), -1)
            steps = (vectors @ self._inverse).reshape(-1, *self._model.shape)
            shares = np.einsum("id,ikd->ik", X[active], steps)
            shares = np.einsum("iab,ib->ia", factors[active], shares)
            return np.asarray(steps + np.einsum("iabe,ia->ibe", products[active], shares))

        active = np.arange(len(lanes))
        steps = step(active, 0.0)
        norms = self._norm(steps) + 1e-300
        is_found = np.zeros(len(lanes), bool)
        for _ in range(_MOST_STEPS):
            here = steps[active]
            new = step(active, grown[active] * here + self._extra(lanes[active], here, exact))
            steps[active] = new
            before = norms[active]
            norms[active] = self._norm(new - here)
            shrink = norms[active] / before
            remaining = norms[active] * np.maximum(shrink / (1 - shrink), 1e-2)
            is_end = (shrink < 1) & (remaining * self._norms[lanes[active]] < _MOST_REST)
            is_found[active[is_end]] = True
            active = active[~is_end & np.isfinite(norms[active])]
            if len(active) == 0:
                break
        outputs = self._z[lanes] + np.einsum("id,ikd->ik", X, steps)
        errors = np.zeros(len(lanes))
        if outside is not None:
            vectors = steps.reshape(len(lanes), -1)
            thirds = np.maximum(np.sum(vectors @ outside * vectors, axis=1), 0)
            errors = self._errors(lanes, self._norm(steps), thirds, largest)
        errors[~is_found] = np.inf
        return outputs, errors

    def _norm(self, steps: np.ndarray) -> np.ndarray:
        """Return the norms of steps in the Hessian of all rows."""
        vectors = steps.reshape(len(steps), -1)
        return np.sqrt(np.maximum(np.sum(vectors @ self._hessian * vectors, axis=1), 0))

    def _extra(self, lanes: np.ndarray, steps: np.ndarray, exact: RowIndices) -> np.ndarray:
        """Return the gradients beyond those of quadratic losses, summed over rows.

        The row of a lane is excluded.
        """
        extra = np.zeros_like(steps)
        for part, X in self._read(exact):
            moved = np.tensordot(X, steps, (1, 2))
            z = self._z[part][:, None] + moved
            self._objective.loss.differentiate(z, self._objective.targets[part])
            z *= self._weights[part, None, None]
            z -= self._slopes[part][:, None]
            z -= np.einsum("rab,rmb->rma", self._bends[part], moved)
            numbers = np.arange(part.start, part.stop) if isinstance(part, slice) else part
            z[numbers[:, None] == lanes] = 0
            extra += np.tensordot(z, X, (0, 0))
        return extra


def _add_curvature(hessian: np.ndarray, X: np.ndarray, bends: np.ndarray) -> None:
    """Add sum_i x_i' S_i x_i to a Hessian (n_outputs, width, n_outputs, width)."""
    n = bends.shape[1]
    for a in range(n):
        root = X * np.sqrt(bends[:, a, a, None])
        hessian[a, :, a] += root.T @ root
        for b in range(a):
            product = (X * bends[:, a, b, None]).T @ X
            hessian[a, :, b] += product
            hessian[b, :, a] += product
