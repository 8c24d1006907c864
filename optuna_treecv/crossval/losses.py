"""Losses of out-of-fold outputs, and their bootstrap over rows, groups, blocks or folds."""

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
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import scores_of_rows
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.types import Array

# The maximum number of rows that are scored in one batch.
_ROWS_PER_BATCH = 2**20

# A bootstrap of rows in the order of time draws about this many blocks of consecutive rows.
_BLOCKS = 25
# The folds are divided into at most this many strata of consecutive folds, which have the same
# number of blocks.
_MAX_STRATA = 10
# The number of pieces of each block, between which the correlation is measured.
_QUARTERS = 4
# If the losses of neighbouring quarters have a larger correlation, too few blocks are independent.
_MAX_CORRELATION = 0.3

# Maps 16 random bits to the number of times that a unit is drawn, which has a Poisson
# distribution.
_COUNTS = stats.poisson.ppf((np.arange(2**16) + 0.5) / 2**16, 1)

# The maximum number of bytes of a batch of bootstrap draws.
_BYTES_PER_BATCH = 2**25


def computed_outputs(run: Run, method: str) -> Array | None:
    """Return the outputs of a run in the order of ``Tested.rows``, or None if they need training.

    No training is needed if the results are stored, or if the engine computes outputs from sums,
    solutions, neighbours or trees that the trials of a study share.
    """
    is_single, is_joint = len(run.plan.repeats) == 1, run.plan.capabilities.evaluates_jointly
    if is_single and not is_joint and run.is_stored:
        run.complete()
        return run.book.all_outputs().get(method)
    if not (is_joint and run.tests_each_row_once):
        return None
    if not hasattr(run.estimator, method):
        return None
    outputs = run.predict(method)
    if method == "predict" and run.request.classes is not None:
        outputs = as_codes(outputs, run.request.classes)
    cut = run.plan.repeats[0].cut
    return run.request.compact_output(outputs[cut.tested_from(0, cut.n_folds)], method)


def metric_of(run: Run) -> Loss | Scorer:
    """Return the first optimised metric; for a pooled metric, the loss or scorer that it pools."""
    first = run.request.scoring.first
    return first.of if isinstance(first, Pooled) else first


def sign_of(run: Run) -> int:
    """Return 1 if smaller values of the first optimised metric are better, else -1."""
    return 1 if metric_of(run).direction == "minimize" else -1


