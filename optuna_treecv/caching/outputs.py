"""Outputs of models as they are kept: an array, and behind it the count of updates."""

from math import prod
from typing import Any

import numpy as np

from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.memory import aligned_bytes
from optuna_treecv.rows.memory import empty_parts

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
        Whether ``memory`` comes from a cache or a store, or is in a file, so that it is not kept.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any = np.float64, rows: PreparedRows | None = None
    ) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        n_bytes = prod(shape) * self._dtype.itemsize + COUNT_BYTES
        if rows is None or rows.file is None:
            self._use(aligned_bytes(n_bytes))
            self.was_kept = False
        else:
            self._use(rows.file.empty((n_bytes,), np.uint8))
            self.was_kept = not self.memory.flags.owndata

    @classmethod
    def of(cls, array: np.ndarray, n_updates: int) -> "ArrayThenCount":
        """Return a copy of an array, together with its count."""
        copy = cls(array.shape, array.dtype)
        copy.array[:] = array
        copy.n_updates = n_updates
        return copy

    @classmethod
    def view(cls, array: np.ndarray, n_updates: int) -> "ArrayThenCount":
        """Return an array that is in a file, with its count, which alone is in ``memory``."""
        view = cls.__new__(cls)
        view.array, view.memory, view.was_kept = array, np.empty(COUNT_BYTES, np.uint8), True
        view.n_updates = n_updates
        return view

    def take(self, memory: np.ndarray) -> None:
        """Use memory from a cache or a store without copying it."""
        self._use(memory)
        self.was_kept = True

    def _use(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.array = memory[:-COUNT_BYTES].view(self._dtype).reshape(self._shape)

    @classmethod
    def side_by_side(
        cls, n_arrays: int, shape: tuple[int, ...], dtype: Any, room: int, rows: PreparedRows
    ) -> "tuple[np.ndarray, list[ArrayThenCount]]":
        """Return an array of several, and each of them with its count; they can go one by one.

        Parameters
        ----------
        n_arrays : int
        shape : tuple of int
            That of each of them.
        dtype : dtype
        room : int
            The first axis of each of them in the whole array, with at least ``COUNT_BYTES`` after
            ``shape``.
        rows : PreparedRows
            Tell whether they are in a file.
        """
        whole_shape = n_arrays, room, *shape[1:]
        if rows.file is not None:
            whole = rows.file.empty(whole_shape, dtype)
            if not whole.flags.owndata:
                return whole, [cls.view(one[: shape[0]], 0) for one in whole]
        memory, parts = empty_parts(n_arrays, prod(whole_shape[1:]) * np.dtype(dtype).itemsize)
        arrays = [cls(shape, dtype) for _ in parts]
        for one, part in zip(arrays, parts, strict=True):
            one._use(part[: len(one.memory)])
        return memory.view(dtype).reshape(whole_shape), arrays

    @property
    def n_updates(self) -> int:
        return int(self.memory[-COUNT_BYTES:].view(np.int64)[0])

    @n_updates.setter
    def n_updates(self, n_updates: int) -> None:
        self.memory[-COUNT_BYTES:].view(np.int64)[0] = n_updates
