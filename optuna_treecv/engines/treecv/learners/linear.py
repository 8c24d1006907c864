"""The base classes of linear classifiers and regressors."""

from dataclasses import dataclass
from numbers import Real
from typing import Any
from typing import Literal
from typing import Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _check_partial_fit_first_call

from optuna_treecv.engines.treecv.learners.compiled import FLOATS
from optuna_treecv.engines.treecv.learners.compiled import KernelEstimator
from optuna_treecv.estimators.base import ABOVE_0
from optuna_treecv.estimators.base import AT_LEAST_0
from optuna_treecv.estimators.base import AUTO_OR_ABOVE_0
from optuna_treecv.estimators.base import ScoreMixin
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.checks import as_numbers
from optuna_treecv.rows.checks import distinct_labels
from optuna_treecv.rows.checks import find_classes
from optuna_treecv.rows.checks import in_type
from optuna_treecv.rows.checks import naming
from optuna_treecv.rows.layout import RowLayout


class LinearEstimator(KernelEstimator):
    """A compiled estimator whose model consists of one weight vector per output."""

    _parameter_constraints = {
        **KernelEstimator._parameter_constraints,
        "fit_intercept": ["boolean"],
        "alpha": AT_LEAST_0,
        "epsilon": ABOVE_0,
        "step_size": AUTO_OR_ABOVE_0,
        "radius": [Interval(Real, 0, None, closed="right")],
    }

    is_linear = True
    fit_intercept: bool
    alpha: float
    step_size: float | str
    _target: str  # "class" or "number"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from scratch, in ``n_epochs`` passes.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows. float32 is kept, any other type is converted to float64.
        y : array-like of shape (n_samples,)
            Labels of at least two classes, or targets of a regressor.
        sample_weight : array-like of shape (n_samples,), default=None
            Factors by which the losses of the rows are multiplied, at least 0. If None, all
            factors are 1.

        Returns
        -------
        object
            The fitted estimator.
        """
        return self._fit(X, y, sample_weight, True)

    @property
    def _takes_sparse(self) -> bool:
        """Whether X may be sparse, which mini-batches do not allow."""
        return getattr(self, "batch_size", 1) == 1

    @property
    def row_layout(self) -> RowLayout:
        """The layout in which the learner of this estimator needs its rows."""
        return RowLayout(
            padded=True,
            sparse=self._takes_sparse,
            intercept=bool(self.fit_intercept),
            target=self._target,
        )

    @property
    def _eta(self) -> float:
        """The step size, or 0 for the automatic one."""
        return 0.0 if isinstance(self.step_size, str) else float(self.step_size)

    @property
    def rewrites_often(self) -> bool:
        """Whether training on sparse rows often rewrites all weights.

        The kernel stores the weights with a common scale, which the penalty shrinks. It rewrites
        the weights when the scale falls below 1 / 64. This happens at least every 400 rows or so
        if alpha times the step size is above 0.01, which counts as often. The step size "auto"
        counts as 0.1.
        """
        has_step = "step_size" in self.lane_parameters
        return has_step and float(self.alpha) * (self._eta or 0.1) > 0.01

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._takes_sparse
        return tags

    def _validate(self, X: Any, y: Any, first: bool) -> tuple[Any, Any]:
        """Return validated X and y.

        In later calls of ``partial_fit``, X is converted to the dtype of the first call.
        """
        form = "csr" if self._takes_sparse else False
        dtype = FLOATS if first else self.coef_.dtype
        return self._validated(X, y, accept_sparse=form, dtype=dtype, reset=first)

    def _outputs(self, X: Any) -> np.ndarray:
        """Return X w + intercept, an array of shape (n_samples, n_outputs)."""
        X = self._fitted_rows(X, accept_sparse="csr")
        return X @ np.atleast_2d(self.coef_).T + self.intercept_

    def _set_model(self, kernel: Any, model: np.ndarray, dtype: Any, n_features: int) -> None:
        weights = model.view(dtype).reshape(kernel.n_outputs, -1)
        self.coef_ = weights[:, :n_features].copy()
        self.intercept_ = (
            weights[:, n_features].copy() if self.fit_intercept else np.zeros_like(weights[:, 0])
        )


@dataclass(repr=False, eq=False, kw_only=True)
class LinearClassifier(ScoreMixin, ClassifierMixin, LinearEstimator):
    """A linear classifier with a single output for two classes, else one output per class.

    With two classes, the second one is predicted if the output is above 0. With more classes, the
    class with the largest output is predicted.
    """

    _target = "class"

    class_weight: dict[Any, float] | Literal["balanced"] | None = None
    n_epochs: int = 1

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Continue training, with one pass over these rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows, which are converted to the type of X in the first call.
        y : array-like of shape (n_samples,)
            Labels from ``classes``.
        classes : array-like of shape (n_classes,), default=None
            All classes that can occur; required in the first call.
        sample_weight : array-like of shape (n_samples,), default=None
            Factors by which the losses of the rows are multiplied, at least 0. If None, all
            factors are 1.

        Returns
        -------
        object
            The fitted estimator.
        """
        return self._fit(X, y, sample_weight, False, classes)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the decision values X w + intercept.

        They are the signed distances to the separating hyperplanes times the norm of the weights.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            With two classes, a value above 0 predicts the second one. With more classes, the class
            with the largest value is predicted.
        """
        return self.respond(self._outputs(X), "decision_function")

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted class labels.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels from ``classes_``.
        """
        # Computed before ``classes_`` is read, because ``_outputs`` raises if not fitted.
        codes = self.respond(self._outputs(X), "predict")
        return self.classes_[codes]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # one pass over a small sample
        return tags

    def _fixed(self) -> dict[str, Any]:
        # Only with "balanced" does a state contain the counts of the classes, so training cannot
        # switch to or from it. A dict may change between calls; the new dict applies only to
        # further rows.
        return {**super()._fixed(), "class_weight": self.is_balanced}

    def _read(self, X: Any, y: Any, first: bool, is_fit: bool, classes: Any) -> tuple[Any, Any]:
        X, y = self._validate(X, y, first)
        if is_fit:
            self.classes_ = find_classes(y)
        else:
            self._check_classes(y, classes)
        return X, as_codes(y, self.classes_)

    def _check_classes(self, y: np.ndarray, classes: Any) -> None:
        """Set ``classes_`` in the first call of ``partial_fit``; raise for labels not in it."""
        with naming("classes"):
            _check_partial_fit_first_call(self, classes)
        labels = self.classes_.tolist()
        if self.classes_.dtype.kind in "mM" and np.any(np.isnat(self.classes_)):
            raise ValueError("classes must not hold NaT, which is not a label.")
        if len(labels) < 2:
            raise ValueError(f"classes must hold at least 2 classes, got {labels}.")
        try:
            unknown = np.setdiff1d(y, self.classes_)
        except TypeError:  # labels of different types cannot be compared
            unknown = y
        if len(unknown):
            distinct_labels(y)  # raises if y holds no labels at all
            raise ValueError(
                f"y must hold labels from classes={labels}, got {unknown.tolist()[0]!r}."
            )

    def respond(self, outputs: np.ndarray, method: str) -> np.ndarray:
        """Compute class codes, decision values or probabilities from outputs.

        ``outputs`` have the shape (n_rows, n_outputs).
        """
        is_binary = outputs.shape[1] == 1
        if method == "predict":
            if is_binary:  # a view, not a copy with wider codes
                return (outputs[:, 0] > 0).view(np.int8)
            return outputs.argmax(axis=1).astype(np.int32)
        if method == "predict_proba":
            with np.errstate(over="ignore"):
                p = 1 / (1 + np.exp(-outputs.astype(np.float64)))
            if is_binary:
                return np.hstack([1 - p, p])
            total = p.sum(axis=1, keepdims=True)
            return np.where(total > 0, p / np.where(total > 0, total, 1), 1 / p.shape[1])
        return outputs[:, 0] if is_binary else outputs


