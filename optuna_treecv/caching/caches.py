"""Caches of models and results: in memory, bounded in bytes, with or without a store behind them.

The keys of models end with the lengths of their arrays in bytes, for stores.
"""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from heapq import heappop
from heapq import heappush
from itertools import count
from math import prod
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from optuna_treecv.caching.keys import Key
from optuna_treecv.caching.keys import stored_as
from optuna_treecv.rows.checks import check_bytes as check_bytes  # for study, too
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.memory import aligned_bytes
from optuna_treecv.rows.memory import empty_parts
from optuna_treecv.storage.model_store import Kept
from optuna_treecv.storage.model_store import Known
from optuna_treecv.storage.model_store import ModelStore

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


# The bytes that Python itself needs for an array, and for each key under which it is found.
_BLOCK_BYTES = 750
_PLACE_BYTES = 600


class _Block:
    """An array, or rows of an array, that are kept or dropped together."""

    __slots__ = ("keys", "n_bytes", "priority", "seconds")

    def __init__(self, array: Any, seconds: float) -> None:
        self.n_bytes = array.nbytes + _BLOCK_BYTES
        self.seconds = seconds
        self.priority = 0.0, 0  # and the tick at which it was set: the older block goes first
        self.keys: list[Hashable] = []  # by which it is found


class ModelCache:
    """Models in memory, shared by all trials and threads of one objective or of several.

    When room is needed, the models that take the fewest seconds per byte to train again are
    dropped first. An ageing term makes sure that a model that nobody asks for leaves eventually
    (GreedyDual-Size, Cao and Irani 1997). Losing a model costs time, never a result.

    Parameters
    ----------
    max_bytes : int, default=256 MiB
        The most bytes for the models and for the Python objects around them.

    Attributes
    ----------
    n_bytes : int
        Bytes in use.

    See Also
    --------
    treecv_objective : Makes its own cache by default. Pass one cache to several objectives to let
        them share the models of the same rows.

    Notes
    -----
    A pickled cache comes back empty.

    Examples
    --------
    >>> from optuna_treecv import ModelCache
    >>> cache = ModelCache(max_bytes=2**30)
    >>> len(cache)
    0
    """

    def __init__(self, max_bytes: int = 256 * 2**20) -> None:
        self.max_bytes = check_bytes("max_bytes", max_bytes)
        self.n_bytes = 0
        self._kept: dict[Hashable, tuple[Any, _Block]] = {}  # arrays, and their blocks
        self._next_to_go: list[tuple[tuple[float, int], _Block]] = []
        self._level = 0.0  # the priority of the block that was dropped last
        self._ticks = count()
        self._claims: dict[Hashable, Lock] = {}
        self._lock = Lock()

    def __reduce__(self) -> "tuple[type[ModelCache], tuple[int]]":
        return type(self), (self.max_bytes,)

    @property
    def memory(self) -> "ModelCache":
        """This cache; one with a store behind it returns its part in memory."""
        return self

    def __len__(self) -> int:
        with self._lock:
            return len(self._kept)

    def find(self, key: Hashable) -> Any:
        """Return an array.

        Parameters
        ----------
        key : tuple
            Names everything that the array was made from.

        Returns
        -------
        ndarray or None
            The array kept under the key. It must not be changed.
        """
        with self._lock:
            return self._find(key)

    def has(self, key: Hashable) -> bool:
        """Return whether an array is kept.

        Parameters
        ----------
        key : tuple
            As for ``find``.

        Returns
        -------
        bool
            Whether ``find`` would return an array. A store need not read it for that.
        """
        return self.find(key) is not None

    def keep(self, key: Hashable, array: Any, seconds: float) -> None:
        """Keep an array, if it is worth its room.

        Parameters
        ----------
        key : tuple
            As for ``find``.
        array : ndarray or another object with ``nbytes``
            Must not be changed from now on.
        seconds : float
            The time to make it again.
        """
        self._admit([(key, array)], _Block(array, seconds))

    def take(self, key: Hashable) -> Any:
        """Return an array, which is no longer kept then, so that it may be changed.

        Parameters
        ----------
        key : tuple
            As for ``find``.

        Returns
        -------
        ndarray or None
            The array that was kept under the key.
        """
        with self._lock:
            array = self._find(key)
            if array is not None:
                self._drop(self._kept[key][1])
            return array

    def keep_all(self, keys: Mapping[int, Key], arrays: np.ndarray, seconds: list[float]) -> None:
        """Keep rows of an array, each under its own key; they are kept or dropped together.

        Parameters
        ----------
        keys : dict of int to tuple
            The key of each row that has one.
        arrays : ndarray of shape (n_rows, n_bytes)
            Must not be changed from now on.
        seconds : list of float
            The time to make each of these rows again, in the order of the keys.
        """
        self._admit([(key, arrays[i]) for i, key in keys.items()], _Block(arrays, sum(seconds)))

    def claim(self, key: Hashable) -> Any:
        """Return an array, or claim the right to make it.

        A thread that asks for a claimed array waits. If the owner releases its claim without
        having kept the array, the next thread gets the claim.

        Parameters
        ----------
        key : tuple
            As for ``find``.

        Returns
        -------
        ndarray or None
            The kept array. None means that the caller now owns the claim: it makes the array, and
            must call ``release`` in any case.
        """
        while True:
            with self._lock:
                array = self._find(key)
                if array is not None:
                    return array
                maker = self._claims.get(key)
                if maker is None:
                    mine = self._claims[key] = Lock()
                    mine.acquire()
                    return None
            with maker:
                pass

    def release(self, key: Hashable) -> None:
        """Release a claim.

        Parameters
        ----------
        key : tuple
            As for ``claim``.
        """
        with self._lock:
            self._claims.pop(key).release()

    def _find(self, key: Hashable) -> Any:
        array, block = self._kept.get(key, (None, None))
        if block is not None:
            self._touch(block)
        return array

    def _touch(self, block: _Block) -> None:
        block.priority = self._level + block.seconds / block.n_bytes, next(self._ticks)

    def _admit(self, arrays: Sequence[tuple[Hashable, Any]], block: _Block) -> None:
        """Add the arrays of a block by their keys, and drop blocks, perhaps it, until all fit."""
        with self._lock:
            for key, array in arrays:
                if key not in self._kept:  # otherwise the same array is there already
                    self._kept[key] = array, block
                    block.keys.append(key)
                    block.n_bytes += _PLACE_BYTES
            self.n_bytes += block.n_bytes
            if not block.keys or block.n_bytes > self.max_bytes:
                self._drop(block)
                return
            self._touch(block)
            heappush(self._next_to_go, (block.priority, block))
            while self.n_bytes > self.max_bytes:
                priority, least = heappop(self._next_to_go)
                if least.priority > priority:  # it has been used since
                    heappush(self._next_to_go, (least.priority, least))
                elif least.keys:  # otherwise it was taken
                    self._level = priority[0]
                    self._drop(least)

    def _drop(self, block: _Block) -> None:
        self.n_bytes -= block.n_bytes
        for key in block.keys:
            del self._kept[key]
        block.keys.clear()


