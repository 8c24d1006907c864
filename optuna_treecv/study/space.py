"""Search spaces: the parameters that a search varies, and the estimators of trials.

Trials store codes. An ``Axis`` maps the codes of a parameter to values, and a ``Space`` has the
axes of all parameters.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from copy import copy
from inspect import Parameter
from itertools import chain
from itertools import product
from math import isclose
from math import isfinite
from math import sqrt
import os
import re
from typing import Literal
from typing import TypeVar
from typing import TypeVarTuple

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.trial import BaseTrial
from optuna.trial import FixedTrial
from optuna.trial import FrozenTrial
from optuna.trial import Trial
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.estimators.base import name_of
from optuna_treecv.study.recommended import recommended_space
from optuna_treecv.study.recommended import suggest_parameter
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque
from optuna_treecv.types import ParamValue

#: A grid: the values of each parameter, or their codes (``Axis``).
Grid = dict[str, list[ParamValue]]

#: By parameter: its value, or its possible values.
Params = Mapping[str, ParamValue]
Lists = Mapping[str, Collection[ParamValue]]

#: Suggests all params of a trial, some of which may depend on others.
Suggest = Callable[[BaseTrial], Params]

#: ``param_distributions`` and ``param_grid``.
Distributions = Mapping[str, object] | Suggest | Literal["auto"] | None
Grids = Lists | Sequence[Lists] | None

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PLAIN = (type(None), bool, int, float, str)
_OBJECT = object()  # stands for a value of any other type

# A trial stores a number as float64, which holds all integers up to this one.
_LARGEST_INT = 2**53

# The part of a function's ``repr`` that differs between processes.
_ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")

# Longer texts of values are truncated.
_MOST_CHARACTERS = 60


#: The placeholder of a parameter at points that do not have it. It is pickled by its name, so that
#: it is the same object in each process.
NOT_SET = Parameter.empty


class Axis:
    """One parameter of a search: its Optuna distribution of codes, and the values of the codes.

    Optuna compares values by ``==``, by which 1, 1.0 and True are one value, and stores them as
    float64 or JSON, in which a tuple becomes a list. So trials store a *code* for each value: the
    value itself if it is a number, a string, a bool or None and no other value of the parameter
    equals it, and otherwise a text. Estimators get the value.

    Attributes
    ----------
    distribution : BaseDistribution
        The distribution of the codes.
    codes : tuple
        The codes of the values in a list; empty for a range of Optuna.
    values : tuple
        The values of a list; empty for a range.
    ends : tuple
        The ends of a range, or all values.
    """

    def __init__(
        self, distribution: BaseDistribution, values: Mapping[ParamValue, ParamValue] | None = None
    ) -> None:
        self.distribution = distribution
        self._values = values  # by their codes; None: codes are values
        pairs = {} if values is None else values
        self.codes = tuple(pairs)
        self.values: tuple[ParamValue, ...] = tuple(pairs.values())
        if values is None:
            self.values = getattr(distribution, "choices", ())
        self.ends = self.values
        if isinstance(distribution, IntDistribution | FloatDistribution):
            self.ends = distribution.low, distribution.high
        # The objects live as long as this axis, so that no other object gets their ids.
        self._codes_of_objects = {id(value): code for code, value in pairs.items()}
        self._codes = {_text(x): pair[0] for pair in pairs.items() for x in pair}

    def __reduce__(self) -> tuple[object, ...]:
        return Axis, (self.distribution, self._values)

    def code_of(self, value: ParamValue) -> ParamValue:
        """Return the code of a value; return codes unchanged.

        Raises
        ------
        ValueError
            If the parameter cannot have this value.
        """
        distribution = self.distribution
        if not isinstance(distribution, CategoricalDistribution):
            code = distribution.to_external_repr(distribution.to_internal_repr(value))
            if code != value:
                kind = "an integer" if isinstance(code, int) else "a number"
                raise ValueError(f"it must be {kind}, got {value!r}.")
            return code
        if self._values is None:
            try:  # the first choice that equals the value, which is the one that Optuna stores
                return distribution.to_external_repr(distribution.to_internal_repr(value))
            except (TypeError, ValueError):  # a copy of an object, which equals no choice
                return value
        if id(value) in self._codes_of_objects:
            return self._codes_of_objects[id(value)]
        if (text := _text(value)) in self._codes:
            return self._codes[text]
        choices = ", ".join(map(repr, self._values))
        raise ValueError(f"it must be one of {choices}, got {value!r}.")

    def value_of(self, code: ParamValue) -> ParamValue:
        """Return the value of a code; numbers off a grid are values."""
        return code if self._values is None else self._values.get(code, code)

    def has_codes_of(self, other: BaseDistribution) -> bool:
        """Return whether each code stands for the same value in another distribution."""
        distribution = self.distribution
        if self._values is None or not isinstance(distribution, CategoricalDistribution):
            return type(distribution) is type(other)
        codes = [*map(_text, getattr(other, "choices", ()))]
        return codes == [*map(_text, distribution.choices)]


def axis_of(values: Sequence[ParamValue], *, are_choices: bool = False) -> Axis:
    """Return the axis of the values in a list.

    Parameters
    ----------
    values : sequence
    are_choices : bool
        Whether samplers draw from the list. Otherwise they may draw other numbers, if all values
        are integers or all are floats.
    """
    distinct: dict[str, ParamValue] = {}
    for value in {id(v): v for v in values}.values():
        distinct.setdefault(_text(value), value)
    plain = [_plain(value) for value in distinct.values()]
    distribution = None if are_choices else _range_of(plain)
    codes = _choices(plain, list(distinct)) if distribution is None else plain
    pairs = dict(zip(codes, distinct.values(), strict=True))
    return Axis(distribution or CategoricalDistribution(codes), pairs)


def _choices(plain: Sequence[ParamValue], texts: Sequence[str]) -> list[ParamValue]:
    """Return the codes of values: texts for objects and for values that equal another one."""
    times = Counter(plain)
    times[_OBJECT] = 2
    taken = {x for x in plain if times[x] == 1}
    codes = []
    for code, text in zip(plain, texts, strict=True):
        if times[code] > 1:
            while text in taken:  # it equals a string of the list
                text = f"={text}"
            code = text
        codes.append(code)
    return codes


def _range_of(plain: Sequence[ParamValue]) -> BaseDistribution | None:
    """Return a range of integers, or of floats, in which each number is its own code."""
    kinds = {type(x) for x in plain}
    if len(set(plain)) < len(plain) or kinds not in ({int}, {float}):
        return None
    low, high = min(plain), max(plain)
    log = low > 0 and high > 100 * low
    if kinds == {int}:
        is_exact = max(-low, high) <= _LARGEST_INT
        return IntDistribution(low, high, log=log) if is_exact else None
    return FloatDistribution(low, high, log=log) if all(map(isfinite, plain)) else None


def _plain(value: ParamValue) -> ParamValue:
    """Return a number, string, bool or None as a Python object, and ``_OBJECT`` for other values.

    NaN counts as an object, because it does not equal itself.
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        value = value.item()
    return value if type(value) in _PLAIN and value == value else _OBJECT


