"""Newton's method for the models of all folds and penalties at once.

1. All rows. Newton's method finds the model of one penalty after the other, from the largest
   penalty to the smallest, on a sample if there are many rows. From there L-BFGS finds those of
   all rows together. The gradient g and the Hessian H are sums over groups of rows.
2. First step. The g and H of the training rows of a fold are the sums over its groups, so that the
   first step of its model, from the model of all rows, reads no row.
3. Folds. The models of all folds and penalties are columns of one product X W. The inverse
   Hessian is the first metric of L-BFGS (Nocedal & Wright 2006, algorithm 7.4), and only chooses
   directions. Gradients are sums over the training rows alone, so that no row reaches the
   model that tests it. An old metric is replaced by one at the current model.

**When a model is near enough.** The mean loss of its test rows moves with the root of the gap of
F: with the mean test gradient t and the Newton decrement, which bounds twice the gap,

    |change of the mean loss| <= sqrt(2 gap) |t|  in the norm of the inverse Hessian.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf
from scipy.linalg.lapack import dtrtrs

from optuna_treecv.engines.newton.objective import are_sparse
from optuna_treecv.engines.newton.objective import LanePenalties
from optuna_treecv.engines.newton.objective import Objective
from optuna_treecv.numerics.moments import ArrayCache

#: The most that a model's mean test loss may still change, and the most change by its last step.
MOST_GAP = 1e-6
_MOST_CHANGE = 1e-7

# After this many metrics, they are relative to this share of a large mean test loss, because
# rounding may not allow less.
_LARGE_SHARE, _MANY_METRICS = 1e-2, 3

# The Newton decrement, for rows of weight 1, at which the model of all rows is near enough for the
# first steps. Leaving out a row changes F by more, and some columns may have few rows. Passes of
# sparse rows take so little time that folds may begin farther away.
_NEAR, _NEAR_IF_SPARSE = 1e-3, 1e-1

# One more step of Newton's method leads much nearer. So its models may be this many times farther
# away, unless they are cached for further trials, or second derivatives jump.
_ROUGHLY = 20

# Trials cache a model of all rows for all penalties that round to the same power of 2. Their folds
# begin there. The search for such a model begins at the one cached for the same power of 2^8.
_NEAR_POINTS, _FAR_POINTS = 1, 8

# The passes after which a model that is not near enough gets a new metric, fewer for the model of
# all rows, and the most metrics. Models of several outputs get fewer, because their metrics take
# longer; only separable folds reach these limits.
_PASSES, _FEW_PASSES = 20, 8
_MOST_METRICS, _MOST_METRICS_OF_SEVERAL = 60, 12
_MOST_STEPS = 60
_LEAST_STEP = 1e-2
_MEMORY = 8

# With more coefficients, the model of the next penalty is computed in the metric of the last one,
# because a Hessian takes longer than many passes.
_MOST_WITH_OWN_METRICS = 128

# The steepest rise of F at the end of a step, as a share of its fall at the start.
_MOST_RISE = 0.9

# The share of second derivatives that must remain at the minimum for a metric to be valid there:
# if predictors change by r, at least exp(-c r) remains. A gap that is smaller makes up for a
# smaller share, but not below the smallest one, where gaps are rounding errors.
_LEAST_SHARE, _SMALLEST_SHARE = 0.4, 1e-9

# The share of its diagonal that must remain if a metric is that of other rows. The most that a
# last step may change the predictor of a training row if second derivatives jump; and if test
# losses do not change with predictors, although other scores do, in units of the targets.
_LEAST_LIKENESS, _MOST_REACH, _MOST_REACH_IF_FLAT = 0.5, 0.1, 1e-6

# The rounding error of a sum in float32, as a share of the root of its squares, and the most that
# it may change a mean loss. The squares underestimate the error of clearly misclassified rows.
_ROUNDING, _MOST_ROUNDING = 2.0**-24, 2e-8

# Folds share a metric that has more than this many numbers per row.
_ROWS_PER_NUMBER = 8

# The bytes of the models that are solved at once, with their histories and metrics.
_MOST_BYTES = 2**28


class Metric(NamedTuple):
    """A Hessian (size, size), as the Cholesky factor after scaling to a diagonal of ones.

    Attributes
    ----------
    factor : ndarray of shape (size, size)
        Only its lower triangle is used.
    scales : ndarray of shape (size,)
        The factors of columns that make the diagonal ones: 0 if a coefficient is not free, and NaN
        if the Hessian is not definite.
    diagonal : ndarray of shape (size,)
        The diagonal of the Hessian.
    """

    factor: np.ndarray
    scales: np.ndarray
    diagonal: np.ndarray

    def steps(self, slopes: np.ndarray) -> np.ndarray:
        """Return the products of slopes (n_lanes, size) and the inverse Hessian."""
        half, _ = dtrtrs(self.factor, (slopes * self.scales).T, lower=True)
        steps, _ = dtrtrs(self.factor, half, lower=True, trans=True, overwrite_b=True)
        return np.asarray(steps.T * self.scales)


# A model, and its slopes and Hessians by group.
Point = tuple[np.ndarray, np.ndarray, np.ndarray]


def solve(
    objective: Objective, penalties: LanePenalties, constants: np.ndarray, keep: ArrayCache
) -> np.ndarray:
    """Return the models of all folds and penalties, NaN for those that do not converge.

    Parameters
    ----------
    objective : Objective
    penalties : LanePenalties
        The penalties of each point and training set; the set of all rows is last.
    constants : ndarray of shape (n_sets, n_features)
        The value of each column that is constant in the training rows, so that its coefficient is
        0; NaN for all other columns.
    keep : callable
        Caches the models of all rows at single points, for further points nearby.

    Returns
    -------
    ndarray of shape (n_candidates, n_sets - 1, n_outputs, width)
    """
    n_candidates, n_sets, d = penalties.of_columns.shape
    k, n, n_rows = n_sets - 1, objective.n_outputs, len(objective.rows.X)
    shares, n_groups = objective.sets.shares, objective.sets.shares.shape[1]
    numbers = np.zeros((n_sets, d))
    if objective.has_intercept:  # it has the part of constant columns
        numbers[:, :-1] = np.nan_to_num((constants - objective.centre) / objective.scale)
    # Folds share a metric if one for each fold takes longer than further passes.
    n_numbers = (n * d) ** 2
    n_metrics = 1 if n_numbers > _ROWS_PER_NUMBER * n_rows else k
    with_metric = slice(0, k) if n_metrics > 1 else slice(k, k + 1)
    n_bytes = 8 * (n * d * (2 * _MEMORY + 8) + n_numbers * n_metrics // k)
    lanes_at_once = max(1, _MOST_BYTES // n_bytes)
    points_at_once = max(1, lanes_at_once // k)
    model = np.zeros((n, d))
    if objective.has_intercept:
        model[:, -1] = objective.loss.first(objective.targets, objective.rows.weights)
    order = np.argsort(-penalties.of_columns[:, -1].sum(axis=1), kind="stable")
    new: list[Point] = []
    if n_candidates == 1:
        of_all, size = penalties[order[0], -1:], n * d
        ends = np.cumsum([size, n_groups * size, n_groups * size**2])
        with np.errstate(divide="ignore"):
            strength = np.log2(of_all.of_columns.sum())

        def cached_point(start: np.ndarray, width: float, is_cold: bool) -> Point:
            def fill(buffer: np.ndarray) -> None:
                (point,) = points_near(objective, of_all, start, is_cold)
                for part, memory in zip(point, np.split(buffer, ends[:-1]), strict=True):
                    memory[:] = part.ravel()

            name = f"model of all rows {width} {np.round(strength / width)}"
            model, slopes, hessians = np.split(keep(name, ends[-1], fill), ends[:-1])
            return model.reshape(n, d), slopes.reshape(-1, n, d), hessians.reshape(-1, size, size)

        far = cached_point(model, _FAR_POINTS, is_cold=True)
        new = [cached_point(far[0], _NEAR_POINTS, is_cold=False)]
    # Otherwise the slopes of training rows do not follow from those of groups.
    are_sums = n_groups > 1 and objective.class_weights is None and not len(objective.filled)
    models = np.empty((n_candidates, k, n, d))
    for begin in range(0, n_candidates, points_at_once):
        points = order[begin : begin + points_at_once]
        of_folds = penalties[np.repeat(points, k), np.tile(np.arange(k), len(points))]
        is_cold = begin == 0 or len(points) > 1
        of_points = new or points_near(objective, penalties[points, -1], model, is_cold)
        model = of_points[-1][0]
        every_start, every_slope, metrics = [], [], list[Metric]()
        for i, (common, of_groups, hessians) in enumerate(of_points):
            start = np.where(of_folds.is_free[:k].reshape(k, n, d), common, 0)
            start[:, :, -1] += numbers[:k] @ common.T
            every_start.append(start)
            every_slope.append(shares[:k] @ of_groups.reshape(n_groups, -1))
            totals = shares[with_metric] @ hessians.reshape(n_groups, -1)
            totals = totals.reshape(-1, n * d, n * d)
            of_folds[i * k : i * k + len(totals)].add_to(totals)
            is_free = penalties.is_free[points[i], with_metric]
            metrics += k // n_metrics * metrics_of(totals, is_free)
        starts = np.concatenate(every_start)
        slopes = np.concatenate(every_slope).reshape(starts.shape)
        of_folds.add(starts, slopes)
        set_of = np.tile(np.arange(k), len(points))
        minima = []
        for first in range(0, len(starts), lanes_at_once):
            batch = slice(first, first + lanes_at_once)
            lanes = NewtonDescent(
                *(objective, set_of[batch], of_folds[batch], starts[batch], metrics[batch]),
                slopes[batch] if are_sums else None,
                are_own=are_sums and n_metrics > 1,
            )
            minima.append(lanes.minima())
        models[points] = np.concatenate(minima).reshape(-1, k, n, d)
    return models


def _metric_at(point: Point, penalty: LanePenalties) -> Metric:
    """Return the factored Hessian of all rows at a point."""
    total = point[2].sum(axis=0)[None]
    penalty.add_to(total)
    return metrics_of(total, penalty.is_free)[0]


def _step_of(
    point: Point, penalty: LanePenalties, metric: Metric | None = None
) -> tuple[np.ndarray, float]:
    """Return Newton's step for all rows, and the decrement: half the step times the slope."""
    model, slopes, _ = point
    slope = slopes.sum(axis=0)
    penalty.add(model[None], slope[None])
    step = (metric or _metric_at(point, penalty)).steps(slope.reshape(1, -1))
    return step.reshape(slope.shape), float(step.ravel() @ slope.ravel()) / 2


