"""A pruner that compares a trial with the best one row by row, and predicts its final score."""

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
from optuna_treecv.types import Array
from optuna_treecv.types import Opaque

Early = Literal["last", "mean", "next"] | None

#: The number of trials that are completed before any may be pruned.
N_CALIBRATING = 8

#: Reported in place of an infinite mean: pruners rank it last, and a sum of 32 is finite.
HUGE = 1e300

#: The first step of the first pass at which chances are used: models of fewer rows mislead.
FIRST_FUTILE_STEP = 6

# A regression line through fewer trials has no residual error.
_FEWEST = 3

# The share of hopeless trials that are completed, so that the estimates keep improving.
_SPARED = 0.1

# The share of trials, and the most of them, that TPE treats as good ones.
_GOOD_SHARE, _MOST_GOOD, _GOOD_CHANCE = 0.1, 25, 0.7


@dataclass(frozen=True)
class Comparison:
    """The comparison of a trial with the best one on the same rows.

    Attributes
    ----------
    n_rows : int
        The rows, or folds, on which both were tested.
    total, squares : float
        The sum, and the sum of the squares, of the differences, which are positive if the trial is
        worse.
    width : float or None
        The largest possible difference minus the smallest. None if a z-test decides: for whole
        levels of the tree, and for scores of folds.
    n_looks : int
        The number of such comparisons in one trial.
    early : {"last", "mean", "next"} or None
        Which of the trial's reports so far predict its final loss: the last one, their mean, or,
        for growing ensembles, "next": the last one and its gain on the one before. None: no
        prediction.
    is_growing : bool
        Whether an ensemble grows, so that the comparison decides from the second trial on.
    """

    n_rows: int
    total: float
    squares: float
    width: float | None
    n_looks: int = 1
    early: Early = None
    is_growing: bool = False

    @property
    def mean(self) -> float:
        return self.total / self.n_rows

    @property
    def variance(self) -> float:
        """The variance of the differences; infinite for a single one."""
        if self.n_rows < 2:
            return inf
        return max(0.0, self.squares - self.total * self.mean) / (self.n_rows - 1)


