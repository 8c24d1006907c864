"""The sums that models follow from: weight, mean and centred scatter of rows, by group.

A variance that is a difference of two large sums loses its digits. Here nothing is subtracted: the
moments of all rows but a chunk are merged from those of the rows before and after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from math import prod
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.chunks import BLOCK
from optuna_treecv.learners.exact.chunks import blocks
from optuna_treecv.learners.exact.chunks import copy_rows
from optuna_treecv.learners.exact.chunks import n_rows_of
from optuna_treecv.learners.exact.chunks import RowNumbers
from optuna_treecv.rows.data import PreparedRows

# The rows that are sorted by group together.
_SORTED = 8 * BLOCK


class Spread(NamedTuple):
    """Number, mean, sum of squares about the mean, minimum and maximum of each column.

    The sum of squares of a constant column need not be 0 in floating point. Its minimum and
    maximum are equal.
    """

    n_rows: int
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of_nothing(cls, n_columns: int) -> Spread:
        """Return the spread of no rows."""
        zeros, ends = np.zeros(n_columns), np.full(n_columns, np.inf)
        return cls(0, zeros, zeros, ends, -ends)


def spread_of(block: np.ndarray) -> Spread:
    """Return the spread of the columns of an array (n_rows, n_columns)."""
    shift = block[0].copy()
    shifted = block - shift
    mean = np.add.reduce(shifted) / len(block)
    shifted -= mean
    squares = np.einsum("ij,ij->j", shifted, shifted)
    return Spread(len(block), shift + mean, squares, block.min(axis=0), block.max(axis=0))


def merge_spreads(one: Spread, other: Spread) -> Spread:
    """Return the spread of two sets of rows together, as ``merge``."""
    if one.n_rows == 0 or other.n_rows == 0:
        return one if other.n_rows == 0 else other
    n_rows = one.n_rows + other.n_rows
    step = other.mean - one.mean
    mean = one.mean + step * (other.n_rows / n_rows)
    squares = one.squares + other.squares
    squares += step * step * (one.n_rows * other.n_rows / n_rows)
    low, high = np.minimum(one.low, other.low), np.maximum(one.high, other.high)
    return Spread(n_rows, mean, squares, low, high)


def scale_by(scaler: StandardScaler, spread: Spread) -> tuple[np.ndarray | None, np.ndarray]:
    """Return what a scaler subtracts, None if nothing, and by what it divides.

    Like scikit-learn it does not scale a column that is constant, or whose variance is below the
    rounding errors of its mean.
    """
    centre = spread.mean if scaler.with_mean else None
    if not scaler.with_std:
        return centre, np.ones_like(spread.mean)
    variance = spread.squares / spread.n_rows
    return centre, np.where(is_constant(spread), 1.0, np.sqrt(variance))


def is_constant(spread: Spread) -> np.ndarray:
    """Return for each column whether a ``StandardScaler`` does not scale it."""
    variance = spread.squares / spread.n_rows
    return (spread.low == spread.high) | is_rounding(variance, spread.n_rows, spread.mean)


def is_rounding(variance: np.ndarray, n_rows: int, mean: np.ndarray) -> np.ndarray:
    """Return whether variances are below the rounding errors of their means."""
    tiny = n_rows * np.finfo(np.float64).eps
    return np.asarray(variance <= tiny * variance + np.square(tiny * mean))


class Moments(NamedTuple):
    """The moments of rows z, each of which is a row of X, maybe followed by its targets.

    Attributes
    ----------
    counts : ndarray of shape (n_groups,)
        The number of rows of each group.
    weights : ndarray of shape (n_groups,)
        The sums of the weights w; equal to ``counts`` where all rows weigh alike.
    means : ndarray of shape (n_groups, n_columns)
        sum w z / weight; zeros for a group without weight.
    scatters : ndarray of shape (n_groups or 1, n_columns, n_columns)
        sum w (z - mean) (z - mean)' of each group, or the sum of all groups.
    spread : Spread or None
        What a ``StandardScaler`` learns of X, in which all rows weigh alike.
    """

    counts: np.ndarray
    weights: np.ndarray
    means: np.ndarray
    scatters: np.ndarray
    spread: Spread | None


class Source:
    """The rows that moments are taken of.

    Parameters
    ----------
    rows : PreparedRows
    n_groups : int
        1, or the number of classes.
    are_pooled : bool
        Whether the scatters of all groups are added.
    with_spread : bool
    """

    def __init__(
        self, rows: PreparedRows, n_groups: int = 1, are_pooled: bool = False, *, with_spread: bool
    ) -> None:
        self.rows = rows
        self.n_columns = rows.n_features
        self.n_groups = n_groups
        self._n_scatters = 1 if are_pooled else n_groups
        self.with_spread = with_spread

    @property
    def n_numbers(self) -> int:
        """How many numbers the moments are."""
        return sum(map(prod, self._shapes))

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        g, c, d = self.n_groups, self.n_columns, self.rows.n_features
        of_spread: list[tuple[int, ...]] = [(1,), (4, d)] if self.with_spread else []
        return [(g,), (g,), (g, c), (self._n_scatters, c, c), *of_spread]

    def view(self, memory: np.ndarray) -> Moments:
        """Return moments whose parts are views of a flat array."""
        counts, weights, means, scatters, *spread = views(memory, self._shapes)
        found = Spread(spread[0][0], *spread[1]) if spread else None
        return Moments(counts, weights, means, scatters, found)

    def write(self, moments: Moments, memory: np.ndarray) -> None:
        """Copy moments into a flat array."""
        parts: list[Any] = [*moments[:-1]]
        if moments.spread is not None:
            n_rows, *columns = moments.spread
            parts += [n_rows, columns]
        for part, out in zip(parts, views(memory, self._shapes), strict=True):
            out[:] = part

    def nothing(self) -> Moments:
        """Return the moments of no rows."""
        spread = Spread.of_nothing(self.rows.n_features) if self.with_spread else None
        return self.view(np.zeros(self.n_numbers))._replace(spread=spread)

    def fill(self, part: RowNumbers, out: np.ndarray) -> np.ndarray | None:
        """Copy rows into an array (n_rows, n_columns), and return their weights."""
        copy_rows(self.rows, part, out[:, : self.rows.n_features])
        weights = self.rows.weights
        return None if weights is None else weights[part].astype(np.float64)

    def collect(self, part: RowNumbers) -> Moments:
        """Return the moments of some rows."""
        sums = self.nothing()
        spread = sums.spread
        buffer = np.empty((min(BLOCK, n_rows_of(part)), self.n_columns))
        for group, numbers in self._by_group(part):
            for some in blocks(numbers):
                block = buffer[: n_rows_of(some)]
                weights = self.fill(some, block)
                if spread is not None:
                    of_block = spread_of(block[:, : self.rows.n_features])
                    spread = merge_spreads(spread, of_block)
                _add(sums, group, block, weights)
        return sums._replace(spread=spread)

    def _by_group(self, part: RowNumbers) -> Iterator[tuple[int, RowNumbers]]:
        """Yield row numbers by group."""
        if self.n_groups == 1:
            yield 0, part
            return
        assert self.rows.targets is not None
        for piece in blocks(part, _SORTED):
            codes = self.rows.targets[piece]
            order = np.argsort(codes, kind="stable")
            numbers = order + piece.start if isinstance(piece, slice) else piece[order]
            ends = np.cumsum(np.bincount(codes))
            for code, some in enumerate(np.split(numbers, ends[:-1])):
                if len(some):
                    yield code, some


def views(memory: np.ndarray, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Cut a flat array into parts of the given shapes; ``np.split`` takes several times longer."""
    ends = accumulate(map(prod, shapes))
    return [
        memory[end - prod(shape) : end].reshape(shape)
        for end, shape in zip(ends, shapes, strict=True)
    ]


