"""The chance that a trial still ends better than the best one, learned from the study's trials."""

from __future__ import annotations

from math import ceil
from math import sqrt
from typing import Any

import numpy as np
import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from scipy.special import stdtr

#: As many trials run whole before any is judged.
N_CALIBRATING = 8

#: Reported in place of an infinite mean: pruners rank it last, and a sum of 32 stays finite.
HUGE = 1e300

#: The first step of the first pass at which a chance counts: models of fewer rows mislead.
FIRST_FUTILE_STEP = 6

# A line through fewer trials has no error.
_FEWEST = 3

# How often a trial without a chance is completed, so that the study goes on learning.
_SPARED = 0.1


def early_and_final(
    study: optuna.Study, trial: FrozenTrial, step: int, averages: bool
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the early loss of a running trial, and the early and final ones of completed trials.

    Parameters
    ----------
    study : optuna.Study
    trial : optuna.trial.FrozenTrial
        A trial that has reported at the step.
    step : int
        Only completed trials that have reported at it are taken.
    averages : bool
        Whether the early loss at a step is the mean of all reports so far, and not the last one.
    """
    sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    known = [one for one in complete if step in one.intermediate_values]
    early = [_early_value(one, step, averages) for one in known]
    final = np.array([one.value for one in known], dtype=float)
    return (
        sign * _early_value(trial, step, averages),
        sign * np.array(early),
        sign * np.clip(final, -HUGE, HUGE),
    )


def is_spared(seed: int, number: int) -> bool:
    """Return whether the trial of this number is completed though it has no chance."""
    return bool(np.random.default_rng([seed, number]).random() < _SPARED)


def chance_to_win(early: np.ndarray, final: np.ndarray, current: float) -> float:
    """Return the chance that a trial ends with a smaller loss than all completed ones.

    Final losses are predicted from early ones by local linear regression (Cleveland 1979) over the
    nearest half of the completed trials, with the t distribution of its prediction error, which is
    at least the usual change between early and final differences. All losses are differences to
    the best trial's, on the scale of ``arcsinh``: linear within the usual change, logarithmic
    beyond it. So a trial that diverges counts as bad and not as infinitely far away.

    Parameters
    ----------
    early, final : ndarray of shape (n_trials,)
        The losses of completed trials at one step and at their end.
    current : float
        The loss of the trial at that step.

    Returns
    -------
    float
        1.0 if it is better than all others so far.
    """
    if current <= early.min():
        return 1.0
    best = int(final.argmin())
    current, early, final = current - early[best], early - early[best], final - final[best]
    with np.errstate(over="ignore", under="ignore"):
        scale = _usual_change(np.delete(early, best), np.delete(final, best))
        current = _damped(current / scale)
        early, final = _damped(early / scale), _damped(final / scale)
        distances = np.abs(early - current)
        n_near = min(len(early), max(N_CALIBRATING, ceil(len(early) / 2)))
        reach = max(np.partition(distances, n_near - 1)[n_near - 1], 1e-12) * 1.0001
        weights = np.maximum(0.0, 1 - (distances / reach) ** 3) ** 3
    n = _effective(weights)
    if n < _FEWEST:  # most of them are far away
        weights = (distances <= reach).astype(float)
        n = _effective(weights)
    weights /= weights.sum()
    centre, level = weights @ early, weights @ final
    spread = weights @ (early - centre) ** 2
    slope = 0.0
    if spread > 0:
        slope = max(0.0, weights @ ((early - centre) * (final - level)) / spread)
    foretold = level + slope * (current - centre)
    residual = weights @ (final - level - slope * (early - centre)) ** 2 * n / (n - 2)
    residual = max(residual, 1 / np.cosh(np.clip(foretold, -300, 300)) ** 2)  # a usual change
    leverage = (current - centre) ** 2 / spread if spread > 0 else 0.0
    return float(stdtr(n - 2, -foretold / sqrt(residual * (1 + (1 + leverage) / n))))


def _effective(weights: np.ndarray) -> float:
    """Return how many trials of equal weight say as much."""
    return float(weights.sum() ** 2 / (weights @ weights))


def _usual_change(early: np.ndarray, final: np.ndarray) -> float:
    """Return the median change between early and final differences of the better half."""
    changes = np.abs(final - early)[final <= np.median(final)]
    return max(float(np.median(changes)), 1e-300)


def _damped(losses: Any) -> Any:
    return np.arcsinh(np.clip(losses, -HUGE, HUGE))


def _early_value(trial: FrozenTrial, step: int, averages: bool) -> float:
    values = trial.intermediate_values
    if not averages:
        return values[step]
    return float(np.mean([value for at, value in values.items() if at <= step]))
