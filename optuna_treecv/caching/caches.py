"""Caches of models and results in memory, limited in bytes, optionally backed by a store.

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
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.storage.model_store import NewModel
from optuna_treecv.storage.model_store import StoredModel

#: The bytes of the count in an ``ArrayThenCount``.
COUNT_BYTES = 8


class ArrayThenCount:
    """An array and the number of row updates that it took, in one block of memory.

    Caches and stores contain the whole ``memory``: the bytes of ``array``, then the count (int64)
    in the last 8 bytes.

    Attributes
    ----------
    memory : ndarray of uint8
    array : ndarray
        A view of ``memory`` without the count.
    was_kept : bool
        Whether ``memory`` comes from a cache or a store, or is on disk, so that it is not cached.
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
        """Return an array on disk with its count; only the count is in ``memory``."""
        view = cls.__new__(cls)
        view.array, view.memory, view.was_kept = array, np.empty(COUNT_BYTES, np.uint8), True
        view.n_updates = n_updates
        return view

    def take(self, memory: np.ndarray) -> None:
        """Use memory of a cache or a store without a copy."""
        self._use(memory)
        self.was_kept = True

    def _use(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.array = memory[:-COUNT_BYTES].view(self._dtype).reshape(self._shape)

    @classmethod
    def side_by_side(
        cls, n_arrays: int, shape: tuple[int, ...], dtype: Any, room: int, rows: PreparedRows
    ) -> "tuple[np.ndarray, list[ArrayThenCount]]":
        """Return an array of several arrays, and each with its count, to be freed separately.

        Parameters
        ----------
        n_arrays : int
        shape : tuple of int
            The shape of each.
        dtype : dtype
        room : int
            The first axis of each in the whole array, with at lowest ``COUNT_BYTES`` after
            ``shape``.
        rows : PreparedRows
            The arrays are on disk if the rows are.
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


# The bytes that Python needs for an array, and for each of its keys.
_BYTES_PER_ARRAY = 750
_BYTES_PER_KEY = 600


class _Block:
    """An array, or rows of an array, that are cached and evicted together."""

    __slots__ = ("keys", "n_bytes", "priority", "seconds")

    def __init__(self, array: Any, seconds: float) -> None:
        self.n_bytes = array.nbytes + _BYTES_PER_ARRAY
        self.seconds = seconds
        self.priority = 0.0, 0  # and the tick at which it was set: older blocks are evicted first
        self.keys: list[Hashable] = []


class ModelCache:
    """Models in memory, shared by all trials and threads of one objective or of several.

    If memory is needed, the models that take the fewest seconds per byte to train again are
    evicted first. An ageing term ensures that unused models are evicted eventually
    (GreedyDual-Size, Cao and Irani 1997). An eviction costs time, but never changes a result.

    Parameters
    ----------
    max_bytes : int, default=256 MiB
        The maximum number of bytes of the models and their Python objects.

    Attributes
    ----------
    n_bytes : int
        The number of bytes in use.

    See Also
    --------
    treecv_objective : Creates a cache by default. Pass one cache to several objectives to share
        the models of the same rows.

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
        self._entries: dict[Hashable, tuple[Any, _Block]] = {}  # arrays, and their blocks
        self._eviction_queue: list[tuple[tuple[float, int], _Block]] = []
        self._level = 0.0  # the priority of the block that was evicted last
        self._ticks = count()
        self._claims: dict[Hashable, Lock] = {}
        self._lock = Lock()

    def __reduce__(self) -> "tuple[type[ModelCache], tuple[int]]":
        return type(self), (self.max_bytes,)

    @property
    def memory(self) -> "ModelCache":
        """The cache in memory: this one."""
        return self

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def find(self, key: Hashable) -> Any:
        """Return a cached array.

        Parameters
        ----------
        key : tuple
            Identifies everything on which the array depends.

        Returns
        -------
        ndarray or None
            The array with this key, which must not be changed.
        """
        with self._lock:
            return self._find(key)

    def has(self, key: Hashable) -> bool:
        """Return whether an array is cached.

        Parameters
        ----------
        key : tuple
            As for ``find``.

        Returns
        -------
        bool
            Whether ``find`` would return an array; a store does not read it.
        """
        return self.find(key) is not None

    def keep(self, key: Hashable, array: Any, seconds: float) -> None:
        """Add an array to the cache, if it is worth its memory.

        Parameters
        ----------
        key : tuple
            As for ``find``.
        array : ndarray or another object with ``nbytes``
            Must not be changed any more.
        seconds : float
            The time to compute it again.
        """
        self._admit([(key, array)], _Block(array, seconds))

    def take(self, key: Hashable) -> Any:
        """Remove an array from the cache and return it, so that it may be changed.

        Parameters
        ----------
        key : tuple
            As for ``find``.

        Returns
        -------
        ndarray or None
            The array that had this key.
        """
        with self._lock:
            array = self._find(key)
            if array is not None:
                self._drop(self._entries[key][1])
            return array

    def keep_all(self, keys: Mapping[int, Key], arrays: np.ndarray, seconds: list[float]) -> None:
        """Add rows of an array with separate keys, which are cached and evicted together.

        Parameters
        ----------
        keys : dict of int to tuple
            The key of each row that has one.
        arrays : ndarray of shape (n_rows, n_bytes)
            Must not be changed any more.
        seconds : list of float
            The time to compute each of these rows again, in the order of the keys.
        """
        self._admit([(key, arrays[i]) for i, key in keys.items()], _Block(arrays, sum(seconds)))

    def claim(self, key: Hashable) -> Any:
        """Return a cached array, or claim the right to compute it.

        Other threads that claim the array wait. If the owner releases its claim without adding the
        array, the next thread gets the claim.

        Parameters
        ----------
        key : tuple
            As for ``find``.

        Returns
        -------
        ndarray or None
            The cached array. None: the caller owns the claim, computes the array, and must call
            ``release`` in any case.
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
        """Add the arrays of a block, and evict blocks, perhaps this one, until all fit."""
        with self._lock:
            for key, array in arrays:
                if key not in self._entries:  # otherwise the same array is cached already
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
                if lowest.priority > priority:  # it has been used since
                    heappush(self._eviction_queue, (lowest.priority, lowest))
                elif lowest.keys:  # otherwise it was removed
                    self._level = priority[0]
                    self._drop(lowest)

    def _drop(self, block: _Block) -> None:
        self.n_bytes -= block.n_bytes
        for key in block.keys:
            del self._entries[key]
        block.keys.clear()


# Seconds of training between two writes to the store: the most that a killed worker loses.
_SECONDS_PER_WRITE = 2.0
# A model is written if training it took longer than writing it: a store takes about a millisecond
# per model, and a second per 50 MB.
_SECONDS_PER_MODEL = 1e-3
_SECONDS_PER_BYTE = 1 / 50e6

# Results that other workers wait for are written in parts of about this size, so that others can
# write in between.
_BYTES_PER_WRITE = 2**24


class StoredModelCache:
    """A ``ModelCache`` backed by a store that current and later processes share.

    It has the methods of a ``ModelCache``. Losing the store costs time, but never changes a
    result. Writes are asynchronous unless too many are queued.

    Parameters
    ----------
    memory : ModelCache
    store : ModelStore
    of_all : StoredModelCache or None
        The cache of all runs, if this is the cache of one run.
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
        self._known: dict[bytes, StoredModel] = {} if of_all is None else of_all._known
        self._lock: Lock = Lock() if of_all is None else of_all._lock
        # Models that are not written yet, and the seconds of training since the last write.
        self._pending: list[NewModel] = []
        self._seconds = 0.0

    def of_run(self) -> "StoredModelCache":
        """Return the same cache for one run, which calls ``end`` at its end."""
        return StoredModelCache(self.memory, self._store, self)

    def end(self, comes_again: bool) -> None:
        """End a run.

        Parameters
        ----------
        comes_again : bool
            Whether another run may have the same parameters. Otherwise pending models are dropped,
            because they could only help to resume this run after a crash.
        """
        pending, seconds = self._take_pending()
        if comes_again:
            (self if self._of_all is None else self._of_all)._collect(pending, seconds)

    def flush(self) -> None:
        """Write the collected models."""
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
        """Write arrays to the store as soon as possible, because other workers wait for them.

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
        """Return the latest entry of the store with a key."""
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
                if self._known.get(model.key) == model:  # another thread may have seen it first
                    del self._known[model.key]
            return None
        aligned = aligned_bytes(len(array))
        aligned[:] = array
        aligned.flags.writeable = False
        seconds = perf_counter() - began  # the time to load it again
        self.memory.keep(key, aligned, seconds)
        return aligned

    def _gather(self, models: list[tuple[Key, np.ndarray, float]]) -> None:
        """Collect those of the models (key, array, seconds) that are worth writing."""
        pending = [
            NewModel(stored_as(key), array, cost)
            for key, array, cost in models
            if cost > _SECONDS_PER_MODEL + _SECONDS_PER_BYTE * array.nbytes
        ]
        self._collect(pending, sum(cost for _, _, cost in models))

    def _collect(self, pending: list[NewModel], seconds: float) -> None:
        """Collect models; write all of them once they took enough seconds of training."""
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


#: A cache of models, with or without a store.
AnyCache = ModelCache | StoredModelCache
