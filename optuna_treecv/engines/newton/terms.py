"""Losses of rows, and the training sets over which they are summed.

A training set is a union of groups of rows. Losses are given by their derivatives with respect to
the linear predictors z = x.w.
"""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from sklearn.utils.sparsefuncs import mean_variance_axis
from sklearn.utils.sparsefuncs import min_max_axis

from optuna_treecv.engines.newton.kernels.glm import logistic_slopes
from optuna_treecv.engines.newton.kernels.glm import softmax
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import copy_rows
from optuna_treecv.numerics.spread import BLOCK
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import count_rows
from optuna_treecv.numerics.spread import is_rounding
from optuna_treecv.numerics.spread import merge_spreads
from optuna_treecv.numerics.spread import RowIndices
from optuna_treecv.numerics.spread import Spread
from optuna_treecv.numerics.spread import spread_of
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.distributed import Block
from optuna_treecv.rows.distributed import RemoteBlocks
from optuna_treecv.rows.layout import SparseRows
from optuna_treecv.rows.maps import ColumnMaps
from optuna_treecv.types import Array

# With more groups of rows, sums are not computed separately for each group.
_MAX_GROUPS = 128


class TrainingSets(NamedTuple):
    """The training set of each fold, followed by the set of all rows.

    Two rows are of the same *kind* if they train the same models and test the same models.

    Attributes
    ----------
    rows : list of slice or ndarray of int
        The indices of the rows of each kind. If there are more than 128 kinds, this is a single
        array with the indices of all rows, sorted by kind.
    kinds : list of (int or ndarray of int)
        For each entry of ``rows``, its kind, or an array with the kind of each row.
    is_trained, is_tested : ndarray of shape (n_sets, n_kinds), bool
        Whether the rows of a kind train the model of each set, and whether they test it.
    group_fractions : ndarray of shape (n_sets, n_groups)
        The fraction of the rows of each group that are in each set. The groups are the kinds. If
        there are more than 128 kinds, all rows are one group.
    """

    rows: list[RowIndices]
    kinds: list[int | Array]
    is_trained: Array
    is_tested: Array
    group_fractions: Array

    @classmethod
    def from_chunks(cls, chunks: Chunks) -> TrainingSets:
        """Return the training sets of all folds."""
        k, n = chunks.n_chunks, chunks.n_rows
        if chunks.trains is None:  # a partition; the rows before the first chunk train all models
            rows = [slice(*bounds) for bounds in pairwise([0, *chunks.bounds.tolist()])]
            is_tested = np.vstack([np.eye(k + 1, dtype=bool)[1:], np.zeros(k + 1, bool)])
            if rows[0].stop == 0:
                rows, is_tested = rows[1:], is_tested[:, 1:]
            fractions = (~is_tested).astype(float)
            return cls([*rows], [*range(len(rows))], ~is_tested, is_tested, fractions)
        masks = np.zeros((n, 2, k), bool)  # whether each row trains and tests each model
        for chunk in range(k):
            for part in chunks.train_parts(chunk):
                masks[part, 0, chunk] = True
            masks[chunks.test_rows(chunk, chunk + 1), 1, chunk] = True
        bits = np.packbits(masks.reshape(n, -1), axis=1)
        _, first, kinds = np.unique(bits, axis=0, return_index=True, return_inverse=True)
        kinds = kinds.ravel()
        trained, tested = masks[first].transpose(1, 2, 0)
        is_trained = np.vstack([trained, np.ones(len(first), bool)])
        is_tested = np.vstack([tested, np.zeros(len(first), bool)])
        order = np.argsort(kinds, kind="stable")
        stops = np.cumsum(np.bincount(kinds))
        if len(first) > _MAX_GROUPS:
            fractions = (is_trained @ np.bincount(kinds) / n)[:, None]
            return cls([order], [kinds[order]], is_trained, is_tested, fractions)
        fractions = is_trained.astype(float)
        rows_by_kind = np.split(order, stops[:-1])
        return cls([*rows_by_kind], [*range(len(first))], is_trained, is_tested, fractions)

    def restrict(self, start: int, stop: int) -> TrainingSets:
        """Return the sets restricted to the rows start to stop - 1, with indices from 0."""
        rows: list[RowIndices] = []
        for part in self.rows:
            assert isinstance(part, slice)
            bounds = np.clip([part.start - start, part.stop - start], 0, stop - start)
            rows.append(slice(*bounds.tolist()))
        return self._replace(rows=rows)

    def blocks(self, size: int) -> Iterator[tuple[RowIndices, Array, Array]]:
        """Yield blocks of at most ``size`` rows with two masks of shape (n_rows or 1, n_sets).

        The first mask tells which sets train on each row, and the second one which sets test on
        it.
        """
        for part, kinds in zip(self.rows, self.kinds, strict=True):
            start = 0
            for block in blocks(part, size):
                stop = start + count_rows(block)
                kind = kinds[start:stop] if isinstance(kinds, np.ndarray) else [kinds]
                yield block, self.is_trained[:, kind].T, self.is_tested[:, kind].T
                start = stop

    def group_blocks(
        self, size: int, by_group: bool
    ) -> Iterator[tuple[RowIndices, Array, list[tuple[int, slice]]]]:
        """Yield blocks of at most ``size`` rows with the rows of each group in a block.

        Parameters
        ----------
        size : int
        by_group : bool
            Whether to divide blocks into groups. Otherwise all rows are in group 0.

        Yields
        ------
        block : slice or ndarray of int
            The row indices.
        is_trained : ndarray of shape (n_rows or 1, n_sets)
            The mask of ``blocks``; True for all rows if ``by_group``.
        groups : list of (int, slice)
            The index of each group that has rows in the block, and the position of these rows.
        """
        if not by_group:
            for block, is_trained, _ in self.blocks(size):
                yield block, is_trained, [(0, slice(None))]
            return
        offsets = np.cumsum([0, *(count_rows(part) for part in self.rows)])
        rows: RowIndices = slice(0, offsets[-1])
        if not all(isinstance(part, slice) for part in self.rows):
            rows = np.concatenate([np.r_[part] for part in self.rows])
        all_train = np.ones((1, len(self.group_fractions)), bool)
        for start, block in zip(range(0, offsets[-1], size), blocks(rows, size), strict=True):
            bounds = np.clip(offsets - start, 0, count_rows(block)).tolist()
            groups = enumerate(slice(*bound) for bound in pairwise(bounds))
            yield (
                block,
                all_train,
                [(group, part) for group, part in groups if part.stop > part.start],
            )


