"""Search spaces: the parameters of a search, and the estimators of its trials.

Optuna cannot store all parameter values, so trials store codes. An ``Axis`` maps the codes of one
parameter to its values; a ``Space`` has an axis for each parameter.
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
from optuna_treecv.estimators.checks import checked_clone
from optuna_treecv.study.recommended import recommended_space
from optuna_treecv.study.recommended import suggest_parameter
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque
from optuna_treecv.types import ParamValue

#: A grid: a list for each parameter, with its values or their codes (see ``Axis``).
Grid = dict[str, list[ParamValue]]

#: A value, or the possible values, of each parameter.
Params = Mapping[str, ParamValue]
Lists = Mapping[str, Collection[ParamValue]]

#: A function that suggests all parameters of a trial. A suggestion may depend on earlier ones.
Suggest = Callable[[BaseTrial], Params]

#: The types of the arguments ``param_distributions`` and ``param_grid``.
Distributions = Mapping[str, object] | Suggest | Literal["auto"] | None
Grids = Lists | Sequence[Lists] | None

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PLAIN_TYPES = (type(None), bool, int, float, str)
_OBJECT = object()  # stands for a value of any other type

# Trials store numbers as float64, which represents all integers up to this one exactly.
_LARGEST_INT = 2**53

# The address in the ``repr`` of a function, which differs between processes.
_ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")

# Strings that stand for values are truncated to this length.
_MAX_CHARACTERS = 60


#: The value of a parameter that does not exist at a grid point. It is pickled by name, so it is
#: the same object in all processes.
NOT_SET = Parameter.empty


class Axis:
    """A parameter of a search: the Optuna distribution of its codes, and the values of the codes.

    Optuna compares values by ``==``, so it cannot distinguish 1, 1.0 and True. It stores them as
    float64 or JSON, in which a tuple becomes a list. Therefore trials store a *code* in place of
    each value. The code is the value itself if it is a number, a string, a bool or None, and if no
    other value of the parameter is equal to it; otherwise it is a string. Estimators receive the
    value.

    Attributes
    ----------
    distribution : BaseDistribution
        The distribution of the codes.
    codes : tuple
        The codes of the values in a list; empty for an Optuna distribution.
    values : tuple
        The values in a list; empty for a range.
    ends : tuple
        The two ends of a range, or all values of a list.
    """

    def __init__(
        self, distribution: BaseDistribution, values: Mapping[ParamValue, ParamValue] | None = None
    ) -> None:
        self.distribution = distribution
        self._values = values  # values by code; None if the codes are the values
        pairs = {} if values is None else values
        self.codes = tuple(pairs)
        self.values: tuple[ParamValue, ...] = tuple(pairs.values())
        if values is None:
            self.values = getattr(distribution, "choices", ())
        self.ends = self.values
        if isinstance(distribution, IntDistribution | FloatDistribution):
            self.ends = distribution.low, distribution.high
        # Objects are identified by id. This is safe, because the axis keeps them alive.
        self._codes_of_objects = {id(value): code for code, value in pairs.items()}
        self._codes = {_identify(x): pair[0] for pair in pairs.items() for x in pair}

    def __reduce__(self) -> tuple[object, ...]:
        return Axis, (self.distribution, self._values)

    def code_of(self, value: ParamValue) -> ParamValue:
        """Return the code of a value; a code is returned unchanged.

        Raises
        ------
        ValueError
            If the value is not in the search space of the parameter.
        """
        distribution = self.distribution
        if not isinstance(distribution, CategoricalDistribution):
            code = distribution.to_external_repr(distribution.to_internal_repr(value))
            if code != value:
                kind = "an integer" if isinstance(code, int) else "a number"
                raise ValueError(f"it must be {kind}, got {value!r}.")
            return code
        if self._values is None:
            try:  # the first choice that equals the value, as Optuna stores it
                return distribution.to_external_repr(distribution.to_internal_repr(value))
            except (TypeError, ValueError):  # a copy of an object, which is equal to no choice
                return value
        if id(value) in self._codes_of_objects:
            return self._codes_of_objects[id(value)]
        if (text := _identify(value)) in self._codes:
            return self._codes[text]
        choices = ", ".join(map(repr, self._values))
        raise ValueError(f"it must be one of {choices}, got {value!r}.")

    def value_of(self, code: ParamValue) -> ParamValue:
        """Return the value of a code; a number that is no code is returned unchanged."""
        return code if self._values is None else self._values.get(code, code)

    def has_codes_of(self, other: BaseDistribution) -> bool:
        """Return whether all codes have the same values in the distribution of another trial."""
        distribution = self.distribution
        if self._values is None or not isinstance(distribution, CategoricalDistribution):
            return type(distribution) is type(other)
        codes = [*map(_identify, getattr(other, "choices", ()))]
        return codes == [*map(_identify, distribution.choices)]


def axis_of(values: Sequence[ParamValue], *, are_choices: bool = False) -> Axis:
    """Return the axis for a list of values.

    Parameters
    ----------
    values : sequence
    are_choices : bool
        Whether samplers may only draw values from the list. If False, a list of integers or floats
        becomes a range, from which samplers may draw other numbers.
    """
    distinct: dict[str, ParamValue] = {}
    for value in {id(v): v for v in values}.values():
        distinct.setdefault(_identify(value), value)
    plain = [_to_plain(value) for value in distinct.values()]
    distribution = None if are_choices else _range_of(plain)
    codes = _choices(plain, list(distinct)) if distribution is None else plain
    pairs = dict(zip(codes, distinct.values(), strict=True))
    return Axis(distribution or CategoricalDistribution(codes), pairs)


def _choices(plain: Sequence[ParamValue], texts: Sequence[str]) -> list[ParamValue]:
    """Return the codes of values: strings for objects and for values that equal another value."""
    counts = Counter(plain)
    counts[_OBJECT] = 2
    used = {x for x in plain if counts[x] == 1}
    codes = []
    for code, text in zip(plain, texts, strict=True):
        if counts[code] > 1:
            while text in used:  # the code of another value is the same string
                text = f"={text}"
            code = text
        codes.append(code)
    return codes


def _range_of(plain: Sequence[ParamValue]) -> BaseDistribution | None:
    """Return a range of integers or floats; None if the values cannot be their own codes."""
    types = {type(x) for x in plain}
    if len(set(plain)) < len(plain) or types not in ({int}, {float}):
        return None
    low, high = min(plain), max(plain)
    log = low > 0 and high > 100 * low
    if types == {int}:
        is_exact = max(-low, high) <= _LARGEST_INT
        return IntDistribution(low, high, log=log) if is_exact else None
    return FloatDistribution(low, high, log=log) if all(map(isfinite, plain)) else None


def _to_plain(value: ParamValue) -> ParamValue:
    """Convert NumPy scalars to Python objects, and values of other types to ``_OBJECT``.

    NaN is converted to ``_OBJECT``, because it is not equal to itself.
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        value = value.item()
    return value if type(value) in _PLAIN_TYPES and value == value else _OBJECT


