"""The candidates of a search: all points of a grid, or points drawn by ``ParameterSampler``."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from sklearn.model_selection import ParameterGrid
from sklearn.model_selection import ParameterSampler

from optuna_treecv.study.space import Axis
from optuna_treecv.study.space import codes_of
from optuna_treecv.study.space import in_full


class Points(optuna.samplers.RandomSampler):
    """The candidates of ``GridSearchCV`` or ``RandomizedSearchCV``, as a sampler for Optuna.

    The points have the order of scikit-learn. The sampler suggests the missing ones, one per
    trial. It derives from ``RandomSampler``, because a random sampler suggests each parameter
    independently.

    Parameters
    ----------
    grid : dict of str to list, or list of such dicts
        If ``n_sampled`` is given, a list of dicts may also contain SciPy distributions.
    estimator : estimator
        The estimator of the search.
    n_sampled : int or None
        The number of points that ``ParameterSampler`` draws; None for all points of the grid.
    random_state : int or RandomState
        The seed of the draws.

    Attributes
    ----------
    grid : dict of str to list, or list of such dicts
        The grid. It has at least one parameter.
    is_sample : bool
        Whether the points are drawn by ``ParameterSampler``.
    missing : list of dict
        The points to suggest, with codes in place of values.
    """

    def __init__(
        self, grid: Any, estimator: Any, n_sampled: int | None = None, random_state: Any = None
    ) -> None:
        super().__init__()
        self.is_sample = n_sampled is not None
        self._defaults = estimator.get_params(deep=True)
        dicts = [grid] if isinstance(grid, Mapping) else grid
        draws = any(hasattr(v, "rvs") for lists in dicts for v in lists.values())
        self._points: Sequence[Mapping[str, Any]] = () if draws else ParameterGrid(grid)
        if n_sampled is not None:
            n_sampled = n_sampled if draws else min(n_sampled, len(self._points))
            self._points = list(ParameterSampler(grid, n_sampled, random_state=random_state))
        if draws:
            grid = [{name: [value] for name, value in point.items()} for point in self._points]
        self.grid = grid
        if self._defaults and not any([grid] if isinstance(grid, Mapping) else grid):
            name, value = next(iter(self._defaults.items()))
            self.grid = {name: [value]}  # the estimator unchanged
        self.missing: list[dict[str, Any]] = []
        self._point: Mapping[str, Any] = {}

    def find_missing(self, axes: Mapping[str, Axis], trials: Sequence[FrozenTrial]) -> None:
        """Set ``missing`` to the distinct points that no finished trial has evaluated."""
        trial_at = _by_point(trials, axes)
        evaluated = {point for point, trial in trial_at.items() if trial.state != TrialState.FAIL}
        missing = {}
        for point in self._points:
            codes = self._codes_at(point, axes)
            if (stored := tuple(codes.values())) not in evaluated:
                missing[stored] = codes
        self.missing = list(missing.values())

    def tried(
        self, axes: Mapping[str, Axis], trials: Sequence[FrozenTrial]
    ) -> list[tuple[dict[str, Any], FrozenTrial]]:
        """Return a pair (point, trial) for each point that a trial has evaluated."""
        trial_at = _by_point(trials, axes)
        pairs = [
            (dict(point), trial_at.get(tuple(self._codes_at(point, axes).values())))
            for point in self._points
        ]
        return [(point, trial) for point, trial in pairs if trial is not None]

    def _codes_at(self, point: Mapping[str, Any], axes: Mapping[str, Axis]) -> dict[str, Any]:
        """Return the codes that trials store for the parameters of a point."""
        return codes_of(in_full(point, axes, self._defaults), axes)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Select the next missing point, unless the trial was enqueued by the user."""
        if "fixed_params" not in trial.system_attrs:
            self._point = self.missing.pop(0)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the code of a parameter at the selected point."""
        return self._point[param_name]


def _by_point(
    trials: Sequence[FrozenTrial], names: Collection[str]
) -> dict[tuple[Any, ...], FrozenTrial]:
    """Return the trial of each point: the first complete one, or else the last one."""
    trial_at: dict[tuple[Any, ...], FrozenTrial] = {}
    for trial in trials:
        if not trial.params.keys() >= set(names):
            continue  # the trial failed before all parameters were suggested
        point = tuple(trial.params[name] for name in names)
        if point not in trial_at or trial_at[point].state != TrialState.COMPLETE:
            trial_at[point] = trial
    return trial_at


def is_sampled(space: Any) -> bool:
    """Return whether candidates are drawn by ``ParameterSampler``, as in ``RandomizedSearchCV``.

    They are drawn if the space is a dict of lists, or a list of dicts of lists or SciPy
    distributions.
    """
    dicts = [space] if isinstance(space, Mapping) else space
    return (
        isinstance(dicts, Sequence)
        and not isinstance(dicts, str)
        and len(dicts) > 0
        and all(isinstance(d, Mapping) and len(d) > 0 for d in dicts)
        and all(
            (hasattr(values, "rvs") and dicts is space)
            or (
                isinstance(values, Collection)
                and not isinstance(values, str | Mapping)
                and len(values) > 0
            )
            for lists in dicts
            for values in lists.values()
        )
    )
