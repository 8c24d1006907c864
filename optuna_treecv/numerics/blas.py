"""Limit BLAS to one thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = Lock()
_n_inside = 0
_before: list[tuple[Any, int]] = []


@cache
def _libraries() -> list[Any]:
    """Return the libraries with BLAS; looking for them takes 40 ms."""
    return ThreadpoolController().select(user_api="blas").lib_controllers


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS use one thread in this block, so that its sums do not depend on the machine's load.

    The limit holds for the process. The first thread that enters sets it, and the last one that
    leaves lifts it.
    """
    global _n_inside
    with _lock:
        _n_inside += 1
        if _n_inside == 1:
            _before[:] = [(library, library.get_num_threads()) for library in _libraries()]
            for library, _ in _before:
                library.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _n_inside -= 1
            if _n_inside == 0:
                for library, n_threads in _before:
                    library.set_num_threads(n_threads)
