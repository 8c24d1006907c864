"""What is kept of models: in memory, bounded in bytes, and behind it perhaps a store.

A key ends with the length of its array; that is all that is known of it here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Sequence
from heapq import heappop
from heapq import heappush
from itertools import count
from math import inf
from operator import attrgetter
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from optuna_treecv.data import aligned_bytes
from optuna_treecv.keys import Key
from optuna_treecv.keys import stored_as
from optuna_treecv.stores import Kept
from optuna_treecv.stores import Known
from optuna_treecv.stores import ModelStore

# What Python itself takes for an array, and for each key under which it is found.
_BLOCK_BYTES = 500
_PLACE_BYTES = 300

_low = attrgetter("low")


class _Block:
    """An array, or rows of one, that stay or go together."""

    __slots__ = ("array", "n_bytes", "places", "priority", "seconds")

    def __init__(self, array: np.ndarray, seconds: float) -> None:
        self.array = array
        self.n_bytes = array.nbytes + _BLOCK_BYTES
        self.seconds = seconds
        self.priority = 0.0, 0  # and when it was given: the older goes first
        self.places: list[tuple[Key, _Place]] = []  # where it is to be found


class _Trail(_Block):
    """States on the way of one training phase: row i of the array is that after ``counts[i]`` rows
    of it, right for the values ``ends[i, 0]..ends[i, 1]``, which narrow along the way.
    """

    __slots__ = ("counts", "ends")

    def __init__(
        self, array: np.ndarray, seconds: float, counts: np.ndarray, ends: np.ndarray
    ) -> None:
        super().__init__(array, seconds)
        self.counts = counts
        self.ends = ends
        self.n_bytes += counts.nbytes + ends.nbytes


class _Place:
    """What is right for all values low..high of the hyper-parameter left out of the key."""

    __slots__ = ("array", "block", "high", "low")

    def __init__(self, array: np.ndarray, low: float, high: float, block: _Block) -> None:
        self.array = array
        self.low = low
        self.high = high
        self.block = block


class ModelCache:
    """Models in memory, for all trials and threads of an objective, or of several.

    When room is needed, those go first that are rebuilt in the fewest seconds a byte. What has not
    been asked for grows cheaper with every entry that has to go (GreedyDual-Size, Cao and Irani
    1997), so that no old model stays for ever. Losing an entry costs time only.

    Parameters
    ----------
    max_bytes : int, default=256 MiB
        Room for models and what Python needs around them.

    Attributes
    ----------
    n_bytes : int
        Taken at present.

    See Also
    --------
    treecv_objective : Makes one of its own by default; give the same one to several to let them
        share models of the same rows.

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
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 0:
            raise ValueError(f"max_bytes must be a number of bytes, got {max_bytes!r}.")
        self.max_bytes = max_bytes
        self._clear()

    def _clear(self) -> None:
        self.n_bytes = 0
        self._kept: dict[Key, list[_Place]] = {}  # by low; no two overlap
        self._trails: dict[Key, list[_Place]] = {}
        self._next_to_go: list[tuple[tuple[float, int], _Block]] = []
        self._level = 0.0  # the priority of the last block that had to go
        self._ticks = count()
        self._at_work: dict[tuple[Key, float], Lock] = {}
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"max_bytes": self.max_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.max_bytes = state["max_bytes"]
        self._clear()

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._kept.values()))

    def find(self, key: Key, x: float = 0.0) -> np.ndarray | None:
        """Look up an array.

        Parameters
        ----------
        key : tuple
            What it was made from.
        x : float
            The value of the hyper-parameter that is not in the key.

        Returns
        -------
        ndarray or None
            One kept under the key that is right for the value; not to be changed.
        """
        with self._lock:
            return self._find(key, x)

    def has_any(self, keys: Iterable[Key], x: float = 0.0) -> bool:
        """Look up several keys at once.

        Parameters
        ----------
        keys : iterable of tuple
            As of ``find``.
        x : float
            As of ``find``.

        Returns
        -------
        bool
            Whether ``find`` would find any.
        """
        with self._lock:
            return any(key in self._kept and self._find(key, x) is not None for key in keys)

    def keep(
        self,
        key: Key,
        array: np.ndarray,
        seconds: float,
        low: float = -inf,
        high: float = inf,
    ) -> None:
        """Keep an array, if it is worth its room.

        Parameters
        ----------
        key : tuple
            What it was made from.
        array : ndarray
            Not to be changed from now on.
        seconds : float
            What it would take to make it again.
        low, high : float
            It is right for all values between them of the hyper-parameter not in the key.
        """
        block = _Block(array, seconds)
        with self._lock:
            self._place(key, array, low, high, block)
            self._admit(block)

    def keep_all(
        self,
        keys: dict[int, Key],
        arrays: np.ndarray,
        seconds: list[float],
        ends: np.ndarray | None = None,
        key: Key | None = None,
    ) -> None:
        """Keep rows of an array under a key each; they stay or go together.

        Parameters
        ----------
        keys : dict of int to tuple
            Which rows, and their keys.
        arrays : ndarray of shape (n_rows, n_bytes)
            Not to be changed from now on.
        seconds : list of float
            What it would take to make each of these rows again, in the order of the keys.
        ends : ndarray of shape (n_rows, 2), default=None
            The low and the high of every row, as of ``keep``.
        key : tuple, default=None
            Of the whole array, which is right where all its rows are.
        """
        block = _Block(arrays, sum(seconds))
        low, high = -inf, inf
        if ends is not None:  # two lists, not a list a row: collecting garbage would take longer
            lows, highs = ends[:, 0].tolist(), ends[:, 1].tolist()
        with self._lock:
            for i, of_row in keys.items():
                if ends is not None:
                    low, high = lows[i], highs[i]
                self._place(of_row, arrays[i], low, high, block)
            if key is not None:
                if ends is not None:
                    low, high = float(ends[:, 0].max()), float(ends[:, 1].min())
                self._place(key, arrays, low, high, block)
            self._admit(block)

    def find_on_trails(self, key: Key, x: float) -> tuple[int, np.ndarray] | None:
        """Look up the furthest state on any trail.

        Parameters
        ----------
        key : tuple
            Of a training phase.
        x : float
            As of ``find``.

        Returns
        -------
        (int, ndarray) or None
            The rows of the phase it has seen, and the state.
        """
        with self._lock:
            best = None
            for place in self._trails.get(key, ()):
                if place.low <= x <= place.high:
                    trail = place.block
                    assert isinstance(trail, _Trail)
                    ends = trail.ends
                    at = int(np.count_nonzero((ends[:, 0] <= x) & (x <= ends[:, 1]))) - 1
                    if best is None or trail.counts[at] > best[0]:
                        best = int(trail.counts[at]), trail.array[at]
                        found = trail
            if best is not None:
                self._touch(found)
            return best

    def keep_trail(
        self,
        key: Key,
        states: np.ndarray,
        seconds: float,
        counts: np.ndarray,
        ends: np.ndarray,
    ) -> None:
        """Keep states from along a training phase.

        Parameters
        ----------
        key : tuple
            Of the phase.
        states : ndarray of shape (n_states, n_bytes)
            Not to be changed from now on.
        seconds : float
            What the phase took.
        counts : ndarray of shape (n_states,), int64
            The rows of the phase each has seen, rising.
        ends : ndarray of shape (n_states, 2), float64
            The low and the high of each, as of ``keep``.
        """
        trail = _Trail(states, seconds, counts, ends)
        place = _Place(states, float(ends[0, 0]), float(ends[0, 1]), trail)
        with self._lock:
            self._trails.setdefault(key, []).append(place)
            trail.places.append((key, place))
            self._admit(trail)

    def claim(self, key: Key, x: float = 0.0) -> np.ndarray | None:
        """Look up an array, or take it upon oneself to make it.

        Whoever asks in the meantime waits, and if nothing comes of it makes it in turn.

        Parameters
        ----------
        key : tuple
            As of ``find``.
        x : float
            As of ``find``.

        Returns
        -------
        ndarray or None
            What is kept; None: it is the caller's to make, and to ``release`` in any case.
        """
        while True:
            with self._lock:
                found = self._find(key, x)
                if found is not None:
                    return found
                maker = self._at_work.get((key, x))
                if maker is None:
                    mine = self._at_work[key, x] = Lock()
                    mine.acquire()
                    return None
            with maker:
                pass

    def release(self, key: Key, x: float = 0.0) -> None:
        """End a claim.

        Parameters
        ----------
        key : tuple
            As of ``claim``.
        x : float
            As of ``claim``.
        """
        with self._lock:
            self._at_work.pop((key, x)).release()

    def _find(self, key: Key, x: float) -> np.ndarray | None:
        places = self._kept.get(key)
        if places is None:
            return None
        at = bisect_right(places, x, key=_low) - 1
        if at < 0 or places[at].high < x:
            return None
        self._touch(places[at].block)
        return places[at].array

    def _place(self, key: Key, array: np.ndarray, low: float, high: float, block: _Block) -> None:
        """Let a block be found under a key, unless what is there already is the same."""
        if low > high:  # a state may outlive its own interval, in one that was made wider
            return
        places = self._kept.get(key)
        if places is None:
            places = self._kept[key] = []
        first = last = bisect_right(places, high, key=_low)
        while first > 0 and places[first - 1].high >= low:
            first -= 1
        if first < last:
            # Who shares a value with another is the same model, so all their values are good.
            same = places[first]
            same.low = min(same.low, low)
            same.high = max(high, places[last - 1].high)
            for other in places[first + 1 : last]:
                other.block.places.remove((key, other))
            del places[first + 1 : last]
        else:
            place = _Place(array, low, high, block)
            places.insert(first, place)
            block.places.append((key, place))
            block.n_bytes += _PLACE_BYTES

    def _touch(self, block: _Block) -> None:
        block.priority = self._level + block.seconds / block.n_bytes, next(self._ticks)

    def _admit(self, block: _Block) -> None:
        """Count a block in, and others, or itself, out."""
        self.n_bytes += block.n_bytes
        if not block.places or block.n_bytes > self.max_bytes:
            self._drop(block)
            return
        self._touch(block)
        heappush(self._next_to_go, (block.priority, block))
        while self.n_bytes > self.max_bytes:
            priority, least = heappop(self._next_to_go)
            if least.priority > priority:  # it has been asked for since
                heappush(self._next_to_go, (least.priority, least))
            else:
                self._level = priority[0]
                self._drop(least)

    def _drop(self, block: _Block) -> None:
        self.n_bytes -= block.n_bytes
        kept = self._trails if isinstance(block, _Trail) else self._kept
        for key, place in block.places:
            kept[key].remove(place)
            if not kept[key]:
                del kept[key]


