"""Vectorised versions of scikit-learn's metrics that score many folds in one call.

The functions of this module share these arguments:

response : ndarray
    The out-of-fold output of the response method for each row, in finite numbers. Predictions of
    classifiers are class codes, or -1 for unknown labels. The shape is (n_rows,) for decision
    values of two classes, (n_rows, n_classes) for probabilities, and (n_rows, n_targets) for
    predictions of several targets.
targets : ndarray of shape (n_rows,), or of regressors (n_rows, n_targets)
    Class codes (int32), or numbers (float64). The score is averaged over targets, like
    ``multioutput="uniform_average"`` in scikit-learn.
weights : ndarray of shape (n_rows,), float64, or None
    Non-negative weights; None: each row has the weight 1.
begins : ndarray of shape (n_folds,), int64
    The index of the first row of each fold. Fold i consists of the rows ``begins[i]`` to
    ``begins[i + 1] - 1``; the last fold ends with the last row. ``begins[0]`` is 0, and no fold is
    empty.

The score is NaN for folds for which scikit-learn raises an error. If scikit-learn would warn for
several folds, there is a single warning for all of them. Folds whose rows all have the weight 0
are ignored in warnings. Callers must suppress the warnings of NumPy, because some folds may divide
by 0.
"""

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any
import warnings

import numpy as np
from sklearn.exceptions import UndefinedMetricWarning

from optuna_treecv.scoring.metrics import fold_sizes
from optuna_treecv.scoring.metrics import mean_over_targets
from optuna_treecv.types import Array

Weights = Array | None


@dataclass(frozen=True)
class FoldMetric:
    """A metric of scikit-learn that is computed for many folds in one call.

    Attributes
    ----------
    of_folds : callable
        (response, targets, weights, begins) -> ndarray of shape (n_folds,), float64. Larger scores
        are better. The scores of rows, if they are known, may be passed as a fifth argument.
    influence : callable
        (response, targets, weights) -> ndarray of shape (n_rows,), float64. The derivative of the
        score with respect to the weight of each row, if all rows are a single fold. The standard
        error of this score is sqrt(sum((weights * influence)**2)), by the infinitesimal jackknife.
    of_rows : callable or None
        (response, targets) -> ndarray of shape (n_rows,), float64. The scores of rows, if the
        score of a fold is their mean; None for other metrics.
    """

    of_folds: Callable[..., Array]
    influence: Callable[[Array, Array, Weights], Array]
    of_rows: Callable[[Array, Array], Array] | None = None


def fold_metric(scorer: Any, classes: Array | None) -> FoldMetric | None:
    """Return the vectorised metric that is equivalent to a scorer of scikit-learn.

    Parameters
    ----------
    scorer : Scorer
    classes : ndarray or None
        The sorted classes of all rows; None for regressors.

    Returns
    -------
    FoldMetric or None
        None if there is no equivalent metric, so that the scorer must be called for each fold.
    """
    if not scorer.is_registered:
        return None
    if classes is None:
        return _REGRESSION_METRICS.get(scorer.name)
    return (
        _CLASSIFICATION_METRICS.get(scorer.name)
        if _is_defined(scorer.name, list(classes))
        else None
    )


def _is_defined(name: str, classes: list[Any]) -> bool:
    """Return whether this module can compute a score of scikit-learn for these classes."""
    if name in ("f1", "average_precision"):
        return len(classes) == 2 and bool(classes[1] == 1)
    # Scikit-learn treats other pairs differently in folds with one class.
    if name == "neg_brier_score":
        return len(classes) > 2 or classes in ([0, 1], [-1, 1])
    if name == "roc_auc":
        return len(classes) == 2
    return name != "neg_log_loss" or len(classes) > 1


# Sums over folds

_ONE_FOLD = np.zeros(1, np.int64)


def _or_ones(weights: Weights, targets: Array) -> Array:
    return np.ones(len(targets)) if weights is None else weights


def _sums(values: Array, begins: Array) -> Array:
    return np.add.reduceat(values, begins, dtype=np.float64)


def _fold_of_rows(begins: Array, n_rows: int) -> Array:
    return np.repeat(np.arange(len(begins)), fold_sizes(begins, n_rows))


def _class_sums(values: Array, codes: Array, n_classes: int, begins: Array) -> Array:
    """Return the sums of values over the rows of each class, shape (n_folds, n_classes).

    This array is never larger than an array of decision values for all rows.
    """
    cells = _fold_of_rows(begins, len(codes)) * n_classes + codes
    return np.bincount(cells, values, len(begins) * n_classes).reshape(-1, n_classes)


