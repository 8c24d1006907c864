"""The scores of a binary classifier at all thresholds of its outputs."""

from collections.abc import Callable

import numpy as np
from sklearn import metrics

from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.types import Array
from optuna_treecv.types import Opaque

#: The numbers (or weights) of true negatives, false positives, false negatives and true positives.
Counts = tuple[Array, Array, Array, Array]

#: Scores of thresholds from their counts.
Rates = Callable[[Array, Array, Array, Array], Array]

#: The maximum number of thresholds that are tried. Metrics without a formula below take about half
#: a millisecond per threshold.
MAX_THRESHOLDS, MAX_SLOW_THRESHOLDS = 1000, 100


def find_thresholds(outputs: Array, max_thresholds: int) -> Array:
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


def count_at(
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


def find_best(scores: Array, is_allowed: Array) -> int:
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


def rates_of(argument: str, metric: object) -> tuple[Rates, bool]:
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
