"""The engine "newton": generalised linear models of all folds, solved jointly.

Models are solved to convergence, so ``solver``, ``max_iter`` and ``tol`` have no effect. The mean
test loss of each fold is within 1e-6 of the mean test loss at the exact minimum.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real

import numpy as np
from scipy.special import softmax
from sklearn.linear_model import GammaRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import PoissonRegressor
from sklearn.linear_model import TweedieRegressor
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.svm import LinearSVR

from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.engines.newton.left_out import LeaveOneOutModels
from optuna_treecv.engines.newton.objective import L2Penalties
from optuna_treecv.engines.newton.objective import make_one_vs_rest
from optuna_treecv.engines.newton.objective import Objective
from optuna_treecv.engines.newton.proximal import solve_l1
from optuna_treecv.engines.newton.solver import find_full_models
from optuna_treecv.engines.newton.solver import solve
from optuna_treecv.engines.newton.terms import cached_training_set_statistics
from optuna_treecv.engines.newton.terms import Logistic
from optuna_treecv.engines.newton.terms import Multinomial
from optuna_treecv.engines.newton.terms import PredictorLoss
from optuna_treecv.engines.newton.terms import SquaredDistance
from optuna_treecv.engines.newton.terms import standard_deviations
from optuna_treecv.engines.newton.terms import training_set_statistics
from optuna_treecv.engines.newton.terms import TrainingSets
from optuna_treecv.engines.newton.terms import Tweedie
from optuna_treecv.engines.newton.wide import predict_wide_models
from optuna_treecv.estimators.base import weights_of_classes
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import copy_rows
from optuna_treecv.numerics.moments import select_rows
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.numerics.spread import blocks
from optuna_treecv.numerics.spread import count_rows
from optuna_treecv.numerics.spread import RowIndices
from optuna_treecv.numerics.spread import Spread
from optuna_treecv.plans.family import CachedSums
from optuna_treecv.plans.family import computing
from optuna_treecv.plans.family import describe_ignored
from optuna_treecv.plans.family import Facts
from optuna_treecv.plans.family import Family
from optuna_treecv.plans.family import make_chunks
from optuna_treecv.plans.family import Parts
from optuna_treecv.plans.family import to_predictions
from optuna_treecv.plans.joint import SumsPlan
from optuna_treecv.plans.joint import table_of
from optuna_treecv.preprocessing.fitted import Table
from optuna_treecv.rows.layout import SparseRows
from optuna_treecv.rows.maps import ColumnMaps
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque

# Each fold and candidate of a batch has a factorised Hessian in memory. Leave-one-out of dense
# rows needs none.
_MAX_FOLDS = 1000

# With more columns, refits per fold take less time than Hessians.
_MAX_COLUMNS = 1500

# The same for models with an L1 penalty, which are solved by coordinate descent.
_MAX_COLUMNS_OF_L1 = 400

# A Hessian of several outputs has a block for each pair of outputs. With more coefficients, refits
# per fold take less time.
_MAX_COEFFICIENTS = 3000

# With more coefficients, refits per fold may take less time if there are few training rows.
_MAX_COEFFICIENTS_FOR_FEW_ROWS = 128

# For models with more coefficients than that: the least number of training rows per coefficient
# with which Newton's method takes less time than refits, if a single candidate is evaluated.
_MIN_ROWS_PER_COEFFICIENT = 30

# The same in a search over models with one output.
_MIN_ROWS_PER_COEFFICIENT_IN_SEARCH = 5

# The same for LinearSVC and LinearSVR, whose refits can solve for a coefficient per row instead.
_MIN_ROWS_PER_COEFFICIENT_OF_DUAL = 2

# Models of several classes with more coefficients than this need, in a search, at least this many
# training rows per coefficient, and a fold for each 100 coefficients. Refits take longer with more
# folds, but the Hessian of all rows does not.
_MAX_COEFFICIENTS_OF_FEW_FOLDS = 400
_MIN_ROWS_PER_SHARED_COEFFICIENT, _MAX_COEFFICIENTS_PER_FOLD = 2, 100

# With more coefficients, leave-one-out is not computed from the model of all rows.
_MAX_COEFFICIENTS_LEAVE_ONE_OUT = 200

# With fewer training rows, refits per fold take less time for several one-vs-rest models, and for
# sparse rows with many columns.
_MIN_TRAINING_ROWS = 2000

# With a smaller tol, sums are computed in float64.
_MIN_TOL_FOR_FLOAT32 = 1e-8


class GLMFolds(Family):
    """Candidates of one estimator class that differ in one parameter, bound to rows."""

    ignored: tuple[str, ...] = ("solver", "max_iter", "tol")
    maps_need_dense_rows = True
    is_linear = has_link = True

    #: Whether the estimator minimises the mean of losses plus the penalty, instead of the sum.
    has_mean_loss = False

    #: Our loss divided by the estimator's loss.
    loss_ratio = 1.0

    def _bind(self, estimators: Sequence[Estimator]) -> None:
        self._estimators = estimators
        self._loss = self._make_loss()
        self._intercept_scaling = self.penalised_intercept_scaling(estimators[0])
        is_float32 = estimators[0].tol >= _MIN_TOL_FOR_FLOAT32
        self._precision = np.float32 if is_float32 else np.float64

    @staticmethod
    def penalised_intercept_scaling(estimator: Estimator) -> float:
        """Return ``intercept_scaling`` if the intercept is penalised, or else infinity.

        Only liblinear penalises the intercept, after dividing it by ``intercept_scaling``.
        """
        is_penalised = getattr(estimator, "solver", "liblinear") == "liblinear"
        if not (is_penalised and estimator.fit_intercept):
            return np.inf
        return float(estimator.intercept_scaling)

    @abstractmethod
    def _make_loss(self) -> PredictorLoss:
        """Return the loss."""

    def _l2_strengths(self, totals: Array) -> Array:
        """Return the factors a of the penalty a/2 |coef|^2, (n_candidates, n_sets).

        They refer to an objective with the sum of losses. ``totals`` (n_sets,) are the total
        sample weights of the training sets.
        """
        if self.has_mean_loss:
            return np.outer([float(e.alpha) for e in self._estimators], totals)
        strengths = [self.loss_ratio / float(estimator.C) for estimator in self._estimators]
        return np.outer(strengths, np.ones_like(totals))

    @classmethod
    def why_not(cls, estimator: Estimator, facts: Facts) -> str:
        """Return the reason why folds are not solved jointly; "" if they are."""
        if getattr(estimator, "warm_start", False):
            return "warm_start is True"
        if facts.n_of_class < 1:
            return "a training set has no row of a class"
        if facts.n_folds > _MAX_FOLDS:
            if facts.n_folds != facts.n_trained + 1 or facts.is_sparse:
                return f"there are more than {_MAX_FOLDS:,} folds"
            if reason := cls.why_not_leave_one_out(estimator, None, facts):
                return f"there are more than {_MAX_FOLDS:,} folds, and {reason}"
        return "" if cls.may_be_wide(estimator, facts) else _why_too_wide(facts)

    @classmethod
    def may_be_wide(cls, estimator: Estimator, facts: Facts) -> bool:
        """Return whether the models can be computed without a Hessian, if X has many columns."""
        return False

    @classmethod
    def why_not_leave_one_out(
        cls, estimator: Estimator, scaler: StandardScaler | None, facts: Facts
    ) -> str:
        """Return the reason why ``left_out.py`` cannot compute the models; "" if it can."""
        if isinstance(getattr(estimator, "class_weight", None), str):
            return "class_weight='balanced' changes the weights of all rows for each held-out row"
        has_penalised_intercept = cls.penalised_intercept_scaling(estimator) != np.inf
        if scaler is not None and (facts.has_weights or has_penalised_intercept):
            return "a StandardScaler precedes a model with sample weights or a penalised intercept"
        if facts.n_features * facts.n_models > _MAX_COEFFICIENTS_LEAVE_ONE_OUT:
            return f"a model has more than {_MAX_COEFFICIENTS_LEAVE_ONE_OUT} coefficients"
        return ""

    def test(self, chunks: Chunks, cache: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Solve for the models of all folds, and yield their predictors of the test rows."""
        rows, n_outputs = self._rows, self._loss.n_outputs
        is_sparse, has_weights = isinstance(rows.X, SparseRows), rows.weights is not None
        facts = Facts(n_features=rows.n_features, n_outputs=n_outputs, has_weights=has_weights)
        if is_sparse and _why_too_wide(facts) and rows.classes is not None:
            yield from predict_wide_models(
                *(rows, chunks, self._loss, self._l2_strengths(np.ones(chunks.n_chunks))),
                self._estimators[0].fit_intercept,
                self._class_weights(chunks, rows.classes),
                self._precision,
            )
        elif (
            chunks.are_single_rows
            and not (rows.maps is not None or is_sparse)
            and not self.why_not_leave_one_out(self._estimators[0], self._scaler, facts)
        ):
            yield slice(0, chunks.n_chunks), self._predict_leave_one_out(chunks.n_rows)
        else:
            yield from self._predict_folds(chunks, cache, most_rows)

    def _predict_leave_one_out(self, n_rows: int) -> Array:
        """Return the leave-one-out predictors, (n_candidates, n_rows, n_outputs)."""
        no_folds = Chunks(n_rows, np.array([n_rows]))
        sets = TrainingSets.from_chunks(no_folds)
        columns, totals = training_set_statistics(self._rows, sets)
        (objective,) = self._objectives(no_folds, sets, columns)
        penalties = self._penalties(columns, totals, objective)
        penalty_changes = self._relative_penalty_changes(columns, totals, objective)
        model = np.zeros((objective.n_outputs, objective.width))
        if objective.has_intercept:
            weights = self._rows.weights
            model[:, -1] = self._loss.initial_intercepts(objective.targets, weights)
        predictors = np.empty((self.n_candidates, n_rows, objective.n_outputs))
        needs_fold = np.zeros(n_rows, bool)
        order = np.argsort(-penalties.column_strengths.sum(axis=(1, 2)), kind="stable")
        full_models = find_full_models(objective, penalties[order, -1], model)
        for candidate, (model, *_) in zip(order, full_models, strict=True):
            models = LeaveOneOutModels(objective, penalties[candidate], penalty_changes)
            models.fit_full_model(model)
            predictors[candidate], not_found = models.predict()
            needs_fold |= not_found
        remaining = np.flatnonzero(needs_fold)
        if len(remaining) > _MAX_FOLDS:
            predictors[:, remaining] = np.nan
        elif len(remaining):
            order = np.concatenate([np.flatnonzero(~needs_fold), remaining])
            family = type(self)(self._estimators, select_rows(self._rows, order), self._scaler, 1)
            folds = Chunks(n_rows, np.arange(n_rows - len(remaining), n_rows + 1))
            predicted = family._predict_folds(folds, CachedSums(), len(remaining))
            ((_, predictors[:, remaining]),) = predicted
        return predictors

    def _relative_penalty_changes(
        self, columns: Spread, totals: Array, objective: Objective
    ) -> Callable[[RowIndices, Array], Array] | None:
        """Return the argument ``relative_penalty_changes`` of ``LeaveOneOutModels``.

        Without a row far from the mean, a StandardScaler learns a smaller variance. If the
        estimator minimises the mean of losses, the equivalent penalty on their sum is alpha times
        the total weight, which becomes smaller when a row is left out. None if neither applies.
        """
        n_rows, d, weights = len(objective.targets), self._rows.n_features, self._rows.weights
        has_scales = self._scaler is not None and self._scaler.with_std
        if not has_scales and not self.has_mean_loss:
            return None
        mean = (columns.mean[0] - objective.centre) / objective.scale
        deviation = standard_deviations(columns)[0] / objective.scale

        def compute_changes(indices: RowIndices, X: Array) -> Array:
            ratios = np.ones_like(X)
            if has_scales:
                squares = np.square((X[:, :d] - mean) / deviation)
                ratios[:, :d] = (1 - squares / (n_rows - 1)) * (n_rows / (n_rows - 1))
            if self.has_mean_loss:
                row_weights = 1.0 if weights is None else weights[indices, None]
                ratios *= 1 - row_weights / totals[0]
            return ratios - 1

        return compute_changes

    def _constants(self, columns: Spread) -> Array:
        """Return the values of constant columns, NaN for other columns.

        Without an intercept, only columns of zeros count as constant.
        """
        is_constant = columns.low == columns.high
        if not self._estimators[0].fit_intercept:
            is_constant = is_constant & (columns.low == 0)
        return np.where(is_constant, columns.low, np.nan)

    def _predict_folds(
        self, chunks: Chunks, cache: ArrayCache, most_rows: int
    ) -> Iterator[TestedChunks]:
        """Solve for the models of all folds, and yield the predictors of their test rows."""
        models, objective = self._solve_models(chunks, cache)
        for first, last in chunks.groups(most_rows, chunks.n_chunks):
            predictors = [
                objective.predictors(
                    objective.read(indices), models[:, chunk], np.full(self.n_candidates, chunk)
                )
                for chunk in range(first, last)
                for indices in blocks(chunks.test_rows(chunk, chunk + 1))
            ]
            yield slice(first, last), np.concatenate(predictors).transpose(1, 0, 2)

    def _solve_models(self, chunks: Chunks, cache: ArrayCache) -> tuple[Array, Objective]:
        """Return the models of all folds, and their objective; if there are several, the first.

        The models are of shape (n_candidates, n_chunks, n_outputs, width).
        """
        sets = TrainingSets.from_chunks(chunks)
        columns, totals = cached_training_set_statistics(self._rows, sets, cache)
        objectives = self._objectives(chunks, sets, columns)
        constants = self._constants(columns)
        penalties = self._penalties(columns, totals, objectives[0])
        l1 = self._l1_strengths(columns, objectives[0])
        solutions = []
        for code, objective in enumerate(objectives):

            def class_cache(name: str, *arguments: Opaque, code: int = code) -> Array:
                return cache(f"{name}, class {code}", *arguments)

            if l1 is None:
                solutions.append(solve(objective, penalties, constants, class_cache))
            else:
                solutions.append(solve_l1(objective, penalties, l1, constants))
        models = np.concatenate(solutions, axis=2)
        if self._intercept_scaling != np.inf:
            self._share_intercepts(models, columns, objectives[0])
        return models, objectives[0]

    def models_of(self, chunks: Chunks, cache: ArrayCache) -> list[Array]:
        """Return the coefficients of each chunk's models for the original columns.

        Each array has the shape (n_candidates, n_outputs, width).
        """
        models, objective = self._solve_models(chunks, cache)
        d = self._rows.n_features
        models[..., :d] /= objective.scale
        if objective.has_intercept:
            models[..., d] -= models[..., :d] @ objective.centre
        return [*models.transpose(1, 0, 2, 3)]

    def linear_models(self, chunks: Chunks, cached: ArrayCache) -> tuple[Array, Array]:
        """Return the coefficients and the intercepts of the first candidate."""
        models, d = np.array([of_all[0] for of_all in self.models_of(chunks, cached)]), self._rows
        return models[..., : d.n_features], models[..., d.n_features :].sum(axis=-1)

    def predict(
        self, chunks: Chunks, first: int, last: int, models: Iterable[Array]
    ) -> TestedChunks:
        """Predict the test rows of chunks first to last - 1 by models from ``models_of``."""
        d, predictors = self._rows.n_features, []
        for chunk, coefficients in enumerate(models, first):
            for indices in blocks(chunks.test_rows(chunk, chunk + 1)):
                X = np.empty((count_rows(indices), d))
                copy_rows(self._rows, indices, X)
                z = X @ coefficients[..., :d].reshape(-1, d).T
                intercepts = coefficients[..., d:].sum(axis=-1)
                predictors.append(z.reshape(len(X), *coefficients.shape[:2]) + intercepts)
        return slice(first, last), np.concatenate(predictors).transpose(1, 0, 2)

    def _l1_strengths(self, columns: Spread, objective: Objective) -> Array | None:
        """Return the L1 penalties of each candidate and training set, or None without any."""
        return None

    def _penalties(self, columns: Spread, totals: Array, objective: Objective) -> L2Penalties:
        """Return the penalties of each candidate and training set; the last set has all rows."""
        strengths = self._l2_strengths(totals)[:, :, None]
        _, scales = self._scaler_statistics(columns)
        column_strengths = strengths * np.square(scales / objective.scale)
        intercept_weights, n = np.zeros_like(column_strengths), objective.n_outputs
        if objective.has_intercept:
            column_strengths = np.pad(column_strengths, ((0, 0), (0, 0), (0, 1)))
            weights, _, squares = self._intercept_terms(columns, objective)
            intercept_weights = np.sqrt(strengths / squares[:, None]) * weights
        is_free = np.ones(column_strengths.shape, bool)
        is_free[:, :, : self._rows.n_features] = np.isnan(self._constants(columns))
        if self.column_masks is not None:
            is_free[:, :, : self._rows.n_features] &= self.column_masks[:, None]
        sum_strength = len(objective.targets) / n**2 if n > 1 else 0.0
        return L2Penalties(column_strengths, intercept_weights, np.tile(is_free, n), sum_strength)

    def _scaler_statistics(self, columns: Spread) -> tuple[Array, Array]:
        """Return the mean and scale by which the transformers of each set standardise columns.

        Both have the shape (n_chunks + 1, n_features).
        """
        if (maps := self._rows.maps) is not None:
            assert isinstance(maps, ColumnMaps)
            # Any values will do for the set of all rows, because its models are only starts.
            centre, scale = (np.vstack([x, x[:1]]) for x in (maps.centre, maps.scale))
            return centre, scale
        centre, scale = np.zeros_like(columns.mean), np.ones_like(columns.mean)
        if self._scaler is not None:
            centre = columns.mean if self._scaler.with_mean else centre
            scale = standard_deviations(columns) if self._scaler.with_std else scale
        return centre, scale

    def _intercept_terms(
        self, columns: Spread, objective: Objective
    ) -> tuple[Array, Array, Array]:
        """Return the terms that define the penalised intercept of each training set.

        The columns of the objective are centred by the mean of all rows. The intercept for the
        columns as the estimator gets them is therefore a linear combination of all coefficients,
        with ``weights``. In liblinear, a constant column acts as a further intercept.

        Returns
        -------
        weights : ndarray of shape (n_chunks + 1, width)
        constants : ndarray of shape (n_chunks + 1, n_features)
            The standardised values of constant columns, 0 for other columns.
        squares : ndarray of shape (n_chunks + 1,)
            The divisor of the squared intercept in the penalty: the sum of the squares of
            ``intercept_scaling`` and the constants.
        """
        centre, scale = self._scaler_statistics(columns)
        weights = np.pad((centre - objective.centre) / objective.scale, ((0, 0), (0, 1)))
        weights[:, -1] = 1
        constants = np.where(columns.low == columns.high, (columns.low - centre) / scale, 0)
        squares = self._intercept_scaling**2 + np.square(constants).sum(axis=1)
        return weights, constants, squares

    def _share_intercepts(self, models: Array, columns: Spread, objective: Objective) -> None:
        """Split penalised intercepts between intercept and constant columns, as in liblinear."""
        weights, constants, squares = (x[:-1] for x in self._intercept_terms(columns, objective))
        coefficients = constants * objective.scale / squares[:, None]
        values = (columns.low[:-1] - objective.centre) / objective.scale
        intercepts = np.einsum("pfkw,fw->pfk", models, weights)[..., None]
        models[..., :-1] += intercepts * coefficients[:, None]
        models[..., -1:] -= intercepts * np.sum(coefficients * values, axis=1)[:, None, None]

    def _objectives(self, chunks: Chunks, sets: TrainingSets, columns: Spread) -> list[Objective]:
        """Return one objective for all outputs, or one per class for one-vs-rest models."""
        has_intercept, classes = self._estimators[0].fit_intercept, self._rows.classes
        class_weights = None if classes is None else self._class_weights(chunks, classes)
        codes: list[int | None] = [None]
        if classes is not None and len(classes) not in (2, self._loss.n_outputs):
            codes = [*range(len(classes))]
        objectives = []
        for code in codes:
            rows, weights = self._rows, class_weights
            if code is not None:
                rows = make_one_vs_rest(rows, code)
                if weights is not None:  # the other classes have the weight 1
                    weights = np.insert(weights[:, [code]], 0, 1, axis=1)
            data = rows, chunks, sets, self._loss, has_intercept, columns, weights
            objectives.append(Objective(*data, self._precision, code))
        return objectives

    def _class_weights(self, chunks: Chunks, classes: Array) -> Array | None:
        """Return the weight of each class in each training set, or None without class weights.

        The shape is (n_chunks + 1, n_classes).

        Raises
        ------
        ValueError
            If all rows of a class in a training set have the weight 0.
        """
        class_weight = getattr(self._estimators[0], "class_weight", None)
        if class_weight is None and self._rows.weights is None:
            return None
        class_weights: Array | None = None
        if isinstance(class_weight, dict):
            class_weights = np.tile(
                weights_of_classes(class_weight, classes), (chunks.n_chunks + 1, 1)
            )
        k, codes, weights = len(classes), self._rows.targets, self._rows.weights
        assert codes is not None
        sets: list[list[RowIndices]] = [chunks.train_parts(f) for f in range(chunks.n_chunks)]
        sets.append([slice(0, chunks.n_rows)])
        totals = np.zeros((len(sets), k))
        for set_totals, parts in zip(totals, sets, strict=True):
            for part in parts:
                part_weights = None if weights is None else weights[part]
                set_totals += np.bincount(codes[part], part_weights, k)
        if isinstance(class_weight, str):
            class_weights = totals.sum(axis=1, keepdims=True) / (k * totals)
        if np.any((totals if class_weights is None else totals * class_weights) == 0):
            raise ValueError(
                "sample_weight and class_weight must give each class a positive total weight in "
                "each training set, but a class has weight 0 in one of them."
            )
        return class_weights