def _text(value: ParamValue) -> str:
    """Return a text that identifies a value and its type, equal in all processes."""
    if value is NOT_SET:
        return "not set"
    if isinstance(value, np.float64):  # a float of Python too
        value = float(value)
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        return repr(value)
    if type(value) in _PLAIN:
        return f"{type(value).__name__}({value!r})"
    text = " ".join(_ADDRESS.sub("", repr(value)).split())
    if _is_literal(value) and len(text) <= _MOST_CHARACTERS:
        return text
    # A key that later processes share, if there is one.
    name = first_key(value, lasting_key, encode) or os.urandom(16)
    return f"{text[:_MOST_CHARACTERS]} {digest(name).hex()[:12]}"


def _is_literal(value: ParamValue) -> bool:
    """Return whether a value's ``repr`` identifies it."""
    if type(value) is dict:
        return all(map(_is_literal, value)) and all(map(_is_literal, value.values()))
    return type(value) in _PLAIN or (type(value) in (tuple, list) and all(map(_is_literal, value)))


# Spaces.

#: The candidate of a trial: an estimator, and the epochs of the trial or of its study; None: the
#: epochs of the settings.
Candidate = tuple[Estimator, int | None]

# The error of FixedTrial and FrozenTrial when they have no value for a parameter.
_NOT_FOUND = re.compile("value of the parameter '(.+)' is not found")