def training_set_statistics(rows: PreparedRows, sets: TrainingSets) -> tuple[Spread, Array]:
    """Compute the column statistics of each training set, and its total sample weight.

    Minimum and maximum ignore missing values and rows of weight 0. Mean and variance are not
    weighted, as in a ``StandardScaler``.

    Returns
    -------
    statistics : Spread
        Arrays of shape (n_sets, n_features); ``n_rows`` has the shape (n_sets, 1).
    totals : ndarray of shape (n_sets,)
    """
    # With few groups, all rows are read once; with many, the rows of each set are read.
    units, order, kinds = sets.rows, sets.rows[0], sets.kinds[0]
    if are_many := isinstance(order, np.ndarray) and isinstance(kinds, np.ndarray):
        units = [order[is_trained[kinds]] for is_trained in sets.is_trained]
    statistics, totals = zip(*(_compute_statistics(rows, part) for part in units), strict=True)
    counts, mean, squares, low, high = (np.array(x) for x in zip(*statistics, strict=True))
    if are_many:
        return Spread(counts[:, None], mean, squares, low, high), np.array(totals)
    # Statistics of groups are merged. Subtracting a fold from all rows would lose digits.
    set_counts = sets.is_trained * counts
    sizes = set_counts.sum(axis=1)[:, None]
    means = set_counts @ mean / sizes
    squares = sets.is_trained @ squares + np.einsum(
        "sg,sgj->sj", set_counts, np.square(mean[None] - means[:, None])
    )
    low = np.array([low[x].min(axis=0) for x in sets.is_trained])
    high = np.array([high[x].max(axis=0) for x in sets.is_trained])
    return Spread(sizes, means, squares, low, high), sets.is_trained @ np.array(totals)


def cached_training_set_statistics(
    rows: PreparedRows, sets: TrainingSets, cache: ArrayCache
) -> tuple[Spread, Array]:
    """Return ``training_set_statistics`` from the cache, or compute and cache them."""
    n_sets, d = len(sets.group_fractions), rows.n_features

    def fill(buffer: Array) -> None:
        statistics, totals = training_set_statistics(rows, sets)
        buffer[:] = np.column_stack([totals, *statistics]).ravel()

    flat = cache("spread of columns", n_sets * (4 * d + 2), fill).reshape(n_sets, -1)
    return Spread(flat[:, 1:2], *np.split(flat[:, 2:], 4, axis=1)), flat[:, 0]


