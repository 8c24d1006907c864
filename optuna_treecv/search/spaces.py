"""Search spaces in the forms of Optuna, SciPy and ``RandomizedSearchCV``, as distributions."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from math import isfinite
from math import sqrt
from typing import Any
from typing import Literal

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution

from optuna_treecv.study.axis import Axis
from optuna_treecv.study.axis import axis_of

_EXPECTED = (
    "a distribution of optuna.distributions, uniform, loguniform or randint of scipy.stats, or a "
    "list of values"
)


def as_distributions(given: Any) -> dict[str, BaseDistribution | Axis] | Literal["auto"]:
    """Return the Optuna distribution of each parameter, or the axis of a list of values.

    Parameters
    ----------
    given : dict of str to distribution or list, or "auto"
        ``param_distributions`` of a search. "auto" is returned as it is.

    Raises
    ------
    ValueError
        If it is neither.
    """
    if isinstance(given, str) and given == "auto":
        return "auto"
    if not isinstance(given, Mapping) or not given:
        raise ValueError(
            "param_distributions must be a dict such as {'alpha': loguniform(1e-6, 1e-1)} or "
            f"'auto', got {given!r}."
        )
    return {name: _as_distribution(name, one) for name, one in given.items()}


def _as_distribution(name: str, given: Any) -> BaseDistribution | Axis:
    if isinstance(given, BaseDistribution):
        return given
    if hasattr(given, "dist") and hasattr(given, "support"):
        return _from_scipy(name, given)
    if isinstance(given, list | tuple | np.ndarray) and len(given):
        return axis_of(list(given), are_choices=True)
    raise ValueError(f"param_distributions: {name!r} must have {_EXPECTED}, got {given!r}.")


def _from_scipy(name: str, frozen: Any) -> BaseDistribution:
    """Return the distribution of Optuna that draws as a frozen one of SciPy does."""
    kind = frozen.dist.name
    low, high = map(float, frozen.support())
    if isfinite(low) and isfinite(high):
        if kind == "uniform":
            return FloatDistribution(low, high)
        if kind == "randint":
            return IntDistribution(int(low), int(high))
        # One that is moved by ``loc`` is not uniform in the logarithm.
        is_plain = low > 0 and isclose(float(frozen.median()), sqrt(low * high))
        if kind in ("loguniform", "reciprocal") and is_plain:
            return FloatDistribution(low, high, log=True)
    raise ValueError(
        f"param_distributions: {name!r} must have {_EXPECTED}, got scipy.stats.{kind}"
        f"{frozen.args} with {frozen.kwds}."
    )