class Space:
    """The parameters that a search varies.

    Parameters
    ----------
    estimator : estimator or callable
        A callable, (trial) -> estimator, suggests parameters itself.
    axes : dict of str to Axis, default=None
        None if a function suggests parameters.
    grids : list of dict, default=None
        The grids of ``param_grid``, in codes (``Axis``).
    suggest : callable, default=None
        (trial) -> dict of parameters to values, some of which may depend on others.

    Attributes
    ----------
    example : estimator or None
        The estimator by which the search is checked: as given, but with an inner estimator if the
        search puts one in place of None or "passthrough". None if a callable makes the estimators.
    """

    def __init__(
        self,
        estimator: Estimator,
        axes: dict[str, Axis] | None = None,
        grids: list[Grid] | None = None,
        suggest: Suggest | None = None,
    ) -> None:
        is_estimator = axes is not None or suggest is not None
        # The caller may change the given estimator.
        self.estimator = clone(estimator) if is_estimator else estimator
        self.axes = axes or {}
        self.grids = grids
        self._suggest = suggest
        self._has_epochs = "n_epochs" in self.axes and not hasattr(estimator, "n_epochs")
        self.example = self.estimator if is_estimator else None
        inner = {}
        for name, axis in self.axes.items():
            estimators = [value for value in axis.values if hasattr(value, "fit")]
            if estimators and not hasattr(self.estimator.get_params().get(name), "fit"):
                inner[name] = estimators[0]
        if inner:
            self.example = _with_values(self.estimator, inner)

    def suggest(self, trial: BaseTrial) -> dict[str, ParamValue]:
        """Suggest the params of a trial, as codes."""
        return {name: _naming(name, _code, trial, name, axis) for name, axis in self.axes.items()}

    def of_trial(self, trial: BaseTrial) -> Estimator:
        """Return the estimator of a trial whose parameters a function suggests."""
        if self._suggest is None:
            return self.estimator(trial)
        return _with_values(self.estimator, self._values(trial))

    def at(self, params: Params, n_epochs: int | None = None) -> Candidate:
        """Return the candidate at the params of a trial.

        ``n_epochs`` are the epochs of the study, unless the trial has a value for them.
        """
        values = self.values_of(params)
        if self._has_epochs:
            n_epochs = values.pop("n_epochs", n_epochs)
        return _with_values(self.estimator, values), n_epochs

    def values_of(self, params: Params) -> dict[str, ParamValue]:
        """Return the values of the params of a trial."""
        if self._suggest is not None:
            return self._values(FixedTrial(dict(params)))
        if not self.axes:
            return dict(params)
        values = {name: axis.value_of(params[name]) for name, axis in self.axes.items()}
        return {name: value for name, value in values.items() if value is not NOT_SET}

    def candidate(self, params: Params | None) -> Candidate:
        """Return the candidate at values that a user gives; None: the estimator as given."""
        if params is not None:
            return self._at_values(params, "params", may_have_more=False, n_epochs=None)
        if self.example is None:
            raise ValueError("params must be given if a callable makes the estimator, got None.")
        return clone(self.example), 1 if self._has_epochs else None

    def candidate_of(self, trial: FrozenTrial, n_epochs: int | None, argument: str) -> Candidate:
        """Return the candidate that a finished trial evaluated; errors begin with ``argument``."""
        for name, axis in self.axes.items():
            other = trial.distributions.get(name)
            if other is not None and not axis.has_codes_of(other):
                raise ValueError(
                    f"{argument} has {name}={trial.params[name]!r}, from {other}, but this "
                    f"objective searches {axis.distribution}."
                )
        return self._at_values(trial.params, argument, not self.axes, n_epochs)

    def has_point(self, values: Params) -> bool:
        """Return whether params are a point of a grid."""
        return any(_is_point_of(grid, values) for grid in self.grids or ())

    def points_beside(
        self, values: Params, lanes: Collection[str]
    ) -> Iterator[tuple[ParamValue, ...]]:
        """Yield the points of the grids that differ from a point only in ``lanes``."""
        for grid in self.grids or () if self.has_point(values) else ():
            axes = {name: axis if name in lanes else [values[name]] for name, axis in grid.items()}
            if _is_point_of({name: grid[name] for name in grid if name not in lanes}, values):
                yield from product(*axes.values())

    def _at_values(
        self, values: Params, argument: str, may_have_more: bool, n_epochs: int | None
    ) -> Candidate:
        """Return the candidate at the values, or codes of values, of an argument."""
        if self.axes:
            unset = {
                name: NOT_SET
                for name, axis in self.axes.items()
                if name not in values and any(value is NOT_SET for value in axis.values)
            }
            values = {**values, **unset}
            check_given(argument, values, self.axes, may_have_more=False)
            return self.at(codes_of(values, self.axes), n_epochs)
        trial = FixedTrial(dict(values))
        try:
            estimator = self.of_trial(trial)
        except ValueError as error:
            if missing := _NOT_FOUND.search(str(error)):
                check_given(argument, values, [missing[1]])  # raises our error
            raise
        check_given(argument, values, trial.params, may_have_more)
        return estimator, n_epochs

    def _values(self, trial: BaseTrial) -> dict[str, ParamValue]:
        """Return the values that a function suggests."""
        assert self._suggest is not None
        values = self._suggest(trial)
        if not isinstance(values, Mapping):
            raise ValueError(
                "param_distributions must be a function that returns a dict of the values of "
                f"parameters of {name_of(self.estimator)}, got {values!r}."
            )
        return dict(values)


