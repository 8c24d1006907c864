"""Newton's method for the models of all folds and penalties at once.

1. All rows. Newton's method computes the model of all rows for one penalty after the other, from
   the largest to the smallest. With many coefficients, it is L-BFGS with the Hessian of the last
   model. If there are many rows, this runs on a sample of them, and L-BFGS continues from there on
   all rows, for all penalties jointly. The gradient g and the Hessian H of all rows are computed
   separately for each group of rows.
2. First step of each fold. The g and H of the training rows of a fold are sums over its groups.
   Therefore, the first Newton step from the model of all rows to the model of the fold reads no
   rows.
3. Folds. L-BFGS computes the models of all folds and penalties jointly, with one product X W for
   the predictors of all models. The inverse Hessian is the initial matrix of L-BFGS (Nocedal &
   Wright 2006, algorithm 7.4) and only determines the direction of steps. Gradients are sums over
   the training rows alone, so no test row affects its own prediction. If a model does not converge
   within some passes, its Hessian is computed anew at the current model.

Candidates that use only some columns start from the model of a candidate that has the same penalty
and uses all columns.

**Stopping criterion.** The distance of the mean test loss from its limit is bounded by the
suboptimality F(w) - min F. With the gradient t of the mean test loss,

    |change of the mean test loss| <= sqrt(2 (F(w) - min F)) |t|,   where |t|^2 = t' H^-1 t.

2 (F(w) - min F) is estimated by g' H^-1 g. The variables ``error_bound`` hold the right-hand side.
"""

from __future__ import annotations

from copy import copy
from itertools import groupby
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf
from scipy.linalg.lapack import dtrtrs

from optuna_treecv.engines.newton.objective import L2Penalties
from optuna_treecv.engines.newton.objective import Objective
from optuna_treecv.engines.newton.objective import stay_sparse
from optuna_treecv.numerics.moments import ArrayCache

#: The bound on the remaining change of a model's mean test loss at which the model has converged.
MAX_ERROR = 1e-6

# The largest change of the mean test loss by the last step of a model that has converged.
_MAX_CHANGE = 1e-7

# After this many Hessians, tolerances are relative to large mean test losses, because rounding may
# not allow smaller changes.
_MANY_HESSIANS = 3

# The tolerance for a large mean test loss, as a fraction of it.
_TOLERANCE_PER_LARGE_LOSS = 1e-2

# The Newton decrement, for rows of weight 1, below which the model of all rows is close enough to
# its minimum for the first steps of folds. Leaving out a row changes F by more. Models with much
# larger decrements would be bad starts for the coefficients of columns with few nonzero rows.
_MAX_DECREMENT = 1e-3

# The same for sparse rows. Their passes take so little time that folds may start farther away.
_MAX_DECREMENT_IF_SPARSE = 1e-1

# The decrement of models from a cold start without a sample may be larger by this factor, because
# the first Newton step of each fold leads much closer to the minimum.
_COLD_START_FACTOR = 20

# Trials of a study share cached models of all rows: penalties that round to the same power of 2
# share the model from which their folds start.
_LOG2_WIDTH = 1

# Penalties that round to the same power of 2^8 share a coarser cached model, from which the model
# shared by a power of 2 is computed.
_LOG2_WIDTH_OF_COLD_START = 8

# After this many passes without convergence, the Hessian of a model is computed anew.
_PASSES_PER_HESSIAN = 20

# After this many passes, rounding errors of float32 may be the obstacle to convergence.
_PASSES_IN_FLOAT32 = 10

# The maximum number of passes of L-BFGS for a model of all rows, before a new Hessian.
_PASSES_OF_FULL_MODEL = 16

# L-BFGS continues with a new Hessian if at most this fraction of the decrement is left. Otherwise,
# its steps lead to a region where second derivatives vanish.
_MAX_DECREMENT_LEFT = 0.1

# The number of Hessians after which a model with one output counts as not converging. Only
# separable folds reach this number.
_MAX_HESSIANS = 60

# The same for several outputs, whose Hessians take longer.
_MAX_HESSIANS_OF_SEVERAL_OUTPUTS = 12

# The maximum number of Newton steps for a model of all rows.
_MAX_STEPS = 60

# The fraction of a Newton step that is not shortened further.
_MIN_STEP_FRACTION = 1e-2

# The number of pairs in the history of L-BFGS.
_MEMORY = 8

# With more coefficients, the model of the next penalty is computed with the Hessian of the last
# one, because a new Hessian takes longer than many passes.
_MAX_SIZE_FOR_OWN_HESSIANS = 128

# A step is halved if F rises more steeply at its end than this fraction of its fall at the start.
_MAX_RISE = 0.9

