"""The candidates of a search: the points of a grid, or those that ``ParameterSampler`` draws."""

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
    """The points of a grid, or some of them, in the order of scikit-learn.

    It is a sampler too, which suggests those that are missing, one per trial. As a random sampler,
    it suggests parameters one by one.

    Parameters
    ----------
    grid : dict of str to list, or list of such dicts
        With ``n_sampled``, dicts in a list may also have distributions of SciPy.
    estimator : estimator
        As the user gave it.
    n_sampled : int or None
        How many points ``ParameterSampler`` draws; None: all points of the grid are tried.
    random_state : int or RandomState
        Of the draws.

    Attributes
    ----------
    grid : dict of str to list, or list of such dicts
        With at least one parameter.
    is_sample : bool
    missing : list of dict
        The points to suggest, as codes.
    """

    def __init__(
        self, grid: Any, estimator: Any, n_sampled: int | None = None, random_state: Any = None
    ) -> None:
        super().__init__()
        self.is_sample = n_sampled is not None
        self._defaults = estimator.get_params(deep=True)
        dicts = [grid] if isinstance(grid, Mapping) else grid
        draws = any(hasattr(one, "rvs") for names in dicts for one in names.values())
        self._points: Sequence[Mapping[str, Any]] = () if draws else ParameterGrid(grid)
        if n_sampled is not None:
            n_sampled = n_sampled if draws else min(n_sampled, len(self._points))
            self._points = list(ParameterSampler(grid, n_sampled, random_state=random_state))
        if draws:
            grid = [{name: [value] for name, value in point.items()} for point in self._points]
        self.grid = grid
        if self._defaults and not any([grid] if isinstance(grid, Mapping) else grid):
            name, value = next(iter(self._defaults.items()))
            self.grid = {name: [value]}  # the estimator as given
        self.missing: list[dict[str, Any]] = []
        self._point: Mapping[str, Any] = {}

    def find_missing(self, axes: Mapping[str, Axis], trials: Sequence[FrozenTrial]) -> None:
        """Note the points without a result, each once."""
        trial_at = _by_point(trials, axes)
        done = {point for point, trial in trial_at.items() if trial.state != TrialState.FAIL}
        missing = {}
        for point in self._points:
            codes = self._codes_at(point, axes)
            if (stored := tuple(codes.values())) not in done:
                missing[stored] = codes
        self.missing = list(missing.values())

    def tried(
        self, axes: Mapping[str, Axis], trials: Sequence[FrozenTrial]
    ) -> list[tuple[dict[str, Any], FrozenTrial]]:
        """Return the points that have a trial, with it."""
        trial_at = _by_point(trials, axes)
        pairs = [
            (dict(point), trial_at.get(tuple(self._codes_at(point, axes).values())))
            for point in self._points
        ]
        return [(point, trial) for point, trial in pairs if trial is not None]

    def _codes_at(self, point: Mapping[str, Any], axes: Mapping[str, Axis]) -> dict[str, Any]:
        """Return the codes that trials store for the parameters at a point."""
        return codes_of(in_full(point, axes, self._defaults), axes)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Take the next point, unless the user has enqueued the trial with one."""
        if "fixed_params" not in trial.system_attrs:
            self._point = self.missing.pop(0)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the point's value of a parameter."""
        return self._point[param_name]


def _by_point(
    trials: Sequence[FrozenTrial], names: Collection[str]
) -> dict[tuple[Any, ...], FrozenTrial]:
    """Return the trial of each point: the first complete one, or else the last one."""
    trial_at: dict[tuple[Any, ...], FrozenTrial] = {}
    for trial in trials:
        if not trial.params.keys() >= set(names):
            continue  # it has failed before it had all values
        point = tuple(trial.params[name] for name in names)
        if point not in trial_at or trial_at[point].state != TrialState.COMPLETE:
            trial_at[point] = trial
    return trial_at


def is_sampled(space: Any) -> bool:
    """Return whether candidates of a space are drawn as ``RandomizedSearchCV`` draws them.

    They are if it is a dict of lists, or a list of dicts of lists or distributions of SciPy.
    """
    dicts = [space] if isinstance(space, Mapping) else space
    return (
        isinstance(dicts, Sequence)
        and not isinstance(dicts, str)
        and len(dicts) > 0
        and all(isinstance(one, Mapping) and len(one) > 0 for one in dicts)
        and all(
            (hasattr(values, "rvs") and dicts is space)
            or (
                isinstance(values, Collection)
                and not isinstance(values, str | Mapping)
                and len(values) > 0
            )
            for one in dicts
            for values in one.values()
        )
    )
