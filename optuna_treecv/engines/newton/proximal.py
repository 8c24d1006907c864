"""Models with an L1 penalty: proximal Newton steps for all rows, and jointly for all folds.

A model minimises F(w) + sum_j l_j |w_j|, where F is the objective with the L2 penalty. A step s
minimises g's + s'Hs / 2 + sum_j l_j |w_j + s_j| by coordinate descent (Lee, Sun & Saunders 2014,
"Proximal Newton-type methods for minimizing composite functions", SIAM J. Optim. 24).

1. All rows. The model of each candidate starts from the one before, in descending order of the L1
   penalty. Gradients and Hessians are sums over groups of rows, as in ``solver.py``.
2. Folds. Each starts from the model of all rows. The first step needs no pass over the rows, and
   the Hessian of the training rows at the model of all rows serves the further steps.

A model has converged if its mean test loss changes by less than ``MAX_ERROR`` / 10. With the
decrease D that a step promises, and the gradient t of the mean test loss, the change is at most
sqrt(2 D) |t|, where |t|^2 = t'H^-1 t for the coefficients that are not 0.
"""

from __future__ import annotations

import numpy as np

from optuna_treecv.engines.newton.kernels.quadratic import find_steps
from optuna_treecv.engines.newton.objective import L2Penalties
from optuna_treecv.engines.newton.objective import Objective
from optuna_treecv.engines.newton.solver import MAX_ERROR
from optuna_treecv.engines.newton.terms import standard_deviations

# The error bound at which a model has converged. It is an estimate, so that a margin is left.
_MAX_BOUND = MAX_ERROR / 10

# The maximum number of steps of the model of all rows, and of passes of folds with one Hessian.
_MAX_STEPS, _MAX_PASSES = 40, 15

# The number of Hessians after which a fold counts as not converging.
_MAX_HESSIANS = 12

# The decrease, for rows of weight 1, below which the model of all rows is close enough to its
# minimum for the first steps of folds.
_MAX_DECREASE = 1e-3

# A step is halved if the objective rises more steeply at its end than this fraction of its fall.
_MAX_RISE = 0.9

# The fraction of a step that is not shortened further.
_MIN_STEP_FRACTION = 1e-3

# Second derivatives must keep this fraction of their values while a model moves from where its
# Hessian was computed, or the error bound must be smaller by it.
_MIN_CURVATURE_FRACTION, _MIN_ERROR_FRACTION = 0.4, 1e-9

# What is added to the diagonal of Hessians before equations are solved, relative to it.
_JITTER = 1e-10

# The least standard deviation of a column in the training rows of a fold, relative to that in all
# rows. If it is smaller, because test rows are far away, digits are lost.
_LEAST_DEVIATION = 1e-3

# The maximum size in bytes of the Hessians of the models that are solved together.
_MAX_BYTES = 2**27


