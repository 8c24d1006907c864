"""Stacking: a final estimator that is fitted on the out-of-fold outputs of a study's trials."""

from collections.abc import Callable

import numpy as np
from optuna.trial import FrozenTrial
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.ensemble import StackingClassifier
from sklearn.ensemble import StackingRegressor
from sklearn.utils import Bunch

from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.intervals import check_level
from optuna_treecv.core.settings import check_integer
from optuna_treecv.core.settings import quietly
from optuna_treecv.core.settings import Settings
from optuna_treecv.core.tested import Tested
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.crossval.losses import interval_around
from optuna_treecv.crossval.losses import sign_of
from optuna_treecv.estimators.base import check_is_sklearn
from optuna_treecv.estimators.base import name_of
from optuna_treecv.rows.data import in_given_order
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.ensemble import Candidates
from optuna_treecv.study.ensemble import known_outputs_of
from optuna_treecv.study.ensemble import MAX_MEMBERS
from optuna_treecv.study.ensemble import N_BEST
from optuna_treecv.study.ensemble import output_method
from optuna_treecv.study.fold_average import missing_class_error
from optuna_treecv.study.known_outputs import KnownOutputs
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator


def stacked(
    contest: Contest,
    fit: Callable[[FrozenTrial], Estimator],
    size: int,
    level: float,
    final: Estimator,
    passthrough: bool,
) -> Estimator:
    """Return a fitted stacking ensemble of the best trials of a study.

    Parameters
    ----------
    contest : Contest
    fit : callable
        (trial) -> the estimator of the trial, fitted on all rows.
    size : int
        The maximum number of trials, of at most 20.
    level : float
        The level of the interval.
    final : estimator
        The final estimator.
    passthrough : bool
    """
    size, level, run = check_integer("size", size, MAX_MEMBERS), check_level(level), contest.run
    assert run is not None
    method, classes = output_method(run), run.request.classes
    needed = "a regressor" if classes is None else "a classifier with predict_proba"
    check_is_sklearn("stack must be None", run.estimator)
    is_kind = is_regressor if classes is None else is_classifier
    if not (hasattr(final, method) and is_kind(final)):
        raise ValueError(f"stack must be {needed}, got {name_of(final)}.")
    run.check_each_row_is_tested_once()
    trials, outputs = known_outputs_of(contest, run, min(size, N_BEST))
    tested, data = run.request.cross_validation.tested(run.method_name), run.request.data
    y = np.ravel(data.y) if classes is None else classes[data.codes()]
    kind = StackingRegressor if classes is None else StackingClassifier
    names = [f"trial_{trial.number}" for trial in trials]
    given = [in_given_order(output.astype(np.float64), tested.rows) for output in outputs]
    known = [KnownOutputs(method, output, None).fit(None, y) for output in given]
    pairs = list(zip(names, known, strict=True))
    ensemble = kind(pairs, clone(final), cv="prefit", passthrough=passthrough)
    weights = {} if data.weights is None else {"sample_weight": data.weights}
    ensemble.fit(data.X_given, y, **weights)
    rows, targets = ensemble.transform(data.X_given), y if classes is None else data.codes()
    oof = _cross_fit(final, rows, targets, data.weights, tested, method)
    candidates = Candidates(run, tested, [oof], 1)
    losses = candidates.losses(oof[None])
    mean = float(losses.parts.sum())
    interval = interval_around(run, losses, 0, mean, "the ensemble", level)
    members = [fit(trial) for trial in trials]
    ensemble.estimators, ensemble.estimators_ = list(zip(names, members, strict=True)), members
    ensemble.named_estimators_ = Bunch(**dict(ensemble.estimators))
    ensemble.oof_score_ = ensemble.honest_score_ = sign_of(run) * mean
    ensemble.honest_interval_ = interval.low, interval.high
    return ensemble


# The methods that solve for all folds jointly, with the models of converged fits.
_JOINT_METHODS = ("exact", "newton")


def _cross_fit(
    final: Estimator, rows: Array, y: Array, weights: Array | None, tested: Tested, method: str
) -> Array:
    """Return the out-of-fold outputs of a final estimator, in the order of ``Tested.rows``."""
    outputs, (cut,) = [], tested.cuts
    splits = [(cut.split(i).train_rows(), cut.tested_from(i, i + 1)) for i in range(cut.n_folds)]
    settings = Settings(cv=splits, sample_weight=weights, score_weight=None)
    with quietly():
        run = run_for(CrossValidation.of(rows, y, settings, final), final, is_scored=False)
    if run.plan.name in _JOINT_METHODS:
        return run.predict(method)[tested.rows]
    for chunk in range(cut.n_folds):
        train = cut.split(chunk).train_rows()
        params = {} if weights is None else {"sample_weight": weights[train]}
        fitted = clone(final).fit(rows[train], y[train], **params)
        if is_classifier(final) and len(fitted.classes_) < y.max() + 1:
            raise missing_class_error("stack")
        outputs.append(getattr(fitted, method)(rows[cut.tested_from(chunk, chunk + 1)]))
    return np.concatenate(outputs)
