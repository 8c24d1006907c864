"""Newton's method for the models of all folds and penalties together.

The model of a *lane*, one fold at one penalty, minimises

    F(w) = sum_i u_i loss(x_i.w, y_i) + 1/2 sum_j a_j w_j^2        over its training rows i.

1. All rows. Newton's method finds the minimum at one penalty after the other, from the smallest
   model to the largest. One reading of the rows gives the gradient g and the Hessian H, both as
   sums over chunks: g = sum_f g_f and H = sum_f H_f.
2. First step. The training rows of fold f have the gradient g - g_f and the Hessian H - H_f there,
   so that the first step of its lane reads no row.
3. Lanes. All lanes are columns of one product X W. The inverse of H - H_f, which rounding may have
   harmed, only chooses directions: it is the first metric of L-BFGS (Nocedal & Wright 2006,
   algorithm 7.4). Gradients are summed anew over the training rows alone, so that no row reaches
   the model that tests it.

**When a lane stops.** The mean loss of the test rows moves with the root of the gap of F: with the
mean test gradient t and the Newton decrement, which bounds twice the gap,

    |change of the mean loss| <= sqrt(2 gap) |t|  in the norm of the inverse Hessian.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dposv
from scipy.linalg.lapack import dpotrf
from scipy.linalg.lapack import dpotri

from optuna_treecv.learners.exact.moments import BLOCK
from optuna_treecv.learners.exact.moments import blocks
from optuna_treecv.learners.exact.moments import Chunks
from optuna_treecv.learners.exact.moments import copy_rows
from optuna_treecv.learners.exact.moments import is_rounding
from optuna_treecv.learners.exact.moments import n_rows_of
from optuna_treecv.learners.exact.moments import RowNumbers
from optuna_treecv.learners.newton.losses import PredictorLoss
from optuna_treecv.rows.data import PreparedRows

#: What a lane's mean test loss may still change by, and what its last step may have changed.
MOST_GAP = 1e-6
_MOST_CHANGE = 1e-7

# Both are for losses near 1, or are multiplied by this share of those of large targets.
_LEAST_SHARE = 1e-3

# The Newton decrement per row at which the model of all rows is near enough for the first steps.
_NEAR = 1e-6

_MOST_STEPS = 60
_MOST_PASSES = 60
_MEMORY = 8

# How steeply F may rise at the end of a step, as a part of how it fell at its beginning.
_MOST_RISE = 0.9

# What part of a second derivative must be left at the minimum for a metric to be its own.
_LEAST_LIKENESS = 0.5

# How much a last step may change in the predictor of a training row: second derivatives change by
# the exponential of it.
_MOST_REACH = 0.1

# Folds share a metric where it has more numbers than so many times the rows.
_ROWS_PER_NUMBER = 8

# The bytes of the inverse Hessians of the lanes that are solved together.
_MOST_BYTES = 2**27


class Block(NamedTuple):
    """Some rows of a chunk; the chunk is -1 if every model is trained on them."""

    chunk: int
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None


class Sums(NamedTuple):
    """The slopes of each lane, summed over its training rows and over its test rows."""

    train: np.ndarray
    test: np.ndarray


def parts_of(chunks: Chunks) -> Iterator[tuple[int, slice]]:
    """Yield the chunks and their rows; first those before them, as chunk -1."""
    bounds = chunks.bounds.tolist()
    for chunk, (begin, end) in enumerate(pairwise([0, *bounds]), -1):
        yield chunk, slice(begin, end)


@dataclass(frozen=True)
class Columns:
    """What is known of the columns in the training rows of each fold, and last in all rows.

    Attributes
    ----------
    totals : ndarray of shape (n_chunks + 1,)
        The sum of weights.
    mean, spread : ndarray of shape (n_chunks + 1, n_features)
        What a ``StandardScaler`` learns, in which all rows weigh alike.
    low, high : ndarray of shape (n_chunks + 1, n_features)
        The least and the greatest number in rows with weight.
    """

    totals: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, rows: PreparedRows, chunks: Chunks) -> Columns:
        """Read all rows once, and merge what is known of chunks."""
        k, d = chunks.n_chunks, rows.n_features
        totals, sizes = np.zeros((2, k + 1))
        mean, M2 = np.zeros((2, k + 1, d))
        low, high = np.full((k + 1, d), np.inf), np.full((k + 1, d), -np.inf)
        buffer = np.empty((BLOCK, d))
        for chunk, part in parts_of(chunks):
            for some in blocks(part):
                X = buffer[: n_rows_of(some)]
                copy_rows(rows, some, X)
                of_block = X.mean(axis=0)
                share = len(X) / (sizes[chunk] + len(X))
                delta = of_block - mean[chunk]
                M2[chunk] += np.square(X - of_block).sum(axis=0)
                M2[chunk] += np.square(delta) * (sizes[chunk] * share)
                mean[chunk] += delta * share
                sizes[chunk] += len(X)
                if rows.weights is None:
                    totals[chunk] += len(X)
                else:
                    totals[chunk] += rows.weights[some].sum(dtype=np.float64)
                    X = X[rows.weights[some] > 0]
                low[chunk] = np.minimum(low[chunk], X.min(axis=0, initial=np.inf))
                high[chunk] = np.maximum(high[chunk], X.max(axis=0, initial=-np.inf))
        # Nothing is subtracted, which would lose digits: each set is merged from its chunks.
        is_trained = 1 - np.eye(k + 1)
        is_trained[-1] = is_trained[:, -1] = 1
        of_sets = is_trained * sizes
        n_rows = of_sets.sum(axis=1, keepdims=True)
        means = of_sets @ mean / n_rows
        squares = is_trained @ M2 + np.einsum(
            "sc,scj->sj", of_sets, np.square(mean[None] - means[:, None])
        )
        ends = [
            np.array([end(values[one > 0], axis=0) for one in is_trained])
            for end, values in ((np.min, low), (np.max, high))
        ]
        spread = np.sqrt(squares / n_rows)
        spread[is_rounding(squares / n_rows, n_rows, means)] = 1
        return cls(is_trained @ totals, means, spread, *ends)

    @property
    def is_constant(self) -> np.ndarray:
        """Whether a column has one number, (n_chunks + 1, n_features)."""
        return self.low == self.high


@dataclass
class Objective:
    """What models minimise, on rows whose columns are centred and scaled by those of all rows.

    This changes no model, since intercepts are free and penalties are scaled too. It only keeps
    numbers near 1.

    Attributes
    ----------
    rows : PreparedRows
    chunks : Chunks
        A partition of the rows; those before the first chunk are trained on by all.
    loss : PredictorLoss
    has_intercept : bool
    centre, scale : ndarray of shape (n_features,)
    class_weights : ndarray of shape (n_chunks + 1, n_classes) or None
        Of the rows of each class in the training sets, that of all rows last.
    """

    rows: PreparedRows
    chunks: Chunks
    loss: PredictorLoss
    has_intercept: bool
    centre: np.ndarray
    scale: np.ndarray
    class_weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.width = self.rows.n_features + self.has_intercept
        self.n_outputs = self.loss.n_outputs
        assert self.rows.targets is not None
        self.targets = self.rows.targets
        unit = self.loss.unit(self.targets)
        # Losses are summed in float64, where so small a part of large ones is still to be seen.
        self.tolerance = float(np.clip(1, _LEAST_SHARE * unit, unit))
        self._buffer = np.ones((BLOCK, self.width))

    def read(self, part: RowNumbers) -> Iterator[tuple[RowNumbers, np.ndarray]]:
        """Yield some rows, a few at a time; an array is overwritten by the next one."""
        d = self.rows.n_features
        for some in blocks(part):
            X = self._buffer[: n_rows_of(some)]
            copy_rows(self.rows, some, X[:, :d])
            X[:, :d] -= self.centre
            X[:, :d] /= self.scale
            yield some, X

    def blocks(self) -> Iterator[Block]:
        """Yield all rows."""
        for chunk, part in parts_of(self.chunks):
            for some, X in self.read(part):
                weights = None if self.rows.weights is None else self.rows.weights[some]
                yield Block(chunk, X, self.targets[some], weights)

    def _predictors(
        self, models: np.ndarray, chunk_of: np.ndarray
    ) -> Iterator[tuple[Block, np.ndarray, np.ndarray]]:
        """Yield blocks, the predictors of their rows, and the lanes that the blocks test."""
        W = models.reshape(-1, self.width)
        lanes_of = [np.flatnonzero(chunk_of == f) for f in range(-1, self.chunks.n_chunks)]
        for block in self.blocks():
            z = (block.X @ W.T).reshape(len(block.X), len(models), self.n_outputs)
            yield block, z, lanes_of[block.chunk + 1]

    def sums(self, models: np.ndarray, chunk_of: np.ndarray) -> Sums:
        """Return the slopes of models (n_lanes, n_outputs, width)."""
        sums = Sums(np.zeros_like(models), np.zeros_like(models))
        for block, z, tested in self._predictors(models, chunk_of):
            self.loss.differentiate(z, block.y)
            self._weigh(z, block, chunk_of)
            if len(tested):
                sums.test[tested] += np.tensordot(z[:, tested], block.X, (0, 0))
                z[:, tested] = 0
            sums.train[:] += (z.reshape(len(z), -1).T @ block.X).reshape(models.shape)
        return sums

    def diagonals(self, models: np.ndarray, chunk_of: np.ndarray) -> np.ndarray:
        """Return the diagonals of the Hessians of models, over their training rows."""
        diagonals = np.zeros_like(models)
        for block, z, tested in self._predictors(models, chunk_of):
            bends = self.loss.bends(z, block.y)
            self._weigh(bends, block, chunk_of)
            bends[:, tested] = 0
            diagonals += (bends.reshape(len(z), -1).T @ np.square(block.X)).reshape(models.shape)
        return diagonals

    def reach(self, steps: np.ndarray, chunk_of: np.ndarray) -> np.ndarray:
        """Return the most that steps change in a predictor of a training row, (n_lanes,)."""
        reach = np.zeros(len(steps))
        for block in self.blocks():
            z = np.abs(block.X @ steps.reshape(-1, self.width).T)
            z = z.reshape(len(z), len(steps), self.n_outputs)
            if block.weights is not None:
                z[block.weights == 0] = 0
            z[:, chunk_of == block.chunk] = 0
            np.maximum(reach, z.max(axis=(0, 2)), out=reach)
        return reach

    def _weigh(self, numbers: np.ndarray, block: Block, chunk_of: np.ndarray) -> None:
        """Multiply numbers (n_rows, n_lanes, ...) by the weights of rows and classes."""
        weights = None if block.weights is None else block.weights[:, None]
        if self.class_weights is not None:
            of_classes = self.class_weights[chunk_of][:, block.y].T
            weights = of_classes if weights is None else weights * of_classes
        if weights is not None:
            numbers *= weights[:, :, None]

    def curvature(self, model: np.ndarray, of_chunk: int = -1) -> tuple[np.ndarray, np.ndarray]:
        """Return the slopes and Hessians of a model by chunk; the rows before these are the last.

        ``of_chunk`` is the chunk that the model tests, whose weights of classes count; -1: none.
        """
        k, d, n = self.chunks.n_chunks + 1, self.width, self.n_outputs
        slopes, hessians = np.zeros((k, n, d)), np.zeros((k, n, d, n, d))
        lane = np.array([of_chunk])
        for block in self.blocks():
            z = block.X @ model.T
            curvatures = self.loss.curvatures(z, block.y)
            z = z[:, None]
            self.loss.differentiate(z, block.y)
            self._weigh(z, block, lane)
            slopes[block.chunk] += z[:, 0].T @ block.X
            self._weigh(curvatures.reshape(len(z), 1, -1), block, lane)
            # Hessians only choose steps: products of float32 are near enough.
            X = block.X.astype(np.float32)
            for a in range(n):
                root = X * np.sqrt(curvatures[:, a, a, None], dtype=np.float32)
                hessians[block.chunk, a, :, a] += root.T @ root
                for b in range(a):
                    product = (X * curvatures[:, a, b, None].astype(np.float32)).T @ X
                    hessians[block.chunk, a, :, b] += product
                    hessians[block.chunk, b, :, a] += product
        return slopes, hessians


@dataclass
class Penalties:
    """1/2 sum_j a_j w_j^2 + 1/2 (b.w)^2 for each lane.

    b penalises an intercept: that of columns as they are is a sum over centred ones. Models of
    several outputs k also get 1/2 c sum_j (sum_k w_kj)^2. These sums are 0 at the minimum of a
    multinomial loss anyway, which does not change if a number is added to all outputs.

    Attributes
    ----------
    of_columns, of_intercepts : ndarray of shape (n_lanes, width)
        a and b.
    of_sums : float
    """

    of_columns: np.ndarray
    of_intercepts: np.ndarray
    of_sums: float = 0.0

    def __getitem__(self, lanes: Any) -> Penalties:
        return Penalties(self.of_columns[lanes], self.of_intercepts[lanes], self.of_sums)

    def add(self, models: np.ndarray, slopes: np.ndarray) -> None:
        """Add the slopes of the penalties of models."""
        slopes += self.of_columns[:, None] * models
        intercepts = np.einsum("lnd,ld->ln", models, self.of_intercepts)
        slopes += intercepts[:, :, None] * self.of_intercepts[:, None]
        if self.of_sums:
            slopes += self.of_sums * models.sum(axis=1, keepdims=True)

    def added_to(self, hessian: np.ndarray, lane: int) -> np.ndarray:
        """Return a Hessian (n_outputs, width, n_outputs, width) with the penalty of a lane."""
        total, columns = hessian.copy(), np.arange(hessian.shape[1])
        for a in range(len(total)):
            total[a, columns, a, columns] += self.of_columns[lane]
            total[a, :, a] += np.outer(self.of_intercepts[lane], self.of_intercepts[lane])
            if self.of_sums:
                total[a, columns, :, columns] += self.of_sums
        return total


def solve(objective: Objective, penalties: Penalties, constants: np.ndarray) -> np.ndarray:
    """Return the models of all folds at all penalties.

    Parameters
    ----------
    objective : Objective
    penalties : Penalties
        Those of each point, and there of each fold's model, and of the model of all rows.
    constants : ndarray of shape (n_chunks + 1, n_features)
        The number of a column whose coefficient is 0, since it is the only one in the training
        rows; NaN for all other columns.

    Returns
    -------
    ndarray of shape (n_points, n_chunks, n_outputs, width)
        NaN where a model was not found: F has no minimum, or not near enough.
    """
    n_points, k = len(penalties.of_columns), objective.chunks.n_chunks
    n, d = objective.n_outputs, objective.width
    if n > 1:
        penalties = replace(penalties, of_sums=objective.rows.X.shape[0] / n**2)
    out = np.empty((n_points, k, n, d))
    is_free, numbers = np.ones((k + 1, d), bool), np.zeros((k + 1, d))
    is_free[:, : constants.shape[1]] = np.isnan(constants)
    if objective.has_intercept:  # it has the part of the columns that are left out
        numbers[:, :-1] = np.nan_to_num((constants - objective.centre) / objective.scale)
    order = np.argsort(-penalties.of_columns[:, -1].sum(axis=1), kind="stable")
    # Where a metric for each fold takes longer than further passes, folds share one.
    n_metrics = 1 if (n * d) ** 2 > _ROWS_PER_NUMBER * objective.rows.X.shape[0] else k
    at_once = max(1, _MOST_BYTES // (8 * n_metrics * (n * d) ** 2))
    model = np.zeros((n, d))
    if objective.has_intercept:
        model[:, -1] = objective.loss.first(objective.targets, objective.rows.weights)
    here: OfAllRows | None = None
    for begin in range(0, n_points, at_once):
        points = order[begin : begin + at_once]
        starts, metrics = np.empty((len(points), k, n, d)), list[Metric]()
        for i, point in enumerate(points):
            of_all = penalties[point, -1:]
            if here is not None:  # Newton's step from one point to the next reads no row
                model = here.model - here.step(of_all, is_free[-1])[0]
            here = _near_minimum(objective, of_all, is_free[-1], model)
            of_folds = penalties[point, :-1]
            metrics += _metrics(here, of_folds, is_free, n_metrics)
            _write_starts(here, of_folds, is_free, numbers, metrics[-n_metrics:], starts[i])
        lanes = Lanes(
            np.tile(np.arange(k), len(points)),
            penalties[np.repeat(points, k), np.tile(np.arange(k), len(points))],
            np.tile(is_free[:-1], (len(points), 1)),
            metrics,
        )
        out[points] = _together(objective, lanes, starts.reshape(-1, n, d)).reshape(-1, k, n, d)
    return out


class Metric(NamedTuple):
    """The inverse of a Hessian, and its diagonal, (n_outputs, width)."""

    inverse: np.ndarray
    diagonal: np.ndarray


class Lanes(NamedTuple):
    """The models that are solved for together: the chunks that they test, and what they minimise.

    Each has a metric, or as many neighbours as there are folds share one.
    """

    chunk_of: np.ndarray
    penalties: Penalties
    is_free: np.ndarray
    metrics: list[Metric]

    @property
    def metric_of(self) -> np.ndarray:
        """The number of each lane's metric."""
        return np.arange(len(self.chunk_of)) * len(self.metrics) // len(self.chunk_of)