class LogisticFolds(GLMFolds):
    """``LogisticRegression`` for all folds and values of C and, with two classes, l1_ratio."""

    parameters = ("C", "l1_ratio")

    def _make_loss(self) -> PredictorLoss:
        assert self._rows.classes is not None
        n_classes = len(self._rows.classes)
        return Logistic() if n_classes == 2 else Multinomial(n_classes)

    @classmethod
    def why_not(cls, estimator: LogisticRegression, facts: Facts) -> str:
        """Extend the reasons of the base class by those specific to LogisticRegression."""
        if estimator.penalty not in ("deprecated", "l2", "l1", "elasticnet"):
            return "its penalty is None"
        if _l1_ratio(estimator) > 0 and (reason := _why_not_l1(estimator, facts)):
            return reason
        if estimator.solver == "liblinear":
            if facts.n_outputs > 2:
                return "solver='liblinear' supports only two classes"
            for name, value in (("C", np.inf), ("tol", 0)):
                if getattr(estimator, name) == value:
                    return f"solver='liblinear' does not support {name}={value}"
        elif estimator.dual:
            return "dual is True"
        reason = super().why_not(estimator, facts)
        return reason or ("" if cls.may_be_wide(estimator, facts) else _why_too_few_rows(facts))

    def _l2_strengths(self, totals: Array) -> Array:
        shares = [1 - _l1_ratio(estimator) for estimator in self._estimators]
        return np.multiply(super()._l2_strengths(totals), np.array(shares)[:, None])

    def _l1_strengths(self, columns: Spread, objective: Objective) -> Array | None:
        ratios = np.array([_l1_ratio(estimator) for estimator in self._estimators])
        if not ratios.any():
            return None
        _, scales = self._scaler_statistics(columns)
        strengths = [ratio / float(e.C) for ratio, e in zip(ratios, self._estimators, strict=True)]
        strengths = np.multiply.outer(strengths, scales / objective.scale)
        return np.pad(strengths, ((0, 0), (0, 0), (0, int(objective.has_intercept))))

    @classmethod
    def may_be_wide(cls, estimator: LogisticRegression, facts: Facts) -> bool:
        """Return whether ``wide.py`` can compute the models, from unscaled sparse rows."""
        return (
            facts.is_sparse
            and not facts.has_scaler
            and cls.penalised_intercept_scaling(estimator) == np.inf
            and facts.n_features > _MAX_COLUMNS
            and (facts.n_trained >= _MIN_TRAINING_ROWS or facts.is_requested)
        )

    def response(self, outputs: Array, method: str) -> Array:
        """Return class codes, decision values or probabilities."""
        if method != "predict_proba":
            return to_predictions(outputs, method)
        if outputs.shape[1] == 1:
            positive = 1 / (1 + np.exp(-outputs))
            probabilities = np.hstack([1 - positive, positive])  # rounded as in scikit-learn
        else:
            probabilities = softmax(outputs, axis=1)
        # As in scikit-learn, log losses are clipped by the eps of the dtype of X.
        return probabilities.astype(self._rows.here.X.dtype, copy=False)


