"""Advice on the next step of a search: wider ranges, more trials, or more repeats of each."""

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

# The numbers of repeats that are compared, and the fewest trials that support advice.
_REPEATS = (1, 2, 3, 5, 10)
_FEWEST_TRIALS = 8

# The most trials whose fold scores are read, the best ones, and the most scores beyond the fewest
# trials, because a trial of leave-one-out has many.
_MOST_TRIALS, _MOST_SCORES = 500, 2**20

# At this reliability, half of more than five folds would do.
_SURE = 0.95

# The share of a range's width, on its scale, that counts as its edge.
_EDGE = 0.02

# The share of the width that is far from an edge, and the share of the standard deviation of fold
# scores by which the values of equally good trials may differ.
_AWAY, _AS_GOOD = 0.25, 0.05

# Few integer parameters can be smaller: a depth of 1, two clusters.
_LEAST_INT = 2


@dataclass(frozen=True)
class Advice:
    r"""The noise of a study's scores, and whether more trials or more repeats would help.

    The score of trial t on fold j is modelled as :math:`y_{tj} = f_t + d_j + e_{tj}`: folds are
    harder or easier for all trials alike, and the residual is noise.

    Attributes
    ----------
    spread : float
        The standard deviation :math:`\tau` of the trials' true means :math:`f_t`.
    noise : float
        The standard deviation of the noise in the mean of a trial: :math:`\sigma_e / \sqrt{J}` for
        J folds, with the standard deviation :math:`\sigma_e` of :math:`e_{tj}`.
    reliability : float
        :math:`\tau^2 / (\tau^2 + \sigma_e^2 / J)`: the share of the variance of the means that is
        not noise.
    n_repeats : int
        The number of repeats, 1 to 10, with which the chosen trial is expected to be best, for the
        time that the study has taken. It is an upper limit of useful repeats, because they are
        assumed to be independent although they have the same rows.
    n_trials, n_folds : int
        The numbers of trials and folds from which this was computed.
    """

    spread: float
    noise: float
    reliability: float
    n_repeats: int
    n_trials: int
    n_folds: int

    def __str__(self) -> str:
        """Return the advice in words."""
        finding = (
            f"The means of {self.n_trials} trials differ by {self.spread:.3g}, and their noise is "
            f"{self.noise:.3g} (standard deviations)."
        )
        if self.reliability == 0:
            advice = "No difference can be told from noise; use more rows instead."
        elif self.n_repeats > 1:
            advice = (
                f"More trials would mostly choose among noise: n_repeats={self.n_repeats}, or "
                "more rows, would tell them apart."
            )
        elif self.reliability > _SURE and self.n_folds > 5:
            advice = "Noise hardly matters: 5 folds would do, for more trials in the same time."
        else:
            advice = "Further trials will improve the result more than further repeats."
        return f"{finding} {advice}"


def advice_of(contest: Contest) -> Advice:
    """Compute advice from the fold scores of a study's trials.

    Raises
    ------
    ValueError
        If the scores of too few trials or folds are known.
    """
    most = max(_FEWEST_TRIALS, _MOST_SCORES // contest.n_folds)
    trials = contest.trials[: min(_MOST_TRIALS, most)]
    folds = contest.folds_of(trials)
    scores = np.array([folds[trial.number] for trial in trials if trial.number in folds], float)
    if len(scores) < _FEWEST_TRIALS or scores.shape[1] < 2:
        raise ValueError(
            f"study must have at least {_FEWEST_TRIALS} complete trials with known scores of "
            f"several folds, got {len(scores)}."
        )
    n_trials, n_folds = scores.shape
    means = scores.mean(axis=1)
    residuals = scores - means[:, None] - scores.mean(axis=0) + means.mean()
    noise = float(np.square(residuals).sum()) / ((n_trials - 1) * (n_folds - 1)) / n_folds
    spread = max(0.0, float(np.var(means, ddof=1)) - noise)

    def gain(n_repeats: int) -> float:
        """Return the expected lead of the best trial's true mean over the average of trials."""
        n = max(1, round(len(contest.trials) / n_repeats))
        largest = stats.norm.ppf((n - 0.375) / (n + 0.25))  # Blom (1958)
        total = spread + noise / n_repeats
        return float(largest) * spread / sqrt(total) if total > 0 else 0.0

    best = max(_REPEATS, key=lambda n: (round(gain(n), 12), -n))
    total = spread + noise
    reliability = spread / total if total > 0 else 0.0
    return Advice(sqrt(spread), sqrt(noise), reliability, best, n_trials, n_folds)


# Values at the edge of the search space, beyond which better ones may lie.


def _scale_of(
    distribution: Opaque, listed: Collection[ParamValue] | None
) -> tuple[Callable[[float], float], float, float, bool] | None:
    """Return the function that maps a range to 0 to 1, both ends, and whether it is linear.

    In a list, 0 and 1 are the first and the last number. None without numbers, or if there are at
    most two, so that all of them are ends.
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

    In a range, the edges are the 2 % of its width, on its scale, at either end; in a list of three
    or more numbers, the first and the last. An end is no edge if few values lie beyond it: 0, up
    to 2 for integers, and 1 for shares. Nor is it an edge if the score hardly depends on the
    number: if a trial with a number at least a quarter of the range away is as good, to a
    twentieth of the standard deviation of the fold scores.

    Parameters
    ----------
    trial : FrozenTrial
    lists : dict of str to collection
        All values of the parameters that were searched in lists, as far as they are known. A grid
        sampler writes those of its grid to the trial.
    others : sequence of FrozenTrial
        The trials from which the trial was chosen.
    """
    of_sampler: dict[str, Collection[ParamValue]] = {
        # Each part is a value, or a list of the values in one of several grids.
        name: [value for part in parts for value in (part if isinstance(part, list) else [part])]
        for name, parts in trial.system_attrs.get("search_space", {}).items()
    }
    lists = {**of_sampler, **lists}
    near = facts_of_trial(trial.user_attrs).get("std_test_score", 0.0) * _AS_GOOD
    as_good = [other for other in others if abs(other.values[0] - trial.values[0]) <= near]
    edges = {}
    for name, value in trial.params.items():
        scale = _scale_of(trial.distributions[name], lists.get(name))
        if scale is None:
            continue
        place_of, low, high, is_linear = scale
        place = place_of(value)
        are_ints = isinstance(low, int) and isinstance(high, int)
        if place <= _EDGE and low != 0 and not (are_ints and 0 < low <= _LEAST_INT):
            end = "lower"
        elif place >= 1 - _EDGE and not (is_linear and low >= 0 and high == 1):
            end = "upper"
        else:
            continue
        numbers = [other.params[name] for other in as_good if name in other.params]
        if any(abs(place_of(number) - place) >= _AWAY for number in numbers):
            continue
        shown = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in (value, low, high)]
        edges[name] = f"{shown[0]} at the {end} end of its range ({shown[1]} to {shown[2]})"
    return edges


def warn_of_edges(study: optuna.Study | FrozenTrial, trial: FrozenTrial, lists: Lists) -> None:
    """Warn of numbers of a trial at the edge of their ranges, see ``edges_of``."""
    others = []
    if isinstance(study, optuna.Study):
        others = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if edges := edges_of(trial, lists, others):
        listed = " and ".join(f"{name}={where}" for name, where in edges.items())
        warn_caller(f"trial {trial.number} has {listed}; a wider range may hold a better value.")
