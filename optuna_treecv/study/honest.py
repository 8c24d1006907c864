"""What the best trial of a study will score, corrected for its having been chosen."""

from collections.abc import Callable
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any
from typing import NamedTuple

import numpy as np
from optuna.trial import FrozenTrial
from scipy import stats

from optuna_treecv.core.intervals import fold_error
from optuna_treecv.core.intervals import HasInterval
from optuna_treecv.core.intervals import Interval
from optuna_treecv.core.intervals import models_in_words
from optuna_treecv.core.intervals import student_quantile
from optuna_treecv.core.intervals import within
from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import check_choice
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.core.tested import Tested
from optuna_treecv.crossval.outputs import losses_of_tests
from optuna_treecv.crossval.outputs import method_of
from optuna_treecv.crossval.outputs import metric_of
from optuna_treecv.crossval.outputs import sign_of
from optuna_treecv.scoring.scores import scores_rows
from optuna_treecv.study.choice import Choice
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.choice import order_of
from optuna_treecv.study.choice import RULES

#: With fewer units the bootstrap says little about how far the best of several is too good.
FEWEST_UNITS, FEWEST_FOLDS = 50, 5

# The most trials, and the most of their fold scores, that are read from a store to correct the
# score of the best one.
_MOST_BY_FOLDS, _MOST_SCORES = 200, 2**20

# Rows in the order of time are drawn in about so many blocks of consecutive rows, the same number
# in each of the runs of folds. Blocks are nearly independent if their quarters, next to each
# other, have a smaller correlation than noted; above the other one too few of them are.
_BLOCKS, _MOST_STRATA, _QUARTERS = 25, 10, 4
_NOTED, _MOST_CORRELATED = 0.2, 0.3

# Trials that differ from the best one by more than so wide an interval are never chosen.
_NEAR = 0.997

# The units that are drawn at most in one bootstrap, and the fewest and the most draws.
_MOST_DRAWN = 2**22
_FEWEST_DRAWS, _MOST_DRAWS = 50, 500
# The bytes of the losses of rows at most; those of worse trials are left out.
_MOST_BYTES = 2**28
# Of the draws: where objectives and stores know the same scores, they correct them alike.
_SEED = 0
# How often a unit is drawn, by 16 random bits.
_COUNTS = stats.poisson.ppf((np.arange(2**16) + 0.5) / 2**16, 1)

# The bytes of the draws that are made at once.
_BYTES_AT_ONCE = 2**25

#: Trials and their outputs, one for each, in the order of ``Tested.rows``.
Found = tuple[list[FrozenTrial], list[np.ndarray]]

#: (trials, method) -> those whose outputs are known, and these.
Find = Callable[[list[FrozenTrial], str], Found]

#: Takes the means of candidates, (n_draws, n_candidates), smaller ones being better, and the
#: draws, (n_draws, n_units), and returns the candidates that are chosen, (n_draws,).
Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]

#: The choice, the known trials that might have been chosen, the numbers of the others, the losses
#: of the known ones, and the function that computes the corrected mean loss. It refers neither to
#: rows nor to an objective; losses of rows take at most 256 MiB.
Correction = tuple[Choice, list[FrozenTrial], list[int], "Losses", Callable[[], float]]


