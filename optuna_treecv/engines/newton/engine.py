"""The engine "newton": generalised linear models of all folds, solved jointly.

Models are solved to convergence, so that ``solver``, ``max_iter`` and ``tol`` have no effect. The
mean test loss of each fold is within 1e-6 of that of the exact minimiser.
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
from optuna_treecv.engines.newton.left_out import RowsOutOfModels
from optuna_treecv.engines.newton.objective import LanePenalties
from optuna_treecv.engines.newton.objective import Objective
from optuna_treecv.engines.newton.objective import one_against_the_rest
from optuna_treecv.engines.newton.objective import select_rows
from optuna_treecv.engines.newton.solver import points_near
from optuna_treecv.engines.newton.solver import solve
from optuna_treecv.engines.newton.terms import cached_spread_in_sets
from optuna_treecv.engines.newton.terms import deviations
from optuna_treecv.engines.newton.terms import Logistic
from optuna_treecv.engines.newton.terms import Multinomial
from optuna_treecv.engines.newton.terms import PredictorLoss
from optuna_treecv.engines.newton.terms import Sets
from optuna_treecv.engines.newton.terms import spread_in_sets
from optuna_treecv.engines.newton.terms import SquaredDistance
from optuna_treecv.engines.newton.terms import Tweedie
from optuna_treecv.engines.newton.wide import tested_by_wide_models
from optuna_treecv.estimators.base import weights_of_classes
from optuna_treecv.numerics.moments import ArrayCache
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import copy_rows
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
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque

# The most folds: each fold and candidate keeps an inverse Hessian, except in leave-one-out.
_MOST_FOLDS = 1000

# With more columns, refits per fold take less time than Hessians.
_MOST_COLUMNS = 1500

# Each pair of outputs has a block of a Hessian. With more coefficients of several outputs, refits
# per fold take less time.
_MOST_COEFFICIENTS = 400

# With more coefficients, Hessians take less time than refits per fold only with this number of
# training rows per coefficient: for a single candidate, and in a search over one output.
_FEW_COEFFICIENTS, _ROWS_PER_COEFFICIENT, _ROWS_PER_COEFFICIENT_IF_SEARCHED = 128, 30, 5

# With more coefficients, leave-one-out is not computed from the model of all rows.
_MOST_COEFFICIENTS_LEAVE_ONE_OUT = 200

# With fewer training rows, refits per fold of several binary models take less time.
_FEW_ROWS = 2000

# The smallest tol for which sums in float32 are exact enough.
_LEAST_TOL = 1e-8


class GLMFolds(Family):
    """Generalised linear models of one class, which differ in one parameter, bound to rows."""

    ignored: tuple[str, ...] = ("solver", "max_iter", "tol")
    maps_need_dense_rows = True

    #: Whether the objective is the mean of losses plus the penalty, instead of the sum.
    has_mean_loss = False

    #: Our loss divided by the estimator's loss.
    loss_share = 1.0

    def _bind(self, estimators: Sequence[Estimator]) -> None:
        self._estimators = estimators
        self._loss = self._make_loss()
        self._intercept_scaling = self.intercept_scaling(estimators[0])
        # A small tol requires sums in float64.
        self._precision = np.float32 if estimators[0].tol >= _LEAST_TOL else np.float64

    @staticmethod
    def intercept_scaling(estimator: Estimator) -> float:
        """Return the divisor of the intercept in the penalty; infinity if it is not penalised.

        Only liblinear penalises it.
        """
        is_penalised = getattr(estimator, "solver", "liblinear") == "liblinear"
        if not (is_penalised and estimator.fit_intercept):
            return np.inf
        return float(estimator.intercept_scaling)

    @abstractmethod
    def _make_loss(self) -> PredictorLoss:
        """Return the loss."""

    def _strengths(self, totals: Array) -> Array:
        """Return the factors of 1/2 |coef|^2, (n_candidates, n_sets), relative to a sum of losses.

        ``totals`` (n_sets,) are the sums of weights of the training sets.
        """
        if self.has_mean_loss:
            return np.outer([float(e.alpha) for e in self._estimators], totals)
        of_points = [self.loss_share / float(estimator.C) for estimator in self._estimators]
        return np.outer(of_points, np.ones_like(totals))

    @classmethod
    def why_not(cls, estimator: Estimator, facts: Facts) -> str:
        """Return the reason why folds are not solved jointly; "" if they are."""
        if getattr(estimator, "warm_start", False):
            return "warm_start is True"
        if facts.n_of_class < 1:
            return "a training set has no row of a class"
        if facts.n_folds > _MOST_FOLDS:
            if facts.n_folds != facts.n_trained + 1 or facts.is_sparse:
                return f"there are more than {_MOST_FOLDS:,} folds"
            if why := cls.why_not_leave_one_out(estimator, None, facts):
                return f"there are more than {_MOST_FOLDS:,} folds, and {why}"
        return "" if cls.may_be_wide(estimator, facts) else _why_wide(facts)

    @classmethod
    def may_be_wide(cls, estimator: Estimator, facts: Facts) -> bool:
        """Return whether X may have too many columns for one Hessian per fold."""
        return False

    @classmethod
    def why_not_leave_one_out(
        cls, estimator: Estimator, scaler: StandardScaler | None, facts: Facts
    ) -> str:
        """Return the reason why leave-one-out models are not computed; "" if they are."""
        if isinstance(getattr(estimator, "class_weight", None), str):
            return "class_weight='balanced' changes the weights of all rows for each held-out row"
        if scaler is not None and (
            facts.has_weights or cls.intercept_scaling(estimator) != np.inf
        ):
            return "a StandardScaler precedes a model with weights or solver='liblinear'"
        if facts.n_features * facts.n_models > _MOST_COEFFICIENTS_LEAVE_ONE_OUT:
            return f"a model has more than {_MOST_COEFFICIENTS_LEAVE_ONE_OUT} coefficients"
        return ""

    def test(self, chunks: Chunks, keep: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Solve for the models of all folds, and yield their predictions of the test rows."""
        rows, n_outputs = self._rows, self._loss.n_outputs
        is_sparse, has_weights = isinstance(rows.X, SparseRows), rows.weights is not None
        facts = Facts(n_features=rows.n_features, n_outputs=n_outputs, has_weights=has_weights)
        if is_sparse and _why_wide(facts) and rows.classes is not None:
            yield from tested_by_wide_models(
                *(rows, chunks, self._loss, self._strengths(np.ones(chunks.n_chunks))),
                self._estimators[0].fit_intercept,
                self._class_weights(chunks, rows.classes),
                self._precision,
            )
        elif (
            chunks.are_single_rows
            and not (rows.maps is not None or is_sparse)
            and not self.why_not_leave_one_out(self._estimators[0], self._scaler, facts)
        ):
            yield slice(0, chunks.n_chunks), self._leave_one_out(chunks.n_rows)
        else:
            yield from self._solved(chunks, keep, most_rows)

    def _leave_one_out(self, n_rows: int) -> Array:
        """Return leave-one-out predictors, (n_candidates, n_rows, n_outputs)."""
        no_folds = Chunks(n_rows, np.array([n_rows]))
        sets = Sets.of(no_folds)
        columns, totals = spread_in_sets(self._rows, sets)
        (objective,) = self._objectives(no_folds, sets, columns)
        penalties = self._penalties(columns, totals, objective)
        changes = self._changes(columns, totals, objective)
        model = np.zeros((objective.n_outputs, objective.width))
        if objective.has_intercept:
            model[:, -1] = self._loss.first(objective.targets, self._rows.weights)
        outputs = np.empty((self.n_candidates, n_rows, objective.n_outputs))
        is_lost = np.zeros(n_rows, bool)
        order = np.argsort(-penalties.of_columns.sum(axis=(1, 2)), kind="stable")
        near = points_near(objective, penalties[order, -1], model)
        for point, (model, *_) in zip(order, near, strict=True):
            left_out = RowsOutOfModels(objective, penalties[point], changes)
            left_out.descend(model)
            outputs[point], are_lost = left_out.outputs()
            is_lost |= are_lost
        lost = np.flatnonzero(is_lost)
        if len(lost) > _MOST_FOLDS:
            outputs[:, lost] = np.nan
        elif len(lost):
            order = np.concatenate([np.flatnonzero(~is_lost), lost])
            family = type(self)(self._estimators, select_rows(self._rows, order), self._scaler, 1)
            folds = Chunks(n_rows, np.arange(n_rows - len(lost), n_rows + 1))
            ((_, outputs[:, lost]),) = family._solved(folds, CachedSums(), len(lost))
        return outputs

    def _changes(
        self, columns: Spread, totals: Array, objective: Objective
    ) -> Callable[[RowIndices, Array], Array] | None:
        """Return the ``changes`` of ``RowsOutOfModels``: those of penalties without each row.

        A StandardScaler learns a smaller variance without a row far from the mean, and for a mean
        loss, the penalty relative to the sum over the remaining rows is smaller.
        """
        n_rows, d, weights = len(objective.targets), self._rows.n_features, self._rows.weights
        has_scales = self._scaler is not None and self._scaler.with_std
        if not has_scales and not self.has_mean_loss:
            return None
        at = (columns.mean[0] - objective.centre) / objective.scale
        spread = deviations(columns)[0] / objective.scale

        def changes(part: RowIndices, X: Array) -> Array:
            parts = np.ones_like(X)
            if has_scales:
                squares = np.square((X[:, :d] - at) / spread)
                parts[:, :d] = (1 - squares / (n_rows - 1)) * (n_rows / (n_rows - 1))
            if self.has_mean_loss:
                of_rows = 1.0 if weights is None else weights[part, None]
                parts *= 1 - of_rows / totals[0]
            return parts - 1

        return changes

    def _constants(self, columns: Spread) -> Array:
        """Return the values of constant columns, NaN for other columns."""
        is_constant = columns.low == columns.high
        if not self._estimators[0].fit_intercept:
            is_constant = is_constant & (columns.low == 0)
        return np.where(is_constant, columns.low, np.nan)

    def _solved(self, chunks: Chunks, keep: ArrayCache, most_rows: int) -> Iterator[TestedChunks]:
        """Yield the predictions of the models of all folds for their test rows."""
        models, objective = self.solved(chunks, keep)
        for first, last in chunks.groups(most_rows, chunks.n_chunks):
            parts = [
                objective.predictors(
                    objective.read(x), models[:, chunk], np.full(self.n_candidates, chunk)
                )
                for chunk in range(first, last)
                for x in blocks(chunks.test_rows(chunk, chunk + 1))
            ]
            yield slice(first, last), np.concatenate(parts).transpose(1, 0, 2)

    def solved(self, chunks: Chunks, keep: ArrayCache) -> tuple[Array, Objective]:
        """Return the models of all folds, (n_candidates, n_chunks, n_outputs, width).

        Also return their objective, or the first of several.
        """
        sets = Sets.of(chunks)
        columns, totals = cached_spread_in_sets(self._rows, sets, keep)
        objectives = self._objectives(chunks, sets, columns)
        constants = self._constants(columns)
        penalties = self._penalties(columns, totals, objectives[0])
        solved = []
        for number, objective in enumerate(objectives):

            def keep_of_class(name: str, *what: Opaque, number: int = number) -> Array:
                return keep(f"{name}, class {number}", *what)

            solved.append(solve(objective, penalties, constants, keep_of_class))
        models = np.concatenate(solved, axis=2)  # (n_candidates, n_chunks, n_outputs, width)
        if self._intercept_scaling != np.inf:
            self._share_intercepts(models, columns, objectives[0])
        return models, objectives[0]

    def models_of(self, chunks: Chunks, keep: ArrayCache) -> list[Array]:
        """Return the coefficients of each chunk's models for unscaled columns.

        Each array has the shape (n_candidates, n_outputs, width).
        """
        models, objective = self.solved(chunks, keep)
        d = self._rows.n_features
        models[..., :d] /= objective.scale
        if objective.has_intercept:
            models[..., d] -= models[..., :d] @ objective.centre
        return [*models.transpose(1, 0, 2, 3)]

    def predict(
        self, chunks: Chunks, first: int, last: int, models: Iterable[Array]
    ) -> TestedChunks:
        """Predict the rows of chunks first to last - 1 with coefficients of ``models_of``."""
        d, parts = self._rows.n_features, []
        for chunk, of_chunk in enumerate(models, first):
            for block in blocks(chunks.test_rows(chunk, chunk + 1)):
                X = np.empty((count_rows(block), d))
                copy_rows(self._rows, block, X)
                z = X @ of_chunk[..., :d].reshape(-1, d).T
                parts.append(
                    z.reshape(len(X), *of_chunk.shape[:2]) + of_chunk[..., d:].sum(axis=-1)
                )
        return slice(first, last), np.concatenate(parts).transpose(1, 0, 2)

    def _penalties(self, columns: Spread, totals: Array, objective: Objective) -> LanePenalties:
        """Return the penalties of each point and training set, and last of all rows."""
        strengths = self._strengths(totals)[:, :, None]
        of_columns = strengths * np.square(self._moves(columns)[1] / objective.scale)
        of_intercepts, n = np.zeros_like(of_columns), objective.n_outputs
        if objective.has_intercept:
            of_columns = np.pad(of_columns, ((0, 0), (0, 0), (0, 1)))
            intercepts, _, squares = self._intercepts(columns, objective)
            of_intercepts = np.sqrt(strengths / squares[:, None]) * intercepts
        is_free = np.ones(of_columns.shape, bool)
        is_free[:, :, : self._rows.n_features] = np.isnan(self._constants(columns))
        of_sums = len(objective.targets) / n**2 if n > 1 else 0.0
        return LanePenalties(of_columns, of_intercepts, np.tile(is_free, n), of_sums)

    def _moves(self, columns: Spread) -> tuple[Array, Array]:
        """Return the means and scales by which transformers standardise columns in each set."""
        if (maps := self._rows.maps) is not None:
            # Those of the set of all rows do not matter: its models only start others.
            centre, scale = (np.vstack([x, x[:1]]) for x in (maps.centre, maps.scale))
            return centre, scale
        centre, scale = np.zeros_like(columns.mean), np.ones_like(columns.mean)
        if self._scaler is not None:
            centre = columns.mean if self._scaler.with_mean else centre
            scale = deviations(columns) if self._scaler.with_std else scale
        return centre, scale

    def _intercepts(self, columns: Spread, objective: Objective) -> tuple[Array, Array, Array]:
        """Return the factors of intercepts in each training set, (n_chunks + 1, width).

        Intercepts are sums over the coefficients of centred columns. Constant columns are like
        further intercepts. Their values follow, 0 for other columns, and the square by which
        liblinear divides the penalty of all of them.
        """
        shift, scale = self._moves(columns)
        intercepts = np.pad((shift - objective.centre) / objective.scale, ((0, 0), (0, 1)))
        intercepts[:, -1] = 1
        numbers = np.where(columns.low == columns.high, (columns.low - shift) / scale, 0)
        squares = self._intercept_scaling**2 + np.square(numbers).sum(axis=1)
        return intercepts, numbers, squares

    def _share_intercepts(self, models: Array, columns: Spread, objective: Objective) -> None:
        """Split penalised intercepts between intercept and constant columns, as in liblinear."""
        intercepts, numbers, squares = (x[:-1] for x in self._intercepts(columns, objective))
        shares = numbers * objective.scale / squares[:, None]
        at = (columns.low[:-1] - objective.centre) / objective.scale
        totals = np.einsum("pfkw,fw->pfk", models, intercepts)[..., None]
        models[..., :-1] += totals * shares[:, None]
        models[..., -1:] -= totals * np.sum(shares * at, axis=1)[:, None, None]

    def _objectives(self, chunks: Chunks, sets: Sets, columns: Spread) -> list[Objective]:
        """Return the objectives of the models: one for all outputs, or one per class."""
        has_intercept, classes = self._estimators[0].fit_intercept, self._rows.classes
        of_classes = None if classes is None else self._class_weights(chunks, classes)
        codes: list[int | None] = [None]
        if classes is not None and len(classes) not in (2, self._loss.n_outputs):
            codes = [*range(len(classes))]
        objectives = []
        for code in codes:
            rows, weights = self._rows, of_classes
            if code is not None:
                rows = one_against_the_rest(rows, code)
                if weights is not None:  # the rest has no class_weight
                    weights = np.insert(weights[:, [code]], 0, 1, axis=1)
            what = rows, chunks, sets, self._loss, has_intercept, columns, weights
            objectives.append(Objective(*what, self._precision, code))
        return objectives

    def _class_weights(self, chunks: Chunks, classes: Array) -> Array | None:
        """Return the weights of classes (n_chunks + 1, n_classes) in the training sets."""
        class_weight = getattr(self._estimators[0], "class_weight", None)
        if class_weight is None and self._rows.weights is None:
            return None
        of_classes: Array | None = None
        if isinstance(class_weight, dict):
            of_classes = np.tile(
                weights_of_classes(class_weight, classes), (chunks.n_chunks + 1, 1)
            )
        k, codes, weights = len(classes), self._rows.targets, self._rows.weights
        assert codes is not None
        sets: list[list[RowIndices]] = [chunks.train_parts(f) for f in range(chunks.n_chunks)]
        sets.append([slice(0, chunks.n_rows)])
        counts = np.zeros((len(sets), k))
        for of_set, parts in zip(counts, sets, strict=True):
            for part in parts:
                of_set += np.bincount(codes[part], None if weights is None else weights[part], k)
        if isinstance(class_weight, str):
            of_classes = counts.sum(axis=1, keepdims=True) / (k * counts)
        if np.any((counts if of_classes is None else counts * of_classes) == 0):
            raise ValueError(
                "sample_weight and class_weight must give each class a positive total weight in "
                "each training set, but a class has weight 0 in one of them."
            )
        return of_classes


