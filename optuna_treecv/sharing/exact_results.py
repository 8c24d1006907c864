"""Results of exact folds, and the sums behind them that serve further values of a parameter."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.scoring import Scoring
from optuna_treecv.scoring import SPREAD_SIZE
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.sharing.keys import SCORED_BY
from optuna_treecv.sharing.memory_cache import ModelCache
from optuna_treecv.sharing.stored_cache import AnyCache
from optuna_treecv.sharing.stored_cache import StoredModelCache

# Results that took less time are not written, as a store takes about a millisecond for each.
_SECONDS_TO_WRITE = 2e-3


class ExactShape(NamedTuple):
    """What the size of a result depends on.

    Attributes
    ----------
    n_metrics, n_folds : int
    has_spreads : bool
        Whether some fold has several rows, so that it has a spread.
    """

    n_metrics: int
    n_folds: int
    has_spreads: bool

    @property
    def n_spreads(self) -> int:
        return SPREAD_SIZE * self.n_metrics * self.n_folds if self.has_spreads else 0

    @property
    def n_bytes(self) -> int:
        n_scores = (self.n_metrics + 1) * self.n_folds
        return 8 * (n_scores + self.n_spreads + 2 * self.n_metrics + 1)


#: In ``ExactResult.diverged``.
OUTPUTS_DIVERGED = 2


class ExactResult:
    """The scores of one estimator on one repeat.

    Parameters
    ----------
    numbers : ndarray of shape (n_numbers,)
        The scores, their spreads, which folds have diverged, the pooled scores with their standard
        errors, and ``n_needed``.
    shape : ExactShape

    Attributes
    ----------
    scores : ndarray of shape (n_metrics, n_folds)
        NaN for pooled ones.
    spreads : ndarray of shape (n_metrics, 3, n_folds) or None
        See ``FoldScores``.
    diverged : ndarray of shape (n_folds,)
        0, 1 where a score is not finite, or ``OUTPUTS_DIVERGED`` where a model's output is not.
    pooled : ndarray of shape (n_metrics, 2)
        NaN for those that are not pooled.
    n_updates : int
        The rows that were read for it.
    n_needed : int
        The rows that are read where no sums are kept.
    seconds, seconds_prepare : float
        The time that it took, and the time in which the rows were prepared.
    was_kept : bool
        Whether it comes from a cache or a store.
    of_rows : ndarray of shape (n_tested,), float32, or None
        The scores of the tested rows, one chunk after another; None unless they are asked for.
    """

    def __init__(self, numbers: np.ndarray, shape: ExactShape) -> None:
        self.numbers = numbers
        n_metrics, n_folds = shape.n_metrics, shape.n_folds
        ends = np.cumsum([n_metrics * n_folds, shape.n_spreads, n_folds, 2 * n_metrics])
        scores, spreads, diverged, pooled, self._n_needed = np.split(numbers, ends)
        self.scores = scores.reshape(n_metrics, n_folds)
        self.spreads = None
        if shape.has_spreads:
            self.spreads = spreads.reshape(n_metrics, SPREAD_SIZE, n_folds)
        self.diverged = diverged
        self.pooled = pooled.reshape(n_metrics, 2)
        self.n_updates = 0
        self.seconds = self.seconds_prepare = 0.0
        self.was_kept = False
        self.of_rows: np.ndarray | None = None

    @classmethod
    def empty(cls, shape: ExactShape) -> ExactResult:
        """Return a result without scores yet."""
        return cls(np.full(shape.n_bytes // 8, np.nan), shape)

    @classmethod
    def of(cls, scores: np.ndarray, shape: ExactShape) -> ExactResult:
        """Return the result with these scores, (n_metrics, n_folds), all of which are finite."""
        result = cls.empty(shape)
        result.scores[:] = scores
        result.diverged[:] = 0
        return result

    @property
    def n_needed(self) -> int:
        return int(self._n_needed[0])

    @n_needed.setter
    def n_needed(self, n_rows: int) -> None:
        self._n_needed[0] = n_rows

    @property
    def n_bytes(self) -> int:
        return self.numbers.nbytes + (0 if self.of_rows is None else self.of_rows.nbytes)


class KeptSums:
    """What a family keeps for further points; follows ``learners.exact.chunks.Keep``.

    It holds the arrays itself as long as it lives, which is one evaluation of several points.

    Parameters
    ----------
    cache : ModelCache or None
    name : bytes or None
        What the sums depend on; None: nothing is kept.
    """

    def __init__(self, cache: ModelCache | None, name: bytes | None) -> None:
        self._cache = cache
        self._name = name
        self._held: dict[Key, np.ndarray] = {}
        self._n_found = self._n_made = 0

    @property
    def were_there(self) -> bool:
        """Whether all that was asked for was kept."""
        return self._n_found > 0 and self._n_made == 0

    def __call__(self, name: str, size: int, make: Callable[[np.ndarray], None]) -> np.ndarray:
        """Return an array by its name, or make it."""
        key: Key = (b"" if self._name is None else self._name, encode(name), 8 * size)
        if key in self._held:
            return self._held[key]
        if self._cache is not None and self._name is not None:
            found = self._cache.find(key)
            if found is not None:
                self._n_found += 1
                self._held[key] = found
                return found
        self._n_made += 1
        began = perf_counter()
        memory = np.empty(size)
        make(memory)
        memory.flags.writeable = False
        self._held[key] = memory
        if self._cache is not None and self._name is not None:
            self._cache.keep(key, memory, perf_counter() - began)
        return memory


class ExactName:
    """The name of an estimator's results on a repeat, and where they are kept.

    Parameters
    ----------
    memory : ModelCache or None
    store : StoredModelCache or None
        None where later processes do not know the results by the same name.
    result : bytes or None
        What the results depend on; None: they are not kept.
    sums : bytes or None
        What the sums depend on: all but the point.
    fingerprint : str
        The name of the rows.

    Attributes
    ----------
    memory : ModelCache or None
    of_sums : bytes or None
    fingerprint : str
    """

    def __init__(
        self,
        memory: ModelCache | None,
        store: StoredModelCache | None,
        result: bytes | None,
        sums: bytes | None,
        fingerprint: str,
    ) -> None:
        self.memory = memory
        self._store = store
        self._result = result
        self.of_sums = sums
        self.fingerprint = fingerprint if memory is not None and result is not None else ""

    @property
    def key(self) -> str:
        """What is evaluated how, in hexadecimal digits; "" if it has no name."""
        return "" if self._result is None or self.memory is None else self._result.hex()

    def kept_sums(self) -> KeptSums:
        """Return where sums are kept; in memory alone, since they are large and quickly made."""
        return KeptSums(self.memory, self.of_sums)

    def find(self, shape: ExactShape) -> ExactResult | None:
        """Return the results if they are kept."""
        if self._result is None or self.memory is None:
            return None
        key = self._result, shape.n_bytes
        cache: AnyCache = self.memory if self._store is None else self._store
        found = cache.find(key)
        if found is None:
            return None
        result = ExactResult(found.view(np.float64), shape)
        result.was_kept = True
        return result

    def keep(self, found: ExactResult, seconds: float) -> None:
        """Keep results, and what they took."""
        if self._result is None or self.memory is None:
            return
        found.numbers.flags.writeable = False
        memory = found.numbers.view(np.uint8)
        key = self._result, len(memory)
        self.memory.keep(key, memory, seconds)
        if self._store is not None and seconds > _SECONDS_TO_WRITE:
            self._store.write([(key, memory, seconds)])


def name_of_exact(
    cache: AnyCache | None,
    estimators: Sequence[Any],
    point: Any,
    data: tuple[bytes, bool],
    folds: bytes,
    scoring: Scoring,
) -> ExactName:
    """Return the name of an estimator's results.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
    estimators : sequence of estimators
        The parts of the estimator, the last one with some fixed value of the point's parameter.
    point : float or None
        The parameter's own value.
    data : (bytes, bool)
        The name of the data, and whether later processes give them the same name.
    folds : bytes
        The name of the folds.
    scoring : Scoring
    """
    memory = cache.memory if isinstance(cache, StoredModelCache) else cache
    named, lasts = data
    keys = None
    store = None
    if lasts and isinstance(cache, StoredModelCache):
        try:
            keys, store = [lasting_key(one) for one in estimators], cache
        except NoKey:
            pass
    if keys is None:
        try:
            keys = [encode(one) for one in estimators]
        except NoKey:
            return ExactName(memory, None, None, None, "")
    sums = digest(b"exact", SCORED_BY, named, folds, *keys)
    result = None
    if all(metric.is_registered for metric in scoring.metrics):
        names = (encode(metric.name) for metric in scoring.metrics)
        result = digest(sums, encode(point), *names)
    return ExactName(memory, store, result, sums, named.hex())
