"""Gathers trials that run at the same time, and evaluates them together."""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
from time import monotonic
from weakref import WeakKeyDictionary
from weakref import WeakSet

import optuna

from optuna_treecv.core.batch import evaluate_batch
from optuna_treecv.core.run import Run
from optuna_treecv.storage.model_store import Leases
from optuna_treecv.types import ParamValue

#: The largest batch. One walk has at most 128 lanes, so larger batches save nothing.
MOST_SIDE_BY_SIDE = 1024

# Seconds to wait for concurrent trials to join a batch.
_SECONDS = 0.02

# Results that wait for their trials take at most so many bytes.
_MOST_BYTES = 2**30


@dataclass(eq=False, slots=True)
class _Request:
    run: Run
    is_taken: bool = False
    is_done: bool = False
    goes_on: bool = False  # another process computes this run; meanwhile there is other work


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
        self.size = size
        self.leases = leases
        # Jobs that were made before their trials, by their points. They go with their study.
        self.ahead = WeakKeyDictionary[optuna.Study, dict[tuple[ParamValue, ...], Run]]()
        self._precomputed: WeakSet[Run] = WeakSet()  # whose results may wait for their trials
        self._n_inside = 0
        # The calls worth waiting for: those inside, of which there are never more, and those that
        # have just left and will soon be back with their next trial.
        self._n_expected = 1
        self._waiting: list[_Request] = []
        self._is_evaluating = False
        self._changed = Condition()

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
        """Compute a run's results together with those of other calls, if that is faster.

        Parameters
        ----------
        run : Run
            The run whose results are needed now.
        others : callable, default=None
            () -> runs whose results will be needed later; a batch is filled up with them.
        """
        if self.size < 2 or (others is None and self._n_expected < 2):
            return
        if not run.plan.capabilities.shared_parameters:
            return
        while run.missing():
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
        if self.leases is not None and run.plan.capabilities.shared_parameters:
            while missing := run.missing():
                with self.leases.hold([missing]) as mine:
                    if mine:
                        run.is_leased = True
                        yield
                        return
                self.leases.wait(missing)
        yield

    def _evaluate(
        self, taken: list[_Request], others: Callable[[], Iterable[Run]] | None = None
    ) -> None:
        """Evaluate the requested runs and some others, but none that another worker computes."""
        leased_names = set() if self.leases is None else self.leases.held()
        runs = [one.run for one in taken]
        if others is not None:
            runs += self._fitting(others(), self.size - len(taken), leased_names)
            self._precomputed.update(runs)
        if self.leases is None or len(runs) == 1:
            evaluate_batch(runs)
            return
        names = {missing: run for run in runs if (missing := run.missing())}
        with self.leases.hold(list(names)) as mine:
            leased_jobs = [names[name] for name in mine]
            is_any = evaluate_batch(leased_jobs, are_leased=True)
        for one in taken:
            missing = one.run.missing()
            one.goes_on = is_any and missing != "" and missing not in mine

    def _fitting(self, runs: Iterable[Run], most: int, leased_names: set[str]) -> list[Run]:
        """Return some runs to be computed ahead, as many as there is room for."""
        waiting = sum(run.n_bytes_precomputed for run in self._precomputed)
        next_jobs: list[Run] = []
        for run in runs:
            if len(next_jobs) == most:
                break
            missing = run.missing()
            if not missing or missing in leased_names:
                continue
            waiting += run.n_bytes_missing
            if waiting > _MOST_BYTES:
                break
            next_jobs.append(run)
        return next_jobs

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
                    seconds = latest - monotonic()
                    if seconds > 0 and len(self._waiting) < min(self.size, self._n_expected):
                        self._changed.wait(seconds)
                        continue
                    if seconds <= 0:
                        self._n_expected = max(1, self._n_inside)
                    taken = self._waiting[: self.size]
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