class TweedieFolds(GLMFolds):
    """Poisson, gamma and Tweedie regressors, for all folds and values of alpha."""

    parameters = ("alpha",)
    has_mean_loss = True

    def _make_loss(self) -> PredictorLoss:
        estimator, y = self._estimators[0], self._rows.targets
        power = _power(estimator)
        if power == 0:
            return SquaredDistance(0.0)
        assert y is not None
        if not (np.all(y > 0) if power == 2 else np.all(y >= 0)):
            name = type(estimator).__name__.removesuffix("Regressor")
            raise ValueError(
                f"Some value(s) of y are out of the valid range of the loss 'Half{name}Loss'."
            )
        return Tweedie(power)

    @classmethod
    def why_not(cls, estimator: Estimator, facts: Facts) -> str:
        """Extend the reasons of the base class by those specific to the power and the link."""
        if facts.n_outputs > 1:
            return "there are several targets"
        if type(estimator) is TweedieRegressor:
            power = estimator.power
            if not isinstance(power, Real):
                return "its power is not a number"
            if estimator.link == "identity" or (estimator.link == "auto" and float(power) <= 0):
                if power != 0:
                    return "its link is the identity although its power is not 0"
            elif not 1 <= float(power) <= 2:
                return "its loss is convex only for a power from 1 to 2"
        return super().why_not(estimator, facts)

    def response(self, outputs: Array, method: str) -> Array:
        """Return the predicted means."""
        return outputs[:, 0] if _power(self._estimators[0]) == 0 else np.exp(outputs[:, 0])


