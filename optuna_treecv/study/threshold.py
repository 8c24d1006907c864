"""The decision threshold of a binary classifier, chosen on the out-of-fold outputs of a trial."""

from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
import operator
import re

import numpy as np
from optuna.trial import FrozenTrial
from sklearn import metrics
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import FixedThresholdClassifier

from optuna_treecv.core.intervals import check_level
from optuna_treecv.core.run import Run
from optuna_treecv.crossval.losses import draw_units
from optuna_treecv.estimators.base import name_of
from optuna_treecv.rows.data import Data
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque

#: The numbers (or weights) of true negatives, false positives, false negatives and true positives.
Counts = tuple[Array, Array, Array, Array]

#: Scores of thresholds from their counts.
Rates = Callable[[Array, Array, Array, Array], Array]

# The maximum number of thresholds that are tried, and of bootstrap draws.
_MAX_THRESHOLDS, _N_DRAWS = 1000, 100

# The same for metrics without a formula below, which take about half a millisecond per threshold.
_MAX_SLOW_THRESHOLDS, _N_SLOW_DRAWS = 100, 20

_CONSTRAINT = re.compile(r"\s*(\w+)\s*(>=|>)\s*([0-9.eE+-]+)\s*")


@dataclass(frozen=True, eq=False)
class Threshold:
    """The decision threshold that is best on the out-of-fold outputs of a trial.

    Attributes
    ----------
    threshold : float
        Rows whose output is at least this value are predicted to belong to ``pos_label``.
    score : float
        The score of the out-of-fold labels at this threshold, for costs their negative mean. It
        is optimistic, because the threshold was chosen on the same rows.
    honest_score : float
        The score corrected for the choice of the threshold: the threshold is chosen on bootstrap
        samples of the rows, and scored on the rows that were not drawn.
    low, high : float
        The percentile interval of the threshold over the bootstrap samples.
    level : float
        The level of this interval.
    default_score : float
        The score at the threshold of ``predict``: 0.5 for probabilities, 0 for decision values.
    thresholds, scores : ndarray of shape (n_thresholds,)
        The curve: all thresholds that were tried, in descending order, and their scores.
    pos_label : int, float, bool or str
        The class whose outputs the threshold divides.
    response_method : {"predict_proba", "decision_function"}
        The method that computes these outputs.
    trial : optuna.trial.FrozenTrial
        The trial.
    """

    threshold: float
    score: float
    honest_score: float
    low: float
    high: float
    level: float
    default_score: float
    thresholds: Array
    scores: Array
    pos_label: Opaque
    response_method: str
    trial: FrozenTrial

    def __repr__(self) -> str:
        """Return all attributes except the curve in a few lines."""
        return (
            f"Threshold(threshold={self.threshold:.6g}, low={self.low:.6g}, "
            f"high={self.high:.6g}, level={self.level:g},\n"
            f"    score={self.score:.6g}, honest_score={self.honest_score:.6g}, "
            f"default_score={self.default_score:.6g},\n"
            f"    pos_label={self.pos_label!r}, response_method={self.response_method!r})"
        )


def with_threshold(
    estimator: Estimator, chosen: Threshold, data: Data
) -> FixedThresholdClassifier:
    """Return a fitted estimator as a classifier with this threshold."""
    classifier = FixedThresholdClassifier(
        FrozenEstimator(estimator),
        threshold=chosen.threshold,
        pos_label=chosen.pos_label,
        response_method=chosen.response_method,
    )
    return classifier.fit(data.X, data.y)  # fits nothing, because the estimator is frozen