def _have_weight(weights: Weights, begins: Array) -> Array:
    if weights is None:
        return np.ones(len(begins), bool)
    return np.logical_or.reduceat(weights > 0, begins)


def _warn(name: str, what: str, is_concerned: Array, why: str) -> None:
    if n_concerned := np.count_nonzero(is_concerned):
        warnings.warn(
            f"{name} is {what} for {n_concerned} of {len(is_concerned)} fold(s), {why}; use fewer "
            "or stratified folds instead.",
            UndefinedMetricWarning,
            stacklevel=3,  # of the call of of_folds
        )


# Metrics that are means of row scores


def _means(values: Array, weights: Weights, begins: Array) -> Array:
    """Return sum(w * value) / sum(w) of each fold, NaN if all weights are 0."""
    if weights is None:
        return _sums(values, begins) / fold_sizes(begins, len(values))
    return _sums(weights * values, begins) / _sums(weights, begins)


def _mean_metric(
    of_rows: Callable[[Array, Array], Array],
    are_undefined: Callable[[Array, Array, Array], Array] | None = None,
) -> FoldMetric:
    """Return the metric of folds that is the mean of ``of_rows(response, targets)``.

    The score is NaN for folds for which ``are_undefined(response, targets, begins)`` is true.
    """

    def of_folds(
        response: Array, targets: Array, weights: Weights, begins: Array, *of_known: Array
    ) -> Array:
        (scores,) = of_known or (of_rows(response, targets),)
        means = _means(scores, weights, begins)
        if are_undefined is not None:
            means[are_undefined(response, targets, begins)] = np.nan
        return means

    def influence(response: Array, targets: Array, weights: Weights) -> Array:
        """Return (score of the row - mean) / sum(w)."""
        scores, weights = of_rows(response, targets), _or_ones(weights, targets)
        return (scores - _means(scores, weights, _ONE_FOLD)) / weights.sum()

    return FoldMetric(of_folds, influence, of_rows)


def _valid(probabilities: Array) -> Array:
    """Return the probabilities, but NaN in rows with an entry below 0 or above 1."""
    is_valid = (probabilities >= 0) & (probabilities <= 1)
    if is_valid.all():
        return probabilities
    return np.where(is_valid.all(axis=1, keepdims=True), probabilities, np.nan)


def _of_true_class(probabilities: Array, codes: Array) -> Array:
    if probabilities.shape[1] > 2:
        return _valid(probabilities)[np.arange(len(codes)), codes]
    second = _valid(probabilities[:, 1:])[:, 0]
    # scikit-learn computes 1 - second, which would lose digits of float32.
    is_short = probabilities.dtype == np.float32
    first = _valid(probabilities[:, :1])[:, 0] if is_short else 1 - second
    return np.where(codes == 1, second, first)


def _log_likelihood(probabilities: Array, codes: Array) -> Array:
    """Return log p of the true class, clipped to [eps, 1 - eps] in the dtype of p."""
    p = _of_true_class(probabilities, codes)
    eps = np.finfo(p.dtype).eps
    return np.log(np.clip(p, eps, 1 - eps).astype(np.float64))


def _neg_brier(probabilities: Array, codes: Array) -> Array:
    """Return -sum_c (p_c - [c is the true class])^2; for two classes, half of this."""
    if probabilities.shape[1] == 2:
        return -np.square(1 - _of_true_class(probabilities, codes).astype(np.float64))
    errors = _valid(probabilities).astype(np.float64)
    errors[np.arange(len(codes)), codes] -= 1
    return -np.square(errors).sum(axis=1)


def _lack_a_class(probabilities: Array, codes: Array, begins: Array) -> Array:
    if probabilities.shape[1] == 2:
        return np.minimum.reduceat(codes, begins) == np.maximum.reduceat(codes, begins)
    counts = _class_sums(np.ones(len(codes)), codes, probabilities.shape[1], begins)
    return (counts == 0).any(axis=1)


# Other metrics of regressors


def _mean_of_columns(of_column: Callable[..., Array]) -> Callable[..., Array]:
    """Return the mean of a function of (predicted, y, ...) over the targets."""

    @wraps(of_column)
    def mean(predicted: Array, y: Array, *others: Any) -> Array:
        if y.ndim == 1:
            return of_column(predicted, y, *others)
        columns = zip(predicted.T, y.T, strict=True)
        return np.asarray(np.mean([of_column(*column, *others) for column in columns], axis=0))

    return mean


