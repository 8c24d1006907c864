"""Multinomial, complement and Bernoulli naive Bayes of all folds, from sums by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.exact.absences import Absences
from optuna_treecv.learners.exact.absences import log_absences
from optuna_treecv.learners.exact.absences import Touched
from optuna_treecv.learners.exact.blocks import blocks
from optuna_treecv.learners.exact.counts import Columns
from optuna_treecv.learners.exact.counts import CountFolds
from optuna_treecv.learners.exact.counts import FoldOfCounts
from optuna_treecv.learners.exact.counts import LOGS
from optuna_treecv.learners.exact.counts import Sums
from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.nonzeros import Nonzeros
from optuna_treecv.learners.exact.split_sums import splitters
from optuna_treecv.learners.exact.split_sums import value_of
from optuna_treecv.rows.data import PreparedRows


class MultinomialFolds(CountFolds):
    """``MultinomialNB``: log((N_cj + alpha) / (N_c + alpha d)) for the sum N_cj of a column."""

    name = "MultinomialNB"

    def _tables(self, columns: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
        return (value_of(columns),)

    def _finish(
        self, said: np.ndarray, fold: FoldOfCounts, chunk_of: np.ndarray, sizes: np.ndarray
    ) -> None:
        of_class = value_of(fold.left.sizes)
        priors = self._log_priors(fold.left.weights)[chunk_of]
        for of_point, alpha in zip(said, self._alphas, strict=True):
            of_point -= sizes[:, None] * np.log(of_class + self._d * alpha)[chunk_of]
            of_point += priors


class ComplementFolds(CountFolds):
    """``ComplementNB``: the same of all other classes, with the sign changed."""

    name = "ComplementNB"
    is_by_own_class = False

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        super().__init__(estimators, rows, scaler, n_jobs)
        self._norm = estimators[0].norm

    def _tables(self, columns: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
        return (value_of(_of_others(columns)),)

    def _basis(self, chunks: Chunks, sums: Sums) -> np.ndarray | None:
        return self._whole(sums)

    def _whole(self, sums: Sums) -> np.ndarray | None:
        """Return the sums of logarithms over all columns."""
        if not self._norm:
            return None
        table = value_of(_of_others(sums.columns))
        found = np.zeros((self.n_points, 1, self.n_outputs))
        for of_point, alpha in zip(found, self._alphas, strict=True):
            for part in blocks(slice(0, self._d), max(1, LOGS // self.n_outputs)):
                of_point += np.log(table[part] + alpha).sum(axis=0)
        return found

    def _whole_without(
        self, basis: np.ndarray | None, columns: Columns, before: np.ndarray, left: Sums
    ) -> np.ndarray | None:
        if basis is None:
            return None
        tables = value_of(_of_others(before)), value_of(_of_others(left.columns))
        n_chunks = left.weights.shape[1]
        found = np.repeat(basis, n_chunks, axis=1)
        of_chunk = sparse.csr_array(
            (np.ones(len(columns)), np.arange(len(columns)), columns.begins),
            shape=(n_chunks, len(columns)),
        )
        for of_point, alpha in zip(found, self._alphas, strict=True):
            of_point += of_chunk @ (np.log(tables[1] + alpha) - np.log(tables[0] + alpha))
        return found

    def _finish(
        self, said: np.ndarray, fold: FoldOfCounts, chunk_of: np.ndarray, sizes: np.ndarray
    ) -> None:
        of_class = value_of(_of_others(fold.left.sizes))
        for i, (of_point, alpha) in enumerate(zip(said, self._alphas, strict=True)):
            logs = np.log(of_class + self._d * alpha)
            of_point -= sizes[:, None] * logs[chunk_of]
            if fold.whole is None:
                np.negative(of_point, out=of_point)
            else:
                of_point /= (fold.whole[i] - self._d * logs)[chunk_of]


class BernoulliFolds(CountFolds):
    """``BernoulliNB``: log((N_cj + alpha) / (N_c + 2 alpha)) for the weight N_cj of ones."""

    name = "BernoulliNB"

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        super().__init__(estimators, rows, scaler, n_jobs)
        threshold = estimators[0].binarize
        if threshold is not None and not isinstance(threshold, np.generic):
            threshold = rows.X.dtype.type(threshold)  # NumPy compares in the type of X
        self._threshold = threshold

    def _check(self, block: Nonzeros) -> Nonzeros:
        if self._threshold is not None:
            return block.above(float(self._threshold))
        if np.any(block.values != 1):
            wrong = block.values[block.values != 1][0]
            raise ValueError(
                f"X must hold only 0 and 1 for BernoulliNB(binarize=None), got {wrong}; "
                "binarize=0.0 would be right."
            )
        return block

    def _splitters(self, totals: np.ndarray) -> np.ndarray:
        # One for all, since weights of ones are subtracted from weights of rows.
        return np.full(len(totals), splitters(totals[-2]))

    def _tables(self, columns: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
        return value_of(columns), value_of(weights - columns)

    def _logs(self, tables: tuple[np.ndarray, ...], alphas: np.ndarray, out: np.ndarray) -> None:
        present, absent = tables
        np.add(present[:, None], alphas[:, None], out=out)
        n_of_place = out.shape[1] * out.shape[2]
        for part in blocks(slice(0, len(out)), max(1, LOGS // n_of_place)):
            out[part] /= absent[part, None] + alphas[:, None]
        np.log(out, out=out)

    def _basis(self, chunks: Chunks, sums: Sums) -> Absences:
        weights = self._rows.weights
        of_all = np.bincount(self._codes, weights, self.n_outputs)
        most = np.zeros(self.n_outputs)
        for some in self._classes_by_chunk(chunks, weights):
            np.maximum(most, some.max(axis=0), out=most)
        return Absences(sums.columns, sums.weights[:, 0], self._alphas, of_all - most)

    def _whole(self, sums: Sums) -> np.ndarray:
        return log_absences(sums.columns, sums.weights[:, 0], self._alphas)[:, None]

    def _whole_without(
        self, basis: Absences, columns: Columns, before: np.ndarray, left: Sums
    ) -> np.ndarray:
        n_chunks, k = left.weights.shape[1:]
        changed = np.flatnonzero(before[2] != left.columns[2])
        places, codes = np.divmod(changed, k)
        cells = columns.chunks()[places] * k + codes
        weights = left.weights.reshape(3, -1)
        sums = np.take(left.columns.reshape(3, -1), changed, axis=1)
        touched = Touched(
            cells,
            columns.names[places],
            value_of(np.take(before.reshape(3, -1), changed, axis=1)),
            value_of(sums),
            np.take(weights, cells, axis=1) - sums,
        )
        codes = np.tile(np.arange(k), n_chunks)
        found = basis.without(codes, weights, touched)
        return found.reshape(self.n_points, n_chunks, k)

    def _whole_of_rows(
        self,
        basis: Absences,
        block: Nonzeros,
        codes: np.ndarray,
        before: np.ndarray,
        left: np.ndarray,
        weights: np.ndarray,
    ) -> np.ndarray:
        rows = np.arange(block.n_rows)
        row_of = block.behind(rows)
        touched = Touched(
            row_of,
            block.columns,
            value_of(before),
            value_of(left),
            np.take(weights, row_of, axis=1) - left,
        )
        found = np.repeat(basis.of_all[:, None], block.n_rows, axis=1)
        found[:, rows, codes] = basis.without(codes, weights, touched)
        return found

    def _finish(
        self, said: np.ndarray, fold: FoldOfCounts, chunk_of: np.ndarray, sizes: np.ndarray
    ) -> None:
        assert fold.whole is not None
        priors = self._log_priors(fold.left.weights)
        for of_point, of_chunk in zip(said, fold.whole, strict=True):
            of_point += (of_chunk + priors)[chunk_of]


def _of_others(sums: np.ndarray) -> np.ndarray:
    """Return the split sums of all other classes."""
    others: np.ndarray = sums.sum(axis=-1, keepdims=True) - sums
    return others
