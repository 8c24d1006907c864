r"""Confidence intervals around cross-validated scores, each with a description of its target.

The three methods have different targets. ``docs/user_guide/being_sure.rst`` shows where each
method fails.
"""

from dataclasses import dataclass
from dataclasses import replace
from functools import lru_cache
from math import isfinite
from math import log
from math import sqrt
from typing import Literal

import numpy as np
from scipy import stats

from optuna_treecv.core.settings import check_choice
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.core.tested import Tested
from optuna_treecv.rows.checks import is_float64
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import range_of
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.types import Array

#: The methods of ``CVResult.interval``.
METHODS = ("bayle", "nadeau_bengio", "hoeffding")

# The quantile of the chi-squared test for unstable learners. For a stable learner, the note
# appears by chance in one of 1000 evaluations.
_STABLE_QUANTILE = 1 - 1e-3

# The chi-squared test is omitted if a row has a larger share than this in its fold's score,
# because such a fold has too few rows.
_MAX_ROW_SHARE = 0.05

# A learner is unstable if the standard deviation of the means of its repeats exceeds this multiple
# of the standard error over rows.
_MAX_STD_OF_REPEATS = 2 / 3

IntervalMethod = Literal["bayle", "nadeau_bengio", "hoeffding"]
Bounds = tuple[float, float] | None


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes
    ----------
    low, high : float
        The lower and upper end, in the units of the score. They are clipped to the range of the
        score, if it has one.
    method : {"bayle", "nadeau_bengio", "hoeffding", "student", "bootstrap"}
        How the interval was computed.
    target : str
        The quantity that it covers, in words.
    level : float
        The probability with which the interval covers its target, if its assumptions hold.
    note : str
        The reason why the interval may be too narrow; "" if there is none.
    """

    low: float
    high: float
    method: str
    target: str
    level: float = 0.95
    note: str = ""

    def __repr__(self) -> str:
        """Return all attributes in a few lines."""
        note = f",\n    note={self.note!r}" if self.note else ""
        return (
            f"Interval(low={self.low:.6g}, high={self.high:.6g}, method={self.method!r}, "
            f"level={self.level:g},\n    target={self.target!r}{note})"
        )


class HasInterval:
    """Mixin that makes the ends and the level of an interval attributes of a result."""

    interval: Interval | None

    @property
    def low(self) -> float:
        """The lower end of the interval; NaN if there is none."""
        return float("nan") if self.interval is None else float(self.interval.low)

    @property
    def high(self) -> float:
        """The upper end of the interval; NaN if there is none."""
        return float("nan") if self.interval is None else float(self.interval.high)

    @property
    def level(self) -> float:
        """The probability with which the interval covers its target; NaN if there is none."""
        return float("nan") if self.interval is None else self.interval.level


@dataclass(frozen=True, eq=False)
class Scores:
    """The fold scores of one metric, and the statistics of row scores that its intervals need.

    Attributes
    ----------
    name : str
        The name of the metric in results.
    metric : Loss or Scorer
    by_fold : ndarray of shape (n_repeats, n_folds)
        The score of each fold, in the order of the folds.
    spreads : ndarray of shape (3, n_repeats, n_folds) or None
        Sums of squared deviations of the row scores in each fold, see ``spread_of`` in
        ``scoring/scores.py``. NaN if they are unknown; None if each fold is a single row.
    tested : Tested
        The test rows of all folds.
    """

    name: str
    metric: Loss | Scorer
    by_fold: Array
    spreads: Array | None
    tested: Tested


def check_level(level: float) -> float:
    """Return ``level`` as a float; raise an error if it is not between 0 and 1."""
    if not is_float64(level) or not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.95, got {level!r}.")
    return float(level)


def compute_interval(
    scores: Scores, method: str, level: float, loss_range: Bounds = None
) -> Interval:
    """Compute a confidence interval around the mean of fold scores.

    Parameters
    ----------
    scores : Scores
    method : {"bayle", "nadeau_bengio", "hoeffding"}
    level : float
    loss_range : (float, float) or None
        The minimum and maximum score of a row, for "hoeffding".
    """
    check_choice("method", method, METHODS)
    level = check_level(level)
    if loss_range is not None and method != "hoeffding":
        raise ValueError(
            f"loss_range must be None unless method='hoeffding', got {loss_range!r} with "
            f"{method=}."
        )
    if not np.all(np.isfinite(scores.by_fold)):
        raise ValueError(
            f"an interval needs finite scores, but the score {scores.name!r} of a fold is not "
            "finite; for example, its model may have diverged."
        )
    if not scores.metric.is_mean:
        _check_method_without_row_scores(scores, method)
    if method == "nadeau_bengio":
        interval = _nadeau_bengio_interval(scores, level)
    else:
        if method == "bayle":
            half = _bayle_half_width(scores, level)
        else:
            half = _hoeffding_half_width(scores, level, loss_range)
        mean, models = float(scores.by_fold.mean()), describe_models(scores.tested)
        interval = Interval(mean - half, mean + half, method, models, level)
    interval = within(interval, loss_range or range_of(scores.metric))
    dependence = "" if method == "nadeau_bengio" else dependence_note(scores.tested)
    if dependence:
        warn_caller(f"interval(method={method!r}): {dependence[:1].lower()}{dependence[1:]}")
    notes = [dependence, instability_note(scores)]
    return replace(interval, note=" ".join(filter(None, notes)))


def within(interval: Interval, bounds: tuple[float, float] | None) -> Interval:
    """Return an interval whose ends are clipped to the range of the score."""
    if bounds is None:
        return interval
    low, high = bounds
    return replace(interval, low=max(interval.low, low), high=min(interval.high, high))


def row_error(scores: Scores) -> float:
    r"""Return the standard error of the mean over all rows; NaN if their scores are unknown.

    It is :math:`\hat\sigma_n / \sqrt n` with the all-pairs estimator :math:`\hat\sigma_n^2 =
    \frac{1}{n} \sum_i (\ell_i - R)^2` (Bayle, Bayle, Janson & Mackey 2020, equation 4.2). If folds
    have different sizes or rows have weights, each row counts with its share of the mean R. For
    several repeats, it is the square root of the mean variance of the repeats. This is an upper
    bound, because all repeats have the same rows. For a single fold, such as a hold-out, the
    variance is the sample variance, with n - 1 in place of n.
    """
    if scores.by_fold.size == 0:
        return float("nan")
    centred = scores.by_fold - scores.by_fold.mean(axis=1, keepdims=True)
    n_folds = scores.by_fold.shape[1]
    if scores.spreads is None:
        sums = np.square(centred).sum(axis=1)
    else:
        squares, firsts, shares = scores.spreads
        sums = (squares + 2 * centred * firsts + np.square(centred) * shares).sum(axis=1)
        if n_folds == 1:  # 1 / shares is the number of rows
            with np.errstate(all="ignore"):
                sums = sums / (1 - shares[:, 0])
    return sqrt(float(sums.mean())) / n_folds if np.all(sums >= 0) else float("nan")


def fold_error(by_fold: Array, n_folds: int, overlap: float | None = None) -> float:
    r"""Return the standard error of a mean over folds, as if folds were independent.

    Repeats do not count as further folds, because they have the same rows. If folds have test rows
    in common, the error is :math:`\sqrt{(1 / J + n_2 / n_1) S^2}` with the sample variance
    :math:`S^2` of all J scores, :math:`n_2` test rows and :math:`n_1` training rows per fold
    (Nadeau & Bengio 2003).

    Parameters
    ----------
    by_fold : ndarray
        The scores of the folds of all repeats.
    n_folds : int
        The number of folds of one repeat.
    overlap : float or None
        :math:`n_2 / n_1` if folds have test rows in common; otherwise None.
    """
    deviation = float(np.std(by_fold, ddof=1))
    if overlap is not None:
        return deviation * sqrt(1 / by_fold.size + overlap)
    return deviation / sqrt(n_folds)


def nadeau_bengio(by_fold: Array, test_share: float, n_trained: int, level: float) -> Interval:
    """Return the interval of Nadeau and Bengio (2003) for the expected risk of a learner."""
    error = fold_error(by_fold, by_fold.size, test_share)
    half = float(stats.t.ppf((1 + level) / 2, by_fold.size - 1)) * error
    mean = float(by_fold.mean())
    target = (
        f"the expected score on new rows of a model that is trained on {n_trained:,} other rows "
        "from the same source"
    )
    return Interval(mean - half, mean + half, "nadeau_bengio", target, level)


def _reason_against_nadeau_bengio(tested: Tested) -> str:
    """Return the reason why an evaluation has no interval "nadeau_bengio"; "" if it has one."""
    if tested.n_folds == 1 or tested.method == "progressive":
        return "a single test set"
    return "time series" if tested.goes_forward else ""


def _check_method_without_row_scores(scores: Scores, method: str) -> None:
    """Raise an error unless ``method`` is possible for a score that is not a mean over rows."""
    if reason := _reason_against_nadeau_bengio(scores.tested):
        raise ValueError(
            f"no interval is available for scoring={scores.name!r} on {reason}, because 'bayle' "
            "and 'hoeffding' need a score that is a mean over rows, and 'nadeau_bengio' needs "
            "several folds whose training sets were drawn at random."
        )
    if method != "nadeau_bengio":
        raise ValueError(
            f"method must be 'nadeau_bengio' for scoring={scores.name!r}, got {method!r}, which "
            "needs a score that is a mean over rows."
        )


def _nadeau_bengio_interval(scores: Scores, level: float) -> Interval:
    tested = scores.tested
    if reason := _reason_against_nadeau_bengio(tested):
        others = "'hoeffding'" if tested.shares_test_rows else "'bayle' or 'hoeffding'"
        raise ValueError(
            f"method must be {others} for {reason}, got 'nadeau_bengio', which needs several "
            "folds whose training sets were drawn at random."
        )
    return nadeau_bengio(scores.by_fold, tested.test_share, tested.n_trained, level)


def _hoeffding_half_width(scores: Scores, level: float, loss_range: Bounds) -> float:
    r"""Return half the width of the interval from Hoeffding's inequality (1963).

    It is :math:`b \sqrt{\ln(2 / \delta) / (2 m)}` for m rows whose scores have a range of width b.
    For k-fold cross-validation, m = n / k is the number of rows of one fold; for progressive
    validation, it is the number of all tested rows (Blum, Kalai & Langford 1999).
    """
    tested = scores.tested
    bounds = _checked_range(loss_range, scores)
    width = bounds[1] - bounds[0]
    n_rows = tested.fewest_effective_rows()
    half = width * sqrt(log(2 / (1 - level)) / (2 * n_rows))
    if 2 * half > width:
        warn_caller(
            "the interval of method='hoeffding' is wider than the range of "
            f"scoring={scores.name!r} ({bounds[0]:g} to {bounds[1]:g}), because the smallest "
            f"test set has only {n_rows:.4g} rows; use method='bayle' or larger test sets "
            "instead."
        )
    return half


def _checked_range(loss_range: Bounds, scores: Scores) -> tuple[float, float]:
    if loss_range is None:
        row_range: tuple[float, float] | None = getattr(scores.metric, "row_range", None)
        if row_range is None:
            raise ValueError(
                f"loss_range must be given for method='hoeffding' with scoring={scores.name!r}, "
                "because the score of a row is not bounded on both sides; use bounds that hold "
                "for every row, for example loss_range=(0, 10), or (-10, 0) for negative scores."
            )
        return row_range
    try:
        low, high = map(float, loss_range)
    except (TypeError, ValueError):
        low = high = 0.0
    if not (isfinite(low) and isfinite(high) and low < high):
        raise ValueError(
            "loss_range must be two numbers, the minimum and maximum score of a row, got "
            f"{loss_range!r}."
        )
    if np.any(scores.by_fold < low) or np.any(scores.by_fold > high):
        raise ValueError(
            f"loss_range must include the score of every row, got {loss_range!r}, but the folds "
            f"have scores from {scores.by_fold.min():.4g} to {scores.by_fold.max():.4g}."
        )
    return low, high


def _bayle_half_width(scores: Scores, level: float) -> float:
    """Return half the width of the interval of Bayle et al. (2020), from ``row_error``."""
    is_impossible = bool(_reason_against_nadeau_bengio(scores.tested))
    if scores.tested.shares_test_rows:
        raise ValueError(
            f"method must be {'hoeffding' if is_impossible else 'nadeau_bengio'!r} if folds have "
            "test rows in common, got 'bayle', which assumes that no row is tested twice."
        )
    if scores.spreads is not None and not np.all(np.isfinite(scores.spreads)):
        other = "" if is_impossible else " or use method='nadeau_bengio'"
        raise ValueError(
            "method='bayle' needs the score of each row, but this evaluation has computed "
            f"{scores.name!r} only for each fold; evaluate with row_losses=True{other} "
            "instead."
        )
    error = row_error(scores)
    if np.isnan(error):
        raise ValueError("method='bayle' needs at least two tested rows.")
    return float(stats.norm.ppf((1 + level) / 2)) * error


def instability_note(scores: Scores) -> str:
    """Return a warning if the scores differ more between folds than chance explains; else "".

    There is a warning in two cases. Either the means of the repeats have a standard deviation of
    more than two thirds of the standard error over rows, or a chi-squared test finds that fold
    scores differ by more than the row scores within folds explain.
    ``benchmarks/interval_coverage.py`` measures how often this happens.
    """
    error = row_error(scores)
    n_repeats, n_folds = scores.by_fold.shape
    is_known = np.all(np.isfinite(scores.by_fold)) and not scores.tested.shares_test_rows
    if np.isnan(error) or error == 0 or not is_known:
        return ""
    fact = ""
    spread = 0.0
    if n_repeats > 1:
        spread = float(np.std(scores.by_fold.mean(axis=1), ddof=1))
    if spread > _MAX_STD_OF_REPEATS * error:
        fact = (
            f"The means of {n_repeats} repeats have a standard deviation of {spread:.2g}, but "
            f"the standard error over rows is {error:.2g}"
        )
    elif scores.spreads is not None and n_folds > 1 and scores.spreads[2].max() <= _MAX_ROW_SHARE:
        # The variance of a fold's mean if its rows were a random sample, averaged over folds.
        within = float((scores.spreads[0] / (1 - scores.spreads[2])).mean())
        between = float(np.var(scores.by_fold, axis=1, ddof=1).mean())
        degrees = n_repeats * (n_folds - 1)
        if within > 0 and between / within > stats.chi2.ppf(_STABLE_QUANTILE, degrees) / degrees:
            fact = (
                "The scores of the folds differ by more than their rows explain: the models of "
                f"the folds contribute a standard deviation of about {sqrt(between - within):.2g}"
            )
    return fact and (
        f"{fact}. So a single model that is trained on all rows may score further from the mean "
        "than this interval suggests; an averaged learner, or the mean of the fold models "
        "(kfold_models=True), is more stable."
    )


def dependence_note(tested: Tested) -> str:
    """Return a warning if rows are not independent: groups, or time series; else ""."""
    if tested.groups is None and not tested.is_ordered:
        return ""
    rows = "neighbouring rows of a time series" if tested.groups is None else "rows of one group"
    return (
        f"The interval assumes that rows are independent, which {rows} are not, and may be too "
        "narrow."
    )


def describe_models(tested: Tested) -> str:
    """Return a description of the target of intervals that are computed over rows."""
    if tested.method == "progressive":
        return "the mean score of the models along the pass on new rows"
    if tested.n_folds == 1:
        return "the score of the tested model on new rows"
    models = f"the mean score of the {tested.n_folds:,} fold models"
    if len({cut.n_trained for cut in tested.cuts}) > 1 or tested.goes_forward:
        return f"{models} on new rows"
    return f"{models} (each trained on {tested.n_trained:,} rows) on new rows"


@dataclass(frozen=True)
class PairedDifference(HasInterval):
    """The difference between the mean scores of two evaluations on the same folds.

    Attributes
    ----------
    mean : float
        The first mean minus the second mean, in the units of the score.
    std_error : float
        The standard error of the difference.
    interval : Interval
        The confidence interval around the difference.
    low, high, level : float
        The ends and the level of the interval.
    by : {"rows", "folds"}
        Whether scores were paired by row or by fold. Pairs of rows detect smaller differences,
        because there are more of them.
    n_pairs : int
        The number of pairs.
    """

    mean: float
    std_error: float
    interval: Interval
    by: Literal["rows", "folds"]
    n_pairs: int

    def __repr__(self) -> str:
        """Return all attributes except the target of the interval."""
        return (
            f"PairedDifference(mean={self.mean:.6g}, std_error={self.std_error:.6g}, "
            f"low={self.low:.6g}, high={self.high:.6g}, by={self.by!r}, "
            f"n_pairs={self.n_pairs})"
        )


_TARGET = "the difference of the mean scores of the fold models on new rows"


@lru_cache
def student_quantile(level: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution for a two-sided interval."""
    return float(stats.t.ppf((1 + level) / 2, degrees))


