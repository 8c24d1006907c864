"""Metrics: losses, which a study minimises, and scorers, which it maximises.

The scoring of a cross-validation consists of one or several metrics. The optimised ones are
returned by an objective.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from difflib import get_close_matches
import inspect
from math import inf
from operator import attrgetter
from typing import Any

import numpy as np
from sklearn import metrics
from sklearn.metrics import get_scorer
from sklearn.metrics import get_scorer_names
from sklearn.utils import get_tags

from optuna_treecv.estimators.base import METHOD_NAMES
from optuna_treecv.estimators.base import name_of


@dataclass(frozen=True)
class Loss:
    """A loss that is defined for single rows; the score of a fold is the mean over its rows.

    Attributes
    ----------
    name : str
    methods : str
        The response method of an estimator that the loss needs.
    of_rows : callable
        (response, targets) -> ndarray of shape (n_rows,), float64. The loss of each row, averaged
        over targets.
    if_diverged : float
        The score of a fold whose model has diverged.
    row_range : (float, float) or None
        The minimum and maximum loss of a row, if it has both bounds; otherwise None. For one-sided
        bounds, see ``range_by_name``.
    is_zero_one : bool
        Whether the loss of each row is 0 or 1.
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
    """Return the number of rows of each fold; faster than ``np.diff`` for few folds."""
    sizes = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
    sizes[-1] = n_rows - begins[-1]
    return sizes


# The losses. Targets of classifiers are class codes.


def _error(predicted: np.ndarray, codes: np.ndarray) -> np.ndarray:
    return (predicted != codes).astype(np.float64)


