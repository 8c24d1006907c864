"""The choice of a trial: the best one, or the simplest of those within one standard error."""

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

from optuna_treecv.core.html import as_table
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

#: The values of parameters that make a model simpler: see ``select``.
Simpler = Mapping[str, str] | Literal["n_updates"] | Callable[[dict[str, ParamValue]], float]

#: Trials and the outputs of each, in the order of ``Tested.rows``.
TrialOutputs = tuple[list[FrozenTrial], list[Array]]

#: (params of a trial) -> the values that they mean.
ValuesOf = Callable[[Params], dict[str, ParamValue]]

#: The rules of choice that users may name besides a callable.
RULES = ("best", "one_se")

# A trial with one error more than the best one differs by exactly one standard error; it must be
# within it despite rounding.
_TIE = 1 + 1e-9

# The direction of simpler models by parameter, if there is a usual one.
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
        Its mean minus that of the best trial; None for the best trial.
    """

    trial: FrozenTrial
    difference: PairedDifference | None


class Contest(NamedTuple):
    """The trials of a choice, with their scores.

    Attributes
    ----------
    trials : list of FrozenTrial
        The complete trials with finite values, the best one first.
    folds_of : callable
        (trials) -> dict of int to ndarray of shape (n_repeats * n_folds,), the known fold scores
        by trial number.
    rows : dict of int to ndarray of shape (n_rows,)
        The known scores of rows by trial number.
    shares : ndarray of shape (n_rows,) or None
        The shares of the scores of rows in a mean; None if no scores of rows are known.
    metric : str
    n_folds : int
        The folds of one repeat.
    n_trained : int
        The rows on which a fold's model is trained.
    test_share : float or None
        The test rows of a fold as a share of its training rows; None if the expected risk has no
        interval, as for time series.
    score_range : (float, float) or None
        The least and the largest possible score.
    overlap : float or None
        If folds have test rows in common, the test rows of a fold as a share of its training
        rows.
    note : str
        The reason why intervals over rows may be too narrow.
    why_unknown : str
        The reason why fold scores may be unknown.
    run : Run or None
        The run of the best trial, not necessarily evaluated; None if there is only a store.
    outputs_of : callable or None
        (trials, method) -> the trials with known out-of-fold outputs, and the outputs.
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
    why_unknown: str = "because they are not in the store"
    run: Run | None = None
    outputs_of: Callable[[list[FrozenTrial], str], TrialOutputs] | None = None
    values_of: ValuesOf = dict


@dataclass(frozen=True, eq=False)
class Choice(HasInterval):
    """A chosen trial, with the comparisons that support the choice.

    Attributes
    ----------
    trial : optuna.trial.FrozenTrial
        The chosen trial.
    trial_number, params, value
        Its number, parameters and value.
    best : optuna.trial.FrozenTrial
        The trial with the best value.
    best_number : int
        Its number.
    interval : Interval or None
        The interval of the chosen trial's mean, by the method of Nadeau and Bengio. None if there
        is none, as for a hold-out or time series.
    low, high, level : float
        The ends and the level of the interval.
    candidates : list of Candidate
        The best trial and those that may not be distinguishable from it, best first, as far as
        their scores are known. Each has ``trial`` and ``difference``, the paired difference from
        the best trial. All other trials can be distinguished from it at ``level``.
    within_one_se : list of int
        The numbers of the candidates whose paired difference from the best trial is at most the
        standard error of this difference; the best one is first.
    not_distinguishable : list of int
        The numbers of the candidates whose interval of the difference contains 0.
    n_trials : int
        The number of complete trials in the choice.
    left_out : list of int
        The numbers of trials that may be as good, but whose fold scores are unknown.
    honest : Honest or None
        The score of the chosen trial, corrected for the choice; None if the scores for that are
        unknown, or the rule is a callable.
    """

    trial: FrozenTrial
    best: FrozenTrial
    interval: Interval | None
    candidates: list[Candidate]
    within_one_se: list[int]
    not_distinguishable: list[int]
    n_trials: int
    left_out: list[int]
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
            "it covers": interval and interval.target,
            "best trial": self.best.number,
            "within one standard error of it": _few(self.within_one_se),
            "not distinguishable from it": _few(self.not_distinguishable),
            "unknown scores": _few(self.left_out) if self.left_out else None,
        }
        return as_table(f"Choice: trial {self.trial.number}", rows)

    def __repr__(self) -> str:
        """Return the choice in a few lines."""
        interval = self.interval
        lines = [
            f"Choice(trial_number={self.trial_number}, params={self.params},",
            f"    best_number={self.best_number}, within_one_se={_few(self.within_one_se)}, "
            f"not_distinguishable={_few(self.not_distinguishable)}, n_trials={self.n_trials},",
        ]
        if self.left_out:
            lines.append(f"    left_out={_few(self.left_out)},")
        if interval is not None:
            lines.append(f"    low={self.low:.6g}, high={self.high:.6g},")
            lines.append(f"    interval=<{interval.note or interval.method}>,")
        if self.honest is not None:
            lines.append(f"    value={self.value:.6g}, honest=<mean {self.honest.mean:.6g}>,")
        return "\n".join(lines)[:-1] + ")"


