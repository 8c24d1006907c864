"""Scorers of users that are called in another way than (estimator, X, y) -> number."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import inspect
from typing import Any


class WithoutY:
    """A scorer (estimator, X) for rows without targets, which is called with None as y.

    Parameters
    ----------
    score : callable
    """

    def __init__(self, score: Callable[..., Any]) -> None:
        self.score = score
        self.__name__ = getattr(score, "__name__", "scorer")

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> Any:
        """Score a fitted estimator."""
        return self.score(estimator, X)


def takes_no_y(score: Any) -> bool:
    """Return whether a callable takes two arguments and not three."""
    if not callable(score) or isinstance(score, type):
        return False
    return _takes(score, 2) and not _takes(score, 3)


def _takes(score: Callable[..., Any], n_arguments: int) -> bool:
    try:
        inspect.signature(score).bind(*[None] * n_arguments)
    except TypeError:
        return False
    except ValueError:  # some compiled callables have no signature
        return True
    return True


class Several:
    """A callable that returns a dict of scores; it is called once for all of them.

    Parameters
    ----------
    score : callable
        (estimator, X, y) -> dict of str to number.
    """

    def __init__(self, score: Callable[..., Mapping[str, Any]]) -> None:
        self.score = score
        self._last: tuple[Any, ...] = ()

    def __call__(self, estimator: Any, X: Any, y: Any, **params: Any) -> Mapping[str, Any]:
        """Return all scores of a fitted estimator."""
        called = estimator, X, y, *params.values()
        known = self._last
        is_known = len(known) == 1 + len(called) and all(
            one is other for one, other in zip(called, known[1:], strict=True)
        )
        if not is_known:
            self._last = known = self.score(estimator, X, y, **params), *called
        found: Mapping[str, Any] = known[0]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"score": self.score, "_last": ()}


class OneOf:
    """One of the scores that a callable returns.

    Parameters
    ----------
    several : Several
    name : str
    """

    def __init__(self, several: Several, name: str) -> None:
        self.several = several
        self.__name__ = name
        self.__signature__ = inspect.signature(several.score)  # says whether it takes weights

    def __call__(self, estimator: Any, X: Any, y: Any = None, **params: Any) -> Any:
        """Score a fitted estimator."""
        return self.several(estimator, X, y, **params)[self.__name__]