class LogisticFolds(GLMFolds):
    """``LogisticRegression`` with an l2 penalty or none, of all folds and values of C."""

    parameters = ("C",)

    def _make_loss(self) -> PredictorLoss:
        assert self._rows.classes is not None
        n_classes = len(self._rows.classes)
        return Logistic() if n_classes == 2 else Multinomial(n_classes)

    @classmethod
    def why_not(cls, estimator: LogisticRegression, facts: Facts) -> str:
        """Add the reasons that are specific to LogisticRegression."""
        if estimator.penalty not in ("deprecated", "l2") or estimator.l1_ratio not in (0, None):
            return "its penalty is not l2"
        if estimator.solver == "liblinear":
            if facts.n_outputs > 2:
                return "liblinear takes only two classes"
            for name, refused in (("C", np.inf), ("tol", 0)):
                if getattr(estimator, name) == refused:
                    return f"liblinear refuses {name}={refused}"
        elif estimator.dual:
            return "dual is True"
        why = super().why_not(estimator, facts)
        return why or ("" if cls.may_be_wide(estimator, facts) else _why_few_rows(facts))

    @classmethod
    def may_be_wide(cls, estimator: LogisticRegression, facts: Facts) -> bool:
        """Return whether ``wide.py`` can take sparse, unscaled rows with many columns."""
        is_plain = facts.is_sparse and not facts.has_scaler
        is_plain &= cls.intercept_scaling(estimator) == np.inf
        is_plain &= facts.n_features > _MOST_COLUMNS
        return is_plain and (facts.n_trained >= _FEW_ROWS or facts.is_requested)

    def response(self, outputs: Array, method: str) -> Array:
        """Return class codes, decision values or probabilities."""
        if method != "predict_proba":
            return to_predictions(outputs, method)
        if outputs.shape[1] == 1:
            second = 1 / (1 + np.exp(-outputs))
            shares = np.hstack([1 - second, second])  # rounded as in scikit-learn
        else:
            shares = softmax(outputs, axis=1)
        # Log losses are clipped by the eps of the type of X.
        return shares.astype(self._rows.here.X.dtype, copy=False)