@dataclass(frozen=True, eq=False)
class Honest(HasInterval):
    r"""The expected score of the chosen model of a study, with an interval.

    The best of several noisy values looks better than it is. With the losses of all trials for
    each row, the choice can be made again on bootstrap samples of the rows, and the chosen trial
    scored on the rows that a sample lacks (BBC-CV, Tsamardinos et al. 2018 [1]_).

    Attributes
    ----------
    mean : float
        The corrected score.
    interval : Interval
        Its interval, from the better end of that around ``value`` to the worse end of that around
        ``mean``. It covers the mean risk of the fold models of the chosen trial. With few rows,
        the model that is trained on all rows is better than these.
    low, high, level : float
        The ends and the level of the interval.
    value : float
        The value of the trial, which is not corrected.
    trial : optuna.trial.FrozenTrial
        The chosen trial.
    trial_number : int
        Its number.
    by : {"rows", "groups", "blocks", "folds"}
        What the bootstrap draws. Blocks are consecutive test rows of time-ordered splits.
    n_contenders : int
        The number of trials that might have been chosen. All others are worse by more than noise.
    left_out : list of int
        The numbers of trials that might have been chosen, but whose outputs are not known. If
        there are some, the correction is too small.
    note : str
        Why it may mislead; "" if nothing is known that makes it so.

    References
    ----------
    .. [1] I. Tsamardinos, E. Greasidou and G. Borboudakis, "Bootstrapping the out-of-sample
       predictions for efficient and accurate cross-validation", Machine Learning 107, 2018.
    """

    mean: float
    interval: Interval
    value: float
    trial: FrozenTrial
    by: str
    n_contenders: int
    left_out: list[int]
    note: str

    @property
    def trial_number(self) -> int:
        """The number of the chosen trial."""
        return self.trial.number

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle, in which ``n_contenders`` was once ``n_trials``."""
        if "n_trials" in state:
            state = {**state, "n_contenders": state["n_trials"]}
        vars(self).update(state)

    def __repr__(self) -> str:
        """Return all in a few lines."""
        left_out = f", left_out={self.left_out}" if self.left_out else ""
        note = f",\n    note={self.note!r}" if self.note else ""
        return (
            f"Honest(mean={self.mean:.6g}, low={self.low:.6g}, high={self.high:.6g}, "
            f"level={self.level:g},\n"
            f"    value={self.value:.6g}, trial_number={self.trial_number}, by={self.by!r}, "
            f"n_contenders={self.n_contenders}{left_out}{note})"
        )


class Losses(NamedTuple):
    """The losses of some candidates, by the units that a bootstrap draws.

    Attributes
    ----------
    parts : ndarray of shape (n_candidates, n_units)
        What each unit adds to the mean of a candidate, where smaller means are better.
    shares : ndarray of shape (n_units,)
        The shares of the units in a mean; they add up to 1.
    by : {"rows", "groups", "blocks", "folds"}
        What the units are.
    quarters : ndarray of shape (n_candidates, n_strata, n_quarters) or None
        Of blocks, what each quarter adds to a mean less its share of the mean of its stratum.
    """

    parts: np.ndarray
    shares: np.ndarray
    by: str
    quarters: np.ndarray | None = None


def losses_by_units(of_tests: np.ndarray, tested: Tested) -> Losses:
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
        return Losses(shares * of_tests, shares, by)  # each test is one of another row
    parts = [np.bincount(units, shares * losses, n_units) for losses in of_tests]
    of_units = np.bincount(units, shares, n_units)
    are_tested = of_units > 0
    return Losses(np.array(parts)[:, are_tested], of_units[are_tested], by)


def _losses_by_blocks(of_tests: np.ndarray, tested: Tested) -> Losses | None:
    r"""Return losses by blocks of rows that follow each other in time; None if there are too few.

    The models of a few consecutive folds differ from those of others, as much as their training
    sets do, and it is their mean loss that is estimated. So blocks differ from the mean R as they
    differ from the mean of their stratum, :math:`a_i - s_i R_h`, times the root of
    :math:`b / (b - 1)` for b blocks in each stratum.
    """
    n_strata = min(tested.n_folds, _MOST_STRATA)
    n_blocks = -(-_BLOCKS // n_strata)
    shape = n_strata, n_blocks, _QUARTERS
    pieces = tested.pieces(n_strata, n_blocks * _QUARTERS)
    if pieces is None or tested.shares_test_rows:
        return None
    shares = np.bincount(pieces, tested.test_shares).reshape(shape)
    parts = np.array([np.bincount(pieces, tested.test_shares * one) for one in of_tests])
    parts = parts.reshape(-1, *shape)
    means = parts.sum(axis=(2, 3), keepdims=True) / shares.sum(axis=(1, 2), keepdims=True)
    quarters = parts - shares * means
    of_blocks = shares.sum(axis=2)
    blocks = parts.sum(axis=(1, 2, 3))[:, None, None] * of_blocks
    blocks += sqrt(n_blocks / (n_blocks - 1)) * quarters.sum(axis=3)
    blocks, quarters = blocks.reshape(len(parts), -1), quarters.reshape(len(parts), n_strata, -1)
    return Losses(blocks, of_blocks.ravel(), "blocks", quarters)


def why_not_exchangeable(losses: Losses, tested: Tested, chosen: int) -> str:
    """Return why a bootstrap of rows in the order of time would mislead; "" if it would not.

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
    if (correlation := _correlation_of_blocks(losses, chosen)) > _MOST_CORRELATED:
        n_rows = len(tested.rows) // losses.quarters[0].size
        return (
            f"the losses of neighbouring runs of {n_rows} test rows have a correlation of "
            f"{correlation:.2f}, so there are too few independent blocks of rows"
        )
    return ""


