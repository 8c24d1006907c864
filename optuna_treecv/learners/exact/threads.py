"""Several threads, and one of BLAS in each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from threading import Lock
from typing import Any
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")

_lock = Lock()
_n_inside = 0
_before: list[tuple[Any, int]] = []


@cache
def _libraries() -> list[Any]:
    """Return the libraries with BLAS; looking for them takes 40 ms."""
    return ThreadpoolController().select(user_api="blas").lib_controllers


def in_order(
    n_jobs: int, function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Yield the results of a function in the order of the items.

    With several threads, only so many results wait as there are threads.
    """
    if n_jobs == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(n_jobs) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                # NumPy's handling of errors goes with the context.
                waiting.append(pool.submit(copy_context().run, function, item))
                if len(waiting) > n_jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in waiting:
                one.cancel()


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Let BLAS use one thread in this block, so that its sums do not depend on the machine's load.

    The limit holds for the process. The first thread that enters sets it, and the last one that
    leaves lifts it.
    """
    global _n_inside
    with _lock:
        _n_inside += 1
        if _n_inside == 1:
            _before[:] = [(one, one.get_num_threads()) for one in _libraries()]
            for one, _ in _before:
                one.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _n_inside -= 1
            if _n_inside == 0:
                for one, n_threads in _before:
                    one.set_num_threads(n_threads)
