"""Outages of a store: when it is tried again, and the threads that wait for its answer."""

from collections.abc import Callable
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from dataclasses import field
import os
from queue import Empty
from queue import SimpleQueue
from threading import Lock
from threading import Thread
from time import monotonic
from typing import Any
from typing import TypeVar

#: Seconds without further attempts after a failure.
RETRY_SECONDS = 30.0
#: A failure that took long is tried again after so many times its duration, so that waiting takes
#: a small part of the time.
PAUSE_PER_SECOND = 5

#: A kind of attempts that may fail alone: their purpose (None: any), and whether they write.
Scope = tuple[str | None, bool]


@dataclass(eq=False)
class Outages:
    """The failures of one store. Threads may share it.

    Only one thread at a time tries whether an outage is over; the others go on.
    """

    _lock: Lock = field(default_factory=Lock)
    _retry_at: dict[Scope, float] = field(default_factory=dict)

    def may_try(self, scopes: Iterable[Scope]) -> bool:
        """Return whether none of these fails, or it is time for another attempt."""
        now = monotonic()
        with self._lock:
            failing = [scope for scope in scopes if scope in self._retry_at]
            if any(now < self._retry_at[scope] for scope in failing):
                return False
            for scope in failing:
                self._retry_at[scope] = now + RETRY_SECONDS
        return True

    def note(self, scope: Scope, seconds: float) -> bool:
        """Note a failure that took some seconds; return whether it is a new outage.

        It is not new if this purpose, or any purpose, is known to fail.
        """
        pause = max(RETRY_SECONDS, PAUSE_PER_SECOND * seconds)
        with self._lock:
            is_known = any(one[0] in (scope[0], None) for one in self._retry_at)
            self._retry_at[scope] = monotonic() + pause
        return not is_known

    def end(self, scopes: Iterable[Scope]) -> None:
        """Note a success."""
        if self._retry_at:
            with self._lock:
                for scope in scopes:
                    self._retry_at.pop(scope, None)


#: Seconds after which a thread without work ends.
KEPT_SECONDS = 1.0

T = TypeVar("T")
_Jobs = SimpleQueue[tuple[Callable[[], Any], Future[Any]]]


class KeptThreads:
    """Threads that are used again: as many as have work at the same time.

    No work waits for other work, since any of it may get stuck. Python exits without a thread that
    is stuck; it would wait for one of a ThreadPoolExecutor. A thread without work ends soon. In a
    forked process there are none at first.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        self._idle: list[_Jobs] = []  # for each thread without work, where it waits for some

    def __reduce__(self) -> "tuple[type[KeptThreads], tuple[()]]":
        return KeptThreads, ()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Return the future of ``work``, which another thread begins at once."""
        if self._pid != os.getpid():  # the threads are in the parent process
            KeptThreads.__init__(self)
        answer: Future[T] = Future()
        with self._lock:
            is_new = not self._idle
            jobs = SimpleQueue() if is_new else self._idle.pop()
        jobs.put((work, answer))
        if is_new:
            Thread(target=self._run, args=(jobs,), name="optuna_treecv store", daemon=True).start()
        return answer

    def _run(self, jobs: _Jobs) -> None:
        while True:
            try:
                work, answer = jobs.get(timeout=KEPT_SECONDS)
            except Empty:
                with self._lock:
                    if jobs in self._idle:  # otherwise it has just been given work
                        self._idle.remove(jobs)
                        return
                continue
            result, failure = None, None
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001  # the caller raises it
                failure = error
            # The thread is idle before its caller goes on; else that would start another one.
            with self._lock:
                self._idle.append(jobs)
            if failure is None:
                answer.set_result(result)
            else:
                answer.set_exception(failure)
            del work, answer, result, failure  # and the memory that they hold
