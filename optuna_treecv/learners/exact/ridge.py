"""Ridge regression, and the classifier that regresses on labels of -1 and 1, from moments."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.class_weights import weights_of_classes
from optuna_treecv.learners.exact.balanced import balanced
from optuna_treecv.learners.exact.balanced import merge_classes
from optuna_treecv.learners.exact.balanced import sums_by_class
from optuna_treecv.learners.exact.balanced import SumsByClass
from optuna_treecv.learners.exact.blocks import blocks
from optuna_treecv.learners.exact.blocks import copy_rows
from optuna_treecv.learners.exact.blocks import n_rows_of
from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.learners.exact.family import Kept
from optuna_treecv.learners.exact.family import RowNumbers
from optuna_treecv.learners.exact.family import Squares
from optuna_treecv.learners.exact.family import Tested
from optuna_treecv.learners.exact.from_rows import solve_from_rows
from optuna_treecv.learners.exact.labels import largest_class
from optuna_treecv.learners.exact.left_out import LeftOut
from optuna_treecv.learners.exact.moments import merge
from optuna_treecv.learners.exact.moments import Moments
from optuna_treecv.learners.exact.penalties import Penalties
from optuna_treecv.learners.exact.penalties import views
from optuna_treecv.learners.exact.records import records_in_groups
from optuna_treecv.learners.exact.ridge_rows import equations_of
from optuna_treecv.learners.exact.ridge_rows import RidgeRows
from optuna_treecv.learners.exact.ridge_rows import singular_error
from optuna_treecv.learners.exact.threads import in_order
from optuna_treecv.learners.exact.training_sums import FoldSums
from optuna_treecv.learners.exact.training_sums import training_sums
from optuna_treecv.rows.data import count_targets
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import times_classes

# Chunks of fewer rows than a quarter of the columns are left out of all rows.
_COLUMNS_PER_SMALL_ROW = 4

# The rows of one product with the coefficients of all alphas.
_ROWS = 4096

# A matrix of d x d numbers for each fold, and more of them while it is factorised: 800 MB.
_MOST_COLUMNS = 5000

# Below this share of a fold's squares, its sum of squared errors is computed from outputs, since
# from moments it would be a small difference of large sums.
_LEAST_SHARE = 1e-4


class _Fold(NamedTuple):
    """What a fold's models are made from; views of one record.

    Attributes
    ----------
    equations : Penalties
    origin : ndarray of shape (n_features + n_targets,)
        What is subtracted from X and from what is predicted.
    scale : ndarray of shape (n_features,)
        By what X is divided.
    test : ndarray
        Weight, mean and scatter of the test rows; empty where they are not needed.
    """

    equations: Penalties
    origin: np.ndarray
    scale: np.ndarray
    test: np.ndarray


class RidgeFolds:
    """Ridge regression: coef = (X'X + alpha I)^-1 X'y of centred rows, for all alphas."""

    parameter = "alpha"
    _is_balanced = False

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        self.n_points = len(estimators)
        self._alphas = np.array([float(one.alpha) for one in estimators])
        self._rows = rows
        self._n_jobs = n_jobs
        self.n_outputs = self._count_targets()
        self._has_scales = scaler is not None and bool(scaler.with_std)
        fit_intercept = bool(estimators[0].fit_intercept)
        self._of = RidgeRows(rows, self.n_outputs, self._copy_targets, fit_intercept, scaler)

    @staticmethod
    def why_not(estimator: Any, facts: Facts) -> str:
        """Return why an estimator has no exact folds, a clause; "" if it has them."""
        if not np.isscalar(estimator.alpha):
            return "alpha is not one number"
        if estimator.positive:
            return "positive=True has no closed form"
        if estimator.solver not in ("auto", "cholesky", "svd"):
            return f"solver={estimator.solver!r} is iterative"
        if estimator.alpha == 0 and not facts.is_asked:
            return "alpha=0 has no model where columns depend on each other"
        if facts.is_sparse and estimator.solver == "svd":
            return "scikit-learn has no solver='svd' for sparse rows"
        is_iterative = estimator.fit_intercept or estimator.solver == "auto"
        if facts.is_sparse and is_iterative and not facts.is_asked:
            return "for sparse rows scikit-learn takes an iterative solver"
        if facts.n_features > _MOST_COLUMNS:
            return f"X has more than {_MOST_COLUMNS} columns"
        if facts.n_features >= facts.n_trained:
            return "X has more columns than a training set has rows"
        return ""

    def _count_targets(self) -> int:
        return count_targets(self._rows.targets)

    def _copy_targets(self, part: RowNumbers, out: np.ndarray) -> None:
        assert self._rows.targets is not None
        out[:] = self._rows.targets[part].reshape(out.shape)

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return the predictions."""
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def test(self, chunks: Chunks, kept: Kept, most_rows: int) -> Iterator[Tested]:
        """Test each chunk with models that are trained on its training rows."""
        are_single, are_small = chunks.are_single_rows, self._are_small(chunks)
        if (are_single or are_small) and not self._is_balanced:
            left_out = LeftOut(self._of, self._alphas, chunks, kept, self._n_jobs)
            test = left_out.single_rows if are_single else left_out.small_chunks
            yield from test(most_rows)
            return
        groups = self._records(chunks, kept, most_rows, with_test=False)
        yield from in_order(self._n_jobs, partial(self._test, chunks), groups)

    def _are_small(self, chunks: Chunks) -> bool:
        """Return whether leaving chunks out of all rows takes less time than a model for each."""
        if chunks.trains is not None or chunks.bounds[0] or self._has_scales:
            return False
        if self._of.has_centre and not self._of.fit_intercept:  # each chunk changes the mean
            return False
        return bool(np.mean(chunks.sizes) < self._rows.n_features / _COLUMNS_PER_SMALL_ROW)

    def squares(self, chunks: Chunks, kept: Kept) -> Squares | None:
        """Return the sums of squared errors, from the moments of the test rows.

        None where they would be small differences of large sums.
        """
        shape = (chunks.n_chunks, self.n_points, self.n_outputs)
        errors, totals, weights = np.empty(shape), np.empty(shape[::2]), np.empty(shape[0])
        most_rows = int(chunks.bounds[-1])  # none is read, so that memory alone limits groups
        for first, records in self._records(chunks, kept, most_rows, with_test=True):
            found = self._squares(chunks, first, records)
            if found is None:
                return None
            part = slice(first, first + len(records))
            errors[part], totals[part], weights[part] = found
        return Squares(errors.transpose(1, 0, 2), totals, weights)

    def _squares(
        self, chunks: Chunks, first: int, records: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return y'y - 2 w'X'y + w'X'Xw about the mean, plus the square of the mean error.

        All folds of a group are computed at once, (n_folds, n_points, n_targets).
        """
        d, n_columns, n_folds = self._rows.n_features, self._n_columns, len(records)
        folds = [self._fold_of(record) for record in records]
        coef = np.stack([self._coef(fold, chunks, first + i) for i, fold in enumerate(folds)])
        tests = records[:, -self._n_test :]
        weights, scatters = tests[:, 0], tests[:, 1 + n_columns :]
        scatters = scatters.reshape(n_folds, n_columns, n_columns)
        steps = tests[:, 1 : 1 + n_columns] - np.stack([fold.origin for fold in folds])
        shape = (n_folds, self.n_points, self.n_outputs)
        products = scatters[:, :d, :d] @ coef
        products -= np.tile(2 * scatters[:, :d, d:], self.n_points)
        totals = np.diagonal(scatters, axis1=1, axis2=2)[:, d:]
        errors = np.einsum("kij,kij->kj", coef, products).reshape(shape) + totals[:, None]
        of_means = steps[:, None, d:] - (steps[:, None, :d] @ coef).reshape(shape)
        errors += weights[:, None, None] * np.square(of_means)
        least = _LEAST_SHARE * (totals + weights[:, None] * np.square(steps[:, d:]))
        return None if np.any(errors < least[:, None]) else (errors, totals, weights)

    def _coef(self, fold: _Fold, chunks: Chunks, chunk: int) -> np.ndarray:
        """Return the coefficients of all points side by side, (d, n_points * n_targets)."""
        solved = fold.equations.solve(self._alphas)
        if np.isnan(solved.sum()) and np.all(np.isfinite(fold.equations.gram)):
            failed = np.isnan(solved).any(axis=(1, 2))
            if np.any(self._alphas[failed] == 0):
                raise singular_error("a training set")
            parts = chunks.train_parts(chunk)
            solved[failed] = self._from_rows(fold, parts, self._alphas[failed])
        return solved.transpose(1, 0, 2).reshape(len(fold.scale), -1) / fold.scale[:, None]

    def _from_rows(
        self, fold: _Fold, train_parts: list[RowNumbers], alphas: np.ndarray
    ) -> np.ndarray:
        """Solve a fold whose moments have lost too many digits."""
        return solve_from_rows(self._of, train_parts, fold.origin, fold.scale, alphas)

    def _test(self, chunks: Chunks, group: tuple[int, np.ndarray]) -> Tested:
        """Return what the models of a group of folds say of their test rows."""
        first, folds = group[0], [self._fold_of(record) for record in group[1]]
        last = first + len(folds)
        start, stop = chunks.bounds[first], chunks.bounds[last]
        d = self._rows.n_features
        outputs = np.empty((self.n_points, self.n_outputs, stop - start))
        buffer = np.empty((min(_ROWS, stop - start), d))
        end = 0
        for chunk, fold in enumerate(folds, first):
            coef = np.ascontiguousarray(self._coef(fold, chunks, chunk).T)
            origin = fold.origin[d:, None]
            for some in blocks(chunks.test_rows(chunk, chunk + 1), _ROWS):
                block = buffer[: n_rows_of(some)]
                copy_rows(self._rows, some, block)
                if self._of.has_centre:
                    block -= fold.origin[:d]
                begin, end = end, end + len(block)
                said = (coef @ block.T).reshape(self.n_points, self.n_outputs, -1)
                np.add(said, origin, out=outputs[:, :, begin:end])
        return Tested(first, last, outputs.transpose(0, 2, 1))

    def _records(
        self, chunks: Chunks, kept: Kept, most_rows: int, with_test: bool
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of the first and the records of each group of chunks."""
        size = self._size(with_test)
        name = "folds with their test rows" if with_test else "folds"
        make = partial(self._factored, chunks, size, with_test)
        yield from records_in_groups(chunks, kept, name, size, make, most_rows)

    def _size(self, with_test: bool) -> int:
        """Return the numbers of a record."""
        d = self._rows.n_features
        size = Penalties.size(d, self.n_outputs) + self._n_columns + d
        return size + self._n_test if with_test else size

    @property
    def _n_test(self) -> int:
        """The numbers of the moments of a fold's test rows."""
        return 1 + self._n_columns + self._n_columns**2

    @property
    def _n_columns(self) -> int:
        return self._rows.n_features + self.n_outputs

    def _fold_of(self, record: np.ndarray) -> _Fold:
        """Return the parts of a record."""
        d = self._rows.n_features
        n_equations = Penalties.size(d, self.n_outputs)
        n_test = len(record) - n_equations - self._n_columns - d
        equations, origin, scale, test = views(record, [n_equations, self._n_columns, d, n_test])
        return _Fold(Penalties(equations, d, self.n_outputs), origin, scale, test)

    def _factored(self, chunks: Chunks, size: int, with_test: bool) -> Iterator[np.ndarray]:
        """Yield the record of each fold."""
        sums = self._sums(chunks, with_test)
        yield from in_order(self._n_jobs, partial(self._factor, size), sums)

    def _sums(self, chunks: Chunks, with_test: bool) -> Iterator[FoldSums[Moments]]:
        """Yield the moments of each fold's training rows."""
        n_bytes = 8 * self._n_columns**2
        return training_sums(self._of.moments_of, merge, chunks, n_bytes, self._n_jobs, with_test)

    def _factor(self, size: int, sums: FoldSums[Moments]) -> np.ndarray:
        """Return the record of one fold."""
        record = np.empty(size)
        fold = self._fold_of(record)
        found = equations_of(sums.train, self._of)
        fold.origin[:], fold.scale[:] = found.origin, found.scale
        fold.equations.factor(found.gram, found.b, self._alphas)
        if sums.test is not None:
            fold.test[0] = sums.test.weight
            fold.test[1 : 1 + self._n_columns] = sums.test.mean
            fold.test[1 + self._n_columns :] = sums.test.scatter.ravel()
        return record


class RidgeClassifierFolds(RidgeFolds):
    """``RidgeClassifier``: the largest of the regressions on labels of -1 and 1."""

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        class_weight = estimators[0].class_weight
        self._is_balanced = isinstance(class_weight, str)
        if isinstance(class_weight, dict):
            assert rows.classes is not None
            assert rows.targets is not None
            of_classes = weights_of_classes(class_weight, rows.classes)
            weights = times_classes(rows.weights, of_classes, rows.targets, np.float64)
            rows = replace(rows, weights=weights)
        super().__init__(estimators, rows, scaler, n_jobs)

    @staticmethod
    def why_not(estimator: Any, facts: Facts) -> str:
        """Return why an estimator has no exact folds, a clause; "" if it has them."""
        if estimator.class_weight == "balanced" and facts.n_folds >= facts.n_trained:
            return "class_weight='balanced' changes the weights of all rows for each row left out"
        if facts.n_of_class == 0:
            return "a training set lacks a class"
        return RidgeFolds.why_not(estimator, facts)

    def _count_targets(self) -> int:
        assert self._rows.classes is not None
        n_classes = len(self._rows.classes)
        return 1 if n_classes == 2 else n_classes

    def _copy_targets(self, part: RowNumbers, out: np.ndarray) -> None:
        assert self._rows.targets is not None
        codes = self._rows.targets[part]
        out[:] = -1
        if out.shape[1] == 1:
            out[codes == 1] = 1
        else:
            out[np.arange(len(codes)), codes] = 1

    def _from_rows(
        self, fold: _Fold, train_parts: list[RowNumbers], alphas: np.ndarray
    ) -> np.ndarray:
        """Solve a fold whose moments have lost too many digits."""
        if self._is_balanced:
            raise ValueError(
                "X must have columns that can be told apart in floating point for "
                "class_weight='balanced' with method='exact'; method='fit' would be right."
            )
        return super()._from_rows(fold, train_parts, alphas)

    def _sums(self, chunks: Chunks, with_test: bool) -> Iterator[FoldSums[Moments]]:
        """Yield the moments of each fold's training rows."""
        if not self._is_balanced:
            yield from super()._sums(chunks, with_test)
            return
        assert self._rows.classes is not None
        assert self._rows.targets is not None
        codes, n_classes = self._rows.targets, len(self._rows.classes)

        def sums_of(part: RowNumbers) -> SumsByClass:
            return sums_by_class(codes, part, n_classes, self._of.moments_of)

        n_bytes = 8 * n_classes * self._n_columns**2
        for one in training_sums(sums_of, merge_classes, chunks, n_bytes, self._n_jobs):
            yield FoldSums(one.chunk, balanced(one.train), None)

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return class codes or decision values."""
        if method == "predict":
            is_binary = outputs.shape[1] == 1
            return (outputs[:, 0] > 0).astype(np.intp) if is_binary else largest_class(outputs)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def squares(self, chunks: Chunks, kept: Kept) -> None:
        """Return None: scores of classes are no sums of squares."""
