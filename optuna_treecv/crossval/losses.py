"""The losses of out-of-fold outputs, and the bootstrap of rows, blocks or folds."""

from collections.abc import Generator
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
from scipy import stats
from sklearn.ensemble import VotingClassifier

from optuna_treecv.core.intervals import describe_models
from optuna_treecv.core.intervals import Interval
from optuna_treecv.core.intervals import student_quantile
from optuna_treecv.core.intervals import within
from optuna_treecv.core.run import Run
from optuna_treecv.core.tested import Tested
from optuna_treecv.plans.fits import encode_targets
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import scores_of_rows
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.types import Array

# The rows that are scored at once.
_ROWS_PER_BATCH = 2**20

# Rows in the order of time are drawn in about 25 blocks of consecutive rows, the same number in
# each run of folds. If neighbouring quarters of blocks have a larger correlation than this, too
# few blocks are independent.
_BLOCKS, _MAX_STRATA, _QUARTERS = 25, 10, 4
_MAX_CORRELATION = 0.3

# The number of times that a unit is drawn, by 16 random bits.
_COUNTS = stats.poisson.ppf((np.arange(2**16) + 0.5) / 2**16, 1)

# The bytes of the draws that are made at once.
_BYTES_PER_BATCH = 2**25


def computed_outputs(run: Run, method: str) -> Array | None:
    """Return the outputs of a run, in the order of ``Tested.rows``, if this takes no training.

    They come from stored results, or from sums, solutions, neighbours or trees that the trials of
    a study share. Otherwise, return None.
    """
    is_single, at_once = len(run.plan.repeats) == 1, run.plan.capabilities.at_once
    if is_single and not at_once and run.is_stored:
        run.complete()
        return run.book.all_outputs().get(method)
    cut = run.plan.repeats[0].cut
    is_partition = isinstance(cut, Folds) and cut.n_tested == cut.n_rows
    if not (is_single and at_once and is_partition):
        return None
    if not hasattr(run.estimator, method):
        return None
    outputs = run.predict(method)
    if method == "predict" and run.request.classes is not None:
        outputs = as_codes(outputs, run.request.classes)
    return run.request.compact_output(outputs[cut.tested_from(0, cut.n_folds)], method)


def metric_of(run: Run) -> Loss | Scorer:
    """Return the first optimised metric; if it is pooled, the metric inside."""
    first = run.request.scoring.first
    return first.of if isinstance(first, Pooled) else first


def sign_of(run: Run) -> int:
    """Return 1 if smaller values of the first optimised metric are better, else -1."""
    return 1 if metric_of(run).direction == "minimize" else -1


