"""The objectives of generalised linear models: sums over the training rows of each fold.

The model of a *lane*, one set of training rows at one penalty, minimises

    F(w) = sum_i u_i loss(x_i.w, y_i) + 1/2 sum_j a_j w_j^2        over its training rows i.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from functools import wraps
from operator import methodcaller
from typing import Any
from typing import TypeVar

import numpy as np

from optuna_treecv.engines.newton.kernels.glm import add_products
from optuna_treecv.engines.newton.kernels.glm import multiply_columns
from optuna_treecv.engines.newton.kernels.glm import multiply_sparse
from optuna_treecv.engines.newton.terms import deviations
from optuna_treecv.engines.newton.terms import PredictorLoss
from optuna_treecv.engines.newton.terms import Sets
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import copy_rows
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import count_rows
from optuna_treecv.numerics.spread import RowIndices
from optuna_treecv.numerics.spread import Spread
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.distributed import Block
from optuna_treecv.rows.distributed import RemoteBlocks
from optuna_treecv.rows.layout import SparseRows

# Sparse rows are made dense, a block at a time, if a larger part of their numbers is not 0.
_LEAST_DENSITY = 0.2

# Tolerances are for losses near 1; of larger losses they are at least this share.
_LEAST_SHARE = 1e-3

# The numbers of dense rows and of their predictors in memory at once, as many as fit into a cache.
# Sparse rows have few numbers, so that a product must have many rows to be worth its call.
_MOST_NUMBERS, _MOST_PREDICTORS, _FEWEST_SPARSE_ROWS = 2**17, 2**17, 2**10

# Columns are centred and scaled if their mean exceeds this multiple of their scale, or their scale
# differs from 1 by more than this factor.
_MOST_OFFSET, _MOST_SCALE = 3, 10

# With fewer rows, products of float32 save no time.
_FEW_ROWS = 4096

# The rows per column, near and far from the mean, of the sample from whose minimum Newton's method
# begins.
_ROWS_PER_COLUMN = 2**8

# With fewer columns per pair of outputs, these share the products of columns, of which at most
# this many are in memory.
_COLUMNS_PER_PAIR, _MOST_PRODUCTS = 7, 2**19

# Second derivatives that differ by at most this share are nearly the same. Hessians share their
# products if at most this share of the rows has different ones.
_DIFFERENCE, _MOST_ROWS = 0.05, 0.25

Method = TypeVar("Method", bound=Callable[..., Any])


def are_sparse(rows: PreparedRows) -> bool:
    """Return whether rows stay sparse, so that they are neither centred nor scaled."""
    X = rows.X
    return isinstance(X, SparseRows) and len(X.values) < _LEAST_DENSITY * len(X) * rows.n_features


def select_rows(rows: PreparedRows, order: np.ndarray) -> PreparedRows:
    """Return a subset or a permutation of prepared rows; a permutation stays on disk."""
    X, file = rows.X, rows.file
    if isinstance(X, SparseRows):
        X = X[order]
    else:
        are_all = len(order) == len(X)
        empty = rows.empty if are_all else np.empty
        X, file = empty((len(order), *X.shape[1:]), X.dtype), file if are_all else None
        for part in blocks(slice(0, len(order))):
            X[part] = rows.X[order[part]]
            if rows.file is not None:
                rows.file.release_pages(order[part])
    parts: dict[str, Any] = {"X": X, "file": file, "order": rows.order[order]}
    for name in ("y", "targets", "weights", "score_weights"):
        of_rows = getattr(rows, name)
        parts[name] = None if of_rows is None else of_rows[order]
    return replace(rows, **parts)


def _over_blocks(join: np.ufunc) -> Callable[[Method], Method]:
    """Return a decorator of sums over rows that sends models to remote rows and joins sums."""

    def decorate(method: Any) -> Any:
        @wraps(method)
        def compute(self: Objective, *arguments: Any, **options: Any) -> Any:
            blocks = self.rows.X
            if not isinstance(blocks, RemoteBlocks):
                return method(self, *arguments, **options)
            sent: Any = copy(self)  # blocks have their rows; sets would be large to send
            sent.rows = sent.targets = sent.sets = sent.sample = None
            call = methodcaller(method.__name__, *arguments, **options)
            sums = blocks.over(0, len(blocks), _called, sent, call)
            if isinstance(sums[0], tuple):
                return tuple(map(join.reduce, zip(*sums, strict=True)))
            return join.reduce(sums)

        return compute

    return decorate


def _called(block: Block, start: int, stop: int, objective: Any, call: methodcaller) -> Any:
    """Call a method of an objective for the rows of a block."""
    here, code = copy(objective), objective.code
    here.rows = block.rows if code is None else one_against_the_rest(block.rows, code)
    here.targets = here.rows.targets
    here.sets = Sets.of(objective.chunks).within(block.start, block.start + stop)
    with np.errstate(all="ignore"):
        return call(here)


def one_against_the_rest(rows: PreparedRows, code: int) -> PreparedRows:
    """Return rows with targets 1 for one class and 0 for the others."""
    codes = rows.targets
    assert codes is not None
    return replace(rows, targets=(codes == code).astype(codes.dtype))


@dataclass
class Objective:
    """Sums of losses and their derivatives, of many models at once.

    Models are arrays of shape (n_lanes, n_outputs, width), one for each lane; the last of the
    width is the intercept, if there is one. Rows that are not sparse are centred and scaled by
    constants of all rows, unless these are near 0 and 1 anyway; models refer to such columns.
    Missing entries are filled in by ``rows.maps.fill``: 0 stands for them, and the value that a
    training set fills in, times the coefficient, is added to the predictors of these rows.

    Products of rows and models are of ``precision``; their sums over blocks are float64.

    Attributes
    ----------
    rows : PreparedRows
        Remote rows are summed on their machines, block after block.
    chunks : Chunks
        The folds.
    sets : Sets
        Their training sets.
    loss : PredictorLoss
    has_intercept : bool
    columns : Spread
        The spread in the training sets.
    class_weights : ndarray of shape (n_sets, n_classes) or None
        The weights of the rows of each class in the training sets.
    precision : dtype
    code : int or None
        The class that has the target 1 in one-vs-rest ``rows``; None: targets are class codes.
    """

    rows: PreparedRows
    chunks: Chunks
    sets: Sets
    loss: PredictorLoss
    has_intercept: bool
    columns: Spread
    class_weights: np.ndarray | None
    precision: type
    code: int | None = None

    def __post_init__(self) -> None:
        rows, d = self.rows, self.rows.n_features
        self.width, self.n_outputs = d + self.has_intercept, self.loss.n_outputs
        self._pairs = np.tril_indices(self.n_outputs)
        assert rows.targets is not None
        self.targets = rows.targets
        unit = self.loss.unit(self.targets)
        # Losses are summed in float64, which resolves this share of large ones.
        self.tolerance = float(np.clip(1, _LEAST_SHARE * unit, unit))
        if len(rows.X) < _FEW_ROWS or not self.loss.is_steady:
            self.precision = np.float64
        # float64 if those of float32 are not definite
        self.precision_of_hessians = self.precision
        self._is_sparse = are_sparse(rows)
        self.centre, self.scale = self.columns.mean[-1], deviations(self.columns)[-1]
        is_near = np.abs(self.centre) <= _MOST_OFFSET * self.scale
        is_near &= (self.scale < _MOST_SCALE) & (self.scale > 1 / _MOST_SCALE)
        self._is_plain = self._is_sparse or bool(np.all(is_near))
        if self._is_plain:
            self.centre, self.scale = np.zeros(d), np.ones(d)
        if not self.has_intercept:
            self.centre = np.zeros(d)
        self.filled, fill = np.zeros(0, int), np.zeros((len(self.sets.shares), 0))
        if rows.maps is not None:
            self.filled = rows.maps.filled
            # The last set, that of all rows, is filled in by the mean of the others.
            fill = np.vstack([rows.maps.fill, rows.maps.fill.mean(axis=0)])
            fill /= self.scale[self.filled]
        self._fill, self._common = fill - fill[-1], fill[-1]

    def read(self, part: RowIndices, precision: type = np.float64) -> Any:
        """Return some rows: sparse features, or an array.

        Behind its features there is a column of ones, if there is an intercept, and one for each
        of ``filled``, 1 where it is missing.
        """
        d, X = self.rows.n_features, self.rows.X
        if isinstance(X, SparseRows) and self._is_sparse:
            sparse = X[part]
            values: np.ndarray = sparse.values.astype(precision, copy=False)
            return replace(sparse, values=values, shape=(len(sparse), d))
        block: np.ndarray = np.empty((count_rows(part), self.width + len(self.filled)), precision)
        block[:, d : self.width] = 1
        if self._is_plain and not len(self.filled):
            copy_rows(self.rows, part, block[:, :d])
            return block
        read = np.empty((len(block), d + len(self.filled)))
        copy_rows(self.rows, part, read)
        read[:, :d] -= self.centre
        read[:, :d] /= self.scale
        read[:, self.filled] += read[:, d:] * self._common
        block[:, :d], block[:, self.width :] = read[:, :d], read[:, d:]
        return block

    @cached_property
    def sample(self) -> Objective:
        """The objective on a part of the rows, from whose minimum Newton's method begins.

        Rows far from the mean, such as those of rare categories, are all part of it, because their
        coefficients need most steps. It is the objective itself if rows are few, sparse or remote.
        """
        rows, n_rows, d = self.rows, len(self.targets), self.rows.n_features
        n_far = _ROWS_PER_COLUMN * d
        stride = n_rows // (2 * n_far)
        # If second derivatives jump, Newton's method ends at the minimum, and L-BFGS does not.
        has_jumps, is_array = np.isinf(self.loss.most_bend), isinstance(rows.X, np.ndarray)
        if stride < 2 or has_jumps or not is_array or len(self.filled):
            return self
        distances = np.empty(n_rows)
        centre = ((self.columns.mean[-1] - self.centre) / self.scale).astype(self.precision)
        factor = (self.scale / deviations(self.columns)[-1]).astype(self.precision)
        for block in blocks(slice(0, n_rows)):
            standard = self.read(block, self.precision)[:, :d] - centre
            standard *= factor
            distances[block] = np.einsum("ij,ij->i", standard, standard)
        far = np.argpartition(distances, n_rows - n_far)[n_rows - n_far :]
        weights = np.zeros(n_rows)
        weights[::stride] = stride
        weights[far] = 1
        part = np.flatnonzero(weights)
        some_rows = select_rows(rows, part)
        factors = 1 if some_rows.weights is None else some_rows.weights
        some_rows = replace(some_rows, weights=weights[part] * factors)
        chunks = Chunks(len(part), np.array([len(part)]))
        sets, of_classes = Sets.of(chunks), self.class_weights
        of_classes = None if of_classes is None else of_classes[-1:]
        return replace(self, rows=some_rows, chunks=chunks, sets=sets, class_weights=of_classes)

    def _features(self, X: Any, number: int = -1) -> Any:
        """Return features and ones, filled in as in the training set of this number."""
        if self._is_sparse or not len(self.filled):
            return X
        features, is_missing = np.split(X, [self.width], axis=1)
        if self._fill[number].any():
            features = features.copy()
            features[:, self.filled] += is_missing * self._fill[number]
        return features

    def predictors(self, X: Any, models: np.ndarray, set_of: np.ndarray) -> np.ndarray:
        """Return the predictors (n_rows, n_lanes, n_outputs) of models."""
        (n_lanes, n, _), d = models.shape, self.rows.n_features
        # Outputs are far from each other in memory, so that a loss works on adjacent lanes.
        W = models.transpose(2, 1, 0).astype(X.dtype, order="C")
        if isinstance(X, SparseRows):
            z = np.empty((len(X), n * n_lanes), X.dtype)
            multiply_sparse(X.values, X.columns, X.begins, W[:d].reshape(d, -1), z, False)
            if self.has_intercept:
                z += W[d].ravel()
        else:
            z = self._features(X) @ W[: X.shape[1]].reshape(-1, n * n_lanes)
        if len(self.filled):
            of_missing = W[self.filled] * self._fill[set_of].T[:, None]
            z += X[:, self.width :] @ of_missing.reshape(len(self.filled), -1)
        return z.reshape(X.shape[0], n, n_lanes).transpose(0, 2, 1)

    def _block_size(self, n_lanes: int) -> int:
        """Return the number of rows that are read at once."""
        most = _MOST_PREDICTORS // (n_lanes * self.n_outputs)
        if self._is_sparse:
            return max(_FEWEST_SPARSE_ROWS, most)
        return max(128, min(_MOST_NUMBERS // self.width, most))

    def _sums_of(self, X: Any, z: np.ndarray, set_of: np.ndarray | None = None) -> np.ndarray:
        """Return sums over rows of numbers times columns, (n_lanes, n_outputs, width).

        Without ``set_of`` the columns are those of the set of all rows.
        """
        n_rows, n_lanes, n = z.shape
        of_columns = z.transpose(0, 2, 1).reshape(n_rows, -1)
        if isinstance(X, SparseRows):
            of_columns = np.ascontiguousarray(of_columns, X.dtype)
            sums = np.zeros((self.width, n * n_lanes), X.dtype)
            multiply_sparse(X.values, X.columns, X.begins, sums, of_columns, True)
            if self.has_intercept:
                sums[-1] = np.ones(n_rows) @ of_columns  # in float64
            return sums.reshape(-1, n, n_lanes).transpose(2, 1, 0)
        sums = (self._features(X).T @ of_columns).astype(np.float64).reshape(-1, n, n_lanes)
        if set_of is not None and len(self.filled):
            of_missing = (X[:, self.width :].T @ of_columns).reshape(-1, n, n_lanes)
            sums[self.filled] += of_missing * self._fill[set_of].T[:, None]
        return sums.transpose(2, 1, 0)

    def _sums_of_squares(self, X: Any, bends: np.ndarray, set_of: np.ndarray) -> np.ndarray:
        """Return sums over rows of numbers times squared columns, (n_lanes, n_outputs, width)."""
        if isinstance(X, SparseRows):
            return self._sums_of(replace(X, values=np.square(X.values)), bends)
        squares = np.square(X)
        if not len(self.filled):
            return self._sums_of(squares, bends)
        features, width = self._features(X), self.width
        squares[:, :width] = np.square(features)
        sums = self._sums_of(squares, bends)
        # (x + fill)^2 is x^2 + fill (2 x + fill)
        of_columns, is_missing = bends.reshape(len(X), -1), X[:, width:]
        fill = self._fill[set_of][:, None]
        first, second = (
            (numbers.T @ of_columns).reshape(-1, *bends.shape[1:]).transpose(1, 2, 0)
            for numbers in (2 * features[:, self.filled] * is_missing, is_missing)
        )
        sums[:, :, self.filled] += fill * (first + fill * second)
        return sums

    def _weigh(self, numbers: np.ndarray, part: RowIndices, set_of: np.ndarray) -> None:
        """Multiply numbers (n_rows, n_lanes, ...) by the weights of rows and classes."""
        of_rows = None if self.rows.weights is None else self.rows.weights[part][:, None]
        if self.class_weights is not None:
            of_classes = self.class_weights[set_of][:, self.targets[part]].T
            of_rows = of_classes if of_rows is None else of_rows * of_classes
        if of_rows is not None:
            numbers *= of_rows[:, :, None]

    def slopes(self, models: np.ndarray, set_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the slopes of models: sums over training rows, and means over test rows.

        Means are by the weights that rows have in scores.

        Parameters
        ----------
        models : ndarray of shape (n_lanes, n_outputs, width)
        set_of : ndarray of shape (n_lanes,)
            The training set of each.
        """
        train, test, totals = self.sums_of_slopes(models, set_of)
        return train, test / np.where(totals > 0, totals, 1)[:, None, None]

    @_over_blocks(np.add)
    def sums_of_slopes(
        self, models: np.ndarray, set_of: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return sums over training and over test rows, and the weights of the latter."""
        train, test, totals = np.zeros_like(models), np.zeros_like(models), np.zeros(len(models))
        of_scores = self.rows.score_weights
        all_alike = self.rows.weights is None and self.class_weights is None and of_scores is None
        for part, is_trained, is_tested in self.sets.blocks(self._block_size(len(models))):
            X = self.read(part, self.precision)
            z = self.predictors(X, models, set_of)
            self.loss.differentiate(z, self.targets[part])
            are_trained, are_tested = is_trained[:, set_of], is_tested[:, set_of]
            if len(are_trained) == 1 and all_alike:
                sums = self._sums_of(X, z, set_of)
                train[are_trained[0]] += sums[are_trained[0]]
                test[are_tested[0]] += sums[are_tested[0]]
                totals[are_tested[0]] += len(z)
                continue
            tested = np.flatnonzero(are_tested.any(axis=0))
            if len(tested):
                weights = np.ones(len(z)) if of_scores is None else of_scores[part]
                shares = are_tested[:, tested] * weights[:, None]
                totals[tested] += shares.sum(axis=0)
                of_tests = z[:, tested] * shares[:, :, None].astype(z.dtype)
                test[tested] += self._sums_of(X, of_tests, set_of[tested])
            self._weigh(z, part, set_of)
            _clear(z, are_trained)
            train += self._sums_of(X, z, set_of)
        return train, test, totals

    def most_reach(self, moves: np.ndarray, set_of: np.ndarray) -> np.ndarray:
        """Return an upper bound of ``reach``, without reading rows.

        It is the reach for a row whose columns are all at their minimum or maximum.
        """
        if len(self.filled):
            return np.full(len(moves), np.inf)
        of_columns, of_ones = np.split(moves, [self.rows.n_features], axis=2)
        ends = np.array([self.columns.low[set_of], self.columns.high[set_of]])
        low, high = (ends - self.centre) / self.scale
        middle = np.einsum("lnd,ld->ln", of_columns, (low + high) / 2) + of_ones.sum(axis=2)
        most = np.abs(middle) + np.einsum("lnd,ld->ln", np.abs(of_columns), (high - low) / 2)
        return np.linalg.norm(most, axis=1)

    @_over_blocks(np.maximum)
    def reach(self, moves: np.ndarray, set_of: np.ndarray) -> np.ndarray:
        """Return the largest changes of predictors of training rows by moves, (n_lanes,)."""
        reach = np.zeros(len(moves))
        for part, is_trained, _ in self.sets.blocks(self._block_size(len(moves))):
            moved = self.predictors(self.read(part, self.precision), moves, set_of)
            moved = np.linalg.norm(moved, axis=2, keepdims=True)
            if self.rows.weights is not None:
                moved[self.rows.weights[part] == 0] = 0
            _clear(moved, is_trained[:, set_of])
            np.maximum(reach, moved.max(axis=(0, 2)), out=reach)
        return reach

    @_over_blocks(np.add)
    def diagonals(self, models: np.ndarray, set_of: np.ndarray) -> np.ndarray:
        """Return the diagonals of Hessians over training rows, (n_lanes, n_outputs, width)."""
        diagonals = np.zeros_like(models)
        for part, is_trained, _ in self.sets.blocks(self._block_size(len(models))):
            X, y = self.read(part, self.precision), self.targets[part]
            bends = self.loss.bends(self.predictors(X, models, set_of), y)
            self._weigh(bends, part, set_of)
            _clear(bends, is_trained[:, set_of])
            diagonals += self._sums_of_squares(X, bends, set_of)
        return diagonals

    @_over_blocks(np.add)
    def curvature(
        self, models: np.ndarray, set_of: np.ndarray, by_group: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the slopes and Hessians of models over training rows.

        With ``by_group`` all rows train, and sums are those of each group.

        Returns
        -------
        slopes : ndarray of shape (n_lanes, n_groups or 1, n_outputs, width)
        hessians : ndarray of shape (n_lanes, n_groups or 1, size, size)
            With size = n_outputs * width.
        """
        n_groups = self.sets.shares.shape[1] if by_group else 1
        slopes = np.zeros((len(models), n_groups, *models.shape[1:]))
        firsts, seconds = self._pairs
        products = np.zeros((len(models), n_groups, len(firsts), self.width, self.width))
        for block, is_trained, parts in self.sets.spans(self._block_size(len(models)), by_group):
            X, y = self.read(block, self.precision_of_hessians), self.targets[block]
            z = self.predictors(X, models, set_of)
            n_rows, n_lanes, n = z.shape
            bends = self.loss.curvatures(z.reshape(-1, n), np.repeat(y, n_lanes))
            bends = bends.reshape(n_rows, n_lanes, n * n)
            self.loss.differentiate(z, y)
            for numbers in (z, bends):
                self._weigh(numbers, block, set_of)
                _clear(numbers, is_trained[:, set_of])
            of_pairs = bends[:, :, firsts * n + seconds]
            for group, part in parts:
                slopes[:, group] += self._sums_of(X[part], z[part], set_of)
                self._add_products(X[part], of_pairs[part], products[:, group], set_of)
        return slopes, _joined(products, firsts, seconds)

    def _add_products(
        self, X: Any, bends: np.ndarray, products: np.ndarray, set_of: np.ndarray
    ) -> None:
        """Add X' diag(bends) X, (n_lanes, n_pairs, width, width), for pairs of outputs.

        Neighbouring lanes often have similar models. A row then takes the second derivatives of
        the previous lane if they are nearly the same, and only the products of the other rows are
        computed.
        """
        if len(self.filled):  # the columns differ between lanes
            for lane, number in enumerate(set_of):
                single = slice(lane, lane + 1)
                _add_weighted(self._features(X, number), bends[:, single], products[single])
            return
        changed = [_rows_that_change(bends, lane) for lane in range(len(products))]
        whole = [lane for lane, rows in enumerate(changed) if rows is None]
        if len(whole) == len(products):
            _add_weighted(X, bends, products)
            return
        sums, of_block = np.zeros((len(whole), *products.shape[1:])), np.empty(products.shape)
        _add_weighted(X, bends[:, whole], sums)
        of_block[whole] = sums
        for lane, rows in enumerate(changed):
            if rows is not None:
                of_block[lane] = of_block[lane - 1]
                changes = bends[rows, lane] - bends[rows, lane - 1]
                _add_weighted(X[rows], changes[:, None], of_block[lane : lane + 1])
        products += of_block


def _rows_that_change(bends: np.ndarray, lane: int) -> np.ndarray | None:
    """Return the rows whose second derivatives differ from those of the previous lane.

    ``bends`` is of shape (n_rows, n_lanes, n_pairs). All other rows take the derivatives of the
    previous lane. If too many rows differ, ``bends`` is unchanged, and None is returned.
    """
    if lane == 0:
        return None
    before, here = bends[:, lane - 1], bends[:, lane]
    is_near = np.all(np.abs(here - before) <= _DIFFERENCE * np.abs(here), axis=1)
    # A number that is not finite would spread to further lanes.
    if np.mean(~is_near) > _MOST_ROWS or not np.all(np.isfinite(before)):
        return None
    bends[is_near, lane] = before[is_near]
    return np.flatnonzero(~is_near)


def _add_weighted(X: Any, weights: np.ndarray, products: np.ndarray) -> None:
    """Add X' diag(w) X for the columns w of weights, where sparse rows get a column of ones."""
    size = products.shape[-1]
    weights = weights.reshape(len(weights), products.shape[0] * products.shape[1])
    if isinstance(X, np.ndarray) and size < _COLUMNS_PER_PAIR * (products.shape[1] - 1):
        upper, place = np.triu_indices(size), np.empty((size, size), np.intp)
        place.T[upper] = place[upper] = np.arange(len(upper[0]))
        n_rows = max(1, _MOST_PRODUCTS // len(upper[0]))
        buffer = np.empty((n_rows, len(upper[0])), X.dtype)
        sums = np.zeros((len(upper[0]), weights.shape[1]))
        for begin in range(0, len(X), n_rows):
            part = slice(begin, begin + n_rows)
            of_rows = buffer[: len(X[part])]
            multiply_columns(np.ascontiguousarray(X[part]), of_rows)
            sums += of_rows.T @ weights[part]
        products += np.take(sums.T, place, axis=1).reshape(products.shape)
        return
    at = np.ndindex(products.shape[:2])
    for (lane, pair), w in zip(at, np.ascontiguousarray(weights.T), strict=True):
        if not w.any():
            continue
        if isinstance(X, SparseRows):
            parts = X.values, X.columns, X.begins, w.astype(np.float64)
            add_products(*parts, X.shape[1], products[lane, pair])
        elif w.min() < 0:
            products[lane, pair] += (X * w[:, None]).T @ X
        else:
            root = X * np.sqrt(w)[:, None]
            products[lane, pair] += root.T @ root  # takes half the time


def _joined(products: np.ndarray, firsts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return Hessians from products (n_lanes, n_groups, n_pairs, size, size) of two outputs."""
    n_lanes, n_groups, _, size, _ = products.shape
    n = firsts[-1] + 1
    if n == 1:
        return products[:, :, 0]
    hessians = np.empty((n_lanes, n_groups, n, size, n, size))
    for pair, (a, b) in enumerate(zip(firsts, seconds, strict=True)):
        hessians[:, :, a, :, b] = hessians[:, :, b, :, a] = products[:, :, pair]
    return hessians.reshape(n_lanes, n_groups, n * size, n * size)


def _clear(numbers: np.ndarray, is_kept: np.ndarray) -> None:
    """Set numbers (n_rows, n_lanes, ...) to 0 except where ``is_kept`` (n_rows or 1, n_lanes)."""
    if len(is_kept) == 1:
        numbers[:, ~is_kept[0]] = 0
    else:
        np.copyto(numbers, 0, where=~is_kept[:, :, None])


@dataclass
class LanePenalties:
    """1/2 sum_j a_j w_j^2 + 1/2 (b.w)^2 for each lane.

    b penalises an intercept: that of the original columns is a sum over centred ones. Models of
    several outputs k also get 1/2 c sum_j (sum_k w_kj)^2. These sums are 0 at the minimum of a
    multinomial loss anyway, which does not change if a number is added to all outputs.

    Attributes
    ----------
    of_columns, of_intercepts : ndarray of shape (n_lanes, width)
        a and b.
    is_free : ndarray of shape (n_lanes, n_outputs * width), bool
        Whether a coefficient may change from its start.
    of_sums : float
    """

    of_columns: np.ndarray
    of_intercepts: np.ndarray
    is_free: np.ndarray
    of_sums: float

    def __getitem__(self, lanes: Any) -> LanePenalties:
        columns, intercepts = self.of_columns[lanes], self.of_intercepts[lanes]
        return LanePenalties(columns, intercepts, self.is_free[lanes], self.of_sums)

    @property
    def diagonals(self) -> np.ndarray:
        """The diagonals of the Hessians of the penalties, (n_lanes, width)."""
        return self.of_columns + np.square(self.of_intercepts) + self.of_sums

    def add(self, models: np.ndarray, slopes: np.ndarray) -> None:
        """Add the slopes of the penalties of models."""
        slopes += self.of_columns[:, None] * models
        intercepts = np.einsum("lnd,ld->ln", models, self.of_intercepts)
        slopes += intercepts[:, :, None] * self.of_intercepts[:, None]
        if self.of_sums:
            slopes += self.of_sums * models.sum(axis=1, keepdims=True)

    def add_to(self, hessians: np.ndarray) -> None:
        """Add the Hessians of the penalties to Hessians (n_lanes, size, size)."""
        d, intercepts = self.of_columns.shape[1], self.of_intercepts
        n, columns = hessians.shape[1] // d, np.arange(d)
        of_pairs = hessians.reshape(-1, n, d, n, d)
        for a in range(n):
            of_pairs[:, a, columns, a, columns] += self.of_columns
            if intercepts.any():
                of_pairs[:, a, :, a] += intercepts[:, :, None] * intercepts[:, None]
            if self.of_sums:
                of_pairs[:, a, columns, :, columns] += self.of_sums
