"""The scores of all folds of a repeat as one block, their cache, and the sums behind them.

They belong to engines that score a repeat at once: exact folds and trees of all folds.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.scoring.scores import SPREAD_SIZE
from optuna_treecv.sharing.caches import AnyCache
from optuna_treecv.sharing.caches import keep_scores
from optuna_treecv.sharing.caches import ModelCache
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import Key

# Scores that took less time are not written, as a store takes about a millisecond for each.
_SECONDS_TO_WRITE = 2e-3

#: In ``RepeatScores.diverged``.
OUTPUTS_DIVERGED = 2


class RepeatScores:
    """The scores of one estimator on one repeat.

    Parameters
    ----------
    shape : (int, int, bool)
        The number of metrics and of folds, and whether some fold has several rows, so that it
        has a spread.
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

    def __init__(self, shape: tuple[int, int, bool], numbers: np.ndarray | None = None) -> None:
        self.was_kept = numbers is not None
        (n_metrics, n_folds, has_spreads), sizes = shape, self.sizes(*shape)
        self.numbers = np.full(sum(sizes), np.nan) if numbers is None else numbers
        parts = np.split(self.numbers, np.cumsum(sizes[:-1]))
        scores, spreads, self.diverged, pooled, self.needed = parts
        self.scores = scores.reshape(n_metrics, n_folds)
        self.spreads = spreads.reshape(n_metrics, SPREAD_SIZE, n_folds) if has_spreads else None
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
    """The sums that a family keeps for further points; follows ``learners.exact.moments.Keep``.

    It holds the arrays itself as long as it lives, which is one evaluation of several points.

    Parameters
    ----------
    cache : ModelCache or None
    name : bytes
        A digest of everything that the sums depend on; empty: nothing is kept.
    """

    def __init__(self, cache: ModelCache | None = None, name: bytes = b"") -> None:
        self._cache = cache if name else None
        self._name = name
        self._held: dict[Key, np.ndarray] = {}
        self._n_made = 0

    @property
    def were_there(self) -> bool:
        """Whether all arrays that were needed were kept."""
        return bool(self._held) and self._n_made == 0

    def __call__(self, name: str, size: int, make: Callable[[np.ndarray], None]) -> np.ndarray:
        """Return the kept array of a name, or make and keep it."""
        key: Key = self._name, encode(name), 8 * size
        if key not in self._held:
            memory = None if self._cache is None else self._cache.find(key)
            if memory is None:
                self._n_made += 1
                began, memory = perf_counter(), np.empty(size)
                make(memory)
                memory.flags.writeable = False
                if self._cache is not None:
                    self._cache.keep(key, memory, perf_counter() - began)
            self._held[key] = memory
        return self._held[key]


class KeptScores(NamedTuple):
    """The cache of an estimator's scores on a repeat, and their name in it.

    Attributes
    ----------
    cache : ModelCache, StoredModelCache or None
        One in memory where later processes do not know the scores by the same name.
    of_sums : bytes
        The name of the sums, which do not depend on the point and the scoring; empty: they are
        not kept.
    metrics : tuple of bytes
        The names of the metrics; empty: the scores are not kept.
    fingerprint : str
        The name of the rows; empty if the scores are not kept.
    name : bytes
        The name of the scores; empty: they are not kept.
    """

    cache: AnyCache | None = None
    of_sums: bytes = b""
    metrics: tuple[bytes, ...] = ()
    fingerprint: str = ""
    name: bytes = b""

    def at(self, point: Any) -> KeptScores:
        """Return the same for the estimator that has these values of the point's parameters."""
        if not self.metrics:
            return self
        return self._replace(name=digest(self.of_sums, encode(point), *self.metrics))

    def find(self, shape: tuple[int, int, bool]) -> RepeatScores | None:
        """Return the scores of this shape if they are kept, see ``RepeatScores``."""
        if self.cache is None or not self.name:
            return None
        memory = self.cache.find((self.name, 8 * sum(RepeatScores.sizes(*shape))))
        return None if memory is None else RepeatScores(shape, memory.view(np.float64))

    def keep(self, scores: RepeatScores, seconds: float) -> None:
        """Keep scores with the seconds that they took."""
        if self.cache is not None and self.name:
            memory = scores.numbers.view(np.uint8)
            keep_scores(self.cache, (self.name, len(memory)), memory, seconds, _SECONDS_TO_WRITE)
