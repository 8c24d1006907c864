"""A pruner that compares a trial with the best one row by row, and foretells how it will end."""

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

# The share of trials, and the most of them, that TPE takes for good ones.
_GOOD_SHARE, _MOST_GOOD, _GOOD_CHANCE = 0.1, 25, 0.7


@dataclass(frozen=True)
class Comparison:
    """The comparison of a trial with the best one on the same rows.

    Attributes
    ----------
    n_rows : int
        The rows, or folds, on which both were tested.
    total, squares : float
        The sum, and the sum of the squares, of the differences; they are positive where the trial
        is worse.
    width : float or None
        The largest difference minus the smallest that are possible. None where a z-test decides:
        for whole levels of the tree, and for scores of folds.
    n_looks : int
        How often such a comparison may be looked at in one trial.
    early : {"last", "mean", "next"} or None
        Which of the trial's reports so far foretell its final loss: the last one, their mean, or
        "next": the last one and what it has gained on that before, as ensembles grow. None:
        nothing is foretold.
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
    r"""Prune a trial once it has hardly a chance to end better than the best one.

    The first eight trials run whole, unless ensembles grow. After them, the pruner estimates the
    chance that a trial ends better than the best one. It predicts the final loss from the reports
    so far, by a local regression over the completed trials of the study, which were all tested on
    the same rows. The trial is pruned if this chance is below ``futility``. One in ten of such
    trials is completed nevertheless, so that the study goes on learning; the trial's number and
    ``seed`` decide which.

    If a trial is worse than all completed ones at the same step, there is nothing to learn from,
    and a bound decides; with ``futility=None`` it always decides. The objective compares the
    trial with the best one on the rows on which both were tested. Before each report it tells this
    pruner their number :math:`m`, and the mean :math:`\bar d` and the variance :math:`v` of the
    differences of their losses. The differences have far less variance than the losses, so losers
    are seen early. In the first pass (``report="progressive"``), these are the rows of the second
    half of what the model has seen, and a trial is pruned if

    .. math:: \bar d > \sqrt{2 v \ln(2 / \delta') / m} + 7 R \ln(2 / \delta') / (3 (m - 1)),

    the empirical Bernstein bound (Maurer & Pontil 2009, theorem 4). :math:`R` is the range of the
    differences, and :math:`\delta'` is ``delta`` divided by the number of reports in the pass.
    Where all rows are tested, by the models of 16 folds, it is pruned if :math:`\bar d / \sqrt{v /
    m}` is above ``rung_z``.

    While an ensemble grows (``report="trees"``), its final loss is predicted from its last report
    and the gain since the report before. From the second trial on, the losses on the first fold
    are also compared with the final ones of the best trial. This assumes that each tree to come
    gains as much as those since the report before, which is more than it does. A trial that is
    worse even then, by more than ``rung_z`` standard errors, is pruned. Here, a trial is also
    completed if it may become one of the best tenth, from which ``TPESampler`` learns. No other
    trial is completed by chance.

    Parameters
    ----------
    delta : float, default=0.05
        The probability with which the bound may fail for one trial. The rows' losses are not
        independent, as the model changes, so this is a guide and no guarantee.
    warmup : int, default=2
        The first step at which a trial may be pruned, in sixteenths of a pass, from 1 to 15.
        Nothing is reported before step 2. Chances are estimated from step 6 on, and with reports
        of folds from the first one.
    rung_z : float, default=2.0
        By how many standard errors a trial must be worse than the best one, where all rows were
        tested, or five or more folds.
    loss_range : (float, float) or None, default=None
        The least and the largest loss of a row, or score of a scorer. Values outside are moved to
        these ends. Without it, the bound decides only for "error" and "accuracy", whose rows score
        from 0 to 1.
    futility : float or None, default=0.05
        A trial is pruned if its chance to end better than the best one is below this. None: only
        the bound decides, from the second trial on, and ``loss_range`` may be required.
    seed : int, default=0
        Decides which trials are completed although they have no chance.

    Raises
    ------
    ValueError
        If an argument is wrong.

    See Also
    --------
    treecv_objective : Tells it how trials compare. With other objectives it never prunes.

    Notes
    -----
    The chance is an estimate and no guarantee: the relation between first passes and final scores
    comes from the completed trials, and may differ for a new kind of trial. A bound sees only one
    order of the rows. If a learner's score depends much on this order, a good trial may lose in
    the first pass by bad luck. Chances take this into account once completed trials show it; with
    ``futility=None``, ``warmup=8`` or ``report="folds"`` is safer then.

    Chances depend only on the study's stored reports, the trial's number and ``seed``, so that all
    workers of a study decide alike. No chances are estimated for trials of a grid that are trained
    side by side, because nothing could be saved.

    The best trial is the best completed one when a trial begins. It is never pruned against
    itself: all differences are 0. Its losses are held in memory, or computed again in one pass.

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
                "loss_range must be None or two finite numbers, the least loss first, got "
                f"{loss_range!r}."
            )
        if futility is not None and (not is_number(futility) or not 0 < futility < 1):
            raise ValueError(
                f"futility must be None or a probability between 0 and 1, got {futility!r}."
            )
        if not is_number(seed) or isinstance(seed, float | np.floating) or seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, got {seed!r}.")
        self.seed = int(seed)
        self._told: dict[tuple[str, int], tuple[int, Comparison | None]] = {}
        self._lock = Lock()
        self._has_warned = False

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def tell(self, trial: optuna.Trial, step: int, comparison: Comparison | None) -> None:
        """Note how a trial compares with the best one. The objective calls this.

        Parameters
        ----------
        trial : optuna.trial.Trial
            A trial that is running.
        step : int
            The step of its next report.
        comparison : Comparison or None
            How it compares then; None: there is nothing to compare it with.
        """
        with self._lock:
            self._told[trial.study.study_name, trial.number] = step, comparison

    def forget(self, trial: optuna.Trial) -> None:
        """Forget a trial that has ended. The objective calls this.

        Parameters
        ----------
        trial : optuna.trial.Trial
            The trial.
        """
        with self._lock:
            self._told.pop((trial.study.study_name, trial.number), None)

    def warn_once(self, message: str) -> None:
        """Warn, unless this pruner has warned before.

        Parameters
        ----------
        message : str
            The sentence.
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
            Always False if the objective did not compare the trial; the first time, a warning.
        """
        with self._lock:
            told = self._told.get((study.study_name, trial.number))
        if told is None and trial.last_step is not None:
            self.warn_once(
                "RacingPruner never prunes here: it needs the objective of treecv_objective with "
                f"report='progressive', but trial {trial.number} came with reports alone."
            )
        if told is None:
            return False
        step, comparison = told
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
        # Good ones that are completed teach enough where ensembles grow.
        is_spared_one = not comparison.is_growing and is_spared(self.seed, trial.number)
        return chance < self.futility and not is_spared_one


