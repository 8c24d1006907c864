"""What the jobs of a task share: the names of rows, the cache, and the scores in it."""

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

# The most repeats whose prefixes are remembered, and the most prefixes of one repeat. A prefix
# takes about a kilobyte, and a hyper-parameter that begins to act at some row, such as
# ``average_start``, adds some for each of its values.
_MOST_ROOTS = 8
_MOST_PREFIXES = 2**14


class SharedBetweenRuns:
    """The models and results of one evaluation, and the names under which they are kept.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
        Where models and results are kept; None: nowhere.
    with_others : bool
        Whether other evaluations may use the same cache. If so, rows are named by their content.
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
        """The cache of this process, without a store behind it."""
        return None if self.cache is None else self.cache.memory

    def name_of(self, what: Hashable, content: Callable[[], bytes | None]) -> tuple[bytes, bool]:
        """Return a name of data, and whether later processes name them so too.

        Parameters
        ----------
        what : hashable
            The same for the same data of this evaluation, which are read once.
        content : callable
            () -> their digest; None if they have none.
        """
        if what not in self._names:  # without the lock, because content may wait for others
            name = content() if self._with_others else None
            self._names.setdefault(what, (name or token(), name is not None))
        return self._names[what]

    def root(self, rows: bytes) -> Prefix:
        """Return the empty prefix over the rows of this name.

        Those of a few repeats are kept. They are only looked up faster: a new one has the same
        name.
        """
        with self._lock:
            root = self._roots.pop(rows, None)
            if root is None or root.n_prefixes[0] > _MOST_PREFIXES:
                root = Prefix(rows)
            self._roots[rows] = root
            if len(self._roots) > _MOST_ROOTS:
                del self._roots[next(iter(self._roots))]
            return root

    def cache_for(self, estimator: Any) -> AnyCache | None:
        """Return the cache for an estimator's models.

        Code from outside this package may be different in the next process under the same name,
        so its models stay in memory.
        """
        if isinstance(self.cache, StoredModelCache):
            return self.cache.of_run() if is_ours(type(estimator)) else self.cache.memory
        return self.cache


# Scores that took less time stay in memory, because a trial would then wait for the store.
_SECONDS_TO_STORE = 2e-3


def lasting_if_slow(cache: AnyCache, seconds: float) -> AnyCache:
    """Return where a result is kept that took so many seconds."""
    return cache if seconds > _SECONDS_TO_STORE else cache.memory


class KeptScores(NamedTuple):
    """Where the scores of an estimator are kept, of a repeat or of single folds, and by what name.

    Attributes
    ----------
    cache : ModelCache, StoredModelCache or None
        One in memory where later processes do not know the scores by the same name.
    data, folds : bytes
        The names of the rows and of the folds; of single folds, that of one is given later.
    of_sums : bytes
        The name of the sums, which do not depend on the point and the scoring; empty: they are
        not kept.
    metrics : tuple of bytes
        The names of the metrics; empty: the scores are not kept.
    settings : bytes
        The name of the estimator and the scoring; empty: the scores are not kept.
    """

    cache: AnyCache | None = None
    data: bytes = b""
    folds: bytes = b""
    of_sums: bytes = b""
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
    ) -> "KeptScores":
        """Return where an engine keeps the scores of an estimator, without its point.

        Parameters
        ----------
        cache : ModelCache, StoredModelCache or None
        data : (bytes, bool)
            The name of the rows, and whether later processes give them the same name.
        folds : bytes
        engine : str
        parts : sequence of estimator
            The parts of the estimator, with all their seeds.
        scoring : Scoring
        """
        rows = under_configuration(data[0])
        cache, keys = _keys_of(cache, parts, data[1])
        if keys is None:
            return cls()
        if isinstance(cache, StoredModelCache):
            cache = cache.of_run()
        of_sums = digest(engine.encode(), SCORED_BY, rows, folds, *keys)
        if cache is None or not all(metric.is_registered for metric in scoring.metrics):
            return cls(cache, of_sums=of_sums)
        names = tuple(encode(metric.name) for metric in scoring.metrics)
        return cls(cache, rows, folds, of_sums, names)

    def at(self, point: Any) -> "KeptScores":
        """Return the same for the estimator that has these values of the point's parameters."""
        if not self.metrics:
            return self
        return self._replace(settings=digest(self.of_sums, encode(point), *self.metrics))

    @property
    def name(self) -> str:
        """The digest of all names in hexadecimal; "" if the scores are not kept."""
        return self.settings.hex()

    def find(self, n_numbers: int, fold: bytes = b"") -> np.ndarray | None:
        """Return so many numbers, float64, if they are kept."""
        if self.cache is None or not self.settings:
            return None
        memory = self.cache.find(self.key(8 * n_numbers, fold))
        return None if memory is None else memory.view(np.float64)

    def keep(self, numbers: np.ndarray, seconds: float, fold: bytes = b"") -> None:
        """Keep numbers with the seconds that they took."""
        if self.cache is not None and self.settings:
            memory = numbers.view(np.uint8)
            memory.flags.writeable = False
            lasting_if_slow(self.cache, seconds).keep(self.key(len(memory), fold), memory, seconds)

    def close(self) -> None:
        """Write to the store what is not written yet."""
        if isinstance(self.cache, StoredModelCache):
            self.cache.flush()

    def key(self, n_bytes: int, fold: bytes = b"") -> Key:
        """Return the key of so many bytes, of the repeat or of a single fold."""
        return Key(self.data, fold or self.folds, self.settings, b"scores", n_bytes)


def _keys_of(
    cache: AnyCache | None, estimators: Sequence[Any], last: bool
) -> tuple[AnyCache | None, list[bytes] | None]:
    """Return the cache for the scores of estimators, and the keys of the estimators in it.

    A store only gets what later processes know by the same name: estimators of installed packages,
    on data whose name lasts. The keys are None where an estimator has none.
    """
    in_store = last and isinstance(cache, StoredModelCache)
    if in_store and (lasting := _each(estimators, lasting_key)) is not None:
        return cache, lasting
    # Functions have lasting keys only.
    return None if cache is None else cache.memory, _each(estimators, encode, lasting_key)


def _each(values: Sequence[Any], *kinds: Callable[[Any], bytes]) -> list[bytes] | None:
    keys = [key for value in values if (key := first_key(value, *kinds)) is not None]
    return keys if len(keys) == len(values) else None