def standard_deviations(statistics: Spread) -> Array:
    """Return the standard deviations, 1 if a variance is below its rounding error."""
    variance = statistics.squares / statistics.n_rows
    is_small = is_rounding(variance, statistics.n_rows, statistics.mean)
    return np.where(is_small, 1, np.sqrt(variance))


def _compute_block_statistics(block: Block, start: int, stop: int) -> tuple[Spread, float]:
    return _compute_statistics(block.rows, slice(start, stop))


def _compute_statistics(rows: PreparedRows, part: RowIndices) -> tuple[Spread, float]:
    """Return the column statistics of the rows ``part``, and the total weight of these rows."""
    if isinstance(rows.X, RemoteBlocks):
        assert isinstance(part, slice)
        results = rows.X.over(part.start, part.stop, _compute_block_statistics)
        block_statistics, totals = zip(*results, strict=True)
        return reduce(merge_spreads, block_statistics), sum(totals)
    if isinstance(rows.X, SparseRows) and rows.weights is None and rows.maps is None:
        matrix = rows.X[part].as_given(0, count_rows(part), rows.n_features).astype(np.float64)
        mean, variance = mean_variance_axis(matrix, axis=0)
        n = matrix.shape[0]
        return Spread(n, mean, variance * n, *min_max_axis(matrix, axis=0)), float(n)
    d, maps, statistics, total = rows.n_features, rows.maps, [], 0.0
    buffer = np.empty((BLOCK, d if maps is None else maps.n_columns))
    for indices in blocks(part):
        block = buffer[: count_rows(indices)]
        copy_rows(rows, indices, block)
        X = block[:, :d]
        of_block = spread_of(X)
        weights = np.ones(len(X)) if rows.weights is None else rows.weights[indices]
        total += float(weights.sum())
        if rows.weights is not None or maps is not None:
            if isinstance(maps, ColumnMaps):
                X[:, maps.filled] = np.where(block[:, d:] == 1, np.nan, X[:, maps.filled])
            X = X[weights > 0]
            low = np.fmin.reduce(X, axis=0, initial=np.inf)
            high = np.fmax.reduce(X, axis=0, initial=-np.inf)
            of_block = of_block._replace(low=low, high=high)
        statistics.append(of_block)
    return reduce(merge_spreads, statistics), total


class PredictorLoss(ABC):
    """The loss of a row as a function of its ``n_outputs`` linear predictors.

    Attributes
    ----------
    n_outputs : int
    has_bounded_gradient : bool
        Whether first derivatives are bounded, which makes sums in float32 exact enough.
    self_concordance : float
        The constant c in |loss'''| <= c loss''; infinity if second derivatives jump.
    has_tube : bool
        Whether the loss is constant within a tube, as an epsilon-insensitive loss.
    """

    n_outputs = 1
    has_bounded_gradient = has_tube = False
    self_concordance = 1.0

    def typical_loss(self, y: Array) -> float:
        """Return the order of magnitude of a row's loss, which depends on the unit of y."""
        return 1.0

    @abstractmethod
    def initial_intercepts(self, y: Array, weights: Array | None) -> Array:
        """Return the intercepts (n_outputs,) of the best model without coefficients."""

    @abstractmethod
    def differentiate(self, z: Array, y: Array) -> None:
        """Replace predictors by the derivatives of the loss with respect to them, in place.

        Parameters
        ----------
        z : ndarray of shape (n_rows, n_models, n_outputs)
            The predictors of several models.
        y : ndarray of shape (n_rows,)
        """

    @abstractmethod
    def second_derivatives(self, z: Array, y: Array) -> Array:
        """Return the second derivative of the loss with respect to each predictor.

        The arrays have the same shapes as in ``differentiate``.
        """

    def hessians(self, z: Array, y: Array) -> Array:
        """Return the Hessian of the loss of each row, (n_rows, n_outputs, n_outputs).

        ``z`` (n_rows, n_outputs) are the predictors of one model.
        """
        return self.second_derivatives(z[:, None], y)[:, 0, :, None]


class Logistic(PredictorLoss):
    """The loss log(1 + exp(z)) - y z for the classes 0 and 1."""

    has_bounded_gradient = True

    def initial_intercepts(self, y: Array, weights: Array | None) -> Array:
        positive = np.average(y, weights=weights)
        return np.array([np.log(positive / (1 - positive))])

    def differentiate(self, z: Array, y: Array) -> None:
        logistic_slopes(z[:, :, 0], y.astype(np.int32, copy=False))

    def second_derivatives(self, z: Array, y: Array) -> Array:
        derivatives = z.copy()
        self.differentiate(derivatives, y)
        return np.abs(derivatives) - np.square(derivatives)


