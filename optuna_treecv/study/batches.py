"""Gathers trials that run at the same time, and evaluates them together."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from contextlib import contextmanager
from itertools import islice
from threading import Condition
from time import monotonic
from typing import Any

from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.run import Run
from optuna_treecv.crossval.side_by_side import evaluate_side_by_side
from optuna_treecv.crossval.side_by_side import has_lanes
from optuna_treecv.crossval.side_by_side import missing_result
from optuna_treecv.storage.leases import Leases

#: The largest batch. One walk has at most 128 lanes, so larger batches save nothing.
MOST_SIDE_BY_SIDE = 1024

# Seconds to wait for concurrent trials to join a batch.
_SECONDS = 0.02

# While results of this size wait for their trials, no further ones are computed ahead.
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
    evaluation : Evaluation
        The evaluation of the runs, where the results wait afterwards.
    size : int
        The most runs in one walk.
    leases : Leases, default=None
        The leases of all workers that share the evaluation's store.
    """

    def __init__(self, evaluation: Evaluation, size: int, leases: Leases | None = None) -> None:
        self._evaluation = evaluation
        self._size = size
        self._leases = leases
        self._n_inside = 0
        self._n_expected = 1  # the most calls that were inside at once
        self._waiting: list[_Request] = []
        self._is_evaluating = False
        self._changed = Condition()

    def __reduce__(self) -> tuple[Any, ...]:
        return Batches, (self._evaluation, self._size, self._leases)

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
        if not has_lanes(run):
            return
        while missing_result(run) is not None:
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
        if self._leases is not None and has_lanes(run):
            while (name := missing_result(run)) is not None:
                with self._leases.hold([name]) as mine:
                    if mine:
                        run.is_leased = True
                        yield
                        return
                self._leases.wait(name)
        yield

    def _evaluate(
        self, taken: list[_Request], others: Callable[[], Iterable[Run]] | None = None
    ) -> None:
        """Evaluate the requested runs and some others, but none that another worker computes."""
        held = set() if self._leases is None else self._leases.held()
        runs = [one.run for one in taken]
        if others is not None and self._evaluation.shared.ahead.n_bytes < _MOST_BYTES:
            named = ((run, missing_result(run)) for run in others())
            free = (run for run, name in named if name is not None and name not in held)
            runs += islice(free, self._size - len(taken))
        if self._leases is None or len(runs) == 1:
            evaluate_side_by_side(runs)
            return
        names = {missing_result(run): run for run in runs}
        with self._leases.hold([name for name in names if name is not None]) as mine:
            own = [names[name] for name in mine]
            is_any = evaluate_side_by_side(own, are_leased=True)
        for one in taken:
            name = missing_result(one.run)
            one.goes_on = is_any and name is not None and name not in mine

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
