"""Why a number would mislead although it is right: one sentence each, with what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from optuna_treecv.learners.compiled import DIVERGENCE_ADVICE
from optuna_treecv.learners.linear import LinearEstimator
from optuna_treecv.learners.names import name_of
from optuna_treecv.learners.one_pass import OF_PASSES

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