RuleName = Literal["best", "one_se"]

#: A rule of choice among candidates, the best one first: a candidate or the number of its trial.
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
                "rule must be 'best' for a single test set, whose trials have no standard error, "
                "got 'one_se'; row_losses=True in the objective compares trials over rows."
            )
    best = contest.trials[0]
    candidates, left_out = [Candidate(best, None)], contest.trials
    if rule != "best" or best.number in contest.folds_of([best]):
        near = [trial for trial in contest.trials[1:] if _may_be_near(contest, trial, level)]
        candidates += differences_from_best(contest, near, level)
        numbers = {candidate.trial.number for candidate in candidates}
        left_out = [trial for trial in near if trial.number not in numbers]
    differences = [(c.trial.number, c.difference) for c in candidates if c.difference]
    within = [n for n, d in differences if abs(d.mean) <= _TIE * d.std_error]
    alike = [n for n, d in differences if d.interval.low <= 0 <= d.interval.high]
    within_one_se = [best.number, *within]
    trial = best
    if order is not None:
        near = [c.trial for c in candidates if c.trial.number in within_one_se]
        trial = min(near, key=order)  # the first, which is the best, of equally simple ones
    elif callable(rule):
        trial = _chosen(rule, candidates)
    return Choice(
        trial=trial,
        best=best,
        interval=_interval(contest, trial, level),
        candidates=candidates,
        within_one_se=within_one_se,
        not_distinguishable=alike,
        n_trials=len(contest.trials),
        left_out=[x.number for x in left_out],
    )


def check_rule(rule: Rule) -> None:
    """Refuse a value that is neither the name of a rule nor a callable."""
    is_known = isinstance(rule, str) and rule in RULES
    if not is_known and (not callable(rule) or isinstance(rule, type)):
        raise ValueError(
            f"rule must be one of {', '.join(map(repr, RULES))} or a callable that takes a list "
            f"of candidates and returns one of them, got {rule!r}."
        )


def differences_from_best(
    contest: Contest, trials: Sequence[FrozenTrial], level: float
) -> list[Candidate]:
    """Return the trials with known scores and their differences from the best trial.

    Raises
    ------
    ValueError
        If the scores of the best trial are unknown.
    """
    best = contest.trials[0]
    of_best = contest.folds_of([best]).get(best.number)
    if of_best is None:
        raise ValueError(
            "study must have a best trial with known fold scores, but those of trial "
            f"{best.number} are unknown, {contest.why_unknown}."
        )
    folds = contest.folds_of(trials)
    candidates = []
    for trial in [trial for trial in trials if trial.number in folds]:
        of_trial = folds[trial.number]
        if trial.number in contest.rows and best.number in contest.rows:
            assert contest.shares is not None
            rows = contest.rows[trial.number], contest.rows[best.number]
            mean = float(of_trial.mean() - of_best.mean())
            difference = difference_by_rows(mean, *rows, contest.shares, level, contest.note)
        else:
            scores = of_trial.astype(float), of_best.astype(float)
            difference = difference_by_folds(*scores, contest.n_folds, level, contest.overlap)
        candidates.append(Candidate(trial, difference))
    return candidates


