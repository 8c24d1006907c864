"""Search spaces: what a search varies, and how the params of a trial become an estimator."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from copy import copy
from itertools import chain
from itertools import product
import re
from typing import Any
from typing import TypeAlias

import numpy as np
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.trial import FixedTrial
from optuna.trial import FrozenTrial
from optuna.trial import Trial
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from optuna_treecv.learners.names import name_of
from optuna_treecv.study.axis import Axis
from optuna_treecv.study.axis import axis_of
from optuna_treecv.study.axis import NOT_SET
from optuna_treecv.study.grid import Grid
from optuna_treecv.study.recommended import recommended_space

#: What a trial evaluates: an estimator, and the epochs of the trial or of its study; None: those
#: of the evaluation.
Candidate: TypeAlias = tuple[Any, int | None]

# The error of FixedTrial and FrozenTrial when they have no value for a parameter.
_NOT_FOUND = re.compile("value of the parameter '(.+)' is not found")


class Space:
    """The parameters that a search varies.

    Parameters
    ----------
    estimator : estimator or callable
        A callable, (trial) -> estimator, suggests for itself.
    axes : dict of str to Axis, default=None
        None where a function suggests.
    grids : list of dict, default=None
        Those of ``param_grid``, in codes (``Axis``).
    suggest : callable, default=None
        (trial) -> dict of parameters to values, one of which may decide on others.
    """

    def __init__(
        self,
        estimator: Any,
        axes: dict[str, Axis] | None = None,
        grids: list[Grid] | None = None,
        suggest: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        is_estimator = axes is not None or suggest is not None
        # The caller may change theirs.
        self.estimator = clone(estimator) if is_estimator else estimator
        self.axes = axes or {}
        self._lists = {name: axis for name, axis in self.axes.items() if axis.codes}
        self.grids = grids
        self._suggest = suggest
        self._has_epochs = "n_epochs" in self.axes and not hasattr(estimator, "n_epochs")

    @property
    def example(self) -> Any:
        """An estimator by which the search can be checked; None if a callable makes them all.

        It is the estimator as given, with an inner estimator where the search puts one in the
        place of None or "passthrough".
        """
        if not self.axes:
            return None if self._suggest is None else self.estimator
        defaults = self.estimator.get_params(deep=True)
        inner = {}
        for name, axis in self.axes.items():
            estimators = [value for value in axis.values if hasattr(value, "fit")]
            if estimators and not hasattr(defaults.get(name), "fit"):
                inner[name] = estimators[0]
        return _with_clones(self.estimator, inner) if inner else self.estimator

    def suggest(self, trial: Any) -> dict[str, Any]:
        """Suggest the params of a trial, which are codes."""
        return {name: _naming(name, _code, trial, name, axis) for name, axis in self.axes.items()}

    def of_trial(self, trial: Any) -> Any:
        """Return the estimator of a trial for which a function suggests."""
        if self._suggest is None:
            return self.estimator(trial)
        return _with_clones(self.estimator, self._values(trial))

    def at(self, params: Mapping[str, Any], n_epochs: int | None = None) -> Candidate:
        """Return the estimator at the params of a trial.

        ``n_epochs`` is what the study says; the epochs of the trial take its place.
        """
        values = self.values_of(params)
        if self._has_epochs:
            n_epochs = values.pop("n_epochs", n_epochs)
        return _with_clones(self.estimator, values), n_epochs

    def values_of(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that the params of a trial mean."""
        if self._suggest is not None:
            return self._values(FixedTrial(dict(params)))
        if not self.axes:
            return dict(params)
        values = {name: params[name] for name in self.axes}
        values |= {name: axis.value_of(params[name]) for name, axis in self._lists.items()}
        return {name: value for name, value in values.items() if value is not NOT_SET}

    def candidate(self, params: Mapping[str, Any] | None) -> Candidate:
        """Return the estimator at values that a user gives, or as given where these are None."""
        if params is not None:
            return self._at_values(params, "params")
        if self.example is None:
            raise ValueError("params must be given where a callable makes the estimator.")
        return clone(self.example), 1 if self._has_epochs else None

    def candidate_of(self, trial: FrozenTrial, n_epochs: int | None, argument: str) -> Candidate:
        """Return what a trial that is over evaluated; errors begin with ``argument``."""
        for name, axis in self.axes.items():
            other = trial.distributions.get(name)
            if other is not None and not axis.has_codes_of(other):
                raise ValueError(
                    f"{argument} has {trial.params[name]!r} for {name!r}, from {other}, and "
                    f"this objective searches {axis.distribution}."
                )
        return self._at_values(trial.params, argument, not self.axes, n_epochs)

    def _at_values(
        self,
        given: Mapping[str, Any],
        argument: str,
        may_have_more: bool = False,
        n_epochs: int | None = None,
    ) -> Candidate:
        """Return the estimator at the values, or codes of values, that an argument gives."""
        if self.axes:
            unset = {
                name: NOT_SET
                for name, axis in self.axes.items()
                if name not in given and any(value is NOT_SET for value in axis.values)
            }
            given = {**given, **unset}
            _check_names(argument, given, self.axes)
            return self.at(codes_of(given, self.axes), n_epochs)
        trial = FixedTrial(dict(given))
        try:
            estimator = self.of_trial(trial)
        except ValueError as error:
            if (missing := _NOT_FOUND.search(str(error))) is None:
                raise
            raise _missing_value(argument, missing[1], given) from error
        if not may_have_more:
            _check_names(argument, given, trial.params)
        return estimator, n_epochs

    def _values(self, trial: Any) -> dict[str, Any]:
        """Return the values that a function suggests."""
        assert self._suggest is not None
        values = self._suggest(trial)
        if not isinstance(values, Mapping):
            raise ValueError(
                "param_distributions must be a function that returns a dict of the values of "
                f"parameters of {name_of(self.estimator)}, got {values!r}."
            )
        return dict(values)


