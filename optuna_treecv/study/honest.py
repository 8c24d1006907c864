"""The expected score of the trial that is chosen from a study, corrected for the choice."""

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
from optuna_treecv.crossval.losses import block_correlation
from optuna_treecv.crossval.losses import draw_units
from optuna_treecv.crossval.losses import interval_around
from optuna_treecv.crossval.losses import Losses
from optuna_treecv.crossval.losses import losses_per_test
from optuna_treecv.crossval.losses import losses_per_unit
from optuna_treecv.crossval.losses import metric_of
from optuna_treecv.crossval.losses import reason_not_exchangeable
from optuna_treecv.crossval.losses import sign_of
from optuna_treecv.scoring.scores import can_score_rows
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

#: With fewer rows or groups, a bootstrap cannot estimate the optimism of the best score.
MIN_UNITS = 50

#: With fewer folds, a bootstrap cannot estimate the optimism of the best score.
MIN_FOLDS = 5

# Fold scores are read from a store for at most this number of trials.
_MAX_TRIALS = 200

# The maximum number of fold scores that are read from a store.
_MAX_SCORES = 2**20

# A correlation of neighbouring blocks above this value is mentioned in the note.
_MAX_CORRELATION = 0.2

# A trial is no contender if the interval of its difference from the best one, at this level, does
# not contain 0.
_CONTENDER_LEVEL = 0.997

# The maximum number of units, over all draws of a bootstrap.
_MAX_DRAWN_UNITS = 2**22

# The minimum and the maximum number of bootstrap draws.
_MIN_DRAWS, _MAX_DRAWS = 50, 500

# The maximum number of bytes of row losses. Worse trials are omitted if they exceed it.
_MAX_LOSS_BYTES = 2**28

# The seed of the draws. It is fixed, so that an objective and a store compute the same correction
# from the same scores.
_SEED = 0

#: A rule of choice for bootstrap draws. It takes the mean losses of shape (n_draws, n_candidates)
#: and the draws of shape (n_draws, n_units), and returns the index of the chosen candidate for
#: each draw, of shape (n_draws,).
Rule = Callable[[Array, Array], Array]

#: The choice, the contenders with known losses, the trial numbers of contenders with unknown
#: losses, the losses, and a function that computes the corrected mean loss. The function refers
#: neither to the data nor to an objective. It holds at most 256 MiB of row losses.
Correction = tuple[Choice, list[FrozenTrial], list[int], "Losses", Callable[[], float]]


