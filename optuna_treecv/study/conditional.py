"""Spaces that a function suggests, in which one parameter may decide on others."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from sklearn.base import clone

from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.set_values import with_values
from optuna_treecv.study.grid import AnyTrial


class Conditional:
    """Turns a trial into an estimator by a function that suggests values of its parameters.

    Parameters
    ----------
    estimator : estimator
        As given.
    suggest : callable
        (trial) -> dict of str to value.
    """

    def __init__(self, estimator: Any, suggest: Callable[[AnyTrial], Mapping[str, Any]]) -> None:
        self.estimator = clone(estimator)  # the caller may change theirs
        self._suggest = suggest

    def __call__(self, trial: AnyTrial) -> Any:
        values = {name: clone(one, safe=False) for name, one in self.values(trial).items()}
        return with_values(self.estimator, values)

    def values(self, trial: AnyTrial) -> dict[str, Any]:
        """Return the values that a trial suggests."""
        values = self._suggest(trial)
        if not isinstance(values, Mapping):
            raise ValueError(
                "param_distributions must be a function that returns a dict of the values of "
                f"parameters of {name_of(self.estimator)}, got {values!r}."
            )
        return dict(values)
