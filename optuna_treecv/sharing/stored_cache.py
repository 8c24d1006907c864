"""A cache in memory with a database behind it that several processes share."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from math import inf
from threading import Lock
from time import perf_counter
from typing import Any
from typing import TypeAlias

import numpy as np

from optuna_treecv.rows.data import aligned_bytes
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.keys import stored_as
from optuna_treecv.sharing.memory_cache import ModelCache
from optuna_treecv.storage.model_store import Kept
from optuna_treecv.storage.model_store import Known
from optuna_treecv.storage.model_store import ModelStore

# Seconds of training between two writes to the store, which is what a killed worker loses.
_SECONDS_PER_WRITE = 2.0
# A model is written if training it took longer than writing it: a store takes about a millisecond
# per model, and a second per 50 MB.
_SECONDS_PER_MODEL = 1e-3
_SECONDS_PER_BYTE = 1 / 50e6

# Results that other workers wait for are written in parts of about this size, so that these can
# write in between.
_BYTES_PER_WRITE = 2**24


class _Pending:
    """Models that are not written yet, and the seconds of training since the last write."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self.seconds = 0.0

    def take_if_due(self) -> list[Kept]:
        if self.seconds < _SECONDS_PER_WRITE:
            return []
        due, self.kept, self.seconds = self.kept, [], 0.0
        return due


class StoredModelCache:
    """A ``ModelCache`` in front of a store that other processes share, now and later.

    It has the methods of a ``ModelCache``. Losing the store costs time, never a result. Nobody
    waits for a write, as long as not too many wait.

    Parameters
    ----------
    memory : ModelCache
    store : ModelStore
    """

    def __init__(self, memory: ModelCache, store: ModelStore) -> None:
        self.memory = memory
        self.max_bytes = memory.max_bytes
        self.release = memory.release
        self.find_on_trails = memory.find_on_trails
        self.keep_trail = memory.keep_trail
        self._store = store
        self._known: dict[bytes, list[Known]] = {}  # the store's entries by key
        self._pending, self._of_all = _Pending(), _Pending()
        self._lock = Lock()

    def of_run(self) -> StoredModelCache:
        """Return the same cache for one run, which calls ``end`` at its end."""
        cache = StoredModelCache(self.memory, self._store)
        cache._known, cache._of_all, cache._lock = self._known, self._of_all, self._lock
        return cache

    def end(self, comes_again: bool) -> None:
        """Take note that a run has ended.

        Parameters
        ----------
        comes_again : bool
            Whether another run may have the same parameters. Otherwise what is not written yet is
            forgotten: it could only have helped a later run to go on after this one was killed.
        """
        with self._lock:
            mine, self._pending = self._pending, _Pending()
            if not comes_again:
                return
            self._of_all.kept += mine.kept
            self._of_all.seconds += mine.seconds
            due = self._of_all.take_if_due()
        self._write(due)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredModelCache, (self.memory, self._store)

    def find(self, key: Key, x: float = 0.0) -> np.ndarray | None:
        found = self.memory.find(key, x)
        return self._fetch(key, x) if found is None else found

    def has_any(self, keys: Iterable[Key], x: float = 0.0) -> bool:
        keys = list(keys)
        return self.memory.has_any(keys, x) or any(self._where(key, x) is not None for key in keys)

    def claim(self, key: Key, x: float = 0.0) -> np.ndarray | None:
        found = self.memory.claim(key, x)
        if found is not None:
            return found
        try:
            found = self._fetch(key, x)
        except BaseException:
            self.memory.release(key, x)
            raise
        if found is not None:
            self.memory.release(key, x)
        return found

    def keep(
        self,
        key: Key,
        array: np.ndarray,
        seconds: float,
        low: float = -inf,
        high: float = inf,
    ) -> None:
        self.memory.keep(key, array, seconds, low, high)
        self._gather([key], [array], [seconds], [(low, high)])

    def keep_all(
        self,
        keys: dict[int, Key],
        arrays: np.ndarray,
        seconds: list[float],
        ends: np.ndarray | None = None,
        key: Key | None = None,
    ) -> None:
        self.memory.keep_all(keys, arrays, seconds, ends, key)
        each = None if ends is None else ends.tolist()
        self._gather(
            list(keys.values()),
            [arrays[i] for i in keys],
            seconds,
            [(-inf, inf) if each is None else each[i] for i in keys],
        )

    def write(self, kept: Iterable[tuple[Key, np.ndarray, float]]) -> None:
        """Write arrays to the store as soon as possible, since other workers wait for them.

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

    def _where(self, key: Key, x: float) -> Known | None:
        """Return the store's entry for a key, if it has one that is valid for the value."""
        with self._lock:
            for known in self._store.news():
                self._known.setdefault(known.key, []).append(known)
            if self._known:
                for known in self._known.get(stored_as(key), ()):
                    if known.low is None or known.high is None or known.low <= x <= known.high:
                        return known
        return None

    def _fetch(self, key: Key, x: float) -> np.ndarray | None:
        """Load an array from the store into memory."""
        known = self._where(key, x)
        if known is None:
            return None
        began = perf_counter()
        array = self._store.read(known)
        if array is None or len(array) != key[-1]:
            with self._lock:
                if known in self._known[known.key]:  # another thread may have seen it first
                    self._known[known.key].remove(known)
            return None
        aligned = aligned_bytes(len(array))
        aligned[:] = array
        aligned.flags.writeable = False
        ends = () if known.low is None or known.high is None else (known.low, known.high)
        self.memory.keep(
            key, aligned, perf_counter() - began, *ends
        )  # making it again means loading it again
        return aligned

    def _gather(
        self,
        keys: list[Key],
        arrays: list[np.ndarray],
        seconds: list[float],
        ends: Sequence[Sequence[float]],
    ) -> None:
        """Collect the arrays that are worth writing; write them when enough time has passed."""
        with self._lock:
            pending = self._pending
            pending.seconds += sum(seconds)
            for key, array, own, (low, high) in zip(keys, arrays, seconds, ends, strict=True):
                if own > _SECONDS_PER_MODEL + _SECONDS_PER_BYTE * array.nbytes:
                    domain = (None, None) if low == -inf else (low, high)
                    pending.kept.append(Kept(stored_as(key), array, own, *domain))
            due = pending.take_if_due()
        self._write(due)


#: Where models are kept.
AnyCache: TypeAlias = ModelCache | StoredModelCache
