"""Caches of models and results: in memory, bounded in bytes, with or without a store behind them.

The keys of models end with the lengths of their arrays in bytes, for stores.
"""

from bisect import bisect_right
from bisect import insort
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop
from heapq import heappush
from itertools import count
from itertools import repeat
from math import inf
from operator import attrgetter
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.data import aligned_bytes
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import first_key
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import stored_as
from optuna_treecv.storage.model_store import Kept
from optuna_treecv.storage.model_store import Known
from optuna_treecv.storage.model_store import ModelStore

# The bytes that Python itself needs for an array, and for each key under which it is found.
_BLOCK_BYTES = 750
_PLACE_BYTES = 600

_low = attrgetter("low")


def check_bytes(argument: str, value: Any) -> int:
    """Return an argument that is a number of bytes as an int."""
    if not is_integer(value) or value < 0:
        raise ValueError(f"{argument} must be a number of bytes of at least 0, got {value!r}.")
    return int(value)


class _Block:
    """An array, or rows of an array, that are kept or dropped together."""

    __slots__ = ("array", "n_bytes", "places", "priority", "seconds")

    def __init__(self, array: Any, seconds: float) -> None:
        self.array = array
        self.n_bytes = array.nbytes + _BLOCK_BYTES
        self.seconds = seconds
        self.priority = 0.0, 0  # and the tick at which it was set: the older block goes first
        self.places: list[tuple[Key, Any]] = []  # what it is found by, a _Place or a _Trail


class _Trail(_Block):
    """States along one training phase.

    Row i of the array is the state after ``counts[i]`` rows of the phase. It is valid for the
    values ``ends[i, 0]`` to ``ends[i, 1]`` of the tracked parameter, an interval that narrows
    along the phase. ``low`` is where the last of them begins, ``widest`` the first.
    """

    __slots__ = ("counts", "ends", "low", "widest")

    def __init__(
        self, array: np.ndarray, seconds: float, counts: np.ndarray, ends: np.ndarray
    ) -> None:
        super().__init__(array, seconds)
        self.counts = counts
        self.ends = ends
        self.low = float(ends[-1, 0])
        self.widest: tuple[float, float] = tuple(ends[0].tolist())
        self.n_bytes += counts.nbytes + ends.nbytes + _PLACE_BYTES

    def at(self, x: float) -> int:
        """Return the last row whose state is valid for a value; -1 if none is."""
        low, high = self.widest
        if not low <= x <= high:  # true of most trails
            return -1
        return int(np.count_nonzero((self.ends[:, 0] <= x) & (x <= self.ends[:, 1]))) - 1


@dataclass(eq=False, slots=True)
class _Place:
    """An array that is valid for all values low to high of the parameter left out of the key."""

    array: Any
    low: float
    high: float
    block: _Block


