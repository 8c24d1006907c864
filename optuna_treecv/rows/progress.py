"""How far a long reading of rows is, in lines on the screen."""

from threading import Lock
from time import perf_counter

# Seconds between two lines.
_INTERVAL = 5.0


class Progress:
    """Prints how far something is, and the time that is left.

    Parameters
    ----------
    what : str
        Is said before.
    n_rows : int
        What one reading has.
    n_total : int
        The rows of all readings.
    """

    def __init__(self, what: str, n_rows: int, n_total: int) -> None:
        self._what, self._n_rows, self._n_total = what, n_rows, n_total
        self._began = self._said = perf_counter()
        self._n_done = 0
        self._lock = Lock()

    def add(self, n: int) -> None:
        """Take note of further rows; print a line every few seconds."""
        with self._lock:
            self._n_done += n
            now = perf_counter()
            if now - self._said < _INTERVAL or self._n_done > self._n_total:
                return
            self._said, seconds = now, now - self._began
            left = seconds * (self._n_total / self._n_done - 1)
            done, total = self._n_done / self._n_rows, self._n_total / self._n_rows
            print(
                f"[optuna_treecv] {self._what}: {done:.1f} of {total:.1f} readings in "
                f"{seconds:.0f} s, {left:.0f} s left",
                flush=True,
            )
