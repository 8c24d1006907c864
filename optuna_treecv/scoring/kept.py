"""Arrays in the form in which caches and stores keep them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from optuna_treecv.rows.data import aligned_bytes

#: The bytes of the count in an ``ArrayThenCount``.
COUNT_BYTES = 8


class ArrayThenCount:
    """An array and the number of row updates behind it, in one block of memory.

    Caches and stores keep ``memory`` as a whole: the bytes of ``array``, then the count (int64) in
    the last 8 bytes.

    Attributes
    ----------
    memory : ndarray of uint8
    array : ndarray
        A view of ``memory`` without the count.
    was_kept : bool
        Whether ``memory`` comes from a cache or a store.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.float64) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        self.take(aligned_bytes(prod(shape) * self._dtype.itemsize + COUNT_BYTES))
        self.was_kept = False

    @classmethod
    def of(cls, array: np.ndarray, n_updates: int) -> ArrayThenCount:
        """Return a copy of an array, together with its count."""
        copy = cls(array.shape, array.dtype)
        copy.array[:] = array
        copy.n_updates = n_updates
        return copy

    def take(self, memory: np.ndarray) -> None:
        """Use memory from a cache or a store without copying it."""
        self.memory = memory
        self.array = memory[:-COUNT_BYTES].view(self._dtype).reshape(self._shape)
        self.was_kept = True

    @property
    def n_updates(self) -> int:
        return int(self.memory[-COUNT_BYTES:].view(np.int64)[0])

    @n_updates.setter
    def n_updates(self, n_updates: int) -> None:
        self.memory[-COUNT_BYTES:].view(np.int64)[0] = n_updates
