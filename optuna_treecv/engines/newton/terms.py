"""Losses of rows, and the training sets over which they are summed.

Training sets are unions of groups of rows. Losses are given by their derivatives in predictors
z = x.w.
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
from optuna_treecv.types import Array

# The most groups of rows whose sums are computed.
_MOST_GROUPS = 128


class Sets(NamedTuple):
    """The training set of each fold, followed by the set of all rows.

    Rows that train and test the same models have the same *kind*.

    Attributes
    ----------
    rows : list of slice or ndarray of int
        The rows of each kind, or all rows in the order of their kinds if there are many.
    kinds : list of (int or ndarray of int)
        The kind of each part of ``rows``, or of each of its rows.
    is_trained, is_tested : ndarray of shape (n_sets, n_kinds), bool
        Which kinds train the model of each set, and which test it.
    shares : ndarray of shape (n_sets, n_groups)
        The part of each group that trains. Groups are the kinds, or one of all rows.
    """

    rows: list[RowIndices]
    kinds: list[int | Array]
    is_trained: Array
    is_tested: Array
    shares: Array

    @classmethod
    def of(cls, chunks: Chunks) -> Sets:
        """Return the training sets of chunks."""
        k, n = chunks.n_chunks, chunks.n_rows
        if chunks.trains is None:  # a partition; the rows before the first chunk train all models
            rows = [slice(*ends) for ends in pairwise([0, *chunks.bounds.tolist()])]
            is_tested = np.vstack([np.eye(k + 1, dtype=bool)[1:], np.zeros(k + 1, bool)])
            if rows[0].stop == 0:
                rows, is_tested = rows[1:], is_tested[:, 1:]
            shares = (~is_tested).astype(float)
            return cls([*rows], [*range(len(rows))], ~is_tested, is_tested, shares)
        of_rows = np.zeros((n, 2, k), bool)
        for chunk in range(k):
            for part in chunks.train_parts(chunk):
                of_rows[part, 0, chunk] = True
            of_rows[chunks.test_rows(chunk, chunk + 1), 1, chunk] = True
        bits = np.packbits(of_rows.reshape(n, -1), axis=1)
        _, first, kind_of = np.unique(bits, axis=0, return_index=True, return_inverse=True)
        kind_of = kind_of.ravel()
        of_kinds = of_rows[first].transpose(1, 2, 0)
        is_trained = np.vstack([of_kinds[0], np.ones(len(first), bool)])
        is_tested = np.vstack([of_kinds[1], np.zeros(len(first), bool)])
        order = np.argsort(kind_of, kind="stable")
        ends = np.cumsum(np.bincount(kind_of))
        if len(first) > _MOST_GROUPS:
            shares = (is_trained @ np.bincount(kind_of) / n)[:, None]
            return cls([order], [kind_of[order]], is_trained, is_tested, shares)
        parts = np.split(order, ends[:-1])
        shares = is_trained.astype(float)
        return cls([*parts], [*range(len(first))], is_trained, is_tested, shares)

    def within(self, start: int, stop: int) -> Sets:
        """Return these sets for the rows start to stop - 1, numbered from start."""
        rows: list[RowIndices] = []
        for part in self.rows:
            assert isinstance(part, slice)
            begin, end = np.clip([part.start - start, part.stop - start], 0, stop - start)
            rows.append(slice(int(begin), int(end)))
        return self._replace(rows=rows)

    def blocks(self, size: int) -> Iterator[tuple[RowIndices, Array, Array]]:
        """Yield blocks of at most ``size`` rows, with masks of the sets that they train and test.

        The masks are of shape (n_rows or 1, n_sets).
        """
        for part, kinds in zip(self.rows, self.kinds, strict=True):
            begin = 0
            for block in blocks(part, size):
                end = begin + count_rows(block)
                kind = kinds[begin:end] if isinstance(kinds, np.ndarray) else [kinds]
                yield block, self.is_trained[:, kind].T, self.is_tested[:, kind].T
                begin = end

    def spans(
        self, size: int, by_group: bool
    ) -> Iterator[tuple[RowIndices, Array, list[tuple[int, slice]]]]:
        """Yield blocks of at most ``size`` rows, the sets that they train, and their groups.

        With ``by_group`` all rows train, and a block may have rows of several groups. Otherwise
        all rows are one group.
        """
        if not by_group:
            for block, is_trained, _ in self.blocks(size):
                yield block, is_trained, [(0, slice(None))]
            return
        ends = np.cumsum([0, *(count_rows(part) for part in self.rows)])
        rows: RowIndices = slice(0, ends[-1])
        if not all(isinstance(part, slice) for part in self.rows):
            rows = np.concatenate([np.r_[part] for part in self.rows])
        all_train = np.ones((1, len(self.shares)), bool)
        for begin, block in zip(range(0, ends[-1], size), blocks(rows, size), strict=True):
            bounds = np.clip(ends - begin, 0, count_rows(block)).tolist()
            parts = enumerate(slice(*bound) for bound in pairwise(bounds))
            yield (
                block,
                all_train,
                [(group, part) for group, part in parts if part.stop > part.start],
            )


def spread_in_sets(rows: PreparedRows, sets: Sets) -> tuple[Spread, Array]:
    """Return the spread of the columns in each training set, and the sums of weights (n_sets,).

    The parts of the spread are of shape (n_sets, n_features), the numbers of rows (n_sets, 1).
    Minimum and maximum are those of rows with a positive weight, without missing values. The other
    parts are not weighted, as in a ``StandardScaler``.
    """
    # Read all rows once where their groups are few, or else the rows of each set.
    units, order, kinds = sets.rows, sets.rows[0], sets.kinds[0]
    if are_many := isinstance(order, np.ndarray) and isinstance(kinds, np.ndarray):
        units = [order[of_kinds[kinds]] for of_kinds in sets.is_trained]
    spreads, totals = zip(*(_spread_of_unit(rows, part) for part in units), strict=True)
    counts, mean, squares, low, high = (np.array(x) for x in zip(*spreads, strict=True))
    if are_many:
        return Spread(counts[:, None], mean, squares, low, high), np.array(totals)
    # Each set is merged from its groups, because a subtraction would lose digits.
    of_sets = sets.is_trained * counts
    sizes = of_sets.sum(axis=1)[:, None]
    means = of_sets @ mean / sizes
    squares = sets.is_trained @ squares + np.einsum(
        "sg,sgj->sj", of_sets, np.square(mean[None] - means[:, None])
    )
    low = np.array([low[x].min(axis=0) for x in sets.is_trained])
    high = np.array([high[x].max(axis=0) for x in sets.is_trained])
    return Spread(sizes, means, squares, low, high), sets.is_trained @ np.array(totals)


def cached_spread_in_sets(
    rows: PreparedRows, sets: Sets, keep: ArrayCache
) -> tuple[Spread, Array]:
    """Return ``spread_in_sets``, cached for further candidates."""
    n_sets, d = len(sets.shares), rows.n_features

    def fill(numbers: Array) -> None:
        spread, totals = spread_in_sets(rows, sets)
        numbers[:] = np.column_stack([totals, *spread]).ravel()

    numbers = keep("spread of columns", n_sets * (4 * d + 2), fill).reshape(n_sets, -1)
    return Spread(numbers[:, 1:2], *np.split(numbers[:, 2:], 4, axis=1)), numbers[:, 0]


def deviations(spread: Spread) -> Array:
    """Return standard deviations; 1 where the variance is below its rounding error."""
    variance = spread.squares / spread.n_rows
    is_small = is_rounding(variance, spread.n_rows, spread.mean)
    return np.where(is_small, 1, np.sqrt(variance))


def _spread_there(block: Block, start: int, stop: int) -> tuple[Spread, float]:
    return _spread_of_unit(block.rows, slice(start, stop))


def _spread_of_unit(rows: PreparedRows, part: RowIndices) -> tuple[Spread, float]:
    """Return the spread of each column over some rows, and the rows' total weight."""
    if isinstance(rows.X, RemoteBlocks):
        assert isinstance(part, slice)
        of_blocks, totals = zip(*rows.X.over(part.start, part.stop, _spread_there), strict=True)
        return reduce(merge_spreads, of_blocks), sum(totals)
    if isinstance(rows.X, SparseRows) and rows.weights is None and rows.maps is None:
        matrix = rows.X[part].as_given(0, count_rows(part), rows.n_features).astype(np.float64)
        mean, variance = mean_variance_axis(matrix, axis=0)
        n = matrix.shape[0]
        return Spread(n, mean, variance * n, *min_max_axis(matrix, axis=0)), float(n)
    d, maps, spreads, total = rows.n_features, rows.maps, [], 0.0
    buffer = np.empty((BLOCK, d if maps is None else maps.n_columns))
    for numbers in blocks(part):
        block = buffer[: count_rows(numbers)]
        copy_rows(rows, numbers, block)
        X = block[:, :d]
        spread = spread_of(X)
        weights = np.ones(len(X)) if rows.weights is None else rows.weights[numbers]
        total += float(weights.sum())
        if rows.weights is not None or maps is not None:
            if maps is not None:
                X[:, maps.filled] = np.where(block[:, d:] == 1, np.nan, X[:, maps.filled])
            X = X[weights > 0]
            low = np.fmin.reduce(X, axis=0, initial=np.inf)
            spread = spread._replace(low=low, high=np.fmax.reduce(X, axis=0, initial=-np.inf))
        spreads.append(spread)
    return reduce(merge_spreads, spreads), total


