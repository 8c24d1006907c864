"""The values of a parameter, and the codes by which Optuna's trials know them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence
from math import isfinite
import os
import re
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution

from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey

_PLAIN = (type(None), bool, int, float, str)
_OBJECT = object()  # what a value is that is none of these

# A trial stores a number as float64, which holds all integers up to this one.
_LARGEST_INT = 2**53

# What ``repr`` of functions says of this process alone.
_ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")

# Longer texts of values are cut.
_MOST_CHARACTERS = 60


class _NotSet:
    """What stands for a parameter that only some points of a search have."""

    def __reduce__(self) -> str:
        return "NOT_SET"

    def __repr__(self) -> str:
        return "not set"


NOT_SET = _NotSet()


class Axis:
    """One parameter of a search: its Optuna distribution, and the values that its codes mean.

    Optuna compares values by ``==``, where 1, 1.0 and True are one value, and stores them as
    float64 or JSON, where a tuple becomes a list. So trials hold a *code* for each value: the
    value itself if it is a number, a string, a bool or None and no other value of the parameter
    equals it, and else a text. Estimators get the value.

    Attributes
    ----------
    distribution : BaseDistribution
        Of the codes.
    """

    def __init__(
        self, distribution: BaseDistribution, values: Mapping[Any, Any] | None = None
    ) -> None:
        self.distribution = distribution
        self._values = values  # by their codes; None: codes mean themselves
        pairs = {} if values is None else values
        # The objects live as long as this axis, so that no other one gets their ids.
        self._codes_of_objects = {id(value): code for code, value in pairs.items()}
        self._codes = {_text(one): pair[0] for pair in pairs.items() for one in pair}

    def __reduce__(self) -> tuple[Any, ...]:
        return Axis, (self.distribution, self._values)

    def code_of(self, value: Any) -> Any:
        """Return the code of a value, which may be a code itself.

        Raises
        ------
        ValueError
            If the parameter cannot have this value.
        """
        if not isinstance(self.distribution, CategoricalDistribution):
            code = self.distribution.to_external_repr(self.distribution.to_internal_repr(value))
            if code != value:
                kind = "an integer" if isinstance(code, int) else "a number"
                raise ValueError(f"it must be {kind}, got {value!r}.")
            return code
        if self._values is None:
            try:  # the first choice that equals the value, which is the one that Optuna stores
                return self.distribution.to_external_repr(
                    self.distribution.to_internal_repr(value)
                )
            except (TypeError, ValueError):  # a copy of an object, which equals no choice
                return value
        if id(value) in self._codes_of_objects:
            return self._codes_of_objects[id(value)]
        if (text := _text(value)) in self._codes:
            return self._codes[text]
        known = ", ".join(map(repr, self._values))
        raise ValueError(f"it must be one of {known}, got {value!r}.")

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of a list; empty for a range."""
        if self._values is not None:
            return tuple(self._values.values())
        return tuple(getattr(self.distribution, "choices", ()))

    def value_of(self, code: Any) -> Any:
        """Return the value that a code means; numbers off a grid mean themselves."""
        return code if self._values is None else self._values.get(code, code)

    @property
    def codes(self) -> tuple[Any, ...]:
        """The codes of the values in a list; none of a range."""
        return tuple(self._values or ())

    def ends(self) -> tuple[Any, ...]:
        """Return the ends of a range, or all values."""
        if isinstance(self.distribution, IntDistribution | FloatDistribution):
            return self.distribution.low, self.distribution.high
        assert isinstance(self.distribution, CategoricalDistribution)
        return tuple(map(self.value_of, self.distribution.choices))

    def has_codes_of(self, other: BaseDistribution) -> bool:
        """Return whether a trial with another distribution means the same by its codes."""
        distribution = self.distribution
        if self._values is None or not isinstance(distribution, CategoricalDistribution):
            return type(distribution) is type(other)
        codes = [*map(_text, getattr(other, "choices", ()))]
        return codes == [*map(_text, distribution.choices)]


def axis_of(values: Sequence[Any], *, are_choices: bool = False) -> Axis:
    """Return the axis of the values in a list.

    Parameters
    ----------
    values : sequence
    are_choices : bool
        Whether samplers draw from the list. Otherwise they may draw other numbers, where all are
        integers or all are floats.
    """
    distinct: dict[str, Any] = {}
    for value in {id(one): one for one in values}.values():
        distinct.setdefault(_text(value), value)
    plain = [_plain(value) for value in distinct.values()]
    distribution = None if are_choices else _range_of(plain)
    if distribution is None:
        codes = _choices(plain, list(distinct))
        distribution = CategoricalDistribution(codes)
    else:
        codes = plain
    return Axis(distribution, dict(zip(codes, distinct.values(), strict=True)))


def _choices(plain: Sequence[Any], texts: Sequence[str]) -> list[Any]:
    """Return the values that equal no other one, and texts for the others and for objects."""
    times = Counter(plain)
    times[_OBJECT] = 2
    taken = {one for one in plain if times[one] == 1}
    codes = []
    for code, text in zip(plain, texts, strict=True):
        if times[code] > 1:
            while text in taken:  # a string of the list looks the same
                text = f"={text}"
            code = text
        codes.append(code)
    return codes


def _range_of(plain: Sequence[Any]) -> BaseDistribution | None:
    """Return a range of integers, or of floats, in which each number is its own code."""
    kinds = {type(one) for one in plain}
    if len(set(plain)) < len(plain) or kinds not in ({int}, {float}):
        return None
    low, high = min(plain), max(plain)
    log = low > 0 and high > 100 * low
    if kinds == {int}:
        is_exact = max(-low, high) <= _LARGEST_INT
        return IntDistribution(low, high, log=log) if is_exact else None
    return FloatDistribution(low, high, log=log) if all(map(isfinite, plain)) else None


def _plain(value: Any) -> Any:
    """Return the number, string, bool or None of Python that a value is, or else ``_OBJECT``.

    NaN is an object here, since it does not equal itself.
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        value = value.item()
    return value if type(value) in _PLAIN and value == value else _OBJECT


def _text(value: Any) -> str:
    """Return a text that tells a value from all others, by its type too, and in each process."""
    if value is NOT_SET:
        return repr(value)
    if isinstance(value, np.float64):  # a float of Python too
        value = float(value)
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        return repr(value)
    if type(value) in _PLAIN:
        return f"{type(value).__name__}({value!r})"
    text = " ".join(_ADDRESS.sub("", repr(value)).split())
    if _is_literal(value) and len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]} {digest(_name(value)).hex()[:12]}"


def _is_literal(value: Any) -> bool:
    """Return whether a value's ``repr`` tells it from all others."""
    if type(value) is dict:
        return all(map(_is_literal, value)) and all(map(_is_literal, value.values()))
    return type(value) in _PLAIN or (type(value) in (tuple, list) and all(map(_is_literal, value)))


def _name(value: Any) -> bytes:
    """Return bytes that tell an object from all others, those of later processes included."""
    for name_of in (lasting_key, encode):
        try:
            return name_of(value)
        except NoKey:
            continue
    return os.urandom(16)