# A Hessian is valid at the minimum if each second derivative keeps at least this fraction of its
# value there. If predictors change by r, it keeps at least exp(-c r). If the bound on the test
# loss is below MAX_ERROR, a proportionally smaller fraction is enough.
_MIN_CURVATURE_FRACTION = 0.4

# A smaller error bound, as a fraction of MAX_ERROR, does not decrease the required fraction any
# more, because such bounds are rounding errors.
_MIN_ERROR_FRACTION = 1e-9

# The fraction of each diagonal entry that must remain if a Hessian was computed from other rows.
_MIN_DIAGONAL_FRACTION = 0.5

# The largest change of the predictor of a training row by the last step, if second derivatives
# jump.
_MAX_PREDICTOR_CHANGE = 0.1

# The same for losses with a tube, in standard deviations of the targets. Within the tube, test
# losses do not change with the predictors, but other scores do.
_MAX_PREDICTOR_CHANGE_IN_TUBE = 1e-6

# The rounding error of a sum in float32, relative to the root of the sum of squares.
_FLOAT32_ROUNDING = 2.0**-24

# The largest change of a mean test loss by rounding, for which sums remain in float32. The
# estimate by _FLOAT32_ROUNDING is too small if rows are clearly misclassified, hence this margin.
_MAX_ROUNDING = 2e-8

# The maximum size in bytes of the models of a batch, with their histories and Hessians.
_MAX_BYTES = 2**28


class HessianFactor(NamedTuple):
    """The Cholesky factor of a Hessian (size, size) that is scaled to a diagonal of ones.

    Attributes
    ----------
    cholesky : ndarray of shape (size, size)
        Only its lower triangle is used.
    scales : ndarray of shape (size,)
        The factors of rows and columns that make the diagonal ones. They are 0 for coefficients
        that are not free, and NaN if the Hessian is not positive definite.
    diagonal : ndarray of shape (size,)
        The diagonal of the unscaled Hessian.
    """

    cholesky: np.ndarray
    scales: np.ndarray
    diagonal: np.ndarray

    def solve(self, gradients: np.ndarray) -> np.ndarray:
        """Return the inverse Hessian times each of the gradients (n_models, size)."""
        half, _ = dtrtrs(self.cholesky, (gradients * self.scales).T, lower=True)
        steps, _ = dtrtrs(self.cholesky, half, lower=True, trans=True, overwrite_b=True)
        return np.asarray(steps.T * self.scales)


# The coefficients of a model of all rows, and its gradients and Hessians by group of rows, without
# the penalty.
FullModel = tuple[np.ndarray, np.ndarray, np.ndarray]


