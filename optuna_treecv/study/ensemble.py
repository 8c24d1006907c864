"""Ensembles of the trials of a study, selected on their out-of-fold outputs."""

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
from optuna_treecv.crossval.losses import draws_of_units
from optuna_treecv.crossval.losses import interval_around
from optuna_treecv.crossval.losses import Losses
from optuna_treecv.crossval.losses import losses_by_units
from optuna_treecv.crossval.losses import losses_of_folds
from optuna_treecv.crossval.losses import losses_of_tests
from optuna_treecv.crossval.losses import metric_of
from optuna_treecv.crossval.losses import sign_of
from optuna_treecv.crossval.losses import why_not_exchangeable
from optuna_treecv.estimators.base import name_of
from optuna_treecv.scoring.scores import scores_rows
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.choice import in_order
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator

#: The most members.
MOST_MEMBERS = 1000

# The most trials from which members are selected, the best ones, and the most bytes of outputs.
_MOST_TRIALS, _MOST_BYTES = 200, 2**28

# The number of best trials that may be members, and of those that are taken first.
_BEST, _FIRST = 20, 5

# The most losses of tests that are computed to correct a score, and the fewest and the most draws
# for it. The loss of a fold takes as long as those of many rows.
_MOST_LOSSES = 2**26
_ROWS_PER_FOLD = 2**14
_FEWEST_DRAWS, _MOST_DRAWS = 20, 50


def averaged_method(run: Run) -> str:
    """Return the method of members whose outputs are averaged.

    Raises
    ------
    ValueError
        If their average cannot be scored, or not be predicted by an ensemble of scikit-learn.
    """
    method, metric = "predict" if run.request.classes is None else "predict_proba", metric_of(run)
    is_predictor = is_regressor(run.estimator) or run.request.classes is not None
    methods = {metric.methods} if isinstance(metric.methods, str) else set(metric.methods or ())
    has_one_target = run.request.cross_validation.n_targets <= 1
    if not (is_predictor and has_one_target and methods & {"predict", method}):
        raise ValueError(
            "ensemble needs a classifier or a regressor of one target, and a score of its "
            f"{method}, got {name_of(run.estimator)} and {run.request.scoring.name!r}."
        )
    return method