class LinearSVMFolds(GLMFolds):
    """``LinearSVC`` and ``LinearSVR`` with squared losses, for all folds and values of C."""

    parameters = ("C",)
    ignored = ("dual", "random_state", "max_iter", "tol")
    loss_ratio = 0.5

    def _make_loss(self) -> PredictorLoss:
        return SquaredDistance(getattr(self._estimators[0], "epsilon", None))

    @classmethod
    def why_not(cls, estimator: Estimator, facts: Facts) -> str:
        """Extend the reasons of the base class by those specific to LinearSVC and LinearSVR."""
        if not str(estimator.loss).startswith("squared"):
            return f"loss={estimator.loss!r} is not differentiable"
        if type(estimator) is LinearSVR:
            if facts.n_outputs > 1:
                return "there are several targets"
            if not (isinstance(estimator.epsilon, Real) and float(estimator.epsilon) >= 0):
                return "epsilon is not a nonnegative number"
        else:
            if estimator.penalty != "l2" or estimator.multi_class != "ovr":
                return "its penalty is not l2, or its multi_class is not 'ovr'"
            is_small = facts.n_outputs > 2 and facts.n_trained < _MIN_TRAINING_ROWS
            if is_small and not facts.is_requested:
                return f"refits take less time for fewer than {_MIN_TRAINING_ROWS:,} training rows"
        facts = replace(facts, n_outputs=1)  # the models are solved separately
        return super().why_not(estimator, facts) or _why_too_few_rows(facts, is_dual=True)

    @classmethod
    def why_not_leave_one_out(
        cls, estimator: Estimator, scaler: StandardScaler | None, facts: Facts
    ) -> str:
        """Extend the reasons of the base class: the loss may not be twice differentiable."""
        if getattr(estimator, "epsilon", 1) > 0:
            return "its loss is not twice differentiable"
        return super().why_not_leave_one_out(estimator, scaler, facts)

    def response(self, outputs: Array, method: str) -> Array:
        """Return class codes, decision values or predictions."""
        return outputs[:, 0] if self._rows.classes is None else to_predictions(outputs, method)


