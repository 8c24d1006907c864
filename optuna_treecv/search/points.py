"""The points of a search that tries a grid, or a sample of one."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from sklearn.model_selection import ParameterGrid
from sklearn.model_selection import ParameterSampler

from optuna_treecv.search.studies import by_point
from optuna_treecv.study.objective import TreeCVObjective
from optuna_treecv.study.space import codes_of
from optuna_treecv.study.space import in_full


class Points:
    """The points of a grid, or some of them, in the order of scikit-learn.

    Parameters
    ----------
    grid : dict of str to list, or list of such dicts
    estimator : estimator
        As the user gave it.
    n_sampled : int or None
        How many points are drawn, each once; None: all points of the grid are tried.
    random_state : int or RandomState
        Of the draws.

    Attributes
    ----------
    grid : dict of str to list, or list of such dicts
        With at least one parameter.
    is_sample : bool
    """

    def __init__(
        self, grid: Any, estimator: Any, n_sampled: int | None = None, random_state: Any = None
    ) -> None:
        self.is_sample = n_sampled is not None
        self._own = estimator.get_params(deep=True)
        self._points: Sequence[Mapping[str, Any]] = ParameterGrid(grid)
        if n_sampled is not None:
            n_sampled = min(n_sampled, len(self._points))
            self._points = list(ParameterSampler(grid, n_sampled, random_state=random_state))
        self.grid = grid
        if self._own and not any([grid] if isinstance(grid, Mapping) else grid):
            name, value = next(iter(self._own.items()))
            self.grid = {name: [value]}  # the estimator as given

    def missing(
        self, objective: TreeCVObjective, before: Sequence[FrozenTrial]
    ) -> list[dict[str, Any]]:
        """Return the codes of the points without a result, each once."""
        known = by_point(before, list(objective._space.axes))
        done = {point for point, trial in known.items() if trial.state != TrialState.FAIL}
        missing = {}
        for given in self._points:
            codes = self._codes_at(given, objective)
            if (point := tuple(codes.values())) not in done:
                missing[point] = codes
        return list(missing.values())

    def tried(
        self, objective: TreeCVObjective, trials: Sequence[FrozenTrial]
    ) -> list[tuple[dict[str, Any], FrozenTrial]]:
        """Return the points that have a trial, with it."""
        known = by_point(trials, list(objective._space.axes))
        found = [
            (dict(point), known.get(tuple(self._codes_at(point, objective).values())))
            for point in self._points
        ]
        return [(point, trial) for point, trial in found if trial is not None]

    def _codes_at(self, point: Mapping[str, Any], objective: TreeCVObjective) -> dict[str, Any]:
        """Return what trials store for each parameter at a point."""
        return codes_of(in_full(point, objective._space.axes, self._own), objective._space.axes)


def are_lists(given: Any) -> bool:
    """Return whether a search space is a dict of lists, or a list of such dicts."""
    dicts = [given] if isinstance(given, Mapping) else given
    return (
        isinstance(dicts, Sequence)
        and not isinstance(dicts, str)
        and len(dicts) > 0
        and all(isinstance(one, Mapping) and len(one) > 0 for one in dicts)
        and all(
            isinstance(values, Collection)
            and not isinstance(values, str | Mapping)
            and len(values) > 0
            for one in dicts
            for values in one.values()
        )
    )