def points_near(
    objective: Objective, penalties: LanePenalties, model: np.ndarray, is_cold: bool = True
) -> list[Point]:
    """Return models of all rows near the minima of several penalties, from any model.

    A cold start begins on a sample of the rows; otherwise that would save nothing.
    """
    sample = objective.sample if is_cold else objective
    has_jumps = np.isinf(objective.loss.most_bend)
    are_few = penalties.is_free.shape[1] <= _MOST_WITH_OWN_METRICS
    is_rough = is_cold and sample is objective and not has_jumps
    near = _near(objective) * (_ROUGHLY if is_rough else 1)
    points: list[Point] = []
    for i in range(len(penalties.of_columns)):
        penalty = penalties[i : i + 1]
        if points:
            metric = _metric_at(points[-1], penalty)
            # A further metric may take longer than the steps that it saves.
            before = points[-2:] if are_few and not has_jumps else points[-1:]
            model = _predicted(before, penalty, metric)
        if points and not are_few:
            points += _points_from(sample, penalty, model[None], [metric])
        else:
            points.append(_near_minimum(sample, penalty, model, near))
    if sample is objective:
        return points
    models = np.array([here[0] for here in points])
    metrics = [_metric_at(here, penalties[i : i + 1]) for i, here in enumerate(points)]
    return _points_from(objective, penalties, models, metrics)