class PredictorLoss(ABC):
    """The loss of a row, which depends on ``n_outputs`` linear predictors.

    Attributes
    ----------
    n_outputs : int
    is_steady : bool
        Whether first derivatives are bounded, so that sums of float32 keep their digits.
    most_bend : float
        The largest relative change of second derivatives if predictors change by 1.
    is_flat : bool
        Whether it is constant within a tube, as an epsilon-insensitive loss.
    """

    n_outputs = 1
    is_steady = is_flat = False
    most_bend = 1.0

    def unit(self, y: Array) -> float:
        """Return the scale of losses in the units of the targets."""
        return 1.0

    @abstractmethod
    def first(self, y: Array, weights: Array | None) -> Array:
        """Return the intercepts (n_outputs,) of the best model without coefficients."""

    @abstractmethod
    def differentiate(self, z: Array, y: Array) -> None:
        """Replace the predictors of several models by the derivatives of the losses in them.

        Parameters
        ----------
        z : ndarray of shape (n_rows, n_models, n_outputs)
        y : ndarray of shape (n_rows,)
        """

    @abstractmethod
    def bends(self, z: Array, y: Array) -> Array:
        """Return the second derivatives in each predictor; all arrays as in ``differentiate``."""

    def curvatures(self, z: Array, y: Array) -> Array:
        """Return the second derivatives at the predictors (n_rows, n_outputs) of one model.

        They are of shape (n_rows, n_outputs, n_outputs).
        """
        return self.bends(z[:, None], y)[:, 0, :, None]