@dataclass(repr=False, eq=False)
class RacingPruner(optuna.pruners.BasePruner):
    r"""Prune a trial once it is unlikely to end better than the best one.

    The first eight trials are completed, unless ensembles grow. After them, the pruner estimates
    the chance that a trial ends better than the best one. It predicts the final loss from the
    reports so far, by a local regression over the completed trials of the study, which were all
    tested on the same rows. The trial is pruned if this chance is below ``futility``. One in ten
    of these trials is completed nevertheless, so that the estimates keep improving; the trial's
    number and ``seed`` decide which.

    If a trial is worse than all completed ones at the same step, no trial is comparable, and a
    bound decides; with ``futility=None`` it always decides. The objective compares the trial with
    the best one on the rows on which both were tested. Before each report it passes to this pruner
    their number :math:`m`, and the mean :math:`\bar d` and the variance :math:`v` of the
    differences of their losses. The differences have far less variance than the losses, so that
    bad trials are detected early. In the first pass (``report="progressive"``), these are the
    second half of the rows that the model has seen, and a trial is pruned if

    .. math:: \bar d > \sqrt{2 v \ln(2 / \delta') / m} + 7 R \ln(2 / \delta') / (3 (m - 1)),

    the empirical Bernstein bound (Maurer & Pontil 2009, theorem 4). :math:`R` is the range of the
    differences, and :math:`\delta'` is ``delta`` divided by the number of reports in the pass.
    Once all rows are tested, by the models of 16 folds, it is pruned if :math:`\bar d / \sqrt{v /
    m}` is above ``rung_z``.

    While an ensemble grows (``report="trees"``), its final loss is predicted from its last report
    and the gain since the one before. From the second trial on, the losses on the first fold are
    also compared with the final ones of the best trial. For this, each remaining tree is assumed
    to gain as much as those since the last report, which overestimates its gain. A trial that is
    worse even then, by more than ``rung_z`` standard errors, is pruned. A trial that may become
    one of the best tenth, from which ``TPESampler`` learns, is completed; no other trial is
    completed at random.

    Parameters
    ----------
    delta : float, default=0.05
        The probability with which the bound may fail for one trial. It is approximate, because the
        losses of rows are not independent while the model changes.
    warmup : int, default=2
        The first step at which a trial may be pruned, in sixteenths of a pass, from 1 to 15.
        Nothing is reported before step 2. Chances are estimated from step 6 on, and with reports
        of folds from the first one.
    rung_z : float, default=2.0
        The number of standard errors by which a trial must be worse than the best one to be
        pruned, once all rows, or at least five folds, are tested.
    loss_range : (float, float) or None, default=None
        The least and the largest loss of a row, or score of a scorer. Values outside are clipped.
        Without it, the bound decides only for "error" and "accuracy", whose rows score from 0 to
        1.
    futility : float or None, default=0.05
        A trial is pruned if its chance to end better than the best one is below this. None: only
        the bound decides, from the second trial on, and ``loss_range`` may be required.
    seed : int, default=0
        Decides which hopeless trials are completed.

    Raises
    ------
    ValueError
        If an argument is wrong.

    See Also
    --------
    treecv_objective : Compares trials for it. With other objectives it never prunes.

    Notes
    -----
    The chance is an estimate without a guarantee: the relation between first passes and final
    scores comes from the completed trials, and may differ for a new kind of trial. The bound uses
    a single order of the rows. If a learner's score depends much on this order, a good trial may
    be pruned in the first pass by bad luck. Chances take this into account once completed trials
    show it; with ``futility=None``, use ``warmup=8`` or ``report="folds"`` for such learners.

    Chances depend only on the study's stored reports, the trial's number and ``seed``, so that all
    workers of a study decide alike. No chances are estimated for trials of a grid that are trained
    in one batch, because no work would be saved.

    The best trial is the best completed one when a trial begins. It is never pruned against
    itself, because all differences are 0. Its losses are in memory, or are computed again in one
    pass.

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
        self._comparisons: dict[tuple[str, int], tuple[int, Comparison | None]] = {}
        self._lock = Lock()
        self._has_warned = False

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def tell(self, trial: optuna.Trial, step: int, comparison: Comparison | None) -> None:
        """Receive the comparison of a trial with the best one. The objective calls this.

        Parameters
        ----------
        trial : optuna.trial.Trial
            A running trial.
        step : int
            The step of its next report.
        comparison : Comparison or None
            The comparison at this step; None: there is no trial to compare it with.
        """
        with self._lock:
            self._comparisons[trial.study.study_name, trial.number] = step, comparison

    def forget(self, trial: optuna.Trial) -> None:
        """Discard the state of a trial that has ended. The objective calls this.

        Parameters
        ----------
        trial : optuna.trial.Trial
            The trial.
        """
        with self._lock:
            self._comparisons.pop((trial.study.study_name, trial.number), None)

    def warn_once(self, message: str) -> None:
        """Warn, unless this pruner has warned before.

        Parameters
        ----------
        message : str
            The message.
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
            The trial, with its reports.

        Returns
        -------
        bool
            Always False, with a warning the first time, if the objective did not compare the
            trial.
        """
        with self._lock:
            last_comparison = self._comparisons.get((study.study_name, trial.number))
        if last_comparison is None and trial.last_step is not None:
            self.warn_once(
                "RacingPruner has no effect, because it needs the objective of treecv_objective "
                f"with report='progressive', but trial {trial.number} came with reports alone."
            )
        if last_comparison is None:
            return False
        step, comparison = last_comparison
        if comparison is None:
            return False
        early = comparison.early if step in trial.intermediate_values else None
        if self.futility is None or early is None:
            return loses(self, step, comparison)
        current, early_losses, final_losses = early_and_final(study, trial, step, early)
        rank = _rank_to_reach(study) if comparison.is_growing else 1
        if rank > len(final_losses):
            return False
        margin = float(np.partition(final_losses, rank - 1)[rank - 1] - final_losses.min())
        if len(early_losses) < N_CALIBRATING:
            return comparison.is_growing and loses(self, step, comparison, margin)
        if not current <= early_losses.max():  # no completed trial was as bad at this step
            return loses(self, step, comparison, margin)
        in_first_pass = 0 not in trial.intermediate_values  # the others are reports of folds
        if in_first_pass and step < max(self.warmup, FIRST_FUTILE_STEP):
            return False
        chance = chance_to_win(early_losses, final_losses, current)
        if rank > 1 and chance < self.futility:
            is_good = chance_to_win(early_losses, final_losses, current, rank) > _GOOD_CHANCE
            chance = 1.0 if is_good else chance
        # For growing ensembles, the good trials that are completed suffice for the estimates.
        is_spared_one = not comparison.is_growing and is_spared(self.seed, trial.number)
        return chance < self.futility and not is_spared_one


def _rank_to_reach(study: optuna.Study) -> int:
    """Return the rank, 1 for the best, that a trial must have a chance to reach.

    ``TPESampler`` treats this number of the best trials as good ones, and pruned trials as worse
    than all completed ones. If trials were pruned that only fail to become the best, it would
    treat those that were completed at random as good, and search around them.
    """
    states = TrialState.COMPLETE, TrialState.PRUNED
    n_trials = len(study.get_trials(deepcopy=False, states=states))
    return max(1, min(ceil(_GOOD_SHARE * n_trials), _MOST_GOOD))


def loses(pruner: RacingPruner, step: int, comparison: Comparison, margin: float = 0.0) -> bool:
    """Return whether to prune a trial by its comparison with the best one at a step.

    ``margin`` is the difference from the best trial that is allowed if a z-test decides.
    """
    if step < pruner.warmup:
        return False
    n_rows = comparison.n_rows
    if comparison.width is None:
        is_worse = comparison.mean > pruner.rung_z * sqrt(comparison.variance / n_rows)
        return is_worse and comparison.mean > margin
    if n_rows < 2:
        return False
    delta = pruner.delta / comparison.n_looks
    deviation = sqrt(2 * comparison.variance * log(2 / delta) / n_rows)
    range_term = 7 * comparison.width * log(2 / delta) / (3 * (n_rows - 1))
    return comparison.mean > deviation + range_term


# The chance that a trial still ends better than the best one, estimated from the study's trials.


def early_and_final(
    study: optuna.Study, trial: FrozenTrial, step: int, early: Early
) -> tuple[float, Array, Array]:
    """Return the early loss of a running trial, and the early and final ones of completed trials.

    Parameters
    ----------
    study : optuna.Study
    trial : optuna.trial.FrozenTrial
        A trial that has reported at the step.
    step : int
        For completed trials, the last report up to this step counts.
    early : {"last", "mean", "next"}
        See ``Comparison``.
    """
    sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    # Ensembles with early stopping have fewer reports.
    trials = [x for x in complete if any(at <= step for at in x.intermediate_values)]
    values = sign * np.array([_early_value(x, step, early) for x in (*trials, trial)])
    final = sign * np.clip(np.array([t.value for t in trials], dtype=float), -HUGE, HUGE)
    if early == "next" and len(trials) >= N_CALIBRATING:
        before = [_early_value(x, step - 1, early) for x in (*trials, trial)]
        values = _extrapolated(values, sign * np.array(before) - values, final)
    return float(values[-1]), values[:-1], final


def _extrapolated(values: Array, gains: Array, final: Array) -> Array:
    """Return the losses, extrapolated in proportion to the last gains.

    The factor is a least-squares fit of the further gains of completed trials to their last gains.

    Parameters
    ----------
    values, gains : ndarray of shape (n_trials + 1,)
        The losses of the completed trials and of another one, and their decrease since the last
        report.
    final : ndarray of shape (n_trials,)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        centred = gains[:-1] - gains[:-1].mean()
        factor = centred @ (values[:-1] - final) / (centred @ centred)
    if not 0 < factor < np.inf:
        return values
    return values - factor * gains