def _predicted(points: list[Point], penalty: LanePenalties, metric: Metric) -> np.ndarray:
    """Return a guess of the next minimum, without reading rows.

    It is the end of Newton's step with the Hessian halfway, if that goes on changing as between
    the last two points. The metric is that of the last one.
    """
    model, slopes, hessians = points[-1]
    step = np.nan_to_num(_step_of(points[-1], penalty, metric)[0])
    if len(points) > 1:
        moved, changed = model - points[-2][0], hessians - points[-2][2]
        share = -np.sum(step * moved) / max(np.sum(moved * moved), 1e-300)
        halfway = model, slopes, hessians + share / 2 * changed
        longer, _ = _step_of(halfway, penalty)
        step = np.where(np.isfinite(longer), longer, step)
    return model - step


def _points_from(
    objective: Objective, penalties: LanePenalties, models: np.ndarray, metrics: list[Metric]
) -> list[Point]:
    """Return models of all rows near the minima, from models and metrics near them."""
    of_all, near = np.full(len(models), len(objective.sets.shares) - 1), _near(objective)
    nearest = NewtonDescent(objective, of_all, penalties, models, metrics).nearly(near)
    nearest = np.where(np.isfinite(nearest), nearest, models)
    points = list(zip(nearest, *objective.curvature(nearest, of_all, by_group=True), strict=True))
    for i, here in enumerate(points):
        decrement = _step_of(here, penalties[i : i + 1])[1]
        if not decrement < near:
            start = models[i] if np.isnan(decrement) else here[0]
            points[i] = _near_minimum(objective, penalties[i : i + 1], start, near)
    return points