def _identify(value: ParamValue) -> str:
    """Return a string that identifies a value and its type, and is the same in all processes."""
    if value is NOT_SET:
        return "not set"
    if isinstance(value, np.float64):  # it is also a Python float
        value = float(value)
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        return repr(value)
    if type(value) in _PLAIN_TYPES:
        return f"{type(value).__name__}({value!r})"
    text = " ".join(_ADDRESS.sub("", repr(value)).split())
    if _is_literal(value) and len(text) <= _MAX_CHARACTERS:
        return text
    # A key that is the same in all processes, if possible.
    name = first_key(value, lasting_key, encode) or os.urandom(16)
    return f"{text[:_MAX_CHARACTERS]} {digest(name).hex()[:12]}"


def _is_literal(value: ParamValue) -> bool:
    """Return whether a value's ``repr`` identifies it."""
    if type(value) is dict:
        return all(map(_is_literal, value)) and all(map(_is_literal, value.values()))
    return type(value) in _PLAIN_TYPES or (
        type(value) in (tuple, list) and all(map(_is_literal, value))
    )


# Spaces.

#: A candidate: an estimator and the number of epochs; None for the number in the settings.
Candidate = tuple[Estimator, int | None]

# The error message of FixedTrial and FrozenTrial for a parameter without a value.
_NOT_FOUND = re.compile("value of the parameter '(.+)' is not found")


