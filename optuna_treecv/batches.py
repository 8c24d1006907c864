"""Calls of an objective that come at the same time are evaluated in one walk."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from contextlib import contextmanager
from threading import Condition
from time import monotonic
from typing import Any

from optuna_treecv.evaluation import Evaluation
from optuna_treecv.together import can_be_walked_together
from optuna_treecv.together import is_found
from optuna_treecv.together import walk_together

# So long a batch waits for calls that are inside the objective, but not yet waiting.
_SECONDS = 0.02

# While results of so many bytes wait for their trials, no more are found ahead of theirs.
_MOST_BYTES = 2**30


class _Request:
    __slots__ = ("estimator", "is_done", "is_taken")

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator
        self.is_taken = self.is_done = False


class Batches:
    """Collects the estimators of calls in many threads; one of the callers walks for all.

    Parameters
    ----------
    evaluation : Evaluation
        Where results are found afterwards.
    size : int
        Estimators a walk.
    """

    def __init__(self, evaluation: Evaluation, size: int) -> None:
        self._evaluation = evaluation
        self._size = size
        self._n_inside = 0
        self._n_expected = 1  # calls that were inside at once, as far as has been seen
        self._waiting: list[_Request] = []
        self._is_walking = False
        self._changed = Condition()

    def __reduce__(self) -> tuple[Any, ...]:
        return Batches, (self._evaluation, self._size)

    @contextmanager
    def call(self) -> Generator[None]:
        """What happens in here may soon ask for something."""
        with self._changed:
            self._n_inside += 1
            self._n_expected = max(self._n_expected, self._n_inside)
        try:
            yield
        finally:
            with self._changed:
                self._n_inside -= 1
                self._changed.notify_all()

    def find(self, estimator: Any, others: Callable[[int], Iterable[Any]] | None = None) -> None:
        """Have an estimator evaluated with those of other calls, if that is of use.

        Parameters
        ----------
        estimator : estimator
            Whose results are wanted now.
        others : callable, default=None
            (number) -> at most so many estimators that will be wanted later.
        """
        if self._size < 2 or (others is None and self._expected() < 2):
            return
        if not can_be_walked_together(self._evaluation, estimator):
            return
        if self.has_found(estimator):
            return
        request = _Request(estimator)
        taken = self._join(request)
        if not taken:
            return
        try:
            estimators = [one.estimator for one in taken]
            if others is not None and self._evaluation.found.n_bytes < _MOST_BYTES:
                estimators += others(self._size - len(taken))
            walk_together(self._evaluation, estimators)
        finally:
            with self._changed:
                self._is_walking = False
                for one in taken:
                    one.is_done = True
                self._changed.notify_all()

    def has_found(self, estimator: Any) -> bool:
        """Whether an estimator's results are there already."""
        return is_found(self._evaluation, estimator)

    def _join(self, request: _Request) -> list[_Request]:
        """Wait until somebody has walked; or return whom to walk for."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify_all()
            try:
                latest = monotonic() + _SECONDS
                while not request.is_done:
                    if request.is_taken or self._is_walking:
                        self._changed.wait()
                        latest = monotonic() + _SECONDS
                        continue
                    left = latest - monotonic()
                    if left > 0 and len(self._waiting) < min(self._size, self._expected()):
                        self._changed.wait(left)
                        continue
                    if left <= 0:
                        self._n_expected = max(1, self._n_inside)
                    taken = self._waiting[: self._size]
                    if request not in taken:
                        taken[-1] = request
                    self._waiting = [one for one in self._waiting if one not in taken]
                    for one in taken:
                        one.is_taken = True
                    self._is_walking = True
                    return taken
                return []
            finally:
                if request in self._waiting:  # interrupted
                    self._waiting.remove(request)

    def _expected(self) -> int:
        """How many calls are worth waiting for: those inside, and those that just left and are
        likely to be back with their next trial.
        """
        return max(self._n_inside, self._n_expected)
