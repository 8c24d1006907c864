"""Ensembles of a study's trials, which are selected by their out-of-fold outputs."""

from collections import Counter
from collections.abc import Callable
from math import nan

import numpy as np
from optuna.trial import FrozenTrial
from sklearn.base import is_regressor
from sklearn.ensemble import VotingClassifier
from sklearn.ensemble import VotingRegressor
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import Bunch

from optuna_treecv.core.intervals import check_level
from optuna_treecv.core.intervals import Interval
from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import check_integer
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.core.tested import Tested
from optuna_treecv.crossval.losses import draw_units
from optuna_treecv.crossval.losses import interval_around
from optuna_treecv.crossval.losses import Losses
from optuna_treecv.crossval.losses import losses_per_fold
from optuna_treecv.crossval.losses import losses_per_test
from optuna_treecv.crossval.losses import losses_per_unit
from optuna_treecv.crossval.losses import metric_of
from optuna_treecv.crossval.losses import reason_not_exchangeable
from optuna_treecv.crossval.losses import sign_of
from optuna_treecv.estimators.base import name_of
from optuna_treecv.scoring.scores import can_score_rows
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.choice import in_order
from optuna_treecv.study.choice import TrialOutputs
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator

#: The maximum number of members, counting repetitions.
MAX_MEMBERS = 1000

# Members are selected from at most this number of trials, the best ones.
_MAX_TRIALS = 200

# The maximum number of bytes of the outputs of these trials.
_MAX_OUTPUT_BYTES = 2**28

#: Only this number of best trials may become members.
N_BEST = 20

# This number of best trials are the first members.
_N_FIRST = 5

# The maximum number of row losses that are computed to correct a score for the selection.
_MAX_LOSSES = 2**26

# Computing the score of a fold takes as long as computing the losses of this number of rows.
_ROWS_PER_FOLD = 2**14

# The minimum and the maximum number of bootstrap draws.
_MIN_DRAWS, _MAX_DRAWS = 20, 50


def output_method(run: Run) -> str:
    """Return the method whose outputs an ensemble averages: "predict" or "predict_proba".

    Raises
    ------
    ValueError
        If averaged outputs cannot be scored, or scikit-learn's voting ensembles cannot predict
        them.
    """
    method, metric = "predict" if run.request.classes is None else "predict_proba", metric_of(run)
    is_predictor = is_regressor(run.estimator) or run.request.classes is not None
    methods = {metric.methods} if isinstance(metric.methods, str) else set(metric.methods or ())
    has_one_target = run.request.cross_validation.n_targets <= 1
    if not is_predictor:
        raise ValueError(
            f"ensemble needs a classifier or a regressor, got {name_of(run.estimator)}."
        )
    if not has_one_target:
        shape = run.request.data.y.shape
        raise ValueError(f"y must have one column for an ensemble, got shape {shape}.")
    if not methods & {"predict", method}:
        raise ValueError(
            f"scoring must be computed from {' or '.join(sorted({'predict', method}))} for an "
            f"ensemble, got {run.request.scoring.name!r}."
        )
    return method