class Space:
    """The search space of an objective.

    Parameters
    ----------
    estimator : estimator or callable
        The estimator whose parameters are searched, or a callable, (trial) -> estimator, that
        suggests the parameters.
    axes : dict of str to Axis, default=None
        The axis of each parameter; None if a function suggests the parameters.
    grids : list of dict, default=None
        The grids of ``param_grid``, with codes in place of values (see ``Axis``).
    suggest : callable, default=None
        (trial) -> dict of parameter values. A value may depend on others.

    Attributes
    ----------
    example : estimator or None
        An example of the estimators in the search, for checks before the first trial. It is the
        given estimator; if the search replaces an inner estimator that is None or "passthrough",
        it has one of the replacements. None if a callable creates the estimators.
    """

    def __init__(
        self,
        estimator: Estimator,
        axes: dict[str, Axis] | None = None,
        grids: list[Grid] | None = None,
        suggest: Suggest | None = None,
    ) -> None:
        is_estimator = axes is not None or suggest is not None
        # A copy, because the caller may change the given estimator.
        self.estimator = checked_clone(estimator) if is_estimator else estimator
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
        """Suggest the parameters of a trial, and return their codes."""
        return {
            name: _with_name(name, _suggest_code, trial, name, axis)
            for name, axis in self.axes.items()
        }

    def of_trial(self, trial: BaseTrial) -> Estimator:
        """Return the estimator of a trial if a function suggests the parameters."""
        if self._suggest is None:
            return self.estimator(trial)
        return _with_values(self.estimator, self._values(trial))

    def at(self, params: Params, n_epochs: int | None = None) -> Candidate:
        """Return the candidate for the params of a trial.

        ``n_epochs`` is used unless the number of epochs is among the searched parameters.
        """
        values = self.values_of(params)
        if self._has_epochs:
            n_epochs = values.pop("n_epochs", n_epochs)
        return _with_values(self.estimator, values), n_epochs

    def values_of(self, params: Params) -> dict[str, ParamValue]:
        """Return the parameter values of the estimator for the params of a trial."""
        if self._suggest is not None:
            return self._values(FixedTrial(dict(params)))
        if not self.axes:
            return dict(params)
        values = {name: axis.value_of(params[name]) for name, axis in self.axes.items()}
        return {name: value for name, value in values.items() if value is not NOT_SET}

    def candidate(self, params: Params | None) -> Candidate:
        """Return the candidate for a user's values; if None, for the estimator as given."""
        if params is not None:
            return self._at_values(params, "params", may_have_more=False, n_epochs=None)
        if self.example is None:
            raise ValueError(
                "params must be given if a callable creates the estimators, got None."
            )
        return clone(self.example), 1 if self._has_epochs else None

    def candidate_of(self, trial: FrozenTrial, n_epochs: int | None, argument: str) -> Candidate:
        """Return the candidate of a finished trial; error messages start with ``argument``."""
        for name, axis in self.axes.items():
            other = trial.distributions.get(name)
            if other is not None and not axis.has_codes_of(other):
                raise ValueError(
                    f"{argument} has {name}={trial.params[name]!r} from the distribution {other}, "
                    f"but this objective searches {axis.distribution}."
                )
        return self._at_values(trial.params, argument, not self.axes, n_epochs)

    def has_point(self, values: Params) -> bool:
        """Return whether parameter codes are a point of one of the grids."""
        return any(_is_point_of(grid, values) for grid in self.grids or ())

    def points_beside(
        self, values: Params, lanes: Collection[str]
    ) -> Iterator[tuple[ParamValue, ...]]:
        """Yield the grid points that differ from a point only in the parameters ``lanes``."""
        for grid in self.grids or () if self.has_point(values) else ():
            axes = {name: axis if name in lanes else [values[name]] for name, axis in grid.items()}
            if _is_point_of({name: grid[name] for name in grid if name not in lanes}, values):
                yield from product(*axes.values())

    def _at_values(
        self, values: Params, argument: str, may_have_more: bool, n_epochs: int | None
    ) -> Candidate:
        """Return the candidate for the values, or codes of values, of an argument."""
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
                check_given(argument, values, [missing[1]])  # raises a better error
            raise
        check_given(argument, values, trial.params, may_have_more)
        return estimator, n_epochs

    def _values(self, trial: BaseTrial) -> dict[str, ParamValue]:
        """Return the parameter values that a function suggests."""
        assert self._suggest is not None
        values = self._suggest(trial)
        if not isinstance(values, Mapping):
            raise ValueError(
                "the callable param_distributions must return a dict of parameter values for "
                f"{name_of(self.estimator)}, got {values!r}."
            )
        return dict(values)