def _l1_ratio(estimator: LogisticRegression) -> float:
    """Return the share of the L1 penalty."""
    if estimator.penalty == "l1":
        return 1.0
    return 0.0 if estimator.penalty == "l2" else float(estimator.l1_ratio or 0)


def _why_not_l1(estimator: LogisticRegression, facts: Facts) -> str:
    """Return the reason why models with an L1 penalty are not solved jointly."""
    if facts.n_outputs > 2:
        return "it has an L1 penalty and more than two classes"
    if estimator.solver not in ("saga", "liblinear"):
        return f"solver={estimator.solver!r} does not support an L1 penalty"
    if estimator.solver == "liblinear" and estimator.fit_intercept:
        return "liblinear penalises the intercept"
    if facts.n_features > _MAX_COLUMNS_OF_L1:
        return f"it has an L1 penalty, and X has more than {_MAX_COLUMNS_OF_L1} columns"
    if facts.n_folds > _MAX_FOLDS:
        return f"it has an L1 penalty, and there are more than {_MAX_FOLDS:,} folds"
    return ""


def _why_too_wide(facts: Facts) -> str:
    """Return the reason why Hessians would take longer than refits; "" if they would not."""
    if facts.n_models > 1 and facts.n_features * facts.n_models > _MAX_COEFFICIENTS:
        return f"a model has more than {_MAX_COEFFICIENTS} coefficients"
    if facts.n_features > _MAX_COLUMNS:
        return f"X has more than {_MAX_COLUMNS} columns"
    return ""


