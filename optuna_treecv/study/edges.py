"""Values at the edge of what was searched, beyond which better ones may lie."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from math import log
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial

# The share of a range's width, on its scale, that counts as its edge.
_EDGE = 0.02

# Few parameters that are integers can be less: a depth of 1, two clusters.
_LEAST_INT = 2


def edges_of(trial: FrozenTrial, lists: Mapping[str, Collection[Any]]) -> dict[str, str]:
    """Return which numbers of a trial lie at the edge of their ranges, and where, as words.

    In a range these are the 2 % of its width, on its scale, at either end; in a list of three or
    more numbers, the first and the last. An end is no edge where values hardly go on: 0, up to 2
    for integers, and for shares 1.

    Parameters
    ----------
    trial : FrozenTrial
    lists : dict of str to collection
        All values of the parameters that were searched in lists, as far as they are known. A grid
        sampler notes those of its grid in the trial.
    """
    of_sampler: dict[str, Collection[Any]] = {
        # Each part is a value, or a list of the values in one of several grids.
        name: [value for part in parts for value in (part if isinstance(part, list) else [part])]
        for name, parts in trial.system_attrs.get("search_space", {}).items()
    }
    lists = {**of_sampler, **lists}
    edges = {}
    for name, value in trial.params.items():
        distribution = trial.distributions[name]
        if name in lists:
            end = _end_of_list(value, lists[name])
        elif isinstance(distribution, CategoricalDistribution):
            end = _end_of_list(value, distribution.choices)
        else:
            end = _end_of_range(value, distribution)
        if end is not None:
            edges[name] = f"{_shown(value)} at {end}"
    return edges


def _end_of_list(value: Any, values: Collection[Any]) -> str | None:
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        return None
    numbers = sorted(set(values))
    if len(numbers) < 3:
        return None
    low, high = numbers[0], numbers[-1]
    return _end(value == low, value == high, low, high, is_linear=numbers[-2] >= high / 2)


def _end_of_range(value: Any, distribution: BaseDistribution) -> str | None:
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    low, high = distribution.low, distribution.high
    if high - low < 2 * (distribution.step or 0) or low == high:
        return None
    if distribution.log:
        place = log(value / low) / log(high / low)
    else:
        place = (value - low) / (high - low)
    return _end(place <= _EDGE, place >= 1 - _EDGE, low, high, is_linear=not distribution.log)


def _end(is_low: bool, is_high: bool, low: float, high: float, is_linear: bool) -> str | None:
    are_ints = isinstance(low, int) and isinstance(high, int)
    if is_low and low != 0 and not (are_ints and 0 < low <= _LEAST_INT):
        end = "lower"
    elif is_high and not (is_linear and low >= 0 and high == 1):
        end = "upper"
    else:
        return None
    return f"the {end} end of its range ({_shown(low)} to {_shown(high)})"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
