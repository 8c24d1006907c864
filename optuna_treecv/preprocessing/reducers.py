"""Transformers that reduce columns: which are fitted from moments, and which are fitted once.

The components of an exact ``PCA`` do not depend on their number, and the scores of ``SelectKBest``
do not depend on the number of selected columns. One fit therefore serves a whole search.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from copy import copy
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.decomposition import PCA
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_selection import f_classif
from sklearn.feature_selection import f_regression
from sklearn.feature_selection import r_regression
from sklearn.feature_selection import SelectFdr
from sklearn.feature_selection import SelectFpr
from sklearn.feature_selection import SelectFwe
from sklearn.feature_selection import SelectKBest
from sklearn.feature_selection import SelectPercentile
from sklearn.feature_selection import VarianceThreshold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

#: The transformers that reduce columns, and the parameter of each that a search may change.
FREE_PARAMETERS: dict[type, str] = {
    PCA: "n_components",
    SelectFdr: "alpha",
    SelectFpr: "alpha",
    SelectFwe: "alpha",
    SelectKBest: "k",
    SelectPercentile: "percentile",
    TruncatedSVD: "n_components",
    VarianceThreshold: "threshold",
}
#: Eigenvalues, scores and variances that differ by a smaller share than this may be in another
#: order in scikit-learn, because of rounding errors.
MIN_GAP = 1e-10

# PCA(svd_solver="auto") is exact up to this number of columns, if there are at least ten times as
# many rows, and up to this size of X.
_MAX_COLUMNS_OF_AUTO, _MIN_ROWS_PER_COLUMN_OF_AUTO, _MAX_SIZE_OF_AUTO = 1000, 10, 500

# The maximum number of bytes of the moments of all folds, which are in memory together.
_MAX_BYTES = 2**28


def split_linear(
    steps: list[tuple[str, Any]],
) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Divide the steps before a model where the first transformer reduces columns.

    ``steps`` are pairs of a name and a transformer.
    """
    reduces = [type(step) in FREE_PARAMETERS for _, step in steps]
    first = reduces.index(True) if any(reduces) else len(steps)
    return steps[:first], steps[first:]


def why_not_linear(step: Any, learner: Any) -> str:
    """Return the reason why a transformer is not fitted from moments, or "" if it is."""
    if type(step) not in FREE_PARAMETERS:
        is_scaler = type(step) is StandardScaler
        return "" if is_scaler else "it follows a transformer that is fitted per fold"
    if type(step) is PCA and step.svd_solver not in ("auto", "full", "covariance_eigh"):
        return f"svd_solver={step.svd_solver!r} is not exact; use svd_solver='full' instead"
    if type(step) is TruncatedSVD and step.algorithm != "arpack":
        return f"algorithm={step.algorithm!r} is not exact; use algorithm='arpack' instead"
    if hasattr(step, "score_func"):
        supported = [f_classif] if is_classifier(learner) else [f_regression, r_regression]
        if step.score_func not in supported:
            names = " or ".join(function.__name__ for function in supported)
            return f"its score_func is not {names}"
    return ""


def why_not_reduced(
    steps: Sequence[tuple[str, Any]], n_trained: int, n_features: int, n_folds: int
) -> str:
    """Return the reason why the shape of training sets rules out moments; "" if it does not.

    Parameters
    ----------
    steps : sequence of (str, transformer)
    n_trained : int
        The number of rows of the smallest training set.
    n_features : int
        The number of columns before the steps.
    n_folds : int
    """
    if 8 * n_folds * (n_features + 1) ** 2 > _MAX_BYTES:
        return (
            f"the moments of {n_folds:,} folds of {n_features:,} columns take more than "
            f"{_MAX_BYTES >> 20} MiB"
        )
    if n_features >= n_trained:
        return "X has at least as many columns as a training set has rows"
    for name, step in steps:
        if type(step) is PCA and is_random(step, n_trained, n_features):
            return (
                f"svd_solver='auto' of the PCA {name!r} draws random numbers for fewer than "
                f"{_MIN_ROWS_PER_COLUMN_OF_AUTO} training rows per column; use svd_solver='full' "
                "instead"
            )
    return ""