class Logistic(PredictorLoss):
    """log(1 + exp(z)) - y z, for the classes 0 and 1."""

    is_steady = True

    def first(self, y: Array, weights: Array | None) -> Array:
        share = np.average(y, weights=weights)
        return np.array([np.log(share / (1 - share))])

    def differentiate(self, z: Array, y: Array) -> None:
        logistic_slopes(z[:, :, 0], y.astype(np.int32, copy=False))

    def bends(self, z: Array, y: Array) -> Array:
        slopes = z.copy()
        self.differentiate(slopes, y)
        return np.abs(slopes) - np.square(slopes)


class Multinomial(PredictorLoss):
    """log sum_k exp(z_k) - z_y, for the classes 0, 1, ...."""

    is_steady = True
    most_bend = 2**0.5

    def __init__(self, n_classes: int) -> None:
        self.n_outputs = n_classes

    def first(self, y: Array, weights: Array | None) -> Array:
        logs = np.log(np.maximum(np.bincount(y, weights, self.n_outputs), 1e-3))
        return logs - logs.mean()

    def differentiate(self, z: Array, y: Array) -> None:
        outputs = np.ascontiguousarray(z.transpose(0, 2, 1))
        softmax(outputs, y.astype(np.int32, copy=False))
        z[:] = outputs.transpose(0, 2, 1)  # no copy if it is the same memory

    def bends(self, z: Array, y: Array) -> Array:
        shares = z.transpose(0, 2, 1).copy()
        softmax(shares)
        shares *= np.maximum(1 - shares, 0)  # rounding may make it negative
        return shares.transpose(0, 2, 1)

    def curvatures(self, z: Array, y: Array) -> Array:
        shares = z.copy()
        softmax(shares[:, :, None])
        curvatures = -shares[:, :, None] * shares[:, None, :]
        diagonal = np.arange(self.n_outputs)
        curvatures[:, diagonal, diagonal] = shares * np.maximum(1 - shares, 0)
        return curvatures


