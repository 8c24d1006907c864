"""Search spaces: checks grids and distributions, samples the points of a grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import chain
from itertools import product
from typing import Any
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial
from optuna.trial import TrialState
from sklearn.base import clone

from optuna_treecv.crossval.arguments import check_integer
from optuna_treecv.crossval.arguments import MOST_EPOCHS
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.set_values import with_values
from optuna_treecv.learners.without_effect import check_effect
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.study.axis import Axis
from optuna_treecv.study.axis import axis_of
from optuna_treecv.study.axis import NOT_SET

#: Optuna's Trial, FixedTrial and FrozenTrial have no public base class in common.
AnyTrial: TypeAlias = Any


#: A grid: the values of each parameter, or their codes (``Axis``).
Grid: TypeAlias = dict[str, list[Any]]


class _Visits:
    """What a sampler has seen of one study.

    Attributes
    ----------
    failures : Counter
        How often points have failed.
    n_over : int
        The number of the first trial that may not be over.
    points : dict of TrialState to set
        The points of the trials before that.
    """

    def __init__(self) -> None:
        self.failures: Counter[int | None] = Counter()
        self.n_over = 0
        self.points: dict[TrialState, set[int | None]] = {state: set() for state in TrialState}


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
        self._visits: WeakKeyDictionary[optuna.Study, _Visits] = WeakKeyDictionary()
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
        return {**self.__dict__, "_visits": None}  # weak references cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _visits=WeakKeyDictionary())

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Stop the study after the last point; Optuna's sampler fails after enqueued trials."""
        own = trial.system_attrs.get("grid_id")
        failures = self._visits.setdefault(study, _Visits()).failures
        if state == TrialState.FAIL:
            failures[own] += 1
        left = set(chain(*self._open(study)))
        if state != TrialState.FAIL:
            left.discard(own)  # its trial is still a running one
        if not left:
            failures.clear()  # a later call tries these points again
            study.stop()

    def _get_unvisited_grid_ids(self, study: optuna.Study) -> list[int]:
        """Return points without a trial, or else failed ones, or else running ones."""
        return [own for own in next(filter(None, self._open(study)), ()) if own is not None]

    def _open(self, study: optuna.Study) -> tuple[set[int | None], ...]:
        """Return the points to evaluate: without a trial, those that failed, and running ones.

        A point that has failed twice is none of them, so that the study ends.
        """
        visits = self._visits.setdefault(study, _Visits())
        trials = study._storage.get_all_trials(study._study_id, deepcopy=False)
        n_over = visits.n_over
        while n_over < len(trials) and trials[n_over].state.is_finished():
            visits.points[trials[n_over].state].add(self._point_of(trials[n_over]))
            n_over += 1
        visits.n_over = n_over
        points = {state: set(before) for state, before in visits.points.items()}
        for trial in trials[n_over:]:
            points[trial.state].add(self._point_of(trial))
        left: set[int | None] = set(range(self._n_min_trials))
        left -= points[TrialState.COMPLETE] | points[TrialState.PRUNED]
        left -= {own for own, times in list(visits.failures.items()) if times > 1}
        running = left & points[TrialState.RUNNING]
        failed = left & points[TrialState.FAIL] - running
        return left - failed - running, failed, running

    def _point_of(self, trial: FrozenTrial) -> int | None:
        """Return the number of a trial's point; None if it is of another grid, or enqueued."""
        own: int | None = trial.system_attrs.get("grid_id")
        is_ours = own is not None and self._same_search_space(trial.system_attrs["search_space"])
        return own if is_ours else None

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


def as_grids(param_grid: Any, estimator: Any) -> list[Grid]:
    """Return ``param_grid`` as grids of the same parameters.

    A parameter that only some of several grids have gets the estimator's value in the others.
    """
    is_list = (
        isinstance(param_grid, Sequence) and len(param_grid) and not isinstance(param_grid, str)
    )
    grids = [_as_lists(grid) for grid in (param_grid if is_list else [param_grid])]
    names = list(dict.fromkeys(chain(*grids)))
    if not names:
        raise ValueError(f"param_grid must name at least one parameter, got {param_grid!r}.")
    for grid in grids:
        check_known("param_grid", estimator, grid)
    own = {"n_epochs": 1, **estimator.get_params(deep=True)}
    return [
        {name: grid.get(name) or [_value_elsewhere(name, grid, own)] for name in names}
        for grid in grids
    ]