class Multinomial(PredictorLoss):
    """The loss log sum_k exp(z_k) - z_y for the classes 0, 1, ...."""

    has_bounded_gradient = True
    self_concordance = 2**0.5

    def __init__(self, n_classes: int) -> None:
        self.n_outputs = n_classes

    def initial_intercepts(self, y: Array, weights: Array | None) -> Array:
        logs = np.log(np.maximum(np.bincount(y, weights, self.n_outputs), 1e-3))
        return logs - logs.mean()

    def differentiate(self, z: Array, y: Array) -> None:
        outputs = np.ascontiguousarray(z.transpose(0, 2, 1))
        softmax(outputs, y.astype(np.int32, copy=False))
        z[:] = outputs.transpose(0, 2, 1)  # copies nothing if outputs is a view of z

    def second_derivatives(self, z: Array, y: Array) -> Array:
        probabilities = z.transpose(0, 2, 1).copy()
        softmax(probabilities)
        probabilities *= np.maximum(1 - probabilities, 0)  # rounding may make it negative
        return probabilities.transpose(0, 2, 1)

    def hessians(self, z: Array, y: Array) -> Array:
        probabilities = z.copy()
        softmax(probabilities[:, :, None])
        hessians = -probabilities[:, :, None] * probabilities[:, None, :]
        diagonal = np.arange(self.n_outputs)
        hessians[:, diagonal, diagonal] = probabilities * np.maximum(1 - probabilities, 0)
        return hessians


class Tweedie(PredictorLoss):
    """Half the Tweedie deviance for the mean exp(z) and a power p from 1 to 2, up to a constant.

    The loss is exp((2 - p) z) / (2 - p) - y exp((1 - p) z) / (1 - p). Its limit for p = 1 is the
    Poisson loss exp(z) - y z, and for p = 2 the gamma loss z + y exp(-z). It is not convex for
    other powers.
    """

    def __init__(self, power: float) -> None:
        self.power = power

    def typical_loss(self, y: Array) -> float:
        return float(y.mean() ** (2 - self.power))

    def initial_intercepts(self, y: Array, weights: Array | None) -> Array:
        return np.array([np.log(np.average(y, weights=weights))])

    def differentiate(self, z: Array, y: Array) -> None:
        y = y[:, None, None]
        factor = np.exp((1 - self.power) * z) if self.power != 1 else None
        np.exp(z, out=z)
        z -= y
        if factor is not None:
            z *= factor

    def second_derivatives(self, z: Array, y: Array) -> Array:
        p, y = self.power, y[:, None, None]
        if p == 1:
            return np.exp(z)
        return (2 - p) * np.exp((2 - p) * z) + (p - 1) * np.exp((1 - p) * z) * y


class SquaredDistance(PredictorLoss):
    """The loss 1/2 d^2, where d is the distance of the predictor z from an interval.

    For regression, the interval is [y - epsilon, y + epsilon]. For the squared hinge (``epsilon``
    is None), it is z >= 1 for the class 1 and z <= -1 for the class 0. The second derivative is 0
    within the interval and 1 outside of it.
    """

    def __init__(self, epsilon: float | None = None) -> None:
        self.epsilon = epsilon
        self.self_concordance = 0.0 if epsilon == 0 else np.inf
        self.has_tube = bool(epsilon)

    def typical_loss(self, y: Array) -> float:
        return 1.0 if self.epsilon is None else float(y.var()) or 1.0

    def _interval(self, y: Array) -> tuple[Array, Array]:
        if self.epsilon is None:
            return np.where(y == 1, 1, -np.inf), np.where(y == 1, np.inf, -1)
        return y - self.epsilon, y + self.epsilon

    def initial_intercepts(self, y: Array, weights: Array | None) -> Array:
        mean = np.average(y, weights=weights)
        return np.array([2 * mean - 1 if self.epsilon is None else mean])

    def differentiate(self, z: Array, y: Array) -> None:
        z -= np.clip(z, *self._interval(y[:, None, None]))

    def second_derivatives(self, z: Array, y: Array) -> Array:
        low, high = self._interval(y[:, None, None])
        return ((z <= low) | (z >= high)).astype(np.float64)
