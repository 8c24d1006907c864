"""Out-of-fold scores: scores of folds, scores of rows, and scores pooled over all rows.

The "spread" of a fold consists of three sums over its row scores, which give standard errors.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from functools import partial
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.estimators.base import name_of
from optuna_treecv.scoring.fold_metrics import fold_metric
from optuna_treecv.scoring.metrics import fold_sizes
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scorers import StandIn
from optuna_treecv.scoring.scorers import undefined
from optuna_treecv.types import Array


@dataclass(eq=False)
class TestedRows:
    """Test rows of consecutive folds, with the outputs of the models of these folds.

    Attributes
    ----------
    outputs : ndarray of shape (n_rows, n_outputs)
        The outputs of the models. They are not finite if the model has diverged.
    respond : callable
        (outputs, method) -> the output of the response method.
    targets : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
        Class codes or numbers.
    weights : ndarray of shape (n_rows,), float64, or None
    begins : ndarray of shape (n_folds,), int, or None
        The index of the first row of each fold, beginning with 0; None: each row is a fold.
    methods : collection of str or None
        The response methods that can be computed from the outputs; None: all methods.
    """

    __test__ = False  # for pytest

    outputs: Array
    respond: Callable[[Array, str], Array]
    targets: Array | None
    weights: Array | None
    begins: Array | None
    methods: Collection[str] | None = None
    _responses: dict[str, Array] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls,
        rows: Any,
        part: Any,
        outputs: Array,
        respond: Callable[[Array, str], Array],
        begins: Array | None,
        methods: Collection[str] | None = None,
    ) -> "TestedRows":
        """Create tested rows from a selection of prepared rows, with their targets and weights."""
        targets = None if rows.targets is None else rows.targets[part]
        weights = None if rows.score_weights is None else rows.score_weights[part]
        return cls(outputs, respond, targets, weights, begins, methods)

    @cached_property
    def are_finite(self) -> bool:
        """Whether all outputs are finite."""
        with np.errstate(all="ignore"):
            # A non-finite entry makes the sum non-finite, but so may large entries.
            return bool(np.isfinite(self.outputs.sum()) or np.isfinite(self.outputs).all())

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def n_folds(self) -> int:
        return len(self) if self.begins is None else len(self.begins)

    def all_begins(self) -> Array:
        """Return the index of the first row of each fold, as an array."""
        return np.arange(len(self)) if self.begins is None else self.begins

    def part(self, first: int, last: int) -> "TestedRows":
        """Return the rows of the folds ``first`` to ``last - 1``."""
        rows = slice(first, last)
        if self.begins is not None:
            ends = np.append(self.begins[first : last + 1], len(self))
            rows = slice(ends[0], ends[last - first])
        return TestedRows(
            self.outputs[rows],
            self.respond,
            None if self.targets is None else self.targets[rows],
            None if self.weights is None else self.weights[rows],
            None if self.begins is None else self.begins[first:last] - rows.start,
            self.methods,
        )

    def split_targets(self) -> "list[TestedRows]":
        """Return the rows with each target alone; the output of a target is its prediction."""
        outputs, targets = self.outputs, self.targets
        assert targets is not None
        return [
            TestedRows(outputs[:, [i]], self.respond, of_target, self.weights, self.begins)
            for i, of_target in enumerate(targets.reshape(outputs.shape).T)
        ]

    def response(self, method: str) -> Array:
        if method not in self._responses:
            with np.errstate(all="ignore"):
                self._responses[method] = self.respond(self.outputs, method)
        return self._responses[method]

    def in_folds(self, rows: Array) -> Array:
        """Return a mask of the folds that contain any of the rows in the mask ``rows``."""
        return rows if self.begins is None else np.logical_or.reduceat(rows, self.begins)

    def diverged(self) -> Array:
        """Return a mask of the folds with non-finite outputs, (n_folds,)."""
        if self.are_finite:
            return np.zeros(self.n_folds, bool)
        return self.in_folds(~np.all(np.isfinite(self.outputs), axis=1))

    def rows_of(self, folds: Array) -> Array:
        """Repeat the entry of each fold, (n_folds,), for each of its rows, (n_rows,)."""
        if self.begins is None:
            return folds
        return np.repeat(folds, fold_sizes(self.begins, len(self)))


#: The number of sums in the spread of a fold.
SPREAD_SIZE = 3


#: An entry of ``FoldScores.diverged``: the predictions, and not only the score, are not finite.
#: Not all engines make this distinction.
OUTPUTS_DIVERGED = 2


class FoldScores(NamedTuple):
    """Fold scores by several metrics. For a single metric, arrays lack the first axis.

    Attributes
    ----------
    scores : ndarray of shape (n_metrics, n_folds) or (n_folds,)
        NaN for pooled scores.
    diverged : ndarray of shape (n_folds,), bool
        A mask of the folds that have diverged.
    spreads : ndarray of shape (n_metrics, 3, n_folds) or (3, n_folds), or None
        The spread of row scores within each fold, see ``spread_of``. NaN if unknown. None if each
        fold is a single row, or if the spread of a single metric is unknown.
    """

    scores: Array
    diverged: Array
    spreads: Array | None

    def part(self, begin: int, n_folds: int) -> "FoldScores":
        """Return the scores of ``n_folds`` folds from ``begin`` on."""
        folds = slice(begin, begin + n_folds)
        spreads = None if self.spreads is None else self.spreads[..., folds]
        return FoldScores(self.scores[..., folds], self.diverged[folds], spreads)


def by_loss(loss: Loss, rows: TestedRows) -> FoldScores:
    """Return the mean loss of each fold."""
    with np.errstate(all="ignore"):
        losses = loss.of_rows(rows.response(loss.methods), rows.targets)
        if rows.begins is None:  # each row is a fold, so its weight cancels
            scores = losses
        elif rows.weights is None:
            scores = np.add.reduceat(losses, rows.begins) / fold_sizes(rows.begins, len(rows))
        else:
            totals = np.add.reduceat(rows.weights, rows.begins)
            scores = np.add.reduceat(rows.weights * losses, rows.begins) / totals
        spread = _spread(loss, losses, scores, rows)
        if np.isfinite(scores.sum()) and rows.are_finite:
            return FoldScores(scores, np.zeros(len(scores), bool), spread)
    diverged = rows.diverged() | rows.in_folds(~np.isfinite(losses)) | ~np.isfinite(scores)
    scores[diverged] = loss.if_diverged
    return FoldScores(scores, diverged, spread)


def by_scorer(
    scorer: Scorer,
    rows: TestedRows,
    estimator: Any,
    classes: Array | None,
    called: Array | None = None,
) -> FoldScores:
    """Return the score of each fold by a scorer, with the spread of row scores if known.

    Parameters
    ----------
    scorer : Scorer
    rows : TestedRows
    estimator : estimator
        An estimator of the same class as the tested models.
    classes : ndarray or None
        The sorted classes of all rows.
    called : ndarray of shape (n_folds,) or None
        The fold scores, if the scorer has been called already.

    Raises
    ------
    ValueError
        If the score is undefined on a fold, and the scorer has no ``error_score``.
    """
    formula = fold_metric(scorer, classes) if called is None else None
    if formula is None:
        scores = (
            call_scorer_per_fold(scorer, rows, estimator, classes) if called is None else called
        )
        return FoldScores(scores, scores == scorer.if_diverged, None)
    diverged = rows.diverged()
    targets: Any = rows.targets
    begins = rows.all_begins()
    response = rows.response(response_of(scorer, estimator))
    with np.errstate(all="ignore"):
        of_rows = [] if formula.of_rows is None else [formula.of_rows(response, targets)]
        scores = formula.of_folds(response, targets, rows.weights, begins, *of_rows)
    missing = np.isnan(scores) & ~diverged
    if np.any(missing):
        if scorer.error_score is None:
            n_rows = fold_sizes(begins, len(rows))[np.argmax(missing)]
            raise undefined(scorer, "NaN", estimator, int(n_rows))
        scores[missing] = call_scorer_per_fold(scorer, rows, estimator, classes, missing)[missing]
    with np.errstate(all="ignore"):
        spread = _spread(scorer, of_rows[0], scores, rows) if of_rows else None
    diverged |= np.isinf(scores)
    scores[diverged] = scorer.if_diverged
    return FoldScores(scores, diverged, spread)


def _spread(metric: Loss | Scorer, values: Array, scores: Array, rows: TestedRows) -> Array | None:
    """Return the spread of the row scores within each fold; None if each row is a fold."""
    if rows.begins is None:
        return None
    if metric.is_zero_one and rows.weights is None:
        return spread_of_counts(scores, fold_sizes(rows.begins, len(rows)))
    return spread_of(values, scores, rows.weights, rows.begins)


def spread_of(values: Array, means: Array, weights: Array | None, begins: Array) -> Array:
    r"""Return three sums per fold from which the variance of the mean score can be computed.

    For row scores :math:`\ell_i` with mean :math:`r` and shares :math:`f_i = w_i / \sum w`, the
    sums are :math:`\sum f_i^2 (\ell_i - r)^2`, :math:`\sum f_i^2 (\ell_i - r)` and :math:`\sum
    f_i^2`. They determine :math:`\sum f_i^2 (\ell_i - c)^2` for any centre c.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        The scores of the rows.
    means : ndarray of shape (n_folds,)
        The score of each fold.
    weights : ndarray of shape (n_rows,) or None
    begins : ndarray of shape (n_folds,), int
        The index of the first row of each fold, beginning with 0.

    Returns
    -------
    ndarray of shape (3, n_folds)
    """
    sizes = fold_sizes(begins, len(values))
    spread = np.zeros((SPREAD_SIZE, len(begins)))
    centred = values - np.repeat(means, sizes)
    if weights is None:
        spread[0] = np.add.reduceat(np.square(centred), begins) / np.square(sizes, dtype=float)
        spread[2] = 1 / sizes
        return spread
    squares = np.square(weights / np.repeat(np.add.reduceat(weights, begins), sizes))
    for i, power in enumerate((np.square(centred), centred, 1.0)):
        spread[i] = np.add.reduceat(squares * power, begins)
    return spread


def spread_of_counts(means: Array, sizes: Array) -> Array:
    """Return the sums of ``spread_of`` for unweighted scores of 0 or 1, from their means.

    Parameters
    ----------
    means : ndarray of shape (n_folds,)
    sizes : ndarray of shape (n_folds,), int
        The number of rows of each fold.
    """
    spread = np.zeros((SPREAD_SIZE, len(means)))
    spread[0] = means * (1 - means) / sizes
    spread[2] = 1 / sizes
    return spread


def unknown_spreads(n_metrics: int, n_folds: int) -> Array:
    """Return an array of spreads that are all unknown (NaN)."""
    return np.full((n_metrics, SPREAD_SIZE, n_folds), np.nan)


def in_full(spreads: Array | None, shape: tuple[int, ...]) -> Array:
    """Return spreads as an array, even if they are None because each fold is a single row.

    Parameters
    ----------
    spreads : ndarray of shape (n_metrics, 3, n_folds) or None
    shape : (int, int)
        (n_metrics, n_folds).
    """
    if spreads is not None:
        return spreads
    n_metrics, n_folds = shape
    single = np.zeros((n_metrics, SPREAD_SIZE, n_folds))
    single[:, 2] = 1.0
    return single


def joined(scores: Sequence[FoldScores]) -> FoldScores:
    """Concatenate the scores of consecutive runs of folds; the spreads become arrays."""
    spreads = [in_full(s.spreads, s.scores.shape) for s in scores]
    return FoldScores(
        np.concatenate([s.scores for s in scores], axis=1),
        np.concatenate([s.diverged for s in scores]),
        np.concatenate(spreads, axis=2),
    )


def scores_of_folds(
    metrics: Sequence[Metric],
    rows: TestedRows,
    estimator: Any,
    classes: Array | None,
    called: Mapping[int, Array] | None = None,
) -> FoldScores:
    """Return the scores of all folds by several metrics.

    Parameters
    ----------
    metrics : sequence of Loss, Scorer or Pooled
        The metrics; scorers must not need more than predictions.
    rows : TestedRows
    estimator : estimator
        An estimator of the same class as the tested models.
    classes : ndarray or None
        The sorted classes of all rows.
    called : mapping of int to ndarray of shape (n_folds,), or None
        The scores that are known already, by index of the metric.
    """
    called = called or {}
    scores = np.full((len(metrics), rows.n_folds), np.nan)
    diverged = np.zeros(rows.n_folds, bool)
    spreads = None if rows.begins is None else unknown_spreads(*scores.shape)
    for i, metric in enumerate(metrics):
        if isinstance(metric, Loss):
            of_metric = by_loss(metric, rows)
        elif isinstance(metric, Pooled):
            of_metric = FoldScores(scores[i], rows.diverged(), None)
        else:
            of_metric = by_scorer(metric, rows, estimator, classes, called.get(i))
        scores[i] = of_metric.scores
        diverged |= of_metric.diverged
        if of_metric.spreads is not None and spreads is not None:
            spreads[i] = of_metric.spreads
    return FoldScores(scores, diverged, spreads)


def call_scorer_per_fold(
    scorer: Scorer,
    rows: TestedRows,
    estimator: Any,
    classes: Array | None,
    folds: Array | None = None,
) -> Array:
    """Call a scorer for each fold, and return its scores, (n_folds,).

    ``folds`` is a mask of the folds to score; None: all folds that have not diverged.
    """
    stand_in = StandIn(estimator, classes, response_of(scorer, estimator))
    begins = rows.all_begins()
    ends = np.append(begins[1:], len(rows))
    scores = np.where(rows.diverged(), scorer.if_diverged, np.nan)
    for fold in np.flatnonzero(np.isnan(scores) if folds is None else folds):
        scores[fold] = stand_in.scored(scorer, rows, slice(begins[fold], ends[fold]))
    return scores


def are_known(metrics: Sequence[Metric], scores: Array) -> bool:
    """Return whether all fold scores are known (not NaN); pooled metrics are ignored.

    Parameters
    ----------
    metrics : sequence of Metric
    scores : ndarray of shape (n_metrics, ...)
    """
    return not any(
        np.isnan(of_metric).any()
        for metric, of_metric in zip(metrics, scores, strict=True)
        if not isinstance(metric, Pooled)
    )


def can_score_rows(metric: Metric, classes: Array | None) -> bool:
    """Return whether a metric is a mean over rows whose scores can be computed."""
    if isinstance(metric, Scorer):
        formula = fold_metric(metric, classes)
        return metric.is_mean and formula is not None and formula.of_rows is not None
    return isinstance(metric, Loss)


def scores_of_rows(
    metric: Metric, rows: TestedRows, estimator: Any, classes: Array | None
) -> Array:
    """Return the score of each row, as float64 of shape (n_rows,).

    Parameters
    ----------
    metric : Loss or Scorer
        A metric that satisfies ``can_score_rows``.
    rows : TestedRows
    estimator : estimator
        An estimator of the same class as the tested models.
    classes : ndarray or None
        The sorted classes of all rows.
    """
    rows = copy(rows)  # each row becomes a fold, so weights cancel
    rows.begins = rows.weights = None
    if isinstance(metric, Loss):
        return by_loss(metric, rows).scores
    formula = fold_metric(metric, classes)
    assert isinstance(metric, Scorer) and formula is not None and formula.of_rows is not None
    targets: Any = rows.targets
    with np.errstate(all="ignore"):
        scores = formula.of_rows(rows.response(response_of(metric, estimator)), targets)
    scores = scores.astype(np.float64)
    scores[~np.isfinite(scores) | rows.diverged()] = metric.if_diverged
    return scores


#: For each metric, the function of (errors, totals, weights) that ``scores_from_squares`` calls.
#: It averages over targets.
_FROM_SQUARES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "squared_error": lambda errors, totals, weights: (errors / weights).mean(axis=-1),
    "neg_mean_squared_error": lambda errors, totals, weights: -(errors / weights).mean(axis=-1),
    "neg_root_mean_squared_error": lambda errors, totals, weights: (
        -np.sqrt(errors / weights).mean(axis=-1)
    ),
    "r2": lambda errors, totals, weights: (1 - errors / totals).mean(axis=-1),
}


def can_score_from_squares(metrics: Sequence[Metric]) -> bool:
    """Return whether all scores can be computed from sums of squares."""
    return all(m.is_registered and m.name in _FROM_SQUARES for m in metrics)


def scores_from_squares(
    metrics: Sequence[Metric], errors: Array, totals: Array, weights: Array
) -> Array | None:
    """Return the scores, (n_candidates, n_metrics, n_folds), from sums of squares, or None.

    None means that the scores are undefined: a sum of errors is not finite, or "r2" would divide
    by 0.

    Parameters
    ----------
    metrics : sequence of Metric
    errors : ndarray of shape (n_candidates, n_folds, n_targets)
        sum w (y - prediction)^2 for each fold.
    totals : ndarray of shape (n_folds, n_targets)
        sum w (y - mean)^2.
    weights : ndarray of shape (n_folds,)
        sum w.
    """
    names = [metric.name for metric in metrics]
    if not np.all(np.isfinite(errors)) or ("r2" in names and np.any(totals <= 0)):
        return None
    weights = weights[:, None]
    return np.stack([_FROM_SQUARES[name](errors, totals, weights) for name in names], axis=1)


# Pooled scores. The mean over folds of a score is only meaningful if the score is defined on each
# fold: for example, a single row has no ROC AUC. A pooled score can always be computed, but it
# compares predictions of different models with each other.

# The maximum number of groups of folds in the delete-group jackknife.
_MAX_JACKKNIFE_GROUPS = 50


def pooled_score(
    metric: Pooled, rows: TestedRows, estimator: Any, classes: Array | None
) -> tuple[float, float]:
    r"""Return a score over all rows, and its standard error (NaN if unknown).

    The standard error is computed by the infinitesimal jackknife: :math:`\sqrt{\sum_i (w_i \,
    \partial \theta / \partial w_i)^2}` for a score :math:`\theta` and row weights :math:`w_i`
    (Jaeckel 1972; Efron 1982, chapter 6). For scorers whose derivatives are unknown, it is
    computed by the delete-group jackknife with up to 50 groups of folds.

    Parameters
    ----------
    metric : Pooled
    rows : TestedRows
    estimator : estimator
        An estimator of the same class as the tested models.
    classes : ndarray or None

    Raises
    ------
    ValueError
        If the score is undefined on the rows.
    """
    method = response_of(metric, estimator)
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    targets: Any = rows.targets
    if isinstance(metric.of, Loss):
        with np.errstate(all="ignore"):
            losses = metric.of.of_rows(rows.response(method), rows.targets)
            losses = np.where(rows.rows_of(rows.diverged()), metric.of.if_diverged, losses)
            mean = float(np.average(losses, weights=rows.weights))
            if not np.isfinite(mean):
                return metric.if_diverged, np.nan
            influence = (losses - mean) / weights.sum()
        return mean, _root_sum_of_squares(weights * influence)
    if np.any(rows.diverged()):
        return metric.if_diverged, np.nan
    formula = fold_metric(metric.of, classes)
    response = rows.response(method)
    if method == "predict" and classes is not None:
        response = response.astype(np.intp)  # class codes, which may be stored as floats
    if formula is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            value = formula.of_folds(response, targets, rows.weights, np.zeros(1, np.int64))[0]
            if np.isfinite(value):
                influence = formula.influence(response, targets, rows.weights)
                return float(value), _root_sum_of_squares(weights * influence)
    if method == "predict" and classes is not None and np.any(response < 0):
        raise ValueError(
            f"scoring={metric.of.name!r} cannot be pooled, because {name_of(estimator)} predicts "
            "labels that are not classes of y; use 'error' instead."
        )
    stand_in = StandIn(estimator, classes, method)
    score = partial(stand_in.scored, metric.of, rows, is_pooled=True)
    return score(slice(None)), _jackknife(score, rows)


def _jackknife(score: Any, rows: TestedRows) -> float:
    """Return the standard error of a score by the delete-group jackknife over groups of folds."""
    n_groups = min(rows.n_folds, _MAX_JACKKNIFE_GROUPS)
    if n_groups == 1:
        return np.nan
    group_of_fold = np.arange(rows.n_folds) * n_groups // rows.n_folds
    group_of_row = rows.rows_of(group_of_fold)
    try:
        replicates = np.array([score(group_of_row != group) for group in range(n_groups)])
    except ValueError:  # the score is undefined without one of the groups
        return np.nan
    if not np.all(np.isfinite(replicates)):
        return np.nan
    return float(np.sqrt((n_groups - 1) * np.var(replicates)))


def _root_sum_of_squares(parts: Array) -> float:
    return float(np.sqrt(np.sum(np.square(parts))))
