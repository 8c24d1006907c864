"""Metrics of folds: losses, which a study minimises, and scorers, which it maximises."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import inspect
from math import inf
from operator import attrgetter
from typing import Any

import numpy as np
from sklearn import metrics
from sklearn.base import BaseEstimator
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.metrics import get_scorer
from sklearn.utils import get_tags
from sklearn.utils import Tags
from sklearn.utils.validation import _num_samples

from optuna_treecv.learners.names import METHOD_NAMES
from optuna_treecv.learners.names import name_of


@dataclass(frozen=True)
class Loss:
    """A loss per row; a fold's score is its mean.

    Attributes
    ----------
    name : str
    methods : str
        The method of an estimator that gives the response.
    of_rows : callable
        (response, targets) -> ndarray of shape (rows,), float64. With several targets it is the
        mean over them.
    if_diverged : float
        The score of a fold whose model is not finite.
    row_range : (float, float) or None
        The least and the greatest loss of a row; None unless there are both. ``range_by_name``
        knows which losses are at least 0.
    is_zero_one : bool
        Whether each row scores 0 or 1, and nothing between.
    """

    name: str
    methods: str
    of_rows: Callable[[np.ndarray, Any], np.ndarray]
    if_diverged: float = np.inf
    row_range: tuple[float, float] | None = None
    is_zero_one: bool = False
    direction = "minimize"
    is_mean = True
    is_registered = True


def fold_sizes(begins: np.ndarray, n_rows: int) -> np.ndarray:
    """Return the number of rows of each fold; ``np.diff`` takes longer for few folds."""
    sizes = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
    sizes[-1] = n_rows - begins[-1]
    return sizes


# The losses. Targets of classifiers are class codes.


def _error(predicted: np.ndarray, codes: np.ndarray) -> np.ndarray:
    return (predicted != codes).astype(np.float64)


def _hinge(decision: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return max(0, 1 - margin).

    For several classes this is the margin of Crammer & Singer, as in sklearn.metrics.hinge_loss.
    """
    decision = decision.astype(np.float64)
    if decision.ndim == 1:
        return np.maximum(0, 1 - np.where(codes == 1, decision, -decision))
    of_true_class = decision[np.arange(len(codes)), codes]
    others = decision.copy()
    others[np.arange(len(codes)), codes] = -np.inf
    return np.maximum(0, 1 - (of_true_class - others.max(axis=1)))