def difference_by_rows(
    mean: float, scores: Array, other: Array, shares: Array, level: float, note: str = ""
) -> PairedDifference:
    r"""Return the difference of two means with its standard error over rows.

    The standard error is :math:`\sqrt{\sum_i a_i^2 (d_i - D)^2}`, where :math:`d_i` is the
    difference for row i, :math:`a_i` the share of this row in the mean, and D the mean difference.
    This is the estimator of Bayle et al. (2020), applied to differences.

    Parameters
    ----------
    mean : float
        The difference of the means.
    scores, other : ndarray of shape (n_rows,)
        The scores of the rows; NaN for rows that no fold tests.
    shares : ndarray of shape (n_rows,)
        The share of each row in the mean; the shares add up to 1.
    level : float
    note : str
        The reason why the interval may be too narrow; "" if there is none.
    """
    level = check_level(level)
    differences = np.subtract(scores, other, dtype=np.float64)
    are_tested = ~np.isnan(differences)
    differences = differences[are_tested]
    if not np.all(np.isfinite(differences)):
        raise ValueError(
            "self and other must have finite scores, but the score of a row is not finite."
        )
    error = sqrt(float(np.square(shares[are_tested] * (differences - mean)).sum()))
    half = float(stats.norm.ppf((1 + level) / 2)) * error
    interval = Interval(mean - half, mean + half, "bayle", _TARGET, level, note)
    return PairedDifference(mean, error, interval, "rows", len(differences))


def difference_by_folds(
    scores: Array, other: Array, n_folds: int, level: float, overlap: float | None = None
) -> PairedDifference:
    r"""Return the difference of two means with its standard error over folds.

    The interval is Student's t interval.

    Parameters
    ----------
    scores, other : ndarray of shape (n_repeats * n_folds,)
        The scores of the folds.
    n_folds : int
        The number of folds of one repeat. Repeats have the same rows, so they do not count as
        further folds.
    level : float
    overlap : float or None
        As for ``fold_error``.
    """
    level = check_level(level)
    differences = scores - other
    if not np.all(np.isfinite(differences)):
        raise ValueError(
            "self and other must have finite scores, but the score of a fold is not finite."
        )
    if n_folds < 2:
        raise ValueError(
            "a comparison of fold scores needs at least two folds, got one; use row_losses=True "
            "in both evaluations to compare the losses of rows instead."
        )
    mean, error = float(differences.mean()), fold_error(differences, n_folds, overlap)
    half = student_quantile(level, n_folds - 1) * error
    interval = Interval(mean - half, mean + half, "student", _TARGET, level)
    return PairedDifference(mean, error, interval, "folds", differences.size)
