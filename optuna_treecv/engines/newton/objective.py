"""The objectives of generalised linear models: sums over the training rows of each fold.

A model belongs to one training set and one penalty, and minimises

    F(w) = sum_i u_i loss(x_i.w, y_i) + 1/2 sum_j a_j w_j^2        over the training rows i,

where u_i is the sample weight of a row, and a_j the penalty of a coefficient.
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
from scipy.special import softmax

from optuna_treecv.engines.newton.kernels.glm import add_products
from optuna_treecv.engines.newton.kernels.glm import multiply_columns
from optuna_treecv.engines.newton.kernels.glm import multiply_sparse
from optuna_treecv.engines.newton.terms import PredictorLoss
from optuna_treecv.engines.newton.terms import standard_deviations
from optuna_treecv.engines.newton.terms import TrainingSets
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import copy_rows
from optuna_treecv.numerics.moments import select_rows
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import count_rows
from optuna_treecv.numerics.spread import RowIndices
from optuna_treecv.numerics.spread import Spread
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.distributed import Block
from optuna_treecv.rows.distributed import RemoteBlocks
from optuna_treecv.rows.layout import SparseRows
from optuna_treecv.rows.maps import ColumnMaps

# If a larger fraction of the values is not 0, sparse rows are made dense, a block at a time.
_MIN_DENSITY = 0.2

# Tolerances are for losses near 1. If losses are larger, tolerances are at least this fraction of
# them, because sums in float64 do not resolve less.
_MIN_TOLERANCE_PER_LOSS = 1e-3

# The number of values in a block of dense rows. Such a block fits into the CPU cache.
_MAX_BLOCK_VALUES = 2**17

# The number of predictors of all models for a block of rows. They fit into the CPU cache.
_MAX_BLOCK_PREDICTORS = 2**17

# Sparse rows have few values, so smaller blocks would not be worth the call of a kernel.
_MIN_SPARSE_BLOCK_ROWS = 2**10

# Columns are centred and scaled if the mean of a column exceeds this multiple of its scale.
_MAX_OFFSET = 3

# Columns are also centred and scaled if a scale differs from 1 by more than this factor.
_MAX_SCALE = 10

# With fewer rows, products in float32 save no time.
_MIN_ROWS_FOR_FLOAT32 = 4096

# Per column, the sample has this many of the rows farthest from the mean, and about twice as many
# evenly spaced rows.
_FAR_ROWS_PER_COLUMN = 2**8

# The smallest distance of the sample's evenly spaced rows if all folds share a Hessian. So few
# such Hessians are computed that a larger sample would save no time.
_MIN_STRIDE_OF_SHARED_HESSIAN = 4

# With more Hessian entries per row, the Hessian of all rows serves all folds, because separate
# ones take longer than further passes.
_MAX_HESSIAN_ENTRIES_PER_ROW = 8

# With fewer columns per pair of outputs, the products of columns are computed once for all pairs.
_MIN_COLUMNS_PER_PAIR = 7

# The maximum number of such products of columns in memory.
_MAX_PRODUCTS = 2**19

# The relative difference up to which two second derivatives count as equal.
_MAX_DIFFERENCE = 0.05

# The Hessian of a model is computed from that of the previous model only if at most this fraction
# of the rows have different second derivatives.
_MAX_CHANGED_FRACTION = 0.25

Method = TypeVar("Method", bound=Callable[..., Any])


def stay_sparse(rows: PreparedRows) -> bool:
    """Return whether products use the sparse rows as they are, neither centred nor scaled."""
    X = rows.X
    return isinstance(X, SparseRows) and len(X.values) < _MIN_DENSITY * len(X) * rows.n_features


def _reduce_remote_blocks(reduction: np.ufunc) -> Callable[[Method], Method]:
    """Decorate a method of ``Objective`` to run on each block of remote rows.

    The results of the blocks are combined by ``reduction``. For local rows, the method is called
    directly.
    """

    def decorate(method: Any) -> Any:
        @wraps(method)
        def compute(self: Objective, *arguments: Any, **options: Any) -> Any:
            blocks = self.rows.X
            if not isinstance(blocks, RemoteBlocks):
                return method(self, *arguments, **options)
            sent: Any = copy(self)  # without rows, which blocks have, and sets, which are large
            sent.rows = sent.targets = sent.sets = sent.sample = None
            call = methodcaller(method.__name__, *arguments, **options)
            results = blocks.over(0, len(blocks), _call_on_block, sent, call)
            if isinstance(results[0], tuple):
                return tuple(map(reduction.reduce, zip(*results, strict=True)))
            return reduction.reduce(results)

        return compute

    return decorate


def _call_on_block(block: Block, start: int, stop: int, objective: Any, call: methodcaller) -> Any:
    """Call a method of an objective for the rows of a block."""
    local, code = copy(objective), objective.code
    local.rows = block.rows if code is None else make_one_vs_rest(block.rows, code)
    local.targets = local.rows.targets
    sets = TrainingSets.from_chunks(objective.chunks)
    local.sets = sets.restrict(block.start, block.start + stop)
    with np.errstate(all="ignore"):
        return call(local)


def make_one_vs_rest(rows: PreparedRows, code: int) -> PreparedRows:
    """Return rows with target 1 for the class of this code, and 0 for all other classes."""
    codes = rows.targets
    assert codes is not None
    return replace(rows, targets=(codes == code).astype(codes.dtype))


@dataclass
class Objective:
    """Sums of losses and of their derivatives, for many models at once.

    Models are arrays of shape (n_models, n_outputs, width). The last column is the intercept if
    ``has_intercept``.

    Dense columns are centred and scaled by the mean and scale of all rows, unless these are close
    to 0 and 1 anyway. The coefficients of models refer to the centred and scaled columns.

    Missing values are imputed per training set: ``read`` sets them to 0 and appends an indicator
    column, and the imputed value times the coefficient is added to the predictors of these rows.

    Products of rows and models are of ``precision``; their sums over blocks are float64.

    Attributes
    ----------
    rows : PreparedRows
        Sums over remote rows are computed on their machines, for one block after the other.
    chunks : Chunks
        The folds.
    sets : TrainingSets
        The training sets of the folds, followed by the set of all rows.
    loss : PredictorLoss
    has_intercept : bool
    columns : Spread
        The statistics of the columns in each training set.
    class_weights : ndarray of shape (n_sets, n_classes) or None
        The weight of each class in each training set.
    precision : dtype
    code : int or None
        The code of the class whose target is 1 in one-vs-rest ``rows``. None: targets are class
        codes or numbers.
    """

    rows: PreparedRows
    chunks: Chunks
    sets: TrainingSets
    loss: PredictorLoss
    has_intercept: bool
    columns: Spread
    class_weights: np.ndarray | None
    precision: type
    code: int | None = None

    def __post_init__(self) -> None:
        rows, d = self.rows, self.rows.n_features
        self.width, self.n_outputs = d + self.has_intercept, self.loss.n_outputs
        self._output_pairs = np.tril_indices(self.n_outputs)
        n_entries = (self.width * self.n_outputs) ** 2
        #: Whether each fold has the Hessian of its training rows, or all have that of all rows.
        self.has_hessian_per_fold = n_entries <= _MAX_HESSIAN_ENTRIES_PER_ROW * len(rows.X)
        assert rows.targets is not None
        self.targets = rows.targets
        typical = self.loss.typical_loss(self.targets)
        self.tolerance = float(np.clip(1, _MIN_TOLERANCE_PER_LOSS * typical, typical))
        if len(rows.X) < _MIN_ROWS_FOR_FLOAT32 or not self.loss.has_bounded_gradient:
            self.precision = np.float64
        # Becomes float64 if a Hessian in float32 is not positive definite.
        self.hessian_precision = self.precision
        # The Hessian of several outputs that folds share is computed from dense rows.
        self._is_sparse = stay_sparse(rows) and (self.n_outputs == 1 or self.has_hessian_per_fold)
        self.centre, self.scale = self.columns.mean[-1], standard_deviations(self.columns)[-1]
        is_standard = np.abs(self.centre) <= _MAX_OFFSET * self.scale
        is_standard &= (self.scale < _MAX_SCALE) & (self.scale > 1 / _MAX_SCALE)
        self._is_unscaled = self._is_sparse or bool(np.all(is_standard))
        if self._is_unscaled:
            self.centre, self.scale = np.zeros(d), np.ones(d)
        if not self.has_intercept:
            self.centre = np.zeros(d)
        self.imputed, fill = np.zeros(0, int), np.zeros((len(self.sets.group_fractions), 0))
        if isinstance(rows.maps, ColumnMaps):
            self.imputed = rows.maps.filled
            # The last set has all rows, and is imputed by the mean of the values of the others.
            fill = np.vstack([rows.maps.fill, rows.maps.fill.mean(axis=0)])
            fill /= self.scale[self.imputed]
        # The imputed values of each set, relative to the last set, and those of the last set.
        self._fill, self._common_fill = fill - fill[-1], fill[-1]

    def read(self, indices: RowIndices, precision: type = np.float64) -> Any:
        """Return the rows with these indices, as ``SparseRows`` or as an array.

        The columns of an array are the features, a column of ones if ``has_intercept``, and for
        each of the ``imputed`` columns an indicator that is 1 if the value is missing.
        """
        d, X = self.rows.n_features, self.rows.X
        if isinstance(X, SparseRows) and self._is_sparse:
            sparse = X[indices]
            values: np.ndarray = sparse.values.astype(precision, copy=False)
            return replace(sparse, values=values, shape=(len(sparse), d))
        n_columns = self.width + len(self.imputed)
        block: np.ndarray = np.empty((count_rows(indices), n_columns), precision)
        block[:, d : self.width] = 1
        if self._is_unscaled and not len(self.imputed):
            copy_rows(self.rows, indices, block[:, :d])
            return block
        exact = np.empty((len(block), d + len(self.imputed)))
        copy_rows(self.rows, indices, exact)
        exact[:, :d] -= self.centre
        exact[:, :d] /= self.scale
        exact[:, self.imputed] += exact[:, d:] * self._common_fill
        block[:, :d], block[:, self.width :] = exact[:, :d], exact[:, d:]
        return block

    @cached_property
    def sample(self) -> Objective:
        """The objective on a sample of the rows, whose minimum is close to that for all rows.

        The sample has evenly spaced rows, which represent all rows by their weights, and the rows
        farthest from the mean. The latter include rows of rare categories, whose coefficients
        need most steps. If rows are few, sparse or remote, this is the objective itself.
        """
        rows, n_rows, d = self.rows, len(self.targets), self.rows.n_features
        n_far = _FAR_ROWS_PER_COLUMN * d
        stride = n_rows // (2 * n_far)
        # If second derivatives jump, Newton's method reaches the minimum of all rows exactly,
        # whereas L-BFGS, which would continue from the minimum of a sample, does not.
        has_jumps = np.isinf(self.loss.self_concordance)
        min_stride = 2 if self.has_hessian_per_fold else _MIN_STRIDE_OF_SHARED_HESSIAN
        is_small = stride < min_stride or not isinstance(rows.X, np.ndarray)
        if is_small or has_jumps or len(self.imputed):
            return self
        distances = np.empty(n_rows)
        centre = ((self.columns.mean[-1] - self.centre) / self.scale).astype(self.precision)
        factor = (self.scale / standard_deviations(self.columns)[-1]).astype(self.precision)
        for block in blocks(slice(0, n_rows)):
            standardised = self.read(block, self.precision)[:, :d] - centre
            standardised *= factor
            distances[block] = np.einsum("ij,ij->i", standardised, standardised)
        far = np.argpartition(distances, n_rows - n_far)[n_rows - n_far :]
        weights = np.zeros(n_rows)
        weights[::stride] = stride
        weights[far] = 1
        indices = np.flatnonzero(weights)
        sampled = select_rows(rows, indices)
        sample_weight = 1 if sampled.weights is None else sampled.weights
        sampled = replace(sampled, weights=weights[indices] * sample_weight)
        chunks = Chunks(len(indices), np.array([len(indices)]))
        sets, class_weights = TrainingSets.from_chunks(chunks), self.class_weights
        class_weights = None if class_weights is None else class_weights[-1:]
        return replace(self, rows=sampled, chunks=chunks, sets=sets, class_weights=class_weights)

    def _impute(self, X: Any, set_index: int = -1) -> Any:
        """Return rows without indicator columns, imputed by the values of one training set."""
        if self._is_sparse or not len(self.imputed):
            return X
        features, is_missing = np.split(X, [self.width], axis=1)
        if self._fill[set_index].any():
            features = features.copy()
            features[:, self.imputed] += is_missing * self._fill[set_index]
        return features

    def predictors(self, X: Any, models: np.ndarray, set_indices: np.ndarray) -> np.ndarray:
        """Return the linear predictors of models, (n_rows, n_models, n_outputs).

        ``set_indices`` (n_models,) are the training sets by whose values X is imputed.
        """
        (n_models, n, _), d = models.shape, self.rows.n_features
        # Models are adjacent in memory, so that losses are computed for many of them at once.
        W = models.transpose(2, 1, 0).astype(X.dtype, order="C")
        if isinstance(X, SparseRows):
            z = np.empty((len(X), n * n_models), X.dtype)
            multiply_sparse(X.values, X.columns, X.begins, W[:d].reshape(d, -1), z, False)
            if self.has_intercept:
                z += W[d].ravel()
        else:
            z = self._impute(X) @ W[: X.shape[1]].reshape(-1, n * n_models)
        if len(self.imputed):
            missing_terms = W[self.imputed] * self._fill[set_indices].T[:, None]
            z += X[:, self.width :] @ missing_terms.reshape(len(self.imputed), -1)
        return z.reshape(X.shape[0], n, n_models).transpose(0, 2, 1)

    def _block_size(self, n_models: int) -> int:
        """Return the number of rows in a block."""
        size = _MAX_BLOCK_PREDICTORS // (n_models * self.n_outputs)
        if self._is_sparse:
            return max(_MIN_SPARSE_BLOCK_ROWS, size)
        return max(128, min(_MAX_BLOCK_VALUES // self.width, size))

    def _sum_columns(
        self, X: Any, z: np.ndarray, set_indices: np.ndarray | None = None
    ) -> np.ndarray:
        """Return X' z, (n_models, n_outputs, width), for z of shape (n_rows, n_models, n_outputs).

        X is imputed by the values of the training sets ``set_indices``, or of all rows if these
        are None.
        """
        n_rows, n_models, n = z.shape
        Z = z.transpose(0, 2, 1).reshape(n_rows, -1)
        if isinstance(X, SparseRows):
            Z = np.ascontiguousarray(Z, X.dtype)
            sums = np.zeros((self.width, n * n_models), X.dtype)
            multiply_sparse(X.values, X.columns, X.begins, sums, Z, True)
            if self.has_intercept:
                sums[-1] = np.ones(n_rows) @ Z  # in float64
            return sums.reshape(-1, n, n_models).transpose(2, 1, 0)
        sums = (self._impute(X).T @ Z).astype(np.float64).reshape(-1, n, n_models)
        if set_indices is not None and len(self.imputed):
            missing_sums = (X[:, self.width :].T @ Z).reshape(-1, n, n_models)
            sums[self.imputed] += missing_sums * self._fill[set_indices].T[:, None]
        return sums.transpose(2, 1, 0)

    def _sum_squared_columns(self, X: Any, z: np.ndarray, set_indices: np.ndarray) -> np.ndarray:
        """Return (X**2)' z, (n_models, n_outputs, width), as ``_sum_columns``."""
        if isinstance(X, SparseRows):
            return self._sum_columns(replace(X, values=np.square(X.values)), z)
        squares = np.square(X)
        if not len(self.imputed):
            return self._sum_columns(squares, z)
        features, width = self._impute(X), self.width
        squares[:, :width] = np.square(features)
        sums = self._sum_columns(squares, z)
        # (x + fill)^2 = x^2 + fill (2 x + fill)
        Z, is_missing = z.reshape(len(X), -1), X[:, width:]
        fill = self._fill[set_indices][:, None]
        linear, constant = (
            (terms.T @ Z).reshape(-1, *z.shape[1:]).transpose(1, 2, 0)
            for terms in (2 * features[:, self.imputed] * is_missing, is_missing)
        )
        sums[:, :, self.imputed] += fill * (linear + fill * constant)
        return sums

    def _apply_weights(
        self, terms: np.ndarray, indices: RowIndices, set_indices: np.ndarray
    ) -> None:
        """Multiply the terms of rows (n_rows, n_models, ...) by sample and class weights."""
        factors = None if self.rows.weights is None else self.rows.weights[indices][:, None]
        if self.class_weights is not None:
            class_factors = self.class_weights[set_indices][:, self.targets[indices]].T
            factors = class_factors if factors is None else factors * class_factors
        if factors is not None:
            terms *= factors[:, :, None]

    def gradients(
        self, models: np.ndarray, set_indices: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of the training loss and of the mean test loss of each model.

        Parameters
        ----------
        models : ndarray of shape (n_models, n_outputs, width)
        set_indices : ndarray of shape (n_models,)
            The training set of each model.

        Returns
        -------
        train, test : ndarray of shape (n_models, n_outputs, width)
            The sum over training rows, without the penalty, and the mean over test rows, weighted
            as in the score.
        """
        train, test, totals = self.sum_gradients(models, set_indices)
        return train, test / np.where(totals > 0, totals, 1)[:, None, None]

    @_reduce_remote_blocks(np.add)
    def sum_gradients(
        self, models: np.ndarray, set_indices: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return gradient sums over training rows and test rows, and the weight of test rows."""
        train, test, totals = np.zeros_like(models), np.zeros_like(models), np.zeros(len(models))
        score_weights = self.rows.score_weights
        is_unweighted = self.rows.weights is None and self.class_weights is None
        is_unweighted &= score_weights is None
        for indices, is_trained, is_tested in self.sets.blocks(self._block_size(len(models))):
            X = self.read(indices, self.precision)
            z = self.predictors(X, models, set_indices)
            self.loss.differentiate(z, self.targets[indices])
            are_trained, are_tested = is_trained[:, set_indices], is_tested[:, set_indices]
            if len(are_trained) == 1 and is_unweighted:
                sums = self._sum_columns(X, z, set_indices)
                train[are_trained[0]] += sums[are_trained[0]]
                test[are_tested[0]] += sums[are_tested[0]]
                totals[are_tested[0]] += len(z)
                continue
            tested = np.flatnonzero(are_tested.any(axis=0))
            if len(tested):
                weights = np.ones(len(z)) if score_weights is None else score_weights[indices]
                test_weights = are_tested[:, tested] * weights[:, None]
                totals[tested] += test_weights.sum(axis=0)
                test_terms = z[:, tested] * test_weights[:, :, None].astype(z.dtype)
                test[tested] += self._sum_columns(X, test_terms, set_indices[tested])
            self._apply_weights(z, indices, set_indices)
            _zero_excluded(z, are_trained)
            train += self._sum_columns(X, z, set_indices)
        return train, test, totals

    def bound_predictor_changes(self, steps: np.ndarray, set_indices: np.ndarray) -> np.ndarray:
        """Return upper bounds of ``max_predictor_changes``, without reading rows.

        A bound is the change for a row in which each column has its minimum or maximum, whichever
        increases the change.
        """
        if len(self.imputed):
            return np.full(len(steps), np.inf)
        coefficients, intercepts = np.split(steps, [self.rows.n_features], axis=2)
        extremes = np.array([self.columns.low[set_indices], self.columns.high[set_indices]])
        low, high = (extremes - self.centre) / self.scale
        middle = np.einsum("mnd,md->mn", coefficients, (low + high) / 2) + intercepts.sum(axis=2)
        half_ranges = np.einsum("mnd,md->mn", np.abs(coefficients), (high - low) / 2)
        return np.linalg.norm(np.abs(middle) + half_ranges, axis=1)

    @_reduce_remote_blocks(np.maximum)
    def max_predictor_changes(self, steps: np.ndarray, set_indices: np.ndarray) -> np.ndarray:
        """Return, for each step, the largest change of the predictors of any training row.

        Steps are of shape (n_models, n_outputs, width), and the changes of shape (n_models,).
        """
        largest = np.zeros(len(steps))
        for indices, is_trained, _ in self.sets.blocks(self._block_size(len(steps))):
            changes = self.predictors(self.read(indices, self.precision), steps, set_indices)
            changes = np.linalg.norm(changes, axis=2, keepdims=True)
            if self.rows.weights is not None:
                changes[self.rows.weights[indices] == 0] = 0
            _zero_excluded(changes, is_trained[:, set_indices])
            np.maximum(largest, changes.max(axis=(0, 2)), out=largest)
        return largest

    @_reduce_remote_blocks(np.add)
    def hessian_diagonals(self, models: np.ndarray, set_indices: np.ndarray) -> np.ndarray:
        """Return the diagonals of the training losses' Hessians, (n_models, n_outputs, width)."""
        diagonals = np.zeros_like(models)
        for indices, is_trained, _ in self.sets.blocks(self._block_size(len(models))):
            X, y = self.read(indices, self.precision), self.targets[indices]
            z = self.loss.second_derivatives(self.predictors(X, models, set_indices), y)
            self._apply_weights(z, indices, set_indices)
            _zero_excluded(z, is_trained[:, set_indices])
            diagonals += self._sum_squared_columns(X, z, set_indices)
        return diagonals

    @_reduce_remote_blocks(np.add)
    def gradients_and_hessians(
        self, models: np.ndarray, set_indices: np.ndarray, by_group: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients and Hessians of the training loss of each model.

        If ``by_group`` is True, they are sums over all rows of each group instead, whether or not
        these train the model. Hessians are sums over all rows if ``has_hessian_per_fold`` is
        False.

        Returns
        -------
        gradients : ndarray of shape (n_models, n_groups or 1, n_outputs, width)
        hessians : ndarray of shape (n_models, n_groups or 1, size, size)
            The size is n_outputs * width.
        """
        n_groups = self.sets.group_fractions.shape[1] if by_group else 1
        gradients = np.zeros((len(models), n_groups, *models.shape[1:]))
        if self.n_outputs > 1 and not self.has_hessian_per_fold:
            return gradients, self._add_shared(models, set_indices, by_group, gradients)[:, None]
        firsts, seconds = self._output_pairs
        n_hessians = n_groups if self.has_hessian_per_fold else 1
        products = np.zeros((len(models), n_hessians, len(firsts), self.width, self.width))
        block_size = self._block_size(len(models))
        for indices, is_trained, groups in self.sets.group_blocks(block_size, by_group):
            X, y = self.read(indices, self.hessian_precision), self.targets[indices]
            z = self.predictors(X, models, set_indices)
            n_rows, n_models, n = z.shape
            curvatures = self.loss.hessians(z.reshape(-1, n), np.repeat(y, n_models))
            curvatures = curvatures.reshape(n_rows, n_models, n * n)
            self.loss.differentiate(z, y)
            for terms in (z, curvatures):
                self._apply_weights(terms, indices, set_indices)
                _zero_excluded(terms, is_trained[:, set_indices])
            curvatures = curvatures[:, :, firsts * n + seconds]
            for group, part in groups:
                gradients[:, group] += self._sum_columns(X[part], z[part], set_indices)
                sums = products[:, group if n_hessians > 1 else 0]
                self._add_products(X[part], curvatures[part], sums, set_indices)
        return gradients, _assemble_hessians(products, firsts, seconds)

    def _add_shared(
        self, models: np.ndarray, set_indices: np.ndarray, by_group: bool, gradients: np.ndarray
    ) -> np.ndarray:
        """Add to the gradients of a multinomial loss, and return its Hessians, which folds share.

        With the probabilities p of a row x, the Hessian has the blocks p_a (1 - p_a) xx' on its
        diagonal, and -p_a p_b xx' elsewhere. The latter are products of the vectors p_a x.
        """
        n, d = self.n_outputs, self.width
        hessians = np.zeros((len(models), n * d, n * d))
        diagonals = np.zeros((len(models), n, d, d))
        size = self._block_size(len(models))
        for indices, is_trained, groups in self.sets.group_blocks(size, by_group):
            X, y = self.read(indices, self.hessian_precision), self.targets[indices]
            z = self.predictors(X, models, set_indices)
            probabilities, weights = softmax(z, axis=2), np.ones((*z.shape[:2], 1), z.dtype)
            self.loss.differentiate(z, y)
            for terms in (z, weights):
                self._apply_weights(terms, indices, set_indices)
                _zero_excluded(terms, is_trained[:, set_indices])
            for group, part in groups:
                gradients[:, group] += self._sum_columns(X[part], z[part], set_indices)
            for i, set_index in enumerate(set_indices):
                rows, p = self._impute(X, set_index), probabilities[:, i]
                roots = np.sqrt(weights[:, i])
                products = ((p * roots)[:, :, None] * rows[:, None]).reshape(len(rows), n * d)
                hessians[i] -= products.T @ products
                curvatures = weights[:, i] * p * np.maximum(1 - p, 0)
                _add_weighted_products(rows, curvatures[:, None], diagonals[i : i + 1])
        outputs = np.arange(n)
        hessians.reshape(-1, n, d, n, d)[:, outputs, :, outputs] = diagonals.swapaxes(0, 1)
        return hessians

    def _add_products(
        self, X: Any, curvatures: np.ndarray, products: np.ndarray, set_indices: np.ndarray
    ) -> None:
        """Add X' diag(c) X to ``products`` for each model and each pair of outputs.

        Consecutive models are often similar. If most rows have nearly the same second derivatives
        as in the previous model, these rows reuse the previous values. The two sums then differ
        only by the other rows, and only their products are computed.

        Parameters
        ----------
        X : SparseRows or ndarray
        curvatures : ndarray of shape (n_rows, n_models, n_pairs)
            The second derivatives c, which may be overwritten.
        products : ndarray of shape (n_models, n_pairs, width, width)
        set_indices : ndarray of shape (n_models,)
        """
        if len(self.imputed):  # imputed columns differ between models
            for i, set_index in enumerate(set_indices):
                single = slice(i, i + 1)
                imputed = self._impute(X, set_index)
                _add_weighted_products(imputed, curvatures[:, single], products[single])
            return
        changed = [_reuse_curvatures(curvatures, i) for i in range(len(products))]
        whole = [i for i, rows in enumerate(changed) if rows is None]
        if len(whole) == len(products):
            _add_weighted_products(X, curvatures, products)
            return
        sums, added = np.zeros((len(whole), *products.shape[1:])), np.empty(products.shape)
        _add_weighted_products(X, curvatures[:, whole], sums)
        added[whole] = sums
        for i, rows in enumerate(changed):
            if rows is not None:
                added[i] = added[i - 1]
                changes = curvatures[rows, i] - curvatures[rows, i - 1]
                _add_weighted_products(X[rows], changes[:, None], added[i : i + 1])
        products += added


def _reuse_curvatures(curvatures: np.ndarray, i: int) -> np.ndarray | None:
    """Copy the second derivatives of model i - 1 to model i for rows in which they nearly agree.

    ``curvatures`` has the shape (n_rows, n_models, n_pairs).

    Returns
    -------
    ndarray of int or None
        The indices of the other rows. None if these are too many; then nothing is copied.
    """
    if i == 0:
        return None
    previous, current = curvatures[:, i - 1], curvatures[:, i]
    is_close = np.all(np.abs(current - previous) <= _MAX_DIFFERENCE * np.abs(current), axis=1)
    # Infinity or NaN would spread to further models.
    if np.mean(~is_close) > _MAX_CHANGED_FRACTION or not np.all(np.isfinite(previous)):
        return None
    curvatures[is_close, i] = previous[is_close]
    return np.flatnonzero(~is_close)


def _add_weighted_products(X: Any, weights: np.ndarray, products: np.ndarray) -> None:
    """Add X' diag(w) X to ``products`` (n_models, n_pairs, size, size) for each model and pair.

    The weights w are ``weights`` (n_rows, n_models, n_pairs). Sparse rows are extended by a column
    of ones if ``size`` exceeds their number of columns.
    """
    size = products.shape[-1]
    weights = weights.reshape(len(weights), products.shape[0] * products.shape[1])
    if isinstance(X, np.ndarray) and size < _MIN_COLUMNS_PER_PAIR * (products.shape[1] - 1):
        upper, positions = np.triu_indices(size), np.empty((size, size), np.intp)
        positions.T[upper] = positions[upper] = np.arange(len(upper[0]))
        n_rows = max(1, _MAX_PRODUCTS // len(upper[0]))
        buffer = np.empty((n_rows, len(upper[0])), X.dtype)
        sums = np.zeros((len(upper[0]), weights.shape[1]))
        for start in range(0, len(X), n_rows):
            part = slice(start, start + n_rows)
            column_products = buffer[: len(X[part])]
            multiply_columns(np.ascontiguousarray(X[part]), column_products)
            sums += column_products.T @ weights[part]
        products += np.take(sums.T, positions, axis=1).reshape(products.shape)
        return
    pairs = np.ndindex(products.shape[:2])
    for (model, pair), w in zip(pairs, np.ascontiguousarray(weights.T), strict=True):
        if not w.any():
            continue
        if isinstance(X, SparseRows):
            csr = X.values, X.columns, X.begins
            add_products(*csr, w.astype(np.float64), X.shape[1], products[model, pair])
        elif w.min() < 0:
            products[model, pair] += (X * w[:, None]).T @ X
        else:
            root = X * np.sqrt(w)[:, None]
            products[model, pair] += root.T @ root  # takes half the time


def _assemble_hessians(
    products: np.ndarray, firsts: np.ndarray, seconds: np.ndarray
) -> np.ndarray:
    """Return the Hessians (n_models, n_groups, n_outputs * width, n_outputs * width).

    ``products`` (n_models, n_groups, n_pairs, width, width) has the block of each pair of outputs;
    ``firsts`` and ``seconds`` (n_pairs,) are the two outputs of each pair.
    """
    n_models, n_groups, _, size, _ = products.shape
    n = firsts[-1] + 1
    if n == 1:
        return products[:, :, 0]
    hessians = np.empty((n_models, n_groups, n, size, n, size))
    for pair, (a, b) in enumerate(zip(firsts, seconds, strict=True)):
        hessians[:, :, a, :, b] = hessians[:, :, b, :, a] = products[:, :, pair]
    return hessians.reshape(n_models, n_groups, n * size, n * size)


def _zero_excluded(terms: np.ndarray, is_included: np.ndarray) -> None:
    """Set the terms (n_rows, n_models, ...) of rows that do not train a model to 0.

    ``is_included`` has the shape (n_rows or 1, n_models).
    """
    if len(is_included) == 1:
        terms[:, ~is_included[0]] = 0
    else:
        np.copyto(terms, 0, where=~is_included[:, :, None])


@dataclass
class L2Penalties:
    """The penalty 1/2 sum_j a_j w_j^2 + 1/2 (b.w)^2 of each model.

    The second term penalises the intercept of the original columns, which is a linear combination
    b.w of the intercept and coefficients of the centred columns.

    Models with several outputs k also get the penalty 1/2 c sum_j (sum_k w_kj)^2, which makes
    Hessians positive definite. It does not change the minimum: a multinomial loss stays the same
    if a constant is added to all outputs, so the sums over k are 0 at the minimum anyway.

    Attributes
    ----------
    column_strengths, intercept_weights : ndarray of shape (n_models, width)
        a and b.
    is_free : ndarray of shape (n_models, n_outputs * width), bool
        Whether a coefficient may change from its start.
    sum_strength : float
        c
    """

    column_strengths: np.ndarray
    intercept_weights: np.ndarray
    is_free: np.ndarray
    sum_strength: float

    def __getitem__(self, models: Any) -> L2Penalties:
        columns, intercepts = self.column_strengths[models], self.intercept_weights[models]
        return L2Penalties(columns, intercepts, self.is_free[models], self.sum_strength)

    @property
    def hessian_diagonals(self) -> np.ndarray:
        """The diagonals of the Hessians of the penalties, (n_models, width)."""
        return self.column_strengths + np.square(self.intercept_weights) + self.sum_strength

    def add_gradients(self, models: np.ndarray, gradients: np.ndarray) -> None:
        """Add the gradients of the penalties at the models to ``gradients``."""
        gradients += self.column_strengths[:, None] * models
        intercepts = np.einsum("mnd,md->mn", models, self.intercept_weights)
        gradients += intercepts[:, :, None] * self.intercept_weights[:, None]
        if self.sum_strength:
            gradients += self.sum_strength * models.sum(axis=1, keepdims=True)

    def add_hessians(self, hessians: np.ndarray) -> None:
        """Add the Hessians of the penalties to ``hessians`` (n_models, size, size)."""
        d, b = self.column_strengths.shape[1], self.intercept_weights
        n, columns = hessians.shape[1] // d, np.arange(d)
        by_output = hessians.reshape(-1, n, d, n, d)
        for k in range(n):
            by_output[:, k, columns, k, columns] += self.column_strengths
            if b.any():
                by_output[:, k, :, k] += b[:, :, None] * b[:, None]
            if self.sum_strength:
                by_output[:, k, columns, :, columns] += self.sum_strength