def _log_loss(probabilities: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return -log p of the true class.

    As in sklearn.metrics.log_loss, p is clipped to [eps, 1 - eps], eps being that of float64.
    """
    p = probabilities[np.arange(len(codes)), codes]
    return -np.log(np.clip(p, np.finfo(np.float64).eps, 1 - np.finfo(np.float64).eps))


def mean_over_targets(errors: np.ndarray) -> np.ndarray:
    """Return an error for each row from (rows,) or (rows, targets)."""
    return errors if errors.ndim == 1 else errors.mean(axis=1)


def _squared_error(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    return mean_over_targets(np.square(predicted.astype(np.float64) - y))


def _absolute_error(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    return mean_over_targets(np.abs(predicted.astype(np.float64) - y))


def _neg_log_density(log_density: np.ndarray, _: Any) -> np.ndarray:
    return -log_density.astype(np.float64)


def _squared_distance(distance: np.ndarray, _: Any) -> np.ndarray:
    return np.square(distance.astype(np.float64))


FOR_CLASSIFIERS = [
    Loss("error", "predict", _error, if_diverged=1.0, row_range=(0.0, 1.0), is_zero_one=True),
    Loss("hinge", "decision_function", _hinge),
    Loss("log_loss", "predict_proba", _log_loss),
]
FOR_REGRESSORS = [
    Loss("squared_error", "predict", _squared_error),
    Loss("absolute_error", "predict", _absolute_error),
]
FOR_CLUSTERERS = [Loss("squared_distance", "distance", _squared_distance)]
FOR_DENSITIES = [Loss("neg_log_density", "score_samples", _neg_log_density)]

LOSSES = {
    loss.name: loss for loss in FOR_CLASSIFIERS + FOR_REGRESSORS + FOR_CLUSTERERS + FOR_DENSITIES
}


_SCORER_EXPECTED = "scoring must be a scorer(estimator, X, y) that returns a number"
_SCORER_ADVICE = "make_scorer(accuracy_score), for example, would be right"
_DICT_ADVICE = "a dict of scorers, each of which returns one number, would be right"


@dataclass(frozen=True)
class Scorer:
    """A scikit-learn scorer, which is called with a fitted estimator.

    Attributes
    ----------
    name : str
    score : callable
        (estimator, X, y) -> float.
    is_registered : bool
        Whether ``name`` is a scorer name of scikit-learn.
    is_made : bool
        Whether ``make_scorer`` of scikit-learn made it. Such a scorer uses nothing of an estimator
        but its predictions.
    methods : str, sequence of str or None
        The method of an estimator that it calls, one of several, or None if unknown.
    is_mean : bool
        Whether the score of several rows is known to be the mean over them, as a loss is.
    is_of_training : bool
        Whether it scores the rows that a model was trained on; folds must be fitted.
    row_range : (float, float) or None
        The least and the largest score of a row; None if there are no such bounds.
    is_zero_one : bool
        Whether each row scores 0 or 1, and nothing between.
    """

    name: str
    score: Callable[..., Any]
    is_registered: bool = False
    is_made: bool = False
    methods: str | Sequence[str] | None = None
    is_mean: bool = False
    is_of_training: bool = False
    row_range: tuple[float, float] | None = None
    is_zero_one: bool = False
    if_diverged = -np.inf
    direction = "maximize"

    @property
    def takes_weights(self) -> bool:
        """Whether it takes the weights of rows."""
        called = getattr(self.score, "_score_func", self.score)
        try:
            parameters = inspect.signature(called).parameters.values()
        except ValueError:  # some compiled callables have no signature
            return True
        takes_any = not self.is_made and any(p.kind == p.VAR_KEYWORD for p in parameters)
        return takes_any or any(p.name == "sample_weight" for p in parameters)


class UndefinedScore(ValueError):
    """A score that is not defined on the rows of a fold."""


class ReturnsSeveral(ValueError):
    """A scorer has returned several scores, which have these names."""

    names: Sequence[str] = ()


@dataclass(frozen=True)
class Pooled:
    """A loss or a scorer that is computed over the out-of-fold outputs of all rows.

    Attributes
    ----------
    of : Loss or Scorer
    """

    of: Loss | Scorer

    @property
    def name(self) -> str:
        return f"pooled_{self.of.name}"

    direction = property(attrgetter("of.direction"))
    if_diverged = property(attrgetter("of.if_diverged"))
    is_registered = property(attrgetter("of.is_registered"))
    methods = property(attrgetter("of.methods"))


#: One thing to score by.
Metric = Loss | Scorer | Pooled


# The metrics of scikit-learn that are means over rows.
_MEANS = (
    metrics.accuracy_score,
    metrics.brier_score_loss,
    metrics.hamming_loss,
    metrics.hinge_loss,
    metrics.log_loss,
    metrics.mean_absolute_error,
    metrics.mean_absolute_percentage_error,
    metrics.mean_gamma_deviance,
    metrics.mean_pinball_loss,
    metrics.mean_poisson_deviance,
    metrics.mean_squared_error,
    metrics.mean_squared_log_error,
    metrics.mean_tweedie_deviance,
    metrics.top_k_accuracy_score,
    metrics.zero_one_loss,
)

# Metrics with an ``average`` that makes them the accuracy.
_ACCURACIES = (
    (metrics.f1_score, "micro"),
    (metrics.precision_score, "micro"),
    (metrics.recall_score, "micro"),
    (metrics.recall_score, "weighted"),
)


def registered_scorer(name: str) -> Scorer:
    """Return a scorer of scikit-learn by its name."""
    scorer = get_scorer(name)
    return Scorer(
        name,
        scorer,
        is_registered=True,
        is_made=True,
        methods=getattr(scorer, "_response_method", None),
        is_mean=_is_mean(scorer),
        row_range=(0.0, 1.0) if name == "accuracy" else None,
        is_zero_one=name == "accuracy",
    )


def own_scorer(score: Callable[..., Any]) -> Scorer:
    """Return a scorer that a user has made.

    Raises
    ------
    ValueError
        If it is a metric, which takes labels and predictions.
    """
    try:
        inspect.signature(score).bind(None, None, None)
    except TypeError as error:
        raise ValueError(f"{_SCORER_EXPECTED}, got {score!r}; {_SCORER_ADVICE}.") from error
    except ValueError:  # some compiled callables have no signature
        pass
    is_made = isinstance(score, type(get_scorer("accuracy")))
    name = getattr(score, "__name__", "scorer")
    methods = getattr(score, "_response_method", None) if is_made else None
    return Scorer(name, score, is_made=is_made, methods=methods, is_mean=_is_mean(score))


def _is_mean(scorer: Any) -> bool:
    """Return whether a scorer made by ``make_scorer`` is known to be a mean over rows."""
    metric, options = getattr(scorer, "_score_func", None), getattr(scorer, "_kwargs", {})
    if (average := options.get("average")) is not None:
        return (metric, average) in _ACCURACIES and "labels" not in options
    return metric in _MEANS and options.get("normalize", True) is True


def score_of(
    scorer: Scorer,
    estimator: Any,
    X: Any,
    y: Any,
    classes: np.ndarray | None,
    params: Mapping[str, Any],
    is_pooled: bool = False,
) -> float:
    """Return a scorer's score of a fitted estimator on a fold.

    Parameters
    ----------
    scorer : Scorer
    estimator : estimator
    X, y : the rows of the fold
    classes : ndarray or None
        The classes of all rows, for classifiers.
    params : dict
        Further arguments of the scorer, such as the rows' ``sample_weight``.
    is_pooled : bool
        Whether the rows are those of all folds.

    Raises
    ------
    ValueError
        If the score is not defined on so few rows or classes, or is no number.
    """
    n_rows = _num_samples(X)
    try:
        if scorer.is_zero_one and not hasattr(estimator, "classes_"):
            # scikit-learn's own accuracy asks classifiers for their classes.
            returned = metrics.accuracy_score(y, estimator.predict(X), **params)
        else:
            returned = scorer.score(estimator, X, y, **params)
    except (TypeError, ValueError) as error:
        is_value = isinstance(error, ValueError)
        if is_value and classes is not None and len(np.unique(y)) < len(classes):
            raise undefined(scorer, str(error), estimator, n_rows, is_pooled) from error
        if not scorer.is_made:  # a user's own scorer may raise what it likes
            raise
        like = estimator.like if isinstance(estimator, StandIn) else estimator
        scored = "all tested rows together" if is_pooled else name_of(like)
        raise ValueError(f"scoring={scorer.name!r} cannot score {scored}: {error}") from error
    try:
        score = float(returned)
    except (TypeError, ValueError) as error:
        message = f"{_SCORER_EXPECTED}, but {scorer.name} returned {returned!r}; "
        if isinstance(returned, Mapping):
            several = ReturnsSeveral(f"{message}{_DICT_ADVICE}.")
            several.names = list(returned)
            raise several from error
        raise ValueError(f"{message}{_SCORER_ADVICE}.") from error
    if np.isnan(score):
        raise undefined(scorer, "NaN", estimator, n_rows, is_pooled)
    return score if np.isfinite(score) else scorer.if_diverged


def undefined(
    scorer: Scorer, what: str, estimator: Any, n_rows: int, is_pooled: bool = False
) -> UndefinedScore:
    """Return the error for rows that are too few or of too few classes for the scorer."""
    loss = "squared_error" if is_regressor(estimator) else "squared_distance"
    if is_classifier(estimator):
        loss = "error"
    if is_pooled:
        return UndefinedScore(
            f"scoring={scorer.name!r} is undefined ({what}) on all {n_rows} tested rows together; "
            f"a loss that is a mean over rows, such as {loss!r}, would be right."
        )
    pooled = f"pooled({scorer.name!r}), " if scorer.is_registered else ""
    return UndefinedScore(
        f"scoring={scorer.name!r} is undefined ({what}) on a fold of {n_rows} row(s); use "
        f"{pooled}a smaller cv, stratified folds, or a loss that is a mean over rows, such as "
        f"{loss!r}."
    )


def response_of(metric: Any, estimator: Any) -> str:
    """Return the response of an estimator that a loss, or a scorer of ``make_scorer``, needs.

    Of several that would do, it is the first one that the estimator has, as in scikit-learn.
    """
    methods = metric.methods
    assert methods is not None
    if isinstance(methods, str):
        return methods
    available = (m for m in methods if hasattr(estimator, METHOD_NAMES.get(m, m)))
    return next(available, methods[0])


class StandIn(BaseEstimator):
    """An estimator that gives known predictions to scorers of ``make_scorer``.

    Parameters
    ----------
    like : estimator
        One of the kind that predicts.
    classes : ndarray or None
    method : str
        The response that the scorers ask of the estimator.
    """

    def __init__(self, like: Any, classes: np.ndarray | None, method: str) -> None:
        self.like = like
        self._tags = get_tags(like)
        self._classes = classes
        self._method = method
        if classes is not None:
            self.classes_ = classes

        def answer(X: Any) -> np.ndarray:
            return self._answer.copy()

        answer.__name__ = METHOD_NAMES.get(method, method)  # scikit-learn looks at it
        setattr(self, answer.__name__, answer)

    def __sklearn_tags__(self) -> Tags:
        return self._tags

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def scored(
        self,
        scorer: Scorer,
        response: np.ndarray,
        targets: np.ndarray | None,
        weights: np.ndarray | None,
        is_pooled: bool = False,
    ) -> float:
        """Return the score of rows.

        Parameters
        ----------
        scorer : Scorer
        response : ndarray of shape (n_rows, ...)
            Class codes in place of labels.
        targets : ndarray of shape (n_rows, ...) or None
            Class codes or numbers.
        weights : ndarray of shape (n_rows,) or None
        is_pooled : bool
            Whether the rows are those of all folds.
        """
        classes = self._classes
        self._answer = response
        if self._method == "predict" and classes is not None:
            self._answer = classes[response.astype(np.intp)]
        y = targets if classes is None or targets is None else classes[targets]
        params = {} if weights is None else {"sample_weight": weights}
        X = np.empty((len(response), 0))
        return score_of(scorer, self, X, y, classes, params, is_pooled=is_pooled)


# Registered scorers between 0 and 1, by the first words of their names.
_BETWEEN_0_AND_1 = (
    *("accuracy", "average_precision", "balanced_accuracy", "f1", "jaccard"),
    *("precision", "recall", "roc_auc", "top_k_accuracy"),
)
_AT_MOST_1 = ("explained_variance", "r2")


def range_of(metric: Any) -> tuple[float, float] | None:
    """Return the bounds of a loss or scorer; None if it has none that are known.

    Parameters
    ----------
    metric : Loss or Scorer
    """
    return range_by_name(metric.name) if metric.is_registered else None


def range_by_name(name: str) -> tuple[float, float] | None:
    """Return the bounds of a loss, or of a scorer of scikit-learn, with this name."""
    if name in LOSSES:
        if name == "neg_log_density":
            return None
        return LOSSES[name].row_range or (0.0, inf)
    if name.startswith(_BETWEEN_0_AND_1):
        return (0.0, 1.0)
    if name in _AT_MOST_1:
        return (-inf, 1.0)
    return (-inf, 0.0) if name.startswith("neg_") else None
