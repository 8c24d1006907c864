"""Results of single folds, for estimators that are fitted fold by fold.

A killed trial goes on at its next fold, and the same fit is never made twice.
"""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.scoring import ArrayThenCount
from optuna_treecv.scoring import COUNT_BYTES
from optuna_treecv.scoring import Scoring
from optuna_treecv.scoring import SPREAD_SIZE
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.sharing.keys import SCORED_BY
from optuna_treecv.sharing.stored_cache import AnyCache
from optuna_treecv.sharing.stored_cache import StoredModelCache

# Shorter fits are not written, as a store takes about a millisecond for each.
_SECONDS_TO_WRITE = 1e-3


class FoldResult(NamedTuple):
    """What one fit has given.

    Attributes
    ----------
    scores : ndarray of shape (n_metrics,)
        NaN for pooled ones.
    spreads : ndarray of shape (n_metrics, 3)
        Of the scores of rows; NaN where they are not known.
    responses : ndarray of shape (n_rows, n_columns), float64
        The responses to the test rows that pooled scores need, side by side.
    has_diverged : bool
    n_trained : int
        The rows that the model was trained on.
    seconds : float
        The time of the fit and the score; 0 if they are kept.
    """

    scores: np.ndarray
    spreads: np.ndarray
    responses: np.ndarray
    has_diverged: bool
    n_trained: int
    seconds: float = 0.0


class FoldResults:
    """The results of one estimator's folds, in the cache or to be put there.

    Only what later processes know by the same name goes to the store: estimators of installed
    packages, on data that can be named by their content.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
    estimator : estimator
        With all its seeds.
    data : (bytes, bool)
        The name of the data, and whether later processes give them the same name.
    scoring : Scoring
    """

    def __init__(
        self,
        cache: AnyCache | None,
        estimator: Any,
        data: tuple[bytes, bool],
        scoring: Scoring,
    ) -> None:
        self._cache = cache
        self._store: StoredModelCache | None = None
        self._settings: bytes | None = None
        self._n_metrics = len(scoring.metrics)
        if cache is None or not all(metric.is_registered for metric in scoring.metrics):
            return
        named, lasts = data
        settings = None
        if lasts and isinstance(cache, StoredModelCache):
            try:
                settings, self._store = lasting_key(estimator), cache
            except NoKey:
                pass
        if settings is None:
            self._cache = cache.memory if isinstance(cache, StoredModelCache) else cache
            settings = _key_in_this_process(estimator)
            if settings is None:
                return
        names = (encode(metric.name) for metric in scoring.metrics)
        self._settings = digest(b"fit", SCORED_BY, named, settings, *names)

    @property
    def name(self) -> str:
        """What is fitted how and scored by what, in hexadecimal digits; "" if it has no name."""
        return "" if self._settings is None else self._settings.hex()

    def find(self, fold: bytes, shape: tuple[int, int]) -> FoldResult | None:
        """Return the result of a fold, with responses of the given shape, if it is kept."""
        n_scores, n_spreads = self._n_metrics, SPREAD_SIZE * self._n_metrics
        n_numbers = n_scores + n_spreads + 1 + shape[0] * shape[1]
        key = self._key(fold, n_numbers)
        found = None if self._cache is None or key is None else self._cache.find(key)
        if found is None:
            return None
        kept = ArrayThenCount((n_numbers,))
        kept.take(found)
        ends = np.cumsum([n_scores, n_spreads, 1])
        scores, spreads, diverged, responses = np.split(kept.array, ends)
        return FoldResult(
            scores,
            spreads.reshape(n_scores, SPREAD_SIZE),
            responses.reshape(shape),
            bool(diverged[0]),
            kept.n_updates,
        )

    def keep(self, fold: bytes, result: FoldResult) -> None:
        """Keep the result of a fold, and write it to the store at once."""
        spreads, responses = result.spreads.ravel(), result.responses.ravel()
        parts = result.scores, spreads, [result.has_diverged], responses
        numbers = np.concatenate(parts)
        key = self._key(fold, len(numbers))
        if self._cache is None or key is None:
            return
        memory = ArrayThenCount.of(numbers, result.n_trained).memory
        memory.flags.writeable = False
        if self._store is None:
            self._cache.keep(key, memory, result.seconds)
            return
        self._store.memory.keep(key, memory, result.seconds)
        if result.seconds > _SECONDS_TO_WRITE:
            self._store.write([(key, memory, result.seconds)])

    def _key(self, fold: bytes, n_numbers: int) -> Key | None:
        n_bytes = 8 * n_numbers + COUNT_BYTES
        return None if self._settings is None else (self._settings, fold, n_bytes)


def _key_in_this_process(estimator: Any) -> bytes | None:
    """Return a key that later processes need not know; None if there is none.

    Functions have lasting keys only.
    """
    for key_of in (encode, lasting_key):
        try:
            return key_of(estimator)
        except NoKey:
            continue
    return None