class OfAllRows(NamedTuple):
    """A model of all rows, with its slopes and Hessians by chunk."""

    model: np.ndarray
    slopes: np.ndarray
    hessians: np.ndarray

    def step(self, penalty: Penalties, is_free: np.ndarray) -> tuple[np.ndarray, float]:
        """Return Newton's step, and the Newton decrement: half the step times the slope."""
        slope = self.slopes.sum(axis=0)
        penalty.add(self.model[None], slope[None])
        hessian = penalty.added_to(self.hessians.sum(axis=0), 0)
        part, scale, free = _scaled(hessian, is_free)
        _, solution, info = dposv(part, scale * slope.ravel()[free])
        step = np.zeros(slope.size)
        step[free] = scale * solution if info == 0 else np.nan
        return step.reshape(slope.shape), float(step @ slope.ravel()) / 2


def _near_minimum(
    objective: Objective, penalty: Penalties, is_free: np.ndarray, model: np.ndarray
) -> OfAllRows:
    """Return a model that is one step of Newton's away from the minimum, or nearly so."""
    least = np.inf
    for _ in range(_MOST_STEPS):
        here = OfAllRows(model, *objective.curvature(model))
        step, decrement = here.step(penalty, is_free)
        near = _NEAR * objective.tolerance * objective.rows.X.shape[0]
        if not decrement < least or decrement < near:
            break
        least, model = decrement, model - step
    return here


