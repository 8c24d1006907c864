"""Decides from the reports of all trials whether to prune a trial whose ensembles grow."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from math import inf
from math import log

import numpy as np
import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv.core.engine import LEAD_STEPS
from optuna_treecv.types import Array

# A trial is pruned if its first folds are worse than those of the best trial by more than this
# number of standard deviations. Measured by benchmarks/booster_races.py.
_MARGIN = 1.0

# The final loss of the first fold is predicted from this share of its trees and this number of
# completed trials on.
_MIN_SHARE, _MIN_COMPLETED = 0.4, 3

# The number of latest completed trials from which the standard deviation is estimated, and the
# number of trials as which the rows of the first fold count.
_MAX_RESIDUALS, _PRIOR_WEIGHT = 20, 2

# The share of all trials that is completed. TPE learns from the best tenth, and treats pruned
# trials as worse than all completed ones.
_COMPLETED_SHARE = 0.2


@dataclass(frozen=True)
class GrowthComparison:
    """The state of a trial whose ensembles grow, and its comparison with the best trial.

    Attributes
    ----------
    ends : tuple of int
        The numbers of trees at the reports of the first fold.
    n_left : int
        The number of trees that may still be added to the grown folds.
    n_grown, n_folds : int
        The number of folds that have been grown, and of all folds.
    variance : float
        The squared standard error of the mean difference to the best trial on the rows of the
        first fold; infinite if it is unknown.
    """

    ends: tuple[int, ...]
    n_left: int
    n_grown: int
    n_folds: int
    variance: float = inf


def is_beaten(study: optuna.Study, trial: FrozenTrial, growth: GrowthComparison) -> bool:
    r"""Return whether a trial is unlikely to become better than the best completed one.

    While the first fold grows, its final loss is predicted: if the best trial needed :math:`m`
    trees for the loss that this trial has after :math:`n` trees, its loss after :math:`N` trees is
    predicted to be that of the best trial after :math:`N m / n` trees. The trial is beaten if the
    prediction is worse than the final loss of the best trial.

    When :math:`k` of :math:`K` folds are grown, the trial is beaten if their mean loss is worse
    than that of the best trial by more than :math:`\sigma \sqrt{(K - k) / (k (K - 1))}`.
    :math:`\sigma` is the standard deviation of the difference between the mean of all folds and
    the first fold, estimated from the completed trials and from the rows of the first fold.

    Parameters
    ----------
    study : optuna.Study
    trial : optuna.trial.FrozenTrial
        A running trial that has reported a value.
    growth : GrowthComparison
    """
    sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
    states = TrialState.COMPLETE, TrialState.PRUNED
    trials = study.get_trials(deepcopy=False, states=states)
    completed = [x for x in trials if x.state == TrialState.COMPLETE and _lead_steps(x)]
    if len(completed) < max(1, ceil(_COMPLETED_SHARE * (len(trials) + 1))):
        return False
    best = min(completed, key=lambda x: sign * x.values[0])
    step = max(trial.intermediate_values)
    is_leading = growth.n_grown == 1
    if is_leading and growth.n_left:
        if growth.ends[step] < _MIN_SHARE * growth.ends[-1] or len(completed) < _MIN_COMPLETED:
            return False
        _, losses = curve_of(best, growth.ends, sign)
        return predict_final(trial, best, growth.ends, sign) > losses[-1]
    lead = {x.number: sign * x.intermediate_values[_lead_steps(x)[-1]] for x in completed}
    finals = {x.number: sign * x.values[0] for x in completed}
    changes = np.array([finals[n] - lead[n] for n in finals if n != best.number])
    residuals = changes - (finals[best.number] - lead[best.number])
    residuals = residuals[np.isfinite(residuals)][-_MAX_RESIDUALS:]
    weight, variance = _PRIOR_WEIGHT, growth.variance
    if variance == inf:
        weight, variance = 0, 0.0
    if len(residuals) + weight < _PRIOR_WEIGHT:
        return False
    variance = (np.square(residuals).sum() + weight * variance) / (len(residuals) + weight)
    last_step = _lead_steps(best)[-1] if is_leading else step
    so_far = max(s for s in best.intermediate_values if s <= last_step)
    difference = sign * (trial.intermediate_values[step] - best.intermediate_values[so_far])
    k, n_folds = growth.n_grown, growth.n_folds
    share = (n_folds - k) / (k * max(1, n_folds - 1))
    return bool(difference > _MARGIN * np.sqrt(variance * share))


def _lead_steps(trial: FrozenTrial) -> list[int]:
    """Return the steps at which a trial has reported the loss of its first fold alone."""
    return sorted(step for step in trial.intermediate_values if step < LEAD_STEPS)


def curve_of(trial: FrozenTrial, ends: Sequence[int], sign: float) -> tuple[Array, Array]:
    """Return the logarithms of numbers of trees, and the best losses of the first fold so far.

    A trial with more trees than ``ends`` has may have more reports, whose numbers of trees are
    unknown; they count as slightly more trees.
    """
    steps, last = np.array(_lead_steps(trial)), len(ends) - 1
    n_trees = np.asarray(ends)[np.minimum(steps, last)] + np.maximum(0, steps - last)
    losses = sign * np.array([trial.intermediate_values[step] for step in steps.tolist()])
    return np.log(n_trees), np.minimum.accumulate(losses)


def predict_final(
    trial: FrozenTrial, best: FrozenTrial, ends: Sequence[int], sign: float
) -> float:
    """Return the final loss of the first fold, predicted from the best trial's curve."""
    at, losses = curve_of(trial, ends, sign)
    loss, (of_best, losses_of_best) = losses[-1], curve_of(best, ends, sign)
    if loss <= losses_of_best[-1]:
        return float(loss)
    # The logarithm of the number of trees after which the best trial had this loss.
    after = int(np.searchsorted(-losses_of_best, -loss))
    after = min(max(after, 1), len(of_best) - 1)
    slope = 0.0
    if after and losses_of_best[after - 1] > losses_of_best[after]:
        gained = losses_of_best[after - 1] - losses_of_best[after]
        slope = (of_best[after] - of_best[after - 1]) / gained
    reached = of_best[after - 1] + slope * (losses_of_best[after - 1] - loss)
    end = reached + log(ends[-1]) - at[-1]
    return float(np.interp(end, of_best, losses_of_best)) if end >= of_best[0] else float(loss)
