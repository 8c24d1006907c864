"""The scores of all folds of a repeat as one block, where they are kept, and the sums behind them.

They belong to engines that score a repeat at once: exact folds and trees of all folds.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.scoring import Scoring
from optuna_treecv.scoring import SPREAD_SIZE
from optuna_treecv.sharing.caches import AnyCache
from optuna_treecv.sharing.caches import ModelCache
from optuna_treecv.sharing.caches import StoredModelCache
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.sharing.keys import SCORED_BY

# Scores that took less time are not written, as a store takes about a millisecond for each.
_SECONDS_TO_WRITE = 2e-3

#: In ``RepeatScores.diverged``.
OUTPUTS_DIVERGED = 2


class RepeatScores:
    """The scores of one estimator on one repeat.

    Parameters
    ----------
    n_metrics, n_folds : int
    has_spreads : bool
        Whether some fold has several rows, so that it has a spread.
    numbers : ndarray of shape (n_numbers,) or None
        Those that were kept: all numbers up to ``needed``. None: NaN.

    Attributes
    ----------
    numbers : ndarray of shape (n_numbers,)
    scores : ndarray of shape (n_metrics, n_folds)
        NaN for pooled ones.
    spreads : ndarray of shape (n_metrics, 3, n_folds) or None
        See ``FoldScores``.
    diverged : ndarray of shape (n_folds,)
        0, 1 where a score is not finite, or ``OUTPUTS_DIVERGED`` where a model's output is not.
    pooled : ndarray of shape (n_metrics, 2)
        NaN for those that are not pooled.
    needed : ndarray of shape (1,)
        The rows that are read where no sums are kept.
    n_updates : int
        The rows that were read for it.
    seconds, seconds_prepare : float
        The time that it took, and the time in which the rows were prepared.
    was_kept : bool
        Whether it comes from a cache or a store.
    of_rows : ndarray of shape (n_tested,), float32, or None
        The scores of the tested rows, one chunk after another; None unless they are needed. They
        are never kept.
    """

    def __init__(
        self, n_metrics: int, n_folds: int, has_spreads: bool, numbers: np.ndarray | None = None
    ) -> None:
        self.was_kept = numbers is not None
        sizes = self.sizes(n_metrics, n_folds, has_spreads)
        self.numbers = np.full(sum(sizes), np.nan) if numbers is None else numbers
        parts = np.split(self.numbers, np.cumsum(sizes[:-1]))
        scores, spreads, self.diverged, pooled, self.needed = parts
        self.scores = scores.reshape(n_metrics, n_folds)
        self.spreads: np.ndarray | None = None
        if has_spreads:
            self.spreads = spreads.reshape(n_metrics, SPREAD_SIZE, n_folds)
        self.pooled = pooled.reshape(n_metrics, 2)
        self.n_updates = 0
        self.seconds = self.seconds_prepare = 0.0
        self.of_rows: np.ndarray | None = None

    @staticmethod
    def sizes(n_metrics: int, n_folds: int, has_spreads: bool) -> list[int]:
        """Return how many numbers the parts have."""
        n_spreads = SPREAD_SIZE * n_metrics * n_folds if has_spreads else 0
        return [n_metrics * n_folds, n_spreads, n_folds, 2 * n_metrics, 1]

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
        self._cache = None if name is None else cache
        self._name = name or b""
        self._held: dict[Key, np.ndarray] = {}
        self._was_there: list[bool] = []

    @property
    def were_there(self) -> bool:
        """Whether all that was needed was kept."""
        return bool(self._was_there) and all(self._was_there)

    def __call__(self, name: str, size: int, make: Callable[[np.ndarray], None]) -> np.ndarray:
        """Return an array by its name, or make it."""
        key: Key = self._name, encode(name), 8 * size
        if key in self._held:
            return self._held[key]
        memory = None if self._cache is None else self._cache.find(key)
        self._was_there.append(memory is not None)
        if memory is None:
            began = perf_counter()
            memory = np.empty(size)
            make(memory)
            memory.flags.writeable = False
            if self._cache is not None:
                self._cache.keep(key, memory, perf_counter() - began)
        self._held[key] = memory
        return memory


class KeptScores(NamedTuple):
    """Where the scores of an estimator on a repeat are kept, and under which name.

    Attributes
    ----------
    memory : ModelCache or None
    store : StoredModelCache or None
        None where later processes do not know the scores by the same name.
    name : bytes or None
        What the scores depend on; None: they are not kept.
    of_sums : bytes or None
        What the sums depend on: all but the point and the scoring.
    fingerprint : str
        The name of the rows; "" if the scores are not kept.
    metrics : tuple of bytes or None
        The names of the metrics; None: the scores are not kept.
    """

    memory: ModelCache | None = None
    store: StoredModelCache | None = None
    name: bytes | None = None
    of_sums: bytes | None = None
    fingerprint: str = ""
    metrics: tuple[bytes, ...] | None = None

    def at(self, point: Any) -> KeptScores:
        """Return the same for the estimator that has these values of the point's parameters."""
        if self.of_sums is None or self.metrics is None:
            return self
        return self._replace(name=digest(self.of_sums, encode(point), *self.metrics))

    @property
    def key(self) -> str:
        """The name in hexadecimal digits; "" if there is none."""
        return "" if self.name is None else self.name.hex()

    def find(self, n_metrics: int, n_folds: int, has_spreads: bool) -> RepeatScores | None:
        """Return the scores if they are kept."""
        cache: AnyCache | None = self.memory if self.store is None else self.store
        if self.name is None or cache is None:
            return None
        n_numbers = sum(RepeatScores.sizes(n_metrics, n_folds, has_spreads))
        memory = cache.find((self.name, 8 * n_numbers))
        if memory is None:
            return None
        return RepeatScores(n_metrics, n_folds, has_spreads, memory.view(np.float64))

    def keep(self, scores: RepeatScores, seconds: float) -> None:
        """Keep scores, and the seconds that they took."""
        if self.name is None or self.memory is None:
            return
        scores.numbers.flags.writeable = False
        memory = scores.numbers.view(np.uint8)
        key = self.name, len(memory)
        self.memory.keep(key, memory, seconds)
        if self.store is not None and seconds > _SECONDS_TO_WRITE:
            self.store.write([(key, memory, seconds)])


def kept_scores(
    cache: AnyCache | None,
    estimators: Sequence[Any],
    data: tuple[bytes, bool],
    folds: bytes,
    scoring: Scoring,
) -> KeptScores:
    """Return where the scores of an estimator are kept, at no point yet.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
    estimators : sequence of estimators
        The parts of the estimator, the last one with some fixed value of the point's parameter.
    data : (bytes, bool)
        The name of the data, and whether later processes give them the same name.
    folds : bytes
        The name of the folds.
    scoring : Scoring
    """
    memory = cache.memory if isinstance(cache, StoredModelCache) else cache
    of_data, lasts = data
    keys, store = None, None
    if lasts and isinstance(cache, StoredModelCache):
        try:
            keys, store = [lasting_key(one) for one in estimators], cache
        except NoKey:
            pass
    if keys is None:
        try:
            keys = [encode(one) for one in estimators]
        except NoKey:
            return KeptScores()
    of_sums = digest(b"exact", SCORED_BY, of_data, folds, *keys)
    if memory is None or not all(metric.is_registered for metric in scoring.metrics):
        return KeptScores(memory, None, None, of_sums)
    metrics = tuple(encode(metric.name) for metric in scoring.metrics)
    return KeptScores(memory, store, None, of_sums, of_data.hex(), metrics)