def _near(objective: Objective) -> float:
    """Return the Newton decrement below which a model of all rows is near its minimum."""
    weights = objective.rows.weights
    near = _NEAR_IF_SPARSE if are_sparse(objective.rows) else _NEAR
    return near * objective.tolerance * float(1 if weights is None else weights.mean())


def _near_minimum(
    objective: Objective, penalty: LanePenalties, model: np.ndarray, near: float
) -> Point:
    """Return a model with a Newton decrement below ``near``, or with the smallest one found."""
    nearest: Point | None = None
    of_all, least, share = np.array([len(objective.sets.shares) - 1]), np.inf, 1.0
    step_of_nearest = np.zeros_like(model)
    for _ in range(_MOST_STEPS):
        slopes, hessians = objective.curvature(model[None], of_all, by_group=True)
        here = model, slopes[0], hessians[0]
        step, decrement = _step_of(here, penalty)
        if np.isnan(decrement) and objective.precision_of_hessians == np.float32:
            objective.precision_of_hessians = np.float64
            continue
        if decrement < least:
            nearest, least, step_of_nearest, share = here, decrement, step, 1.0
            if decrement < near:
                break
        elif nearest is None or share < _LEAST_STEP:
            break
        else:  # a step has gone too far
            share /= 4
        model = nearest[0] - share * step_of_nearest
    return nearest or here


def metrics_of(hessians: np.ndarray, are_free: np.ndarray) -> list[Metric]:
    """Return the metrics of Hessians (n_lanes, size, size), which are overwritten."""
    diagonals = np.diagonal(hessians, axis1=1, axis2=2).copy()
    scales = 1 / np.sqrt(np.maximum(diagonals, 1e-300))
    hessians *= scales[:, :, None]
    hessians *= scales[:, None]
    lanes, columns = np.nonzero(~are_free)
    hessians[lanes, columns] = hessians[lanes, :, columns] = 0
    hessians[lanes, columns, columns] = 1
    scales[~are_free] = 0
    metrics = []
    for hessian, scale, diagonal in zip(hessians, scales, diagonals, strict=True):
        factor, info = dpotrf(hessian.T, lower=True, overwrite_a=True)
        metrics.append(Metric(factor, scale if info == 0 else scale * np.nan, diagonal))
    return metrics


