"""Warns where the tree trains rows in an order that ``fit`` would not have."""

import numpy as np
from sklearn.base import is_classifier

from optuna_treecv.core.request import Request
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.traits import last_step
from optuna_treecv.estimators.traits import name_of
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.targets import as_numbers

# Pairs of neighbouring rows that are looked at.
_PAIRS = 1000

# Neighbours in the tree are near each other in the data as given if their mean distance is below
# this share of the number of rows; in random order it is a third.
_NEAR = 0.25

# Targets of neighbouring rows are alike if they differ by less than this share of what those of
# distant rows differ by, and by this number of standard errors less.
_ALIKE, _ERRORS = 0.8, 4.0


def warning_of_order(request: Request) -> str:
    """Return a warning if the tree trains ordered rows in their order, but ``fit`` shuffles them.

    It is "" if folds or rows are drawn at random, or if neighbouring targets are not alike.
    """
    last, data = last_step(request.estimator), request.data
    cut, y = request.cross_validation.repeats[0].cut, data.y
    shuffles = isinstance(last, CompiledEstimator) and last.has_epochs and last.shuffle
    if not shuffles or request.settings.order == "random" or not isinstance(cut, Folds):
        return ""
    if y is None or y.ndim > 1 or len(y) < 3:
        return ""
    at = np.linspace(0, len(y) - 2, min(len(y) - 1, _PAIRS)).astype(np.intp)
    order = cut.order
    distances = np.abs(order[at + 1].astype(np.int64) - order[at].astype(np.int64))
    if distances.mean() >= _NEAR * len(y):
        return ""
    are_classes = is_classifier(request.estimator)
    targets = data.codes() if are_classes else as_numbers(y)
    if not _are_alike(targets[at], targets[at + 1], are_classes):
        return ""
    return (
        "The rows have an order in which neighbours have similar targets. The tree trains "
        f"{name_of(request.estimator)} in this order, but fit takes the rows in random order, so "
        "the scores may be those of worse models. Use KFold(..., shuffle=True), an int as cv with "
        "shuffle=True, or method='fit' instead."
    )


def _are_alike(targets: np.ndarray, following: np.ndarray, are_classes: bool) -> bool:
    """Return whether targets are more like those of the following rows than like distant ones."""
    differ = np.not_equal if are_classes else np.subtract
    distant = np.roll(targets, len(targets) // 2)
    near, far = (np.abs(differ(targets, other)).astype(float) for other in (following, distant))
    error = np.sqrt((near.var() + far.var()) / len(near))
    gain = far.mean() - near.mean()
    return bool(near.mean() < _ALIKE * far.mean() and gain > _ERRORS * error)
