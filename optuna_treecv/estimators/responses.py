"""The columns of what estimators respond, and how those of scikit-learn say that they diverged."""

from collections.abc import Sequence
import re
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.base import is_regressor

from optuna_treecv.rows.data import RowLayout

# The errors of scikit-learn's estimators when a model is no longer finite.
_DIVERGED = re.compile("under-/overflow|non-finite parameter weights")


def n_columns(method: str, classes: np.ndarray | None, n_targets: int) -> int:
    """Return how many numbers a response has per row."""
    if method == "predict":
        return n_targets
    n_classes = 0 if classes is None else len(classes)
    one_per_class = method == "predict_proba" or (method == "decision_function" and n_classes > 2)
    return n_classes if one_per_class else 1


def lay_out(
    methods: Sequence[str], classes: np.ndarray | None, n_targets: int
) -> tuple[dict[str, slice], int]:
    """Return the columns of the responses to methods side by side, and their number."""
    columns, end = {}, 0
    for method in methods:
        begin, end = end, end + n_columns(method, classes, n_targets)
        columns[method] = slice(begin, end)
    return columns, end


def in_columns(
    response: np.ndarray, method: str, estimator: Any, classes: np.ndarray | None, n_targets: int
) -> np.ndarray:
    """Return a response with the columns that scores expect, (n_rows, n_columns).

    Raises
    ------
    ValueError
        If it has others, such as the decision values of pairs of classes.
    """
    columns = np.reshape(response, (len(response), -1))
    expected = n_columns(method, classes, n_targets)
    if columns.shape[1] != expected:
        as_many = "y" if method == "predict" else "a score of these classes needs"
        raise ValueError(
            f"{method} of {type(estimator).__name__} must have {expected} "
            f"column{'s' * (expected > 1)}, as many as {as_many}, got {columns.shape[1]}."
        )
    return columns


def is_divergence(error: ValueError) -> bool:
    """Return whether an estimator of scikit-learn says that its model is no longer finite."""
    return _DIVERGED.search(str(error)) is not None


def adapter_layout(estimator: Any) -> RowLayout:
    """Return the layout of the rows that the adapter needs."""
    if is_classifier(estimator):
        return RowLayout(target="class")
    return RowLayout(target="number" if is_regressor(estimator) else None)