@_mean_of_columns
def _neg_rmse(predicted: Array, y: Array, weights: Weights, begins: Array) -> Array:
    return -np.sqrt(_means(np.square(predicted - y), weights, begins))


@_mean_of_columns
def _neg_rmse_influence(predicted: Array, y: Array, weights: Weights) -> Array:
    """Return (MSE - squared error of the row) / (2 RMSE sum(w)), or 0 if the MSE is 0."""
    weights, squared = _or_ones(weights, y), np.square(predicted - y)
    mse = _means(squared, weights, _ONE_FOLD)
    return np.zeros(len(y)) if mse == 0 else (mse - squared) / (2 * np.sqrt(mse) * weights.sum())


def _r2(predicted: Array, y: Array, weights: Weights, begins: Array) -> Array:
    have_one_row = fold_sizes(begins, len(y)) == 1
    are_undefined = have_one_row & _have_weight(weights, begins)
    _warn("r2", "undefined (NaN)", are_undefined, "which have one row")
    return np.where(have_one_row, np.nan, _r2_of_columns(predicted, y, weights, begins))


@_mean_of_columns
def _r2_of_columns(predicted: Array, y: Array, weights: Weights, begins: Array) -> Array:
    """Return 1 - SSE / SST; if SST is 0, return 1 if SSE is 0 and 0 otherwise."""
    weights, fold = _or_ones(weights, y), _fold_of_rows(begins, len(y))
    sse = _sums(weights * np.square(predicted - y), begins)
    # If all y of a fold are equal, they are 0 after subtracting their maximum, and SST is exactly
    # 0.
    y = y - np.maximum.reduceat(np.where(weights > 0, y, -np.inf), begins)[fold]
    sst = _sums(weights * np.square(y - _means(y, weights, begins)[fold]), begins)
    return 1 - np.where(sst != 0, sse / sst, sse != 0)


@_mean_of_columns
def _r2_influence(predicted: Array, y: Array, weights: Weights) -> Array:
    """Return (SSE / SST * (y - mean)^2 - (y - predicted)^2) / SST.

    The derivative of the mean does not contribute, because SST is minimal at the mean.
    """
    weights, squared = _or_ones(weights, y), np.square(predicted - y)
    spread = np.square(y - _means(y, weights, _ONE_FOLD))
    sse, sst = _sums(weights * squared, _ONE_FOLD), _sums(weights * spread, _ONE_FOLD)
    return (sse / sst * spread - squared) / sst


# Other metrics of predicted classes


def _balanced_accuracy(predicted: Array, codes: Array, weights: Weights, begins: Array) -> Array:
    """Return the mean recall of the classes with a positive total weight in a fold."""
    have_weight = _have_weight(weights, begins)
    weights, fold = _or_ones(weights, codes), _fold_of_rows(begins, len(codes))
    n_classes = int(max(codes.max(), predicted.max())) + 1
    totals = _class_sums(weights, codes, n_classes, begins)
    hits = _class_sums(weights * (predicted == codes), codes, n_classes, begins)
    is_missing = totals == 0
    names_missing = is_missing[fold, codes] | is_missing[fold, predicted] | (predicted < 0)
    _warn(
        "balanced_accuracy",
        "a mean over fewer classes",
        np.logical_or.reduceat(names_missing, begins) & have_weight,
        "in which a predicted class has no rows",
    )
    recalls = np.where(is_missing, 0, hits / totals)
    return recalls.sum(axis=1) / np.count_nonzero(totals, axis=1)


def _balanced_accuracy_influence(predicted: Array, codes: Array, weights: Weights) -> Array:
    """Return ([the row is right] - recall) / (weight of its class * number of classes)."""
    weights, is_right = _or_ones(weights, codes), predicted == codes
    totals = np.bincount(codes, weights)
    recalls = np.bincount(codes, weights * is_right) / totals
    influence = (is_right - recalls[codes]) / (totals[codes] * np.count_nonzero(totals))
    return np.where(totals[codes] > 0, influence, 0.0)


