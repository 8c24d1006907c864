"""The names of an estimator's parameters, read from its signature once."""

from __future__ import annotations

from functools import cache

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