def losses_per_test(run: Run, responses: Sequence[Array] | Array, tested: Tested) -> Array:
    """Return the loss of each tested row by the first optimised metric, (n_responses, n_tests).

    Smaller losses are better. Scores of scorers are therefore negated.

    Parameters
    ----------
    run : Run
        A run whose first optimised metric is a mean over rows.
    responses : sequence of ndarray of shape (n_tests, ...)
    tested : Tested
    """
    metric, targets = metric_of(run), encode_targets(run.request)[tested.rows]
    losses = np.empty((len(responses), len(targets)))
    batch_size = max(1, _ROWS_PER_BATCH // len(targets))
    for begin in range(0, len(responses), batch_size):
        batch = np.asarray(responses[begin : begin + batch_size])
        batch = batch.reshape(-1, *batch.shape[2:])
        repeated = np.concatenate([targets] * (len(batch) // len(targets)))
        scores = scores_of_rows(
            metric, _rows(run, batch, repeated), run.estimator, run.request.classes
        )
        losses[begin : begin + batch_size] = sign_of(run) * scores.reshape(-1, len(targets))
    return losses


def losses_per_fold(run: Run, responses: Sequence[Array] | Array, tested: Tested) -> Array:
    """Return the loss of each fold by the first optimised metric, (n_responses, n_folds).

    This is for metrics that are not means over rows.
    """
    targets, begins = encode_targets(run.request)[tested.rows], tested.cuts[0].begins()
    # The mean of several classifiers has ``predict_proba``, whichever methods the single
    # classifiers have.
    like = run.estimator if run.request.classes is None else VotingClassifier([], voting="soft")
    rows = (_rows(run, response, targets, begins[:-1] - begins[0]) for response in responses)
    folds = (scores_of_folds([metric_of(run)], row, like, run.request.classes) for row in rows)
    return sign_of(run) * np.array([fold.scores[0] for fold in folds])


def _rows(run: Run, response: Array, targets: Array, begins: Array | None = None) -> TestedRows:
    """Return tested rows with given outputs; classes are predicted from probabilities."""
    is_code = response.dtype.kind == "i"
    numbers = response if is_code else response.astype(np.float64, copy=False)

    def respond(_: Array, method: str) -> Array:
        are_probabilities = run.request.classes is not None and numbers.ndim == 2
        return numbers.argmax(axis=1) if method == "predict" and are_probabilities else numbers

    return TestedRows(numbers.reshape(len(numbers), -1), respond, targets, None, begins)


# The units of a bootstrap.


class Losses(NamedTuple):
    """The losses of candidates, summed over each of the units that a bootstrap draws.

    Attributes
    ----------
    parts : ndarray of shape (n_candidates, n_units)
        The contribution of each unit to the mean loss of each candidate.
    shares : ndarray of shape (n_units,)
        The share of each unit in the mean; the shares add up to 1.
    by : {"rows", "groups", "blocks", "folds"}
        The kind of units.
    quarters : ndarray of shape (n_candidates, n_strata, n_quarters) or None
        For blocks, the contribution of each quarter of a block to the mean, minus its share of the
        mean of its stratum.
    """

    parts: Array
    shares: Array
    by: str
    quarters: Array | None = None


def losses_per_unit(of_tests: Array, tested: Tested) -> Losses:
    """Sum the losses of tested rows over the units of the bootstrap.

    Parameters
    ----------
    of_tests : ndarray of shape (n_candidates, n_tests)
        The loss of each tested row, in the order of ``Tested.rows``.
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
    r"""Sum losses over blocks of consecutive rows; None if there are too few rows.

    The estimate R is the mean loss of all models. The mean loss of a few consecutive folds, a
    stratum, differs from it because the training sets differ. Therefore, block i with share
    :math:`s_i` and contribution :math:`a_i` is not compared with R but with the mean :math:`R_h`
    of its stratum: the deviation :math:`a_i - s_i R_h` is multiplied by the square root of
    :math:`b / (b - 1)` for b blocks per stratum, and added to :math:`s_i R`.
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
    """Return the reason why a bootstrap of time-ordered rows would be misleading; else "".

    Parameters
    ----------
    losses : Losses
    tested : Tested
    chosen : int
        The index of the candidate with the best mean over all units.
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
            f"the losses of adjacent blocks of {n_rows} test rows have a correlation of "
            f"{correlation:.2f}, so there are too few independent blocks"
        )
    return ""


def block_correlation(losses: Losses, chosen: int) -> float:
    """Return the correlation of losses between adjacent quarters of blocks; 0 for other units.

    The correlation is computed for the losses of the chosen candidate, and for the differences
    between the losses of the other candidates and these. The larger of both is returned.
    """
    if losses.quarters is None:
        return 0.0
    of_chosen, correlation = losses.quarters[chosen], 0.0
    for part in (of_chosen, losses.quarters - of_chosen):
        if squares := float(np.square(part).sum()):
            correlation = max(correlation, float((part[..., 1:] * part[..., :-1]).sum()) / squares)
    return correlation


def draw_units(n_units: int, n_draws: int, seed: int) -> Generator[tuple[Array, Array]]:
    """Yield batches of bootstrap draws: counts of units, and indicators of out-of-bag units.

    Both are float64 arrays of shape (n_draws, n_units). The counts have a Poisson distribution
    with mean 1, which is about ten times faster than drawing with replacement. Draws without any
    unit, and draws without out-of-bag units, are omitted.
    """
    if n_units < 2:
        raise ValueError("honest scores need at least two tested rows, groups or folds, got 1.")
    generator = np.random.default_rng(seed)
    batch_size = max(1, _BYTES_PER_BATCH // (8 * n_units))
    for begin in range(0, n_draws, batch_size):
        n = min(batch_size, n_draws - begin)
        draws = _COUNTS[generator.integers(2**16, size=(n, n_units), dtype=np.uint16)]
        is_out_of_bag = draws == 0
        are_useful = is_out_of_bag.any(axis=1) & draws.any(axis=1)
        yield draws[are_useful], is_out_of_bag[are_useful].astype(float)


def standard_error(losses: Losses, candidate: int) -> float:
    r"""Return the standard error of a candidate's mean loss, estimated from its units.

    For units i with shares :math:`s_i` and contributions :math:`a_i` to the mean R, it is
    :math:`\sqrt{\sum_i (a_i - s_i R)^2}` (Bayle et al. 2020, equation 4.2), multiplied by the
    square root of :math:`m / (m - 1)` for m units. For blocks, it is also multiplied by the square
    root of :math:`1 + 2 r`, with the correlation r of neighbouring quarters.
    """
    parts = losses.parts[candidate]
    squares = float(np.square(parts - losses.shares * parts.sum()).sum())
    squares *= 1 + 2 * block_correlation(losses, candidate)
    return sqrt(squares * len(parts) / (len(parts) - 1))


def interval_around(
    run: Run, losses: Losses, candidate: int, mean: float, of: str, level: float
) -> Interval:
    """Return a confidence interval around a corrected mean loss, in the units of the score.

    Because the correction is uncertain, too, the interval extends from the better end of the
    interval around the uncorrected mean to the worse end of the interval around the corrected
    mean.

    Parameters
    ----------
    run : Run
    losses : Losses
    candidate : int
        The index of the candidate whose losses give the uncorrected mean and the standard error.
    mean : float
        The corrected mean.
    of : str
        A description of the candidate or ensemble that the models belong to.
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
    r"""Return Wilson's score interval (1927) for a proportion of n rows.

    For the proportion p and the normal quantile z, its ends are :math:`(p + s / 2 \pm \sqrt{s p (1
    - p) + s^2 / 4}) / (1 + s)` with :math:`s = z^2 / n`. It is valid even if few rows or none are
    errors.
    """
    share, square = min(max(share, 0.0), 1.0), quantile**2 / n
    half = sqrt(share * (1 - share) * square + square**2 / 4)
    return (share + square / 2 - half) / (1 + square), (share + square / 2 + half) / (1 + square)
