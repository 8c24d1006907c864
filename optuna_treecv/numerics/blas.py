"""A context manager that limits BLAS to one thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = Lock()
_n_inside = 0
_previous: list[tuple[Any, int]] = []


@cache
def _libraries() -> list[Any]:
    """Return the controllers of the loaded BLAS libraries. The search takes 40 ms."""
    return ThreadpoolController().select(user_api="blas").lib_controllers


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread within this context, which makes its sums reproducible.

    With several threads, the order in which BLAS adds numbers may depend on the machine's load.
    The limit applies to the whole process. The first thread that enters such a context sets the
    limit, and the last thread that leaves one restores the previous numbers of threads.
    """
    global _n_inside
    with _lock:
        _n_inside += 1
        if _n_inside == 1:
            _previous[:] = [(library, library.get_num_threads()) for library in _libraries()]
            for library, _ in _previous:
                library.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _n_inside -= 1
            if _n_inside == 0:
                for library, n_threads in _previous:
                    library.set_num_threads(n_threads)