def _f1(predicted: Array, codes: Array, weights: Weights, begins: Array) -> Array:
    """Return 2 TP / (positives + predicted positives), or 0 if this is 0 / 0."""
    hits, counts = _hits_and_counts(predicted, codes)
    weights, have_weight = _or_ones(weights, codes), _have_weight(weights, begins)
    total = _sums(weights * counts, begins)
    # scikit-learn raises an error for an unknown label, unless the only other label is the
    # positive class.
    are_refused = np.logical_or.reduceat(predicted < 0, begins)
    are_refused &= np.logical_or.reduceat((codes == 0) | (predicted == 0), begins)
    are_empty = (total == 0) & have_weight & ~are_refused
    _warn("f1", "set to 0", are_empty, "which have no positives, neither true nor predicted")
    scores = np.where(are_empty, 0, 2 * _sums(weights * hits, begins) / total)
    return np.where(are_refused, np.nan, scores)


def _f1_influence(predicted: Array, codes: Array, weights: Weights) -> Array:
    """Return (2 [true positive] - f1 ([positive] + [predicted])) / (positives + predicted)."""
    hits, counts = _hits_and_counts(predicted, codes)
    total = _sums(_or_ones(weights, codes) * counts, _ONE_FOLD)
    f1 = 2 * _sums(_or_ones(weights, codes) * hits, _ONE_FOLD) / total
    return (2 * hits - f1 * counts) / total


def _hits_and_counts(predicted: Array, codes: Array) -> tuple[Array, Array]:
    """Return [true positive] and [positive] + [predicted positive] for each row."""
    is_positive, is_predicted = (codes == 1).astype(np.float64), predicted == 1
    return is_positive * is_predicted, is_positive + is_predicted


# Metrics of ranked rows

# Folds are sorted in batches of at most this many rows, whose arrays fit into a CPU cache.
_ROWS_PER_BATCH = 1 << 14


def _ranked_by(response: Array) -> Array:
    """Return the scores for ranking: decision values, or probabilities of the second class."""
    return response if response.ndim == 1 else response[:, 1]


