"""Ridge regression, and the classifier that regresses on labels of -1 and 1, from moments."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.base import weights_of_classes
from optuna_treecv.learners.exact.chunks import blocks
from optuna_treecv.learners.exact.chunks import Chunks
from optuna_treecv.learners.exact.chunks import copy_rows
from optuna_treecv.learners.exact.chunks import Facts
from optuna_treecv.learners.exact.chunks import Keep
from optuna_treecv.learners.exact.chunks import n_rows_of
from optuna_treecv.learners.exact.chunks import RowNumbers
from optuna_treecv.learners.exact.chunks import Squares
from optuna_treecv.learners.exact.chunks import Tested
from optuna_treecv.learners.exact.family import Family
from optuna_treecv.learners.exact.family import largest_class
from optuna_treecv.learners.exact.left_out import LeftOut
from optuna_treecv.learners.exact.moments import balanced
from optuna_treecv.learners.exact.moments import Moments
from optuna_treecv.learners.exact.moments import views
from optuna_treecv.learners.exact.penalties import Penalties
from optuna_treecv.learners.exact.ridge_rows import RidgeRows
from optuna_treecv.rows.data import count_targets
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import times_classes

# Chunks of fewer rows than a quarter of the columns are left out of all rows.
_COLUMNS_PER_SMALL_ROW = 4

# The rows of one product with the coefficients of all alphas.
_ROWS = 4096

# Below this share of a fold's squares, its sum of squared errors is computed from outputs, since
# from moments it would be a small difference of large sums.
_LEAST_SHARE = 1e-4


class RidgeFolds(Family):
    """Ridge regression: coef = (X'X + alpha I)^-1 X'y of centred rows, for all alphas."""

    parameter = "alpha"
    _is_balanced = False
    source: RidgeRows

    def __init__(
        self,
        estimators: Sequence[Any],
        rows: PreparedRows,
        scaler: StandardScaler | None,
        n_jobs: int,
    ) -> None:
        super().__init__(estimators, rows, scaler, n_jobs)
        self._alphas = np.array([float(one.alpha) for one in estimators])
        self.n_outputs = self._count_targets()
        self.source = RidgeRows(
            rows,
            self.n_outputs,
            self._copy_targets,
            bool(estimators[0].fit_intercept),
            scaler,
            1 if rows.classes is None or not self._is_balanced else len(rows.classes),
        )
        d = rows.n_features
        self._n_equations = Penalties.size(d, self.n_outputs)
        self.size = self._n_equations + self.source.n_columns + d

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
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
        return super().why_not(estimator, facts)

    def _count_targets(self) -> int:
        return count_targets(self._rows.targets)

    def _copy_targets(self, part: RowNumbers, out: np.ndarray) -> None:
        assert self._rows.targets is not None
        out[:] = self._rows.targets[part].reshape(out.shape)

    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return the predictions."""
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def test(self, chunks: Chunks, keep: Keep, most_rows: int) -> Iterator[Tested]:
        """Test each chunk; single rows and small chunks are left out of all rows."""
        are_single, are_small = chunks.are_single_rows, self._are_small(chunks)
        if (are_single or are_small) and not self._is_balanced:
            left_out = LeftOut(self.source, self._alphas, chunks, keep, self._n_jobs)
            return (left_out.single_rows if are_single else left_out.small_chunks)(most_rows)
        return super().test(chunks, keep, most_rows)

    def _are_small(self, chunks: Chunks) -> bool:
        """Return whether leaving chunks out of all rows takes less time than a model for each."""
        has_scales = self._scaler is not None and self._scaler.with_std
        if chunks.trains is not None or chunks.bounds[0] or has_scales:
            return False
        if self.source.has_centre and not self.source.fit_intercept:
            return False  # each chunk changes the mean
        return bool(np.mean(chunks.sizes) < self._rows.n_features / _COLUMNS_PER_SMALL_ROW)

    def squares(self, chunks: Chunks, keep: Keep) -> Squares | None:
        """Return the sums of squared errors, from the moments of the test rows.

        None where they would be small differences of large sums.
        """
        shape = (chunks.n_chunks, self.n_points, self.n_outputs)
        errors, totals, weights = np.empty(shape), np.empty(shape[::2]), np.empty(shape[0])
        most_rows = int(chunks.bounds[-1])  # none is read, so that memory alone limits groups
        for first, records in self.records(chunks, keep, most_rows, with_test=True):
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
        d, n_folds = self._rows.n_features, len(records)
        coef = np.stack(
            [self._coef(record, chunks.train_parts(i)) for i, record in enumerate(records, first)]
        )
        # Records have no copies of their parts here: a further alpha takes less than 1 ms.
        c, tests = self.source.n_columns, records[:, self.size :]
        weights, means = tests[:, 1], tests[:, 2 : 2 + c]
        scatters = tests[:, 2 + c : 2 + c + c * c].reshape(n_folds, c, c)
        steps = means - records[:, self._n_equations : self._n_equations + c]
        shape = (n_folds, self.n_points, self.n_outputs)
        products = scatters[:, :d, :d] @ coef
        products -= np.tile(2 * scatters[:, :d, d:], self.n_points)
        totals = np.diagonal(scatters, axis1=1, axis2=2)[:, d:]
        errors = np.einsum("kij,kij->kj", coef, products).reshape(shape) + totals[:, None]
        of_means = steps[:, None, d:] - (steps[:, None, :d] @ coef).reshape(shape)
        errors += weights[:, None, None] * np.square(of_means)
        least = _LEAST_SHARE * (totals + weights[:, None] * np.square(steps[:, d:]))
        return None if np.any(errors < least[:, None]) else (errors, totals, weights)

    def _coef(self, record: np.ndarray, trained: list[RowNumbers]) -> np.ndarray:
        """Return the coefficients of all points side by side, (d, n_points * n_targets)."""
        equations, origin, scale = self._views(record)
        solved = equations.solve(self._alphas)
        if np.isnan(solved.sum()) and np.all(np.isfinite(equations.gram)):
            failed = np.isnan(solved).any(axis=(1, 2))
            if self._is_balanced:
                raise ValueError(
                    "X must have columns that can be told apart in floating point for "
                    "class_weight='balanced' with method='exact'; method='fit' would be right."
                )
            solved[failed] = self.source.solve_from_rows(
                trained, origin, scale, self._alphas[failed]
            )
        return solved.transpose(1, 0, 2).reshape(len(scale), -1) / scale[:, None]

    def respond(
        self, record: np.ndarray, part: RowNumbers, trained: list[RowNumbers], out: np.ndarray
    ) -> None:
        """Write the predictions of rows."""
        d, end = self._rows.n_features, 0
        origin = self._views(record)[1]
        coef = np.ascontiguousarray(self._coef(record, trained).T)
        buffer = np.empty((min(_ROWS, n_rows_of(part)), d))
        for some in blocks(part, _ROWS):
            block = buffer[: n_rows_of(some)]
            copy_rows(self._rows, some, block)
            if self.source.has_centre:
                block -= origin[:d]
            begin, end = end, end + len(block)
            outputs = (coef @ block.T).reshape(self.n_points, self.n_outputs, -1)
            np.add(outputs, origin[d:, None], out=out[:, :, begin:end])

    def _views(self, record: np.ndarray) -> tuple[Penalties, np.ndarray, np.ndarray]:
        """Return the equations, what is subtracted from X and y, and by what X is divided."""
        d = self._rows.n_features
        memory, origin, scale = views(record, [self._n_equations, self.source.n_columns, d])
        return Penalties(memory, d, self.n_outputs), origin, scale

    def solve(self, moments: Moments, record: np.ndarray) -> None:
        """Fill the record of one fold: factorised equations."""
        equations, origin, scale = self._views(record)
        found = self.source.equations(balanced(moments) if self._is_balanced else moments)
        origin[:], scale[:] = found.origin, found.scale
        equations.factor(found.gram, found.b, self._alphas)


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

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return why an estimator has no exact folds, a clause; "" if it has them."""
        if estimator.class_weight == "balanced" and facts.n_folds >= facts.n_trained:
            return "class_weight='balanced' changes the weights of all rows for each row left out"
        if facts.n_of_class == 0:
            return "a training set lacks a class"
        return super().why_not(estimator, facts)

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

    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return class codes or decision values."""
        if method == "predict":
            is_binary = outputs.shape[1] == 1
            return (outputs[:, 0] > 0).astype(np.intp) if is_binary else largest_class(outputs)
        return super().response(outputs, method)

    def squares(self, chunks: Chunks, keep: Keep) -> None:
        """Return None: scores of classes are no sums of squares."""
