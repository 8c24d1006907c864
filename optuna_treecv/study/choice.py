"""The choice of a trial: the best one, or the simplest one within one standard error of it."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from dataclasses import replace
from math import inf
from math import isfinite
from math import sqrt
from typing import Literal
from typing import NamedTuple

import numpy as np
import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv.core.html import html_table
from optuna_treecv.core.intervals import check_level
from optuna_treecv.core.intervals import difference_by_folds
from optuna_treecv.core.intervals import difference_by_rows
from optuna_treecv.core.intervals import HasInterval
from optuna_treecv.core.intervals import Interval
from optuna_treecv.core.intervals import nadeau_bengio
from optuna_treecv.core.intervals import PairedDifference
from optuna_treecv.core.intervals import student_quantile
from optuna_treecv.core.intervals import within
from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import is_number
from optuna_treecv.study.records import facts_of_trial
from optuna_treecv.study.space import Params
from optuna_treecv.types import Array
from optuna_treecv.types import Opaque
from optuna_treecv.types import ParamValue

#: How to tell which of two models is simpler, see ``select``.
Simpler = Mapping[str, str] | Literal["n_updates"] | Callable[[dict[str, ParamValue]], float]

#: Trials, and for each trial its out-of-fold outputs in the order of ``Tested.rows``.
TrialOutputs = tuple[list[FrozenTrial], list[Array]]

#: (params of a trial) -> the parameter values of the estimator.
ValuesOf = Callable[[Params], dict[str, ParamValue]]

#: The names of the built-in rules by which a trial is chosen.
RULES = ("best", "one_se")

# A trial with one misclassified row more than the best one differs by exactly one standard error.
# This factor keeps it within one standard error despite rounding.
_ROUNDING = 1 + 1e-9

# For each of these parameters, whether larger or smaller values usually make a model simpler.
_SIMPLER = {
    "alpha": "larger",
    "C": "smaller",
    "ccp_alpha": "larger",
    "max_depth": "smaller",
    "max_leaf_nodes": "smaller",
    "min_impurity_decrease": "larger",
    "min_samples_leaf": "larger",
    "min_samples_split": "larger",
    "num_leaves": "smaller",
    "reg_lambda": "larger",
}


class Candidate(NamedTuple):
    """A trial that may be chosen.

    Attributes
    ----------
    trial : optuna.trial.FrozenTrial
    difference : PairedDifference or None
        Its mean score minus the mean score of the best trial; None for the best trial.
    """

    trial: FrozenTrial
    difference: PairedDifference | None


class Contest(NamedTuple):
    """The trials of a study that may be chosen, and access to their scores.

    Attributes
    ----------
    trials : list of FrozenTrial
        The complete trials with finite values, the best one first.
    folds_of : callable
        (trials) -> dict of int to ndarray of shape (n_repeats * n_folds,): the fold scores by
        trial number, for trials whose fold scores are known.
    rows : dict of int to ndarray of shape (n_rows,)
        The scores of the rows by trial number, for trials whose row scores are known.
    shares : ndarray of shape (n_rows,) or None
        The weight of each row in the mean score, with sum 1; None if no row scores are known.
    metric : str
    n_folds : int
        The number of folds of one repeat.
    n_trained : int
        The number of training rows of a fold.
    test_share : float or None
        The number of test rows of a fold divided by its number of training rows; None if there is
        no interval of the expected risk, as for time series.
    score_range : (float, float) or None
        The smallest and the largest possible score.
    overlap : float or None
        The same ratio as ``test_share`` if test sets overlap, else None.
    note : str
        The reason why intervals over rows may be too narrow.
    reason_unknown : str
        The reason why fold scores may be unknown.
    run : Run or None
        The run of the best trial, which need not be evaluated; None if scores are read from a
        store without an objective.
    outputs_of : callable or None
        (trials, method) -> the trials whose out-of-fold outputs are known, and these outputs.
    values_of : ValuesOf
    """

    trials: list[FrozenTrial]
    folds_of: Callable[[Sequence[FrozenTrial]], Mapping[int, Array]]
    rows: Mapping[int, Array]
    shares: Array | None
    metric: str
    n_folds: int
    n_trained: int
    test_share: float | None
    score_range: tuple[float, float] | None
    overlap: float | None = None
    note: str = ""
    reason_unknown: str = "because they are not in the store"
    run: Run | None = None
    outputs_of: Callable[[list[FrozenTrial], str], TrialOutputs] | None = None
    values_of: ValuesOf = dict


@dataclass(frozen=True, eq=False)
class Choice(HasInterval):
    """A trial that a rule has chosen, and its comparison with the other trials.

    Attributes
    ----------
    trial : optuna.trial.FrozenTrial
        The chosen trial.
    trial_number, params, value
        The number, the parameters and the value of the chosen trial.
    best : optuna.trial.FrozenTrial
        The trial with the best value.
    best_number : int
        Its number.
    interval : Interval or None
        The interval of the chosen trial's mean by the method of Nadeau and Bengio. None if the
        method does not apply, as for a hold-out or a time series.
    low, high, level : float
        The ends and the level of the interval.
    candidates : list of Candidate
        The best trial, followed by the trials with known scores that may be indistinguishable from
        it. Each candidate has the attributes ``trial`` and ``difference``, the paired difference
        from the best trial. All other trials with known scores are distinguishable from the best
        one at ``level``.
    within_one_se : list of int
        The trial numbers of the candidates whose paired difference from the best trial is at most
        the standard error of this difference. The best trial comes first.
    not_distinguishable : list of int
        The trial numbers of the candidates whose confidence interval of the difference contains 0.
    n_trials : int
        The number of complete trials from which the trial was chosen.
    unscored : list of int
        The numbers of trials that may be equally good but whose fold scores are unknown.
    honest : Honest or None
        The score of the chosen trial, corrected for the choice. None if the required scores are
        unknown, or if the rule is a callable.
    """

    trial: FrozenTrial
    best: FrozenTrial
    interval: Interval | None
    candidates: list[Candidate]
    within_one_se: list[int]
    not_distinguishable: list[int]
    n_trials: int
    unscored: list[int]
    honest: Opaque = None

    @property
    def trial_number(self) -> int:
        """The number of the chosen trial."""
        return self.trial.number

    @property
    def params(self) -> dict[str, ParamValue]:
        """The parameters of the chosen trial."""
        return self.trial.params

    @property
    def value(self) -> float:
        """The value of the chosen trial."""
        return self.trial.values[0]

    @property
    def best_number(self) -> int:
        """The number of the best trial."""
        return self.best.number

    def _repr_html_(self) -> str:
        """Return the display for notebooks."""
        honest, interval = self.honest, self.interval
        rows = {
            "trial": f"{self.trial.number} of {self.n_trials}",
            "params": ", ".join(f"{name}={value!r}" for name, value in self.trial.params.items()),
            "value": f"{self.trial.values[0]:.6g}",
            "corrected for the choice": honest
            and f"{honest.mean:.6g} ({honest.interval.low:.6g} to {honest.interval.high:.6g})",
            "interval": interval and f"{interval.low:.6g} to {interval.high:.6g}",
            "target of the interval": interval and interval.target,
            "best trial": self.best.number,
            "within one standard error of it": _shorten(self.within_one_se),
            "not distinguishable from it": _shorten(self.not_distinguishable),
            "unknown scores": _shorten(self.unscored) if self.unscored else None,
        }
        return html_table(f"Choice: trial {self.trial.number}", rows)

    def __repr__(self) -> str:
        """Return a description of the choice in a few lines."""
        interval = self.interval
        lines = [
            f"Choice(trial_number={self.trial_number}, params={self.params},",
            f"    best_number={self.best_number}, within_one_se={_shorten(self.within_one_se)}, "
            f"not_distinguishable={_shorten(self.not_distinguishable)}, n_trials={self.n_trials},",
        ]
        if self.unscored:
            lines.append(f"    unscored={_shorten(self.unscored)},")
        if interval is not None:
            lines.append(f"    low={self.low:.6g}, high={self.high:.6g},")
            lines.append(f"    interval=<{interval.note or interval.method}>,")
        if self.honest is not None:
            lines.append(f"    value={self.value:.6g}, honest=<mean {self.honest.mean:.6g}>,")
        return "\n".join(lines)[:-1] + ")"


RuleName = Literal["best", "one_se"]

#: A rule: its name, or a function that takes the candidates, the best one first, and returns a
#: candidate or the number of its trial.
Rule = RuleName | Callable[[list[Candidate]], Candidate | int]


def choice_of(contest: Contest, rule: Rule, simpler: Simpler | None, level: float) -> Choice:
    """Choose a trial.

    Parameters
    ----------
    contest : Contest
    rule : {"best", "one_se"} or callable
    simpler : dict of str to {"larger", "smaller"}, "n_updates", callable or None
    level : float
    """
    check_rule(rule)
    level = check_level(level)
    if simpler is not None and rule != "one_se":
        raise ValueError(
            "simpler must be None unless rule is 'one_se', because other rules ignore it, got "
            f"{simpler!r}."
        )
    order = None
    if rule == "one_se":
        order = order_of(contest.trials, simpler, values_of=contest.values_of)
        if contest.n_folds < 2 and not contest.rows:
            raise ValueError(
                "rule must be 'best' for a single test set, because one score has no standard "
                "error, got 'one_se'; to compare trials over rows, use row_losses=True in the "
                "objective."
            )
    best = contest.trials[0]
    candidates, unscored = [Candidate(best, None)], contest.trials
    if rule != "best" or best.number in contest.folds_of([best]):
        near = [
            trial
            for trial in contest.trials[1:]
            if _may_be_indistinguishable(contest, trial, level)
        ]
        candidates += differences_from_best(contest, near, level)
        numbers = {candidate.trial.number for candidate in candidates}
        unscored = [trial for trial in near if trial.number not in numbers]
    differences = [(c.trial.number, c.difference) for c in candidates if c.difference]
    within = [n for n, d in differences if abs(d.mean) <= _ROUNDING * d.std_error]
    not_distinguishable = [n for n, d in differences if d.interval.low <= 0 <= d.interval.high]
    within_one_se = [best.number, *within]
    trial = best
    if order is not None:
        near = [c.trial for c in candidates if c.trial.number in within_one_se]
        trial = min(near, key=order)  # the best one if several are equally simple
    elif callable(rule):
        trial = _apply_rule(rule, candidates)
    return Choice(
        trial=trial,
        best=best,
        interval=_interval(contest, trial, level),
        candidates=candidates,
        within_one_se=within_one_se,
        not_distinguishable=not_distinguishable,
        n_trials=len(contest.trials),
        unscored=[x.number for x in unscored],
    )


def check_rule(rule: Rule) -> None:
    """Raise ValueError unless the rule is "best", "one_se" or a callable."""
    is_known = isinstance(rule, str) and rule in RULES
    if not is_known and (not callable(rule) or isinstance(rule, type)):
        raise ValueError(
            f"rule must be one of {', '.join(map(repr, RULES))} or a callable that takes a list "
            f"of candidates and returns one of them, got {rule!r}."
        )


def differences_from_best(
    contest: Contest, trials: Sequence[FrozenTrial], level: float
) -> list[Candidate]:
    """Return candidates with their differences from the best trial, if scores are known.

    Raises
    ------
    ValueError
        If the scores of the best trial are unknown.
    """
    best = contest.trials[0]
    best_scores = contest.folds_of([best]).get(best.number)
    if best_scores is None:
        raise ValueError(
            "study must have a best trial with known fold scores, but the fold scores of trial "
            f"{best.number} are unknown, {contest.reason_unknown}."
        )
    folds = contest.folds_of(trials)
    candidates = []
    for trial in [trial for trial in trials if trial.number in folds]:
        trial_scores = folds[trial.number]
        if trial.number in contest.rows and best.number in contest.rows:
            assert contest.shares is not None
            rows = contest.rows[trial.number], contest.rows[best.number]
            mean = float(trial_scores.mean() - best_scores.mean())
            difference = difference_by_rows(mean, *rows, contest.shares, level, contest.note)
        else:
            scores = trial_scores.astype(float), best_scores.astype(float)
            difference = difference_by_folds(*scores, contest.n_folds, level, contest.overlap)
        candidates.append(Candidate(trial, difference))
    return candidates


def _may_be_indistinguishable(contest: Contest, trial: FrozenTrial, level: float) -> bool:
    """Return whether the fold scores are needed to distinguish a trial from the best one.

    This is decided by the attributes of the trials: the standard deviation of a difference is at
    most the sum of both standard deviations. The fold scores of most trials are not needed.
    """
    best = contest.trials[0]
    facts = [facts_of_trial(x.user_attrs) for x in (best, trial)]
    stds: list[Opaque] = [fact.get("std_test_score") for fact in facts]
    if best.number in contest.rows and trial.number in contest.rows:
        return True
    if contest.n_folds < 2 or not all(map(is_number, stds)):
        return contest.n_folds > 1
    if contest.overlap is not None:
        return True
    max_errors = max(1.0, student_quantile(level, contest.n_folds - 1)) / sqrt(contest.n_folds - 1)
    distance = abs(trial.values[0] - best.values[0])
    return distance <= 1.0001 * max_errors * sum(stds)  # attributes have 6 digits


def _interval(contest: Contest, trial: FrozenTrial, level: float) -> Interval | None:
    scores = contest.folds_of([trial]).get(trial.number)
    if contest.n_folds < 2 or contest.test_share is None or scores is None:
        return None
    interval = nadeau_bengio(scores.astype(float), contest.test_share, contest.n_trained, level)
    interval = within(interval, contest.score_range)
    if len(contest.trials) == 1:
        return interval
    trials = f"{len(contest.trials):,} trials on the same folds"
    note = f"The trial was chosen among {trials}, so its mean score is optimistic."
    return replace(interval, note=note)


def order_of(
    trials: Sequence[FrozenTrial],
    simpler: Simpler | None,
    searched: Collection[str] = (),
    values_of: ValuesOf = dict,
) -> Callable[[FrozenTrial], tuple[float, ...]]:
    """Return a sort key that puts the trial with the simplest model first, see ``select``."""
    if isinstance(simpler, str) and simpler == "n_updates":
        return lambda trial: (float(facts_of_trial(trial.user_attrs).get("n_updates", inf)),)
    if callable(simpler):
        return lambda trial: (float(simpler(values_of(trial.params))),)
    searched = sorted({name for trial in trials for name in trial.params}.union(searched))
    directions = _directions(simpler, searched)

    def key(trial: FrozenTrial) -> tuple[float, ...]:
        values = []
        for name, direction in directions.items():
            value = trial.params.get(name, inf if direction == "smaller" else -inf)
            if not is_number(value):
                raise ValueError(
                    f"simpler must name parameters whose values are numbers, got {name!r} with "
                    f"value {value!r}; use a callable instead."
                )
            values.append(float(value) if direction == "smaller" else -float(value))
        return tuple(values)

    return key


def known_direction(searched: Sequence[str]) -> dict[str, str] | None:
    """Return the default of ``simpler``: the usual direction if one parameter is searched."""
    last = searched[0].rpartition("__")[2] if len(searched) == 1 else ""
    return {searched[0]: _SIMPLER[last]} if last in _SIMPLER else None


def _directions(simpler: Opaque, searched: Sequence[str]) -> Mapping[str, str]:
    """Return the argument ``simpler`` after checking it, or its default if it is None."""
    if simpler is None:
        if (direction := known_direction(searched)) is not None:
            return direction
        if not searched:
            raise ValueError("rule must be 'best' if no parameter was searched, got 'one_se'.")
        names = ", ".join(map(repr, searched))
        raise ValueError(
            f"simpler must be given for rule='one_se' and a search of {names}, because it is "
            "unknown which values make a model simpler; use a dict such as "
            f"simpler={{{searched[0]!r}: "
            "'larger'} instead."
        )
    are_known = isinstance(simpler, Mapping) and len(simpler) > 0
    if not are_known or any(x not in ("larger", "smaller") for x in simpler.values()):
        raise ValueError(
            "simpler must be 'n_updates', a callable that takes the parameters of a trial, or a "
            "dict that maps parameters to 'larger' or 'smaller', the most important one first, "
            f"got {simpler!r}."
        )
    for name in simpler:
        if name not in searched:
            raise ValueError(
                f"simpler must name parameters of the study, {', '.join(map(repr, searched))}, "
                f"got {name!r}."
            )
    return simpler


def _apply_rule(
    rule: Callable[[list[Candidate]], object], candidates: list[Candidate]
) -> FrozenTrial:
    """Return the trial that a rule of the user chooses."""
    chosen = rule(list(candidates))
    number = chosen.trial.number if isinstance(chosen, Candidate) else chosen
    for candidate in candidates:
        if isinstance(number, int | np.integer) and candidate.trial.number == number:
            return candidate.trial
    raise ValueError(
        "rule must return one of the given candidates, or the trial number of one of them, got "
        f"{chosen!r}."
    )


def _shorten(numbers: Sequence[int]) -> str:
    """Return a list of trial numbers as text, shortened if it is long."""
    if len(numbers) <= 8:
        return str(list(numbers))
    return f"<{', '.join(map(str, numbers[:8]))}, ... {len(numbers) - 8} more>"


def complete_trials(study: optuna.Study, number: int | None = None) -> list[FrozenTrial]:
    """Return the complete, feasible trials with finite values, the best one first.

    If the study has several objectives, ``number`` is the index of an objective. The returned
    trials then have only the value of this objective.
    """
    if not isinstance(study, optuna.Study):
        raise ValueError(f"study must be an optuna.Study, got {study!r}.")
    if len(study.directions) > 1 and number is None:
        raise ValueError(
            "study must have a single objective, because otherwise there is no best trial; use "
            "one of study.best_trials, the Pareto front, instead."
        )
    direction = study.directions[number or 0]
    sign = 1 if direction == optuna.study.StudyDirection.MINIMIZE else -1
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if number is not None:
        trials = [copy(trial) for trial in trials]
        for trial in trials:
            trial.values = [trial.values[number]]
    finite = [trial for trial in trials if isfinite(trial.values[0]) and is_feasible(trial)]
    if not finite:
        raise ValueError(
            "study must have a complete trial with a finite value that satisfies the constraints, "
            "got none."
        )
    return sorted(finite, key=lambda trial: (sign * trial.values[0], trial.number))


def in_order(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    """Return trials sorted by number."""
    return sorted(trials, key=lambda trial: trial.number)


def is_feasible(trial: FrozenTrial) -> bool:
    """Return whether a trial satisfies its constraints, as for ``study.best_trial``."""
    return all(value <= 0 for value in trial.constraints.values())