def _is_point_of(grid: Grid, values: Params) -> bool:
    return all(values[name] in codes for name, codes in grid.items())


def as_space(estimator: Estimator, param_distributions: Distributions, param_grid: Grids) -> Space:
    """Return the space of ``treecv_objective``; refuse arguments that do not fit the estimator."""
    if isinstance(estimator, Space):
        return estimator
    is_estimator = hasattr(estimator, "get_params") and not isinstance(estimator, type)
    if param_grid is not None:
        if param_distributions is not None:
            raise ValueError("param_grid must be None if param_distributions is given.")
        if not is_estimator:
            raise ValueError("param_grid must be None if estimator is a callable.")
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
            "param_distributions must be None if estimator is a callable, which suggests its "
            "parameters itself."
        )
    return Space(estimator)


_EXPECTED = (
    "a distribution of optuna.distributions, uniform, loguniform or randint of scipy.stats, or a "
    "list of values"
)


def _axes_of(distributions: Distributions, estimator: Estimator) -> dict[str, Axis]:
    """Return the axes of ``param_distributions``."""
    if distributions is not None and not isinstance(distributions, Mapping):
        raise ValueError(
            "param_distributions must be a dict such as "
            f"{{{suggest_parameter(estimator)!r}: loguniform(...)}} or 'auto', got "
            f"{distributions!r}."
        )
    if not distributions:
        raise ValueError(
            "param_distributions must name at least one parameter to search, such as "
            f"{{{suggest_parameter(estimator)!r}: ...}}, if there is no param_grid."
        )
    axes = {name: _axis_from(name, d) for name, d in distributions.items()}
    lists = {name: axis.values for name, axis in axes.items()}
    _check_known("param_distributions", estimator, lists)
    return axes


def _axis_from(name: str, values: object) -> Axis:
    """Return the axis of a parameter's distribution, or of a list of values to draw from."""
    if isinstance(values, FloatDistribution | IntDistribution):
        return Axis(values)
    if isinstance(values, CategoricalDistribution):
        are_plain = _OBJECT not in map(_plain, values.choices)
        return Axis(values) if are_plain else axis_of(values.choices, are_choices=True)
    if hasattr(values, "dist") and hasattr(values, "support"):
        return Axis(_from_scipy(name, values))
    if isinstance(values, list | tuple | np.ndarray) and len(values):
        return axis_of(list(values), are_choices=True)
    raise ValueError(f"param_distributions: {name!r} must have {_EXPECTED}, got {values!r}.")


def _from_scipy(name: str, frozen: Opaque) -> BaseDistribution:
    """Convert a frozen distribution of SciPy to one of Optuna."""
    kind = frozen.dist.name
    low, high = map(float, frozen.support())
    if isfinite(low) and isfinite(high):
        if kind == "uniform":
            return FloatDistribution(low, high)
        if kind == "randint":
            return IntDistribution(int(low), int(high))
        # A distribution that is shifted by ``loc`` is not uniform in the logarithm.
        is_plain = low > 0 and isclose(float(frozen.median()), sqrt(low * high))
        if kind in ("loguniform", "reciprocal") and is_plain:
            return FloatDistribution(low, high, log=True)
    raise ValueError(
        f"param_distributions: {name!r} must have {_EXPECTED}, got scipy.stats.{kind}"
        f"{frozen.args} with {frozen.kwds}."
    )