def as_space(estimator: Any, param_distributions: Any, param_grid: Any) -> Space:
    """Return the space of ``treecv_objective``; refuse what does not fit the estimator."""
    if isinstance(estimator, Space):
        return estimator
    is_estimator = hasattr(estimator, "get_params") and not isinstance(estimator, type)
    if param_grid is not None:
        if param_distributions is not None:
            raise ValueError("param_grid must be None where param_distributions is given.")
        if not is_estimator:
            raise ValueError("param_grid must be None when estimator suggests for itself.")
        grids = _full_grids(param_grid, estimator)
        axes = {name: axis_of([v for grid in grids for v in grid[name]]) for name in grids[0]}
        in_codes: list[Grid] = [  # each code of a parameter once
            {name: list(dict.fromkeys(map(axes[name].code_of, grid[name]))) for name in grid}
            for grid in grids
        ]
        return Space(estimator, axes, in_codes)
    if is_estimator:
        if isinstance(param_distributions, str) and param_distributions == "auto":
            param_distributions = recommended_space(estimator)
        return Space(estimator, _axes_of(param_distributions, estimator))
    if not callable(estimator) or isinstance(estimator, type):
        raise ValueError(
            "estimator must be an estimator instance or a callable trial -> estimator, got "
            f"{estimator!r}."
        )
    if param_distributions is not None:
        raise ValueError(
            "param_distributions must be None when estimator is a callable, which suggests for "
            "itself."
        )
    return Space(estimator)


def _axes_of(distributions: Any, estimator: Any) -> dict[str, Axis]:
    """Return the axes of ``param_distributions``."""
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
    axes = {
        name: one if isinstance(one, Axis) else Axis(one) for name, one in distributions.items()
    }
    for name, axis in axes.items():
        if not isinstance(
            axis.distribution, FloatDistribution | IntDistribution | CategoricalDistribution
        ):
            raise ValueError(
                f"param_distributions: {name!r} must have a FloatDistribution, IntDistribution or "
                "CategoricalDistribution of optuna.distributions, got "
                f"{axis.distribution!r}."
            )
    lists = {name: axis.values for name, axis in axes.items()}
    _check_known("param_distributions", estimator, lists)
    return axes


def _full_grids(param_grid: Any, estimator: Any) -> list[Grid]:
    """Return ``param_grid`` as grids of the same parameters."""
    is_list = (
        isinstance(param_grid, Sequence) and len(param_grid) and not isinstance(param_grid, str)
    )
    grids: list[Grid] = []
    for grid in param_grid if is_list else [param_grid]:
        if not isinstance(grid, Mapping):
            raise ValueError(
                "param_grid must be a dict such as {'alpha': [0.01, 0.1, 1.0]}, or a list of such "
                f"dicts, got {grid!r}."
            )
        for name, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Collection | np.ndarray):
                raise ValueError(
                    f"param_grid: {name!r} must have a list of values, got {values!r}."
                )
            if not len(values):
                raise ValueError(f"param_grid: {name!r} must have at least one value.")
        grids.append({name: list(values) for name, values in grid.items()})
    names = list(dict.fromkeys(chain(*grids)))
    if not names:
        raise ValueError(f"param_grid must name at least one parameter, got {param_grid!r}.")
    for grid in grids:
        _check_known("param_grid", estimator, grid)
    defaults = {"n_epochs": [1]} | {k: [v] for k, v in estimator.get_params(deep=True).items()}
    return [in_full(grid, names, defaults, [NOT_SET]) for grid in grids]


