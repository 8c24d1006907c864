"""Gaussian naive Bayes with each single row left out.

The row changes the moments of its own class by closed forms. For the other classes it changes what
is added to the variances, by a share of about 1/n; there, the log-likelihoods of all rows
are interpolated between three of these numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from functools import reduce
from math import log
from math import pi
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.blocks import blocks
from optuna_treecv.learners.exact.blocks import copy_rows
from optuna_treecv.learners.exact.blocks import n_rows_of
from optuna_treecv.learners.exact.class_spreads import check_weights
from optuna_treecv.learners.exact.class_spreads import class_spreads_of
from optuna_treecv.learners.exact.class_spreads import merge_class_spreads
from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.family import Kept
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.family import Tested
from optuna_treecv.learners.exact.gaussian_densities import check_variances
from optuna_treecv.learners.exact.gaussian_densities import densities
from optuna_treecv.learners.exact.gaussian_densities import side_by_side
from optuna_treecv.learners.exact.spread import is_rounding
from optuna_treecv.learners.exact.spread import Spread
from optuna_treecv.learners.exact.threads import in_order
from optuna_treecv.rows.data import PreparedRows

# The rows whose moments are one task of a thread.
_ROWS = 2**16

# Where a row has all but this share of a column's squares, what it leaves is summed again.
_LEAST_SHARE = 1e-3

# The product of four numbers up to this one does not overflow.
_FOURTH = 1e75

# The half width, relative to its numbers, of an interval in which log-likelihoods are
# interpolated. A parabola through three points of it errs by less than 1e-12.
_HALF_WIDTH = 1e-4


class _Total(NamedTuple):
    """The moments of all rows; views of one record.

    Attributes
    ----------
    weights : ndarray of shape (n_classes,)
    means, squares : ndarray of shape (n_features, n_classes)
        As those of ``ClassSpreads``, by column.
    mean, spread : ndarray of shape (n_features,)
        Mean and sum of squares about it of all rows, without weights.
    added : ndarray of shape (n_rows,)
        The largest variance of a column without each row; empty after a scaler.
    """

    weights: np.ndarray
    means: np.ndarray
    squares: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    added: np.ndarray


class SingleRows:
    """Models that are trained on all rows but one.

    Parameters
    ----------
    rows : PreparedRows
    scaler : StandardScaler or None
    smoothings : ndarray of shape (n_points,)
    priors : ndarray of shape (n_classes,) or None
    n_jobs : int
    """

    def __init__(
        self,
        rows: PreparedRows,
        scaler: StandardScaler | None,
        smoothings: np.ndarray,
        priors: np.ndarray | None,
        n_jobs: int,
    ) -> None:
        self._rows = rows
        self._is_scaled = scaler is not None and scaler.with_std
        self._smoothings = smoothings
        self._priors = priors
        self._n_jobs = n_jobs

    def test(self, chunks: Chunks, kept: Kept, most_rows: int) -> Iterator[Tested]:
        """Test each row with models that are trained on all others."""
        sizes = self._sizes

        def make(memory: np.ndarray) -> None:
            self._fill(self._total_of(memory))

        total = self._total_of(kept("single rows", sum(sizes), make))
        groups = (
            (first, min(first + most_rows, chunks.n_chunks))
            for first in range(0, chunks.n_chunks, most_rows)
        )
        yield from in_order(self._n_jobs, partial(self._test, total, chunks), groups)

    @property
    def _sizes(self) -> list[int]:
        """How many numbers each part of a record has."""
        assert self._rows.classes is not None
        n_classes, d = len(self._rows.classes), self._rows.n_features
        n_added = 0 if self._is_scaled else len(self._rows.X)
        return [n_classes, d * n_classes, d * n_classes, d, d, n_added]

    def _total_of(self, record: np.ndarray) -> _Total:
        """Return the parts of a record."""
        weights, means, squares, *others = np.split(record, np.cumsum(self._sizes)[:-1])
        shape = (self._rows.n_features, len(weights))
        return _Total(weights, means.reshape(shape), squares.reshape(shape), *others)

    def _fill(self, total: _Total) -> None:
        """Write the moments of all rows."""
        n_rows = len(self._rows.X)
        parts = blocks(slice(0, n_rows), _ROWS)
        each = in_order(self._n_jobs, partial(class_spreads_of, self._rows), parts)
        moments = reduce(merge_class_spreads, each)
        total.weights[:] = moments.weights
        total.means[:] = moments.means.T
        total.squares[:] = moments.squares.T
        total.mean[:] = moments.spread.mean
        total.spread[:] = moments.spread.squares
        if self._is_scaled:
            return
        columns = _columns_of_largest_variance(moments.spread)

        def write(part: RowNumbers) -> None:
            for some in blocks(part):
                left = self._left_of_all(total, self._columns(some)[columns], some, columns)
                total.added[some] = left.max(axis=0)

        deque(in_order(self._n_jobs, write, blocks(slice(0, n_rows), _ROWS)), maxlen=0)

    def _columns(self, some: RowNumbers) -> np.ndarray:
        """Return the columns of some rows, (n_features, n_rows)."""
        columns = np.empty((self._rows.n_features, n_rows_of(some)))
        copy_rows(self._rows, some, columns.T)
        return columns

    def _test(self, total: _Total, chunks: Chunks, group: tuple[int, int]) -> Tested:
        """Return what the models of some rows say of them."""
        first, last = group
        outputs = np.empty((len(self._smoothings), len(total.weights), last - first))
        end = 0
        for some in blocks(chunks.test_rows(first, last)):
            begin, end = end, end + n_rows_of(some)
            self._write(total, some, outputs[:, :, begin:end])
        return Tested(first, last, outputs.transpose(0, 2, 1))

    def _write(self, total: _Total, some: RowNumbers, out: np.ndarray) -> None:
        """Write the joint log-likelihoods of a block of rows."""
        assert self._rows.targets is not None
        columns, codes = self._columns(some), self._rows.targets[some]
        weights = np.ones(len(codes))
        if self._rows.weights is not None:
            weights = self._weights(some)
        left = self._left_weights(total, some, codes, weights)
        variances, squares = self._left_of_class(total, columns, some, codes, weights, left)
        if self._priors is None:
            log_factors, own_factors = np.log(total.weights), np.log(left)
            of_others = total.weights @ (1 - np.eye(len(total.weights)))
            log_scale = -np.log(of_others[codes] + left)
        else:
            log_factors, own_factors = np.log(self._priors), np.log(self._priors)[codes]
            log_scale = np.zeros(len(codes))
        if self._is_scaled:
            added, log_scales = self._scaled(total, columns, some)
            log_scale += log_scales
            for code, log_factor in enumerate(log_factors):
                of_class = total.squares[:, code, None] / total.weights[code]
                distances = np.square(columns - total.means[:, code, None])
                self._write_each(of_class, distances, added, out[:, code])
                out[:, code] += log_factor
        else:
            added = total.added[some]
            self._interpolate(total, columns, added, log_factors, out)
        own = np.empty((len(out), len(codes)))
        self._write_each(variances, squares, added, own)
        own += own_factors
        out[:, codes, np.arange(len(codes))] = own
        out += log_scale

    def _left_weights(
        self, total: _Total, some: RowNumbers, codes: np.ndarray, weights: np.ndarray
    ) -> np.ndarray:
        """Return the weights of the classes without each row."""
        of_class = total.weights[codes]
        left = of_class - weights
        for place in np.flatnonzero(left < _LEAST_SHARE * of_class):
            others = self._others(some, place, codes[place])
            left[place] = 0.0 if self._rows.weights is None else self._weights(others).sum()
        check_weights(left, codes, self._rows)
        return left

    def _left_of_class(
        self,
        total: _Total,
        columns: np.ndarray,
        some: RowNumbers,
        codes: np.ndarray,
        weights: np.ndarray,
        left: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each row's class variances without it, and its squared distances from the means.

        Both are of shape (n_features, n_rows).
        """
        of_class = total.weights[codes]
        all_squares = total.squares.take(codes, axis=1)
        squares = columns - total.means.take(codes, axis=1)
        np.square(squares, out=squares)
        variances = all_squares - squares * (weights * of_class / left)
        unsure = variances < _LEAST_SHARE * all_squares
        unsure |= left < _LEAST_SHARE * of_class
        variances /= left
        squares *= np.square(of_class / left)
        for place in np.flatnonzero(unsure.any(axis=0)):
            which = np.flatnonzero(unsure[:, place])
            others = self._others(some, place, codes[place])
            weights_of_others = None if self._rows.weights is None else self._weights(others)
            means, variances[which, place] = self._summed(others, which, weights_of_others)
            squares[which, place] = np.square(columns[which, place] - means)
        return variances, squares

    def _left_of_all(
        self, total: _Total, values: np.ndarray, some: RowNumbers, columns: np.ndarray
    ) -> np.ndarray:
        """Return the variances of some columns of all rows but each one, (n_columns, n_rows)."""
        n_rows = len(self._rows.X)
        spread = total.spread[columns, None]
        left = values - total.mean[columns, None]
        np.square(left, out=left)
        left *= -n_rows / (n_rows - 1)
        left += spread
        unsure = left < _LEAST_SHARE * spread
        left /= n_rows - 1
        for place in np.flatnonzero(unsure.any(axis=0)):
            which = np.flatnonzero(unsure[:, place])
            _, left[which, place] = self._summed(self._others(some, place), columns[which], None)
        return left

    def _others(self, some: RowNumbers, place: Any, code: Any = None) -> np.ndarray:
        """Return the numbers of all rows, or of those of a class, but one row of a block."""
        assert self._rows.targets is not None
        row = some.start + place if isinstance(some, slice) else some[place]
        is_other = np.ones(len(self._rows.X), bool)
        if code is not None:
            np.equal(self._rows.targets, code, out=is_other)
        is_other[row] = False
        return np.flatnonzero(is_other)

    def _weights(self, some: RowNumbers) -> np.ndarray:
        assert self._rows.weights is not None
        return self._rows.weights[some].astype(np.float64)

    def _summed(
        self, some: np.ndarray, columns: np.ndarray, weights: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of some columns of some rows.

        It reads these columns. There is hardly more than one row of each class for which that is
        necessary, since a row has almost all of a column's squares.
        """
        values = self._rows.X[np.ix_(some, columns)].astype(np.float64)
        mean = np.average(values, axis=0, weights=weights)
        values -= mean
        correction = np.average(values, axis=0, weights=weights)
        values -= correction
        return mean + correction, np.average(np.square(values), axis=0, weights=weights)

    def _scaled(
        self, total: _Total, columns: np.ndarray, some: RowNumbers
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what is added to the variances after a scaler that each row has not been in.

        And the sum of the logarithms of the scales.
        """
        n_rows = len(self._rows.X) - 1
        left = self._left_of_all(total, columns, some, np.arange(len(columns)))
        scales = np.where(is_rounding(left, n_rows, total.mean[:, None]), 1.0, left)
        largest = np.max(left / scales, axis=0)
        return largest * scales, 0.5 * np.log(scales).sum(axis=0)

    def _write_each(
        self, variances: np.ndarray, squares: np.ndarray, added: np.ndarray, out: np.ndarray
    ) -> None:
        """Write log-densities, where each row has variances of its own, (n_points, n_rows)."""
        d = len(squares)
        smoothed, ratios = np.empty_like(squares), np.empty_like(squares)
        check_variances(np.add(variances, self._smoothings.min() * added, out=smoothed))
        is_small = np.min(smoothed) < 1 / _FOURTH
        is_large = np.max(variances + self._smoothings.max() * added) > _FOURTH
        sum_of_logs = _sum_of_logs if is_small or is_large else _sum_of_logs_by_fours
        for smoothing, said in zip(self._smoothings, out, strict=True):
            np.add(variances, smoothing * added, out=smoothed)
            np.divide(squares, smoothed, out=ratios)
            np.add.reduce(ratios, axis=0, out=said)
            said += sum_of_logs(smoothed)
        out += d * log(2 * pi)
        out *= -0.5

    def _interpolate(
        self,
        total: _Total,
        columns: np.ndarray,
        added: np.ndarray,
        log_factors: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Write log-densities with the variances of all rows of each class."""
        variances = (total.squares / total.weights).T
        for part, nodes, shares in _intervals(added):
            models = side_by_side(
                [
                    densities(
                        total.means.T,
                        variances,
                        np.full(len(columns), node),
                        self._smoothings,
                        log_factors,
                    )
                    for node in nodes
                ]
            )
            if len(part) == len(added):
                models.write(columns, out, shares)
            else:
                said = np.empty((*out.shape[:2], len(part)))
                models.write(columns[:, part], said, shares)
                out[:, :, part] = said


def _sum_of_logs(numbers: np.ndarray) -> np.ndarray:
    """Return the sums of the logarithms, (n_rows,), and overwrite the numbers."""
    return np.log(numbers, out=numbers).sum(axis=0)


def _sum_of_logs_by_fours(numbers: np.ndarray) -> np.ndarray:
    """Do the same with one logarithm for the product of four numbers."""
    n = len(numbers) // 4
    product = numbers[:n]
    for k in (1, 2, 3):
        product *= numbers[k * n : (k + 1) * n]
    return _sum_of_logs(product) + _sum_of_logs(numbers[4 * n :])


def _columns_of_largest_variance(spread: Spread) -> np.ndarray:
    """Return the columns that may have the largest variance when one row is left out."""
    reach = np.square(np.maximum(spread.high - spread.mean, spread.mean - spread.low))
    least = spread.squares - spread.n_rows / (spread.n_rows - 1) * reach
    return np.flatnonzero(~(spread.squares < least.max()))  # all where one is not a number


def _intervals(numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Cut numbers into narrow intervals.

    Yields
    ------
    places : ndarray of shape (n,)
        The places of an interval's numbers, in ascending order if there is one interval.
    nodes : ndarray of shape (n_nodes,)
    shares : ndarray of shape (n_nodes, n)
        What values of a function at the nodes are multiplied with for its value at each number.
    """
    order = np.argsort(numbers)
    ordered = numbers[order]
    stop = len(order)
    while stop:
        high = ordered[stop - 1]
        start = int(np.searchsorted(ordered, high * (1 - 2 * _HALF_WIDTH)))
        places = np.arange(stop) if stop - start == len(order) else order[start:stop]
        low, stop = ordered[start], start
        middle, half = (low + high) / 2, (high - low) / 2
        if half == 0:
            yield places, np.array([middle]), np.ones((1, len(places)))
            continue
        outer = np.sqrt(0.75)  # Chebyshev's nodes: the largest error is smallest
        x = (numbers[places] - middle) / half / outer
        shares = np.stack([x * (x - 1) / 2, 1 - x * x, x * (x + 1) / 2])
        yield places, middle + half * outer * np.array([-1.0, 0.0, 1.0]), shares
