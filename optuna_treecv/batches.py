"""Calls of an objective that come at the same time are evaluated in one walk."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from contextlib import contextmanager
from itertools import islice
from threading import Condition
from time import monotonic
from typing import Any

from optuna_treecv.claims import Claims
from optuna_treecv.evaluation import Evaluation
from optuna_treecv.run import Run
from optuna_treecv.together import can_be_walked_together
from optuna_treecv.together import missing_name
from optuna_treecv.together import walk_together

# So long a batch waits for calls that are inside the objective, but not yet waiting.
_SECONDS = 0.02

# While results of so many bytes wait for their trials, no more are found ahead of theirs.
_MOST_BYTES = 2**30


class _Request:
    __slots__ = ("goes_on", "is_done", "is_taken", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.is_taken = self.is_done = False
        self.goes_on = False  # another process is at it, and there may be other work meanwhile


class Batches:
    """Collects the runs of calls in many threads; one of the callers walks for all.

    Parameters
    ----------
    evaluation : Evaluation
        Where results are found afterwards.
    size : int
        Runs a walk.
    claims : Claims, default=None
        Of those who share the evaluation's store.
    """

    def __init__(self, evaluation: Evaluation, size: int, claims: Claims | None = None) -> None:
        self._evaluation = evaluation
        self._size = size
        self._claims = claims
        self._n_inside = 0
        self._n_expected = 1  # calls that were inside at once, as far as has been seen
        self._waiting: list[_Request] = []
        self._is_walking = False
        self._changed = Condition()

    def __reduce__(self) -> tuple[Any, ...]:
        return Batches, (self._evaluation, self._size, self._claims)

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

    def find(self, run: Run, others: Callable[[], Iterable[Run]] | None = None) -> None:
        """Have a run walked with those of other calls, if that is of use.

        Parameters
        ----------
        run : Run
            Whose results are wanted now.
        others : callable, default=None
            () -> runs whose results will be wanted later; as many are taken as are of use.
        """
        if self._size < 2 or (others is None and self._expected() < 2):
            return
        if not can_be_walked_together(run):
            return
        while missing_name(run) is not None:
            request = _Request(run)
            taken = self._join(request)
            if taken:
                try:
                    self._walk(taken, others)
                finally:
                    with self._changed:
                        self._is_walking = False
                        for one in taken:
                            one.is_done = True
                        self._changed.notify_all()
            if not request.goes_on:
                return

    @contextmanager
    def claimed(self, run: Run) -> Generator[None]:
        """In here a run's results are there, or it is this caller's to walk it.

        Who has to wait for another process holds no lock, and no claim, meanwhile.
        """
        if self._claims is not None and can_be_walked_together(run):
            while (name := missing_name(run)) is not None:
                with self._claims.hold([name]) as mine:
                    if mine:
                        run.is_claimed = True
                        yield
                        return
                self._claims.wait(name)
        yield

    def _walk(
        self, taken: list[_Request], others: Callable[[], Iterable[Run]] | None = None
    ) -> None:
        """For some calls, and for what will be wanted later; but for what others are at."""
        held = set() if self._claims is None else self._claims.held()
        runs = [one.run for one in taken]
        if others is not None and self._evaluation.found.n_bytes < _MOST_BYTES:
            named = ((run, missing_name(run)) for run in others())
            free = (run for run, name in named if name is not None and name not in held)
            runs += islice(free, self._size - len(taken))
        if self._claims is None or len(runs) == 1:
            walk_together(runs)
            return
        names = {missing_name(run): run for run in runs}
        with self._claims.hold([name for name in names if name is not None]) as mine:
            own = [names[name] for name in mine]
            walked = walk_together(own, are_claimed=True)
        for one in taken:
            name = missing_name(one.run)
            one.goes_on = walked and name is not None and name not in mine

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