def _full_grids(param_grid: Opaque, estimator: Estimator) -> list[Grid]:
    """Return ``param_grid`` as grids of the same parameters."""
    is_list = isinstance(param_grid, Sequence) and param_grid and not isinstance(param_grid, str)
    grids: list[Grid] = []
    for grid in param_grid if is_list else [param_grid]:
        if not isinstance(grid, Mapping):
            raise ValueError(
                f"param_grid must be a dict such as {{{suggest_parameter(estimator)!r}: [...]}}, "
                f"or a list of such dicts, got {grid!r}."
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
    point: Params, names: Iterable[str], defaults: Params, not_set: ParamValue = NOT_SET
) -> dict[str, ParamValue]:
    """Return a grid, or a point of one, completed with the parameters of all grids.

    A parameter that the grid omits keeps the estimator's value. It is not set if the grid replaces
    the inner estimator, or the estimator lacks it.

    Parameters
    ----------
    point : dict
    names : iterable of str
        The parameters of all grids.
    defaults : dict
        The parameters of the estimator as given.
    not_set : object
    """
    full = {}
    for name in names:
        is_replaced = any(name.startswith(f"{outer}__") for outer in point)
        default = not_set if is_replaced else defaults.get(name, not_set)
        full[name] = point.get(name, default)
    return full


def codes_of(values: Params, axes: Mapping[str, Axis]) -> dict[str, ParamValue]:
    """Return the code of each parameter's value; errors name the parameter."""
    return {name: _naming(name, axis.code_of, values[name]) for name, axis in axes.items()}


def _check_known(argument: str, estimator: Estimator, lists: Lists) -> None:
    """Refuse names that are neither parameters of an estimator nor "n_epochs".

    ``lists`` are the values of each parameter, which may include inner estimators with other
    parameters.
    """
    params = estimator.get_params(deep=True)
    for name in lists:
        outer = [other for other in lists if name.startswith(f"{other}__")]
        if (name in params and not outer) or name == "n_epochs":
            continue
        for inner in product(*(lists[other] for other in outer)):
            values = dict(zip(outer, inner, strict=True))
            changed = _with_values(estimator, values) if outer else estimator
            try:  # set_params may accept names that get_params lacks
                _with_values(changed, {name: None})
            except (AttributeError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{argument}: {name_of(changed)} has no parameter {name!r}; it "
                    f"has {', '.join(changed.get_params(deep=True))}."
                ) from error


def check_given(
    argument: str, values: Params, wanted: Collection[str], may_have_more: bool = True
) -> None:
    """Refuse anything but a dict with a value for each wanted parameter."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{argument} must be a dict of parameter values, got {values!r}.")
    for name in wanted:
        if name not in values:
            raise ValueError(
                f"{argument} must have a value for {name!r}, got only {dict(values)}."
            )
    for name in values:
        if name not in wanted and not may_have_more:
            names = ", ".join(map(repr, wanted))
            raise ValueError(f"{argument} must have values for {names} alone, got {name!r} too.")


def _with_values(estimator: Estimator, values: Params) -> Estimator:
    """Return a copy of an estimator with copies of values, some of which may be estimators.

    Steps of a Pipeline that no value reaches are not copied, because hashing, comparing and
    copying them takes longer than many trials; so they must not be fitted or changed.
    """
    values = {name: clone(value, safe=False) for name, value in values.items()}
    if type(estimator) is not Pipeline:
        return clone(estimator).set_params(**values)
    step_names = {name.partition("__")[0] for name in values}
    copied = copy(estimator)
    copied.steps = [
        (name, clone(step, safe=False) if name in step_names else step)
        for name, step in estimator.steps
    ]
    return copied.set_params(**values)


def _naming(name: str, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call a function, and add the parameter's name to its errors."""
    try:
        return function(*arguments)
    except (OverflowError, TypeError, ValueError) as error:
        if name in str(error):
            raise
        raise ValueError(f"{name!r} cannot have this value: {error}") from error


def _code(trial: BaseTrial, name: str, axis: Axis) -> ParamValue:
    """Suggest a parameter by a trial, and return its code."""
    dist: Opaque = axis.distribution
    if isinstance(dist, CategoricalDistribution):
        try:
            return axis.code_of(trial.suggest_categorical(name, dist.choices))
        except ValueError:
            if not isinstance(trial, FixedTrial):
                raise
            return axis.code_of(trial.suggest_categorical(name, axis.values))  # it has a value
    suggest = trial.suggest_float if isinstance(dist, FloatDistribution) else trial.suggest_int
    value = suggest(name, dist.low, dist.high, step=dist.step, log=dist.log)
    # A FixedTrial may have any other value.
    return value if isinstance(trial, Trial) else axis.code_of(value)
