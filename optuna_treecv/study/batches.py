"""Gathers trials that run at the same time, and evaluates them together."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from contextlib import contextmanager
from threading import Condition
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary
from weakref import WeakSet

import optuna

from optuna_treecv.crossval.run import Run
from optuna_treecv.crossval.side_by_side import evaluate_side_by_side
from optuna_treecv.crossval.side_by_side import missing_result
from optuna_treecv.crossval.side_by_side import parameters_beside
from optuna_treecv.storage.leases import Leases

#: The largest batch. One walk has at most 128 lanes, so larger batches save nothing.
MOST_SIDE_BY_SIDE = 1024

# Seconds to wait for concurrent trials to join a batch.
_SECONDS = 0.02

# Results that wait for their trials take at most so many bytes.
_MOST_BYTES = 2**30


class _Request:
    __slots__ = ("goes_on", "is_done", "is_taken", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.is_taken = self.is_done = False
        self.goes_on = False  # another process computes this run; meanwhile there is other work


class Batches:
    """Collects the runs of trials in many threads; one of the threads evaluates them all.

    Parameters
    ----------
    size : int
        The most runs in one walk.
    leases : Leases, default=None
        The leases of all workers that share the evaluation's store.
    """

    def __init__(self, size: int, leases: Leases | None = None) -> None:
        self._size = size
        self._leases = leases
        # Runs that were made before their trials, by their points. They go with their study.
        self.ahead: WeakKeyDictionary[optuna.Study, dict[tuple[Any, ...], Run]]
        self.ahead = WeakKeyDictionary()
        self._runs_ahead: WeakSet[Run] = WeakSet()  # whose results may wait for their trials
        self._n_inside = 0
        self._n_expected = 1  # the most calls that were inside at once
        self._waiting: list[_Request] = []
        self._is_evaluating = False
        self._changed = Condition()

    def __reduce__(self) -> tuple[Any, ...]:
        return Batches, (self._size, self._leases)

    @contextmanager
    def call(self) -> Generator[None]:
        """Announce that a call in this block may soon ask for results."""
        with self._changed:
            self._n_inside += 1
            self._n_expected = max(self._n_expected, self._n_inside)
        try:
            yield
        finally:
            with self._changed:
                self._n_inside -= 1
                self._changed.notify_all()

    def compute(self, run: Run, others: Callable[[], Iterable[Run]] | None = None) -> None:
        """Have a run's results computed together with those of other calls, if that is faster.

        Parameters
        ----------
        run : Run
            The run whose results are needed now.
        others : callable, default=None
            () -> runs whose results will be needed later; a batch is filled up with them.
        """
        if self._size < 2 or (others is None and self._expected() < 2):
            return
        if not parameters_beside(run):
            return
        while missing_result(run):
            request = _Request(run)
            taken = self._join(request)
            if taken:
                try:
                    self._evaluate(taken, others)
                finally:
                    with self._changed:
                        self._is_evaluating = False
                        for one in taken:
                            one.is_done = True
                        self._changed.notify_all()
            if not request.goes_on:
                return

    @contextmanager
    def leased(self, run: Run) -> Generator[None]:
        """Ensure that in this block a run's results exist or this caller alone computes them.

        A thread that waits for another process holds no lock and no lease meanwhile.
        """
        if self._leases is not None and parameters_beside(run):
            while missing := missing_result(run):
                with self._leases.hold([missing.name]) as mine:
                    if mine:
                        run.is_leased = True
                        yield
                        return
                self._leases.wait(missing.name)
        yield

    def _evaluate(
        self, taken: list[_Request], others: Callable[[], Iterable[Run]] | None = None
    ) -> None:
        """Evaluate the requested runs and some others, but none that another worker computes."""
        held = set() if self._leases is None else self._leases.held()
        runs = [one.run for one in taken]
        if others is not None:
            runs += self._fitting(others(), self._size - len(taken), held)
            self._runs_ahead.update(runs)
        if self._leases is None or len(runs) == 1:
            evaluate_side_by_side(runs)
            return
        names = {missing.name: run for run in runs if (missing := missing_result(run))}
        with self._leases.hold(list(names)) as mine:
            own = [names[name] for name in mine]
            is_any = evaluate_side_by_side(own, are_leased=True)
        for one in taken:
            missing = missing_result(one.run)
            one.goes_on = is_any and missing is not None and missing.name not in mine

    def _fitting(self, runs: Iterable[Run], most: int, held: set[str]) -> list[Run]:
        """Return some runs to be computed ahead, as many as there is room for."""
        waiting = sum(ahead.n_bytes for run in self._runs_ahead for ahead in run.ahead.values())
        found: list[Run] = []
        for run in runs:
            if len(found) == most:
                break
            missing = missing_result(run)
            if missing is None or missing.name in held:
                continue
            waiting += missing.n_bytes
            if waiting > _MOST_BYTES:
                break
            found.append(run)
        return found

    def _join(self, request: _Request) -> list[_Request]:
        """Wait until another thread has evaluated the request, or return a batch to evaluate."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify_all()
            try:
                latest = monotonic() + _SECONDS
                while not request.is_done:
                    if request.is_taken or self._is_evaluating:
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
                    self._is_evaluating = True
                    return taken
                return []
            finally:
                if request in self._waiting:  # interrupted
                    self._waiting.remove(request)

    def _expected(self) -> int:
        """Return how many calls are worth waiting for.

        These are the calls inside, and those that have just left and will soon be back with their
        next trial.
        """
        return max(self._n_inside, self._n_expected)