def _may_be_near(contest: Contest, trial: FrozenTrial, level: float) -> bool:
    """Return whether a trial may be indistinguishable from the best one, by its attributes.

    The standard deviation of a difference is at most the sum of both standard deviations, which
    are attributes of the trials. So the scores of most trials are never read.
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
    reach = max(1.0, student_quantile(level, contest.n_folds - 1)) / sqrt(contest.n_folds - 1)
    distance = abs(trial.values[0] - best.values[0])
    return distance <= 1.0001 * reach * sum(stds)  # attributes have 6 digits


def _interval(contest: Contest, trial: FrozenTrial, level: float) -> Interval | None:
    scores = contest.folds_of([trial]).get(trial.number)
    if contest.n_folds < 2 or contest.test_share is None or scores is None:
        return None
    interval = nadeau_bengio(scores.astype(float), contest.test_share, contest.n_trained, level)
    interval = within(interval, contest.score_range)
    if len(contest.trials) == 1:
        return interval
    trials = f"{len(contest.trials):,} trials on the same folds"
    note = f"It was chosen among {trials}, so its mean looks better than it is."
    return replace(interval, note=note)


def order_of(
    trials: Sequence[FrozenTrial],
    simpler: Simpler | None,
    searched: Collection[str] = (),
    values_of: ValuesOf = dict,
) -> Callable[[FrozenTrial], tuple[float, ...]]:
    """Return a sort key of trials, the simplest one first, for ``simpler`` as in ``select``."""
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
                    f"{value!r}; use a callable as rule instead."
                )
            values.append(float(value) if direction == "smaller" else -float(value))
        return tuple(values)

    return key


def known_direction(searched: Sequence[str]) -> dict[str, str] | None:
    """Return the usual direction of simpler models, if a single parameter with one is searched."""
    last = searched[0].rpartition("__")[2] if len(searched) == 1 else ""
    return {searched[0]: _SIMPLER[last]} if last in _SIMPLER else None


def _directions(simpler: Opaque, searched: Sequence[str]) -> Mapping[str, str]:
    """Return the checked ``simpler``, or its default."""
    if simpler is None:
        if (direction := known_direction(searched)) is not None:
            return direction
        if not searched:
            raise ValueError("rule must be 'best' if no parameter was searched, got 'one_se'.")
        names = ", ".join(map(repr, searched))
        raise ValueError(
            "simpler must name the values that make a model simpler for rule='one_se', because "
            f"{names} {'was' if len(searched) < 2 else 'were'} searched; use "
            f"simpler={{{searched[0]!r}: 'larger'}}, for example, instead."
        )
    are_known = isinstance(simpler, Mapping) and len(simpler) > 0
    if not are_known or any(x not in ("larger", "smaller") for x in simpler.values()):
        raise ValueError(
            "simpler must be a dict of parameters to 'larger' or 'smaller', the most important "
            f"one first, 'n_updates' or a callable that takes parameters, got {simpler!r}."
        )
    for name in simpler:
        if name not in searched:
            raise ValueError(
                f"simpler must name parameters of the study, {', '.join(map(repr, searched))}, "
                f"got {name!r}."
            )
    return simpler


def _chosen(rule: Callable[[list[Candidate]], object], candidates: list[Candidate]) -> FrozenTrial:
    """Return the trial that a user's rule chooses."""
    answer = rule(list(candidates))
    number = answer.trial.number if isinstance(answer, Candidate) else answer
    for candidate in candidates:
        if isinstance(number, int | np.integer) and candidate.trial.number == number:
            return candidate.trial
    raise ValueError(
        "rule must return one of the candidates that it was given, or the number of its trial, "
        f"got {answer!r}."
    )


def _few(numbers: Sequence[int]) -> str:
    """Return a list as text, shortened if it is long."""
    if len(numbers) <= 8:
        return str(list(numbers))
    return f"<{', '.join(map(str, numbers[:8]))}, ... {len(numbers) - 8} more>"


def complete_trials(study: optuna.Study, number: int | None = None) -> list[FrozenTrial]:
    """Return the complete trials with finite values, the best one first.

    If the study has several values, the trials have only the value of the given number.
    """
    if not isinstance(study, optuna.Study):
        raise ValueError(f"study must be an optuna.Study, got {study!r}.")
    if len(study.directions) > 1 and number is None:
        raise ValueError(
            "study must have one objective for a best trial; choose one of study.best_trials, the "
            "Pareto front."
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
    """Return trials in the order of their numbers."""
    return sorted(trials, key=lambda trial: trial.number)


def is_feasible(trial: FrozenTrial) -> bool:
    """Return whether a trial satisfies its constraints, as for ``study.best_trial``."""
    return all(value <= 0 for value in trial.constraints.values())