class NewtonDescent:
    """L-BFGS for the models of several lanes at once, each in its metric.

    Parameters
    ----------
    objective : Objective
    set_of : ndarray of shape (n_lanes,)
        The training set of each lane.
    penalties : LanePenalties
    starts : ndarray of shape (n_lanes, n_outputs, width)
    metrics : list of Metric
        The metrics at the starts, or near them.
    slopes : ndarray of shape (n_lanes, n_outputs, width) or None
        The slopes at the starts.
    are_own : bool
        Whether the metrics are those at the starts, of the training rows of each lane.
    """

    def __init__(
        self,
        objective: Objective,
        set_of: np.ndarray,
        penalties: LanePenalties,
        starts: np.ndarray,
        metrics: list[Metric],
        slopes: np.ndarray | None = None,
        are_own: bool = False,
    ) -> None:
        n_lanes, self._shape, size = len(starts), starts.shape[1:], starts[0].size
        self._objective, self._set_of, self._penalties = objective, set_of, penalties
        self._metrics = list(metrics)
        self._models = starts.reshape(n_lanes, size).copy()
        # The last models, their slopes, and the steps from them.
        self._before, self._slopes, self._steps = np.zeros((3, n_lanes, size))
        self._history = np.zeros((2, _MEMORY, n_lanes, size))
        self._shares, self._has_step = np.ones(n_lanes), np.zeros(n_lanes, bool)
        self._goes_on, self._gaps = np.zeros(n_lanes, bool), np.full(n_lanes, np.inf)
        self._age, self._n_metrics = np.zeros((2, n_lanes), int)
        self._before[:] = self._models
        # The models at which the metrics were computed.
        self._bases, self._has_jumps = self._models.copy(), np.isinf(objective.loss.most_bend)
        self._are_own = np.full(n_lanes, are_own and not self._has_jumps)
        is_definite = np.array([np.isfinite(metric.scales[0]) for metric in metrics])
        if slopes is not None:  # the first step reads no row
            self._slopes[:] = slopes.reshape(n_lanes, size)
            self._steps[:] = np.nan_to_num(self._direction(np.arange(n_lanes), self._slopes))
            self._models -= self._steps
            self._has_step[:] = True
        if not np.all(is_definite):
            objective.precision_of_hessians = np.float64
            self._renew(np.flatnonzero(~is_definite))

    def minima(self) -> np.ndarray:
        """Return the models (n_lanes, n_outputs, width), NaN for those that do not converge."""
        minima = np.full_like(self._models, np.nan)
        most_metrics = _MOST_METRICS if self._shape[0] == 1 else _MOST_METRICS_OF_SEVERAL
        lanes = np.flatnonzero(np.all(np.isfinite(self._models), axis=1))
        # Beyond a tube in which it is flat, F may rise so steeply that a step is halved 20 times.
        most_passes = _PASSES * (3 if self._objective.loss.is_flat else 1)
        while len(lanes):
            ends = self._descend(lanes, most_passes=most_passes)
            if len(ends):
                is_first = self._are_own[ends] & (self._n_metrics[ends] == 0)
                are_alike = self._stay_alike(ends)
                # A lane with a new metric, or its first one, still makes a step.
                self._goes_on[ends] = ~are_alike & (is_first | (self._age[ends] == 1))
                if np.any(self._goes_on[ends]) and self._objective.precision == np.float32:
                    self._use_float64()
                ends = ends[are_alike]
            minima[ends] = self._models[ends]
            lanes = np.setdiff1d(lanes, ends)
            lanes = lanes[self._n_metrics[lanes] < most_metrics]
            if not np.all(self._goes_on[lanes]):
                self._renew(lanes[~self._goes_on[lanes]])
            lanes = lanes[np.all(np.isfinite(self._models[lanes]), axis=1)]
        return minima.reshape(-1, *self._shape)

    def nearly(self, near: float) -> np.ndarray:
        """Return models near the minima, if the Newton decrement soon falls below ``near``."""
        ends = self._descend(np.arange(len(self._models)), near, _FEW_PASSES)
        models = self._before.copy()  # whose slopes are computed
        models[ends] = self._models[ends]
        return models.reshape(-1, *self._shape)

    def _descend(
        self, active: np.ndarray, near_enough: float = np.inf, most_passes: int = _PASSES
    ) -> np.ndarray:
        """Iterate until all lanes end or their metrics are old; return the lanes that end."""
        ends = []
        while len(active):
            sums, of_tests = self._objective.slopes(self._at(active), self._set_of[active])
            self._penalties[active].add(self._at(active), sums)
            slope, of_tests = sums.reshape(len(active), -1), of_tests.reshape(len(active), -1)
            # F is convex: a step has gone too far if F rises at its end as it fell before.
            falls = np.sum(self._slopes[active] * self._steps[active], axis=1)
            rises = -np.sum(slope * self._steps[active], axis=1)
            is_far = self._has_step[active] & ~(rises <= _MOST_RISE * falls)
            far, near = active[is_far], active[~is_far]
            self._shares[far] /= 2
            self._models[far] = self._before[far] - self._shares[far, None] * self._steps[far]
            slope, of_tests = slope[~is_far], of_tests[~is_far]
            self._remember(near, slope)
            steps = self._direction(near, slope)
            self._steps[near], self._shares[near], self._has_step[near] = steps, 1, True
            self._models[near] -= steps
            decrements = np.abs(np.sum(steps * slope, axis=1))
            changes = np.abs(np.sum(of_tests * steps, axis=1))
            # The order of the losses of outlying rows.
            losses = np.abs(np.sum(of_tests * self._models[near], axis=1))
            losses[self._n_metrics[near] < _MANY_METRICS] = 0
            tolerance = np.maximum(self._objective.tolerance, _LARGE_SHARE * losses)
            is_end = (changes < _MOST_CHANGE * tolerance) & (decrements < near_enough)
            is_end &= ~self._goes_on[near]
            self._goes_on[near] = False
            lanes, of_tests = near[is_end], of_tests[is_end]
            of_means = self._direction(lanes, of_tests)
            norms = np.sum(of_tests * of_means, axis=1)
            self._gaps[lanes] = np.sqrt(decrements[is_end] * norms) / tolerance[is_end]
            is_end = self._gaps[lanes] < MOST_GAP
            lanes = lanes[is_end]
            if self._objective.precision == np.float32:
                # The rounding errors of the mean losses.
                squares = np.reshape(
                    [self._metrics[lane].diagonal for lane in lanes], (len(lanes), slope.shape[1])
                )
                rounding = np.sum(np.square(of_means[is_end]) * squares, axis=1)
                rounding *= 1 + np.sum(np.square(self._models[lanes]), axis=1)
                if np.any(_ROUNDING * np.sqrt(rounding) > _MOST_ROUNDING):
                    self._use_float64()
                    lanes = lanes[:0]
            ends.append(lanes)
            self._age[active] += 1
            active = np.setdiff1d(active, ends[-1])
            active = active[self._age[active] < most_passes]
        return np.concatenate(ends)

    def _use_float64(self) -> None:
        """Compute products in float64 from now on, without the history of rounded slopes."""
        self._objective.precision = self._objective.precision_of_hessians = np.float64
        self._history[:], self._has_step[:] = 0, False

    def _at(self, lanes: np.ndarray) -> np.ndarray:
        return self._models[lanes].reshape(-1, *self._shape)

    def _remember(self, lanes: np.ndarray, slopes: np.ndarray) -> None:
        """Append the last changes of models and of slopes to the histories."""
        moved = self._models[lanes] - self._before[lanes], slopes - self._slopes[lanes]
        is_convex = self._has_step[lanes] & (np.sum(moved[0] * moved[1], axis=1) > 0)
        these = lanes[is_convex]
        self._history[:, :-1, these] = self._history[:, 1:, these]
        self._history[:, -1, these] = moved[0][is_convex], moved[1][is_convex]
        self._before[lanes], self._slopes[lanes] = self._models[lanes], slopes

    def _direction(self, lanes: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """Return the steps that L-BFGS subtracts from models, by its two loops."""
        n_pairs = min(_MEMORY, 1 + int(self._age[lanes].max(initial=0)))
        steps, changes = self._history[:, _MEMORY - n_pairs :, lanes]
        products = np.sum(steps * changes, axis=2)
        shares = np.divide(1, products, out=np.zeros_like(products), where=products > 0)
        step, alphas = slopes.copy(), np.zeros_like(products)
        for i in range(n_pairs - 1, -1, -1):
            alphas[i] = shares[i] * np.sum(steps[i] * step, axis=1)
            step -= alphas[i][:, None] * changes[i]
        metrics = [self._metrics[lane] for lane in lanes]
        for _, run in groupby(range(len(lanes)), lambda i: id(metrics[i])):
            these = list(run)  # next to each other, with the same metric
            step[these] = metrics[these[0]].steps(step[these])
        step[~self._penalties.is_free[lanes]] = 0
        for i in range(n_pairs):
            beta = shares[i] * np.sum(changes[i] * step, axis=1)
            step += (alphas[i] - beta)[:, None] * steps[i]
        return step

    def _stay_alike(self, lanes: np.ndarray) -> np.ndarray:
        """Return whether the second derivatives of lanes are still those of their metrics.

        If a fold is nearly separable, they vanish on the way to its minimum. In an old metric the
        remaining way then looks short. Models that have moved predictors by r have at least
        exp(-c r) of the second derivatives of their metrics. So if the last step has moved them by
        s, the remaining steps move them by s exp(c r) at most, and first derivatives of test
        losses grow by about this power of e. A smaller gap makes up for both.
        """
        set_of, objective = self._set_of[lanes], self._objective
        are_own, bend = self._are_own[lanes], objective.loss.most_bend
        moves, steps = self._models[lanes] - self._bases[lanes], self._steps[lanes]
        shares = np.where(are_own, self._gaps[lanes] / MOST_GAP, 1)
        most = -np.log(np.clip(shares, _SMALLEST_SHARE, _LEAST_SHARE))
        if self._has_jumps:  # moves bound nothing
            moves, bend, most = np.zeros_like(moves), 1.0, np.full(len(lanes), _MOST_REACH)
            if objective.loss.is_flat:
                most[:] = _MOST_REACH_IF_FLAT * np.sqrt(objective.tolerance)
                # Steps of L-BFGS are short where it has just met the edge of the tube.
                for i, lane in enumerate(lanes):
                    steps[i] = self._metrics[lane].steps(self._slopes[[lane]])[0]
        are_alike = np.zeros(len(lanes), bool)
        for reach in (objective.most_reach, objective.reach):
            if not len(left := np.flatnonzero(~are_alike)):
                break
            both = np.concatenate([moves[left], steps[left]]).reshape(-1, *self._shape)
            moved, last = bend * reach(both, np.tile(set_of[left], 2)).reshape(2, -1)
            with np.errstate(over="ignore", invalid="ignore"):
                are_alike[left] = moved + last * np.exp(moved) < most[left]
        others = np.flatnonzero(are_alike & ~are_own)
        if len(others):
            lanes, set_of = lanes[others], set_of[others]
            there = objective.diagonals(self._at(lanes), set_of)
            there += self._penalties.diagonals[lanes, None]
            of_metrics = [self._metrics[lane].diagonal for lane in lanes]
            is_like = there > _LEAST_LIKENESS * np.reshape(of_metrics, there.shape)
            is_like |= ~self._penalties.is_free[lanes].reshape(there.shape)
            are_alike[others] = np.all(is_like, axis=(1, 2))
        return are_alike

    def _renew(self, lanes: np.ndarray) -> None:
        """Move lanes back to their last models with slopes, and compute the metrics there."""
        self._models[lanes] = self._before[lanes]
        at_once = max(1, _MOST_BYTES // (8 * self._metrics[0].factor.size))
        for part in np.split(lanes, range(at_once, len(lanes), at_once)):
            _, hessians = self._objective.curvature(self._at(part), self._set_of[part], False)
            self._penalties[part].add_to(hessians[:, 0])
            metrics = metrics_of(hessians[:, 0], self._penalties.is_free[part])
            for lane, metric in zip(part, metrics, strict=True):
                self._metrics[lane] = metric
        is_lost = np.array([not np.isfinite(self._metrics[lane].scales[0]) for lane in lanes])
        if np.any(is_lost) and self._objective.precision_of_hessians == np.float32:
            self._objective.precision_of_hessians = np.float64
            self._renew(lanes[is_lost])
        self._history[:, :, lanes], self._age[lanes], self._has_step[lanes] = 0, 0, False
        self._n_metrics[lanes] += 1
        if np.any(self._n_metrics[lanes] >= _MANY_METRICS):  # rounding may stand in the way
            self._use_float64()
        self._bases[lanes], self._are_own[lanes] = self._models[lanes], not self._has_jumps