def solve_l1(
    objective: Objective, penalties: L2Penalties, strengths: np.ndarray, constants: np.ndarray
) -> np.ndarray:
    """Return the models of all candidates and folds, NaN for those that do not converge.

    Parameters
    ----------
    objective : Objective
        With one output.
    penalties : L2Penalties
        The penalties of each candidate and training set. The last set has all rows.
    strengths : ndarray of shape (n_candidates, n_sets, width)
        The L1 penalties l.
    constants : ndarray of shape (n_sets, n_features)
        As for ``solve``.

    Returns
    -------
    ndarray of shape (n_candidates, n_sets - 1, 1, width)
    """
    n_candidates, n_sets, d = strengths.shape
    k, fractions = n_sets - 1, objective.sets.group_fractions
    offsets = np.zeros((n_sets, d))
    if objective.has_intercept:  # it absorbs the terms of constant columns
        offsets[:, :-1] = np.nan_to_num((constants - objective.centre) / objective.scale)
    knows_gradients = (
        fractions.shape[1] > 1 and objective.class_weights is None and not len(objective.imputed)
    )
    model = np.zeros(d)
    if objective.has_intercept:
        weights = objective.rows.weights
        model[-1] = objective.loss.initial_intercepts(objective.targets, weights)[0]
    models = np.empty((n_candidates, k, 1, d))
    order = np.argsort(-strengths[:, -1].sum(axis=1), kind="stable")
    size = max(1, _MAX_BYTES // (8 * d * d * k))
    deviations = standard_deviations(objective.columns)[:k]
    is_lost = (deviations < _LEAST_DEVIATION * objective.scale) & np.isnan(constants[:k])
    for first in range(0, n_candidates, size):
        starts, gradients, hessians = [], [], []
        batch = order[first : first + size]
        for candidate in batch:
            penalty, l1 = penalties[[candidate], -1], strengths[candidate, -1:]
            model, of_groups, hessians_of_groups = _fit_all_rows(objective, penalty, l1, model)
            start = np.where(penalties.is_free[candidate, :k], model, 0)
            start[:, -1] += offsets[:k] @ model
            starts.append(start)
            gradients.append(fractions[:k] @ of_groups)
            if objective.has_hessian_per_fold:
                summed = fractions[:k] @ hessians_of_groups.reshape(len(hessians_of_groups), -1)
                hessians.append(summed.reshape(k, d, d))
            else:
                hessians.append(np.repeat(hessians_of_groups, k, axis=0))
        sets = np.tile(np.arange(k), len(batch))
        members = np.repeat(batch, k), sets
        folds = _Folds(
            objective,
            sets,
            penalties[members],
            strengths[members],
            np.concatenate(starts),
            np.concatenate(hessians),
        )
        known = np.concatenate(gradients) if knows_gradients else None
        models[batch] = folds.find_minima(known).reshape(len(batch), k, 1, d)
    models[:, is_lost.any(axis=1)] = np.nan
    return models


def _fit_all_rows(
    objective: Objective, penalty: L2Penalties, l1: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the model of all rows, and its gradients and Hessians by group without penalties."""
    all_rows = np.array([len(objective.sets.group_fractions) - 1])
    weights = objective.rows.weights
    max_decrease = _MAX_DECREASE * float(1 if weights is None else weights.mean())
    model, step, fall, fraction = start, np.zeros_like(start), np.inf, 1.0
    for _ in range(_MAX_STEPS):
        derivatives = objective.gradients_and_hessians(model[None, None], all_rows, True)
        of_groups, hessians = (values[0] for values in derivatives)
        gradient, hessian = of_groups.sum(axis=0), hessians.sum(axis=0)[None].copy()
        penalty.add_gradients(model[None, None], gradient[None])
        if fraction > _MIN_STEP_FRACTION and _rise(gradient, model, step, l1) > _MAX_RISE * fall:
            fraction /= 2
            model = start + fraction * step
            continue
        penalty.add_hessians(hessian)
        start, fraction, at_start = model, 1.0, (of_groups[:, 0], hessians)
        steps, decreases = _find_steps(
            *(hessian, gradient, model[None], l1, penalty.is_free, objective.has_intercept)
        )
        if not decreases[0] >= max_decrease:
            break
        step = steps[0]
        fall = _fall(gradient, model[None], steps, l1)[0]
        model = start + step
    return start, *at_start


def _eliminate(hessians: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eliminate the intercept from equations H s = v.

    If the centre of all rows is far from the training rows, columns are nearly proportional to the
    intercept. Coordinate descent would hardly move.
    """
    border, corner = hessians[:, :-1, -1], hessians[:, -1:, -1]
    ratios = border / corner
    reduced = hessians[:, :-1, :-1] - border[:, :, None] * ratios[:, None]
    return reduced, vectors[:, :-1] - ratios * vectors[:, -1:]


def _find_steps(
    hessians: np.ndarray,
    gradients: np.ndarray,
    models: np.ndarray,
    l1: np.ndarray,
    is_free: np.ndarray,
    has_intercept: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of models, and by how much they promise to decrease the objectives.

    Coordinate descent finds which coefficients are 0. The others then solve linear equations,
    unless signs would change.
    """
    reduced, slopes, d = hessians, gradients, models.shape[1] - has_intercept
    if has_intercept:
        reduced, slopes = _eliminate(hessians, gradients)
    arrays = reduced, slopes, models[:, :d], l1[:, :d], is_free[:, :d].astype(np.uint8)
    steps = find_steps(*map(np.ascontiguousarray, arrays))
    for i, (hessian, step) in enumerate(zip(reduced, steps, strict=True)):
        ends = models[i, :d] + step
        used = np.flatnonzero(is_free[i, :d] & (ends != 0))
        left = (slopes[i] + hessian @ step + l1[i, :d] * np.sign(ends))[used]
        change = -_solve(hessian[np.ix_(used, used)], left)
        if np.all((np.sign(ends[used] + change) == np.sign(ends[used])) | (l1[i, used] == 0)):
            step[used] += change
    if has_intercept:
        border, corner = hessians[:, :-1, -1], hessians[:, -1, -1]
        last = -(gradients[:, -1] + np.sum(border * steps, axis=1)) / corner
        steps = np.column_stack([steps, last])
    curvatures = np.einsum("md,mde,me->m", steps, hessians, steps)
    return steps, _fall(gradients, models, steps, l1) - curvatures / 2


def _solve(hessian: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return the inverse Hessian times a vector; its columns may be linearly dependent."""
    return np.linalg.solve(hessian + np.diag(_JITTER * hessian.diagonal()), vector)


def _fall(
    gradients: np.ndarray, models: np.ndarray, steps: np.ndarray, l1: np.ndarray
) -> np.ndarray:
    """Return how steeply the objectives fall along the steps, as a linear bound."""
    changes = l1 * (np.abs(models + steps) - np.abs(models))
    return -np.sum(gradients * steps + changes, axis=1)


def _rise(
    gradients: np.ndarray, models: np.ndarray, steps: np.ndarray, l1: np.ndarray
) -> np.ndarray:
    """Return the derivatives of the objectives along the steps, at their ends."""
    slopes = np.where(models == 0, np.abs(steps), np.sign(models) * steps)
    return np.sum(gradients * steps + l1 * slopes, axis=-1)


class _Folds:
    """Models of folds, which are solved jointly.

    Parameters
    ----------
    objective : Objective
    sets : ndarray of shape (n_models,)
        The training set of each model.
    penalties : L2Penalties
    l1 : ndarray of shape (n_models, width)
    models : ndarray of shape (n_models, width)
        The starts.
    hessians : ndarray of shape (n_models, width, width)
        Of the losses of the training rows, at the starts.
    """

    def __init__(
        self,
        objective: Objective,
        sets: np.ndarray,
        penalties: L2Penalties,
        l1: np.ndarray,
        models: np.ndarray,
        hessians: np.ndarray,
    ) -> None:
        self._objective, self._sets, self._penalties, self._l1 = objective, sets, penalties, l1
        self._models, self._hessians = models, hessians
        self._hessian_models = models.copy()
        penalties.add_hessians(hessians)

    def find_minima(self, gradients: np.ndarray | None) -> np.ndarray:
        """Return the models, NaN for those that do not converge.

        ``gradients`` are those of the losses at the starts, if known.
        """
        n_models = len(self._models)
        minima, starts = np.full_like(self._models, np.nan), self._models.copy()
        steps, falls = np.zeros_like(starts), np.full(n_models, np.inf)
        part, n_passes, n_hessians = np.ones(n_models), *np.zeros((2, n_models), int)
        active = np.arange(n_models)
        if gradients is not None:
            self._penalties.add_gradients(starts[:, None], gradients[:, None])
            steps, _ = self._steps(active, gradients)
            falls = _fall(gradients, starts, steps, self._l1)
            self._models = starts + steps
        while len(active):
            models, sets, l1 = self._models[active], self._sets[active], self._l1[active]
            gradients, test_gradients = (
                values[:, 0] for values in self._objective.gradients(models[:, None], sets)
            )
            self._penalties[active].add_gradients(models[:, None], gradients[:, None])
            n_passes[active] += 1
            rises = _rise(gradients, models, steps[active], l1)
            is_short = part[active] <= _MIN_STEP_FRACTION
            is_too_long = ~(rises <= _MAX_RISE * falls[active]) & ~is_short
            halved = active[is_too_long]
            part[halved] /= 2
            self._models[halved] = starts[halved] + part[halved, None] * steps[halved]
            stepped, gradients = active[~is_too_long], gradients[~is_too_long]
            starts[stepped], part[stepped] = self._models[stepped], 1
            steps[stepped], decreases = self._steps(stepped, gradients)
            falls[stepped] = _fall(gradients, starts[stepped], steps[stepped], self._l1[stepped])
            self._models[stepped] += steps[stepped]
            bounds = self._error_bounds(stepped, test_gradients[~is_too_long], decreases)
            is_small = bounds < _MAX_BOUND
            ended = stepped[is_small]
            are_valid = self._are_hessians_valid(ended, steps[ended], bounds[is_small])
            minima[ended[are_valid]] = self._models[ended[are_valid]]
            active = np.setdiff1d(active, ended[are_valid])
            active = active[np.isfinite(self._models[active]).all(axis=1)]
            renewed = active[(n_passes[active] >= _MAX_PASSES) & (part[active] == 1)]
            n_hessians[renewed] += 1
            active = np.setdiff1d(active, renewed[n_hessians[renewed] > _MAX_HESSIANS])
            renewed = np.intersect1d(renewed, active)
            if len(renewed):
                n_passes[renewed] = 0
                self._models[renewed] = starts[renewed]
                steps[renewed], falls[renewed] = 0, np.inf
                self._renew_hessians(renewed)
        return minima

    def _steps(self, indices: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _find_steps(
            self._hessians[indices],
            gradients,
            self._models[indices],
            self._l1[indices],
            self._penalties.is_free[indices],
            self._objective.has_intercept,
        )

    def _renew_hessians(self, indices: np.ndarray) -> None:
        """Compute the Hessians of models anew, from now on in float64."""
        self._objective.precision = self._objective.hessian_precision = np.float64
        _, hessians = self._objective.gradients_and_hessians(
            self._models[indices, None], self._sets[indices], by_group=False
        )
        self._penalties[indices].add_hessians(hessians[:, 0])
        self._hessians[indices] = hessians[:, 0]
        self._hessian_models[indices] = self._models[indices]

    def _error_bounds(
        self, indices: np.ndarray, test_gradients: np.ndarray, decreases: np.ndarray
    ) -> np.ndarray:
        """Return bounds of the remaining changes of mean test losses, relative to tolerances."""
        bounds, hessians = np.empty(len(indices)), self._hessians[indices]
        d = self._models.shape[1]
        norms, has_intercept = np.zeros(len(indices)), self._objective.has_intercept
        if has_intercept:
            norms = np.square(test_gradients[:, -1]) / hessians[:, -1, -1]
            hessians, test_gradients = _eliminate(hessians, test_gradients)
        for position, i in enumerate(indices):
            is_used = self._penalties.is_free[i] & (self._models[i] != 0)
            used = np.flatnonzero(is_used[: d - has_intercept])
            t, hessian = test_gradients[position, used], hessians[position][np.ix_(used, used)]
            norm = norms[position] + float(t @ _solve(hessian, t))
            bounds[position] = np.sqrt(2 * max(decreases[position], 0) * max(norm, 0))
        return bounds / self._objective.tolerance

    def _are_hessians_valid(
        self, indices: np.ndarray, steps: np.ndarray, bounds: np.ndarray
    ) -> np.ndarray:
        """Return whether the Hessian of each model is still valid at the minimum.

        The criterion is that of ``JointLBFGS``.
        """
        if not len(indices):
            return np.zeros(0, bool)
        moves = self._models[indices] - self._hessian_models[indices]
        fractions = np.clip(bounds / _MAX_BOUND, _MIN_ERROR_FRACTION, _MIN_CURVATURE_FRACTION)
        both, sets = np.concatenate([moves, steps])[:, None], np.tile(self._sets[indices], 2)
        changes = self._objective.max_predictor_changes(both, sets).reshape(2, -1)
        moved, last = self._objective.loss.self_concordance * changes
        with np.errstate(over="ignore"):
            return np.asarray(moved + last * np.exp(moved) < -np.log(fractions))
