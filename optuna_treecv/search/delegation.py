"""Methods that a search has if its best estimator has them."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any


class Delegated:
    """A method that is there if the search says so.

    It does what ``available_if`` of scikit-learn does, but its AttributeError also says itself why
    the method is not there.

    Parameters
    ----------
    method : callable
    name : str
        What ``_check_has`` of the search is asked for.
    """

    def __init__(self, method: Callable[..., Any], name: str) -> None:
        self._method = method
        self._name = name
        self.__doc__ = method.__doc__

    def __get__(self, search: Any, owner: Any = None) -> Any:
        if search is None:
            return self._method
        try:
            search._check_has(self._name)
        except AttributeError as error:
            raise AttributeError(
                f"'{type(search).__name__}' has no attribute {self._method.__name__!r}: {error}"
            ) from error
        return MethodType(self._method, search)


def delegated(name: str) -> Callable[[Callable[..., Any]], Delegated]:
    """Return a decorator of methods that need a method ``name`` of the best estimator."""
    return lambda method: Delegated(method, name)
