"""Batches of concurrent trials, whose candidates are trained in one pass over the rows."""

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

#: The maximum of ``batch_size``. Larger batches would save nothing, because the kernels train at
#: most 128 candidates in one pass over the rows.
MAX_BATCH_SIZE = 1024

# The number of seconds for which a batch waits for further concurrent trials.
_WAIT_SECONDS = 0.02

# The maximum number of bytes of results that are precomputed for later trials.
_MAX_PRECOMPUTED_BYTES = 2**30


@dataclass(eq=False, slots=True)
class _Request:
    run: Run
    is_taken: bool = False  # it is in the batch that a thread evaluates
    is_done: bool = False
    is_pending: bool = False  # another process is computing this run


class Batches:
    """Collects the runs of concurrent trials, all of which one thread then evaluates.

    Parameters
    ----------
    size : int
        The maximum number of runs in a batch.
    leases : Leases, default=None
        The leases by which workers with the same store avoid computing the same results twice.
    """

    def __init__(self, size: int, leases: Leases | None = None) -> None:
        self.size = size
        self.leases = leases
        # For each study, the runs of later trials by their parameter codes.
        self.prefetched = WeakKeyDictionary[optuna.Study, dict[tuple[ParamValue, ...], Run]]()
        self._precomputed: WeakSet[Run] = WeakSet()  # runs that may have precomputed results
        self._n_inside = 0
        # The number of concurrent calls to wait for. It is the largest number seen so far, because
        # a thread that has just finished a trial will soon call with its next one.
        self._n_expected = 1
        self._waiting: list[_Request] = []
        self._is_evaluating = False
        self._changed = Condition()

    @contextmanager
    def call(self) -> Generator[None]:
        """Count a call of the objective as running, so that batches wait until it adds its run."""
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
        """Compute the results of a run, in one batch with concurrent runs if possible.

        Parameters
        ----------
        run : Run
            The run whose results are needed now.
        others : callable, default=None
            () -> runs of later trials, with which the batch is filled up.
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
        """Ensure that no other process computes the results of a run within this block.

        If another process is computing them, wait until they are stored, without holding a lock or
        another lease.
        """
        if self.leases is not None and run.plan.capabilities.shared_parameters:
            while missing := run.missing():
                with self.leases.hold([missing]) as own_keys:
                    if own_keys:
                        run.is_leased = True
                        yield
                        return
                self.leases.wait(missing)
        yield

    def _evaluate(
        self, taken: list[_Request], others: Callable[[], Iterable[Run]] | None = None
    ) -> None:
        """Evaluate the requested runs, and runs of later trials that no other worker evaluates."""
        leased_keys = set() if self.leases is None else self.leases.leased_keys()
        runs = [request.run for request in taken]
        if others is not None:
            runs += self._select_later(others(), self.size - len(taken), leased_keys)
            self._precomputed.update(runs)
        if self.leases is None or len(runs) == 1:
            evaluate_batch(runs)
            return
        by_key = {missing: run for run in runs if (missing := run.missing())}
        with self.leases.hold(list(by_key)) as own_keys:
            leased_runs = [by_key[key] for key in own_keys]
            is_evaluated = evaluate_batch(leased_runs, are_leased=True)
        for request in taken:
            missing = request.run.missing()
            request.is_pending = is_evaluated and missing != "" and missing not in own_keys

    def _select_later(
        self, runs: Iterable[Run], max_runs: int, leased_keys: set[str]
    ) -> list[Run]:
        """Return the runs of later trials to precompute, limited by number and by memory."""
        n_bytes = sum(run.n_bytes_precomputed for run in self._precomputed)
        prefetched: list[Run] = []
        for run in runs:
            if len(prefetched) == max_runs:
                break
            missing = run.missing()
            if not missing or missing in leased_keys:
                continue
            n_bytes += run.n_bytes_missing
            if n_bytes > _MAX_PRECOMPUTED_BYTES:
                break
            prefetched.append(run)
        return prefetched

    def _join(self, request: _Request) -> list[_Request]:
        """Return the batch that this thread must evaluate; empty if another thread has done so."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify_all()
            try:
                deadline = monotonic() + _WAIT_SECONDS
                while not request.is_done:
                    if request.is_taken or self._is_evaluating:
                        self._changed.wait()
                        deadline = monotonic() + _WAIT_SECONDS
                        continue
                    seconds = deadline - monotonic()
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
