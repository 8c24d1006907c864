"""Writes to a database that trials do not wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
import os
from threading import Condition
from threading import Thread
import warnings

# What waits takes at most so many bytes; then callers wait too.
_MOST_BYTES = 2**27


class WriteQueue:
    """Jobs that are done one after the other in a thread, in the order in which they were put.

    The thread ends when nothing is left to do. Python waits for it before it exits, so nothing
    that was put is lost. In a forked process the queue begins empty.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._jobs: deque[tuple[Callable[[], object], int]] = deque()
        self._n_bytes = 0  # of the jobs that are not done
        self._is_running = False
        self._changed = Condition()

    def __reduce__(self) -> tuple[type[WriteQueue], tuple[()]]:
        return WriteQueue, ()

    def put(self, job: Callable[[], object], n_bytes: int = 0) -> None:
        """Have a job done soon; wait first if too much is waiting.

        Parameters
        ----------
        job : callable
            An exception that it raises becomes a warning.
        n_bytes : int
            The memory that it holds until it is done.
        """
        if self._pid != os.getpid():  # the thread is in the parent process
            self._start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._n_bytes == 0 or self._n_bytes + n_bytes <= _MOST_BYTES
            )
            self._jobs.append((job, n_bytes))
            self._n_bytes += n_bytes
            if not self._is_running:
                self._is_running = True
                Thread(target=self._run, name="treecv-store").start()

    def wait(self) -> None:
        """Wait until all jobs are done."""
        if self._pid == os.getpid():
            with self._changed:
                self._changed.wait_for(lambda: not self._is_running)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._is_running = False
                    self._changed.notify_all()
                    return
                job, n_bytes = self._jobs.popleft()
            try:
                job()
            except Exception as error:  # noqa: BLE001  # a store never stops a study
                # Warnings may be errors, but later jobs must not wait for ever.
                with suppress(RuntimeWarning):
                    text = f"a write to the store failed: {error!r}."
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
            del job  # and the memory that it holds
            with self._changed:
                self._n_bytes -= n_bytes
                self._changed.notify_all()