def _scaled(hessian: np.ndarray, is_free: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the free part of a Hessian with a diagonal of ones, its scales, and where it is."""
    size = hessian.shape[0] * hessian.shape[1]
    free = np.flatnonzero(np.tile(is_free, hessian.shape[0]))
    part = hessian.reshape(size, size)[np.ix_(free, free)]
    scale = 1 / np.sqrt(np.maximum(np.diag(part), 1e-300))
    return part * scale[:, None] * scale, scale, free


def _metric(hessian: np.ndarray, is_free: np.ndarray) -> Metric:
    """Return the metric of a Hessian, 0 where nothing is free; NaN if it is not definite."""
    part, scale, free = _scaled(hessian, is_free)
    factor, info = dpotrf(part)
    inner = dpotri(factor)[0] if info == 0 else np.full_like(part, np.nan)
    inner = np.triu(inner) + np.triu(inner, 1).T
    size = hessian.shape[0] * hessian.shape[1]
    inverse = np.zeros((size, size))
    inverse[np.ix_(free, free)] = inner * scale[:, None] * scale
    return Metric(inverse, np.diag(hessian.reshape(size, size)).reshape(hessian.shape[:2]))


def _metrics(here: OfAllRows, penalties: Penalties, is_free: np.ndarray, n: int) -> list[Metric]:
    """Return the metrics of the training rows of each fold, or a single one of all rows."""
    of_all = here.hessians.sum(axis=0)
    if n == 1:
        return [_metric(penalties.added_to(of_all, 0), is_free[-1])]
    return [
        _metric(penalties.added_to(of_all - here.hessians[f], f), is_free[f]) for f in range(n)
    ]


def _write_starts(
    here: OfAllRows,
    penalties: Penalties,
    is_free: np.ndarray,
    numbers: np.ndarray,
    metrics: list[Metric],
    starts: np.ndarray,
) -> None:
    """Write the models of all folds after their first step."""
    slope_of_all = here.slopes.sum(axis=0)
    for f, start in enumerate(starts):
        start[:] = np.where(is_free[f], here.model, 0)
        start[:, -1] += here.model @ numbers[f]
        slope = slope_of_all - here.slopes[f]
        penalties[np.array([f])].add(start[None], slope[None])
        step = metrics[f % len(metrics)].inverse @ slope.ravel()
        start -= np.where(is_free[f], step.reshape(start.shape), 0)


def _together(objective: Objective, of: Lanes, starts: np.ndarray) -> np.ndarray:
    """Return the models of all lanes by L-BFGS; NaN for a lane that does not end."""
    n_lanes, shape = len(starts), starts.shape[1:]
    size = shape[0] * shape[1]
    sizes, metric_of = objective.chunks.sizes[of.chunk_of], of.metric_of
    is_fixed = ~np.tile(of.is_free, (1, shape[0]))

    def times_metric(lanes: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        products = np.empty_like(vectors)
        for metric in np.unique(metric_of[lanes]):
            these = metric_of[lanes] == metric
            products[these] = vectors[these] @ of.metrics[metric].inverse
        products[is_fixed[lanes]] = 0
        return products

    models, solved = starts.reshape(n_lanes, size).copy(), np.full((n_lanes, size), np.nan)
    history = np.zeros((2, _MEMORY, n_lanes, size))
    # The last models, their slopes, and the steps from them.
    before, slopes_before, steps = np.zeros((3, n_lanes, size))
    shares, has_step = np.ones(n_lanes), np.zeros(n_lanes, bool)
    active = np.flatnonzero(np.all(np.isfinite(models), axis=1))
    for _ in range(_MOST_PASSES):
        if len(active) == 0:
            break
        of_active = models[active].reshape(-1, *shape)
        sums = objective.sums(of_active, of.chunk_of[active])
        of.penalties[active].add(of_active, sums.train)
        slope = sums.train.reshape(len(active), size)
        # F is convex: a step has gone too far where F rises along it as it fell before.
        falls = np.sum(slopes_before[active] * steps[active], axis=1)
        rises = -np.sum(slope * steps[active], axis=1)
        is_far = has_step[active] & ~(rises <= _MOST_RISE * falls)
        far, near = active[is_far], active[~is_far]
        shares[far] /= 2
        models[far] = before[far] - shares[far, None] * steps[far]
        slope, of_tests = slope[~is_far], sums.test.reshape(len(active), size)[~is_far]
        changes = np.stack([models[near] - before[near], slope - slopes_before[near]])
        _remember(history, near[has_step[near]], changes[:, has_step[near]])
        before[near], slopes_before[near], has_step[near] = models[near], slope, True
        metric = partial(times_metric, near)
        steps[near], shares[near] = _direction(history[:, :, near], slope, metric), 1
        models[near] -= steps[near]
        of_tests /= sizes[near, None]
        norms = np.sum(of_tests * _direction(history[:, :, near], of_tests, metric), axis=1)
        gaps = np.sqrt(np.abs(np.sum(steps[near] * slope, axis=1)) * norms)
        changes_of_tests = np.abs(np.sum(of_tests * steps[near], axis=1))
        most_gap, most_change = MOST_GAP * objective.tolerance, _MOST_CHANGE * objective.tolerance
        done = near[(gaps < most_gap) & (changes_of_tests < most_change)]
        solved[done] = models[done]
        active = np.setdiff1d(active, done)
    solved, steps = solved.reshape(starts.shape), steps.reshape(starts.shape)
    # Where a fold is nearly separable, second derivatives vanish on the way to its minimum. In the
    # metric of the model of all rows, the way that is left then looks short.
    diagonals = np.stack([of.metrics[metric].diagonal for metric in of.metric_of])
    there = objective.diagonals(solved, of.chunk_of) + of.penalties.of_columns[:, None]
    there += np.square(of.penalties.of_intercepts)[:, None]
    is_like = ~of.is_free[:, None] | (there > _LEAST_LIKENESS * diagonals)
    is_near = objective.reach(steps, of.chunk_of) < _MOST_REACH
    for lane in np.flatnonzero(~(np.all(is_like, axis=(1, 2)) & is_near)):
        penalty = of.penalties[np.array([lane])]
        start = np.where(of.is_free[lane], np.nan_to_num(starts[lane]), 0)
        solved[lane] = _alone(objective, penalty, int(of.chunk_of[lane]), of.is_free[lane], start)
    return solved


def _alone(
    objective: Objective, penalty: Penalties, chunk: int, is_free: np.ndarray, model: np.ndarray
) -> np.ndarray:
    """Return a lane's model by Newton's method with its own Hessians; NaN if it does not end."""
    before = slope_before = step = np.zeros_like(model)
    share = 1.0
    for turn in range(_MOST_STEPS):
        slopes, hessians = objective.curvature(model, chunk)
        of_tests = slopes[chunk].ravel() / objective.chunks.sizes[chunk]
        slopes[chunk] = hessians[chunk] = 0
        slope = slopes.sum(axis=0)
        penalty.add(model[None], slope[None])
        if turn and not -np.sum(slope * step) <= _MOST_RISE * np.sum(slope_before * step):
            share /= 2
            model = before - share * step
            continue
        metric = _metric(penalty.added_to(hessians.sum(axis=0), 0), is_free).inverse
        before, slope_before, share = model, slope, 1.0
        step = (metric @ slope.ravel()).reshape(model.shape)
        model = model - step
        gap = np.sqrt(np.abs(np.sum(step * slope)) * (of_tests @ metric @ of_tests))
        change = abs(of_tests @ step.ravel())
        is_near = max(gap / MOST_GAP, change / _MOST_CHANGE) < objective.tolerance
        if is_near and objective.reach(step[None], np.array([chunk]))[0] < _MOST_REACH:
            return model
    return np.full_like(model, np.nan)


def _remember(history: np.ndarray, lanes: np.ndarray, changes: np.ndarray) -> None:
    """Add changes of models and of slopes to the histories of lanes, the last ones at the end."""
    is_convex = np.sum(changes[0] * changes[1], axis=1) > 0
    lanes = lanes[is_convex]
    history[:, :-1, lanes] = history[:, 1:, lanes]
    history[:, -1, lanes] = changes[:, is_convex]


def _direction(
    history: np.ndarray, slopes: np.ndarray, metric: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return what L-BFGS subtracts from models, by its two loops."""
    steps, changes = history
    products = np.sum(steps * changes, axis=2)
    shares = np.divide(1, products, out=np.zeros_like(products), where=products > 0)
    step, alphas = slopes.copy(), np.zeros_like(products)
    for i in range(_MEMORY - 1, -1, -1):
        alphas[i] = shares[i] * np.sum(steps[i] * step, axis=1)
        step -= alphas[i][:, None] * changes[i]
    step = metric(step)
    for i in range(_MEMORY):
        beta = shares[i] * np.sum(changes[i] * step, axis=1)
        step += (alphas[i] - beta)[:, None] * steps[i]
    return step
