"""Caches for models and results: in memory with a limited size, or backed by a store.

The last field of a key is the length of the array in bytes, which stores need.
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
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.storage.model_store import NewModel
from optuna_treecv.storage.model_store import StoredModel

#: The number of bytes of the count in an ``ArrayThenCount``.
COUNT_BYTES = 8


class ArrayThenCount:
    """An array and the number of row updates needed to compute it, in one block of memory.

    Caches and stores contain the whole ``memory``: the bytes of ``array``, followed by the count
    (int64) in the last 8 bytes.

    Attributes
    ----------
    memory : ndarray of uint8
    array : ndarray
        The array, as a view of ``memory`` without the count.
    was_kept : bool
        Whether ``memory`` comes from a cache or store or is on disk, so that it need not be
        cached.
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
        """Create an object with a copy of an array and its number of row updates."""
        copy = cls(array.shape, array.dtype)
        copy.array[:] = array
        copy.n_updates = n_updates
        return copy

    @classmethod
    def view(cls, array: np.ndarray, n_updates: int) -> "ArrayThenCount":
        """Create an object for an array on disk; ``memory`` contains only the count."""
        view = cls.__new__(cls)
        view.array, view.memory, view.was_kept = array, np.empty(COUNT_BYTES, np.uint8), True
        view.n_updates = n_updates
        return view

    def take(self, memory: np.ndarray) -> None:
        """Use memory from a cache or store, without copying it."""
        self._use(memory)
        self.was_kept = True

    def _use(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.array = memory[:-COUNT_BYTES].view(self._dtype).reshape(self._shape)

    @classmethod
    def side_by_side(
        cls, n_arrays: int, shape: tuple[int, ...], dtype: Any, room: int, rows: PreparedRows
    ) -> "tuple[np.ndarray, list[ArrayThenCount]]":
        """Allocate several arrays that are contiguous in memory, but can be freed separately.

        Return an array of all of them, and an object for each of them.

        Parameters
        ----------
        n_arrays : int
        shape : tuple of int
            The shape of each array.
        dtype : dtype
        room : int
            The length of the first axis of each array within the array of all. It is larger
            than ``shape[0]``, so that at least ``COUNT_BYTES`` follow each array.
        rows : PreparedRows
            The arrays are on disk if these rows are on disk.
        """
        whole_shape = n_arrays, room, *shape[1:]
        if rows.file is not None:
            whole = rows.file.empty(whole_shape, dtype)
            if not whole.flags.owndata:
                return whole, [cls.view(array[: shape[0]], 0) for array in whole]
        memory, parts = empty_parts(n_arrays, prod(whole_shape[1:]) * np.dtype(dtype).itemsize)
        arrays = [cls(shape, dtype) for _ in parts]
        for array, part in zip(arrays, parts, strict=True):
            array._use(part[: len(array.memory)])
        return memory.view(dtype).reshape(whole_shape), arrays

    @property
    def n_updates(self) -> int:
        return int(self.memory[-COUNT_BYTES:].view(np.int64)[0])

    @n_updates.setter
    def n_updates(self, n_updates: int) -> None:
        self.memory[-COUNT_BYTES:].view(np.int64)[0] = n_updates


# The approximate number of bytes that Python needs for an array besides its entries.
_BYTES_PER_ARRAY = 750
# The approximate number of bytes that Python needs for a key.
_BYTES_PER_KEY = 600


class _Block:
    """An array, or the rows of an array, which are cached and evicted together."""

    __slots__ = ("keys", "n_bytes", "priority", "seconds")

    def __init__(self, array: Any, seconds: float) -> None:
        self.n_bytes = array.nbytes + _BYTES_PER_ARRAY
        self.seconds = seconds
        # The value, and the tick at which it was set: older blocks are evicted first.
        self.priority = 0.0, 0
        self.keys: list[Hashable] = []


class ModelCache:
    """A cache of models in memory, shared by the trials and threads of one or several objectives.

    If the cache is full, models with the smallest training time per byte are evicted first. An
    ageing term ensures that unused models are evicted eventually (GreedyDual-Size, Cao and Irani
    1997). Evictions cost time, but never change results.

    Parameters
    ----------
    max_bytes : int, default=256 MiB
        The maximum size of the models and their Python objects in bytes.

    Attributes
    ----------
    n_bytes : int
        The size of all models in the cache in bytes.

    See Also
    --------
    treecv_objective : Creates a cache by default. Pass the same cache to several objectives to
        share models of the same rows.

    Notes
    -----
    A cache is empty after unpickling.

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
        self._entries: dict[Hashable, tuple[Any, _Block]] = {}  # arrays and their blocks, by key
        self._eviction_queue: list[tuple[tuple[float, int], _Block]] = []
        self._level = 0.0  # the priority of the most recently evicted block
        self._ticks = count()
        self._claims: dict[Hashable, Lock] = {}
        self._lock = Lock()

    def __reduce__(self) -> "tuple[type[ModelCache], tuple[int]]":
        return type(self), (self.max_bytes,)

    @property
    def memory(self) -> "ModelCache":
        """The cache itself, which is in memory."""
        return self

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def find(self, key: Hashable) -> Any:
        """Return the cached array with this key, or None.

        Parameters
        ----------
        key : tuple
            Identifies everything that the array depends on.

        Returns
        -------
        ndarray or None
            The array with this key. It must not be modified.
        """
        with self._lock:
            return self._find(key)

    def has(self, key: Hashable) -> bool:
        """Return whether an array with this key is cached.

        Parameters
        ----------
        key : tuple
            As for ``find``.

        Returns
        -------
        bool
            Whether ``find`` would return an array. An array in a store is not read.
        """
        return self.find(key) is not None

    def keep(self, key: Hashable, array: Any, seconds: float) -> None:
        """Add an array to the cache, if it is worth the memory.

        Parameters
        ----------
        key : tuple
            As for ``find``.
        array : ndarray or another object with ``nbytes``
            The array. It must not be modified any more.
        seconds : float
            The time for computing the array again.
        """
        self._admit([(key, array)], _Block(array, seconds))

    def take(self, key: Hashable) -> Any:
        """Remove an array from the cache and return it. It may then be modified.

        Parameters
        ----------
        key : tuple
            As for ``find``.

        Returns
        -------
        ndarray or None
            The array that had this key, if it was cached.
        """
        with self._lock:
            array = self._find(key)
            if array is not None:
                self._drop(self._entries[key][1])
            return array

    def keep_all(self, keys: Mapping[int, Key], arrays: np.ndarray, seconds: list[float]) -> None:
        """Add the rows of an array, each with a separate key. They are evicted together.

        Parameters
        ----------
        keys : dict of int to tuple
            The keys of rows, by row index; rows without a key are missing.
        arrays : ndarray of shape (n_rows, n_bytes)
            The array. It must not be modified any more.
        seconds : list of float
            The time for computing each of these rows again, in the order of the keys.
        """
        self._admit([(key, arrays[i]) for i, key in keys.items()], _Block(arrays, sum(seconds)))

    def claim(self, key: Hashable) -> Any:
        """Return a cached array, or claim the right to compute it.

        Other threads that claim the same key wait until the claim is released. If its owner did
        not add the array to the cache, one of the waiting threads gets the claim.

        Parameters
        ----------
        key : tuple
            As for ``find``.

        Returns
        -------
        ndarray or None
            The cached array. If it is None, the caller owns the claim. It should then compute and
            add the array, and must call ``release`` in any case.
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
        array, block = self._entries.get(key, (None, None))
        if block is not None:
            self._touch(block)
        return array

    def _touch(self, block: _Block) -> None:
        block.priority = self._level + block.seconds / block.n_bytes, next(self._ticks)

    def _admit(self, arrays: Sequence[tuple[Hashable, Any]], block: _Block) -> None:
        """Add the arrays of a block; evict blocks, possibly this one, until all fit."""
        with self._lock:
            for key, array in arrays:
                if key not in self._entries:  # an array with this key is equal
                    self._entries[key] = array, block
                    block.keys.append(key)
                    block.n_bytes += _BYTES_PER_KEY
            self.n_bytes += block.n_bytes
            if not block.keys or block.n_bytes > self.max_bytes:
                self._drop(block)
                return
            self._touch(block)
            heappush(self._eviction_queue, (block.priority, block))
            while self.n_bytes > self.max_bytes:
                priority, lowest = heappop(self._eviction_queue)
                if lowest.priority > priority:  # it was used since it was queued
                    heappush(self._eviction_queue, (lowest.priority, lowest))
                elif lowest.keys:  # otherwise, it was removed already
                    self._level = priority[0]
                    self._drop(lowest)

    def _drop(self, block: _Block) -> None:
        self.n_bytes -= block.n_bytes
        for key in block.keys:
            del self._entries[key]
        block.keys.clear()


# The seconds of training between two writes to the store. A killed worker loses at most as much.
_SECONDS_PER_WRITE = 2.0
# The time for writing a model to a store is about this many seconds, plus a time per byte. A model
# is written only if training it took longer.
_SECONDS_PER_MODEL = 1e-3
# The seconds per byte for writing a model to a store.
_SECONDS_PER_BYTE = 1 / 50e6

# Results that other workers are waiting for are written in transactions of about this size, so
# that other workers can write in between.
_BYTES_PER_WRITE = 2**24


class StoredModelCache:
    """A ``ModelCache`` backed by a store, which is shared with other processes.

    It has the methods of a ``ModelCache``. Losing the store costs time, but never changes results.
    Writes are asynchronous, unless the queue of writes is full.

    Parameters
    ----------
    memory : ModelCache
    store : ModelStore
    of_all : StoredModelCache or None
        The cache that all runs share, if this object is for a single run; otherwise None.
    """

    def __init__(
        self, memory: ModelCache, store: ModelStore, of_all: "StoredModelCache | None" = None
    ) -> None:
        self.memory = memory
        self.max_bytes = memory.max_bytes
        self.release = memory.release
        self._store = store
        self._of_all = of_all
        # The entries of the store that are known so far, by key.
        self._known: dict[bytes, StoredModel] = {} if of_all is None else of_all._known
        self._lock: Lock = Lock() if of_all is None else of_all._lock
        # The models that have not been written yet.
        self._pending: list[NewModel] = []
        # The seconds of training since the last write.
        self._seconds = 0.0

    def of_run(self) -> "StoredModelCache":
        """Return this cache for a single run, which must call ``end`` when it is finished."""
        return StoredModelCache(self.memory, self._store, self)

    def end(self, may_recur: bool) -> None:
        """Finish a run.

        Parameters
        ----------
        may_recur : bool
            Whether another run may have the same parameters. If not, pending models are discarded,
            because they would only help to resume this run after a crash.
        """
        pending, seconds = self._take_pending()
        if may_recur:
            (self if self._of_all is None else self._of_all)._collect(pending, seconds)

    def flush(self) -> None:
        """Write all pending models."""
        self._write(self._take_pending()[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredModelCache, (self.memory, self._store)

    def find(self, key: Key) -> np.ndarray | None:
        array = self.memory.find(key)
        return self._fetch(key) if array is None else array

    def has(self, key: Key) -> bool:
        return self.memory.has(key) or self._find_entry(key) is not None

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
        pairs = zip(keys.items(), seconds, strict=True)
        self._gather([(key, arrays[i], cost) for (i, key), cost in pairs])

    def write(self, models: Iterable[tuple[Key, np.ndarray, float]]) -> None:
        """Write arrays to the store immediately, because other workers are waiting for them.

        Parameters
        ----------
        models : iterable of (key, array, seconds)
            As for ``keep``.
        """
        part: list[NewModel] = []
        for key, array, seconds in models:
            part.append(NewModel(stored_as(key), array, seconds))
            if sum(model.payload.nbytes for model in part) >= _BYTES_PER_WRITE:
                self._write(part)
                part = []
        self._write(part)

    def _write(self, models: list[NewModel]) -> None:
        if models:
            n_bytes = sum(model.payload.nbytes for model in models)
            self._store.queue.put(lambda: self._store.write(models), n_bytes)

    def _find_entry(self, key: Key) -> StoredModel | None:
        """Return the latest entry of the store with this key, or None."""
        with self._lock:
            self._known |= {model.key: model for model in self._store.read_new()}
            return self._known.get(stored_as(key)) if self._known else None

    def _fetch(self, key: Key) -> np.ndarray | None:
        """Load an array from the store into memory."""
        model = self._find_entry(key)
        if model is None:
            return None
        began = perf_counter()
        array = self._store.read(model)
        if array is None or len(array) != key[-1]:
            with self._lock:
                if self._known.get(model.key) == model:  # another thread may have replaced it
                    del self._known[model.key]
            return None
        aligned = aligned_bytes(len(array))
        aligned[:] = array
        aligned.flags.writeable = False
        seconds = perf_counter() - began  # the time for loading it again
        self.memory.keep(key, aligned, seconds)
        return aligned

    def _gather(self, models: list[tuple[Key, np.ndarray, float]]) -> None:
        """Collect models (key, array, seconds) that are worth the time for writing them."""
        pending = [
            NewModel(stored_as(key), array, cost)
            for key, array, cost in models
            if cost > _SECONDS_PER_MODEL + _SECONDS_PER_BYTE * array.nbytes
        ]
        self._collect(pending, sum(cost for _, _, cost in models))

    def _collect(self, pending: list[NewModel], seconds: float) -> None:
        """Collect models; write them after enough seconds of training."""
        with self._lock:
            self._pending += pending
            self._seconds += seconds
            is_due = self._seconds >= _SECONDS_PER_WRITE
        if is_due:
            self.flush()

    def _take_pending(self) -> tuple[list[NewModel], float]:
        with self._lock:
            taken = self._pending, self._seconds
            self._pending, self._seconds = [], 0.0
            return taken


#: A cache for models and results, with or without a store.
AnyCache = ModelCache | StoredModelCache