class TweedieFolds(GLMFolds):
    """``PoissonRegressor``, ``GammaRegressor`` and ``TweedieRegressor`` of all folds."""

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
        """Add the reasons that are specific to power and link."""
        if facts.n_outputs > 1:
            return "there are several targets"
        if type(estimator) is TweedieRegressor:
            power = estimator.power
            if not isinstance(power, Real):
                return "its power is not a number"
            if estimator.link == "identity" or (estimator.link == "auto" and float(power) <= 0):
                if power != 0:
                    return "its link is the identity, and its power is not 0"
            elif not 1 <= float(power) <= 2:
                return "its loss is not convex for a power outside 1 to 2"
        return super().why_not(estimator, facts)

    def response(self, outputs: Array, method: str) -> Array:
        """Return the predicted means."""
        return outputs[:, 0] if _power(self._estimators[0]) == 0 else np.exp(outputs[:, 0])


class LinearSVMFolds(GLMFolds):
    """``LinearSVC`` and ``LinearSVR`` with squared losses, of all folds and values of C."""

    parameters = ("C",)
    ignored = ("dual", "random_state", "max_iter", "tol")
    loss_share = 0.5

    def _make_loss(self) -> PredictorLoss:
        return SquaredDistance(getattr(self._estimators[0], "epsilon", None))

    @classmethod
    def why_not(cls, estimator: Estimator, facts: Facts) -> str:
        """Add the reasons that are specific to LinearSVC and LinearSVR."""
        if not str(estimator.loss).startswith("squared"):
            return f"loss={estimator.loss!r} is not differentiable"
        if type(estimator) is LinearSVR:
            if facts.n_outputs > 1:
                return "there are several targets"
            if not (isinstance(estimator.epsilon, Real) and float(estimator.epsilon) >= 0):
                return "epsilon is not a number of at least 0"
        else:
            if estimator.penalty != "l2" or estimator.multi_class != "ovr":
                return "its penalty is not l2, or its multi_class is not 'ovr'"
            if facts.n_outputs > 2 and facts.n_trained < _FEW_ROWS and not facts.is_requested:
                return f"refits take less time for fewer than {_FEW_ROWS:,} training rows"
        return super().why_not(estimator, replace(facts, n_outputs=1))

    @classmethod
    def why_not_leave_one_out(
        cls, estimator: Estimator, scaler: StandardScaler | None, facts: Facts
    ) -> str:
        """Also return the reasons of losses that are not twice differentiable."""
        if getattr(estimator, "epsilon", 1) > 0:
            return "its loss is not twice differentiable"
        return super().why_not_leave_one_out(estimator, scaler, facts)

    def response(self, outputs: Array, method: str) -> Array:
        """Return class codes, decision values or predictions."""
        return outputs[:, 0] if self._rows.classes is None else to_predictions(outputs, method)


