"""The decision threshold of a binary classifier, chosen on the out-of-fold outputs of a trial."""

from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
import operator
import re

import numpy as np
from optuna.trial import FrozenTrial
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import FixedThresholdClassifier

from optuna_treecv.core.intervals import check_level
from optuna_treecv.core.run import Run
from optuna_treecv.crossval.losses import draw_units
from optuna_treecv.estimators.base import name_of
from optuna_treecv.rows.data import Data
from optuna_treecv.scoring.thresholds import count_at
from optuna_treecv.scoring.thresholds import Counts
from optuna_treecv.scoring.thresholds import find_best
from optuna_treecv.scoring.thresholds import find_thresholds
from optuna_treecv.scoring.thresholds import MAX_SLOW_THRESHOLDS
from optuna_treecv.scoring.thresholds import MAX_THRESHOLDS
from optuna_treecv.scoring.thresholds import Rates
from optuna_treecv.scoring.thresholds import rates_of
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque

# The number of bootstrap draws, and for metrics without a formula.
_N_DRAWS, _N_SLOW_DRAWS = 100, 20

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
    rates, metric_is_fast = rates_of("metric", metric)
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
    thresholds = find_thresholds(outputs, MAX_THRESHOLDS if is_fast else MAX_SLOW_THRESHOLDS)
    bins = np.searchsorted(-thresholds, -outputs)
    count = partial(count_at, bins, is_positive, weights, len(thresholds))
    scores, is_allowed = rates(*count()), allowed(*count())
    if not is_allowed.any():
        raise ValueError(
            f"constraint must hold at one threshold at least, got {constraint!r}; use a lower "
            "bound instead."
        )
    best = find_best(scores, is_allowed)
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
        default_score=float(rates(*count_at(is_default, is_positive, weights, 2))[0]),
        thresholds=thresholds,
        scores=scores,
        pos_label=pos_label,
        response_method=method,
        trial=trial,
    )


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
            drawn.append(find_best(rates(*inside), is_possible))
            of_chosen, of_best = rates(*(numbers[[drawn[-1], best]] for numbers in outside))
            changes.append(of_chosen - of_best)
    return drawn, changes


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
    rates, is_formula = rates_of("constraint", match[1])
    return (lambda *counts: compare(rates(*counts), bound)), is_formula
