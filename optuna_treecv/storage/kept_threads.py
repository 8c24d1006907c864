"""Threads that do what a caller may stop waiting for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
import os
from queue import Empty
from queue import SimpleQueue
from threading import Lock
from threading import Thread
from typing import TypeAlias
from typing import TypeVar

#: Seconds after which a thread without work ends.
KEPT_SECONDS = 1.0

T = TypeVar("T")
_Jobs: TypeAlias = SimpleQueue[Callable[[], None]]


class KeptThreads:
    """Threads that are used again: as many as have work at the same time.

    No work waits for other work, since any of it may get stuck. Python exits without a thread that
    is stuck; it would wait for one of a ThreadPoolExecutor. A thread without work ends soon. In a
    forked process there are none at first.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        self._idle: list[_Jobs] = []  # for each thread without work, where it waits for some

    def __reduce__(self) -> tuple[type[KeptThreads], tuple[()]]:
        return KeptThreads, ()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Return what will have the result of ``work``, which another thread begins at once."""
        if self._pid != os.getpid():  # the threads are in the parent process
            self._start()
        answer: Future[T] = Future()
        with self._lock:
            if self._idle:
                jobs = self._idle.pop()
                jobs.put(partial(self._do, jobs, work, answer))
                return answer
        jobs = SimpleQueue()
        jobs.put(partial(self._do, jobs, work, answer))
        Thread(target=self._run, args=(jobs,), name="optuna_treecv store", daemon=True).start()
        return answer

    def _run(self, jobs: _Jobs) -> None:
        while True:
            try:
                jobs.get(timeout=KEPT_SECONDS)()
            except Empty:
                with self._lock:
                    if jobs in self._idle:  # otherwise it has just been given work
                        self._idle.remove(jobs)
                        return

    def _do(self, jobs: _Jobs, work: Callable[[], T], answer: Future[T]) -> None:
        # The thread is idle before its caller goes on, who would start another one otherwise.
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            self._rest(jobs)
            answer.set_exception(error)
        else:
            self._rest(jobs)
            answer.set_result(result)

    def _rest(self, jobs: _Jobs) -> None:
        with self._lock:
            self._idle.append(jobs)
