"""Why a number would mislead although it is right, and weights that leave no rows to train on."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from optuna_treecv.crossval.arguments import warn_caller
from optuna_treecv.crossval.routing import Passed
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import DIVERGENCE_ADVICE
from optuna_treecv.learners.linear import LinearEstimator
from optuna_treecv.learners.names import name_of
from optuna_treecv.learners.one_pass import OF_PASSES
from optuna_treecv.rows.folds import Cut

# Columns whose ranges differ by more than this factor take SGD's steps at very different speeds.
_MOST_SCALES = 100
# The rows that are looked at.
_SAMPLE = 10_000


def why_scales_mislead(estimator: Any, X: Any) -> str:
    """Return what is wrong with the scales of dense columns for a learner without steps before it.

    The ranges are those of a sample of the rows. Sparse rows and texts are not looked at.
    """
    takes_steps = isinstance(estimator, LinearEstimator) or any(
        kind.__name__ in OF_PASSES for kind in type(estimator).__mro__
    )
    if not takes_steps or sparse.issparse(X) or len(X.shape) != 2:
        return ""
    every = max(1, X.shape[0] // _SAMPLE)
    sample = X.iloc[::every] if hasattr(X, "iloc") else X[::every]
    rows = np.asarray(sample)
    if rows.dtype.kind not in "fiub":
        return ""
    with np.errstate(invalid="ignore"):  # infinite entries, which others refuse
        ranges = np.ptp(rows.astype(np.float64), axis=0)
    ranges = ranges[np.isfinite(ranges) & (ranges > 0)]
    if not len(ranges) or ranges.max() <= _MOST_SCALES * ranges.min():
        return ""
    return (
        f"the ranges of the columns of X differ by a factor of {ranges.max() / ranges.min():,.0f},"
        f" and {name_of(estimator)} learns slowly from the small ones; make_pipeline("
        f"StandardScaler(), {type(estimator).__name__}(...)) would be right."
    )


def why_order_misleads(X: Any) -> str:
    """Return why folds should not be shuffled: the rows are in the order of time."""
    if not hasattr(X, "iloc"):
        return ""
    times = {"index": X.index} | {
        f"column {name!r}": X.iloc[:, number]
        for number, name in enumerate(getattr(X, "columns", ()))
    }
    for name, values in times.items():
        is_time = getattr(values.dtype, "kind", "") == "M"
        if is_time and values.is_monotonic_increasing and values.nunique() > 1:
            return (
                f"the rows are in the order of time (the {name} of X), and the folds are shuffled,"
                " so that models learn from rows later than those that test them; "
                "cv=TimeSeriesSplit() would be right, or shuffle=False."
            )
    return ""


def why_not_finite(mean: float, n_diverged: int) -> str:
    """Return why a score that is not finite says nothing, a sentence; empty if it is finite."""
    if np.isfinite(mean):
        return ""
    if n_diverged:
        kind = "fold has" if n_diverged == 1 else "folds have"
        return f"the mean score is {mean}, since {n_diverged} {kind} diverged; {DIVERGENCE_ADVICE}"
    return f"the mean score is {mean}; CVResult.test_score shows which folds have no finite score."


def check_masses(passed: Passed, cut: Cut, of_folds: bool) -> None:
    """Refuse folds whose training rows, or whose test rows, all have the weight 0.

    Parameters
    ----------
    passed : Passed
        The weights in training and in scores.
    cut : Folds or Splits
        How the rows are cut.
    of_folds : bool
        Whether there are scores of folds, and not of all rows together alone.
    """
    weights, score_weights = passed.weights, passed.score_weights
    if weights is not None and not np.all(weights):
        n_trained, _ = cut.count(weights > 0)
        if not np.all(n_trained):
            number = cut.number(int(np.argmin(n_trained)))
            raise ValueError(
                "sample_weight must be above 0 in some training row of each fold, but is 0 in all "
                f"of those of fold {number}; fewer folds, for example, would be right."
            )
    if of_folds and score_weights is not None and not np.all(score_weights):
        _, n_tested = cut.count(score_weights > 0)
        if not np.all(n_tested):
            number = cut.number(int(np.argmin(n_tested)))
            raise ValueError(
                f"{passed.name_of_score_weights} must be above 0 in some test row of each fold, "
                f"but is 0 in all of those of fold {number}, whose score would be 0/0; fewer "
                "folds, score_weight=None or pooled scores, for example, would be right."
            )


def check_masses_of_classes(learner: CompiledLearner, cut: Cut) -> None:
    """Refuse weights of classes by which all training rows of a fold have the weight 0."""
    if learner.weights_of_classes is None or all(learner.weights_of_classes):
        return
    assert learner.weights is not None
    have_weight = np.zeros(len(learner.weights), bool)
    have_weight[learner.rows.order] = learner.weights > 0
    n_trained, _ = cut.count(have_weight)
    if not np.all(n_trained):
        number = cut.number(int(np.argmin(n_trained)))
        raise ValueError(
            "class_weight must give some training row of each fold a weight above 0, but is 0 for "
            f"the classes of all those of fold {number}; stratified folds, for example, would be "
            "right."
        )


def warn_if_weights_act_in_no_score(passed: Passed, cut: Cut) -> None:
    """Warn where each fold tests a single row, whose weighted mean is its plain loss."""
    weights = passed.score_weights
    if weights is None or np.all(weights == weights[0]) or cut.n_tested > cut.n_folds:
        return
    warn_caller(
        f"{passed.name_of_score_weights} has no effect on scores where each fold tests one row, "
        "since the weighted mean of one loss is that loss; scoring=pooled('error'), for example, "
        "weighs all rows in one score, and score_weight=None is the same without this warning."
    )