def _is_point_of(grid: Grid, values: Params) -> bool:
    return all(values[name] in codes for name, codes in grid.items())


def as_space(estimator: Estimator, param_distributions: Distributions, param_grid: Grids) -> Space:
    """Check the arguments of ``treecv_objective`` and return the search space."""
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
        in_codes: list[Grid] = [  # each code only once
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
            "estimator must be an estimator instance or a callable, (trial) -> estimator, got "
            f"{estimator!r}."
        )
    if param_distributions is not None:
        raise ValueError(
            "param_distributions must be None if estimator is a callable, because the callable "
            "suggests the parameters."
        )
    return Space(estimator)


_EXPECTED = (
    "a list of values, a distribution of optuna.distributions, or uniform, loguniform or randint "
    "of scipy.stats"
)


def _axes_of(distributions: Distributions, estimator: Estimator) -> dict[str, Axis]:
    """Return the axis of each parameter in ``param_distributions``."""
    if distributions is not None and not isinstance(distributions, Mapping):
        raise ValueError(
            "param_distributions must be a dict such as "
            f"{{{suggest_parameter(estimator)!r}: loguniform(...)}} or 'auto', got "
            f"{distributions!r}."
        )
    if not distributions:
        raise ValueError(
            "param_distributions must name at least one parameter to search, such as "
            f"{{{suggest_parameter(estimator)!r}: ...}}, if param_grid is None."
        )
    axes = {name: _axis_from(name, d) for name, d in distributions.items()}
    lists = {name: axis.values for name, axis in axes.items()}
    _check_known("param_distributions", estimator, lists)
    return axes


def _axis_from(name: str, values: object) -> Axis:
    """Return the axis for an entry of ``param_distributions``."""
    if isinstance(values, FloatDistribution | IntDistribution):
        return Axis(values)
    if isinstance(values, CategoricalDistribution):
        are_plain = _OBJECT not in map(_to_plain, values.choices)
        return Axis(values) if are_plain else axis_of(values.choices, are_choices=True)
    if hasattr(values, "dist") and hasattr(values, "support"):
        return Axis(_from_scipy(name, values))
    if isinstance(values, list | tuple | np.ndarray) and len(values):
        return axis_of(list(values), are_choices=True)
    raise ValueError(f"param_distributions[{name!r}] must be {_EXPECTED}, got {values!r}.")


def _from_scipy(name: str, frozen: Opaque) -> BaseDistribution:
    """Convert a frozen SciPy distribution to an Optuna distribution."""
    kind = frozen.dist.name
    low, high = map(float, frozen.support())
    if isfinite(low) and isfinite(high):
        if kind == "uniform":
            return FloatDistribution(low, high)
        if kind == "randint":
            return IntDistribution(int(low), int(high))
        # With ``loc``, the logarithm of the value is not uniformly distributed.
        is_plain = low > 0 and isclose(float(frozen.median()), sqrt(low * high))
        if kind in ("loguniform", "reciprocal") and is_plain:
            return FloatDistribution(low, high, log=True)
    raise ValueError(
        f"param_distributions[{name!r}] must be {_EXPECTED}, got scipy.stats.{kind}{frozen.args} "
        f"with {frozen.kwds}."
    )


