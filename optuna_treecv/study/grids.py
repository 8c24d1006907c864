"""A sampler of grids of hundreds of points, and of unions of grids."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import chain
from itertools import product
from weakref import WeakKeyDictionary

import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv.study.space import Grid
from optuna_treecv.types import Opaque
from optuna_treecv.types import ParamValue

# The number of failures by point; for each trial of the finished first ones, its point if it
# failed, else None; and the points that none of these has completed.
_Seen = tuple[Counter[int | None], list[int | None], set[int | None]]


class GridSampler(optuna.samplers.GridSampler):
    """Optuna's grid sampler, for grids of hundreds of points and for unions of grids.

    After each trial, Optuna's sampler compares the grid of every trial with its grid, value by
    value: n points cost n^3 comparisons per study, which can take longer than the training. This
    sampler compares grids as a whole. A point whose trial failed, or was interrupted, is evaluated
    again after all others, whereas Optuna's sampler counts it as visited.

    Parameters
    ----------
    grids : list of dict of str to list
        Grids of the same parameters. A point of several grids is visited once.
    seed : int, default=None
        The seed of the order in which the points come.
    """

    def __init__(self, grids: Sequence[Grid], seed: int | None = None) -> None:
        self._seen: WeakKeyDictionary[optuna.Study, _Seen] = WeakKeyDictionary()
        if len(grids) == 1:
            super().__init__(grids[0], seed)
            self._as_text = repr(self._search_space)
            return
        super().__init__({}, seed)
        self._param_names = sorted(grids[0])
        # It identifies the trials of the same grid; a list of all points would be long.
        lists: dict[str, Opaque] = {n: [grid[n] for grid in grids] for n in self._param_names}
        self._search_space = lists
        self._as_text = repr(self._search_space)
        points = (product(*(grid[name] for name in self._param_names)) for grid in grids)
        # Codes that differ are not equal.
        distinct: list[Opaque] = list(dict.fromkeys(chain(*points)))
        self._n_min_trials = len(distinct)
        self._rng.rng.shuffle(distinct)
        self._all_grids = distinct

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_seen": None}  # weak references cannot be pickled

    def __setstate__(self, state: dict[str, object]) -> None:
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
        failures, _, _ = self._seen_in(study)
        if state == TrialState.FAIL:
            failures[point] += 1
        remaining_points = set(chain(*self._open(study)))
        if state != TrialState.FAIL:
            remaining_points.discard(point)  # its trial still counts as running
        if not remaining_points:
            failures.clear()  # a later call evaluates these points again
            study.stop()

    def _get_unvisited_grid_ids(self, study: optuna.Study) -> list[int]:
        """Return the points without a trial, or else failed ones, or else running ones."""
        return [x for x in next(filter(None, self._open(study)), ()) if x is not None]

    def _open(self, study: optuna.Study) -> tuple[set[int | None], ...]:
        """Return the open points: those without a trial, failed ones, and running ones.

        Points that have failed twice are not open, so that the study ends.
        """
        failures, over, unvisited = self._seen_in(study)
        trials = study._storage.get_all_trials(study._study_id, deepcopy=False)
        while len(over) < len(trials) and trials[len(over)].state.is_finished():
            trial = trials[len(over)]
            point, has_failed = self._point_of(trial), trial.state == TrialState.FAIL
            over.append(point if has_failed else None)
            if not has_failed:
                unvisited.discard(point)
        points: dict[TrialState, set[int | None]] = {state: set() for state in TrialState}
        for trial in trials[len(over) :]:
            points[trial.state].add(self._point_of(trial))
        open_points = unvisited - points[TrialState.COMPLETE] - points[TrialState.PRUNED]
        open_points -= {point for point, times in list(failures.items()) if times > 1}
        running = open_points & points[TrialState.RUNNING]
        failed = open_points & points[TrialState.FAIL].union(over) - running
        return open_points - failed - running, failed, running

    def _seen_in(self, study: optuna.Study) -> _Seen:
        """Return the state of a study's points so far."""
        seen = self._seen.get(study)
        if seen is None:  # another thread must not see the set before it is full
            points = set[int | None](range(self._n_min_trials))
            seen = self._seen.setdefault(study, (Counter(), [], points))
        return seen

    def _point_of(self, trial: FrozenTrial) -> int | None:
        """Return the number of a trial's point; None if it is of another grid, or enqueued."""
        point: int | None = trial.system_attrs.get("grid_id")
        is_ours = point is not None and self._same_search_space(trial.system_attrs["search_space"])
        return point if is_ours else None

    def _same_search_space(self, search_space: Mapping[str, Sequence[ParamValue]]) -> bool:
        # As texts, in which 1, 1.0 and True differ.
        return search_space is self._search_space or repr(search_space) == self._as_text
