"""The expected score of a study's chosen trial, corrected for the choice."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from optuna.trial import FrozenTrial

from optuna_treecv.core.intervals import fold_error
from optuna_treecv.core.intervals import HasInterval
from optuna_treecv.core.intervals import Interval
from optuna_treecv.core.intervals import student_quantile
from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import check_choice
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.core.tested import Tested
from optuna_treecv.crossval.losses import correlation_of_blocks
from optuna_treecv.crossval.losses import draws_of_units
from optuna_treecv.crossval.losses import interval_around
from optuna_treecv.crossval.losses import Losses
from optuna_treecv.crossval.losses import losses_by_units
from optuna_treecv.crossval.losses import losses_of_tests
from optuna_treecv.crossval.losses import metric_of
from optuna_treecv.crossval.losses import sign_of
from optuna_treecv.crossval.losses import why_not_exchangeable
from optuna_treecv.scoring.scores import scores_rows
from optuna_treecv.study.choice import Choice
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.choice import in_order
from optuna_treecv.study.choice import order_of
from optuna_treecv.study.choice import RuleName
from optuna_treecv.study.choice import RULES
from optuna_treecv.study.choice import Simpler
from optuna_treecv.types import Array
from optuna_treecv.types import Opaque

#: With fewer units, a bootstrap cannot estimate the optimism of the best score.
FEWEST_UNITS, FEWEST_FOLDS = 50, 5

# The most trials, and the most of their fold scores, that are read from a store to correct the
# score of the best one.
_MOST_BY_FOLDS, _MOST_SCORES = 200, 2**20

# Neighbouring blocks with a larger correlation than this are noted.
_NOTED = 0.2

# Trials that differ from the best one by more than the interval of this level are never chosen.
_NEAR = 0.997

# The most units that are drawn in one bootstrap, and the fewest and the most draws.
_MOST_DRAWN = 2**22
_FEWEST_DRAWS, _MOST_DRAWS = 50, 500
# The most bytes of losses of rows; those of worse trials are omitted.
_MOST_BYTES = 2**28
# The seed of the draws, fixed so that objectives and stores correct the same scores alike.
_SEED = 0

#: Takes the means of candidates, (n_draws, n_candidates), smaller ones being better, and the
#: draws, (n_draws, n_units), and returns the candidates that are chosen, (n_draws,).
Rule = Callable[[Array, Array], Array]

#: The choice, the contenders with known losses, the numbers of those without, the losses, and the
#: function that computes the corrected mean loss. It refers neither to rows nor to an objective;
#: losses of rows take at most 256 MiB.
Correction = tuple[Choice, list[FrozenTrial], list[int], "Losses", Callable[[], float]]


@dataclass(frozen=True, eq=False)
class Honest(HasInterval):
    r"""The expected score of the chosen model of a study, with an interval.

    The best of several noisy values looks better than it is. With the losses of all trials for
    each row, the choice can be repeated on bootstrap samples of the rows, and the chosen trial
    scored on the out-of-bag rows (BBC-CV, Tsamardinos et al. 2018 [1]_).

    Attributes
    ----------
    mean : float
        The corrected score.
    interval : Interval
        Its interval, from the better end of the interval around ``value`` to the worse end of that
        around ``mean``. It covers the mean risk of the fold models of the chosen trial. With few
        rows, the model that is trained on all rows is better than these.
    low, high, level : float
        The ends and the level of the interval.
    value : float
        The value of the trial, which is not corrected.
    trial : optuna.trial.FrozenTrial
        The chosen trial.
    trial_number : int
        Its number.
    by : {"rows", "groups", "blocks", "folds"}
        The units that the bootstrap draws. Blocks are consecutive test rows of time-ordered
        splits.
    n_contenders : int
        The number of trials that might have been chosen. All others are worse by more than noise.
    left_out : list of int
        The numbers of trials that might have been chosen, but whose outputs are unknown. If there
        are any, the correction is too small.
    note : str
        The reason why the correction may mislead; "" if there is none.

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

    def __setstate__(self, state: dict[str, Opaque]) -> None:
        """Restore a pickle, in which ``n_contenders`` was once ``n_trials``."""
        if "n_trials" in state:
            state = {**state, "n_contenders": state["n_trials"]}
        vars(self).update(state)

    def __repr__(self) -> str:
        """Return all attributes in a few lines."""
        left_out = f", left_out={self.left_out}" if self.left_out else ""
        note = f",\n    note={self.note!r}" if self.note else ""
        return (
            f"Honest(mean={self.mean:.6g}, low={self.low:.6g}, high={self.high:.6g}, "
            f"level={self.level:g},\n"
            f"    value={self.value:.6g}, trial_number={self.trial_number}, by={self.by!r}, "
            f"n_contenders={self.n_contenders}{left_out}{note})"
        )


