"""Advice on how to continue a search: wider ranges, more trials, or more repeats per trial."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from math import sqrt

import numpy as np
import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from scipy import stats

from optuna_treecv.core.settings import is_number
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.records import facts_of_trial
from optuna_treecv.study.space import Lists
from optuna_treecv.types import Opaque
from optuna_treecv.types import ParamValue

# The values of ``n_repeats`` that are compared.
_N_REPEATS = (1, 2, 3, 5, 10)

# Advice needs at least this number of trials.
_MIN_TRIALS = 8

# Fold scores are read for at most this number of trials, the best ones.
_MAX_TRIALS = 500

# At most this number of fold scores is read, unless ``_MIN_TRIALS`` trials have more:
# leave-one-out has a fold for each row.
_MAX_SCORES = 2**20

# Above this reliability, 5 folds suffice.
_HIGH_RELIABILITY = 0.95

# A value is at the edge of its range if its distance from an end is at most this share of the
# width, measured on the scale of the range (linear or logarithmic).
_EDGE_SHARE = 0.02

# A value is far from the edge if its distance is at least this share of the width.
_FAR_SHARE = 0.25

# Two trials count as equally good if their values differ by at most this share of the standard
# deviation of the fold scores.
_EQUAL_SHARE = 0.05

# An integer range that starts at 1 or 2 has no lower edge, because smaller values rarely make
# sense: trees have a depth of at least 1, and clusterings at least two clusters.
_MAX_NATURAL_LOW = 2


@dataclass(frozen=True)
class Advice:
    r"""Advice on whether more trials or more repeats would improve a study.

    The score of trial t on fold j is modelled as :math:`y_{tj} = f_t + d_j + e_{tj}`, with the
    true mean :math:`f_t` of the trial, the difficulty :math:`d_j` of the fold, which is the same
    for all trials, and the noise :math:`e_{tj}`.

    Attributes
    ----------
    spread : float
        The standard deviation :math:`\tau` of :math:`f_t` over the trials.
    noise : float
        The standard deviation of the noise in a trial's mean score: :math:`\sigma_e / \sqrt{J}`
        for J folds, with the standard deviation :math:`\sigma_e` of :math:`e_{tj}`.
    reliability : float
        :math:`\tau^2 / (\tau^2 + \sigma_e^2 / J)`: the share of the variance of the trials' mean
        scores that is not noise.
    n_repeats : int
        The number of repeats (1, 2, 3, 5 or 10) for which a study of the same duration is expected
        to find the best trial. More repeats leave time for fewer trials. The number is an upper
        limit, because repeats are treated as independent although they use the same rows.
    n_trials, n_folds : int
        The numbers of trials and of folds whose scores were used.
    """

    spread: float
    noise: float
    reliability: float
    n_repeats: int
    n_trials: int
    n_folds: int

    def __str__(self) -> str:
        """Return the advice as two sentences."""
        finding = (
            f"The standard deviation of the true means of {self.n_trials} trials is "
            f"{self.spread:.3g}, and the standard deviation of the noise in a mean is "
            f"{self.noise:.3g}."
        )
        if self.reliability == 0:
            advice = (
                "The differences between trials cannot be distinguished from noise; use more rows "
                "instead."
            )
        elif self.n_repeats > 1:
            advice = (
                "The best of more trials would be chosen mainly by noise; "
                f"n_repeats={self.n_repeats} or more rows would distinguish the trials."
            )
        elif self.reliability > _HIGH_RELIABILITY and self.n_folds > 5:
            advice = (
                "Noise hardly matters, so use 5 folds and evaluate more trials in the same time."
            )
        else:
            advice = "Further trials will improve the result more than further repeats."
        return f"{finding} {advice}"


def advice_of(contest: Contest) -> Advice:
    """Compute advice from the fold scores of a study's trials.

    Raises
    ------
    ValueError
        If fewer than 8 trials have known fold scores, or there is only one fold.
    """
    max_trials = max(_MIN_TRIALS, _MAX_SCORES // contest.n_folds)
    trials = contest.trials[: min(_MAX_TRIALS, max_trials)]
    folds = contest.folds_of(trials)
    scores = np.array([folds[trial.number] for trial in trials if trial.number in folds], float)
    if len(scores) < _MIN_TRIALS or scores.shape[1] < 2:
        raise ValueError(
            f"study must have at least {_MIN_TRIALS} complete trials with known scores of "
            f"several folds, got {len(scores)}."
        )
    n_trials, n_folds = scores.shape
    means = scores.mean(axis=1)
    residuals = scores - means[:, None] - scores.mean(axis=0) + means.mean()
    noise = float(np.square(residuals).sum()) / ((n_trials - 1) * (n_folds - 1)) / n_folds
    spread = max(0.0, float(np.var(means, ddof=1)) - noise)

    def expected_lead(n_repeats: int) -> float:
        """Return how far the chosen trial's true mean is expected to exceed the average."""
        n = max(1, round(len(contest.trials) / n_repeats))
        largest = stats.norm.ppf((n - 0.375) / (n + 0.25))  # Blom (1958)
        total = spread + noise / n_repeats
        return float(largest) * spread / sqrt(total) if total > 0 else 0.0

    best = max(_N_REPEATS, key=lambda n: (round(expected_lead(n), 12), -n))
    total = spread + noise
    reliability = spread / total if total > 0 else 0.0
    return Advice(sqrt(spread), sqrt(noise), reliability, best, n_trials, n_folds)