class Tweedie(PredictorLoss):
    """Half the deviance of a power p from 1 to 2, up to a constant, for the mean exp(z).

    exp((2 - p) z) / (2 - p) - y exp((1 - p) z) / (1 - p), or its limit: that of Poisson's
    distribution is exp(z) - y z, that of the gamma distribution z + y exp(-z). Beyond these powers
    it is not convex.
    """

    def __init__(self, power: float) -> None:
        self.power = power

    def unit(self, y: Array) -> float:
        return float(y.mean() ** (2 - self.power))

    def first(self, y: Array, weights: Array | None) -> Array:
        return np.array([np.log(np.average(y, weights=weights))])

    def differentiate(self, z: Array, y: Array) -> None:
        y = y[:, None, None]
        factor = np.exp((1 - self.power) * z) if self.power != 1 else None
        np.exp(z, out=z)
        z -= y
        if factor is not None:
            z *= factor

    def bends(self, z: Array, y: Array) -> Array:
        p, y = self.power, y[:, None, None]
        if p == 1:
            return np.exp(z)
        return (2 - p) * np.exp((2 - p) * z) + (p - 1) * np.exp((1 - p) * z) * y


class SquaredDistance(PredictorLoss):
    """1/2 d^2, with the distance d of z to an interval.

    This is [y - epsilon, y + epsilon]; for the classes 0 and 1 without an epsilon, the predictors
    with a hinge loss of 0, z <= -1 and z >= 1. The second derivative is 0 in the interval and 1
    outside.
    """

    def __init__(self, epsilon: float | None = None) -> None:
        self.epsilon = epsilon
        self.most_bend = 0.0 if epsilon == 0 else np.inf
        self.is_flat = bool(epsilon)

    def unit(self, y: Array) -> float:
        return 1.0 if self.epsilon is None else float(y.var()) or 1.0

    def _interval(self, y: Array) -> tuple[Array, Array]:
        if self.epsilon is None:
            return np.where(y == 1, 1, -np.inf), np.where(y == 1, np.inf, -1)
        return y - self.epsilon, y + self.epsilon

    def first(self, y: Array, weights: Array | None) -> Array:
        share = np.average(y, weights=weights)
        return np.array([2 * share - 1 if self.epsilon is None else share])

    def differentiate(self, z: Array, y: Array) -> None:
        z -= np.clip(z, *self._interval(y[:, None, None]))

    def bends(self, z: Array, y: Array) -> Array:
        low, high = self._interval(y[:, None, None])
        return ((z <= low) | (z >= high)).astype(np.float64)
