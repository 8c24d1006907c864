"""Fitted transformers with fewer columns, from a fitted one with more columns.

The components of an exact ``PCA`` do not depend on their number, and neither do the scores of
``SelectKBest`` on the number of selected columns. One fit therefore serves a whole search.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from copy import copy
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.pipeline import Pipeline

from optuna_treecv.preprocessing.linear import FREE_PARAMETERS
from optuna_treecv.preprocessing.linear import is_random
from optuna_treecv.preprocessing.linear import MIN_GAP


def largest_sizes(pipeline: Any, ends: Mapping[str, Sequence[Any]]) -> dict[type, int]:
    """Return the largest number of columns in a search, for each transformer that has prefixes.

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
        kind: int(found[0])
        for kind, found in sizes.items()
        if len(found) == 1 and isinstance(found[0], Integral)
    }


def widened(step: Any, X: Any, sizes: Mapping[type, int]) -> Any | None:
    """Return an unfitted transformer with the most columns, or None if ``step`` is fitted itself.

    Parameters
    ----------
    step : transformer
    X : rows
        The training rows.
    sizes : mapping
        From ``largest_sizes``.
    """
    name, size = FREE_PARAMETERS.get(type(step)), sizes.get(type(step), 0)
    if name is None or not (isinstance(getattr(step, name), Integral) and hasattr(X, "shape")):
        return None
    if not 0 < getattr(step, name) < size <= min(X.shape):
        return None
    if type(step) is PCA and (not isinstance(X, np.ndarray) or is_random(step, *X.shape)):
        return None
    return clone(step).set_params(**{name: size})


def narrowed(step: Any, fitted: Any, X: Any, transformed: Any) -> tuple[Any, Any] | None:
    """Return (transformed rows, fitted transformer) with the parameters of ``step``.

    Parameters
    ----------
    step : transformer
        Not fitted.
    fitted : transformer
        From ``widened``, fitted on X.
    X : rows
    transformed : ndarray of shape (n_rows, n_columns)
        X after ``fitted``.

    Returns
    -------
    tuple or None
        None if rounding errors may change which components are kept.
    """
    narrow = copy(fitted)
    if type(step) is SelectKBest:
        narrow.k = step.k
        return narrow.transform(X), narrow
    k, variances = step.n_components, fitted.explained_variance_
    if variances[k - 1] - variances[k] < MIN_GAP * variances[0]:
        return None
    narrow.n_components = narrow.n_components_ = k
    for name in ("components_", "singular_values_"):
        setattr(narrow, name, getattr(fitted, name)[:k])
    for name in ("explained_variance_", "explained_variance_ratio_"):
        setattr(narrow, name, getattr(fitted, name)[:k])
    n_all, n_others = min(X.shape), min(X.shape) - len(variances)
    total = variances[k:].sum() + n_others * fitted.noise_variance_
    narrow.noise_variance_ = total / (n_all - k)
    return transformed[:, :k], narrow
