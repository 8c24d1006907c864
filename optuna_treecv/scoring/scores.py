"""Out-of-fold scores: of folds, of rows, and pooled over all rows.

The spread of row scores within folds gives standard errors.
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
    """Test rows with the outputs of their models, fold after fold.

    Attributes
    ----------
    outputs : ndarray of shape (n_rows, n_outputs)
        Not finite if the model is not.
    respond : callable
        (outputs, method) -> response.
    targets : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
        Class codes or numbers.
    weights : ndarray of shape (n_rows,), float64, or None
    begins : ndarray of shape (n_folds,), int, or None
        The first row of each fold, 0 first; None: each row is a fold.
    methods : collection of str or None
        The response methods that can be computed from the outputs; None: all.
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
        """Return the prepared rows ``part`` with their targets and weights."""
        targets = None if rows.targets is None else rows.targets[part]
        weights = None if rows.score_weights is None else rows.score_weights[part]
        return cls(outputs, respond, targets, weights, begins, methods)

    @cached_property
    def are_finite(self) -> bool:
        """Whether all outputs are finite."""
        with np.errstate(all="ignore"):
            # A non-finite value makes the sum non-finite; so may large values.
            return bool(np.isfinite(self.outputs.sum()) or np.isfinite(self.outputs).all())

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def n_folds(self) -> int:
        return len(self) if self.begins is None else len(self.begins)

    def all_begins(self) -> Array:
        """Return the first row of each fold."""
        return np.arange(len(self)) if self.begins is None else self.begins

    def part(self, first: int, last: int) -> "TestedRows":
        """Return the rows of the folds first to last - 1."""
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

    def response(self, method: str) -> Array:
        if method not in self._responses:
            with np.errstate(all="ignore"):
                self._responses[method] = self.respond(self.outputs, method)
        return self._responses[method]

    def in_folds(self, rows: Array) -> Array:
        """Return which folds contain any of these rows, from bool (n_rows,) to bool (n_folds,)."""
        return rows if self.begins is None else np.logical_or.reduceat(rows, self.begins)

    def diverged(self) -> Array:
        """Return which folds have non-finite outputs, (n_folds,)."""
        if self.are_finite:
            return np.zeros(self.n_folds, bool)
        return self.in_folds(~np.all(np.isfinite(self.outputs), axis=1))

    def rows_of(self, folds: Array) -> Array:
        """Return which rows are in the given folds, from bool (n_folds,) to bool (n_rows,)."""
        if self.begins is None:
            return folds
        return np.repeat(folds, fold_sizes(self.begins, len(self)))


#: The length of a fold's spread.
SPREAD_SIZE = 3


#: In ``FoldScores.diverged``, if an engine distinguishes this: predictions are not finite.
OUTPUTS_DIVERGED = 2


class FoldScores(NamedTuple):
    """The scores of some folds by several metrics; without the first axis, by one metric.

    Attributes
    ----------
    scores : ndarray of shape (n_metrics, n_folds) or (n_folds,)
        NaN for pooled scores.
    diverged : ndarray of shape (n_folds,), bool
        Which folds have diverged.
    spreads : ndarray of shape (n_metrics, 3, n_folds) or (3, n_folds), or None
        The spread of row scores within each fold, see ``spread_of``. NaN if unknown; None if each
        fold is a single row, which has no spread, or if that of a single metric is unknown.
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
        if rows.begins is None:  # each row is a fold, so that its weight cancels
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
    """Return the score of each fold by a scorer.

    Parameters
    ----------
    scorer : Scorer
    rows : TestedRows
    estimator : estimator
        An estimator of the tested class.
    classes : ndarray or None
        The sorted classes of all rows.
    called : ndarray of shape (n_folds,) or None
        The scores, if the scorer was called already.

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
    """Return the spread of row scores within folds; None if each row is a fold."""
    if rows.begins is None:
        return None
    if metric.is_zero_one and rows.weights is None:
        return spread_of_counts(scores, fold_sizes(rows.begins, len(rows)))
    return spread_of(values, scores, rows.weights, rows.begins)


def spread_of(values: Array, means: Array, weights: Array | None, begins: Array) -> Array:
    r"""Return the sums from which the variance of a mean over all folds is estimated.

    For a fold with mean :math:`r` of values :math:`\ell_i`, and shares :math:`f_i = w_i / \sum w`
    of its rows, these are :math:`\sum f_i^2 (\ell_i - r)^2`, :math:`\sum f_i^2 (\ell_i - r)` and
    :math:`\sum f_i^2`. They determine :math:`\sum f_i^2 (\ell_i - c)^2` for every centre c.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        The scores of the rows.
    means : ndarray of shape (n_folds,)
        The score of each fold.
    weights : ndarray of shape (n_rows,) or None
    begins : ndarray of shape (n_folds,), int
        The first row of each fold, 0 first.

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
    """Return the sums of ``spread_of`` for values 0 or 1 with equal weights, from their means.

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
    """Return unknown spreads, all NaN."""
    return np.full((n_metrics, SPREAD_SIZE, n_folds), np.nan)


