"""Estimators of one search, which differ in some parameters and share what does not differ."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from sklearn.base import clone
from sklearn.pipeline import Pipeline


def with_values(estimator: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of an estimator with other values of some parameters.

    Steps of a Pipeline that no value reaches are not copied, since naming, comparing and copying
    them takes longer than many trials do; so they must not be fitted or changed.
    """
    if type(estimator) is not Pipeline:
        return clone(estimator).set_params(**values)
    reached = {name.partition("__")[0] for name in values}
    copied = copy(estimator)
    copied.steps = [
        (name, clone(step, safe=False) if name in reached else step)
        for name, step in estimator.steps
    ]
    return copied.set_params(**values)
