"""The names of an estimator's parameters, read from its signature once."""

from __future__ import annotations

from functools import cache
from typing import Any

from sklearn.base import BaseEstimator


class KnownParameters(BaseEstimator):
    """An estimator whose class remembers the names of its parameters.

    A trial clones its estimator and names it by its parameters some seven times; to read the
    signature anew each time would take longer than the scores of a forest.
    """

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        names: list[str] = super()._get_param_names()
        return names


def parameters_of(estimator: Any) -> list[tuple[str, Any]]:
    """Return the names and values of an estimator's own parameters, sorted by name."""
    kind: Any = type(estimator)
    if getattr(kind, "get_params", None) is not BaseEstimator.get_params:
        return sorted(estimator.get_params(deep=False).items())
    return [(name, getattr(estimator, name)) for name in _names_of(kind)]


@cache
def _names_of(kind: type[BaseEstimator]) -> list[str]:
    names: list[str] = kind._get_param_names()  # sorted
    return names