def losses_per_test(run: Run, responses: Sequence[Array] | Array, tested: Tested) -> Array:
    """Return the losses, (n_responses, n_tests), by the first optimised metric.

    Smaller losses are better: scores of scorers are negated.

    Parameters
    ----------
    run : Run
        A run whose metric scores rows.
    responses : sequence of ndarray of shape (n_tests, ...)
    tested : Tested
    """
    metric, targets = metric_of(run), encode_targets(run.request)[tested.rows]
    losses = np.empty((len(responses), len(targets)))
    at_once = max(1, _ROWS_PER_BATCH // len(targets))
    for begin in range(0, len(responses), at_once):
        part = np.asarray(responses[begin : begin + at_once])
        part = part.reshape(-1, *part.shape[2:])
        repeated = np.concatenate([targets] * (len(part) // len(targets)))
        of_part = scores_of_rows(
            metric, _rows(run, part, repeated), run.estimator, run.request.classes
        )
        losses[begin : begin + at_once] = sign_of(run) * of_part.reshape(-1, len(targets))
    return losses


def losses_per_fold(run: Run, responses: Sequence[Array] | Array, tested: Tested) -> Array:
    """Return the losses of folds, (n_responses, n_folds), for metrics that do not score rows."""
    targets, begins = encode_targets(run.request)[tested.rows], tested.cuts[0].begins()
    # The mean of classifiers has ``predict_proba``, whatever methods its members have.
    like = run.estimator if run.request.classes is None else VotingClassifier([], voting="soft")
    rows = (_rows(run, response, targets, begins[:-1] - begins[0]) for response in responses)
    folds = (scores_of_folds([metric_of(run)], row, like, run.request.classes) for row in rows)
    return sign_of(run) * np.array([fold.scores[0] for fold in folds])


def _rows(run: Run, response: Array, targets: Array, begins: Array | None = None) -> TestedRows:
    """Return tested rows with given outputs; classes follow from probabilities."""
    is_code = response.dtype.kind == "i"
    numbers = response if is_code else response.astype(np.float64, copy=False)

    def respond(_: Array, method: str) -> Array:
        are_probabilities = run.request.classes is not None and numbers.ndim == 2
        return numbers.argmax(axis=1) if method == "predict" and are_probabilities else numbers

    return TestedRows(numbers.reshape(len(numbers), -1), respond, targets, None, begins)


# The units of a bootstrap.


class Losses(NamedTuple):
    """The losses of candidates by the units that a bootstrap draws.

    Attributes
    ----------
    parts : ndarray of shape (n_candidates, n_units)
        The contribution of each unit to the mean of a candidate; smaller means are better.
    shares : ndarray of shape (n_units,)
        The shares of the units in a mean; they add up to 1.
    by : {"rows", "groups", "blocks", "folds"}
        The kind of units.
    quarters : ndarray of shape (n_candidates, n_strata, n_quarters) or None
        For blocks, the contribution of each quarter to a mean minus its share of the mean of its
        stratum.
    """

    parts: Array
    shares: Array
    by: str
    quarters: Array | None = None


def losses_per_unit(of_tests: Array, tested: Tested) -> Losses:
    """Return losses by units.

    Parameters
    ----------
    of_tests : ndarray of shape (n_candidates, n_tests)
        The losses of the tests of rows, in the order of ``Tested.rows``.
    tested : Tested
    """
    if tested.is_ordered and (losses := _losses_by_blocks(of_tests, tested)) is not None:
        return losses
    (units, by), shares = tested.units(), tested.test_shares
    n_units = int(units.max()) + 1
    if by == "rows" and len(tested.cuts) == 1 and not tested.shares_test_rows and shares.all():
        return Losses(shares * of_tests, shares, by)  # each row is tested once
    parts = [np.bincount(units, shares * losses, n_units) for losses in of_tests]
    of_units = np.bincount(units, shares, n_units)
    are_tested = of_units > 0
    return Losses(np.array(parts)[:, are_tested], of_units[are_tested], by)


def _losses_by_blocks(of_tests: Array, tested: Tested) -> Losses | None:
    r"""Return losses by blocks of rows that are consecutive in time; None if there are too few.

    The estimate is the mean loss of all models. Those of a few consecutive folds differ from
    others, as much as their training sets do. So the differences of blocks from the mean R are
    those from the mean of their stratum, :math:`a_i - s_i R_h`, times the square root of
    :math:`b / (b - 1)` for b blocks in each stratum.
    """
    n_strata = min(tested.n_folds, _MAX_STRATA)
    n_blocks = -(-_BLOCKS // n_strata)
    shape = n_strata, n_blocks, _QUARTERS
    pieces = tested.pieces(n_strata, n_blocks * _QUARTERS)
    if pieces is None or tested.shares_test_rows:
        return None
    shares = np.bincount(pieces, tested.test_shares).reshape(shape)
    parts = np.array([np.bincount(pieces, tested.test_shares * test) for test in of_tests])
    parts = parts.reshape(-1, *shape)
    means = parts.sum(axis=(2, 3), keepdims=True) / shares.sum(axis=(1, 2), keepdims=True)
    quarters = parts - shares * means
    of_blocks = shares.sum(axis=2)
    blocks = parts.sum(axis=(1, 2, 3))[:, None, None] * of_blocks
    blocks += sqrt(n_blocks / (n_blocks - 1)) * quarters.sum(axis=3)
    blocks, quarters = blocks.reshape(len(parts), -1), quarters.reshape(len(parts), n_strata, -1)
    return Losses(blocks, of_blocks.ravel(), "blocks", quarters)


def reason_not_exchangeable(losses: Losses, tested: Tested, chosen: int) -> str:
    """Return the reason why a bootstrap of time-ordered rows would mislead; else "".

    Parameters
    ----------
    losses : Losses
    tested : Tested
    chosen : int
        The candidate that is chosen on all units.
    """
    if not tested.is_ordered:
        return ""
    if losses.by == "folds":
        return "folds of time-ordered splits are not exchangeable, and no scores of rows are known"
    if tested.shares_test_rows:
        return "time-ordered test sets that share rows cannot be divided into independent blocks"
    if losses.quarters is None:
        return f"time-ordered splits need at least {_QUARTERS * _BLOCKS} test rows, evenly spread"
    if (correlation := block_correlation(losses, chosen)) > _MAX_CORRELATION:
        n_rows = len(tested.rows) // losses.quarters[0].size
        return (
            f"the losses of neighbouring runs of {n_rows} test rows have a correlation of "
            f"{correlation:.2f}, so there are too few independent blocks of rows"
        )
    return ""


def block_correlation(losses: Losses, chosen: int) -> float:
    """Return the correlation of neighbouring quarters of blocks; 0 for other units.

    It is the maximum of the correlation of the chosen candidate's losses and that of the
    differences of all others from them.
    """
    if losses.quarters is None:
        return 0.0
    of_chosen, correlation = losses.quarters[chosen], 0.0
    for part in (of_chosen, losses.quarters - of_chosen):
        if squares := float(np.square(part).sum()):
            correlation = max(correlation, float((part[..., 1:] * part[..., :-1]).sum()) / squares)
    return correlation


def draw_units(n_units: int, n_draws: int, seed: int) -> Generator[tuple[Array, Array]]:
    """Yield batches of bootstrap draws: the counts of units, and indicators of out-of-bag units.

    Both are float64 of shape (n_draws, n_units). The counts have a Poisson distribution with the
    mean 1, which takes a tenth of the time of draws with replacement. Draws without any unit, and
    draws without out-of-bag units, are omitted.
    """
    if n_units < 2:
        raise ValueError("honest scores need at least two tested rows, groups or folds, got 1.")
    generator = np.random.default_rng(seed)
    at_once = max(1, _BYTES_PER_BATCH // (8 * n_units))
    for begin in range(0, n_draws, at_once):
        n = min(at_once, n_draws - begin)
        draws = _COUNTS[generator.integers(2**16, size=(n, n_units), dtype=np.uint16)]
        lacking = draws == 0
        are_useful = lacking.any(axis=1) & draws.any(axis=1)
        yield draws[are_useful], lacking[are_useful].astype(float)


def standard_error(losses: Losses, candidate: int) -> float:
    r"""Return the standard error of a candidate's mean over units.

    For unit i with share :math:`s_i` and part :math:`a_i` of the mean R it is
    :math:`\sqrt{\sum_i (a_i - s_i R)^2}` (Bayle et al. 2020, equation 4.2), times the square root
    of :math:`m / (m - 1)` for m units. For blocks whose neighbouring quarters have the correlation
    r, it is multiplied by the square root of :math:`1 + 2 r`.
    """
    parts = losses.parts[candidate]
    squares = float(np.square(parts - losses.shares * parts.sum()).sum())
    squares *= 1 + 2 * block_correlation(losses, candidate)
    return sqrt(squares * len(parts) / (len(parts) - 1))


def interval_around(
    run: Run, losses: Losses, candidate: int, mean: float, of: str, level: float
) -> Interval:
    """Return the interval of a corrected mean loss, in the units of the score.

    The correction is uncertain, too. So the interval extends from the better end of the interval
    around the uncorrected mean to the worse end of that around the corrected one.

    Parameters
    ----------
    run : Run
    losses : Losses
    candidate : int
        The candidate whose losses give the uncorrected mean and the standard error.
    mean : float
        The corrected mean.
    of : str
        The owner of the models, in words.
    level : float
    """
    before = float(losses.parts[candidate].sum())
    better, worse = sorted([before, mean])
    quantile = student_quantile(level, len(losses.shares) - 1)
    if metric_of(run).is_zero_one and losses.by == "rows":
        shift = (1 - sign_of(run)) / 2  # a loss of -1 or 0 is an accuracy with another sign
        n_rows = 1 / float(np.square(losses.shares).sum())
        low = wilson(better + shift, n_rows, quantile)[0] - shift
        high = wilson(worse + shift, n_rows, quantile)[1] - shift
    else:
        half = quantile * standard_error(losses, candidate)
        low, high = better - half, worse + half
    low, high = sorted([sign_of(run) * low, sign_of(run) * high])
    tested = run.request.cross_validation.tested(run.method_name)
    target = f"{describe_models(tested)}, those of {of}"
    if losses.by == "blocks":
        target = f"{target}, in the periods on which they were tested"
    return within(Interval(low, high, "bootstrap", target, level), run.request.score_range)


def wilson(share: float, n: float, quantile: float) -> tuple[float, float]:
    r"""Return the interval of Wilson (1927) for a share of n rows.

    With :math:`s = z^2 / n` for z standard errors to each side, its ends are :math:`(p + s / 2 \pm
    \sqrt{s p (1 - p) + s^2 / 4}) / (1 + s)`. It is valid even if few rows or none are errors.
    """
    share, square = min(max(share, 0.0), 1.0), quantile**2 / n
    half = sqrt(share * (1 - share) * square + square**2 / 4)
    return (share + square / 2 - half) / (1 + square), (share + square / 2 + half) / (1 + square)
