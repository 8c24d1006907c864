"""Whether the time that is left should buy more trials or more repeats of each."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy import stats

from optuna_treecv.study.choice import Contest

# The repeats that are compared, and the fewest trials from which anything follows.
_REPEATS = (1, 2, 3, 5, 10)
_FEWEST_TRIALS = 8

# The most trials whose fold scores are looked at, the best ones, and the most scores of more than
# the fewest trials: of leave-one-out a few trials have many.
_MOST_TRIALS, _MOST_SCORES = 500, 2**20

# Where a mean says so much of a trial, half of more than five folds would do.
_SURE = 0.95


@dataclass(frozen=True)
class Advice:
    r"""How noisy the scores of a study are, and whether more trials or more repeats would help.

    The score of trial t on fold j is taken as :math:`y_{tj} = f_t + d_j + e_{tj}`: folds are
    harder or easier for all trials alike, and what remains is noise.

    Attributes
    ----------
    spread : float
        The standard deviation :math:`\tau` of the trials' true means :math:`f_t`.
    noise : float
        The standard deviation of the noise in the mean of a trial: :math:`\sigma_e / \sqrt{J}` for
        J folds, where :math:`\sigma_e` is that of :math:`e_{tj}`.
    reliability : float
        :math:`\tau^2 / (\tau^2 + \sigma_e^2 / J)`: the share of the variance of the means that is
        not noise.
    n_repeats : int
        The number of repeats, 1 to 10, with which the chosen trial is expected to be best, for the
        time that the study has taken. Repeats are taken as independent, though they have the same
        rows, so a number above 1 is the most that can be useful.
    n_trials, n_folds : int
        How many trials and folds this was computed from.
    """

    spread: float
    noise: float
    reliability: float
    n_repeats: int
    n_trials: int
    n_folds: int

    def __str__(self) -> str:
        """Return the advice in words."""
        found = (
            f"The means of {self.n_trials} trials differ by {self.spread:.3g}, and their noise is "
            f"{self.noise:.3g} (standard deviations)."
        )
        if self.reliability == 0:
            advice = "No difference can be told from noise: more rows would be right."
        elif self.n_repeats > 1:
            advice = (
                "More trials would mostly choose among noise: "
                f"n_repeats={self.n_repeats}, or more rows, would be right."
            )
        elif self.reliability > _SURE and self.n_folds > 5:
            advice = "Noise hardly matters: 5 folds would do, for more trials in the same time."
        else:
            advice = "More trials gain more than more repeats."
        return f"{found} {advice}"


def advice_of(contest: Contest) -> Advice:
    """Return what the fold scores of a study's trials advise.

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
            f"study must have at least {_FEWEST_TRIALS} complete trials with the known scores of "
            f"several folds, got {len(scores)}."
        )
    n_trials, n_folds = scores.shape
    means = scores.mean(axis=1)
    residuals = scores - means[:, None] - scores.mean(axis=0) + means.mean()
    noise = float(np.square(residuals).sum()) / ((n_trials - 1) * (n_folds - 1)) / n_folds
    spread = max(0.0, float(np.var(means, ddof=1)) - noise)

    def gain(n_repeats: int) -> float:
        """Return by how much the true mean of the best of all trials is above their average."""
        n = max(1, round(len(contest.trials) / n_repeats))
        largest = stats.norm.ppf((n - 0.375) / (n + 0.25))  # Blom (1958)
        total = spread + noise / n_repeats
        return float(largest) * spread / sqrt(total) if total > 0 else 0.0

    best = max(_REPEATS, key=lambda n: (round(gain(n), 12), -n))
    total = spread + noise
    reliability = spread / total if total > 0 else 0.0
    return Advice(sqrt(spread), sqrt(noise), reliability, best, n_trials, n_folds)