def _curves(
    response: Array, codes: Array, weights: Weights, begins: Array
) -> Iterator[tuple[Array, ...]]:
    """Yield cumulative weights of ranked rows, for batches of folds of the same size.

    The rows of each batch are sorted as a matrix with one fold per row.

    Yields
    ------
    folds : ndarray of int
    positives, negatives : ndarray of float64
        The total weight of positive and of negative rows at or above each threshold, one fold
        after the other. The thresholds of a fold are its distinct scores in descending order.
    firsts, lasts : ndarray of int
        The indices of the first and the last threshold of each fold.
    """
    descending = -_ranked_by(response)
    sizes = fold_sizes(begins, len(codes))
    by_size = np.argsort(sizes, kind="stable")
    distinct, firsts_of_size = np.unique(sizes[by_size], return_index=True)
    for size, of_size in zip(distinct, np.split(by_size, firsts_of_size[1:]), strict=True):
        step = max(1, _ROWS_PER_BATCH // size)
        for folds in (of_size[i : i + step] for i in range(0, len(of_size), step)):
            starts = begins[folds, None]
            rows = starts + np.argsort(descending[starts + np.arange(size)], axis=1)
            ranked = descending[rows]
            is_last = np.ones(rows.shape, bool)  # whether a row is the last one with its score
            np.not_equal(ranked[:, 1:], ranked[:, :-1], out=is_last[:, :-1])
            is_positive = codes[rows] == 1
            of_rows = 1.0 if weights is None else weights[rows]
            positives = np.cumsum(of_rows * is_positive, axis=1)[is_last]
            negatives = np.cumsum(of_rows * ~is_positive, axis=1)[is_last]
            ends = np.cumsum(np.count_nonzero(is_last, axis=1))
            yield folds, positives, negatives, np.append(0, ends[:-1]), ends - 1


def _steps(cumulated: Array, firsts: Array) -> Array:
    """Return the differences between consecutive values of a curve; each fold starts from 0."""
    steps = np.diff(cumulated, prepend=0)
    steps[firsts] = cumulated[firsts]
    return steps


def _roc_auc(response: Array, codes: Array, weights: Weights, begins: Array) -> Array:
    """Return the area under the ROC curve, by the trapezoidal rule."""
    scores = np.empty(len(begins))
    for folds, positives, negatives, firsts, lasts in _curves(response, codes, weights, begins):
        heights = positives - _steps(positives, firsts) / 2
        areas = _sums(_steps(negatives, firsts) * heights, firsts)
        scores[folds] = areas / positives[lasts] / negatives[lasts]
    are_undefined = np.isnan(scores) & _have_weight(weights, begins)
    _warn("roc_auc", "undefined (NaN)", are_undefined, "which have rows of one class only")
    return scores


def _roc_auc_influence(response: Array, codes: Array, weights: Weights) -> Array:
    """Return (correctly ranked share of the other class - AUC) / weight of the own class.

    Ties count half. The shares are the placement values of DeLong, DeLong and Clarke-Pearson
    (1988).
    """
    distinct, rank = np.unique(_ranked_by(response), return_inverse=True)
    weights, is_positive = _or_ones(weights, codes), codes == 1
    positives = np.bincount(rank, weights * is_positive, len(distinct))
    negatives = np.bincount(rank, weights * ~is_positive, len(distinct))
    below = (np.cumsum(negatives) - negatives / 2) / negatives.sum()
    above = 1 - (np.cumsum(positives) - positives / 2) / positives.sum()
    auc = (positives * below).sum() / positives.sum()
    of_positive, of_negative = (below - auc) / positives.sum(), (above - auc) / negatives.sum()
    return np.where(is_positive, of_positive[rank], of_negative[rank])


def _average_precision(response: Array, codes: Array, weights: Weights, begins: Array) -> Array:
    """Return the mean precision over thresholds, weighted by the positives at each threshold."""
    scores = np.empty(len(begins))
    for folds, positives, negatives, firsts, lasts in _curves(response, codes, weights, begins):
        precision = np.where(positives > 0, positives / (positives + negatives), 0)
        scores[folds] = _sums(_steps(positives, firsts) * precision, firsts) / positives[lasts]
    are_empty = np.isnan(scores) & _have_weight(weights, begins)
    _warn("average_precision", "set to 0", are_empty, "which have no positive rows")
    return np.where(are_empty, 0, scores)


def _average_precision_influence(response: Array, codes: Array, weights: Weights) -> Array:
    """Return [positive] (precision - AP) / P, plus the effect on the precisions.

    P is the total weight of positives. A row changes the precision TP / (TP + FP) at its own
    threshold and at all lower thresholds: a positive row by FP / (TP + FP)^2, a negative row by
    -TP / (TP + FP)^2. The thresholds are weighted by their share of P.
    """
    distinct, rank = np.unique(-_ranked_by(response), return_inverse=True)
    weights, is_positive = _or_ones(weights, codes), codes == 1
    positives = np.bincount(rank, weights * is_positive, len(distinct))
    tp, both = np.cumsum(positives), np.cumsum(np.bincount(rank, weights, len(distinct)))
    precision = np.where(both > 0, tp / both, 1.0)
    share = positives / tp[-1]
    change = np.where(both > 0, share / both, 0.0)
    direct_effect = (precision - (share * precision).sum()) / tp[-1]
    of_positive = direct_effect + np.cumsum((change * (1 - precision))[::-1])[::-1]
    of_negative = -np.cumsum((change * precision)[::-1])[::-1]
    return np.where(is_positive, of_positive[rank], of_negative[rank])


_CLASSIFICATION_METRICS = {
    "accuracy": _mean_metric(lambda predicted, codes: predicted == codes),
    "balanced_accuracy": FoldMetric(_balanced_accuracy, _balanced_accuracy_influence),
    "f1": FoldMetric(_f1, _f1_influence),
    "neg_log_loss": _mean_metric(_log_likelihood, _lack_a_class),
    "neg_brier_score": _mean_metric(
        _neg_brier, lambda p, codes, begins: _lack_a_class(p, codes, begins) & (p.shape[1] > 2)
    ),
    "roc_auc": FoldMetric(_roc_auc, _roc_auc_influence),
    "average_precision": FoldMetric(_average_precision, _average_precision_influence),
}
_REGRESSION_METRICS = {
    "neg_mean_squared_error": _mean_metric(
        lambda predicted, y: mean_over_targets(-((predicted - y) ** 2))
    ),
    "neg_mean_absolute_error": _mean_metric(
        lambda predicted, y: mean_over_targets(-abs(predicted - y))
    ),
    "neg_root_mean_squared_error": FoldMetric(_neg_rmse, _neg_rmse_influence),
    "r2": FoldMetric(_r2, _r2_influence),
}

#: All metrics, by the name of the scorer in scikit-learn.
METRICS = _CLASSIFICATION_METRICS | _REGRESSION_METRICS
