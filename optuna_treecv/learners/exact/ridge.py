"""Ridge regression, and the classifier that regresses on labels of -1 and 1, from moments."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from optuna_treecv.learners.base import weights_of_classes
from optuna_treecv.learners.exact.equations import Penalties
from optuna_treecv.learners.exact.equations import RidgeRows
from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.learners.exact.family import largest_class
from optuna_treecv.learners.exact.family import MomentFamily
from optuna_treecv.learners.exact.left_out import LeftOut
from optuna_treecv.learners.exact.moments import balanced
from optuna_treecv.learners.exact.moments import Chunks
from optuna_treecv.learners.exact.moments import Keep
from optuna_treecv.learners.exact.moments import Moments
from optuna_treecv.learners.exact.moments import TestedChunks
from optuna_treecv.learners.exact.moments import views
from optuna_treecv.rows.data import times_classes

# Chunks of fewer rows than a quarter of the columns are left out of all rows.
_COLUMNS_PER_SMALL_ROW = 4

# Below this share of a fold's squares, its sum of squared errors is computed from outputs, since
# from moments it would be a small difference of large sums.
_LEAST_SHARE = 1e-4


class RidgeFolds(MomentFamily):
    """Ridge regression: coef = (X'X + alpha I)^-1 X'y of centred rows, for all alphas.

    ``RidgeClassifier`` regresses on labels of -1 and 1, and predicts the largest. A record holds
    the factorised equations, what is subtracted from X and y, and by what X is divided.
    """

    parameters: tuple[str, ...] = ("alpha",)
    rows_at_once = 4096  # of one product with the coefficients of all alphas
    source: RidgeRows

    def _bind(self, estimators: Sequence[Any]) -> None:
        class_weight = getattr(estimators[0], "class_weight", None)
        self._is_balanced, n_groups = isinstance(class_weight, str), 1
        rows = self._rows
        if rows.classes is not None and isinstance(class_weight, dict):
            assert rows.targets is not None
            of_classes = weights_of_classes(class_weight, rows.classes)
            weights = times_classes(rows.weights, of_classes, rows.targets, np.float64)
            self._rows = rows = replace(rows, weights=weights)
        elif rows.classes is not None and self._is_balanced:
            n_groups = len(rows.classes)
        self._alphas = np.array([float(one.alpha) for one in estimators])
        fit_intercept = bool(estimators[0].fit_intercept)
        self.source = RidgeRows(rows, fit_intercept, self._scaler, n_groups)
        self.n_outputs, d = self.source.n_targets, rows.n_features
        self.shapes = [(Penalties.size(d, self.n_outputs),), (self.source.n_columns,), (d,)]

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return why an estimator has no exact folds, a clause; "" if it has them."""
        if getattr(estimator, "class_weight", None) == "balanced":
            if facts.n_folds >= facts.n_trained:
                return (
                    "class_weight='balanced' changes the weights of all rows for each row left out"
                )
        if facts.n_of_class == 0:
            return "a training set lacks a class"
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

    def solve(self, moments: Moments, parts: list[np.ndarray]) -> None:
        """Factorise the equations of one fold."""
        memory, origin, scale = parts
        equations = self.source.equations(balanced(moments) if self._is_balanced else moments)
        origin[:], scale[:] = equations.origin, equations.scale
        penalties = Penalties(memory, len(scale), self.n_outputs)
        penalties.factor(equations.gram, equations.b, self._alphas)

    def models(
        self, parts: list[np.ndarray], chunks: Chunks, chunk: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients of all points one below the other, and what is subtracted."""
        return np.ascontiguousarray(self._coef(parts, chunks, chunk).T), parts[1]

    def _coef(self, parts: list[np.ndarray], chunks: Chunks, chunk: int) -> np.ndarray:
        """Return the coefficients of all points side by side, (d, n_points * n_targets)."""
        memory, origin, scale = parts
        penalties = Penalties(memory, len(scale), self.n_outputs)
        solved = self.source.solve(penalties, self._alphas, chunks, chunk, origin, scale)
        return solved.transpose(1, 0, 2).reshape(len(scale), -1) / scale[:, None]

    def respond(
        self, models: tuple[np.ndarray, np.ndarray], block: np.ndarray, out: np.ndarray
    ) -> None:
        """Write the predictions of rows."""
        (coef, origin), d = models, block.shape[1]
        if self.source.has_centre:
            block -= origin[:d]
        np.add((coef @ block.T).reshape(out.shape), origin[d:, None], out=out)

    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return predictions, class codes or decision values."""
        if method == "predict" and self._rows.classes is not None:
            is_binary = outputs.shape[1] == 1
            return (outputs[:, 0] > 0).astype(np.intp) if is_binary else largest_class(outputs)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def test(self, chunks: Chunks, keep: Keep, most_rows: int) -> Iterator[TestedChunks]:
        """Test each chunk; single rows and small chunks are left out of all rows."""
        has_scales = self._scaler is not None and bool(self._scaler.with_std)
        changes_mean = self.source.has_centre and not self.source.fit_intercept
        are_single = chunks.are_single_rows
        # Leaving these out of all rows takes less time than a model for each.
        are_small = (
            chunks.trains is None
            and not chunks.bounds[0]
            and not (has_scales or changes_mean)
            and np.mean(chunks.sizes) < self._rows.n_features / _COLUMNS_PER_SMALL_ROW
        )
        if (are_single or are_small) and not self._is_balanced and self._rows.maps is None:
            left_out = LeftOut(self.source, self._alphas, chunks, keep, self._n_jobs)
            return left_out.test(most_rows, are_single)
        return super().test(chunks, keep, most_rows)

    def squares(
        self, chunks: Chunks, keep: Keep
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return the sums of squared errors, from the moments of the test rows.

        None where they would be small differences of large sums, and for classes, whose scores are
        no sums of squares.
        """
        if self._rows.classes is not None:
            return None
        shape = (chunks.n_chunks, self.n_points, self.n_outputs)
        errors, totals, weights = np.empty(shape), np.empty(shape[::2]), np.empty(shape[0])
        most_rows = int(chunks.bounds[-1])  # none is read, so that memory alone limits groups
        for first, records in self.records(chunks, keep, most_rows, with_test=True):
            sums = self._squares(chunks, first, records)
            if sums is None:
                return None
            part = slice(first, first + len(records))
            errors[part], totals[part], weights[part] = sums
        return errors.transpose(1, 0, 2), totals, weights

    def _squares(
        self, chunks: Chunks, first: int, records: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return y'y - 2 w'X'y + w'X'Xw about the mean, plus the square of the mean error.

        All folds of a group are computed at once, (n_folds, n_points, n_targets).
        """
        d, n_folds = self._rows.n_features, len(records)
        coef = np.stack(
            [
                self._coef(views(record, self.shapes), chunks, chunk)
                for chunk, record in enumerate(records, first)
            ]
        )
        # Records have no copies of their parts here: a further alpha takes less than 1 ms.
        c, tests = self.source.n_columns, records[:, self.size :]
        weights, means = tests[:, 1], tests[:, 2 : 2 + c]
        scatters = tests[:, 2 + c : 2 + c + c * c].reshape(n_folds, c, c)
        n_equations = self.shapes[0][0]
        steps = means - records[:, n_equations : n_equations + c]
        shape = (n_folds, self.n_points, self.n_outputs)
        products = scatters[:, :d, :d] @ coef
        products -= np.tile(2 * scatters[:, :d, d:], self.n_points)
        totals = np.diagonal(scatters, axis1=1, axis2=2)[:, d:]
        errors = np.einsum("kij,kij->kj", coef, products).reshape(shape) + totals[:, None]
        of_means = steps[:, None, d:] - (steps[:, None, :d] @ coef).reshape(shape)
        errors += weights[:, None, None] * np.square(of_means)
        least = _LEAST_SHARE * (totals + weights[:, None] * np.square(steps[:, d:]))
        return None if np.any(errors < least[:, None]) else (errors, totals, weights)