class ModelCache:
    """Models in memory, shared by all trials and threads of one objective or of several.

    When room is needed, the models that take the fewest seconds per byte to train again are
    dropped first. An ageing term makes sure that a model that nobody asks for leaves eventually
    (GreedyDual-Size, Cao and Irani 1997). Losing a model costs time, never a result.

    Parameters
    ----------
    max_bytes : int, default=256 MiB
        Room for the models and for the Python objects around them.

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
        self._kept: dict[Key, list[_Place]] = {}  # sorted by low; no two intervals overlap
        self._trails: dict[Key, list[_Trail]] = {}  # sorted by low
        self._next_to_go: list[tuple[tuple[float, int], _Block]] = []
        self._level = 0.0  # the priority of the block that was dropped last
        self._ticks = count()
        self._claims: dict[tuple[Key, float], Lock] = {}
        self._lock = Lock()

    def __reduce__(self) -> "tuple[type[ModelCache], tuple[int]]":
        return type(self), (self.max_bytes,)

    @property
    def memory(self) -> "ModelCache":
        """The cache in the memory of this process, as of a ``StoredModelCache``."""
        return self

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._kept.values()))

    def find(self, key: Key, x: float = 0.0) -> Any:
        """Look up an array.

        Parameters
        ----------
        key : tuple
            Names everything that the array was made from.
        x : float
            The value of the parameter that is not in the key.

        Returns
        -------
        ndarray or None
            The array kept under the key that is valid for the value. It must not be changed.
        """
        with self._lock:
            return self._find(key, x)

    def has_any(self, keys: Iterable[Key], x: float = 0.0) -> bool:
        """Look up several keys at once.

        Parameters
        ----------
        keys : iterable of tuple
            As for ``find``.
        x : float
            As for ``find``.

        Returns
        -------
        bool
            Whether ``find`` would find an array for any of the keys.
        """
        with self._lock:
            return any(key in self._kept and self._find(key, x) is not None for key in keys)

    def keep(
        self,
        key: Key,
        array: Any,
        seconds: float,
        low: float = -inf,
        high: float = inf,
    ) -> None:
        """Keep an array, if it is worth its room.

        Parameters
        ----------
        key : tuple
            As for ``find``.
        array : ndarray or another object with ``nbytes``
            Must not be changed from now on.
        seconds : float
            The time to make it again.
        low, high : float
            The array is valid for all values between them of the parameter not in the key.
        """
        block = _Block(array, seconds)
        with self._lock:
            self._place(key, array, low, high, block)
            self._admit(block)

    def forget(self, key: Key) -> None:
        """Drop what is kept under a key, so that something else can take its place.

        Parameters
        ----------
        key : tuple
            As for ``find``.
        """
        with self._lock:
            for place in self._kept.get(key, [])[:]:
                self._drop(place.block)

    def keep_all(
        self,
        keys: dict[int, Key],
        arrays: np.ndarray,
        seconds: list[float],
        ends: np.ndarray | None = None,
        key: Key | None = None,
    ) -> None:
        """Keep rows of an array, each under its own key; they are kept or dropped together.

        Parameters
        ----------
        keys : dict of int to tuple
            The key of each row that has one.
        arrays : ndarray of shape (n_rows, n_bytes)
            Must not be changed from now on.
        seconds : list of float
            The time to make each of these rows again, in the order of the keys.
        ends : ndarray of shape (n_rows, 2), default=None
            The ``low`` and ``high`` of every row, as for ``keep``.
        key : tuple, default=None
            The key of the whole array, which is valid where all its rows are.
        """
        block = _Block(arrays, sum(seconds))
        low, high = -inf, inf
        if ends is not None:  # two lists, since a list per row would slow the garbage collector
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
        """Look up the state that has seen the most rows of a training phase.

        Parameters
        ----------
        key : tuple
            Names the phase.
        x : float
            As for ``find``.

        Returns
        -------
        (int, ndarray) or None
            The number of rows of the phase that the state has seen, and the state.
        """
        with self._lock:
            trails = self._trails.get(key, [])
            middle = bisect_right(trails, x, key=_low)
            # At one mark, the intervals of two trails are equal or disjoint. So of the trails on
            # one side, the nearest that is valid for the value is valid for longest.
            furthest = None
            for side in trails[:middle][::-1], trails[middle:]:
                nearest = next(((trail, at) for trail in side if (at := trail.at(x)) >= 0), None)
                if nearest is not None:
                    trail, at = nearest
                    if furthest is None or trail.counts[at] > furthest[0]:
                        furthest = int(trail.counts[at]), trail.array[at]
                        best = trail
            if furthest is not None:
                self._touch(best)
            return furthest

    def keep_trail(
        self,
        key: Key,
        states: np.ndarray,
        seconds: float,
        counts: np.ndarray,
        ends: np.ndarray,
    ) -> None:
        """Keep states along a training phase.

        Parameters
        ----------
        key : tuple
            Names the phase.
        states : ndarray of shape (n_states, n_bytes)
            Must not be changed from now on.
        seconds : float
            The time that the phase took.
        counts : ndarray of shape (n_states,), int64
            The number of rows of the phase that each state has seen, rising.
        ends : ndarray of shape (n_states, 2), float64
            The ``low`` and ``high`` of each state, as for ``keep``.
        """
        trail = _Trail(states, seconds, counts, ends)
        with self._lock:
            insort(self._trails.setdefault(key, []), trail, key=_low)
            trail.places.append((key, trail))
            self._admit(trail)

    def claim(self, key: Key, x: float = 0.0) -> np.ndarray | None:
        """Look up an array, or claim the right to make it.

        A thread that asks for a claimed array waits. If the owner releases its claim without
        having kept the array, the next thread gets the claim.

        Parameters
        ----------
        key : tuple
            As for ``find``.
        x : float
            As for ``find``.

        Returns
        -------
        ndarray or None
            The kept array. None means that the caller now owns the claim: it makes the array, and
            must call ``release`` in any case.
        """
        while True:
            with self._lock:
                array = self._find(key, x)
                if array is not None:
                    return array
                maker = self._claims.get((key, x))
                if maker is None:
                    mine = self._claims[key, x] = Lock()
                    mine.acquire()
                    return None
            with maker:
                pass

    def release(self, key: Key, x: float = 0.0) -> None:
        """Release a claim.

        Parameters
        ----------
        key : tuple
            As for ``claim``.
        x : float
            As for ``claim``.
        """
        with self._lock:
            self._claims.pop((key, x)).release()

    def _find(self, key: Key, x: float) -> Any:
        places = self._kept.get(key)
        if places is None:
            return None
        at = bisect_right(places, x, key=_low) - 1
        if at < 0 or places[at].high < x:
            return None
        self._touch(places[at].block)
        return places[at].array

    def _place(self, key: Key, array: Any, low: float, high: float, block: _Block) -> None:
        """Make a block findable under a key, unless the same model is there already."""
        if low > high:  # trained from a state whose interval was widened, it may have an empty one
            return
        places = self._kept.get(key)
        if places is None:
            places = self._kept[key] = []
        first = last = bisect_right(places, high, key=_low)
        while first > 0 and places[first - 1].high >= low:
            first -= 1
        if first < last:
            # Two models that are valid for the same value are equal, so their intervals unite.
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
        """Add a block, and drop blocks, perhaps this one, until all fit."""
        self.n_bytes += block.n_bytes
        if not block.places or block.n_bytes > self.max_bytes:
            self._drop(block)
            return
        self._touch(block)
        heappush(self._next_to_go, (block.priority, block))
        while self.n_bytes > self.max_bytes:
            priority, least = heappop(self._next_to_go)
            if least.priority > priority:  # it has been used since
                heappush(self._next_to_go, (least.priority, least))
            elif least.places:  # otherwise it is forgotten
                self._level = priority[0]
                self._drop(least)

    def _drop(self, block: _Block) -> None:
        self.n_bytes -= block.n_bytes
        kept = self._trails if isinstance(block, _Trail) else self._kept
        for key, place in block.places:
            kept[key].remove(place)
            if not kept[key]:
                del kept[key]
        block.places.clear()  # they refer to the block, which would wait for the garbage collector
        block.array = None  # a block that is forgotten still stands among those to go


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
        self.find_on_trails = memory.find_on_trails
        self.keep_trail = memory.keep_trail
        self._store = store
        self._of_all = of_all
        # The store's entries by key.
        self._known: dict[bytes, list[Known]] = {} if of_all is None else of_all._known
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
        with self._lock:
            pending, self._pending = self._pending, []
            seconds, self._seconds = self._seconds, 0.0
        if comes_again:
            (self if self._of_all is None else self._of_all)._collect(pending, seconds)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredModelCache, (self.memory, self._store)

    def find(self, key: Key, x: float = 0.0) -> np.ndarray | None:
        array = self.memory.find(key, x)
        return self._fetch(key, x) if array is None else array

    def has_any(self, keys: Iterable[Key], x: float = 0.0) -> bool:
        keys = list(keys)
        return self.memory.has_any(keys, x) or any(self._where(key, x) is not None for key in keys)

    def claim(self, key: Key, x: float = 0.0) -> np.ndarray | None:
        array = self.memory.claim(key, x)
        if array is not None:
            return array
        try:
            array = self._fetch(key, x)
        except BaseException:
            self.memory.release(key, x)
            raise
        if array is not None:
            self.memory.release(key, x)
        return array

    def keep(
        self,
        key: Key,
        array: np.ndarray,
        seconds: float,
        low: float = -inf,
        high: float = inf,
    ) -> None:
        self.memory.keep(key, array, seconds, low, high)
        self._gather([(key, array, seconds, low, high)])

    def keep_all(
        self,
        keys: dict[int, Key],
        arrays: np.ndarray,
        seconds: list[float],
        ends: np.ndarray | None = None,
        key: Key | None = None,
    ) -> None:
        self.memory.keep_all(keys, arrays, seconds, ends, key)
        each = repeat((-inf, inf)) if ends is None else ends[list(keys)].tolist()
        models = zip(keys.items(), seconds, each, strict=False)
        self._gather([(key, arrays[i], cost, *domain) for (i, key), cost, domain in models])

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
            for model in self._store.news():
                self._known.setdefault(model.key, []).append(model)
            if self._known:
                for model in self._known.get(stored_as(key), ()):
                    if model.low is None or model.high is None or model.low <= x <= model.high:
                        return model
        return None

    def _fetch(self, key: Key, x: float) -> np.ndarray | None:
        """Load an array from the store into memory."""
        model = self._where(key, x)
        if model is None:
            return None
        began = perf_counter()
        array = self._store.read(model)
        if array is None or len(array) != key[-1]:
            with self._lock:
                if model in self._known[model.key]:  # another thread may have seen it first
                    self._known[model.key].remove(model)
            return None
        aligned = aligned_bytes(len(array))
        aligned[:] = array
        aligned.flags.writeable = False
        ends = () if model.low is None or model.high is None else (model.low, model.high)
        seconds = perf_counter() - began  # making it again means loading it again
        self.memory.keep(key, aligned, seconds, *ends)
        return aligned

    def _gather(self, models: list[tuple[Key, np.ndarray, float, float, float]]) -> None:
        """Collect the models that are worth writing: key, array, seconds, ends of the interval."""
        pending = []
        for key, array, cost, low, high in models:
            if cost > _SECONDS_PER_MODEL + _SECONDS_PER_BYTE * array.nbytes:
                domain = (None, None) if low == -inf else (low, high)
                pending.append(Kept(stored_as(key), array, cost, *domain))
        self._collect(pending, sum(cost for _, _, cost, _, _ in models))

    def _collect(self, pending: list[Kept], seconds: float) -> None:
        """Collect models; write all collected ones once they took enough seconds of training."""
        with self._lock:
            self._pending += pending
            self._seconds += seconds
            if self._seconds < _SECONDS_PER_WRITE:
                return
            due, self._pending, self._seconds = self._pending, [], 0.0
        self._write(due)


#: A cache of models, with or without a store.
AnyCache = ModelCache | StoredModelCache


def keep_scores(
    cache: AnyCache, key: Key, array: np.ndarray, seconds: float, least_seconds: float
) -> None:
    """Keep fold scores; write them to a store at once if they took over ``least_seconds``."""
    array.flags.writeable = False
    cache.memory.keep(key, array, seconds)
    if isinstance(cache, StoredModelCache) and seconds > least_seconds:
        cache.write([(key, array, seconds)])


def keys_of(
    cache: AnyCache | None, estimators: Sequence[Any], last: bool
) -> tuple[AnyCache | None, list[bytes] | None]:
    """Return the cache for the scores of estimators, and the keys of the estimators in it.

    A store only gets what later processes know by the same name: estimators of installed packages,
    on data whose name lasts. The keys are None where an estimator has none.
    """
    of_memory = None if cache is None else cache.memory
    places: list[tuple[AnyCache | None, list[Callable[[Any], bytes]]]] = [
        (of_memory, [encode, lasting_key])  # functions have lasting keys only
    ]
    if last and isinstance(cache, StoredModelCache):
        places.insert(0, (cache, [lasting_key]))
    for place, kinds in places:
        keys = [key for one in estimators if (key := first_key(one, *kinds)) is not None]
        if len(keys) == len(estimators):
            return place, keys
    return of_memory, None