def _why_too_few_rows(facts: Facts, is_dual: bool = False) -> str:
    """Return the reason why refits take less time than Newton's method; "" if they do not."""
    n_coefficients, min_rows = facts.n_features * facts.n_models, _MIN_ROWS_PER_COEFFICIENT
    if is_dual:
        min_rows = _MIN_ROWS_PER_COEFFICIENT_OF_DUAL
    elif facts.is_searched:
        min_rows = _MIN_ROWS_PER_COEFFICIENT_IN_SEARCH if facts.n_models == 1 else 0
        if facts.n_models > 1 and n_coefficients > _MAX_COEFFICIENTS_OF_FEW_FOLDS:
            min_rows = _MIN_ROWS_PER_SHARED_COEFFICIENT
            is_large = n_coefficients > _MAX_COEFFICIENTS_PER_FOLD * facts.n_folds
            if is_large and not facts.is_requested:
                return f"a model has more than {_MAX_COEFFICIENTS_PER_FOLD} coefficients per fold"
    if facts.is_requested or n_coefficients <= _MAX_COEFFICIENTS_FOR_FEW_ROWS:
        return ""
    if facts.n_trained >= min_rows * n_coefficients:
        return ""
    return (
        f"there are fewer than {min_rows} training rows for each of {n_coefficients} coefficients"
    )