# Seconds of training between two writings to a store, which is what a killed worker loses; and
# what is not worth one: a store takes about a millisecond a model, and a second for 50 MB.
_SECONDS_A_WRITING = 2.0
_SECONDS_A_MODEL = 1e-3
_SECONDS_A_BYTE = 1 / 50e6

# What others wait for is written in parts of so many bytes, in between which they can write too.
_BYTES_A_WRITING = 2**24


class StoredModelCache:
    """A ``ModelCache`` before a store that other processes, and later ones, share: it has the same
    methods.

    A store that is lost costs time only.

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
        self._known: dict[bytes, list[Known]] = {}  # what the store holds
        self._seconds = 0.0  # of training since the last writing
        self._to_write: list[Kept] = []
        self._lock = Lock()

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
        """Have arrays in the store at once, whatever they are worth: others wait for them.

        Parameters
        ----------
        kept : iterable of (key, array, seconds)
            As of ``keep``.
        """
        part: list[Kept] = []
        for key, array, seconds in kept:
            part.append(Kept(stored_as(key), array, seconds))
            if sum(one.payload.nbytes for one in part) >= _BYTES_A_WRITING:
                self._store.write(part)
                part = []
        if part:
            self._store.write(part)

    def _where(self, key: Key, x: float) -> Known | None:
        """Where the store holds what is asked for."""
        with self._lock:
            for known in self._store.news():
                self._known.setdefault(known.key, []).append(known)
            if self._known:
                for known in self._known.get(stored_as(key), ()):
                    if known.low is None or known.high is None or known.low <= x <= known.high:
                        return known
        return None

    def _fetch(self, key: Key, x: float) -> np.ndarray | None:
        """From the store into memory."""
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
        self.memory.keep(key, aligned, perf_counter() - began, *ends)  # it can be fetched again
        return aligned

    def _gather(
        self,
        keys: list[Key],
        arrays: list[np.ndarray],
        seconds: list[float],
        ends: Sequence[Sequence[float]],
    ) -> None:
        """Put aside what is worth writing, and write it when enough has gathered."""
        with self._lock:
            self._seconds += sum(seconds)
            for key, array, own, (low, high) in zip(keys, arrays, seconds, ends, strict=True):
                if own > _SECONDS_A_MODEL + _SECONDS_A_BYTE * array.nbytes:
                    domain = (None, None) if low == -inf else (low, high)
                    self._to_write.append(Kept(stored_as(key), array, own, *domain))
            if self._seconds < _SECONDS_A_WRITING:
                return
            to_write, self._to_write, self._seconds = self._to_write, [], 0.0
        if to_write:
            self._store.write(to_write)