def choose_threshold(
    run: Run,
    trial: FrozenTrial,
    outputs_of: Callable[[str], Array],
    metric: object,
    constraint: str | None,
    pos_label: Opaque,
    level: float,
) -> Threshold:
    """Return the best threshold of a trial.

    Parameters
    ----------
    run : Run
        The run of the trial.
    trial : optuna.trial.FrozenTrial
    outputs_of : callable
        (response method) -> the out-of-fold outputs of the tested rows, in the order of
        ``Tested.rows``.
    metric, constraint, pos_label, level
        As for ``TreeCVObjective.threshold``.
    """
    classes, level = run.request.classes, check_level(level)
    if classes is None or len(classes) != 2:
        n_classes = "no classes" if classes is None else f"{len(classes)} classes"
        raise ValueError(f"y must have two classes for a threshold, got {n_classes}.")
    labels = classes.tolist()
    pos_label = labels[1] if pos_label is None else pos_label
    if pos_label not in labels:
        raise ValueError(f"pos_label must be one of the classes {labels}, got {pos_label!r}.")
    names = ("predict_proba", "decision_function")
    method = next((name for name in names if hasattr(run.estimator, name)), None)
    if method is None:
        raise ValueError(
            "a threshold needs an estimator with predict_proba or decision_function; "
            f"{name_of(run.estimator)} has none."
        )
    rates, metric_is_fast = _as_rates("metric", metric)
    allowed, constraint_is_fast = _as_constraint(constraint)
    is_fast = metric_is_fast and constraint_is_fast
    tested = run.request.cross_validation.tested(run.method_name)
    outputs, index = outputs_of(method), labels.index(pos_label)
    if outputs.ndim == 2:
        outputs = outputs[:, index]
    elif index == 0:
        outputs = -outputs
    outputs, weights = outputs.astype(np.float64), tested.score_weights
    weights = np.ones(len(outputs)) if weights is None else weights[tested.rows]
    is_positive = run.request.data.codes()[tested.rows] == index
    thresholds = _find_thresholds(outputs, _MAX_THRESHOLDS if is_fast else _MAX_SLOW_THRESHOLDS)
    bins = np.searchsorted(-thresholds, -outputs)
    count = partial(_count, bins, is_positive, weights, len(thresholds))
    scores, is_allowed = rates(*count()), allowed(*count())
    if not is_allowed.any():
        raise ValueError(
            f"constraint must hold at one threshold at least, got {constraint!r}; use a lower "
            "bound instead."
        )
    best = _find_best(scores, is_allowed)
    units, _ = tested.units()
    n_draws, seed = _N_DRAWS if is_fast else _N_SLOW_DRAWS, run.request.settings.seed
    draws = draw_units(int(units.max()) + 1, n_draws, seed)
    pairs = (
        (draw[units], mask[units]) for batch in draws for draw, mask in zip(*batch, strict=True)
    )
    drawn, changes = _bootstrap(pairs, count, rates, allowed, best)
    low = high = honest_score = np.nan
    if drawn:
        low, high = np.quantile(thresholds[drawn], [(1 - level) / 2, (1 + level) / 2])
        honest_score = float(scores[best] + np.mean(changes))
    default = 0.5 if method == "predict_proba" else 0.0
    is_default = (outputs < default).astype(np.intp)  # as bins of a single threshold
    return Threshold(
        threshold=float(thresholds[best]),
        score=float(scores[best]),
        honest_score=honest_score,
        low=float(low),
        high=float(high),
        level=level,
        default_score=float(rates(*_count(is_default, is_positive, weights, 2))[0]),
        thresholds=thresholds,
        scores=scores,
        pos_label=pos_label,
        response_method=method,
        trial=trial,
    )


def _find_thresholds(outputs: Array, max_thresholds: int) -> Array:
    """Return thresholds in descending order, from above all outputs to the smallest one.

    Between them are the middles of neighbouring outputs. Of more than ``max_thresholds``, those
    are returned that divide the outputs into about equal parts.
    """
    values = np.unique(outputs)[::-1]
    middles = (values[:-1] + values[1:]) / 2
    # Between two neighbouring floats, the mean may be rounded down to the smaller one.
    middles = np.where(middles > values[1:], middles, values[:-1])
    thresholds = np.array([np.nextafter(values[0], np.inf), *middles, values[-1]])
    if len(thresholds) <= max_thresholds:
        return thresholds
    ranks = np.quantile(outputs, np.linspace(0, 1, max_thresholds))
    places = np.searchsorted(-thresholds, -ranks)
    last = len(thresholds) - 1
    return thresholds[np.unique([0, *places.clip(max=last), last])]


def _count(
    bins: Array, is_positive: Array, weights: Array, n_thresholds: int, draws: Array | None = None
) -> Counts:
    """Return the weights of tn, fp, fn and tp at each threshold.

    Parameters
    ----------
    bins : ndarray of shape (n_tests,)
        The first threshold at which each row is predicted as positive.
    is_positive, weights : ndarray of shape (n_tests,)
    n_thresholds : int
    draws : ndarray of shape (n_tests,), default=None
        How often each row was drawn; None for once.
    """
    drawn = weights if draws is None else weights * draws
    tp = np.bincount(bins, drawn * is_positive, n_thresholds).cumsum()
    fp = np.bincount(bins, drawn * ~is_positive, n_thresholds).cumsum()
    return fp[-1] - fp, fp, tp[-1] - tp, tp


def _bootstrap(
    draws: Iterable[tuple[Array, Array]],
    count: Callable[[Array], Counts],
    rates: Rates,
    allowed: Rates,
    best: int,
) -> tuple[list[int], list[float]]:
    """Return the choices on bootstrap samples, and what they change on the rows left out.

    Samples are omitted in which no threshold satisfies the constraint, or which leave out no row
    of a class.

    Parameters
    ----------
    draws : iterable of (ndarray, ndarray)
        For each sample, how often each row was drawn, and which rows were not.
    count : callable
        (draws) -> the confusions of the drawn rows at each threshold.
    rates, allowed : callable
    best : int
        The index of the threshold that is best on all rows.
    """
    drawn, changes = [], []
    for draw, mask in draws:
        inside, outside = count(draw), count(mask)
        is_possible = allowed(*inside)
        n_negatives, n_positives = outside[0][0], outside[2][0]  # the first threshold is above all
        if is_possible.any() and n_negatives and n_positives:
            drawn.append(_find_best(rates(*inside), is_possible))
            of_chosen, of_best = rates(*(numbers[[drawn[-1], best]] for numbers in outside))
            changes.append(of_chosen - of_best)
    return drawn, changes