def in_full(
    point: Mapping[str, Any],
    names: Iterable[str],
    defaults: Mapping[str, Any],
    not_set: Any = NOT_SET,
) -> dict[str, Any]:
    """Return a grid, or a point of one, with a value for each parameter of several grids.

    A parameter that the grid leaves out keeps the estimator's value. It is not set where the grid
    puts in another inner estimator, or the estimator lacks it.

    Parameters
    ----------
    point : dict
    names : iterable of str
        Those of all grids.
    defaults : dict
        The parameters of the estimator as given.
    not_set : Any
    """

    def value_elsewhere(name: str) -> Any:
        is_replaced = any(name.startswith(f"{outer}__") for outer in point)
        return not_set if is_replaced else defaults.get(name, not_set)

    return {name: point[name] if name in point else value_elsewhere(name) for name in names}


def codes_of(values: Mapping[str, Any], axes: Mapping[str, Axis]) -> dict[str, Any]:
    """Return the code of each parameter's value; errors name the parameter."""
    return {name: _naming(name, axis.code_of, values[name]) for name, axis in axes.items()}


def _check_known(argument: str, estimator: Any, lists: Mapping[str, Collection[Any]]) -> None:
    """Refuse names that are neither those of an estimator's parameters nor "n_epochs".

    ``lists`` are the values of each parameter, among which may be inner estimators with other
    parameters.
    """
    known = estimator.get_params(deep=True)
    for name in lists:
        outer = [other for other in lists if name.startswith(f"{other}__")]
        if (name in known and not outer) or name == "n_epochs":
            continue
        for inner in product(*(lists[other] for other in outer)):
            values = dict(zip(outer, inner, strict=True))
            changed = _with_clones(estimator, values) if outer else estimator
            try:  # it need not be a parameter
                _with_values(changed, {name: None})
            except (AttributeError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{argument}: {name_of(changed)} has no parameter {name!r}; it "
                    f"has {', '.join(changed.get_params(deep=True))}."
                ) from error


def _check_names(argument: str, given: Mapping[str, Any], wanted: Collection[str]) -> None:
    """Refuse parameter values whose names are not those of the search space."""
    for name in wanted:
        if name not in given:
            raise _missing_value(argument, name, given)
    for name in given:
        if name not in wanted:
            names = ", ".join(map(repr, wanted))
            raise ValueError(f"{argument} must hold {names} and nothing else, got {name!r} too.")


def _missing_value(argument: str, name: str, given: Mapping[str, Any]) -> ValueError:
    return ValueError(f"{argument} must hold a value for {name!r}, got only {dict(given)}.")


def _with_clones(estimator: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of an estimator with copies of values, of which some may be estimators."""
    return _with_values(estimator, {name: clone(one, safe=False) for name, one in values.items()})


def _with_values(estimator: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of an estimator with other values of some parameters.

    Steps of a Pipeline that no value reaches are not copied, since naming, comparing and copying
    them takes longer than many trials do; so they must not be fitted or changed.
    """
    if type(estimator) is not Pipeline:
        return clone(estimator).set_params(**values)
    reached = {name.partition("__")[0] for name in values}
    copied = copy(estimator)
    copied.steps = [
        (name, clone(step, safe=False) if name in reached else step)
        for name, step in estimator.steps
    ]
    return copied.set_params(**values)


def _naming(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns; its errors name the parameter."""
    try:
        return function(*arguments)
    except (OverflowError, TypeError, ValueError) as error:
        if name in str(error):
            raise
        raise ValueError(f"{name!r} cannot have this value: {error}") from error


def _code(trial: Any, name: str, axis: Axis) -> Any:
    """Ask a trial for a parameter, as OptunaSearchCV does through a private method."""
    one = axis.distribution
    if isinstance(one, FloatDistribution):
        value = trial.suggest_float(name, one.low, one.high, step=one.step, log=one.log)
    elif isinstance(one, IntDistribution):
        value = trial.suggest_int(name, one.low, one.high, step=one.step, log=one.log)
    else:
        assert isinstance(one, CategoricalDistribution)
        return axis.code_of(trial.suggest_categorical(name, one.choices))
    if isinstance(trial, Trial):
        return value
    return axis.code_of(value)  # a FixedTrial may have any other one
