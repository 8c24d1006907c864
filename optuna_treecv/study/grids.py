"""A grid sampler that is fast for grids of hundreds of points and supports unions of grids."""

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

# The number of failures of each point; a list for the first trials, up to the first unfinished
# one, with the point of each failed trial and None for the others; and the unvisited points, which
# none of these trials has completed.
_Progress = tuple[Counter[int | None], list[int | None], set[int | None]]


class GridSampler(optuna.samplers.GridSampler):
    """A grid sampler that is faster than Optuna's for large grids and supports unions of grids.

    After each trial, Optuna's sampler compares its grid with the grid of every trial, value by
    value. A study of n points needs n^3 comparisons, which can take longer than the training. This
    sampler compares each grid as one string. A point whose trial has failed or was interrupted is
    evaluated again after all others, whereas Optuna's sampler counts it as visited.

    Parameters
    ----------
    grids : list of dict of str to list
        Grids of the same parameters. A point that is in several grids is visited once.
    seed : int, default=None
        The seed of the order in which the points are visited.
    """

    def __init__(self, grids: Sequence[Grid], seed: int | None = None) -> None:
        self._progress: WeakKeyDictionary[optuna.Study, _Progress] = WeakKeyDictionary()
        if len(grids) == 1:
            super().__init__(grids[0], seed)
            self._as_text = repr(self._search_space)
            return
        super().__init__({}, seed)
        self._param_names = sorted(grids[0])
        # Trials store this dict. Trials of the same grid are recognized by it. Storing the list of
        # all points would take more space.
        lists: dict[str, Opaque] = {n: [grid[n] for grid in grids] for n in self._param_names}
        self._search_space = lists
        self._as_text = repr(self._search_space)
        points = (product(*(grid[name] for name in self._param_names)) for grid in grids)
        # Different values have codes that are not equal, so ``dict`` does not merge them.
        distinct: list[Opaque] = list(dict.fromkeys(chain(*points)))
        self._n_min_trials = len(distinct)
        self._rng.rng.shuffle(distinct)
        self._all_grids = distinct

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_progress": None}  # weak references cannot be pickled

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _progress=WeakKeyDictionary())

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Stop the study after the last point. Optuna's own method fails after enqueued trials."""
        point = trial.system_attrs.get("grid_id")
        failures, _, _ = self._progress_in(study)
        if state == TrialState.FAIL:
            failures[point] += 1
        remaining_points = set(chain(*self._open_points(study)))
        if state != TrialState.FAIL:
            remaining_points.discard(point)  # its trial is still in the state RUNNING
        if not remaining_points:
            failures.clear()  # a later call of optimize evaluates failed points again
            study.stop()

    def _get_unvisited_grid_ids(self, study: optuna.Study) -> list[int]:
        """Return the points without a trial, or else the failed ones, or else the running ones."""
        return [x for x in next(filter(None, self._open_points(study)), ()) if x is not None]

    def _open_points(self, study: optuna.Study) -> tuple[set[int | None], ...]:
        """Return three sets of open points: without a trial, failed and running.

        A point that has failed twice is not open. Otherwise the study might never end.
        """
        failures, finished, unvisited = self._progress_in(study)
        trials = study._storage.get_all_trials(study._study_id, deepcopy=False)
        while len(finished) < len(trials) and trials[len(finished)].state.is_finished():
            trial = trials[len(finished)]
            point, has_failed = self._point_of(trial), trial.state == TrialState.FAIL
            finished.append(point if has_failed else None)
            if not has_failed:
                unvisited.discard(point)
        points: dict[TrialState, set[int | None]] = {state: set() for state in TrialState}
        for trial in trials[len(finished) :]:
            points[trial.state].add(self._point_of(trial))
        open_points = unvisited - points[TrialState.COMPLETE] - points[TrialState.PRUNED]
        open_points -= {point for point, n_failures in list(failures.items()) if n_failures > 1}
        running = open_points & points[TrialState.RUNNING]
        failed = open_points & points[TrialState.FAIL].union(finished) - running
        return open_points - failed - running, failed, running

    def _progress_in(self, study: optuna.Study) -> _Progress:
        """Return the progress of a study: the failed and the unvisited points."""
        progress = self._progress.get(study)
        if progress is None:  # another thread must not see an incomplete set
            points = set[int | None](range(self._n_min_trials))
            progress = self._progress.setdefault(study, (Counter(), [], points))
        return progress

    def _point_of(self, trial: FrozenTrial) -> int | None:
        """Return the index of a trial's point; None if it is enqueued or from another grid."""
        point: int | None = trial.system_attrs.get("grid_id")
        is_in_grid = point is not None and self._same_search_space(
            trial.system_attrs["search_space"]
        )
        return point if is_in_grid else None

    def _same_search_space(self, search_space: Mapping[str, Sequence[ParamValue]]) -> bool:
        # Strings are compared, because they distinguish 1, 1.0 and True.
        return search_space is self._search_space or repr(search_space) == self._as_text