class LogisticMixin:
    """Adds ``predict_proba`` to classifiers if their loss is the logistic loss."""

    @available_if(lambda self: self.loss == "log_loss")
    def predict_proba(self: Any, X: Any) -> np.ndarray:
        """Return class probabilities; only available with the logistic loss.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probability of each class. It is 1 / (1 + exp(-d)) with the decision value d of the
            class; with more than two classes, these values are divided by their sum.
        """
        return self.respond(self._outputs(X), "predict_proba")


@dataclass(repr=False, eq=False, kw_only=True)
class LinearRegressor(ScoreMixin, RegressorMixin, LinearEstimator):
    """A linear regressor, whose single output is the predicted target."""

    _target = "number"

    n_epochs: int = 1

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Continue training, with one pass over these rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training rows, which are converted to the type of X in the first call.
        y : array-like of shape (n_samples,)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Factors by which the losses of the rows are multiplied, at least 0. If None, all
            factors are 1.

        Returns
        -------
        object
            The fitted estimator.
        """
        return self._fit(X, y, sample_weight, is_fit=False)

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            X w + intercept.
        """
        return self._outputs(X)[:, 0]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # one pass over a small sample
        return tags

    def _read(self, X: Any, y: Any, first: bool, is_fit: bool, classes: Any) -> tuple[Any, Any]:
        X, y = self._validate(X, y, first)
        return X, in_type(as_numbers(y), X.dtype)

    def _set_model(self, kernel: Any, model: np.ndarray, dtype: Any, n_features: int) -> None:
        super()._set_model(kernel, model, dtype, n_features)
        self.coef_ = self.coef_[0]