@dataclass(frozen=True, eq=False)
class Honest(HasInterval):
    r"""The expected score of the chosen model of a study, with an interval.

    The best of several noisy values is better than its expectation. To correct this bias, the
    choice is repeated on bootstrap samples of the rows, and the chosen trial is scored on the
    out-of-bag rows (BBC-CV, Tsamardinos et al. 2018 [1]_).

    Attributes
    ----------
    mean : float
        The corrected score.
    interval : Interval
        The interval of the mean risk of the fold models of the chosen trial. It extends from the
        better end of the interval around ``value`` to the worse end of the interval around
        ``mean``. With few rows, a model that is trained on all rows is better than the fold
        models.
    low, high, level : float
        The ends and the level of the interval.
    value : float
        The value of the chosen trial without the correction.
    trial : optuna.trial.FrozenTrial
        The chosen trial.
    trial_number : int
        The number of the chosen trial.
    by : {"rows", "groups", "blocks", "folds"}
        The units from which the bootstrap samples are drawn. Blocks are runs of consecutive test
        rows, for time-ordered splits.
    n_contenders : int
        The number of trials that might have been chosen. The others are worse by more than the
        noise.
    unscored : list of int
        The numbers of trials that might have been chosen but whose outputs are unknown. If there
        are any, the correction is too small.
    note : str
        The reason why the correction may be misleading; "" if there is none.

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
    unscored: list[int]
    note: str

    @property
    def trial_number(self) -> int:
        """The number of the chosen trial."""
        return self.trial.number

    def __setstate__(self, state: dict[str, Opaque]) -> None:
        """Restore a pickle. Some attributes had other names in earlier versions."""
        former = {"n_trials": "n_contenders", "left_out": "unscored"}
        vars(self).update({former.get(name, name): value for name, value in state.items()})

    def __repr__(self) -> str:
        """Return all attributes in a few lines."""
        unscored = f", unscored={self.unscored}" if self.unscored else ""
        note = f",\n    note={self.note!r}" if self.note else ""
        return (
            f"Honest(mean={self.mean:.6g}, low={self.low:.6g}, high={self.high:.6g}, "
            f"level={self.level:g},\n"
            f"    value={self.value:.6g}, trial_number={self.trial_number}, by={self.by!r}, "
            f"n_contenders={self.n_contenders}{unscored}{note})"
        )


def out_of_bag_mean(losses: Losses, choose: Rule, chosen: int) -> float:
    r"""Return the bootstrap estimate of the mean loss of the candidate that a rule chooses.

    For each bootstrap draw b of the units, the rule chooses a candidate :math:`c_b`, whose mean
    loss on the out-of-bag units is :math:`\ell_b(c_b)`. BBC-CV estimates the loss by the mean of
    :math:`\ell_b(c_b)` over the draws. This function uses the control variate :math:`\ell_b(c)` of
    the candidate c that is chosen on all units, whose mean loss R is known: it returns :math:`R +
    \frac{1}{B} \sum_b (\ell_b(c_b) - \ell_b(c))`, which needs fewer draws. The result is clipped
    to the range of the candidates' mean losses. Otherwise, the estimate for two candidates with
    equal scores could be worse than both.

    Parameters
    ----------
    losses : Losses
    choose : callable
    chosen : int
        The index of the candidate that is chosen on all units.
    """
    n_units = len(losses.shares)
    n_draws = int(np.clip(_MAX_DRAWN_UNITS // n_units, _MIN_DRAWS, _MAX_DRAWS))
    differences = []
    for draws, out_of_bag in draw_units(n_units, n_draws, _SEED):
        draw_means = draws @ losses.parts.T / (draws @ losses.shares)[:, None]
        oob_means = out_of_bag @ losses.parts.T / (out_of_bag @ losses.shares)[:, None]
        columns = choose(draw_means, draws)[:, None]
        chosen_means = np.take_along_axis(oob_means, columns, axis=1)[:, 0]
        differences.append(chosen_means - oob_means[:, chosen])
    means = losses.parts.sum(axis=1)
    mean = means[chosen] + np.mean(np.concatenate(differences))
    return float(np.clip(mean, means.min(), means.max()))


def choose_best(means: Array, draws: Array) -> Array:
    """Return the index of the candidate with the smallest mean loss, for each draw."""
    return means.argmin(axis=1)


def choose_simplest(losses: Losses, ranks: Array) -> Rule:
    """Return the rule that chooses the simplest candidate within one standard error of the best.

    Parameters
    ----------
    losses : Losses
    ranks : ndarray of shape (n_candidates,)
        The rank of each candidate by simplicity; 0 is the simplest one.
    """

    def choose(means: Array, draws: Array) -> Array:
        chosen = np.empty(len(draws), np.intp)
        for index, (draw_means, draw) in enumerate(zip(means, draws, strict=True)):
            best = draw_means.argmin()
            differences = draw_means - draw_means[best]
            # For each unit, its contribution to the difference minus its share of the mean
            # difference, as in ``difference_by_rows``.
            centred = losses.parts - losses.parts[best] - differences[:, None] * losses.shares
            errors = np.sqrt(np.square(centred) @ draw) / (draw @ losses.shares)
            is_near = differences <= errors
            chosen[index] = np.flatnonzero(is_near)[ranks[is_near].argmin()]
        return chosen

    return choose


def contending_trials(contest: Contest) -> list[FrozenTrial]:
    """Return the trials that might have been chosen with other rows, sorted by number.

    These are the trials whose fold scores differ from those of the best trial by no more than the
    noise, and the trials with unknown fold scores. They are sorted by number rather than by score,
    because otherwise ties within a draw would be broken by scores on out-of-bag rows.
    """
    best, *others = contest.trials
    folds = contest.folds_of(contest.trials)
    if best.number not in folds or contest.n_folds < 2:
        return in_order(contest.trials)
    max_errors = student_quantile(_CONTENDER_LEVEL, contest.n_folds - 1)
    contending = [best]
    for trial in others:
        if trial.number in folds:
            differences = folds[trial.number].astype(float) - folds[best.number]
            error = fold_error(differences, contest.n_folds, contest.overlap)
            if abs(differences.mean()) > max_errors * error:
                continue
        contending.append(trial)
    return in_order(contending)


def correction_of(
    contest: Contest, rule: RuleName, simpler: Simpler | None, level: float
) -> Correction:
    """Prepare to correct the score of the trial that a rule chooses.

    Parameters
    ----------
    contest : Contest
    rule : {"best", "one_se"}
    simpler : dict of str to {"larger", "smaller"}, "n_updates", callable or None
        Used if the rule is "one_se", see ``select``.
    level : float
    """
    check_choice("rule", rule, RULES)
    choice, run = choice_of(contest, rule, simpler, level), contest.run
    assert run is not None
    tested = run.request.cross_validation.tested(run.method_name)
    contending = contending_trials(contest)
    max_trials = max(1, _MAX_LOSS_BYTES // (8 * len(tested.rows)))
    numbers = {choice.trial.number, *(trial.number for trial in contest.trials[:max_trials])}
    trials = [trial for trial in contending if trial.number in numbers]
    contenders, losses = _losses(contest, run, tested, trials)
    if choice.trial.number not in {trial.number for trial in contenders}:
        raise ValueError(
            "honest needs the out-of-fold outputs or the fold scores of the chosen trial, but "
            f"both are unknown for trial {choice.trial.number}, {contest.reason_unknown}."
        )
    choose: Rule = choose_best
    if rule == "one_se":
        order = order_of(contest.trials, simpler, values_of=contest.values_of)
        by_rank = sorted(range(len(contenders)), key=lambda at: order(contenders[at]))
        choose = choose_simplest(losses, np.argsort(by_rank))
    indices = {trial.number: index for index, trial in enumerate(contenders)}
    unscored = [trial.number for trial in contending if trial.number not in indices]
    chosen = indices[choice.trial.number]
    if reason := reason_not_exchangeable(losses, tested, chosen):
        raise ValueError(
            f"honest cannot correct the score of the chosen trial, because {reason}; instead, "
            "evaluate the chosen model on later rows that the study has not used."
        )
    compute_mean = partial(out_of_bag_mean, losses, choose, chosen)
    return choice, contenders, unscored, losses, compute_mean


def honest_of(contest: Contest, rule: RuleName, simpler: Simpler | None, level: float) -> Honest:
    """Return the corrected score of the trial that a rule chooses, and its interval.

    The arguments are as for ``correction_of``.
    """
    choice, trials, unscored, losses, compute_mean = correction_of(contest, rule, simpler, level)
    run = contest.run
    assert run is not None
    mean, chosen = compute_mean(), trials.index(choice.trial)
    interval = interval_around(run, losses, chosen, mean, "the chosen trial", level)
    note = " ".join(_notes(losses, chosen, unscored))
    if note:
        warn_caller(f"honest: {note[:1].lower()}{note[1:]}")
    return Honest(
        mean=sign_of(run) * mean,
        interval=interval,
        value=choice.trial.values[0],
        trial=choice.trial,
        by=losses.by,
        n_contenders=len(trials),
        unscored=unscored,
        note=note,
    )


def _losses(
    contest: Contest, run: Run, tested: Tested, trials: list[FrozenTrial]
) -> tuple[list[FrozenTrial], Losses]:
    """Return the trials whose losses are known, and their losses by unit."""
    metric = metric_of(run)
    # The method from whose outputs the first optimized score is computed, if they are kept.
    method = next((name for name in run.request.stored_methods if name == metric.methods), None)
    load_fold_losses = partial(fold_losses, contest, trials, sign_of(run))
    has_folds = len(tested.cuts) == 1 and not run.request.is_pooled and tested.n_folds > 1
    is_mean = can_score_rows(metric, run.request.classes)
    if is_mean:
        scored, row_losses = [], np.empty((0, 0))
        if contest.rows:
            scored = [trial for trial in trials if trial.number in contest.rows]
            row_losses = np.array([contest.rows[trial.number][tested.rows] for trial in scored])
            row_losses *= sign_of(run)
        elif method is not None and contest.outputs_of is not None:
            scored, responses = contest.outputs_of(trials, method)
            row_losses = losses_per_test(run, responses, tested)
        # In a search over the number of trees, fold scores are kept for all sizes, but outputs
        # only for the largest one.
        is_incomplete = has_folds and len(scored) < len(trials)
        if scored and not (is_incomplete and len(load_fold_losses()[0]) > len(scored)):
            return scored, losses_per_unit(row_losses, tested)
    if not has_folds:
        needed = (
            "row_losses=True in treecv_objective" if is_mean else "a mean over rows as scoring"
        )
        raise ValueError(
            f"honest needs {needed} for pooled scores, repeated folds and a hold-out, "
            f"got scoring={run.request.scoring.name!r}."
        )
    return load_fold_losses()


def fold_losses(
    contest: Contest, trials: list[FrozenTrial], sign: int
) -> tuple[list[FrozenTrial], Losses]:
    """Return the trials whose fold scores are known, and these scores as losses.

    Parameters
    ----------
    contest : Contest
        The trials of a cross-validation with a single repeat.
    trials : list of FrozenTrial
    sign : int
        -1 if larger scores are better, else 1.
    """
    folds = contest.folds_of(trials)
    scored = [trial for trial in trials if trial.number in folds]
    scores = np.array([sign * folds[trial.number].astype(float) for trial in scored])
    shares = np.full(contest.n_folds, 1 / contest.n_folds)
    return scored, Losses(scores.reshape(len(scored), contest.n_folds) * shares, shares, "folds")


def corrected_by_folds(contest: Contest | None, sign: int) -> float | None:
    """Return the corrected score of the best trial, computed from fold scores alone.

    Return None if there are fewer than 5 folds, if their scores are unknown, or if test sets
    overlap.
    """
    if contest is None or contest.n_folds < MIN_FOLDS or contest.test_share is None:
        return None
    max_trials = min(_MAX_TRIALS, _MAX_SCORES // contest.n_folds)
    best, trials = contest.trials[0], contest.trials[:max_trials]
    if len(trials) < 2:
        return None
    best_scores = contest.folds_of([best]).get(best.number)
    if best_scores is None or len(best_scores) > contest.n_folds:
        return None
    folds = contest.folds_of(trials)
    contest = contest._replace(trials=trials, folds_of=lambda _: folds)
    contenders, losses = fold_losses(contest, contending_trials(contest), sign)
    return sign * out_of_bag_mean(losses, choose_best, contenders.index(best))


def _notes(losses: Losses, chosen: int, unscored: Sequence[int]) -> Iterator[str]:
    """Yield the reasons why a correction may be misleading, as sentences."""
    if unscored:
        numbers = f"{', '.join(map(str, unscored[:8]))}{', ...' if len(unscored) > 8 else ''}"
        yield (
            f"The row and fold scores of trials {numbers} are unknown, so the correction is too "
            "small; use a store, or row_losses=True in treecv_objective, to keep the scores."
        )
    n_units = len(losses.shares)
    if (correlation := block_correlation(losses, chosen)) > _MAX_CORRELATION:
        yield (
            f"The losses of neighbouring blocks of rows are correlated ({correlation:.2f}), so "
            "the interval may be too narrow."
        )
    elif losses.by == "folds" and n_units < MIN_FOLDS:
        yield f"A bootstrap of only {n_units} folds is unreliable; use more folds instead."
    elif losses.by in ("rows", "groups") and n_units < MIN_UNITS:
        yield (
            f"A bootstrap of only {n_units} {losses.by} is unreliable, and so are the correction "
            "and the interval."
        )
