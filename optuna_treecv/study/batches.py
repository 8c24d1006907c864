"""Batches of trials that run at the same time."""

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

# The most bytes of precomputed results of later trials.
_MOST_BYTES = 2**30


@dataclass(eq=False, slots=True)
class _Request:
    run: Run
    is_taken: bool = False
    is_done: bool = False
    is_pending: bool = False  # another process computes this run, and this one took other work


class Batches:
    """Collects the runs of trials in many threads, so that one thread evaluates them all.

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
        # Runs of later trials by their points, as long as the study lives.
        self.prefetched = WeakKeyDictionary[optuna.Study, dict[tuple[ParamValue, ...], Run]]()
        self._precomputed: WeakSet[Run] = WeakSet()  # may have results of later trials
        self._n_inside = 0
        # The calls worth waiting for: the largest number of calls inside so far, because calls
        # that have just left will soon be back with their next trial.
        self._n_expected = 1
        self._waiting: list[_Request] = []
        self._is_evaluating = False
        self._changed = Condition()

    @contextmanager
    def call(self) -> Generator[None]:
        """Count a call as running, so that others may wait for its request."""
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
        """Compute a run's results in a batch with those of other calls, if that is faster.

        Parameters
        ----------
        run : Run
            The run whose results are needed now.
        others : callable, default=None
            () -> runs whose results will be needed later; they fill up the batch.
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
                        for done in taken:
                            done.is_done = True
                        self._changed.notify_all()
            if not request.is_pending:
                return

    @contextmanager
    def leased(self, run: Run) -> Generator[None]:
        """Ensure that in this block a run's results exist or only this caller computes them.

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
        """Evaluate the requested runs and later ones, except those that other workers compute."""
        leased_names = set() if self.leases is None else self.leases.held()
        runs = [request.run for request in taken]
        if others is not None:
            runs += self._select_later(others(), self.size - len(taken), leased_names)
            self._precomputed.update(runs)
        if self.leases is None or len(runs) == 1:
            evaluate_batch(runs)
            return
        names = {missing: run for run in runs if (missing := run.missing())}
        with self.leases.hold(list(names)) as mine:
            leased_runs = [names[name] for name in mine]
            is_any = evaluate_batch(leased_runs, are_leased=True)
        for request in taken:
            missing = request.run.missing()
            request.is_pending = is_any and missing != "" and missing not in mine

    def _select_later(self, runs: Iterable[Run], most: int, leased_names: set[str]) -> list[Run]:
        """Return runs to precompute, as many as there is room for."""
        waiting = sum(run.n_bytes_precomputed for run in self._precomputed)
        prefetched: list[Run] = []
        for run in runs:
            if len(prefetched) == most:
                break
            missing = run.missing()
            if not missing or missing in leased_names:
                continue
            waiting += run.n_bytes_missing
            if waiting > _MOST_BYTES:
                break
            prefetched.append(run)
        return prefetched

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
                    self._waiting = [member for member in self._waiting if member not in taken]
                    for member in taken:
                        member.is_taken = True
                    self._is_evaluating = True
                    return taken
                return []
            finally:
                if request in self._waiting:  # interrupted
                    self._waiting.remove(request)
