"""Memory for rows and states of models."""

from contextlib import suppress
from math import prod
import mmap
from typing import Any
from weakref import finalize

import numpy as np

from optuna_treecv._kernels.prepare import address

# The process keeps memory of prepared rows between these sizes, and uses it again: with memory
# that the system must first fill with zeros, preparing rows takes twice as long. Of less than 4
# MiB, NumPy gets none from the system.
_LEAST_KEPT, MOST_KEPT = 2**22, 2**28

#: A smaller part of memory would keep more of others than it has itself.
LEAST_PART = 4 * mmap.PAGESIZE

# At most one piece of memory, which nobody uses now.
_kept: list[np.ndarray] = []


class _Lent(np.ndarray):
    """Memory that is kept when the last array in it goes.

    An array in memory of another type refers to that memory itself, and not to what is behind it.
    """


def aligned_bytes(n_bytes: int) -> np.ndarray:
    """Return uninitialised bytes aligned to a cache line of 64 bytes."""
    return _aligned(np.empty(n_bytes + 64, np.uint8), n_bytes)


def aligned_empty(shape: tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    """Return an uninitialised array aligned to a cache line."""
    return aligned_bytes(prod(shape) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)


def empty_rows(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array aligned to a cache line, perhaps in memory that was kept.

    At most 256 MiB are kept: those of the array that went last.
    """
    n_bytes = prod(shape) * np.dtype(dtype).itemsize
    if not _LEAST_KEPT <= n_bytes <= MOST_KEPT:
        return aligned_empty(shape, dtype)
    try:
        memory = _kept.pop()
    except IndexError:
        memory = np.empty(0, np.uint8)
    if not n_bytes + 64 <= len(memory) <= 2 * n_bytes:
        memory = np.empty(n_bytes + 64, np.uint8)
    lent = memory.view(_Lent)
    finalize(lent, _keep, memory).atexit = False
    return _aligned(lent, n_bytes).view(np.ndarray).view(dtype).reshape(shape)


def empty_parts(n_parts: int, n_bytes: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return uninitialised bytes, and the same cut into equal parts that can go one by one.

    The memory of a part, but for at most two pages of it, goes back to the system with the last
    array in it, if no array in the whole is left. On Windows it goes with the last part.

    Returns
    -------
    whole : ndarray of shape (n_parts * n_bytes,), uint8
    parts : list of n_parts ndarray of shape (n_bytes,), uint8
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        whole = np.empty(n_parts * n_bytes, np.uint8)
        return whole, list(whole.reshape(n_parts, n_bytes))
    pages = mmap.mmap(-1, n_parts * n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # As NumPy does: filling small pages takes thrice as long. Not every kernel has others.
    with suppress(AttributeError, OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(pages, np.uint8)
    parts = []
    for begin in range(0, len(whole), n_bytes):
        lent = whole[begin : begin + n_bytes].view(_Lent)
        first, end = -(-begin // mmap.PAGESIZE), (begin + n_bytes) // mmap.PAGESIZE
        if first < end:
            within = first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE
            finalize(lent, pages.madvise, mmap.MADV_DONTNEED, *within).atexit = False
        parts.append(lent[:].view(np.ndarray))  # refers to the slice, and that to ``lent``
    return whole, parts


def keep_nothing() -> None:
    """Give the memory that is kept back to the system."""
    _kept.clear()


def _keep(memory: np.ndarray) -> None:
    _kept[:] = [memory]


def _aligned(memory: np.ndarray, n_bytes: int) -> np.ndarray:
    begin = -address(memory) % 64
    return memory[begin : begin + n_bytes]
