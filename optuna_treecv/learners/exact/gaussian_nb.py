"""Gaussian naive Bayes of all folds and smoothings, from mean and variance by class."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from functools import partial
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.blocks import blocks
from optuna_treecv.learners.exact.blocks import copy_rows
from optuna_treecv.learners.exact.blocks import n_rows_of
from optuna_treecv.learners.exact.class_spreads import check_weights
from optuna_treecv.learners.exact.class_spreads import class_spreads_of
from optuna_treecv.learners.exact.class_spreads import ClassSpreads
from optuna_treecv.learners.exact.class_spreads import merge_class_spreads
from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.learners.exact.family import Kept
from optuna_treecv.learners.exact.family import Tested
from optuna_treecv.learners.exact.gaussian_densities import Densities
from optuna_treecv.learners.exact.gaussian_densities import densities
from optuna_treecv.learners.exact.gaussian_nb_single_rows import SingleRows
from optuna_treecv.learners.exact.labels import largest_class
from optuna_treecv.learners.exact.records import records_in_groups
from optuna_treecv.learners.exact.spread import scale_by
from optuna_treecv.learners.exact.threads import in_order
from optuna_treecv.learners.exact.training_sums import FoldSums
from optuna_treecv.learners.exact.training_sums import training_sums
from optuna_treecv.rows.data import PreparedRows

# The rows that a product of matrices computes at once.
_TILE = 32


class _Fold(NamedTuple):
    """What a fold's models are made from; views of one record.

    Attributes
    ----------
    weights : ndarray of shape (n_classes,)
    means, variances : ndarray of shape (n_classes, n_features)
    added : ndarray of shape (n_features,)
        What ``var_smoothing`` is multiplied with, in the squared units of X: the largest variance
        of all columns, and after a scaler that of the scaled ones times the squared scale.
    log_scale : ndarray of shape (1,)
        The sum of the logarithms of all scales.
    """

    weights: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    added: np.ndarray
    log_scale: np.ndarray


class GaussianNBFolds:
    """``GaussianNB``: what a model says of a row is its joint log-likelihood with each class."""

    parameter = "var_smoothing"

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        assert rows.classes is not None
        self.n_points = len(estimators)
        self.n_outputs = len(rows.classes)
        self._smoothings = np.array([float(one.var_smoothing) for one in estimators])
        self._priors = _checked_priors(estimators[0].priors, self.n_outputs)
        self._rows = rows
        self._scaler = scaler
        self._n_jobs = n_jobs

    @staticmethod
    def why_not(estimator: Any, facts: Facts) -> str:
        """Return why an estimator has no exact folds, a clause; "" if it has them."""
        if facts.is_sparse:
            return "GaussianNB takes no sparse rows"
        if facts.n_of_class == 0:
            return "a training set lacks a class"
        if estimator.priors is not None and np.any(np.asarray(estimator.priors) == 0):
            return "a prior is 0"
        return ""

    def squares(self, chunks: Chunks, kept: Kept) -> None:
        """Return None: scores of classes are no sums of squares."""

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return class codes or probabilities."""
        if method == "predict":
            return largest_class(outputs)
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        np.exp(shifted, out=shifted)
        return shifted / shifted.sum(axis=1, keepdims=True)

    def test(self, chunks: Chunks, kept: Kept, most_rows: int) -> Iterator[Tested]:
        """Test each chunk with models that are trained on its training rows."""
        if chunks.are_single_rows:
            single = SingleRows(
                self._rows, self._scaler, self._smoothings, self._priors, self._n_jobs
            )
            yield from single.test(chunks, kept, most_rows)
            return
        size, make = self._record_size, partial(self._records, chunks)
        groups = records_in_groups(chunks, kept, "folds", size, make, most_rows)
        yield from in_order(self._n_jobs, partial(self._test, chunks), groups)

    def _test(self, chunks: Chunks, group: tuple[int, np.ndarray]) -> Tested:
        """Return what the models of a group of folds say of their test rows."""
        first, folds = group[0], [self._fold_of(record) for record in group[1]]
        last = first + len(folds)
        n_rows = int(chunks.bounds[last] - chunks.bounds[first])
        # The last rows of a product are summed in another way than the others where they fill no
        # tile, so that equal rows would differ. Each block writes a full tile, and the next block
        # over its end.
        outputs = np.empty((self.n_points, self.n_outputs, n_rows + _TILE))
        begin = 0
        for chunk, fold in enumerate(folds, first):
            models = self._models(fold)
            for some in blocks(chunks.test_rows(chunk, chunk + 1)):
                size = n_rows_of(some)
                columns = np.zeros((self._rows.n_features, -(-size // _TILE) * _TILE))
                copy_rows(self._rows, some, columns[:, :size].T)
                models.write(columns, outputs[:, :, begin : begin + columns.shape[1]])
                begin += size
        outputs = outputs[:, :, :n_rows]
        return Tested(first, last, outputs.transpose(0, 2, 1))

    def _models(self, fold: _Fold) -> Densities:
        check_weights(fold.weights, np.arange(self.n_outputs), self._rows)
        priors = fold.weights / fold.weights.sum() if self._priors is None else self._priors
        return densities(
            fold.means,
            fold.variances,
            fold.added,
            self._smoothings,
            np.log(priors) + fold.log_scale,
        )

    @property
    def _record_size(self) -> int:
        n_classes, d = self.n_outputs, self._rows.n_features
        return n_classes * (1 + 2 * d) + d + 1

    def _fold_of(self, record: np.ndarray) -> _Fold:
        """Return the parts of a record."""
        n_classes, d = self.n_outputs, self._rows.n_features
        ends = np.cumsum([n_classes, n_classes * d, n_classes * d, d])
        weights, means, variances, added, log_scale = np.split(record, ends)
        shape = (n_classes, d)
        return _Fold(weights, means.reshape(shape), variances.reshape(shape), added, log_scale)

    def _records(self, chunks: Chunks) -> Iterator[np.ndarray]:
        """Yield the record of each fold."""
        n_bytes = 8 * self.n_outputs * (1 + 2 * self._rows.n_features)
        sums_of = partial(class_spreads_of, self._rows)
        sums = training_sums(sums_of, merge_class_spreads, chunks, n_bytes, self._n_jobs)
        return map(self._record, sums)

    def _record(self, sums: FoldSums[ClassSpreads]) -> np.ndarray:
        train = sums.train
        record = np.empty(self._record_size)
        fold = self._fold_of(record)
        fold.weights[:] = train.weights
        fold.means[:] = train.means
        fold.variances[:] = train.squares / np.where(train.weights > 0, train.weights, 1)[:, None]
        scale = np.ones(self._rows.n_features)
        if self._scaler is not None:
            _, scale = scale_by(self._scaler, train.spread)
        fold.added[:] = np.max(train.spread.squares / train.spread.n_rows / scale**2) * scale**2
        fold.log_scale[:] = np.log(scale).sum()
        return record


def _checked_priors(priors: Any, n_classes: int) -> np.ndarray | None:
    """Return the given priors; refuse those that ``fit`` refuses."""
    if priors is None:
        return None
    given = np.asarray(priors, dtype=np.float64)
    if given.shape != (n_classes,):
        raise ValueError(
            f"priors must hold a number for each of the {n_classes} classes, got {given.size}."
        )
    if np.any(given < 0) or not np.isclose(given.sum(), 1.0):
        raise ValueError(
            f"priors must be numbers of at least 0 with the sum 1, got {given.tolist()}."
        )
    return given