def is_spared(seed: int, number: int) -> bool:
    """Return whether the trial of this number is completed even if it is hopeless."""
    return bool(np.random.default_rng([seed, number]).random() < _SPARED)


def chance_to_win(early: Array, final: Array, current: float, rank: int = 1) -> float:
    """Return the chance that a trial ends with a smaller loss than the completed one of a rank.

    Final losses are predicted from early ones by local linear regression (Cleveland 1979) over the
    nearest half of the completed trials, with the t distribution of its prediction error, which is
    at least the usual change between early and final differences. All losses are differences from
    the best trial's, on the scale of ``arcsinh``: linear within the usual change, logarithmic
    beyond it. So a diverging trial counts as bad and not as infinitely far away.

    Parameters
    ----------
    early, final : ndarray of shape (n_trials,)
        The losses of completed trials at one step and at their end.
    current : float
        The loss of the trial at that step.
    rank : int
        The rank of the completed trial, 1 for the best one.

    Returns
    -------
    float
        1.0 if the trial is better than all completed ones at this step.
    """
    if current <= early.min():
        return 1.0
    best = int(np.argsort(final, kind="stable")[rank - 1])
    current, early, final = current - early[best], early - early[best], final - final[best]
    with np.errstate(over="ignore", under="ignore"):
        # The median change between early and final differences of the better half.
        changes, ends = np.delete(np.abs(final - early), best), np.delete(final, best)
        scale = max(float(np.median(changes[ends <= np.median(ends)])), 1e-300)
        current = _damped(current / scale)
        early, final = _damped(early / scale), _damped(final / scale)
        distances = np.abs(early - current)
        n_near = min(len(early), max(N_CALIBRATING, ceil(len(early) / 2)))
        reach = max(np.partition(distances, n_near - 1)[n_near - 1], 1e-12) * 1.0001
        weights = np.maximum(0.0, 1 - (distances / reach) ** 3) ** 3
    n = _effective(weights)
    if n < _FEWEST:  # most trials are far away
        weights = (distances <= reach).astype(float)
        n = _effective(weights)
    weights /= weights.sum()
    centre, level = weights @ early, weights @ final
    spread = weights @ (early - centre) ** 2
    slope = 0.0
    if spread > 0:
        slope = max(0.0, weights @ ((early - centre) * (final - level)) / spread)
    predicted = level + slope * (current - centre)
    residual = weights @ (final - level - slope * (early - centre)) ** 2 * n / (n - 2)
    residual = max(residual, 1 / np.cosh(np.clip(predicted, -300, 300)) ** 2)  # a usual change
    leverage = (current - centre) ** 2 / spread if spread > 0 else 0.0
    return float(stdtr(n - 2, -predicted / sqrt(residual * (1 + (1 + leverage) / n))))


def _effective(weights: Array) -> float:
    """Return the effective number of trials, Kish's (sum w)^2 / sum w^2."""
    return float(weights.sum() ** 2 / (weights @ weights))


def _damped(losses: Opaque) -> Opaque:
    return np.arcsinh(np.clip(losses, -HUGE, HUGE))


def _early_value(trial: FrozenTrial, step: int, early: Early) -> float:
    values = trial.intermediate_values
    so_far = {at: value for at, value in values.items() if at <= step}
    if not so_far:  # before the first report, there is no gain
        return values[min(values)]
    return float(np.mean([*so_far.values()])) if early == "mean" else so_far[max(so_far)]