def _power(estimator: Estimator) -> float:
    """Return the Tweedie power p, where the variance is proportional to mean**p."""
    powers = {PoissonRegressor: 1.0, GammaRegressor: 2.0}
    return powers[type(estimator)] if type(estimator) in powers else float(estimator.power)


#: The family of each estimator. Subclasses have none, because they may override any method.
FAMILIES: dict[type, type[GLMFolds]] = {
    LogisticRegression: LogisticFolds,
    PoissonRegressor: TweedieFolds,
    GammaRegressor: TweedieFolds,
    TweedieRegressor: TweedieFolds,
    LinearSVC: LinearSVMFolds,
    LinearSVR: LinearSVMFolds,
}


class NewtonPlan(SumsPlan):
    """Models of all folds, solved jointly by Newton's method."""

    name = "newton"
    reason = "the models of all folds are solved jointly"
    reason_not_finite = "Newton's method does not converge in a fold"
    reason_failed = "its folds cannot be solved jointly"
    rereads_rows = True
    families = FAMILIES
    reason_unsupported = "{} is not a supported generalised linear model"

    one_epoch_reason = (
        "its models are solved to convergence, so that more passes do not change them"
    )

    def __init__(self, request: Request, parts: Parts) -> None:
        super().__init__(request, parts)
        self.capabilities = replace(self.capabilities, coefficients=coefficients)

    @classmethod
    def why_not(cls, request: Request, parts: Parts) -> str:
        """Return the reason why folds are not solved jointly; "" if they are."""
        table, last = table_of(request, parts), parts.last
        if isinstance(table, Table) and table.has_maps:
            if table.is_sparse:
                return "a transformer that is fitted per fold imputes or scales sparse rows"
            if not last.fit_intercept:
                return "a transformer is fitted per fold, but fit_intercept is False"
        if parts.scaler is not None and parts.scaler.with_mean and not last.fit_intercept:
            return "a StandardScaler is fitted per fold, but fit_intercept is False"
        if request.cross_validation.n_folds > _MAX_FOLDS:
            facts = Facts(has_weights=request.metadata.weights is not None)
            if isinstance(table, Table) and table.has_maps:
                return f"transformers are fitted on each of more than {_MAX_FOLDS:,} folds"
            family = FAMILIES[type(last)]
            if reason := family.why_not_leave_one_out(last, parts.scaler, facts):
                return f"there are more than {_MAX_FOLDS:,} folds, and {reason}"
        return ""

    def cost(self) -> str:
        """Return the sentences about the cost, for ``explain()``."""
        folds = self.request.cross_validation.folds_in_words
        names, searched = self.parts.parameters, self.request.cross_validation.search.ends
        parameters = " and ".join(
            name for name in names if name in searched or not name.endswith("l1_ratio")
        )
        start = f"All {folds} start from the model of all {self.request.data.n_rows:,} rows"
        if self.parts.linear:
            start = f"The {self.request.data.n_rows:,} rows are transformed once per fold"
        return (
            f"{start}, and all values of {parameters} are computed in one batch."
            f"{describe_ignored(self.parts.family.ignored)}"
        )


def coefficients(plan: NewtonPlan, candidates: Sequence[Candidate], repeat: Repeat) -> list[Array]:
    """Return the coefficients of each fold's models, as ``GLMFolds.models_of``."""
    family = plan.bind(repeat, plan.rows(repeat), candidates)
    assert isinstance(family, GLMFolds)
    with computing():
        return family.models_of(make_chunks(repeat.cut), CachedSums())