def _correlation_of_blocks(losses: Losses, chosen: int) -> float:
    """Return the correlation of neighbouring quarters of blocks; 0 of other units.

    It is the larger one of that of the chosen candidate's losses and that of the differences of
    all others from them.
    """
    if losses.quarters is None:
        return 0.0
    own, correlation = losses.quarters[chosen], 0.0
    for one in (own, losses.quarters - own):
        if squares := float(np.square(one).sum()):
            correlation = max(correlation, float((one[..., 1:] * one[..., :-1]).sum()) / squares)
    return correlation


def draws_of_units(
    n_units: int, n_draws: int, seed: int
) -> Generator[tuple[np.ndarray, np.ndarray]]:
    """Yield bootstrap draws, some at once: how often each unit is drawn, and which are lacking.

    Both are float64 of shape (n_draws, n_units). The numbers are those of Poisson, 1 on average,
    which takes a tenth of the time of draws with replacement. Draws without a unit, and those that
    lack none, are left out.
    """
    if n_units < 2:
        raise ValueError(
            "honest scores need several rows, groups or folds that are tested, got 1."
        )
    generator = np.random.default_rng(seed)
    at_once = max(1, _BYTES_AT_ONCE // (8 * n_units))
    for begin in range(0, n_draws, at_once):
        n = min(at_once, n_draws - begin)
        draws = _COUNTS[generator.integers(2**16, size=(n, n_units), dtype=np.uint16)]
        lacking = draws == 0
        are_useful = lacking.any(axis=1) & draws.any(axis=1)
        yield draws[are_useful], lacking[are_useful].astype(float)


def mean_elsewhere(losses: Losses, choose: Rule, chosen: int) -> float:
    r"""Return the mean loss of what a rule chooses where it was not chosen, by the bootstrap.

    Of each bootstrap draw b of units, the candidate :math:`c_b` that is chosen on it is scored on
    the units that the draw lacks. The mean of these losses :math:`\ell_b(c_b)` is that
    of BBC-CV. With the candidate c that is chosen on all units, whose mean loss R is known, it is
    computed as :math:`R + \frac{1}{B} \sum_b (\ell_b(c_b) - \ell_b(c))`, which takes fewer draws.
    It is at least the least, and at most the greatest mean of a candidate: what is chosen on all
    units is one of them. Otherwise the mean of two candidates that score the same would be worse
    than both.

    Parameters
    ----------
    losses : Losses
    choose : callable
    chosen : int
        The candidate that is chosen on all units.
    """
    n_units = len(losses.shares)
    n_draws = int(np.clip(_MOST_DRAWN // n_units, _FEWEST_DRAWS, _MOST_DRAWS))
    elsewhere = []
    for draws, lacking in draws_of_units(n_units, n_draws, _SEED):
        inside = draws @ losses.parts.T / (draws @ losses.shares)[:, None]
        outside = lacking @ losses.parts.T / (lacking @ losses.shares)[:, None]
        of_chosen = np.take_along_axis(outside, choose(inside, draws)[:, None], 1)[:, 0]
        elsewhere.append(of_chosen - outside[:, chosen])
    means = losses.parts.sum(axis=1)
    mean = means[chosen] + np.mean(np.concatenate(elsewhere))
    return float(np.clip(mean, means.min(), means.max()))


def choose_best(means: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Choose the candidates with the smallest means."""
    return means.argmin(axis=1)


def choose_simplest(losses: Losses, ranks: np.ndarray) -> Rule:
    """Return the rule that takes the simplest candidate within a standard error of the best one.

    Parameters
    ----------
    losses : Losses
    ranks : ndarray of shape (n_candidates,)
        The place of each candidate among all, the simplest one first.
    """

    def choose(means: np.ndarray, draws: np.ndarray) -> np.ndarray:
        chosen = np.empty(len(draws), np.intp)
        for number, (of_draw, draw) in enumerate(zip(means, draws, strict=True)):
            best = of_draw.argmin()
            differences = of_draw - of_draw[best]
            # Of unit i, the part of the difference less its share in the mean, as in
            # ``difference_by_rows``.
            centred = losses.parts - losses.parts[best] - differences[:, None] * losses.shares
            errors = np.sqrt(np.square(centred) @ draw) / (draw @ losses.shares)
            is_near = differences <= errors
            chosen[number] = np.flatnonzero(is_near)[ranks[is_near].argmin()]
        return chosen

    return choose


def standard_error(losses: Losses, candidate: int) -> float:
    r"""Return the standard error of a candidate's mean over units.

    For unit i with share :math:`s_i` and part :math:`a_i` of the mean R it is
    :math:`\sqrt{\sum_i (a_i - s_i R)^2}` (Bayle et al. 2020, equation 4.2), times the root of
    :math:`m / (m - 1)` for m units. Of blocks whose quarters have the correlation r with their
    neighbours, it is multiplied by the root of :math:`1 + 2 r`.
    """
    parts = losses.parts[candidate]
    squares = float(np.square(parts - losses.shares * parts.sum()).sum())
    squares *= 1 + 2 * _correlation_of_blocks(losses, candidate)
    return sqrt(squares * len(parts) / (len(parts) - 1))


def interval_around(
    run: Run, losses: Losses, candidate: int, mean: float, of: str, level: float
) -> Interval:
    """Return the interval of a corrected mean loss, in the units of the score.

    The correction is uncertain itself. So the interval goes from the better end of the interval
    around the mean as it was to the worse end of that around the corrected one.

    Parameters
    ----------
    run : Run
    losses : Losses
    candidate : int
        Whose losses tell the mean as it was, and the standard error.
    mean : float
        The corrected mean.
    of : str
        Whose models these are, in words.
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
    target = f"{models_in_words(tested)}, those of {of}"
    if losses.by == "blocks":
        target = f"{target}, in the periods that they were tested on"
    return within(Interval(low, high, "bootstrap", target, level), run.request.score_range)


def wilson(share: float, n: float, quantile: float) -> tuple[float, float]:
    r"""Return the interval of Wilson (1927) of a share of n rows.

    With :math:`s = z^2 / n` for z standard errors to each side, its ends are :math:`(p + s / 2 \pm
    \sqrt{s p (1 - p) + s^2 / 4}) / (1 + s)`. It holds also where few rows or none are errors.
    """
    share, square = min(max(share, 0.0), 1.0), quantile**2 / n
    half = sqrt(share * (1 - share) * square + square**2 / 4)
    return (share + square / 2 - half) / (1 + square), (share + square / 2 + half) / (1 + square)


def near_trials(contest: Contest) -> list[FrozenTrial]:
    """Return the trials that a choice on other rows might have taken, in the order of numbers.

    By the scores of folds, their differences from the best one are within the noise. Trials whose
    fold scores are not known may be among them. If the best one came first, it would win ties on
    a draw by its score on rows that the draw lacks.
    """
    best, *others = contest.trials
    folds = contest.folds_of(contest.trials)
    if best.number not in folds or contest.n_folds < 2:
        return in_order(contest.trials)
    reach = student_quantile(_NEAR, contest.n_folds - 1)
    near = [best]
    for trial in others:
        if trial.number in folds:
            differences = folds[trial.number].astype(float) - folds[best.number]
            error = fold_error(differences, contest.n_folds, contest.overlap)
            if abs(differences.mean()) > reach * error:
                continue
        near.append(trial)
    return in_order(near)


def in_order(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    """Return trials in the order of their numbers."""
    return sorted(trials, key=lambda trial: trial.number)


def correction_of(
    contest: Contest, run: Run, find: Find, rule: Any, simpler: Any, level: float
) -> Correction:
    """Return what the corrected score of the trial that a rule chooses follows from.

    Parameters
    ----------
    contest : Contest
    run : Run
        That of the best trial.
    find : Find
    rule : {"best", "one_se"}
    simpler : dict of str to {"larger", "smaller"}, "n_updates", callable or None
        For "one_se".
    level : float
    """
    check_choice("rule", rule, RULES)
    choice = choice_of(contest, rule, simpler, level)
    tested, near = run.request.cross_validation.tested(run.method_name), near_trials(contest)
    most = max(1, _MOST_BYTES // (8 * len(tested.rows)))
    numbers = {choice.trial.number, *(trial.number for trial in contest.trials[:most])}
    trials = [trial for trial in near if trial.number in numbers]
    known, losses = _losses(contest, run, tested, trials, find)
    if choice.trial.number not in {trial.number for trial in known}:
        raise ValueError(
            "honest needs the out-of-fold outputs or the fold scores of the trial that is chosen, "
            f"but those of trial {choice.trial.number} are not known, {contest.why_unknown}."
        )
    rule_of_draws: Rule = choose_best
    if rule == "one_se":
        order = order_of(contest.trials, simpler)
        by_rank = sorted(range(len(known)), key=lambda at: order(known[at]))
        rule_of_draws = choose_simplest(losses, np.argsort(by_rank))
    places = {trial.number: place for place, trial in enumerate(known)}
    left_out = [trial.number for trial in near if trial.number not in places]
    chosen = places[choice.trial.number]
    if reason := why_not_exchangeable(losses, tested, chosen):
        raise ValueError(
            f"honest cannot correct the score of the chosen trial, because {reason}; test the "
            "chosen model on later rows, which had no part in the study, instead."
        )
    compute_mean = partial(mean_elsewhere, losses, rule_of_draws, chosen)
    return choice, known, left_out, losses, compute_mean


def honest_of(correction: Correction, run: Run, level: float) -> Honest:
    """Return the corrected score of the trial that a rule chooses, with an interval.

    Parameters
    ----------
    correction : Correction
    run : Run
        That of the best trial.
    level : float
    """
    choice, known, left_out, losses, compute_mean = correction
    mean, chosen = compute_mean(), known.index(choice.trial)
    interval = interval_around(run, losses, chosen, mean, "the chosen trial", level)
    note = " ".join(filter(None, [_note_of_left_out(left_out), _note(losses, chosen)]))
    if note:
        warn_caller(f"honest: {note[:1].lower()}{note[1:]}")
    return Honest(
        mean=sign_of(run) * mean,
        interval=interval,
        value=choice.trial.values[0],
        trial=choice.trial,
        by=losses.by,
        n_contenders=len(known),
        left_out=left_out,
        note=note,
    )


def _note_of_left_out(numbers: list[int]) -> str:
    """Return a sentence about trials whose scores are not known; "" if there are none."""
    if not numbers:
        return ""
    few = f"{', '.join(map(str, numbers[:8]))}{', ...' if len(numbers) > 8 else ''}"
    return (
        f"The scores of rows or folds of trials {few} are not known, so that too little is "
        "corrected for the choice; a store, or row_losses=True, keeps them."
    )


def _losses(
    contest: Contest, run: Run, tested: Tested, trials: list[FrozenTrial], find: Find
) -> tuple[list[FrozenTrial], Losses]:
    """Return those of the trials whose losses are known, and these."""
    metric, method = metric_of(run), method_of(run)
    by_folds = partial(losses_by_folds, contest, trials, sign_of(run))
    has_folds = len(tested.cuts) == 1 and not run.request.is_pooled and tested.n_folds > 1
    if scores_rows(metric, run.request.classes):
        known, of_tests = [], np.empty((0, 0))
        if contest.rows:
            known = [trial for trial in trials if trial.number in contest.rows]
            of_tests = np.array([contest.rows[one.number][tested.rows] for one in known])
            of_tests *= sign_of(run)
        elif method is not None:
            known, responses = find(trials, method)
            of_tests = losses_of_tests(run, responses, tested)
        # A grid of ensembles keeps the outputs of the largest ones, and the fold scores of all.
        is_less = has_folds and len(known) < len(trials)
        if known and not (is_less and len(by_folds()[0]) > len(known)):
            return known, losses_by_units(of_tests, tested)
    if not has_folds:
        raise ValueError(
            "honest needs the scores of rows, or those of several folds in a single repeat, and "
            f"has neither for {run.request.scoring.name!r} here; row_losses=True in the objective "
            "keeps the scores of rows, if the score is a mean over rows."
        )
    return by_folds()


def losses_by_folds(
    contest: Contest, trials: list[FrozenTrial], sign: int
) -> tuple[list[FrozenTrial], Losses]:
    """Return those of the trials whose fold scores are known, and these as losses.

    Parameters
    ----------
    contest : Contest
        Of a single repeat.
    trials : list of FrozenTrial
    sign : int
        -1 where larger scores are better.
    """
    folds = contest.folds_of(trials)
    known = [trial for trial in trials if trial.number in folds]
    scores = np.array([sign * folds[trial.number].astype(float) for trial in known])
    shares = np.full(contest.n_folds, 1 / contest.n_folds)
    return known, Losses(scores.reshape(len(known), contest.n_folds) * shares, shares, "folds")


def corrected_by_folds(contest: Contest | None, sign: int) -> float | None:
    """Return the corrected score of the best trial by the scores of folds alone.

    None where there are few folds, or they are not known, or have test rows in common.
    """
    if contest is None or contest.n_folds < FEWEST_FOLDS or contest.test_share is None:
        return None
    most = min(_MOST_BY_FOLDS, _MOST_SCORES // contest.n_folds)
    best, trials = contest.trials[0], contest.trials[:most]
    if len(trials) < 2:
        return None
    of_best = contest.folds_of([best]).get(best.number)
    if of_best is None or len(of_best) > contest.n_folds:
        return None
    folds = contest.folds_of(trials)
    contest = contest._replace(trials=trials, folds_of=lambda some: folds)
    known, losses = losses_by_folds(contest, near_trials(contest), sign)
    return sign * mean_elsewhere(losses, choose_best, known.index(best))


def _note(losses: Losses, chosen: int) -> str:
    """Return why a correction may mislead, a sentence; "" if nothing is known."""
    n_units = len(losses.shares)
    if (correlation := _correlation_of_blocks(losses, chosen)) > _NOTED:
        return (
            f"Neighbouring blocks of rows are correlated ({correlation:.2f}), so the interval may "
            "be too narrow."
        )
    if losses.by == "folds" and n_units < FEWEST_FOLDS:
        return f"A bootstrap of {n_units} folds says little; more folds would be right."
    if losses.by in ("rows", "groups") and n_units < FEWEST_UNITS:
        return (
            f"A bootstrap of {n_units} {losses.by} says little: neither the correction nor the "
            "interval can be trusted."
        )
    return ""
