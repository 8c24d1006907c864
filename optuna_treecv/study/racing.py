"""A pruner that compares a trial with the best one row by row and predicts its final score."""

from dataclasses import dataclass
from dataclasses import KW_ONLY
from math import ceil
from math import inf
from math import log
from math import sqrt
from threading import Lock
from typing import Literal
import warnings

import numpy as np
import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from scipy.special import stdtr

from optuna_treecv.core.row_scores import LAST_STEP
from optuna_treecv.core.settings import check_integer
from optuna_treecv.core.settings import is_number
from optuna_treecv.study.growing import GrowthComparison
from optuna_treecv.study.growing import is_beaten
from optuna_treecv.types import Array
from optuna_treecv.types import Opaque

Early = Literal["last", "mean"] | None

#: Chances are estimated only after this number of trials is complete.
N_CALIBRATING = 8

#: Reported in place of an infinite mean. Pruners rank it last, and the sum of 32 such values is
#: finite.
HUGE = 1e300

#: The first step of the first pass at which chances are estimated. Scores of models that were
#: trained on fewer rows are misleading.
FIRST_FUTILE_STEP = 6

# The minimum (effective) number of trials for a regression line: with two, there is no residual.
_MIN_TRIALS = 3

# The share of the trials to prune that are completed nevertheless, to improve the estimates.
_SPARED_SHARE = 0.1


@dataclass(frozen=True)
class Comparison:
    """The comparison of a trial with the best one on the same rows.

    Attributes
    ----------
    n_rows : int
        The number of rows, or folds, on which both trials were tested.
    total, squares : float
        The sum of the differences, and the sum of their squares. Differences are positive if the
        trial is worse than the best one.
    width : float or None
        The largest possible difference minus the smallest one. None if a z-test decides, as for
        scores of all rows or of folds.
    n_looks : int
        The number of such comparisons in one trial.
    early : {"last", "mean"} or None
        How the trial's final loss is predicted from its reports so far: from the last one or from
        their mean. None: it is not predicted.
    """

    n_rows: int
    total: float
    squares: float
    width: float | None
    n_looks: int = 1
    early: Early = None

    @property
    def mean(self) -> float:
        return self.total / self.n_rows

    @property
    def variance(self) -> float:
        """The variance of the differences; infinite if there is only one."""
        if self.n_rows < 2:
            return inf
        return max(0.0, self.squares - self.total * self.mean) / (self.n_rows - 1)