def most_trials(n_numbers: int) -> int:
    """Return the number of trials from which to select if each has ``n_numbers`` outputs."""
    return int(np.clip(_MOST_BYTES // (4 * n_numbers), _BEST, _MOST_TRIALS))


class Candidates:
    r"""The out-of-fold outputs of trials, from which the members of an ensemble are selected.

    Members are selected greedily with replacement (Caruana et al. 2004): with the sum :math:`S` of
    the outputs of the m members so far, the next one is :math:`\arg\min_t L((S + P_t) / (m + 1))`.
    To avoid fitting the noise, the first members are the best trials, and all are among the best.

    Parameters
    ----------
    run : Run
        The run of one of the trials.
    tested : Tested
    responses : list of ndarray of shape (n_tests, ...)
        The outputs of the trials, in an order that does not depend on their scores.
    size : int
        The number of members, counting repetitions.
    """

    def __init__(self, run: Run, tested: Tested, responses: list[Array], size: int) -> None:
        self._run, self._tested, self._size = run, tested, size
        self._responses = np.stack(responses)
        self._are_rows = scores_rows(metric_of(run), run.request.classes)
        if not self._are_rows and (run.request.is_pooled or len(tested.cuts) > 1):
            raise ValueError(
                "ensemble needs a score that is a mean over rows, or a score of each fold with "
                f"n_repeats=1, got {run.request.scoring.name!r}."
            )
        self._alone = self.losses(self._responses)

    def losses(self, responses: Array) -> Losses:
        """Return the losses of outputs, (n_outputs, n_tests, ...), by rows, or else by folds."""
        run, tested = self._run, self._tested
        if self._are_rows:
            return losses_by_units(losses_of_tests(run, responses, tested), tested)
        shares = np.full(tested.n_folds, 1 / tested.n_folds)
        return Losses(losses_of_folds(run, responses, tested) * shares, shares, "folds")

    def select(self, draw: Array | None = None) -> tuple[list[int], Array]:
        """Return the members that are best on a draw of the units, and their mean output.

        There are fewer than ``size`` members if these are better.
        """
        weights = np.ones(len(self._alone.shares)) if draw is None else draw
        scores = self._alone.parts @ weights
        near = np.argsort(scores, kind="stable")[:_BEST]
        best, outputs, taken = float(scores[near[0]]), self._responses[near[0]], [int(near[0])]
        first = near[: min(_FIRST, self._size)].tolist()
        members = first[:-1]
        total = self._responses[members].sum(axis=0, dtype=np.float64)
        while len(members) < self._size:
            candidates = first[-1:] if len(members) < len(first) else near
            means = (total + self._responses[candidates]) * (1 / (len(members) + 1))
            scores = self.losses(means).parts @ weights
            at = int(scores.argmin())
            members.append(int(candidates[at]))
            total += self._responses[members[-1]]
            if scores[at] < best:
                best, outputs, taken = float(scores[at]), means[at], list(members)
        return taken, outputs

    def corrected(self, losses: Losses, level: float) -> tuple[float, Interval]:
        """Return the out-of-bag score of the members: it is corrected for their selection.

        It comes with its interval; both are NaN if a bootstrap of rows would mislead.

        Parameters
        ----------
        losses : Losses
            The losses of the mean output of the selected members.
        level : float
        """
        run = self._run
        if why := why_not_exchangeable(losses, self._tested, 0):
            warn_caller(f"honest_score_ and honest_interval_ are NaN, because {why}.")
            return nan, Interval(nan, nan, "bootstrap", "", level, why)
        n_tests = self._responses.shape[1] if self._are_rows else _ROWS_PER_FOLD
        n_losses = min(len(self._responses), _BEST) * self._size * n_tests
        n_draws = int(np.clip(_MOST_LOSSES // n_losses, _FEWEST_DRAWS, _MOST_DRAWS))
        out_of_bag, seed = [], run.request.settings.seed
        for draws, lacking in draws_of_units(len(losses.shares), n_draws, seed):
            for draw, lacks in zip(draws, lacking, strict=True):
                parts = self.losses(self.select(draw)[1][None]).parts[0]
                out_of_bag.append((parts - losses.parts[0]) @ lacks / (losses.shares @ lacks))
        mean = float(losses.parts.sum()) + float(np.mean(out_of_bag))
        return sign_of(run) * mean, interval_around(run, losses, 0, mean, "the members", level)


def ensemble_of(
    contest: Contest, fit: Callable[[FrozenTrial], Estimator], size: int, level: float
) -> Estimator:
    """Return the ensemble of trials whose averaged out-of-fold predictions are best.

    Parameters
    ----------
    contest : Contest
    fit : callable
        (trial) -> its fitted estimator.
    size : int
        The most members.
    level : float
        The level of the interval.
    """
    size, level, run = check_integer("size", size, MOST_MEMBERS), check_level(level), contest.run
    assert run is not None and contest.outputs_of is not None
    method, classes = averaged_method(run), run.request.classes
    tested = run.request.cross_validation.tested(run.method_name)
    most = most_trials(len(tested.rows) * (1 if classes is None else len(classes)))
    trials, responses = contest.outputs_of(in_order(contest.trials[:most]), method)
    if not trials:
        example = "absolute_error" if classes is None else "log_loss"
        raise ValueError(
            f"ensemble needs trials whose out-of-fold outputs by {method} are known, got "
            f"none; add a score that needs them to scoring, such as {example!r}, instead."
        )
    candidates = Candidates(run, tested, responses, size)
    taken, output = candidates.select()
    losses, counts = candidates.losses(output[None]), dict(Counter(taken).most_common())
    honest_score, interval = candidates.corrected(losses, level)
    fitted = {f"trial_{trials[at].number}": fit(trials[at]) for at in counts}
    ensemble = voting(fitted, list(counts.values()), classes)
    ensemble.oof_score_ = sign_of(run) * float(losses.parts.sum())
    ensemble.honest_score_, ensemble.honest_interval_ = honest_score, (interval.low, interval.high)
    return ensemble


def voting(members: dict[str, Estimator], weights: list[int], classes: Array | None) -> Estimator:
    """Return a scikit-learn voting ensemble of estimators that are already fitted.

    Parameters
    ----------
    members : dict of str to estimator
        Fitted on the labels as given.
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
