"""Search spaces: checks grids and distributions, samples the points of a grid."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from math import isfinite
from typing import Any
from typing import TypeAlias

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution

from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.without_effect import check_effect
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import NoKey

#: Optuna's Trial, FixedTrial and FrozenTrial have no public base class in common.
AnyTrial: TypeAlias = Any


class GridSampler(optuna.samplers.GridSampler):
    """Optuna's grid sampler, for grids of hundreds of points.

    After each trial, Optuna's sampler compares the grid of every trial with its own, value by
    value: n points cost n^3 comparisons per study, which can outlast the training. Two grids that
    are equal as a whole need none of these.
    """

    def _same_search_space(self, search_space: Mapping[str, Sequence[Any]]) -> bool:
        return search_space == self._search_space or super()._same_search_space(search_space)


def as_lists(param_grid: Any) -> dict[str, list[Any]]:
    """Return ``param_grid`` with a list of Python values for each parameter."""
    if not isinstance(param_grid, Mapping) or not param_grid:
        raise ValueError(
            f"param_grid must be a dict such as {{'alpha': [0.01, 0.1, 1.0]}}, got {param_grid!r}."
        )
    grid = {}
    for name, values in param_grid.items():
        if isinstance(values, str) or not isinstance(values, Collection | np.ndarray):
            raise ValueError(f"param_grid: {name!r} must have a list of values, got {values!r}.")
        grid[name] = [value.item() if isinstance(value, np.generic) else value for value in values]
        if not grid[name]:
            raise ValueError(f"param_grid: {name!r} must have at least one value.")
    return grid


def distribution_of(values: list[Any]) -> BaseDistribution:
    """Return the Optuna distribution that covers one axis of a grid."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if not numbers or not all(map(isfinite, values)):
        return CategoricalDistribution(values)
    low, high = min(values), max(values)
    log = low > 0 and high > 100 * low
    if all(isinstance(value, int) for value in values):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def check_distributions(
    argument: str, estimator: Any, distributions: Mapping[str, BaseDistribution] | None
) -> None:
    """Refuse a search space that does not fit an estimator; ``argument`` is where it was given."""
    if distributions is not None and not isinstance(distributions, Mapping):
        raise ValueError(
            "param_distributions must be a dict such as {'alpha': FloatDistribution(1e-5, 1e2)}, "
            f"got {distributions!r}."
        )
    if not distributions:
        raise ValueError(
            "param_distributions must name at least one parameter to search, such as "
            "{'alpha': ...}; or param_grid, such as {'alpha': [0.01, 0.1, 1.0]}."
        )
    known = estimator.get_params(deep=True)
    for name, distribution in distributions.items():
        if name not in known:
            raise ValueError(
                f"{argument}: {name_of(estimator)} has no parameter {name!r}; it "
                f"has {', '.join(known)}."
            )
        if not isinstance(
            distribution, FloatDistribution | IntDistribution | CategoricalDistribution
        ):
            raise ValueError(
                f"param_distributions: {name!r} must have a FloatDistribution, IntDistribution or "
                f"CategoricalDistribution of optuna.distributions, got {distribution!r}."
            )
    check_effect(argument, estimator, distributions)


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


def suggest(trial: AnyTrial, name: str, distribution: BaseDistribution) -> Any:
    """Ask a trial for a parameter; its errors name the parameter."""
    try:
        return _suggest(trial, name, distribution)
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