def most_trials(n_outputs: int) -> int:
    """Return how many trials to select from, if each has ``n_outputs`` float32 outputs."""
    return int(np.clip(_MAX_OUTPUT_BYTES // (4 * n_outputs), N_BEST, _MAX_TRIALS))


class Candidates:
    r"""Selects the members of an ensemble from trials with known out-of-fold outputs.

    Members are selected greedily with replacement (Caruana et al. 2004): with the sum :math:`S` of
    the outputs of the m members so far, the next one is :math:`\arg\min_t L((S + P_t) / (m + 1))`,
    where :math:`P_t` are the outputs of trial t and L is the loss. To avoid fitting the noise, the
    first members are the 5 best trials, and all members are among the 20 best.

    Parameters
    ----------
    run : Run
        The run of one of the trials.
    tested : Tested
    outputs : list of ndarray of shape (n_tests, ...)
        The outputs of each trial. The order of the trials must not depend on their scores.
    size : int
        The number of members, counting repetitions.
    """

    def __init__(self, run: Run, tested: Tested, outputs: list[Array], size: int) -> None:
        self._run, self._tested, self._size = run, tested, size
        self._outputs = np.stack(outputs)
        self._scores_rows = can_score_rows(metric_of(run), run.request.classes)
        if not self._scores_rows and (run.request.is_pooled or len(tested.cuts) > 1):
            raise ValueError(
                "scoring must be a mean over rows for an ensemble if it is pooled or n_repeats is "
                f"more than 1, got {run.request.scoring.name!r}."
            )
        self._trial_losses = self.losses(self._outputs)

    def losses(self, outputs: Array) -> Losses:
        """Return the losses of outputs (n_outputs, n_tests, ...), from row scores if possible."""
        run, tested = self._run, self._tested
        if self._scores_rows:
            return losses_per_unit(losses_per_test(run, outputs, tested), tested)
        shares = np.full(tested.n_folds, 1 / tested.n_folds)
        return Losses(losses_per_fold(run, outputs, tested) * shares, shares, "folds")

    def select(self, draw: Array | None = None) -> tuple[list[int], Array]:
        """Return the selected members and their mean output; ``draw`` contains bootstrap weights.

        Of all prefixes of the greedy sequence, the best one is returned, so there may be fewer
        than ``size`` members.
        """
        weights = np.ones(len(self._trial_losses.shares)) if draw is None else draw
        scores = self._trial_losses.parts @ weights
        near = np.argsort(scores, kind="stable")[:N_BEST]
        best, output, selected = float(scores[near[0]]), self._outputs[near[0]], [int(near[0])]
        first = near[: min(_N_FIRST, self._size)].tolist()
        members = first[:-1]
        total = self._outputs[members].sum(axis=0, dtype=np.float64)
        while len(members) < self._size:
            candidates = first[-1:] if len(members) < len(first) else near
            means = (total + self._outputs[candidates]) * (1 / (len(members) + 1))
            scores = self.losses(means).parts @ weights
            index = int(scores.argmin())
            members.append(int(candidates[index]))
            total += self._outputs[members[-1]]
            if scores[index] < best:
                best, output, selected = float(scores[index]), means[index], list(members)
        return selected, output

    def correct(self, losses: Losses, level: float) -> tuple[float, Interval]:
        """Return the score of the ensemble, corrected for the selection by a bootstrap.

        The interval of the corrected score is also returned. Both are NaN if a bootstrap of rows
        would be misleading.

        Parameters
        ----------
        losses : Losses
            The losses of the mean output of the selected members.
        level : float
        """
        run = self._run
        if reason := reason_not_exchangeable(losses, self._tested, 0):
            warn_caller(f"honest_score_ and honest_interval_ are NaN, because {reason}.")
            return nan, Interval(nan, nan, "bootstrap", "", level, reason)
        n_tests = self._outputs.shape[1] if self._scores_rows else _ROWS_PER_FOLD
        n_losses = min(len(self._outputs), N_BEST) * self._size * n_tests
        n_draws = int(np.clip(_MAX_LOSSES // n_losses, _MIN_DRAWS, _MAX_DRAWS))
        differences, seed = [], run.request.settings.seed
        for draws, out_of_bag in draw_units(len(losses.shares), n_draws, seed):
            for draw, mask in zip(draws, out_of_bag, strict=True):
                parts = self.losses(self.select(draw)[1][None]).parts[0]
                differences.append((parts - losses.parts[0]) @ mask / (losses.shares @ mask))
        mean = float(losses.parts.sum()) + float(np.mean(differences))
        return sign_of(run) * mean, interval_around(run, losses, 0, mean, "the members", level)


def known_outputs_of(contest: Contest, run: Run, max_trials: int) -> TrialOutputs:
    """Return those of the best trials whose outputs are known, and the outputs."""
    assert contest.outputs_of is not None
    method = output_method(run)
    trials, outputs = contest.outputs_of(in_order(contest.trials[:max_trials]), method)
    if not trials:
        example = "absolute_error" if run.request.classes is None else "log_loss"
        raise ValueError(
            f"ensemble needs trials whose out-of-fold output of {method} is known, got none; use "
            f"a score that is computed from this output, such as scoring={example!r}, or "
            "keep_outputs='all' instead."
        )
    return trials, outputs


def ensemble_of(
    contest: Contest, fit: Callable[[FrozenTrial], Estimator], size: int, level: float
) -> Estimator:
    """Return a fitted ensemble of the trials whose averaged out-of-fold predictions are best.

    Parameters
    ----------
    contest : Contest
    fit : callable
        (trial) -> the estimator of the trial, fitted on all rows.
    size : int
        The maximum number of members, counting repetitions.
    level : float
        The level of the interval.
    """
    size, level, run = check_integer("size", size, MAX_MEMBERS), check_level(level), contest.run
    assert run is not None
    classes = run.request.classes
    tested = run.request.cross_validation.tested(run.method_name)
    max_trials = most_trials(len(tested.rows) * (1 if classes is None else len(classes)))
    trials, outputs = known_outputs_of(contest, run, max_trials)
    candidates = Candidates(run, tested, outputs, size)
    selected, output = candidates.select()
    losses, counts = candidates.losses(output[None]), dict(Counter(selected).most_common())
    honest_score, interval = candidates.correct(losses, level)
    fitted = {f"trial_{trials[index].number}": fit(trials[index]) for index in counts}
    ensemble = voting(fitted, list(counts.values()), classes)
    ensemble.oof_score_ = sign_of(run) * float(losses.parts.sum())
    ensemble.honest_score_, ensemble.honest_interval_ = honest_score, (interval.low, interval.high)
    return ensemble


def voting(members: dict[str, Estimator], weights: list[int], classes: Array | None) -> Estimator:
    """Return a scikit-learn voting ensemble of estimators that are already fitted.

    Parameters
    ----------
    members : dict of str to estimator
        The fitted estimators by name. Classifiers are fitted on the original labels.
    weights : list of int
    classes : ndarray or None
        The sorted classes, for classifiers.
    """
    pairs = list(members.items())
    if classes is None:
        ensemble = VotingRegressor(pairs, weights=weights)
    else:
        ensemble = VotingClassifier(pairs, voting="soft", weights=weights)
        ensemble.le_ = LabelEncoder().fit(classes)
        ensemble.classes_ = ensemble.le_.classes_
    ensemble.estimators_ = list(members.values())
    ensemble.named_estimators_ = Bunch(**members)
    names = getattr(ensemble.estimators_[0], "feature_names_in_", None)
    if names is not None:
        ensemble.feature_names_in_ = names
    return ensemble