def _full_grids(param_grid: Opaque, estimator: Estimator) -> list[Grid]:
    """Return ``param_grid`` as a list of grids with the same parameters."""
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
                raise ValueError(f"param_grid[{name!r}] must be a list of values, got {values!r}.")
            if not len(values):
                raise ValueError(f"param_grid[{name!r}] must have at least one value.")
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
    """Add the missing parameters of other grids to a grid or a grid point.

    A parameter that the grid omits keeps the estimator's value. It is ``NOT_SET`` if the grid
    replaces the inner estimator to which it belongs, or if the estimator does not have it.

    Parameters
    ----------
    point : dict
    names : iterable of str
        The parameters of all grids.
    defaults : dict
        The parameter values of the estimator as given.
    not_set : object
    """
    full = {}
    for name in names:
        is_replaced = any(name.startswith(f"{outer}__") for outer in point)
        default = not_set if is_replaced else defaults.get(name, not_set)
        full[name] = point.get(name, default)
    return full


def codes_of(values: Params, axes: Mapping[str, Axis]) -> dict[str, ParamValue]:
    """Return the code of each parameter value. Error messages contain the parameter's name."""
    return {name: _with_name(name, axis.code_of, values[name]) for name, axis in axes.items()}


def _check_known(argument: str, estimator: Estimator, lists: Lists) -> None:
    """Raise ValueError if a name is neither a parameter of an estimator nor "n_epochs".

    ``lists`` has the values of each parameter. They may be inner estimators, which have other
    parameters than the inner estimator that they replace.
    """
    params = estimator.get_params(deep=True)
    for name in lists:
        outer = [other for other in lists if name.startswith(f"{other}__")]
        if (name in params and not outer) or name == "n_epochs":
            continue
        for inner in product(*(lists[other] for other in outer)):
            values = dict(zip(outer, inner, strict=True))
            changed = _with_values(estimator, values) if outer else estimator
            try:  # set_params may accept names that get_params does not return
                _with_values(changed, {name: None})
            except (AttributeError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{argument}: {name_of(changed)} has no parameter {name!r}; it "
                    f"has {', '.join(changed.get_params(deep=True))}."
                ) from error


def check_given(
    argument: str, values: Params, names: Collection[str], may_have_more: bool = True
) -> None:
    """Raise ValueError unless ``values`` is a dict with a value for each of the ``names``."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{argument} must be a dict of parameter values, got {values!r}.")
    for name in names:
        if name not in values:
            raise ValueError(
                f"{argument} must have a value for {name!r}, got only {dict(values)}."
            )
    for name in values:
        if name not in names and not may_have_more:
            names = ", ".join(map(repr, names))
            raise ValueError(f"{argument} must have no value for {name!r}, only for {names}.")


def _with_values(estimator: Estimator, values: Params) -> Estimator:
    """Return a copy of an estimator, with parameters set to copies of values.

    Steps of a Pipeline that no value changes are not copied, because copying, hashing and
    comparing them can take longer than a trial. Therefore they must not be fitted or changed.
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


def _with_name(name: str, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call a function and add the name of a parameter to its error messages."""
    try:
        return function(*arguments)
    except (OverflowError, TypeError, ValueError) as error:
        if name in str(error):
            raise
        raise ValueError(f"{name!r} cannot have this value: {error}") from error


def _suggest_code(trial: BaseTrial, name: str, axis: Axis) -> ParamValue:
    """Suggest a parameter for a trial and return its code."""
    distribution: Opaque = axis.distribution
    if isinstance(distribution, CategoricalDistribution):
        try:
            return axis.code_of(trial.suggest_categorical(name, distribution.choices))
        except ValueError:
            if not isinstance(trial, FixedTrial):
                raise
            # The trial stores a value, not a code.
            return axis.code_of(trial.suggest_categorical(name, axis.values))
    suggest = (
        trial.suggest_float if isinstance(distribution, FloatDistribution) else trial.suggest_int
    )
    value = suggest(
        name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
    )
    # A FixedTrial may have any value.
    return value if isinstance(trial, Trial) else axis.code_of(value)