def in_full(
    point: Mapping[str, Any], names: Iterable[str], own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a point of a grid with a value for each name.

    Parameters
    ----------
    point : dict
    names : iterable of str
        Those of all grids.
    own : dict
        The parameters of the estimator as given.
    """
    return {
        name: point[name] if name in point else _value_elsewhere(name, point, own)
        for name in names
    }


def _value_elsewhere(name: str, given: Iterable[str], own: Mapping[str, Any]) -> Any:
    """Return the value of a parameter where a grid does not give one.

    It is not set where the grid puts in another inner estimator, or the estimator lacks it.
    """
    is_replaced = any(name.startswith(f"{outer}__") for outer in given)
    return NOT_SET if is_replaced else own.get(name, NOT_SET)


def typical(estimator: Any, axes: Mapping[str, Axis]) -> Any:
    """Return an estimator that a search evaluates, by which it can be checked.

    It is the estimator as given, with an inner estimator where the search puts one in the place of
    None or "passthrough".
    """
    own = estimator.get_params(deep=True)
    values = {
        name: next((value for value in axis.values if hasattr(value, "fit")), None)
        for name, axis in axes.items()
        if not hasattr(own.get(name), "fit")
    }
    put_in = {name: clone(value) for name, value in values.items() if value is not None}
    return with_values(estimator, put_in) if put_in else estimator


def axes_of(grids: Sequence[Grid]) -> dict[str, Axis]:
    """Return the axis of each parameter, which covers its values in all grids."""
    return {name: axis_of([v for grid in grids for v in grid[name]]) for name in grids[0]}


def codes_of_grid(grid: Grid, axes: Mapping[str, Axis]) -> Grid:
    """Return a grid of the codes that trials hold, each of a parameter once."""
    return {
        name: list(dict.fromkeys(map(axes[name].code_of, values))) for name, values in grid.items()
    }


def codes_of(values: Mapping[str, Any], axes: Mapping[str, Axis]) -> dict[str, Any]:
    """Return the code of each parameter's value; errors name the parameter."""
    return {name: _naming(name, axis.code_of, values[name]) for name, axis in axes.items()}


def _as_lists(grid: Any) -> Grid:
    """Return a grid with a list of values for each parameter."""
    if not isinstance(grid, Mapping):
        raise ValueError(
            "param_grid must be a dict such as {'alpha': [0.01, 0.1, 1.0]}, or a list of such "
            f"dicts, got {grid!r}."
        )
    lists = {}
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Collection | np.ndarray):
            raise ValueError(f"param_grid: {name!r} must have a list of values, got {values!r}.")
        lists[name] = list(values)
        if not lists[name]:
            raise ValueError(f"param_grid: {name!r} must have at least one value.")
    return lists


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


def axes_in(
    estimator: Any, distributions: Mapping[str, BaseDistribution | Axis] | None
) -> dict[str, Axis]:
    """Return the axes of ``param_distributions``; refuse what does not fit the estimator."""
    if distributions is not None and not isinstance(distributions, Mapping):
        raise ValueError(
            "param_distributions must be a dict such as {'alpha': FloatDistribution(1e-5, 1e2)} "
            f"or 'auto', got {distributions!r}."
        )
    if not distributions:
        raise ValueError(
            "param_distributions must name at least one parameter to search, such as "
            "{'alpha': ...}; or param_grid, such as {'alpha': [0.01, 0.1, 1.0]}."
        )
    axes = {}
    for name, given in distributions.items():
        axes[name] = given if isinstance(given, Axis) else Axis(given)
        distribution = axes[name].distribution
        if not isinstance(
            distribution, FloatDistribution | IntDistribution | CategoricalDistribution
        ):
            raise ValueError(
                f"param_distributions: {name!r} must have a FloatDistribution, IntDistribution or "
                f"CategoricalDistribution of optuna.distributions, got {distribution!r}."
            )
    lists = {name: axis.values for name, axis in axes.items()}
    check_known("param_distributions", estimator, lists)
    return axes