def _why_wide(facts: Facts) -> str:
    """Return the reason why the model is too wide for a Hessian; "" if it is not."""
    if facts.n_models > 1 and facts.n_features * facts.n_models > _MOST_COEFFICIENTS:
        return f"a model has more than {_MOST_COEFFICIENTS} coefficients"
    if facts.n_features > _MOST_COLUMNS:
        return f"X has more than {_MOST_COLUMNS} columns"
    return ""


def _why_few_rows(facts: Facts) -> str:
    """Return the reason why refits take less time than Newton's method; "" if they do not."""
    n_coefficients, n_each = facts.n_features * facts.n_models, _ROWS_PER_COEFFICIENT
    if facts.is_searched:
        n_each = _ROWS_PER_COEFFICIENT_IF_SEARCHED if facts.n_models == 1 else 0
    is_few = facts.is_requested or n_coefficients <= _FEW_COEFFICIENTS
    if is_few or facts.n_trained >= n_each * n_coefficients:
        return ""
    return f"there are fewer than {n_each} rows for each of {n_coefficients} coefficients"


def _power(estimator: Estimator) -> float:
    """Return the Tweedie power p: the variance is proportional to mean**p."""
    powers = {PoissonRegressor: 1.0, GammaRegressor: 2.0}
    return powers[type(estimator)] if type(estimator) in powers else float(estimator.power)


