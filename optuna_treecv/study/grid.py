"""Grids: their points, and a sampler of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import chain
from itertools import product
from typing import Any
from typing import TypeAlias
from weakref import WeakKeyDictionary

import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import NoKey

#: A grid: the values of each parameter, or their codes (``Axis``).
Grid: TypeAlias = dict[str, list[Any]]


class GridSampler(optuna.samplers.GridSampler):
    """Optuna's grid sampler, for grids of hundreds of points and for unions of grids.

    After each trial, Optuna's sampler compares the grid of every trial with its own, value by
    value: n points cost n^3 comparisons per study, which can outlast the training. Two grids that
    are equal as a whole need none of these. A point whose trial failed, or was interrupted, is
    evaluated again after all others, where Optuna's sampler counts it as visited.

    Parameters
    ----------
    grids : list of dict of str to list
        Grids of the same parameters. A point of several grids is visited once.
    seed : int, default=None
        The seed of the order in which the points come.
    """

    def __init__(self, grids: Sequence[Grid], seed: int | None = None) -> None:
        # How often points have failed; the state and the point of the first trials, as far as all
        # of them are over.
        self._seen: WeakKeyDictionary[
            optuna.Study, tuple[Counter[int | None], list[tuple[TrialState, int | None]]]
        ] = WeakKeyDictionary()
        if len(grids) == 1:
            super().__init__(grids[0], seed)
            self._as_text = repr(self._search_space)
            return
        super().__init__({}, seed)
        self._param_names = sorted(grids[0])
        for name in self._param_names:
            for value in chain(*(grid[name] for grid in grids)):
                self._check_value(name, value)
        # By this, trials are known to be of the same grid; a list of all points would be long.
        self._search_space = {
            name: [grid[name] for grid in grids]  # type: ignore[misc]  # lists of values
            for name in self._param_names
        }
        self._as_text = repr(self._search_space)
        self._all_grids = _union(grids)
        self._n_min_trials = len(self._all_grids)
        self._rng.rng.shuffle(self._all_grids)  # type: ignore[arg-type]  # as Optuna does

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen": None}  # weak references cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _seen=WeakKeyDictionary())

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Stop the study after the last point; Optuna's sampler fails after enqueued trials."""
        point = trial.system_attrs.get("grid_id")
        failures, _ = self._seen.setdefault(study, (Counter(), []))
        if state == TrialState.FAIL:
            failures[point] += 1
        left = set(chain(*self._open(study)))
        if state != TrialState.FAIL:
            left.discard(point)  # its trial is still a running one
        if not left:
            failures.clear()  # a later call tries these points again
            study.stop()

    def _get_unvisited_grid_ids(self, study: optuna.Study) -> list[int]:
        """Return points without a trial, or else failed ones, or else running ones."""
        return [one for one in next(filter(None, self._open(study)), ()) if one is not None]

    def _open(self, study: optuna.Study) -> tuple[set[int | None], ...]:
        """Return the points to evaluate: without a trial, those that failed, and running ones.

        A point that has failed twice is none of them, so that the study ends.
        """
        failures, over = self._seen.setdefault(study, (Counter(), []))
        trials = study._storage.get_all_trials(study._study_id, deepcopy=False)
        while len(over) < len(trials) and trials[len(over)].state.is_finished():
            over.append((trials[len(over)].state, self._point_of(trials[len(over)])))
        others = ((trial.state, self._point_of(trial)) for trial in trials[len(over) :])
        points: dict[TrialState, set[int | None]] = {state: set() for state in TrialState}
        for state, point in chain(over, others):
            points[state].add(point)
        left: set[int | None] = set(range(self._n_min_trials))
        left -= points[TrialState.COMPLETE] | points[TrialState.PRUNED]
        left -= {point for point, times in list(failures.items()) if times > 1}
        running = left & points[TrialState.RUNNING]
        failed = left & points[TrialState.FAIL] - running
        return left - failed - running, failed, running

    def _point_of(self, trial: FrozenTrial) -> int | None:
        """Return the number of a trial's point; None if it is of another grid, or enqueued."""
        point: int | None = trial.system_attrs.get("grid_id")
        is_ours = point is not None and self._same_search_space(trial.system_attrs["search_space"])
        return point if is_ours else None

    def _same_search_space(self, search_space: Mapping[str, Sequence[Any]]) -> bool:
        # As texts, in which 1, 1.0 and True differ.
        return search_space is self._search_space or repr(search_space) == self._as_text


def _union(grids: Sequence[Grid]) -> list[tuple[Any, ...]]:
    """Return the points of all grids, without repetition; values are in the order of the names."""
    points: dict[Any, tuple[Any, ...]] = {}
    for grid in grids:
        names = sorted(grid)
        for values in product(*(grid[name] for name in names)):
            point = dict(zip(names, values, strict=True))
            points.setdefault(key_of_point(point) or object(), values)
    return list(points.values())


def points_beside(
    grids: Sequence[Grid], values: Mapping[str, Any], lanes: Collection[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield the points of the grids that differ from one of their points only in ``lanes``."""
    if not any(is_point_of(grid, values) for grid in grids):
        return
    for grid in grids:
        axes = {name: axis if name in lanes else [values[name]] for name, axis in grid.items()}
        if is_point_of({name: grid[name] for name in grid if name not in lanes}, values):
            yield from product(*axes.values())


def is_point_of(grid: Grid, values: Mapping[str, Any]) -> bool:
    """Return whether values are a point of a grid."""
    return all(values[name] in codes for name, codes in grid.items())


def key_of_point(values: Mapping[str, Any]) -> bytes | None:
    """Return bytes that tell a point from all others, or None if its values have no such bytes."""
    try:
        return encode(dict(values))
    except NoKey:
        return None