def _rank_to_reach(study: optuna.Study) -> int:
    """Return the rank that a trial must have a chance to reach, 1 for the best.

    ``TPESampler`` takes so many of the best trials for good ones, and pruned trials for worse than
    all completed ones. Were trials pruned that only fail to be the best, it would take those that
    were completed by chance, and search around them.
    """
    states = TrialState.COMPLETE, TrialState.PRUNED
    n_trials = len(study.get_trials(deepcopy=False, states=states))
    return max(1, min(ceil(_GOOD_SHARE * n_trials), _MOST_GOOD))


def loses(pruner: RacingPruner, step: int, comparison: Comparison, margin: float = 0.0) -> bool:
    """Return whether a trial that compares so at a step is pruned.

    ``margin`` is how much worse than the best trial it may be, where a z-test decides.
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
    rest = 7 * comparison.width * log(2 / delta) / (3 * (n_rows - 1))
    return comparison.mean > deviation + rest


# The chance that a trial still ends better than the best one, learned from the study's trials.


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
        Of completed trials the last report counts that is not later.
    early : {"last", "mean", "next"}
        See ``Comparison``.
    """
    sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    # Trees that end early report no more.
    trials = [one for one in complete if any(at <= step for at in one.intermediate_values)]
    values = sign * np.array([_early_value(one, step, early) for one in (*trials, trial)])
    final = sign * np.clip(np.array([one.value for one in trials], dtype=float), -HUGE, HUGE)
    if early == "next" and len(trials) >= N_CALIBRATING:
        before = [_early_value(one, step - 1, early) for one in (*trials, trial)]
        values = _extrapolated(values, sign * np.array(before) - values, final)
    return float(values[-1]), values[:-1], final


def _extrapolated(values: Array, gains: Array, final: Array) -> Array:
    """Return the losses that are foretold where each trial goes on as the completed ones did.

    These gained a multiple of their last gain, by least squares over them, until their end.

    Parameters
    ----------
    values, gains : ndarray of shape (n_trials + 1,)
        The losses of the completed trials and of another one, and by how much they have fallen
        since the report before.
    final : ndarray of shape (n_trials,)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        centred = gains[:-1] - gains[:-1].mean()
        factor = centred @ (values[:-1] - final) / (centred @ centred)
    if not 0 < factor < np.inf:
        return values
    return values - factor * gains


def is_spared(seed: int, number: int) -> bool:
    """Return whether the trial of this number is completed though it has no chance."""
    return bool(np.random.default_rng([seed, number]).random() < _SPARED)


def chance_to_win(early: Array, final: Array, current: float, rank: int = 1) -> float:
    """Return the chance that a trial ends with a smaller loss than the completed one of a rank.

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
    rank : int
        1: that of the best one.

    Returns
    -------
    float
        1.0 if it is better than all others so far.
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


def _effective(weights: Array) -> float:
    """Return the number of trials of equal weight that carry as much information."""
    return float(weights.sum() ** 2 / (weights @ weights))


def _damped(losses: Opaque) -> Opaque:
    return np.arcsinh(np.clip(losses, -HUGE, HUGE))


def _early_value(trial: FrozenTrial, step: int, early: Early) -> float:
    values = trial.intermediate_values
    so_far = {at: value for at, value in values.items() if at <= step}
    if not so_far:  # the first report is none that something could have been gained on
        return values[min(values)]
    return float(np.mean([*so_far.values()])) if early == "mean" else so_far[max(so_far)]