# Parameter values at the edge of their ranges: better values may lie beyond it.


def _scale_for(
    distribution: Opaque, listed: Collection[ParamValue] | None
) -> tuple[Callable[[float], float], float, float, bool] | None:
    """Return a function that maps a range to [0, 1], both ends, and whether it is linear.

    For a list, the function returns 0 for the smallest number, 1 for the largest one, and 0.5 for
    all others. Return None if the values are not numbers, or if there are fewer than three,
    because each of them would be an end.
    """
    values = listed or getattr(distribution, "choices", None)
    if values is not None:
        numbers = sorted(set(values)) if all(map(is_number, values)) else []
        if len(numbers) < 3:
            return None
        low, high = numbers[0], numbers[-1]
        ends = {low: 0.0, high: 1.0}
        return lambda x: ends.get(x, 0.5), low, high, numbers[-2] >= high / 2
    low, high = distribution.low, distribution.high
    if high - low < 2 * (distribution.step or 0) or low == high:
        return None
    if distribution.log:
        return lambda x: log(x / low) / log(high / low), low, high, False
    return lambda x: (x - low) / (high - low), low, high, True


def edges_of(
    trial: FrozenTrial, lists: Lists, others: Sequence[FrozenTrial] = ()
) -> dict[str, str]:
    """Return a description of each parameter whose value is at the edge of its range.

    A value is at the edge of a range if it is within 2 % of the width from either end, on the
    scale of the range. In a list of three or more numbers, the edges are the smallest and the
    largest. Ends beyond which there are hardly any useful values are ignored: 0 as the lower end,
    1 and 2 as the lower end of integers, and 1 as the upper end of shares. A value is also ignored
    if the score hardly depends on the parameter, that is, if another trial is equally good with a
    value that is at least a quarter of the range away. Equally good means that the trials' values
    differ by at most a twentieth of the standard deviation of the fold scores.

    Parameters
    ----------
    trial : FrozenTrial
    lists : dict of str to collection
        The lists of values that were searched, by parameter, if they are known. The values of a
        grid need not be given, because grid samplers write them to the trial.
    others : sequence of FrozenTrial
        The trials from which the trial was chosen.
    """
    lists_of_sampler: dict[str, Collection[ParamValue]] = {
        # An entry is a value, or the list of values in one of several grids.
        name: [x for entry in entries for x in (entry if isinstance(entry, list) else [entry])]
        for name, entries in trial.system_attrs.get("search_space", {}).items()
    }
    lists = {**lists_of_sampler, **lists}
    tolerance = facts_of_trial(trial.user_attrs).get("std_test_score", 0.0) * _EQUAL_SHARE
    equally_good = [
        other for other in others if abs(other.values[0] - trial.values[0]) <= tolerance
    ]
    edges = {}
    for name, value in trial.params.items():
        scaled_range = _scale_for(trial.distributions[name], lists.get(name))
        if scaled_range is None:
            continue
        scale, low, high, is_linear = scaled_range
        position = scale(value)
        are_ints = isinstance(low, int) and isinstance(high, int)
        if position <= _EDGE_SHARE and low != 0 and not (are_ints and 0 < low <= _MAX_NATURAL_LOW):
            end = "lower"
        elif position >= 1 - _EDGE_SHARE and not (is_linear and low >= 0 and high == 1):
            end = "upper"
        else:
            continue
        numbers = [other.params[name] for other in equally_good if name in other.params]
        if any(abs(scale(number) - position) >= _FAR_SHARE for number in numbers):
            continue
        texts = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in (value, low, high)]
        edges[name] = f"{texts[0]} at the {end} end of its range ({texts[1]} to {texts[2]})"
    return edges


def warn_of_edges(study: optuna.Study | FrozenTrial, trial: FrozenTrial, lists: Lists) -> None:
    """Warn of parameter values at the edge of their ranges, see ``edges_of``."""
    others = []
    if isinstance(study, optuna.Study):
        others = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if edges := edges_of(trial, lists, others):
        listed = " and ".join(f"{name}={text}" for name, text in edges.items())
        warn_caller(f"trial {trial.number} has {listed}; a wider range may hold a better value.")