def in_full(spreads: Array | None, shape: tuple[int, ...]) -> Array:
    """Return the spreads of ``FoldScores`` as an array, even if each fold is a single row.

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
    """Return the concatenated scores of neighbouring folds, with spreads as arrays."""
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
    """Return the scores of folds.

    Parameters
    ----------
    metrics : sequence of Loss, Scorer or Pooled
        Scorers must need only predictions.
    rows : TestedRows
    estimator : estimator
        An estimator of the tested class.
    classes : ndarray or None
        The sorted classes of all rows.
    called : mapping of int to ndarray of shape (n_folds,), or None
        The known scores by the index of the metric.
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
    """Return the scores of folds, (n_folds,), by calling a scorer for each fold.

    With ``folds``, (n_folds,) of bool, only the scores of these folds are computed.
    """
    stand_in = StandIn(estimator, classes, response_of(scorer, estimator))
    begins = rows.all_begins()
    ends = np.append(begins[1:], len(rows))
    scores = np.where(rows.diverged(), scorer.if_diverged, np.nan)
    for fold in np.flatnonzero(np.isnan(scores) if folds is None else folds):
        scores[fold] = stand_in.scored(scorer, rows, slice(begins[fold], ends[fold]))
    return scores


def are_known(metrics: Sequence[Metric], scores: Array) -> bool:
    """Return whether no fold score is NaN, except for pooled metrics.

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
    """Return whether a metric is a mean of row scores that can be computed."""
    if isinstance(metric, Scorer):
        formula = fold_metric(metric, classes)
        return metric.is_mean and formula is not None and formula.of_rows is not None
    return isinstance(metric, Loss)


def scores_of_rows(
    metric: Metric, rows: TestedRows, estimator: Any, classes: Array | None
) -> Array:
    """Return the score of each row, (n_rows,) of float64.

    Parameters
    ----------
    metric : Loss or Scorer
        A metric for which ``can_score_rows`` is true.
    rows : TestedRows
    estimator : estimator
        An estimator of the tested class.
    classes : ndarray or None
        The sorted classes of all rows.
    """
    rows = copy(rows)  # each row as a fold, so that weights cancel
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


#: Functions of the arguments of ``scores_from_squares`` by the names of metrics; the mean over
#: several targets.
_FROM_SQUARES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "squared_error": lambda errors, totals, weights: (errors / weights).mean(axis=-1),
    "neg_mean_squared_error": lambda errors, totals, weights: -(errors / weights).mean(axis=-1),
    "neg_root_mean_squared_error": lambda errors, totals, weights: (
        -np.sqrt(errors / weights).mean(axis=-1)
    ),
    "r2": lambda errors, totals, weights: (1 - errors / totals).mean(axis=-1),
}


def can_score_from_squares(metrics: Sequence[Metric]) -> bool:
    """Return whether all scores are functions of sums of squares."""
    return all(m.is_registered and m.name in _FROM_SQUARES for m in metrics)


def scores_from_squares(
    metrics: Sequence[Metric], errors: Array, totals: Array, weights: Array
) -> Array | None:
    """Return the scores, (n_candidates, n_metrics, n_folds); None if the sums do not define them.

    Parameters
    ----------
    metrics : sequence of Metric
    errors : ndarray of shape (n_candidates, n_folds, n_targets)
        sum w (y - prediction)^2 of each fold.
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


# Pooled scores. A mean over folds needs folds on which a score is defined and meaningful: one row
# has no area under a curve. A pooled score does not, but it compares predictions of different
# models with each other.

# The maximum number of groups of folds of the jackknife.
_MAX_JACKKNIFE_GROUPS = 50


def pooled_score(
    metric: Pooled, rows: TestedRows, estimator: Any, classes: Array | None
) -> tuple[float, float]:
    r"""Return a score over all rows and its standard error, which is NaN if unknown.

    The standard error is that of the infinitesimal jackknife,
    :math:`\sqrt{\sum_i (w_i \, \partial \theta / \partial w_i)^2}` for a score
    :math:`\theta` and rows of weights :math:`w_i` (Jaeckel 1972; Efron 1982, chapter 6). For a
    scorer without known derivatives it is that of the delete-group jackknife with up to 50 groups
    of folds.

    Parameters
    ----------
    metric : Pooled
    rows : TestedRows
    estimator : estimator
        An estimator of the tested class.
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
        response = response.astype(np.intp)  # class codes, perhaps stored as floats
    if formula is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            value = formula.of_folds(response, targets, rows.weights, np.zeros(1, np.int64))[0]
            if np.isfinite(value):
                influence = formula.influence(response, targets, rows.weights)
                return float(value), _root_sum_of_squares(weights * influence)
    if method == "predict" and classes is not None and np.any(response < 0):
        raise ValueError(
            f"scoring={metric.of.name!r} cannot be pooled for {name_of(estimator)}, which "
            "predicts a label that is not a class of y, or no label; use 'error' instead."
        )
    stand_in = StandIn(estimator, classes, method)
    score = partial(stand_in.scored, metric.of, rows, is_pooled=True)
    return score(slice(None)), _jackknife(score, rows)


def _jackknife(score: Any, rows: TestedRows) -> float:
    """Return the delete-group jackknife standard error of a score, by groups of folds."""
    n_groups = min(rows.n_folds, _MAX_JACKKNIFE_GROUPS)
    if n_groups == 1:
        return np.nan
    group_of_fold = np.arange(rows.n_folds) * n_groups // rows.n_folds
    group_of_row = rows.rows_of(group_of_fold)
    try:
        replicates = np.array([score(group_of_row != group) for group in range(n_groups)])
    except ValueError:  # it is undefined without a group
        return np.nan
    if not np.all(np.isfinite(replicates)):
        return np.nan
    return float(np.sqrt((n_groups - 1) * np.var(replicates)))


def _root_sum_of_squares(parts: Array) -> float:
    return float(np.sqrt(np.sum(np.square(parts))))