def _hinge(decision: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return max(0, 1 - margin).

    For several classes, this is the margin of Crammer & Singer, as in sklearn.metrics.hinge_loss.
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

    As in sklearn.metrics.log_loss, p is clipped to [eps, 1 - eps], with the eps of float64.
    """
    if probabilities.shape[1] == 2:
        p = np.where(codes, probabilities[:, 1], probabilities[:, 0])
    else:
        p = probabilities[np.arange(len(codes)), codes]
    return -np.log(np.clip(p, np.finfo(np.float64).eps, 1 - np.finfo(np.float64).eps))


def mean_over_targets(errors: np.ndarray) -> np.ndarray:
    """Return errors of shape (n_rows,) from errors of shape (n_rows,) or (n_rows, n_targets)."""
    return errors if errors.ndim == 1 else errors.mean(axis=1)


def _squared_error(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    return mean_over_targets(np.square(predicted.astype(np.float64) - y))


def _absolute_error(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    return mean_over_targets(np.abs(predicted.astype(np.float64) - y))


def _neg_log_density(log_density: np.ndarray, _: Any) -> np.ndarray:
    return -log_density.astype(np.float64)


def _squared_distance(distance: np.ndarray, _: Any) -> np.ndarray:
    return np.square(distance.astype(np.float64))


#: The losses by ``estimator_type``, as in the tags of scikit-learn. The first loss is the default,
#: as in Table 1 of the TreeCV paper.
LOSSES_FOR = {
    "classifier": [
        Loss("error", "predict", _error, if_diverged=1.0, row_range=(0.0, 1.0), is_zero_one=True),
        Loss("hinge", "decision_function", _hinge),
        Loss("log_loss", "predict_proba", _log_loss),
    ],
    "regressor": [
        Loss("squared_error", "predict", _squared_error),
        Loss("absolute_error", "predict", _absolute_error),
    ],
    "clusterer": [Loss("squared_distance", "distance", _squared_distance)],
    "density_estimator": [Loss("neg_log_density", "score_samples", _neg_log_density)],
}

LOSSES = {loss.name: loss for losses in LOSSES_FOR.values() for loss in losses}


#: The beginning of error messages about scorers.
SCORER_EXPECTED = "scoring must be a scorer(estimator, X, y) that returns a number"
#: The advice at the end of these messages.
SCORER_ADVICE = "use, for example, make_scorer(accuracy_score) instead"


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
        Whether the scorer was made by ``make_scorer`` of scikit-learn, and therefore uses only the
        predictions of an estimator.
    methods : str, sequence of str or None
        The response method that the scorer calls; if several, it calls the first that the
        estimator has. None if unknown.
    is_mean : bool
        Whether the score of several rows is known to be the mean of their row scores.
    is_of_training : bool
        Whether the scorer is applied to training rows. If so, models must be refitted per fold.
    row_range : (float, float) or None
        The minimum and maximum score of a row; None if the scores have no bounds.
    is_zero_one : bool
        Whether the score of each row is 0 or 1.
    error_score : float or None
        The score to report, with a warning, for folds on which the scorer raises an error. Until
        it is reported, the score of such a fold is ``FAILED``. None: errors are raised.
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
    error_score: float | None = None
    if_diverged = -np.inf
    direction = "maximize"

    @property
    def takes_weights(self) -> bool:
        """Whether the scorer accepts ``sample_weight``."""
        called = getattr(self.score, "_score_func", self.score)
        try:
            parameters = inspect.signature(called).parameters.values()
        except ValueError:  # some compiled callables have no signature
            return True
        takes_any = not self.is_made and any(p.kind == p.VAR_KEYWORD for p in parameters)
        return takes_any or any(p.name == "sample_weight" for p in parameters)


@dataclass(frozen=True)
class Pooled:
    """A loss or scorer that is computed once on the out-of-fold predictions of all rows.

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


#: A loss, scorer or pooled score.
Metric = Loss | Scorer | Pooled


# The metrics of scikit-learn that are means over rows.
_MEAN_METRICS = (
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

# Metrics that are equal to the accuracy for this value of ``average``.
_EQUAL_TO_ACCURACY = (
    (metrics.f1_score, "micro"),
    (metrics.precision_score, "micro"),
    (metrics.recall_score, "micro"),
    (metrics.recall_score, "weighted"),
)


# The class of scorers of ``make_scorer``.
_MADE_SCORER = type(get_scorer("accuracy"))


def registered_scorer(name: str) -> Scorer:
    """Return the scorer of scikit-learn with this name."""
    scorer = replace(wrap_scorer(get_scorer(name)), name=name, is_registered=True)
    if name != "accuracy":
        return scorer
    return replace(scorer, row_range=(0.0, 1.0), is_zero_one=True)


def takes(score: Callable[..., Any], n_arguments: int) -> bool:
    """Return whether a callable accepts ``n_arguments`` positional arguments."""
    try:
        inspect.signature(score).bind(*[None] * n_arguments)
    except TypeError:
        return False
    except ValueError:  # some compiled callables have no signature
        return True
    return True


def wrap_scorer(score: Callable[..., Any]) -> Scorer:
    """Return a ``Scorer`` that wraps a callable of the user or of scikit-learn.

    Raises
    ------
    ValueError
        If the callable does not accept the arguments (estimator, X, y).
    """
    is_made = isinstance(score, _MADE_SCORER)
    if not is_made and not takes(score, 3):
        raise ValueError(f"{SCORER_EXPECTED}, got {score!r}; {SCORER_ADVICE}.")
    name = getattr(score, "__name__", "scorer")
    methods = getattr(score, "_response_method", None) if is_made else None
    return Scorer(name, score, is_made=is_made, methods=methods, is_mean=_is_mean(score))


def _is_mean(scorer: Any) -> bool:
    """Return whether a scorer made by ``make_scorer`` is known to be a mean over rows."""
    metric, options = getattr(scorer, "_score_func", None), getattr(scorer, "_kwargs", {})
    if (average := options.get("average")) is not None:
        return (metric, average) in _EQUAL_TO_ACCURACY and "labels" not in options
    return metric in _MEAN_METRICS and options.get("normalize", True) is True


def response_of(metric: Any, estimator: Any) -> str:
    """Return the response method that a loss, or a scorer of ``make_scorer``, needs.

    If there are several methods, it is the first that the estimator has, as in scikit-learn.
    """
    methods = metric.methods
    assert methods is not None
    if isinstance(methods, str):
        return methods
    available = (m for m in methods if hasattr(estimator, METHOD_NAMES.get(m, m)))
    return next(available, methods[0])


# Beginnings of the names of scikit-learn scorers with values between 0 and 1.
_BETWEEN_0_AND_1 = (
    *("accuracy", "average_precision", "balanced_accuracy", "f1", "jaccard"),
    *("precision", "recall", "roc_auc", "top_k_accuracy"),
)
_AT_MOST_1 = ("explained_variance", "r2")


def range_of(metric: Any) -> tuple[float, float] | None:
    """Return the minimum and maximum of a loss or scorer; None if unknown.

    Parameters
    ----------
    metric : Loss or Scorer
    """
    return range_by_name(metric.name) if metric.is_registered else None


def range_by_name(name: str) -> tuple[float, float] | None:
    """Return the minimum and maximum of the metric with this name; None if unknown."""
    if name in LOSSES:
        return None if name == "neg_log_density" else LOSSES[name].row_range or (0.0, inf)
    if name.startswith(_BETWEEN_0_AND_1):
        return (0.0, 1.0)
    if name in _AT_MOST_1:
        return (-inf, 1.0)
    return (-inf, 0.0) if name.startswith("neg_") else None


@dataclass(frozen=True)
class Scoring:
    """The metrics by which estimators are scored.

    Attributes
    ----------
    names : tuple of str
        The name of each metric in results.
    metrics : tuple of Loss, Scorer or Pooled
    optimized : tuple of int
        The indices of the optimised metrics.
    returns_tuple : bool
        Whether an objective returns a tuple of values instead of a float.
    """

    names: tuple[str, ...]
    metrics: tuple[Metric, ...]
    optimized: tuple[int, ...] = (0,)
    returns_tuple: bool = False

    @property
    def name(self) -> str:
        """The name of the first optimised metric."""
        return self.names[self.optimized[0]]

    @property
    def first(self) -> Metric:
        """The first optimised metric."""
        return self.metrics[self.optimized[0]]

    @property
    def optimized_names(self) -> list[str]:
        return [self.names[i] for i in self.optimized]

    @property
    def directions(self) -> list[str]:
        """The direction of each optimised metric, "minimize" or "maximize"."""
        return [self.metrics[i].direction for i in self.optimized]


def pooled(scoring: Any) -> Pooled:
    r"""Make a metric that is computed once, on the out-of-fold predictions of all rows.

    Metrics such as ``"roc_auc"``, ``"f1"`` and ``"neg_root_mean_squared_error"`` are not means
    over rows, so their fold scores are biased or undefined if folds have few rows. A pooled metric
    is computed as on a single validation set, which works even for leave-one-out. However,
    predictions of different models are then compared with each other, and there are no fold
    scores. The standard error is computed by the infinitesimal jackknife over rows (Jaeckel 1972):
    :math:`\sqrt{\sum_i (w_i \, \partial \theta / \partial w_i)^2}` for a score :math:`\theta` and
    row weights :math:`w_i`.

    Parameters
    ----------
    scoring : str or scorer
        The name of a loss or of a scorer of scikit-learn, or a scorer made by ``make_scorer``.

    Returns
    -------
    Pooled
        The pooled metric, which can be passed as ``scoring``, alone or in a list or dict.

    Raises
    ------
    ValueError
        If ``scoring`` is neither a loss nor a scorer that only needs predictions.

    See Also
    --------
    tree_cross_validate : Accepts pooled metrics as ``scoring``.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from optuna_treecv import PegasosClassifier, pooled, tree_cross_validate
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), PegasosClassifier(alpha=0.01))
    >>> result = tree_cross_validate(model, X, y, cv="loo", scoring=pooled("roc_auc"))
    >>> round(result.mean, 3)
    0.988
    """
    metric = _metric(scoring)
    if isinstance(metric, Pooled):
        return metric
    if isinstance(metric, Scorer) and not metric.is_made:
        raise ValueError(
            "scoring can be pooled only if it is a loss or a scorer made by make_scorer, because "
            f"other scorers need a fitted estimator, not only predictions, got {scoring!r}."
        )
    return Pooled(metric)


def with_pooled(scoring: Scoring, metric: Pooled) -> Scoring:
    """Return a scoring that contains a pooled metric; append it if it is missing."""
    if metric in scoring.metrics:
        return scoring
    names, metrics = (*scoring.names, metric.name), (*scoring.metrics, metric)
    return replace(scoring, names=names, metrics=metrics)


def make_scoring(scoring: Any, optimize: Any = None, is_pooled: bool = False) -> Scoring | None:
    """Return the ``Scoring`` given by the arguments ``scoring`` and ``optimize``.

    If ``scoring`` is None, return None; ``scoring_for`` then chooses the default loss.

    Parameters
    ----------
    scoring : None, str, callable, Pooled, list of these, or dict of str to these
    optimize : None, str or list of str
    is_pooled : bool
        Whether to pool all metrics.
    """
    if scoring is None:
        if optimize is not None:
            raise ValueError(
                "optimize must be None if scoring is None, because there is only one loss, got "
                f"{optimize!r}."
            )
        return None
    if isinstance(scoring, Mapping):
        by_name = dict(scoring)
    else:
        is_list = isinstance(scoring, list | tuple)
        listed = [_metric(s) for s in (scoring if is_list else [scoring])]
        by_name = {metric.name: metric for metric in listed}
        if len(by_name) < len(listed):
            raise ValueError(
                f"scoring must have distinct names, got {[metric.name for metric in listed]}; "
                "use a dict of names to scorers instead."
            )
    if not by_name or not all(isinstance(name, str) for name in by_name):
        raise ValueError(
            "scoring must be a list with at least one score, or a dict of strings to scores, got "
            f"{scoring!r}."
        )
    metrics = [pooled(s) if is_pooled else _metric(s) for s in by_name.values()]
    registered_names = [metric.name for metric in metrics if metric.is_registered]
    if len(set(registered_names)) < len(registered_names):
        raise ValueError(f"scoring must contain each score only once, got {registered_names}.")
    names = tuple(
        metric.name if is_pooled and not isinstance(scoring, Mapping) else name
        for name, metric in zip(by_name, metrics, strict=True)
    )
    return Scoring(names, tuple(metrics), *_optimized(optimize, names))


def _optimized(optimize: Any, names: Sequence[str]) -> tuple[tuple[int, ...], bool]:
    """Return the indices of the optimised metrics, and whether objectives return tuples."""
    if optimize is None:
        return (0,), False
    returns_tuple = isinstance(optimize, list | tuple)
    choices = list(optimize) if returns_tuple else [optimize]
    unknown = [name for name in choices if name not in names]
    if unknown or not choices or len(set(choices)) < len(choices):
        what = repr(unknown[0]) if unknown else repr(optimize)
        raise ValueError(
            f"optimize must be one of the names in scoring ({', '.join(names)}) or a list of "
            f"distinct names, got {what}."
        )
    return tuple(names.index(name) for name in choices), returns_tuple


def _metric(scoring: Any) -> Metric:
    """Return the metric given by a name or a callable."""
    if isinstance(scoring, Loss | Scorer | Pooled):
        return scoring
    if isinstance(scoring, str):
        if scoring in LOSSES:
            return LOSSES[scoring]
        if scoring in get_scorer_names():
            return registered_scorer(scoring)
        like = get_close_matches(scoring, [*LOSSES, *get_scorer_names()], 1)
        meant = f"; did you mean {like[0]!r}?" if like else "."
        raise ValueError(
            f"scoring must be a loss ({', '.join(LOSSES)}) or the name of a scikit-learn scorer "
            f"(sklearn.metrics.get_scorer_names()), got {scoring!r}{meant}"
        )
    if callable(scoring) and not isinstance(scoring, type):
        return wrap_scorer(scoring)
    raise ValueError(
        "scoring must be None, a loss name, a scorer name, a scorer(estimator, X, y), or several "
        f"of these in a list or dict, got {scoring!r}."
    )


def scoring_for(scoring: Scoring | None, estimator: Any, is_pooled: bool = False) -> Scoring:
    """Return the scoring for an estimator; raise an error if a loss does not suit it.

    If ``scoring`` is None, it consists of the first loss for this type of estimator.
    """
    kind = get_tags(estimator).estimator_type
    losses = LOSSES_FOR.get(kind)
    if scoring is None:
        if losses is None:
            raise ValueError(
                f"scoring must be given for {name_of(estimator)}, which is not a classifier, "
                "regressor, clusterer or density estimator; use a scorer(estimator, X, y) "
                "instead."
            )
        default: Metric = Pooled(losses[0]) if is_pooled else losses[0]
        return Scoring((default.name,), (default,))
    if losses is None:
        kind, losses = "", LOSSES_FOR["clusterer"] + LOSSES_FOR["density_estimator"]
    for metric in scoring.metrics:
        of: Any = metric.of if isinstance(metric, Pooled) else metric
        if isinstance(of, Loss) and of not in losses:
            names = ", ".join(loss.name for loss in losses)
            what = f"a {kind.replace('_', ' ')}" if kind else "an estimator of unknown type"
            raise ValueError(
                f"scoring={of.name!r} is not for {what} such as {name_of(estimator)}; use one of "
                f"{names} instead."
            )
    return scoring