def is_random(step: PCA, n_trained: int, n_features: int) -> bool:
    """Return whether a PCA may draw random numbers for training sets of this shape."""
    is_narrow = n_features <= _MAX_COLUMNS_OF_AUTO and (
        n_trained >= _MIN_ROWS_PER_COLUMN_OF_AUTO * n_features
    )
    is_small = is_narrow or max(n_trained, n_features) <= _MAX_SIZE_OF_AUTO
    is_exact = step.svd_solver in ("full", "covariance_eigh")
    return not (is_exact or (step.svd_solver == "auto" and is_small))


def find_largest_sizes(pipeline: Any, ends: Mapping[str, Sequence[Any]]) -> dict[type, int]:
    """Return the largest number of columns in a search, for ``PCA`` and ``SelectKBest``.

    Parameters
    ----------
    pipeline : estimator
    ends : mapping of str to sequence
        The values of each parameter in the search, of which the last is the largest.
    """
    sizes: dict[type, list[Any]] = {}
    for name, step in pipeline.steps if type(pipeline) is Pipeline else ():
        if type(step) in (PCA, SelectKBest):
            values = ends.get(f"{name}__{FREE_PARAMETERS[type(step)]}", [None])
            sizes.setdefault(type(step), []).append(values[-1])
    return {
        kind: int(values[0])
        for kind, values in sizes.items()
        if len(values) == 1 and isinstance(values[0], Integral)
    }


def widen(step: Any, X: Any, sizes: Mapping[type, int]) -> Any | None:
    """Return an unfitted transformer with the most columns, or None if ``step`` is fitted itself.

    Parameters
    ----------
    step : transformer
    X : rows
        The training rows.
    sizes : mapping
        From ``find_largest_sizes``.
    """
    name, size = FREE_PARAMETERS.get(type(step)), sizes.get(type(step), 0)
    if name is None or not (isinstance(getattr(step, name), Integral) and hasattr(X, "shape")):
        return None
    if not 0 < getattr(step, name) < size <= min(X.shape):
        return None
    if type(step) is PCA and (
        not isinstance(X, np.ndarray)
        or is_random(step, *X.shape)
        or (step.svd_solver == "covariance_eigh" and X.shape[0] < X.shape[1])
    ):
        return None
    return clone(step).set_params(**{name: size})


def narrow_to(step: Any, fitted: Any, X: Any, transformed: Any) -> tuple[Any, Any] | None:
    """Return (transformed rows, fitted transformer) with the parameters of ``step``.

    Parameters
    ----------
    step : transformer
        Not fitted.
    fitted : transformer
        From ``widen``, fitted on X.
    X : rows
    transformed : ndarray of shape (n_rows, n_columns)
        X after ``fitted``.

    Returns
    -------
    tuple or None
        None if rounding errors may change which components are kept, or if the transformed rows
        are a data frame.
    """
    narrow = copy(fitted)
    if type(step) is SelectKBest:
        narrow.k = step.k
        return narrow.transform(X), narrow
    k, variances = step.n_components, fitted.explained_variance_
    is_frame = not isinstance(transformed, np.ndarray)
    if is_frame or variances[k - 1] - variances[k] < MIN_GAP * variances[0]:
        return None
    narrow.n_components = narrow.n_components_ = k
    for name in ("components_", "explained_variance_", "explained_variance_ratio_"):
        setattr(narrow, name, getattr(fitted, name)[:k])
    narrow.singular_values_ = fitted.singular_values_[:k]
    n_all, n_others = min(X.shape), min(X.shape) - len(variances)
    total = variances[k:].sum() + n_others * fitted.noise_variance_
    narrow.noise_variance_ = total / (n_all - k)
    return transformed[:, :k], narrow