def _add(sums: Moments, group: int, block: np.ndarray, weights: np.ndarray | None) -> None:
    """Add a block, which is overwritten, to moments.

    A shift by the first row comes before the mean, which of large offsets is exact only then.
    """
    shift = block[0].copy()
    block -= shift
    if weights is None:
        weight = float(len(block))
        mean = np.add.reduce(block) / weight
    else:
        weight = float(weights.sum())
        mean = weights @ block / (weight or 1.0)
    block -= mean
    if weights is not None:
        block *= np.sqrt(weights)[:, None]
    scatter = sums.scatters[min(group, len(sums.scatters) - 1)]
    scatter += block.T @ block
    before = sums.weights[group]
    sums.counts[group] += len(block)
    sums.weights[group] += weight
    if weight:
        share = weight / sums.weights[group]
        step = shift + mean - sums.means[group]
        sums.means[group] += step * share
        if before:
            step *= np.sqrt(before * share)
            scatter += np.outer(step, step)


def merge(one: Moments, other: Moments) -> Moments:
    r"""Return the moments of two sets of rows together (Chan, Golub & LeVeque 1979).

    .. math:: S = S_1 + S_2 + \frac{w_1 w_2}{w_1 + w_2} (m_2 - m_1) (m_2 - m_1)^\top
    """
    weights = one.weights + other.weights
    share = other.weights / np.where(weights == 0, 1, weights)
    steps = other.means - one.means
    means = one.means + steps * share[:, None]
    steps *= np.sqrt(one.weights * share)[:, None]
    scatters = one.scatters + other.scatters
    if len(scatters) == 1:
        scatters[0] += steps.T @ steps
    else:
        for scatter, step in zip(scatters, steps, strict=True):
            scatter += np.outer(step, step)
    spread = None
    if one.spread is not None and other.spread is not None:
        spread = merge_spreads(one.spread, other.spread)
    return Moments(one.counts + other.counts, weights, means, scatters, spread)


def balanced(moments: Moments) -> Moments:
    """Return the moments with the weights n / (n_classes n_class) of ``class_weight="balanced"``.

    They are those of one group. As in scikit-learn the weights count rows, whatever their own
    weights are.
    """
    counts = moments.counts
    present = counts > 0
    factors = np.zeros(len(counts))
    factors[present] = counts.sum() / (np.count_nonzero(present) * counts[present])
    weights = factors * moments.weights
    mean = weights @ moments.means / (weights.sum() or 1.0)
    steps = (moments.means - mean) * np.sqrt(weights)[:, None]
    scatter = np.tensordot(factors, moments.scatters, 1) + steps.T @ steps
    total = np.array([weights.sum()])
    return Moments(total, total, mean[None], scatter[None], moments.spread)


def about(moments: Moments, origin: np.ndarray) -> np.ndarray:
    """Return the second moments of one group about another point than the mean."""
    step = moments.means[0] - origin
    return np.asarray(moments.scatters[0] + moments.weights[0] * np.outer(step, step))


def scaled(moments: Moments, scaler: StandardScaler) -> tuple[Moments, np.ndarray, np.ndarray]:
    """Return the moments of scaled rows, what the scaler subtracts, and by what it divides."""
    assert moments.spread is not None
    centre, scale = scale_by(scaler, moments.spread)
    centre = np.zeros_like(scale) if centre is None else centre
    means, scatters = (moments.means - centre) / scale, moments.scatters / scale / scale[:, None]
    return moments._replace(means=means, scatters=scatters), centre, scale