def out_of_bag_mean(losses: Losses, choose: Rule, chosen: int) -> float:
    r"""Return the out-of-bag mean loss of the candidates that a rule chooses, by the bootstrap.

    For each bootstrap draw b of units, the candidate :math:`c_b` that is chosen on it is scored on
    the out-of-bag units. The mean of these losses :math:`\ell_b(c_b)` is that of BBC-CV. With the
    candidate c that is chosen on all units, whose mean loss R is known, it is computed as
    :math:`R + \frac{1}{B} \sum_b (\ell_b(c_b) - \ell_b(c))`, which takes fewer draws. It is
    clipped to the range of the candidates' means, because the chosen one is one of them. Otherwise
    the mean of two candidates with the same scores could be worse than both.

    Parameters
    ----------
    losses : Losses
    choose : callable
    chosen : int
        The candidate that is chosen on all units.
    """
    n_units = len(losses.shares)
    n_draws = int(np.clip(_MOST_DRAWN // n_units, _FEWEST_DRAWS, _MOST_DRAWS))
    out_of_bag = []
    for draws, lacking in draws_of_units(n_units, n_draws, _SEED):
        inside = draws @ losses.parts.T / (draws @ losses.shares)[:, None]
        outside = lacking @ losses.parts.T / (lacking @ losses.shares)[:, None]
        of_chosen = np.take_along_axis(outside, choose(inside, draws)[:, None], 1)[:, 0]
        out_of_bag.append(of_chosen - outside[:, chosen])
    means = losses.parts.sum(axis=1)
    mean = means[chosen] + np.mean(np.concatenate(out_of_bag))
    return float(np.clip(mean, means.min(), means.max()))


def choose_best(means: Array, draws: Array) -> Array:
    """Choose the candidates with the smallest means."""
    return means.argmin(axis=1)


def choose_simplest(losses: Losses, ranks: Array) -> Rule:
    """Return the rule that takes the simplest candidate within a standard error of the best one.

    Parameters
    ----------
    losses : Losses
    ranks : ndarray of shape (n_candidates,)
        The rank of each candidate by simplicity, 0 for the simplest one.
    """

    def choose(means: Array, draws: Array) -> Array:
        chosen = np.empty(len(draws), np.intp)
        for number, (of_draw, draw) in enumerate(zip(means, draws, strict=True)):
            best = of_draw.argmin()
            differences = of_draw - of_draw[best]
            # For unit i, the part of the difference minus its share of the mean, as in
            # ``difference_by_rows``.
            centred = losses.parts - losses.parts[best] - differences[:, None] * losses.shares
            errors = np.sqrt(np.square(centred) @ draw) / (draw @ losses.shares)
            is_near = differences <= errors
            chosen[number] = np.flatnonzero(is_near)[ranks[is_near].argmin()]
        return chosen

    return choose


def near_trials(contest: Contest) -> list[FrozenTrial]:
    """Return the trials that might have been chosen on other rows, in the order of numbers.

    By the scores of folds, their differences from the best one are within the noise. Trials with
    unknown fold scores are included. If the best one came first, it would win ties on a draw by
    its score on out-of-bag rows.
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


def correction_of(
    contest: Contest, rule: RuleName, simpler: Simpler | None, level: float
) -> Correction:
    """Return the parts of the corrected score of the trial that a rule chooses.

    Parameters
    ----------
    contest : Contest
    rule : {"best", "one_se"}
    simpler : dict of str to {"larger", "smaller"}, "n_updates", callable or None
        For "one_se".
    level : float
    """
    check_choice("rule", rule, RULES)
    choice, run = choice_of(contest, rule, simpler, level), contest.run
    assert run is not None
    tested, near = run.request.cross_validation.tested(run.method_name), near_trials(contest)
    most = max(1, _MOST_BYTES // (8 * len(tested.rows)))
    numbers = {choice.trial.number, *(trial.number for trial in contest.trials[:most])}
    trials = [trial for trial in near if trial.number in numbers]
    contenders, losses = _losses(contest, run, tested, trials)
    if choice.trial.number not in {trial.number for trial in contenders}:
        raise ValueError(
            "honest needs the out-of-fold outputs or the fold scores of the chosen trial, but "
            f"those of trial {choice.trial.number} are unknown, {contest.why_unknown}."
        )
    rule_of_draws: Rule = choose_best
    if rule == "one_se":
        order = order_of(contest.trials, simpler, values_of=contest.values_of)
        by_rank = sorted(range(len(contenders)), key=lambda at: order(contenders[at]))
        rule_of_draws = choose_simplest(losses, np.argsort(by_rank))
    places = {trial.number: place for place, trial in enumerate(contenders)}
    left_out = [trial.number for trial in near if trial.number not in places]
    chosen = places[choice.trial.number]
    if reason := why_not_exchangeable(losses, tested, chosen):
        raise ValueError(
            f"honest cannot correct the score of the chosen trial, because {reason}; test the "
            "chosen model on later rows that the study did not use instead."
        )
    compute_mean = partial(out_of_bag_mean, losses, rule_of_draws, chosen)
    return choice, contenders, left_out, losses, compute_mean


def honest_of(contest: Contest, rule: RuleName, simpler: Simpler | None, level: float) -> Honest:
    """Return the corrected score of the trial that a rule chooses, with an interval.

    The arguments are as for ``correction_of``.
    """
    choice, trials, left_out, losses, compute_mean = correction_of(contest, rule, simpler, level)
    run = contest.run
    assert run is not None
    mean, chosen = compute_mean(), trials.index(choice.trial)
    interval = interval_around(run, losses, chosen, mean, "the chosen trial", level)
    note = " ".join(_notes(losses, chosen, left_out))
    if note:
        warn_caller(f"honest: {note[:1].lower()}{note[1:]}")
    return Honest(
        mean=sign_of(run) * mean,
        interval=interval,
        value=choice.trial.values[0],
        trial=choice.trial,
        by=losses.by,
        n_contenders=len(trials),
        left_out=left_out,
        note=note,
    )


def _losses(
    contest: Contest, run: Run, tested: Tested, trials: list[FrozenTrial]
) -> tuple[list[FrozenTrial], Losses]:
    """Return the trials whose losses are known, and the losses."""
    metric = metric_of(run)
    # The method whose outputs give the first optimised score, if they are kept.
    method = next((name for name in run.request.kept_responses if name == metric.methods), None)
    by_folds = partial(losses_by_folds, contest, trials, sign_of(run))
    has_folds = len(tested.cuts) == 1 and not run.request.is_pooled and tested.n_folds > 1
    if scores_rows(metric, run.request.classes):
        scored, of_tests = [], np.empty((0, 0))
        if contest.rows:
            scored = [trial for trial in trials if trial.number in contest.rows]
            of_tests = np.array([contest.rows[trial.number][tested.rows] for trial in scored])
            of_tests *= sign_of(run)
        elif method is not None and contest.outputs_of is not None:
            scored, responses = contest.outputs_of(trials, method)
            of_tests = losses_of_tests(run, responses, tested)
        # A grid of ensembles keeps the outputs of the largest ones, and the fold scores of all.
        is_less = has_folds and len(scored) < len(trials)
        if scored and not (is_less and len(by_folds()[0]) > len(scored)):
            return scored, losses_by_units(of_tests, tested)
    if not has_folds:
        raise ValueError(
            "honest needs scores of rows, or scores of several folds with n_repeats=1, but "
            f"{run.request.scoring.name!r} has neither; use row_losses=True in the objective "
            "instead if it is a mean over rows."
        )
    return by_folds()


def losses_by_folds(
    contest: Contest, trials: list[FrozenTrial], sign: int
) -> tuple[list[FrozenTrial], Losses]:
    """Return the trials whose fold scores are known, and the scores as losses.

    Parameters
    ----------
    contest : Contest
        With a single repeat.
    trials : list of FrozenTrial
    sign : int
        -1 where larger scores are better.
    """
    folds = contest.folds_of(trials)
    scored = [trial for trial in trials if trial.number in folds]
    scores = np.array([sign * folds[trial.number].astype(float) for trial in scored])
    shares = np.full(contest.n_folds, 1 / contest.n_folds)
    return scored, Losses(scores.reshape(len(scored), contest.n_folds) * shares, shares, "folds")


def corrected_by_folds(contest: Contest | None, sign: int) -> float | None:
    """Return the corrected score of the best trial from fold scores alone.

    Return None if there are few folds, or their scores are unknown, or test rows are shared.
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
    contest = contest._replace(trials=trials, folds_of=lambda _: folds)
    contenders, losses = losses_by_folds(contest, near_trials(contest), sign)
    return sign * out_of_bag_mean(losses, choose_best, contenders.index(best))


def _notes(losses: Losses, chosen: int, left_out: Sequence[int]) -> Iterator[str]:
    """Yield the reasons why a correction may mislead, as sentences."""
    if left_out:
        few = f"{', '.join(map(str, left_out[:8]))}{', ...' if len(left_out) > 8 else ''}"
        yield (
            f"The scores of rows or folds of trials {few} are unknown, so that the correction is "
            "too small; use a store or row_losses=True to keep them."
        )
    n_units = len(losses.shares)
    if (correlation := correlation_of_blocks(losses, chosen)) > _NOTED:
        yield (
            f"Neighbouring blocks of rows are correlated ({correlation:.2f}), so the interval may "
            "be too narrow."
        )
    elif losses.by == "folds" and n_units < FEWEST_FOLDS:
        yield f"A bootstrap of {n_units} folds is unreliable; use more folds instead."
    elif losses.by in ("rows", "groups") and n_units < FEWEST_UNITS:
        yield (
            f"A bootstrap of {n_units} {losses.by} is unreliable, and so are the correction and "
            "the interval."
        )