def solve(
    objective: Objective, penalties: L2Penalties, constants: np.ndarray, cache: ArrayCache
) -> np.ndarray:
    """Return the models of all candidates and folds, NaN for those that do not converge.

    Parameters
    ----------
    objective : Objective
    penalties : L2Penalties
        The penalties of each candidate and training set, with arrays of shape
        (n_candidates, n_sets, ...). The last set has all rows.
    constants : ndarray of shape (n_sets, n_features)
        The value of each column that is constant in the training rows, so that its coefficient is
        0; NaN for all other columns.
    cache : callable
        Caches models of all rows, from which similar candidates start.

    Returns
    -------
    ndarray of shape (n_candidates, n_sets - 1, n_outputs, width)
    """
    n_candidates, n_sets, d = penalties.column_strengths.shape
    k, n = n_sets - 1, objective.n_outputs
    fractions, n_groups = objective.sets.group_fractions, objective.sets.group_fractions.shape[1]
    offsets = np.zeros((n_sets, d))
    if objective.has_intercept:  # it absorbs the terms of constant columns
        offsets[:, :-1] = np.nan_to_num((constants - objective.centre) / objective.scale)
    n_entries = (n * d) ** 2
    n_hessians = k if objective.has_hessian_per_fold else 1
    sets_with_hessian = slice(0, k) if n_hessians > 1 else slice(k, k + 1)
    if not objective.has_hessian_per_fold:  # stored with its factor, and when it is computed
        n_entries *= 3
    n_bytes = 8 * (n * d * (2 * _MEMORY + 8) + n_entries * n_hessians // k)
    batch_size = max(1, _MAX_BYTES // n_bytes)
    n_batch_candidates = max(1, batch_size // k)
    model = np.zeros((n, d))
    if objective.has_intercept:
        weights = objective.rows.weights
        model[:, -1] = objective.loss.initial_intercepts(objective.targets, weights)
    order = np.argsort(-penalties.column_strengths[:, -1].sum(axis=1), kind="stable")
    cached_models: list[FullModel] = []
    if n_candidates == 1:
        full_penalty, size = penalties[order[0], -1:], n * d
        n_parts = n_groups if objective.has_hessian_per_fold else 1
        stops = np.cumsum([size, n_groups * size, n_parts * size**2])
        with np.errstate(divide="ignore"):
            strength = np.log2(full_penalty.column_strengths.sum())

        def get_full_model(start: np.ndarray, width: float, is_cold: bool) -> FullModel:
            def fill(buffer: np.ndarray) -> None:
                (full_model,) = find_full_models(objective, full_penalty, start, is_cold)
                for values, memory in zip(full_model, np.split(buffer, stops[:-1]), strict=True):
                    memory[:] = values.ravel()

            name = f"model of all rows {width} {np.round(strength / width)}"
            flat = cache(name, stops[-1], fill)
            model, gradients, hessians = np.split(flat, stops[:-1])
            return (
                model.reshape(n, d),
                gradients.reshape(-1, n, d),
                hessians.reshape(-1, size, size),
            )

        cold_start = get_full_model(model, _LOG2_WIDTH_OF_COLD_START, is_cold=True)
        cached_models = [get_full_model(cold_start[0], _LOG2_WIDTH, is_cold=False)]
    largest_share = np.max(objective.columns.n_rows[:k] / objective.columns.n_rows[k])
    # With class weights or imputed values that differ between training sets, the gradients of
    # training rows are not sums over groups.
    has_gradients = n_groups > 1 and objective.class_weights is None and not len(objective.imputed)
    models = np.empty((n_candidates, k, n, d))
    leaders = _leaders(penalties)
    order = order[leaders[order] == order]
    for begin in range(0, len(order), n_batch_candidates):
        candidates = order[begin : begin + n_batch_candidates]
        is_cold = begin == 0 or len(candidates) > 1
        full_models = cached_models or find_full_models(
            objective, penalties[candidates, -1], model, is_cold
        )
        model = full_models[-1][0]
        of_leader = dict(zip(candidates.tolist(), full_models, strict=True))
        is_follower = np.isin(leaders, candidates) & (leaders != np.arange(n_candidates))
        followers = np.flatnonzero(is_follower)  # their gradients at the start are unknown
        for members, knows_gradients in ((candidates, has_gradients), (followers, False)):
            if not len(members):
                continue
            fold_indices = np.tile(np.arange(k), len(members))
            fold_penalties = penalties[np.repeat(members, k), fold_indices]
            all_starts, all_gradients, factors = [], [], list[HessianFactor]()
            for i, member in enumerate(members):
                coefficients, group_gradients, group_hessians = of_leader[int(leaders[member])]
                is_free = penalties.is_free[member, :k].reshape(k, n, d)
                start = np.where(is_free, coefficients, 0)
                start[:, :, -1] += offsets[:k] @ coefficients.T
                all_starts.append(start)
                all_gradients.append(fractions[:k] @ group_gradients.reshape(n_groups, -1))
                if objective.has_hessian_per_fold:
                    hessians = fractions[sets_with_hessian] @ group_hessians.reshape(n_groups, -1)
                    hessians = hessians.reshape(-1, n * d, n * d)
                else:  # training rows contribute about their share
                    hessians = group_hessians * largest_share
                fold_penalties[i * k : i * k + len(hessians)].add_hessians(hessians)
                are_free = penalties.is_free[member, sets_with_hessian]
                factors += k // n_hessians * factor_hessians(hessians, are_free)
            starts = np.concatenate(all_starts)
            gradients = np.concatenate(all_gradients).reshape(starts.shape)
            fold_penalties.add_gradients(starts, gradients)
            minima = []
            for first in range(0, len(starts), batch_size):
                batch = slice(first, first + batch_size)
                descent = JointLBFGS(
                    *(objective, fold_indices[batch], fold_penalties[batch], starts[batch]),
                    factors[batch],
                    gradients[batch] if knows_gradients else None,
                    has_own_hessians=knows_gradients and n_hessians > 1,
                )
                minima.append(descent.find_minima())
            models[members] = np.concatenate(minima).reshape(-1, k, n, d)
    return models


def _leaders(penalties: L2Penalties) -> np.ndarray:
    """Return for each candidate one with the same penalty and more columns, or itself."""
    leaders = np.arange(len(penalties.is_free))
    strengths, sizes = penalties.column_strengths, penalties.is_free[:, -1].sum(axis=1)
    widest = np.flatnonzero(sizes == sizes.max())
    for candidate in np.flatnonzero(sizes < sizes.max()):
        is_equal = (strengths[widest] == strengths[candidate]).all(axis=(1, 2))
        if is_equal.any():
            leaders[candidate] = widest[is_equal][0]
    return leaders


def _factor_hessian(full_model: FullModel, penalty: L2Penalties) -> HessianFactor:
    """Return the factored Hessian of all rows, including the penalty."""
    hessian = full_model[2].sum(axis=0)[None]
    penalty.add_hessians(hessian)
    return factor_hessians(hessian, penalty.is_free)[0]


def _newton_step(
    full_model: FullModel, penalty: L2Penalties, factor: HessianFactor | None = None
) -> tuple[np.ndarray, float]:
    """Return Newton's step for all rows, and half of its product with the gradient.

    The step is subtracted from the model. Half of the product is the expected decrease of F, here
    called the decrement.
    """
    model, gradients, _ = full_model
    gradient = gradients.sum(axis=0)
    penalty.add_gradients(model[None], gradient[None])
    step = (factor or _factor_hessian(full_model, penalty)).solve(gradient.reshape(1, -1))
    return step.reshape(gradient.shape), float(step.ravel() @ gradient.ravel()) / 2


def find_full_models(
    objective: Objective, penalties: L2Penalties, model: np.ndarray, is_cold: bool = True
) -> list[FullModel]:
    """Return models of all rows, close to the minima of several penalties.

    Parameters
    ----------
    objective : Objective
    penalties : L2Penalties
        In the order in which the models are computed, each from the previous ones.
    model : ndarray of shape (n_outputs, width)
        The start of the first model.
    is_cold : bool
        Whether the start is far from the minimum, so that a sample of the rows saves time.
    """
    sample = objective.sample if is_cold else objective
    has_jumps = np.isinf(objective.loss.self_concordance)
    have_own_hessians = penalties.is_free.shape[1] <= _MAX_SIZE_FOR_OWN_HESSIANS
    is_rough = is_cold and sample is objective and not has_jumps
    max_decrement = _max_decrement(objective) * (_COLD_START_FACTOR if is_rough else 1)
    full_models: list[FullModel] = []
    for i in range(len(penalties.column_strengths)):
        penalty, factor, decrement = penalties[i : i + 1], None, np.inf
        if full_models:
            factor = _factor_hessian(full_models[-1], penalty)
            # A second Hessian may take longer to factor than the steps that it saves.
            is_second_used = have_own_hessians and not has_jumps
            previous = full_models[-1 - is_second_used :]
            model = _extrapolate_model(previous, penalty, factor)
            model = np.where(penalty.is_free.reshape(model.shape), model, 0)
        elif not have_own_hessians and not has_jumps:
            start = _differentiate(sample, model)
            factor = _factor_hessian(start, penalty)
            decrement = _newton_step(start, penalty, factor)[1]
        if factor and not have_own_hessians:
            full_models += _refine_full_models(sample, penalty, model[None], [factor], decrement)
        else:
            full_models.append(_find_full_model(sample, penalty, model, max_decrement))
    if sample is objective:
        return full_models
    models = np.array([coefficients for coefficients, _, _ in full_models])
    factors = [
        _factor_hessian(full_models[i], penalties[i : i + 1]) for i in range(len(full_models))
    ]
    return _refine_full_models(objective, penalties, models, factors)


def _differentiate(objective: Objective, model: np.ndarray) -> FullModel:
    """Return a model with its gradients and Hessians."""
    all_rows = np.array([len(objective.sets.group_fractions) - 1])
    gradients, hessians = objective.gradients_and_hessians(model[None], all_rows, by_group=True)
    return model, gradients[0], hessians[0]


def _extrapolate_model(
    previous: list[FullModel], penalty: L2Penalties, factor: HessianFactor
) -> np.ndarray:
    """Return an estimate of the minimum at the next penalty, without reading rows.

    It is the end of Newton's step from the last model. If two previous models are given, the step
    uses an estimate of the Hessian at its own midpoint, extrapolated linearly from the Hessians of
    these two models. ``factor`` is the Hessian of the last model, with the next penalty.
    """
    model, gradients, hessians = previous[-1]
    step = np.nan_to_num(_newton_step(previous[-1], penalty, factor)[0])
    if len(previous) > 1:
        model_change, hessian_change = model - previous[-2][0], hessians - previous[-2][2]
        ratio = -np.sum(step * model_change) / max(np.sum(np.square(model_change)), 1e-300)
        halfway = model, gradients, hessians + ratio / 2 * hessian_change
        improved, _ = _newton_step(halfway, penalty)
        step = np.where(np.isfinite(improved), improved, step)
    return model - step


def _refine_full_models(
    objective: Objective,
    penalties: L2Penalties,
    models: np.ndarray,
    factors: list[HessianFactor],
    last_decrement: float = np.inf,
) -> list[FullModel]:
    """Improve models of all rows by L-BFGS, and by Newton's method if that is not enough.

    L-BFGS continues with new Hessians while the decrement falls quickly. ``last_decrement`` is the
    decrement at the given models, if known.
    """
    max_decrement = _max_decrement(objective)
    set_indices = np.full(len(models), len(objective.sets.group_fractions) - 1)
    descent = JointLBFGS(objective, set_indices, penalties, models, factors)
    improved = descent.approach_minima(max_decrement)
    improved = np.where(np.isfinite(improved), improved, models)
    derivatives = objective.gradients_and_hessians(improved, set_indices, by_group=True)
    full_models = list(zip(improved, *derivatives, strict=True))
    for i, full_model in enumerate(full_models):
        penalty = penalties[i : i + 1]
        decrement = _newton_step(full_model, penalty)[1]
        if decrement < max_decrement:
            continue
        if decrement < _MAX_DECREMENT_LEFT * last_decrement:
            start, factor = full_model[0][None], [_factor_hessian(full_model, penalty)]
            (full_models[i],) = _refine_full_models(objective, penalty, start, factor, decrement)
        else:
            full_models[i] = _find_full_model(objective, penalty, models[i], max_decrement)
    return full_models


def _max_decrement(objective: Objective) -> float:
    """Return the decrement below which a model of all rows is close enough to its minimum."""
    weights = objective.rows.weights
    decrement = _MAX_DECREMENT_IF_SPARSE if stay_sparse(objective.rows) else _MAX_DECREMENT
    return decrement * objective.tolerance * float(1 if weights is None else weights.mean())


def _find_full_model(
    objective: Objective, penalty: L2Penalties, model: np.ndarray, max_decrement: float
) -> FullModel:
    """Run Newton's method for all rows until the decrement is small enough.

    If that is not reached, return the model with the smallest decrement.
    """
    best: FullModel | None = None
    best_decrement, best_step, fraction = np.inf, np.zeros_like(model), 1.0
    for _ in range(_MAX_STEPS):
        current = _differentiate(objective, model)
        step, decrement = _newton_step(current, penalty)
        if np.isnan(decrement) and objective.hessian_precision == np.float32:
            objective.hessian_precision = np.float64
            continue
        if decrement < best_decrement:
            best, best_decrement, best_step, fraction = current, decrement, step, 1.0
            if decrement < max_decrement:
                break
        elif best is None or fraction < _MIN_STEP_FRACTION:
            break
        else:  # the step was too long
            fraction /= 4
        model = best[0] - fraction * best_step
    return best or current


def factor_hessians(hessians: np.ndarray, are_free: np.ndarray) -> list[HessianFactor]:
    """Return the Cholesky factors of Hessians (n_models, size, size), which are overwritten.

    Only the coefficients with a True in ``are_free`` (n_models, size) may change.
    """
    diagonals = np.diagonal(hessians, axis1=1, axis2=2).copy()
    scales = 1 / np.sqrt(np.maximum(diagonals, 1e-300))
    hessians *= scales[:, :, None]
    hessians *= scales[:, None]
    models, columns = np.nonzero(~are_free)
    hessians[models, columns] = hessians[models, :, columns] = 0
    hessians[models, columns, columns] = 1
    scales[~are_free] = 0
    factors = []
    for hessian, scale, diagonal in zip(hessians, scales, diagonals, strict=True):
        cholesky, info = dpotrf(hessian.T, lower=True, overwrite_a=True)
        factors.append(HessianFactor(cholesky, scale if info == 0 else scale * np.nan, diagonal))
    return factors


class JointLBFGS:
    """L-BFGS for a batch of models, each with its Hessian as the initial matrix.

    Parameters
    ----------
    objective : Objective
    set_indices : ndarray of shape (n_models,)
        The training set of each model.
    penalties : L2Penalties
    starts : ndarray of shape (n_models, n_outputs, width)
    factors : list of HessianFactor
        The Hessians at the starts or close to them.
    gradients : ndarray of shape (n_models, n_outputs, width) or None
        The gradients at the starts, if known.
    has_own_hessians : bool
        Whether the Hessians are exactly those at the starts, for the training rows of each model.
    """

    def __init__(
        self,
        objective: Objective,
        set_indices: np.ndarray,
        penalties: L2Penalties,
        starts: np.ndarray,
        factors: list[HessianFactor],
        gradients: np.ndarray | None = None,
        has_own_hessians: bool = False,
    ) -> None:
        n_models, self._shape, size = len(starts), starts.shape[1:], starts[0].size
        self._objective, self._set_indices, self._penalties = objective, set_indices, penalties
        self._factors = list(factors)
        self._models = starts.reshape(n_models, size).copy()
        # The models before the last step, their gradients, and the last step.
        self._previous, self._gradients, self._steps = np.zeros((3, n_models, size))
        self._previous[:] = self._models
        # Gradients are float32 until rounding errors would be too large for a fold of a candidate.
        self._candidates = np.cumsum(np.diff(set_indices, prepend=set_indices[0]) <= 0)
        self._float64_objective = copy(objective)
        self._float64_objective.precision = self._float64_objective.hessian_precision = np.float64
        self._is_float64 = np.full(n_models, objective.precision == np.float64)
        # The last changes of models and of gradients.
        self._history = np.zeros((2, _MEMORY, n_models, size))
        self._step_fractions, self._has_step = np.ones(n_models), np.zeros(n_models, bool)
        self._needs_step, self._error_bounds = np.zeros(n_models, bool), np.full(n_models, np.inf)
        # The number of passes since the Hessian was computed, and the number of new Hessians.
        self._n_passes, self._n_hessians = np.zeros((2, n_models), int)
        # The models at which the Hessians were computed.
        self._hessian_models = self._models.copy()
        self._has_jumps = np.isinf(objective.loss.self_concordance)
        self._shares_hessian = not (objective.has_hessian_per_fold or self._has_jumps)
        self._has_own_hessian = np.full(n_models, has_own_hessians and not self._has_jumps)
        is_definite = np.array([np.isfinite(factor.scales[0]) for factor in factors])
        if gradients is not None:  # the first step reads no rows
            self._gradients[:] = gradients.reshape(n_models, size)
            steps = self._compute_steps(np.arange(n_models), self._gradients)
            self._steps[:] = np.nan_to_num(steps)
            self._models -= self._steps
            self._has_step[:] = True
        if not np.all(is_definite):
            objective.hessian_precision = np.float64
            self._renew_hessians(np.flatnonzero(~is_definite))

    def find_minima(self) -> np.ndarray:
        """Return the models (n_models, n_outputs, width), NaN for those that do not converge."""
        minima = np.full_like(self._models, np.nan)
        is_single = self._shape[0] == 1
        max_hessians = _MAX_HESSIANS if is_single else _MAX_HESSIANS_OF_SEVERAL_OUTPUTS
        active = np.flatnonzero(np.all(np.isfinite(self._models), axis=1))
        # Outside of a tube, F may rise so steeply that a step is halved 20 times.
        max_passes = _PASSES_PER_HESSIAN * (3 if self._objective.loss.has_tube else 1)
        while len(active):
            ended = self._iterate(active, max_passes=max_passes)
            if len(ended):
                is_first = self._has_own_hessian[ended] | self._shares_hessian
                is_first &= self._n_hessians[ended] == 0
                are_valid = self._are_hessians_valid(ended)
                # Before its Hessian is renewed, a model with a new Hessian, or with its first one,
                # makes one more step.
                self._needs_step[ended] = ~are_valid & (is_first | (self._n_passes[ended] == 1))
                self._use_float64(ended[self._needs_step[ended]])
                ended = ended[are_valid]
            minima[ended] = self._models[ended]
            active = np.setdiff1d(active, ended)
            active = active[self._n_hessians[active] < max_hessians]
            if not np.all(self._needs_step[active]):
                self._renew_hessians(active[~self._needs_step[active]])
            active = active[np.all(np.isfinite(self._models[active]), axis=1)]
        return minima.reshape(-1, *self._shape)

    def approach_minima(self, max_decrement: float) -> np.ndarray:
        """Return improved models; stop after a few passes, or when decrements are small enough."""
        active = np.arange(len(self._models))
        ended = self._iterate(active, max_decrement, _PASSES_OF_FULL_MODEL)
        models = self._previous.copy()  # those whose gradients were computed
        models[ended] = self._models[ended]
        return models.reshape(-1, *self._shape)

    def _iterate(
        self,
        active: np.ndarray,
        max_decrement: float = np.inf,
        max_passes: int = _PASSES_PER_HESSIAN,
    ) -> np.ndarray:
        """Make steps until each model meets the stopping criterion or needs a new Hessian.

        ``active`` are the indices of the models. Return the indices of those that meet the
        criterion.
        """
        ended = []
        while len(active):
            gradients, test_gradients = self._compute_gradients(active)
            # F is convex: if it rises at the end of a step about as steeply as it fell at its
            # start, the step is too long.
            falls = np.sum(self._gradients[active] * self._steps[active], axis=1)
            rises = -np.sum(gradients * self._steps[active], axis=1)
            is_too_long = self._has_step[active] & ~(rises <= _MAX_RISE * falls)
            halved, stepped = active[is_too_long], active[~is_too_long]
            self._step_fractions[halved] /= 2
            shortened = self._step_fractions[halved, None] * self._steps[halved]
            self._models[halved] = self._previous[halved] - shortened
            gradients, test_gradients = gradients[~is_too_long], test_gradients[~is_too_long]
            self._update_history(stepped, gradients)
            steps = self._compute_steps(stepped, gradients)
            self._steps[stepped], self._step_fractions[stepped] = steps, 1
            self._has_step[stepped] = True
            self._models[stepped] -= steps
            decrements = np.abs(np.sum(steps * gradients, axis=1))
            changes = np.abs(np.sum(test_gradients * steps, axis=1))
            # The order of magnitude of the losses of outlying rows.
            losses = np.abs(np.sum(test_gradients * self._models[stepped], axis=1))
            losses[self._n_hessians[stepped] < _MANY_HESSIANS] = 0
            tolerance = np.maximum(self._objective.tolerance, _TOLERANCE_PER_LARGE_LOSS * losses)
            is_end = (changes < _MAX_CHANGE * tolerance) & (decrements < max_decrement)
            is_end &= ~self._needs_step[stepped]
            self._needs_step[stepped] = False
            ending, test_gradients = stepped[is_end], test_gradients[is_end]
            test_steps = self._compute_steps(ending, test_gradients)
            norms = np.sum(test_gradients * test_steps, axis=1)  # squared
            self._error_bounds[ending] = np.sqrt(decrements[is_end] * norms) / tolerance[is_end]
            is_end = self._error_bounds[ending] < MAX_ERROR
            ending = ending[is_end]
            if not np.all(self._is_float64[ending]):
                # The rounding errors of the mean test losses.
                diagonals = np.reshape(
                    [self._factors[i].diagonal for i in ending], (len(ending), gradients.shape[1])
                )
                rounding = np.sum(np.square(test_steps[is_end]) * diagonals, axis=1)
                rounding *= 1 + np.sum(np.square(self._models[ending]), axis=1)
                is_rounded = _FLOAT32_ROUNDING * np.sqrt(rounding) > _MAX_ROUNDING
                is_rounded &= ~self._is_float64[ending]
                self._use_float64(ending[is_rounded])
                ending = ending[~is_rounded]
            ended.append(ending)
            self._n_passes[active] += 1
            active = np.setdiff1d(active, ended[-1])
            if np.isinf(max_decrement):
                slow = active[self._n_passes[active] == _PASSES_IN_FLOAT32]
                self._n_passes[slow[~self._is_float64[slow]]] = 0
                self._use_float64(slow)
            active = active[self._n_passes[active] < max_passes]
        return np.concatenate(ended)

    def _compute_gradients(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients (n_models, size) of F and of the mean test losses."""
        models, set_indices = self._reshape_models(indices), self._set_indices[indices]
        gradients, is_float64 = np.empty((2, *models.shape)), self._is_float64[indices]
        for objective, used in (
            (self._objective, ~is_float64),
            (self._float64_objective, is_float64),
        ):
            if np.any(used):
                gradients[:, used] = objective.gradients(models[used], set_indices[used])
        self._penalties[indices].add_gradients(models, gradients[0])
        train, test = gradients.reshape(2, len(indices), -1)
        return train, test

    def _use_float64(self, indices: np.ndarray) -> None:
        """Compute gradients in float64 from now on, and discard the history of float32.

        This applies to all folds of the candidates to which the models belong.
        """
        of_candidates = np.isin(self._candidates, self._candidates[indices])
        changed = np.flatnonzero(of_candidates & ~self._is_float64)
        self._is_float64[changed] = True
        halved = changed[self._step_fractions[changed] < 1]  # their last steps may be too long
        self._models[halved] = self._previous[halved]
        self._history[:, :, changed], self._has_step[changed] = 0, False

    def _reshape_models(self, indices: np.ndarray) -> np.ndarray:
        return self._models[indices].reshape(-1, *self._shape)

    def _update_history(self, indices: np.ndarray, gradients: np.ndarray) -> None:
        """Append the last changes of models and of gradients to the histories."""
        steps = self._models[indices] - self._previous[indices]
        changes = gradients - self._gradients[indices]
        is_convex = self._has_step[indices] & (np.sum(steps * changes, axis=1) > 0)
        updated = indices[is_convex]
        self._history[:, :-1, updated] = self._history[:, 1:, updated]
        self._history[:, -1, updated] = steps[is_convex], changes[is_convex]
        self._previous[indices], self._gradients[indices] = self._models[indices], gradients

    def _compute_steps(self, indices: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        """Return the steps of L-BFGS, which are subtracted from models.

        This is the two-loop recursion (Nocedal & Wright 2006, algorithm 7.4).
        """
        n_pairs = min(_MEMORY, 1 + int(self._n_passes[indices].max(initial=0)))
        steps, changes = self._history[:, _MEMORY - n_pairs :, indices]
        products = np.sum(steps * changes, axis=2)
        rhos = np.divide(1, products, out=np.zeros_like(products), where=products > 0)
        step, alphas = gradients.copy(), np.zeros_like(products)
        for i in range(n_pairs - 1, -1, -1):
            alphas[i] = rhos[i] * np.sum(steps[i] * step, axis=1)
            step -= alphas[i][:, None] * changes[i]
        factors = [self._factors[i] for i in indices]
        # Consecutive models with the same factor are solved in one call.
        for _, group in groupby(range(len(indices)), lambda i: id(factors[i])):
            run = list(group)
            step[run] = factors[run[0]].solve(step[run])
        step[~self._penalties.is_free[indices]] = 0
        for i in range(n_pairs):
            beta = rhos[i] * np.sum(changes[i] * step, axis=1)
            step += (alphas[i] - beta)[:, None] * steps[i]
        return step

    def _are_hessians_valid(self, indices: np.ndarray) -> np.ndarray:
        """Return whether the Hessian of each model is still valid at the minimum.

        If a fold is nearly separable, second derivatives vanish on the way to its minimum. The
        distance to the minimum then looks short in an outdated Hessian. If predictors have changed
        by r since the Hessian was computed, each second derivative keeps at least exp(-c r) of its
        value. So if the last step has changed predictors by s, the remaining steps change them by
        at most s exp(c r), and the first derivatives of test losses grow at most by the
        factor exp(c s exp(c r)). If the error bound is below MAX_ERROR by both factors, the model
        has converged anyway.
        """
        set_indices, objective = self._set_indices[indices], self._objective
        has_own, c = self._has_own_hessian[indices], objective.loss.self_concordance
        moves, steps = self._models[indices] - self._hessian_models[indices], self._steps[indices]
        is_measured = has_own | (self._shares_hessian & (self._n_hessians[indices] == 0))
        fractions = np.where(is_measured, self._error_bounds[indices] / MAX_ERROR, 1)
        limits = -np.log(np.clip(fractions, _MIN_ERROR_FRACTION, _MIN_CURVATURE_FRACTION))
        if self._has_jumps:  # the change since the Hessian bounds nothing
            moves, c, limits[:] = np.zeros_like(moves), 1.0, _MAX_PREDICTOR_CHANGE
            if objective.loss.has_tube:
                limits[:] = _MAX_PREDICTOR_CHANGE_IN_TUBE * np.sqrt(objective.tolerance)
                # L-BFGS makes short steps right after it has met the edge of the tube.
                for position, i in enumerate(indices):
                    steps[position] = self._factors[i].solve(self._gradients[[i]])[0]
        are_valid = np.zeros(len(indices), bool)
        # Bounds take less time and are often enough.
        for measure in (objective.bound_predictor_changes, objective.max_predictor_changes):
            if not len(left := np.flatnonzero(~are_valid)):
                break
            both = np.concatenate([moves[left], steps[left]]).reshape(-1, *self._shape)
            moved, last = c * measure(both, np.tile(set_indices[left], 2)).reshape(2, -1)
            with np.errstate(over="ignore", invalid="ignore"):
                are_valid[left] = moved + last * np.exp(moved) < limits[left]
        others = np.flatnonzero(are_valid & ~has_own)
        if len(others):
            indices, set_indices = indices[others], set_indices[others]
            diagonals = objective.hessian_diagonals(self._reshape_models(indices), set_indices)
            diagonals += self._penalties.hessian_diagonals[indices, None]
            factored = np.reshape([self._factors[i].diagonal for i in indices], diagonals.shape)
            is_close = diagonals > _MIN_DIAGONAL_FRACTION * factored
            is_close |= ~self._penalties.is_free[indices].reshape(diagonals.shape)
            are_valid[others] = np.all(is_close, axis=(1, 2))
        return are_valid

    def _renew_hessians(self, indices: np.ndarray) -> None:
        """Move models back to where their gradients are known, and compute the Hessians there."""
        self._models[indices] = self._previous[indices]
        size = max(1, _MAX_BYTES // (8 * self._factors[0].cholesky.size))
        for batch in np.split(indices, range(size, len(indices), size)):
            _, hessians = self._float64_objective.gradients_and_hessians(
                self._reshape_models(batch), self._set_indices[batch], by_group=False
            )
            self._penalties[batch].add_hessians(hessians[:, 0])
            factors = factor_hessians(hessians[:, 0], self._penalties.is_free[batch])
            for i, factor in zip(batch, factors, strict=True):
                self._factors[i] = factor
        self._history[:, :, indices], self._n_passes[indices] = 0, 0
        self._has_step[indices] = False
        self._n_hessians[indices] += 1
        self._hessian_models[indices] = self._models[indices]
        self._has_own_hessian[indices] = not self._has_jumps
