"""The state that runs of a cross-validation share: keys of rows, the cache, cached scores."""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from threading import Lock
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.caching.caches import AnyCache
from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.caches import StoredModelCache
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.caching.keys import is_ours
from optuna_treecv.caching.keys import Key
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.caching.keys import SCORED_BY
from optuna_treecv.caching.keys import token
from optuna_treecv.caching.keys import under_configuration
from optuna_treecv.caching.prefix import Prefix
from optuna_treecv.scoring.metrics import Scoring

# The maximum number of repeats whose prefixes are cached, and of prefixes of one repeat. A prefix
# takes about a kilobyte, and a hyper-parameter with an influence from some row on, such as
# ``average_start``, adds some for each of its values.
_MAX_ROOTS = 8
_MAX_PREFIXES = 2**14


class SharedBetweenRuns:
    """The models and results of one cross-validation, and their keys.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
        The cache of models and results; None: no cache.
    with_others : bool
        Whether other evaluations may use the same cache. If so, keys of rows are their digests.
    """

    def __init__(self, cache: AnyCache | None, with_others: bool) -> None:
        self.cache = cache
        self._with_others = with_others
        self._names: dict[Hashable, tuple[bytes, bool]] = {}
        self._roots: dict[bytes, Prefix] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedBetweenRuns, (self.cache, self._with_others)

    @property
    def memory(self) -> ModelCache | None:
        """The cache of this process, without a store."""
        return None if self.cache is None else self.cache.memory

    def key_for(self, what: Hashable, content: Callable[[], bytes | None]) -> tuple[bytes, bool]:
        """Return a key of data, and whether it is the same in later processes.

        Parameters
        ----------
        what : hashable
            Identifies the data within this evaluation, so that they are read once.
        content : callable
            () -> digest of the data, or None.
        """
        if what not in self._names:  # without the lock, because content may wait for others
            name = content() if self._with_others else None
            self._names.setdefault(what, (name or token(), name is not None))
        return self._names[what]

    def root(self, rows: bytes) -> Prefix:
        """Return the empty prefix over the rows with this key.

        The prefixes of a few repeats are cached, only for speed: a new one has the same key.
        """
        with self._lock:
            root = self._roots.pop(rows, None)
            if root is None or root.n_prefixes[0] > _MAX_PREFIXES:
                root = Prefix(rows)
            self._roots[rows] = root
            if len(self._roots) > _MAX_ROOTS:
                del self._roots[next(iter(self._roots))]
            return root

    def cache_for(self, estimator: Any) -> AnyCache | None:
        """Return the cache for an estimator's models.

        Code from outside this package may change between processes under the same name, so its
        models stay in memory.
        """
        if isinstance(self.cache, StoredModelCache):
            return self.cache.of_run() if is_ours(type(estimator)) else self.cache.memory
        return self.cache


# Scores that took less time stay in memory, because a trial would wait longer for the store.
_SECONDS_TO_STORE = 2e-3


def choose_cache(cache: AnyCache, seconds: float) -> AnyCache:
    """Return the cache for a result that took ``seconds``: in memory if it was fast."""
    return cache if seconds > _SECONDS_TO_STORE else cache.memory


class ScoreCache(NamedTuple):
    """The cache and the keys of the scores of an estimator, of a repeat or of single folds.

    Attributes
    ----------
    cache : ModelCache, StoredModelCache or None
        In memory if later processes have other keys.
    data, folds : bytes
        The keys of the rows and of the folds; that of a single fold is an argument of methods.
    sums_key : bytes
        The key of the sums, which do not depend on candidate and scoring; empty: not cached.
    metrics : tuple of bytes
        The keys of the metrics; empty: scores are not cached.
    settings : bytes
        The key of the estimator and the scoring; empty: scores are not cached.
    """

    cache: AnyCache | None = None
    data: bytes = b""
    folds: bytes = b""
    sums_key: bytes = b""
    metrics: tuple[bytes, ...] = ()
    settings: bytes = b""

    @classmethod
    def of(
        cls,
        cache: AnyCache | None,
        data: tuple[bytes, bool],
        folds: bytes,
        engine: str,
        parts: Sequence[Any],
        scoring: Scoring,
    ) -> "ScoreCache":
        """Return the cache and keys of an engine for an estimator, without its free parameters.

        Parameters
        ----------
        cache : ModelCache, StoredModelCache or None
        data : (bytes, bool)
            The key of the rows, and whether it is the same in later processes.
        folds : bytes
        engine : str
        parts : sequence of estimator
            The parts of the estimator, with all seeds.
        scoring : Scoring
        """
        rows = under_configuration(data[0])
        cache, keys = _keys_of(cache, parts, data[1])
        if keys is None:
            return cls()
        if isinstance(cache, StoredModelCache):
            cache = cache.of_run()
        sums_key = digest(engine.encode(), SCORED_BY, rows, folds, *keys)
        if cache is None or not all(metric.is_registered for metric in scoring.metrics):
            return cls(cache, sums_key=sums_key)
        names = tuple(encode(metric.name) for metric in scoring.metrics)
        return cls(cache, rows, folds, sums_key, names)

    def for_candidate(self, free_values: Any) -> "ScoreCache":
        """Return the same for a candidate with these values of the free parameters."""
        if not self.metrics:
            return self
        return self._replace(settings=digest(self.sums_key, encode(free_values), *self.metrics))

    @property
    def name(self) -> str:
        """The hexadecimal digest of all keys; "" if scores are not cached."""
        return self.settings.hex()

    def find(self, n_numbers: int, fold: bytes = b"") -> np.ndarray | None:
        """Return cached numbers, float64 of shape (n_numbers,), or None."""
        if self.cache is None or not self.settings:
            return None
        memory = self.cache.find(self.key(8 * n_numbers, fold))
        return None if memory is None else memory.view(np.float64)

    def keep(self, numbers: np.ndarray, seconds: float, fold: bytes = b"") -> None:
        """Add numbers to the cache with the seconds that they took."""
        if self.cache is not None and self.settings:
            memory = numbers.view(np.uint8)
            memory.flags.writeable = False
            choose_cache(self.cache, seconds).keep(self.key(len(memory), fold), memory, seconds)

    def close(self) -> None:
        """Write pending results to the store."""
        if isinstance(self.cache, StoredModelCache):
            self.cache.flush()

    def key(self, n_bytes: int, fold: bytes = b"") -> Key:
        """Return the key of ``n_bytes`` bytes of the repeat or of a single fold."""
        return Key(self.data, fold or self.folds, self.settings, b"scores", n_bytes)


def _keys_of(
    cache: AnyCache | None, estimators: Sequence[Any], last: bool
) -> tuple[AnyCache | None, list[bytes] | None]:
    """Return the cache for the scores of estimators, and the keys of the estimators in it.

    Only results whose keys are the same in later processes are stored: of estimators of installed
    packages, on data with a lasting key. The keys are None if an estimator has none.
    """
    in_store = last and isinstance(cache, StoredModelCache)
    if in_store and (lasting := _keys_by(estimators, lasting_key)) is not None:
        return cache, lasting
    # Functions have only lasting keys.
    return None if cache is None else cache.memory, _keys_by(estimators, encode, lasting_key)


def _keys_by(values: Sequence[Any], *kinds: Callable[[Any], bytes]) -> list[bytes] | None:
    keys = [key for value in values if (key := first_key(value, *kinds)) is not None]
    return keys if len(keys) == len(values) else None