@dataclass(repr=False, eq=False)
class RacingPruner(optuna.pruners.BasePruner):
    r"""Pruner that stops a trial if it is unlikely to become better than the best one.

    The first eight trials are completed. After that, the pruner
    estimates the chance that a trial becomes better than the best one. It predicts the final loss
    from the reports so far, by a local regression over the completed trials of the study, all of
    which were tested on the same rows. The trial is pruned if the chance is below ``futility``.
    One in ten of these trials is completed nevertheless, to improve the estimates; the trial's
    number and ``seed`` determine which.

    If a trial is worse than all completed ones at the same step, there are no comparable trials,
    and a bound decides. With ``futility=None``, the bound always decides. The objective compares
    the trial with the best one on the rows on which both were tested. Before each report, it
    passes the number :math:`m` of these rows, and the mean :math:`\bar d` and the variance
    :math:`v` of the differences between their losses, to the pruner. The variance of the
    differences is much smaller than the variance of the losses, so bad trials are detected early.
    In the first pass (``report="progressive"``), the second half of the rows that the model has
    seen is used, and a trial is pruned if

    .. math:: \bar d > \sqrt{2 v \ln(2 / \delta') / m} + 7 R \ln(2 / \delta') / (3 (m - 1)),

    the empirical Bernstein bound (Maurer & Pontil 2009, theorem 4). :math:`R` is the range of the
    differences, and :math:`\delta'` is ``delta`` divided by the number of reports in the pass.
    When all rows have been tested by the models of 16 folds, the trial is pruned if :math:`\bar d
    / \sqrt{v / m}` is above ``rung_z``.

    For growing ensembles (``report="trees"``), other rules decide, from the second trial on. The
    first fold is grown first. If the best trial needed :math:`m` trees for the loss that a trial
    has after :math:`n` trees, its loss after :math:`N` trees is predicted to be that of the best
    trial after :math:`N m / n` trees. From :math:`0.4 N` trees on, the trial is pruned if this is
    worse than the final loss of the best trial. When :math:`k` of :math:`K` folds are grown, the
    trial is pruned if their mean is worse than that of the best trial by more than :math:`\sigma
    \sqrt{(K - k) / (k (K - 1))}`, where :math:`\sigma` is the standard deviation by which the mean
    of all folds deviates from the first fold, estimated from the completed trials. A fifth of the
    trials, from which ``TPESampler`` learns, is always completed.

    Parameters
    ----------
    delta : float, default=0.05
        The probability with which the bound may fail for one trial. It is approximate, because the
        losses of rows are not independent while the model changes.
    warmup : int, default=2
        The first step at which a trial may be pruned, in sixteenths of a pass, from 1 to 15.
        Nothing is reported before step 2. Chances are estimated from step 6 on; if folds are
        reported, from the first report on.
    rung_z : float, default=2.0
        The number of standard errors by which a trial must be worse than the best one to be pruned
        after all rows, or at least five folds, have been tested.
    loss_range : (float, float) or None, default=None
        The smallest and the largest loss of a row (for a scorer, the smallest and the largest
        score). Values outside this range are clipped. If None, the bound is used only for "error"
        and "accuracy", for which each row scores 0 or 1.
    futility : float or None, default=0.05
        A trial is pruned if its chance of becoming better than the best one is below this value.
        None: only the bound decides, from the second trial on, and ``loss_range`` may be required;
        no growing ensemble is pruned. Other values have no effect on growing ensembles.
    seed : int, default=0
        Determines which trials are completed although their chance is below ``futility``.

    Raises
    ------
    ValueError
        If an argument is invalid.

    See Also
    --------
    treecv_objective : Creates objectives that compare trials for this pruner.

    Notes
    -----
    With objectives of other packages, this pruner never prunes. The chance is an estimate without
    a guarantee: the relation between first passes and final scores is learned from the completed
    trials, and may be different for a new kind of trial. The bound uses a single order of the
    rows. If a learner's score depends strongly on this order, a good trial may be pruned in the
    first pass by bad luck. The estimated chances account for this, because completed trials show
    it; with ``futility=None``, use ``warmup=8`` or ``report="folds"`` for such learners.

    Decisions by chances depend only on the study's stored reports, the trial's number and
    ``seed``, so all workers of a study decide equally. No chances are estimated for candidates of
    a grid that are trained in one batch, because this would save no work.

    A trial is compared with the trial that is the best completed one when it starts. The losses of
    the best trial are kept in memory, or computed again in one pass. A trial with the same
    parameters as the best one is not pruned, because all differences are 0.

    Examples
    --------
    >>> import optuna
    >>> from optuna.distributions import FloatDistribution
    >>> from sklearn.datasets import load_digits
    >>> from optuna_treecv import PegasosClassifier, RacingPruner, treecv_objective
    >>> X, y = load_digits(return_X_y=True)
    >>> objective = treecv_objective(
    ...     PegasosClassifier(),
    ...     X / 16,
    ...     y,
    ...     param_distributions={"alpha": FloatDistribution(1e-6, 1e2, log=True)},
    ...     cv="loo",
    ...     report="progressive",
    ... )
    >>> study = optuna.create_study(
    ...     sampler=optuna.samplers.RandomSampler(seed=0), pruner=RacingPruner()
    ... )
    >>> study.optimize(objective, n_trials=20)
    >>> len(study.get_trials(states=[optuna.trial.TrialState.PRUNED])) > 5
    True
    """

    delta: float = 0.05
    warmup: int = 2
    rung_z: float = 2.0
    _: KW_ONLY
    loss_range: tuple[float, float] | None = None
    futility: float | None = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_number(self.delta) or not 0 < self.delta < 1:
            raise ValueError(f"delta must be a probability between 0 and 1, got {self.delta!r}.")
        self.warmup = check_integer("warmup", self.warmup, LAST_STEP - 1)
        if not is_number(self.rung_z) or not self.rung_z > 0:
            raise ValueError(f"rung_z must be a positive number, got {self.rung_z!r}.")
        loss_range, futility, seed = self.loss_range, self.futility, self.seed
        if loss_range is not None and not (
            isinstance(loss_range, tuple | list)
            and len(loss_range) == 2
            and all(map(is_number, loss_range))
            and -np.inf < loss_range[0] < loss_range[1] < np.inf
        ):
            raise ValueError(
                "loss_range must be None or two finite numbers in ascending order, got "
                f"{loss_range!r}."
            )
        if futility is not None and (not is_number(futility) or not 0 < futility < 1):
            raise ValueError(
                f"futility must be None or a probability between 0 and 1, got {futility!r}."
            )
        if not is_number(seed) or isinstance(seed, float | np.floating) or seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, got {seed!r}.")
        self.seed = int(seed)
        self._comparisons: dict[
            tuple[str, int], tuple[int, Comparison | GrowthComparison | None]
        ] = {}
        self._lock = Lock()
        self._has_warned = False

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def tell(
        self, trial: optuna.Trial, step: int, comparison: Comparison | GrowthComparison | None
    ) -> None:
        """Receive the comparison of a trial with the best one. Called by the objective.

        Parameters
        ----------
        trial : optuna.trial.Trial
            A running trial.
        step : int
            The step of its next report.
        comparison : Comparison, GrowthComparison or None
            The comparison at this step; None if there is no trial to compare with.
        """
        with self._lock:
            self._comparisons[trial.study.study_name, trial.number] = step, comparison

    def forget(self, trial: optuna.Trial) -> None:
        """Discard the state of a finished trial. Called by the objective.

        Parameters
        ----------
        trial : optuna.trial.Trial
            The trial.
        """
        with self._lock:
            self._comparisons.pop((trial.study.study_name, trial.number), None)

    def warn_once(self, message: str) -> None:
        """Emit a warning unless this pruner has already emitted one.

        Parameters
        ----------
        message : str
            The text of the warning.
        """
        with self._lock:
            has_warned, self._has_warned = self._has_warned, True
        if not has_warned:
            warnings.warn(message, UserWarning, stacklevel=3)

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Return whether to prune a trial.

        Parameters
        ----------
        study : optuna.Study
            The study of the trial.
        trial : optuna.trial.FrozenTrial
            The trial with its reported values.

        Returns
        -------
        bool
            Whether to prune. Always False if the objective does not compare trials; the first
            time, a warning is emitted.
        """
        with self._lock:
            last_comparison = self._comparisons.get((study.study_name, trial.number))
        if last_comparison is None and trial.last_step is not None:
            self.warn_once(
                f"RacingPruner has no effect, because the objective of trial {trial.number} "
                "reports values but does not compare trials; use an objective that "
                "treecv_objective creates instead."
            )
        if last_comparison is None:
            return False
        step, comparison = last_comparison
        if comparison is None:
            return False
        if isinstance(comparison, GrowthComparison):
            is_reported = self.futility is not None and step in trial.intermediate_values
            return is_reported and is_beaten(study, trial, comparison)
        early = comparison.early if step in trial.intermediate_values else None
        if self.futility is None or early is None:
            return loses(self, step, comparison)
        current, early_losses, final_losses = early_and_final(study, trial, step, early)
        if len(early_losses) < N_CALIBRATING:
            return False
        if not current <= early_losses.max():  # worse than all completed trials at this step
            return loses(self, step, comparison)
        in_first_pass = 0 not in trial.intermediate_values  # reports of folds start at step 0
        if in_first_pass and step < max(self.warmup, FIRST_FUTILE_STEP):
            return False
        chance = chance_to_win(early_losses, final_losses, current)
        return chance < self.futility and not is_spared(self.seed, trial.number)


def loses(pruner: RacingPruner, step: int, comparison: Comparison) -> bool:
    """Return whether a trial should be pruned, given its comparison with the best one."""
    if step < pruner.warmup:
        return False
    n_rows = comparison.n_rows
    if comparison.width is None:
        return comparison.mean > pruner.rung_z * sqrt(comparison.variance / n_rows)
    if n_rows < 2:
        return False
    delta = pruner.delta / comparison.n_looks
    deviation = sqrt(2 * comparison.variance * log(2 / delta) / n_rows)
    range_term = 7 * comparison.width * log(2 / delta) / (3 * (n_rows - 1))
    return comparison.mean > deviation + range_term


# The chance that a trial becomes better than the best one, estimated from the completed trials.


def early_and_final(
    study: optuna.Study, trial: FrozenTrial, step: int, early: Early
) -> tuple[float, Array, Array]:
    """Return a running trial's early loss, and completed trials' early and final losses.

    Parameters
    ----------
    study : optuna.Study
    trial : optuna.trial.FrozenTrial
        The running trial, which has a report at this step.
    step : int
        The step. For a completed trial, the last report up to this step is used.
    early : {"last", "mean"}
        See ``Comparison``.
    """
    sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    trials = [x for x in complete if any(step_ <= step for step_ in x.intermediate_values)]
    values = sign * np.array([_early_value(x, step, early) for x in (*trials, trial)])
    final = sign * np.clip(np.array([t.value for t in trials], dtype=float), -HUGE, HUGE)
    return float(values[-1]), values[:-1], final


def is_spared(seed: int, number: int) -> bool:
    """Return whether a trial is completed even if its chance is below ``futility``."""
    return bool(np.random.default_rng([seed, number]).random() < _SPARED_SHARE)


def chance_to_win(early: Array, final: Array, current: float) -> float:
    """Return the chance that a trial's final loss is below that of the best completed trial.

    Final losses are predicted from early ones by local linear regression (Cleveland 1979) over the
    nearest half of the completed trials. The prediction error follows a t distribution; its scale
    is at least the usual change between early and final differences. All losses are expressed as
    differences from the loss of the best completed trial, on an ``arcsinh`` scale, which
    is linear within the usual change and logarithmic beyond it. Thus the loss of a diverging trial
    is large but not an outlier.

    Parameters
    ----------
    early, final : ndarray of shape (n_trials,)
        The losses of completed trials at the step and at the end.
    current : float
        The loss of the running trial at the step.

    Returns
    -------
    float
        The probability; 1.0 if the trial is at least as good as all completed ones at this step.
    """
    if current <= early.min():
        return 1.0
    best = int(np.argmin(final))
    current, early, final = current - early[best], early - early[best], final - final[best]
    with np.errstate(over="ignore", under="ignore"):
        # The usual change: the median over the better half of the trials.
        changes, ends = np.delete(np.abs(final - early), best), np.delete(final, best)
        scale = max(float(np.median(changes[ends <= np.median(ends)])), 1e-300)
        current = _damp(current / scale)
        early, final = _damp(early / scale), _damp(final / scale)
        distances = np.abs(early - current)
        n_neighbors = min(len(early), max(N_CALIBRATING, ceil(len(early) / 2)))
        max_distance = (
            max(np.partition(distances, n_neighbors - 1)[n_neighbors - 1], 1e-12) * 1.0001
        )
        weights = np.maximum(0.0, 1 - (distances / max_distance) ** 3) ** 3
    n = _effective_number(weights)
    if n < _MIN_TRIALS:  # most trials are far away: give all neighbors the same weight
        weights = (distances <= max_distance).astype(float)
        n = _effective_number(weights)
    weights /= weights.sum()
    early_mean, final_mean = weights @ early, weights @ final
    early_variance = weights @ (early - early_mean) ** 2
    slope = 0.0
    if early_variance > 0:
        slope = max(0.0, weights @ ((early - early_mean) * (final - final_mean)) / early_variance)
    predicted = final_mean + slope * (current - early_mean)
    residual = weights @ (final - final_mean - slope * (early - early_mean)) ** 2 * n / (n - 2)
    # The usual change on the arcsinh scale.
    residual = max(residual, 1 / np.cosh(np.clip(predicted, -300, 300)) ** 2)
    leverage = (current - early_mean) ** 2 / early_variance if early_variance > 0 else 0.0
    return float(stdtr(n - 2, -predicted / sqrt(residual * (1 + (1 + leverage) / n))))


def _effective_number(weights: Array) -> float:
    """Return the effective number of trials by Kish's formula, (sum w)^2 / sum w^2."""
    return float(weights.sum() ** 2 / (weights @ weights))


def _damp(losses: Opaque) -> Opaque:
    return np.arcsinh(np.clip(losses, -HUGE, HUGE))


def _early_value(trial: FrozenTrial, step: int, early: Early) -> float:
    values = trial.intermediate_values
    so_far = {step_: value for step_, value in values.items() if step_ <= step}
    return float(np.mean([*so_far.values()])) if early == "mean" else so_far[max(so_far)]
