"""The state that all runs of a cross-validation share: the cache, keys of data, cached scores."""

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

# The maximum number of repeats whose prefixes are cached.
_MAX_ROOTS = 8
# The maximum number of prefixes of a repeat. A prefix takes about a kilobyte. A hyper-parameter
# that affects models only after some number of rows, such as ``average_start``, adds prefixes for
# each of its values.
_MAX_PREFIXES = 2**14


class SharedBetweenRuns:
    """The cache for models and results of a cross-validation, and the keys of its data.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
        The cache for models and results; None: nothing is cached.
    with_others : bool
        Whether other cross-validations may use the same cache. If so, the keys of data are
        digests; otherwise, they are random tokens.
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
        """The cache in the memory of this process, without a store; None if nothing is cached."""
        return None if self.cache is None else self.cache.memory

    def key_for(
        self, data_id: Hashable, content: Callable[[], bytes | None]
    ) -> tuple[bytes, bool]:
        """Return a key for data, and whether other processes compute the same key.

        Parameters
        ----------
        data_id : hashable
            Identifies the data within this cross-validation, so that their key is computed only
            once.
        content : callable
            () -> a digest of the data, or None if they have no digest.
        """
        # Without a lock, because content() may wait for other threads.
        if data_id not in self._names:
            name = content() if self._with_others else None
            self._names.setdefault(data_id, (name or token(), name is not None))
        return self._names[data_id]

    def root(self, rows: bytes) -> Prefix:
        """Return the empty prefix (no training) for the rows with this key.

        The prefixes of a few repeats are cached for speed. Prefixes that are created again have
        the same keys.
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
        """Return the cache for the models of an estimator.

        Code from outside this package may change between processes without changing its name.
        Models of such estimators are therefore cached only in memory.
        """
        if isinstance(self.cache, StoredModelCache):
            return self.cache.of_run() if is_ours(type(estimator)) else self.cache.memory
        return self.cache


# Scores that were computed in less time are cached only in memory, because reading them from the
# store would take longer.
_SECONDS_TO_STORE = 2e-3


def choose_cache(cache: AnyCache, seconds: float) -> AnyCache:
    """Return the cache for a result; results that are fast to compute are not stored."""
    return cache if seconds > _SECONDS_TO_STORE else cache.memory


class ScoreCache(NamedTuple):
    """The cache for the scores of an estimator on a repeat or on single folds, with their keys.

    Attributes
    ----------
    cache : ModelCache, StoredModelCache or None
        The cache. It is only in memory if other processes compute different keys.
    data, folds : bytes
        The keys of the rows and of all folds. The key of a single fold is passed to methods as
        ``fold``.
    sums_key : bytes
        The key of results that depend neither on free parameters nor on scoring, such as sums over
        rows; empty: they are not cached.
    metrics : tuple of bytes
        The keys of the metrics; empty: scores are not cached.
    settings : bytes
        The key of the candidate and the scoring; empty: scores are not cached.
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
        """Create the cache and keys for an engine and an estimator, without its free parameters.

        Parameters
        ----------
        cache : ModelCache, StoredModelCache or None
        data : (bytes, bool)
            The key of the rows, and whether other processes compute the same key.
        folds : bytes
        engine : str
        parts : sequence of estimator
            The parts of the estimator, including all seeds.
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
        """Return a copy for a candidate with these values of the free parameters."""
        if not self.metrics:
            return self
        return self._replace(settings=digest(self.sums_key, encode(free_values), *self.metrics))

    @property
    def name(self) -> str:
        """The key of the candidate and the scoring in hexadecimal; "" if scores are not cached."""
        return self.settings.hex()

    def find(self, n_numbers: int, fold: bytes = b"") -> np.ndarray | None:
        """Return a cached array of ``n_numbers`` float64 numbers, or None."""
        if self.cache is None or not self.settings:
            return None
        memory = self.cache.find(self.key(8 * n_numbers, fold))
        return None if memory is None else memory.view(np.float64)

    def keep(self, numbers: np.ndarray, seconds: float, fold: bytes = b"") -> None:
        """Add an array of numbers to the cache, with the seconds for computing it."""
        if self.cache is not None and self.settings:
            memory = numbers.view(np.uint8)
            memory.flags.writeable = False
            choose_cache(self.cache, seconds).keep(self.key(len(memory), fold), memory, seconds)

    def close(self) -> None:
        """Write pending results to the store."""
        if isinstance(self.cache, StoredModelCache):
            self.cache.flush()

    def key(self, n_bytes: int, fold: bytes = b"") -> Key:
        """Return the key for ``n_bytes`` bytes of scores, of a repeat or a single fold."""
        return Key(self.data, fold or self.folds, self.settings, b"scores", n_bytes)


def _keys_of(
    cache: AnyCache | None, estimators: Sequence[Any], last: bool
) -> tuple[AnyCache | None, list[bytes] | None]:
    """Return the cache for scores of estimators, and the keys of these estimators, or None.

    Results are stored only if other processes compute the same keys: for estimators from installed
    packages, and data with a digest. The keys are None if an estimator has no key.
    """
    in_store = last and isinstance(cache, StoredModelCache)
    if in_store and (lasting := _keys_by(estimators, lasting_key)) is not None:
        return cache, lasting
    # Functions only have lasting keys.
    return None if cache is None else cache.memory, _keys_by(estimators, encode, lasting_key)


def _keys_by(values: Sequence[Any], *kinds: Callable[[Any], bytes]) -> list[bytes] | None:
    keys = [key for value in values if (key := first_key(value, *kinds)) is not None]
    return keys if len(keys) == len(values) else None