# Seconds of training between two writes to the store, which is what a killed worker loses.
_SECONDS_PER_WRITE = 2.0
# A model is written if training it took longer than writing it: a store takes about a millisecond
# per model, and a second per 50 MB.
_SECONDS_PER_MODEL = 1e-3
_SECONDS_PER_BYTE = 1 / 50e6

# Results that other workers wait for are written in parts of about this size, so that these can
# write in between.
_BYTES_PER_WRITE = 2**24


class StoredModelCache:
    """A ``ModelCache`` in front of a store that other processes share, now and later.

    It has the methods of a ``ModelCache``. Losing the store costs time, never a result. Nobody
    waits for a write, as long as not too many wait.

    Parameters
    ----------
    memory : ModelCache
    store : ModelStore
    of_all : StoredModelCache or None
        The cache of all runs, if this is the cache of one.
    """

    def __init__(
        self, memory: ModelCache, store: ModelStore, of_all: "StoredModelCache | None" = None
    ) -> None:
        self.memory = memory
        self.max_bytes = memory.max_bytes
        self.release = memory.release
        self._store = store
        self._of_all = of_all
        # The store's entries by key.
        self._known: dict[bytes, Known] = {} if of_all is None else of_all._known
        self._lock: Lock = Lock() if of_all is None else of_all._lock
        # Models that are not written yet, and the seconds of training since the last write.
        self._pending: list[Kept] = []
        self._seconds = 0.0

    def of_run(self) -> "StoredModelCache":
        """Return the same cache for one run, which calls ``end`` at its end."""
        return StoredModelCache(self.memory, self._store, self)

    def end(self, comes_again: bool) -> None:
        """Note that a run has ended.

        Parameters
        ----------
        comes_again : bool
            Whether another run may have the same parameters. Otherwise what is not written yet is
            forgotten: it could only have helped a later run to go on after this one was killed.
        """
        pending, seconds = self._taken()
        if comes_again:
            (self if self._of_all is None else self._of_all)._collect(pending, seconds)

    def flush(self) -> None:
        """Write what is collected."""
        self._write(self._taken()[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredModelCache, (self.memory, self._store)

    def find(self, key: Key) -> np.ndarray | None:
        array = self.memory.find(key)
        return self._fetch(key) if array is None else array

    def has(self, key: Key) -> bool:
        return self.memory.has(key) or self._where(key) is not None

    def claim(self, key: Key) -> np.ndarray | None:
        array = self.memory.claim(key)
        if array is not None:
            return array
        try:
            array = self._fetch(key)
        except BaseException:
            self.memory.release(key)
            raise
        if array is not None:
            self.memory.release(key)
        return array

    def keep(self, key: Key, array: np.ndarray, seconds: float) -> None:
        self.memory.keep(key, array, seconds)
        self._gather([(key, array, seconds)])

    def keep_all(self, keys: Mapping[int, Key], arrays: np.ndarray, seconds: list[float]) -> None:
        self.memory.keep_all(keys, arrays, seconds)
        each = zip(keys.items(), seconds, strict=True)
        self._gather([(key, arrays[i], cost) for (i, key), cost in each])

    def write(self, kept: Iterable[tuple[Key, np.ndarray, float]]) -> None:
        """Write arrays to the store as soon as possible, because other workers wait for them.

        Parameters
        ----------
        kept : iterable of (key, array, seconds)
            As for ``keep``.
        """
        part: list[Kept] = []
        for key, array, seconds in kept:
            part.append(Kept(stored_as(key), array, seconds))
            if sum(one.payload.nbytes for one in part) >= _BYTES_PER_WRITE:
                self._write(part)
                part = []
        self._write(part)

    def _write(self, kept: list[Kept]) -> None:
        if kept:
            n_bytes = sum(one.payload.nbytes for one in kept)
            self._store.queue.put(lambda: self._store.write(kept), n_bytes)

    def _where(self, key: Key) -> Known | None:
        """Return the store's entry for a key, the latest one."""
        with self._lock:
            self._known |= {model.key: model for model in self._store.news()}
            return self._known.get(stored_as(key)) if self._known else None

    def _fetch(self, key: Key) -> np.ndarray | None:
        """Load an array from the store into memory."""
        model = self._where(key)
        if model is None:
            return None
        began = perf_counter()
        array = self._store.read(model)
        if array is None or len(array) != key[-1]:
            with self._lock:
                if self._known.get(model.key) == model:  # another thread may have seen it first
                    del self._known[model.key]
            return None
        aligned = aligned_bytes(len(array))
        aligned[:] = array
        aligned.flags.writeable = False
        seconds = perf_counter() - began  # making it again means loading it again
        self.memory.keep(key, aligned, seconds)
        return aligned

    def _gather(self, models: list[tuple[Key, np.ndarray, float]]) -> None:
        """Collect the models that are worth writing: key, array, seconds."""
        pending = [
            Kept(stored_as(key), array, cost)
            for key, array, cost in models
            if cost > _SECONDS_PER_MODEL + _SECONDS_PER_BYTE * array.nbytes
        ]
        self._collect(pending, sum(cost for _, _, cost in models))

    def _collect(self, pending: list[Kept], seconds: float) -> None:
        """Collect models; write all collected ones once they took enough seconds of training."""
        with self._lock:
            self._pending += pending
            self._seconds += seconds
            is_due = self._seconds >= _SECONDS_PER_WRITE
        if is_due:
            self.flush()

    def _taken(self) -> tuple[list[Kept], float]:
        with self._lock:
            taken = self._pending, self._seconds
            self._pending, self._seconds = [], 0.0
            return taken


#: A cache of models, with or without a store.
AnyCache = ModelCache | StoredModelCache
