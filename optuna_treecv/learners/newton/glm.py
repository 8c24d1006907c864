"""scikit-learn's generalised linear models, and the models of all their folds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import PoissonRegressor

from optuna_treecv.learners.base import weights_of_classes
from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.learners.exact.family import Family
from optuna_treecv.learners.exact.family import largest_class
from optuna_treecv.learners.exact.moments import Chunks
from optuna_treecv.learners.exact.moments import Keep
from optuna_treecv.learners.exact.moments import RowNumbers
from optuna_treecv.learners.exact.moments import TestedChunks
from optuna_treecv.learners.newton.losses import Logistic
from optuna_treecv.learners.newton.losses import Multinomial
from optuna_treecv.learners.newton.losses import Poisson
from optuna_treecv.learners.newton.losses import PredictorLoss
from optuna_treecv.learners.newton.solver import Columns
from optuna_treecv.learners.newton.solver import Objective
from optuna_treecv.learners.newton.solver import solve

# Each fold and value has an inverse Hessian, and each pair of outputs a block of it. Where a model
# has more coefficients, a few fits take less time.
_MOST_FOLDS = 100
_MOST_COEFFICIENTS = 100


class GLMFolds(Family):
    """Generalised linear models of one class, which differ in one parameter, bound to rows."""

    idle = ("solver", "max_iter", "tol")

    def _bind(self, estimators: Sequence[Any]) -> None:
        self._estimators, self._loss = estimators, self._make_loss()

    @abstractmethod
    def _make_loss(self) -> PredictorLoss:
        """Return the loss."""

    @abstractmethod
    def _strengths(self, totals: np.ndarray) -> np.ndarray:
        """Return the penalties of 1/2 |coef|^2 (n_points, n_sets) beside a sum of losses.

        ``totals`` (n_sets,) are the sums of weights of the training sets.
        """

    @classmethod
    def why_not(cls, estimator: Any, facts: Facts) -> str:
        """Return why the folds of an estimator are not solved together, a clause."""
        if estimator.warm_start:
            return "warm_start is True"
        if facts.is_sparse:
            return "X is sparse"
        if facts.n_folds > _MOST_FOLDS:
            return f"there are more than {_MOST_FOLDS} folds"
        if facts.n_features * (facts.n_outputs if facts.n_outputs > 2 else 1) > _MOST_COEFFICIENTS:
            return f"a model has more than {_MOST_COEFFICIENTS} coefficients"
        return ""

    def test(self, chunks: Chunks, keep: Keep, most_rows: int) -> Iterator[TestedChunks]:
        """Solve for the models of all folds, and yield what they say of their test rows."""
        columns = Columns.of(self._rows, chunks)
        objective = self._objective(chunks, columns)
        spread = columns.spread
        if self._scaler is None or not self._scaler.with_std:
            spread = np.ones_like(spread)
        of_columns = np.square(spread / objective.scale)
        penalties = self._strengths(columns.totals)[:, :, None] * of_columns
        if objective.has_intercept:
            penalties = np.pad(penalties, ((0, 0), (0, 0), (0, 1)))
        models = solve(objective, penalties, columns)
        n_points, n_outputs = len(penalties), objective.n_outputs
        for chunk in range(chunks.n_chunks):
            weights = models[:, chunk].reshape(-1, objective.width)
            parts = [
                (X @ weights.T).reshape(-1, n_points, n_outputs)
                for _, X in objective.read(chunks.test_rows(chunk, chunk + 1))
            ]
            yield slice(chunk, chunk + 1), np.concatenate(parts).transpose(1, 0, 2)

    def _objective(self, chunks: Chunks, columns: Columns) -> Objective:
        """Return what the models minimise."""
        estimator = self._estimators[0]
        centre, scale = columns.mean[-1], columns.spread[-1]
        if not estimator.fit_intercept:
            centre = np.zeros_like(centre)
        return Objective(
            self._rows,
            chunks,
            self._loss,
            estimator.fit_intercept,
            centre,
            scale,
            self._class_weights(chunks),
        )

    def _class_weights(self, chunks: Chunks) -> np.ndarray | None:
        """Return the weights of classes (n_chunks + 1, n_classes) in the training sets."""
        class_weight, classes = (
            getattr(self._estimators[0], "class_weight", None),
            self._rows.classes,
        )
        if class_weight is None or classes is None:
            return None
        if not isinstance(class_weight, str):
            of_classes = weights_of_classes(class_weight, classes)
            return np.tile(np.asarray(of_classes, dtype=np.float64), (chunks.n_chunks + 1, 1))
        k, codes, weights = len(classes), self._rows.targets, self._rows.weights
        assert codes is not None
        sets: list[list[RowNumbers]] = [chunks.train_parts(f) for f in range(chunks.n_chunks)]
        sets.append([slice(0, chunks.n_rows)])
        counts = np.zeros((len(sets), k))
        for of_set, parts in zip(counts, sets, strict=True):
            for part in parts:
                of_set += np.bincount(codes[part], None if weights is None else weights[part], k)
        return counts.sum(axis=1, keepdims=True) / (k * counts)


class LogisticFolds(GLMFolds):
    """``LogisticRegression`` with the penalty l2 or none, of all folds and all C."""

    parameters = ("C",)

    def _make_loss(self) -> PredictorLoss:
        assert self._rows.classes is not None
        n_classes = len(self._rows.classes)
        return Logistic() if n_classes == 2 else Multinomial(n_classes)

    def _strengths(self, totals: np.ndarray) -> np.ndarray:
        of_points = np.array([1 / float(one.C) for one in self._estimators])
        return np.tile(of_points[:, None], len(totals))

    @classmethod
    def why_not(cls, estimator: LogisticRegression, facts: Facts) -> str:
        """Return the reasons of a classifier too."""
        if estimator.penalty not in ("deprecated", "l2") or estimator.l1_ratio not in (0, None):
            return "its penalty is not l2 alone"
        if estimator.solver == "liblinear":
            return "liblinear penalises the intercept"
        if estimator.dual:
            return "dual is True"
        if facts.n_of_class < 1:
            return "a training set has no row of a class"
        return super().why_not(estimator, facts)

    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return class codes, decision values or probabilities."""
        is_binary = outputs.shape[1] == 1
        if method == "predict":
            return (outputs[:, 0] > 0).astype(np.intp) if is_binary else largest_class(outputs)
        if method == "decision_function":
            return outputs[:, 0] if is_binary else outputs
        if is_binary:
            return np.column_stack([expit(-outputs[:, 0]), expit(outputs[:, 0])])
        return softmax(outputs, axis=1)


class PoissonFolds(GLMFolds):
    """``PoissonRegressor`` of all folds and all alphas."""

    parameters = ("alpha",)

    def _make_loss(self) -> PredictorLoss:
        return Poisson()

    def _strengths(self, totals: np.ndarray) -> np.ndarray:
        return np.outer([float(one.alpha) for one in self._estimators], totals)

    def response(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Return the expected counts."""
        return np.exp(outputs[:, 0])


#: The families of estimators. A subclass may do something else, so that it has none.
FAMILIES: dict[type, type[Family]] = {
    LogisticRegression: LogisticFolds,
    PoissonRegressor: PoissonFolds,
}