def check_effects(argument: str, estimator: Any, axes: Mapping[str, Axis]) -> None:
    """Refuse a search over parameters that have no effect where a model makes one pass."""
    several = {name: not axis.distribution.single() for name, axis in axes.items()}
    check_effect(argument, estimator, several)


def check_epochs(argument: str, axes: Mapping[str, Axis]) -> None:
    """Refuse numbers of epochs that the evaluation cannot have, at the ends of a search."""
    if "n_epochs" in axes:
        for value in axes["n_epochs"].ends():
            check_integer(f"{argument}: n_epochs", value, MOST_EPOCHS)


def check_known(argument: str, estimator: Any, lists: Mapping[str, Collection[Any]]) -> None:
    """Refuse names that are neither those of an estimator's parameters nor "n_epochs".

    Parameters
    ----------
    argument : str
    estimator : estimator
    lists : dict of str to collection
        The values of each parameter, among which may be inner estimators with other parameters.
    """
    known = estimator.get_params(deep=True)
    for name in lists:
        outer = [other for other in lists if name.startswith(f"{other}__")]
        if (name in known and not outer) or name == "n_epochs":
            continue
        for inner in product(*(lists[other] for other in outer)):
            put_in = {
                other: clone(value, safe=False) for other, value in zip(outer, inner, strict=True)
            }
            changed = with_values(estimator, put_in) if put_in else estimator
            _check_can_set(argument, changed, name)


def _check_can_set(argument: str, estimator: Any, name: str) -> None:
    """Refuse a name that ``set_params`` of an estimator does; it need not be a parameter."""
    try:
        with_values(estimator, {name: None})
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{argument}: {name_of(estimator)} has no parameter {name!r}; it "
            f"has {', '.join(estimator.get_params(deep=True))}."
        ) from error


def check_names(argument: str, given: Mapping[str, Any], wanted: Collection[str]) -> None:
    """Refuse parameter values whose names are not those of the search space."""
    for name in wanted:
        if name not in given:
            raise missing_value(argument, name, given)
    for name in given:
        if name not in wanted:
            names = ", ".join(map(repr, wanted))
            raise ValueError(f"{argument} must hold {names} and nothing else, got {name!r} too.")


def missing_value(argument: str, name: str, given: Mapping[str, Any]) -> ValueError:
    """Return the error for a parameter without a value."""
    return ValueError(f"{argument} must hold a value for {name!r}, got only {dict(given)}.")


def key_of_point(values: Mapping[str, Any]) -> bytes | None:
    """Return bytes that tell a point from all others, or None if its values have no such bytes."""
    try:
        return encode(dict(values))
    except NoKey:
        return None


def is_continuous(distribution: BaseDistribution) -> bool:
    """Return whether a sampler hardly suggests the same value twice."""
    return (
        isinstance(distribution, FloatDistribution)
        and distribution.step is None
        and not distribution.single()
    )


def suggest(trial: AnyTrial, name: str, axis: Axis) -> Any:
    """Ask a trial for a parameter and return the code that it stores."""
    return _naming(name, lambda: axis.code_of(_suggest(trial, name, axis.distribution)))


def _naming(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns; its errors name the parameter."""
    try:
        return function(*arguments)
    except (OverflowError, TypeError, ValueError) as error:
        if name in str(error):
            raise
        raise ValueError(f"{name!r} cannot have this value: {error}") from error


def _suggest(trial: AnyTrial, name: str, distribution: BaseDistribution) -> Any:
    """Do it as OptunaSearchCV does through a private method."""
    if isinstance(distribution, FloatDistribution):
        low, high = distribution.low, distribution.high
        return trial.suggest_float(name, low, high, step=distribution.step, log=distribution.log)
    if isinstance(distribution, IntDistribution):
        low, high = distribution.low, distribution.high
        return trial.suggest_int(name, low, high, step=distribution.step, log=distribution.log)
    assert isinstance(distribution, CategoricalDistribution)
    return trial.suggest_categorical(name, distribution.choices)