#: The families of estimators. Subclasses have none, because they may override anything.
FAMILIES: dict[type, type[GLMFolds]] = {
    LogisticRegression: LogisticFolds,
    PoissonRegressor: TweedieFolds,
    GammaRegressor: TweedieFolds,
    TweedieRegressor: TweedieFolds,
    LinearSVC: LinearSVMFolds,
    LinearSVR: LinearSVMFolds,
}


class NewtonPlan(SumsPlan):
    """Models of all folds, solved jointly."""

    name = "newton"
    reason = "the models of all folds are solved jointly"
    reason_not_finite = "Newton's method does not converge in a fold"
    reason_failed = "its folds cannot be solved jointly"
    rereads_rows = True
    families = FAMILIES
    required = "a generalised linear model"
    reason_unsupported = "{} is not a supported generalised linear model"

    why_one_epoch = "its models are solved to convergence, so that more passes do not change them"

    def __init__(self, request: Request, parts: Parts) -> None:
        super().__init__(request, parts)
        self.capabilities = replace(self.capabilities, fold_models=fold_models)

    @classmethod
    def why_not(cls, request: Request, parts: Parts) -> str:
        """Return the reason why folds are not solved jointly; "" if they are."""
        table, last = table_of(request, parts), parts.last
        if isinstance(table, Table) and table.has_maps:
            if table.is_sparse:
                return "a transformer fills in or scales sparse rows per fold"
            if not last.fit_intercept:
                return "a transformer is fitted per fold, and there is no intercept"
        if parts.scaler is not None and parts.scaler.with_mean and not last.fit_intercept:
            return "a StandardScaler is fitted per fold, and there is no intercept"
        if request.cross_validation.n_folds > _MOST_FOLDS:
            facts = Facts(has_weights=request.metadata.weights is not None)
            if isinstance(table, Table) and table.has_maps:
                return f"there are more than {_MOST_FOLDS:,} folds with transformers per fold"
            family = FAMILIES[type(last)]
            if why := family.why_not_leave_one_out(last, parts.scaler, facts):
                return f"there are more than {_MOST_FOLDS:,} folds, and {why}"
        return ""

    def cost(self) -> str:
        """Return the sentence on the cost for ``explain()``."""
        folds = self.request.cross_validation.folds_in_words
        parameters = " and ".join(self.parts.parameters)
        return (
            f"All {folds} start at the solution for all {self.request.data.n_rows:,} rows, "
            f"and all values of {parameters} are solved for in one call."
            f"{describe_ignored(self.parts.family.ignored)}"
        )


def fold_models(plan: NewtonPlan, candidates: Sequence[Candidate], repeat: Repeat) -> list[Array]:
    """Return the models of each fold."""
    family = plan.bind(repeat, plan.rows(repeat), candidates)
    assert isinstance(family, GLMFolds)
    with computing():
        return family.models_of(make_chunks(repeat.cut), CachedSums())
