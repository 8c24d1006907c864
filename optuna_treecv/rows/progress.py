"""How far a long reading of rows is, in lines on the screen and for a listener."""

from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from time import perf_counter

# Seconds between two lines on the screen, and between two for a listener, since this one may write
# them to a database.
_INTERVAL, _INTERVAL_OF_LISTENER = 5.0, 30.0

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Let a function hear how far the readings are that begin meanwhile in this thread."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


class Progress:
    """Says how far something is, and the time that is left, if somebody wants to know.

    Parameters
    ----------
    what : str
        Is said before.
    n_rows : int
        What one reading has.
    n_total : callable
        () -> the rows of all readings.
    is_printed : bool
    """

    def __init__(
        self, what: str, n_rows: int, n_total: Callable[[], int], is_printed: bool
    ) -> None:
        self._what, self._n_rows, self._n_done = what, n_rows, 0
        self._began = perf_counter()
        self._lock = Lock()
        #: Of each listener, the seconds between two lines and those until the next one.
        self._listeners: dict[Callable[[str], None], tuple[float, float]] = {}
        if is_printed:
            self._listeners[_print] = _INTERVAL, _INTERVAL
        if (listener := _LISTENER.get()) is not None:
            self._listeners[listener] = _INTERVAL_OF_LISTENER, _INTERVAL_OF_LISTENER
        self._n_total = n_total() if self._listeners else 0

    def add(self, n: int) -> None:
        """Take note of further rows; say every few seconds how far it is."""
        with self._lock:
            self._n_done += n
            seconds = perf_counter() - self._began
            due = [one for one, (_, then) in self._listeners.items() if seconds >= then]
            if not due or self._n_done > self._n_total:
                return
            for one in due:
                interval, _ = self._listeners[one]
                self._listeners[one] = interval, seconds + interval
            left = seconds * (self._n_total / self._n_done - 1)
            done, total = self._n_done / self._n_rows, self._n_total / self._n_rows
        line = f"{self._what}: {done:.1f} of {total:.1f} readings in {seconds:.0f} s, {left:.0f} s"
        for one in due:
            one(f"{line} left")


def _print(line: str) -> None:
    print(f"[optuna_treecv] {line}", flush=True)