def _find_best(scores: Array, is_allowed: Array) -> int:
    """Return the index of the largest score; of a plateau, the middle."""
    allowed = np.where(is_allowed & ~np.isnan(scores), scores, -np.inf)
    places = np.flatnonzero(allowed == allowed.max())
    return int(places[(len(places) - 1) // 2])


def _divide(a: Array, b: Array) -> Array:
    """Return a / b, and 0 where b is 0, as scikit-learn's metrics do."""
    return np.divide(a, b, out=np.zeros(np.shape(a)), where=b != 0)


def _f_beta(tn: Array, fp: Array, fn: Array, tp: Array, beta: float = 1.0) -> Array:
    squared = beta**2
    return _divide((1 + squared) * tp, (1 + squared) * tp + squared * fn + fp)


def _matthews(tn: Array, fp: Array, fn: Array, tp: Array) -> Array:
    squared = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return _divide(tp * tn - fp * fn, np.sqrt(squared))


_FORMULAS: dict[Opaque, Rates] = {
    metrics.accuracy_score: lambda tn, fp, fn, tp: (tn + tp) / (tn + fp + fn + tp),
    metrics.balanced_accuracy_score: lambda tn, fp, fn, tp: (
        (_divide(tp, tp + fn) + _divide(tn, tn + fp)) / 2
    ),
    metrics.f1_score: _f_beta,
    metrics.fbeta_score: _f_beta,
    metrics.jaccard_score: lambda tn, fp, fn, tp: _divide(tp, tp + fp + fn),
    metrics.matthews_corrcoef: _matthews,
    metrics.precision_score: lambda tn, fp, fn, tp: _divide(tp, tp + fp),
    metrics.recall_score: lambda tn, fp, fn, tp: _divide(tp, tp + fn),
}


def _as_rates(argument: str, metric: object) -> tuple[Rates, bool]:
    """Return the scores of a metric of labels from confusions, and whether this is a formula."""
    if isinstance(metric, str):
        try:
            scorer = metrics.get_scorer(metric)
        except ValueError:
            names = "'balanced_accuracy', 'f1'"
            raise ValueError(
                f"{argument} must be the name of a scorer of labels, such as {names}, got "
                f"{metric!r}."
            ) from None
    elif callable(metric):
        scorer = metric
    else:
        return _as_costs(argument, metric), True
    if getattr(scorer, "_response_method", None) != "predict":
        raise ValueError(
            f"{argument} must be a scorer of labels, such as 'f1' or make_scorer(f1_score), got "
            f"{metric!r}, which is not computed from labels."
        )
    if not Scorer("", scorer, is_made=True).takes_weights:
        raise ValueError(
            f"{argument} must be a scorer of a metric with sample_weight, got {metric!r}."
        )
    function, sign = scorer._score_func, scorer._sign
    options = {name: x for name, x in scorer._kwargs.items() if name != "pos_label"}
    if options.get("average") == "binary":
        del options["average"]
    if function in _FORMULAS and options.keys() <= {"beta"}:
        formula = _FORMULAS[function]
        return (lambda *counts: sign * formula(*counts, **options)), True

    def rates(*counts: Array) -> Array:
        # Four rows, one for each kind of confusion, weighted by its number.
        columns = np.column_stack(counts)
        return np.array(
            [
                sign * function([0, 0, 1, 1], [0, 1, 0, 1], sample_weight=column, **options)
                for column in columns
            ]
        )

    return rates, False


def _as_costs(argument: str, costs: Opaque) -> Rates:
    """Return the negative mean cost from a matrix of costs, (true class, predicted class)."""
    expected = f"{argument} must be a scorer of labels or a matrix of costs, [[tn, fp], [fn, tp]]"
    try:
        of_cells = np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{expected}, got {costs!r}.") from None
    if of_cells.shape != (2, 2) or not np.isfinite(of_cells).all():
        raise ValueError(f"{expected}, got {costs!r}.")
    return lambda *counts: -(of_cells.ravel() @ np.array(counts)) / sum(counts)


def _as_constraint(constraint: str | None) -> tuple[Rates, bool]:
    """Return whether "recall >= 0.9" holds, from confusions, and whether this is a formula."""
    if constraint is None:
        return (lambda tn, fp, fn, tp: np.ones(len(tn), bool)), True
    match = _CONSTRAINT.fullmatch(constraint) if isinstance(constraint, str) else None
    try:
        assert match is not None
        bound = float(match[3])
    except (AssertionError, ValueError):
        raise ValueError(
            "constraint must be a text such as 'recall >= 0.9', with the name of a scorer of "
            f"labels, got {constraint!r}."
        ) from None
    compare = operator.ge if match[2] == ">=" else operator.gt
    rates, is_formula = _as_rates("constraint", match[1])
    return (lambda *counts: compare(rates(*counts), bound)), is_formula
