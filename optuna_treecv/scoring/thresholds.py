"""The scores of a binary classifier at all thresholds of its outputs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from sklearn import metrics
from sklearn.metrics import make_scorer

from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.metrics import wrap_scorer
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


def thresholded(metric: object, pos_label: Opaque = None) -> Pooled:
    """Make a metric of a binary classifier at the decision threshold that is best for it.

    Trials are compared by what they reach with their own threshold, which is chosen on the
    out-of-fold outputs of all rows, as ``TreeCVObjective.threshold`` does for a trial afterwards.
    Like other pooled scores, it has no fold scores.

    The score is too good, because it is computed on the rows on which the threshold was chosen.
    For F1 of the best of three logistic regressions on three data sets, the mean bias is 0.030
    with 200 rows, 0.015 with 500 rows and 0.007 with 2,000 rows. With few rows of a class it is
    larger: 0.11 if 15 of 500 rows are positive, and 0.03 if 60 of 2,000 are.

    Parameters
    ----------
    metric : str, scorer or array-like of shape (2, 2)
        A scorer of labels, such as ``"f1"``, or a matrix of costs ``[[tn, fp], [fn, tp]]``, whose
        negative mean is the score.
    pos_label : int, float, bool or str, default=None
        The class whose outputs the threshold divides; by default, the last one of the sorted
        classes.

    Returns
    -------
    Pooled
        The metric, which can be passed as ``scoring``, alone or in a list or dict. Its name is
        that of ``metric`` after ``pooled_thresholded_``.

    Raises
    ------
    ValueError
        If ``metric`` is neither a scorer of labels with ``sample_weight`` nor a matrix of costs.

    See Also
    --------
    TreeCVObjective.threshold : The threshold of a trial, with an interval and a corrected score.
    pooled : Other scores of all rows together.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from optuna_treecv import thresholded, tree_cross_validate
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), LogisticRegression())
    >>> result = tree_cross_validate(model, X, y, cv=5, scoring=thresholded("f1"))
    >>> round(result.mean, 2)
    0.98
    """
    rates_of("metric", metric)  # raises errors before anything is trained
    options: dict[str, Opaque] = {"metric": metric}
    if pos_label is not None:
        options["pos_label"] = pos_label
    scorer = make_scorer(
        best_score, response_method=("predict_proba", "decision_function"), **options
    )
    name = getattr(getattr(metric, "_score_func", None), "__name__", "costs")
    name = metric if isinstance(metric, str) else name
    return Pooled(replace(wrap_scorer(scorer), name=f"thresholded_{name}"))


def best_score(
    y_true: Array,
    outputs: Array,
    *,
    metric: object,
    pos_label: Opaque = None,
    sample_weight: Array | None = None,
) -> float:
    """Return the score at the best threshold; the metric of ``thresholded``."""
    classes = np.unique(y_true)
    if len(classes) != 2:
        raise ValueError(f"y must have two classes for a threshold, got {len(classes)} classes.")
    rates, is_fast = rates_of("metric", metric)
    thresholds = find_thresholds(
        outputs.astype(np.float64), MAX_THRESHOLDS if is_fast else MAX_SLOW_THRESHOLDS
    )
    bins = np.searchsorted(-thresholds, -outputs)
    is_positive = np.asarray(y_true) == (classes[1] if pos_label is None else pos_label)
    weights = np.ones(len(outputs)) if sample_weight is None else sample_weight
    scores = rates(*count_at(bins, is_positive, weights, len(thresholds)))
    return float(scores[find_best(scores, np.ones(len(scores), bool))])
