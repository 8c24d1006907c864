"""Results of fits, and fitted beginnings of Pipelines, shared where folds are fitted one by one.

A killed trial goes on at its next fold, and the same fit is never made twice. Trials that differ
only in the parameters of later steps fit the steps before them once per fold, as scikit-learn's
``Pipeline(memory=...)`` does, but in memory and within a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
import pickle
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.scoring.argument import Scoring
from optuna_treecv.scoring.at_leaves import ArrayThenCount
from optuna_treecv.scoring.at_leaves import COUNT_BYTES
from optuna_treecv.scoring.scores import SPREAD_SIZE
from optuna_treecv.sharing.caches import AnyCache
from optuna_treecv.sharing.caches import keep_scores
from optuna_treecv.sharing.caches import keys_of
from optuna_treecv.sharing.caches import ModelCache
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.sharing.keys import SCORED_BY

# Shorter fits are not written, as a store takes about a millisecond for each.
_SECONDS_TO_WRITE = 1e-3


class FoldResult(NamedTuple):
    """The result of one fit.

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

    The store only gets results that later processes find by the same name: those of estimators of
    installed packages, on data that can be named by their content.

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
        self._cache: AnyCache | None = None
        self._settings: bytes | None = None
        self._n_metrics = len(scoring.metrics)
        if cache is None or not all(metric.is_registered for metric in scoring.metrics):
            return
        data_name, lasts = data
        self._cache, settings = keys_of(cache, [estimator], lasts)
        if settings is not None:
            names = (encode(metric.name) for metric in scoring.metrics)
            self._settings = digest(b"fit", SCORED_BY, data_name, *settings, *names)

    @property
    def name(self) -> str:
        """The digest of the estimator, the data and the metrics in hexadecimal; "" without one."""
        return "" if self._settings is None else self._settings.hex()

    def find(self, fold: bytes, shape: tuple[int, int]) -> FoldResult | None:
        """Return the result of a fold, with responses of the given shape, if it is kept."""
        n_scores, n_spreads = self._n_metrics, SPREAD_SIZE * self._n_metrics
        n_numbers = n_scores + n_spreads + 1 + shape[0] * shape[1]
        if self._cache is None or self._settings is None:
            return None
        array = self._cache.find((self._settings, fold, 8 * n_numbers + COUNT_BYTES))
        if array is None:
            return None
        kept = ArrayThenCount((n_numbers,))
        kept.take(array)
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
        if self._cache is None or self._settings is None:
            return
        spreads, responses = result.spreads.ravel(), result.responses.ravel()
        parts = result.scores, spreads, [result.has_diverged], responses
        memory = ArrayThenCount.of(np.concatenate(parts), result.n_trained).memory
        key = self._settings, fold, memory.nbytes
        keep_scores(self._cache, key, memory, result.seconds, _SECONDS_TO_WRITE)


# The cache of a worker process, which all tasks that it gets share.
_of_this_process: list[ModelCache] = []


class Beginnings:
    """A cache of fitted beginnings of Pipelines; each worker process of joblib has its own.

    With a name it is the ``memory`` of a Pipeline that is fitted on one fold.

    Parameters
    ----------
    kept : ModelCache
        The cache of the process that evaluates.
    max_bytes : int
        Room in each worker process.
    name : bytes
        Of the training rows.
    """

    def __init__(self, kept: ModelCache, max_bytes: int, name: bytes = b"") -> None:
        self.kept = kept
        self._max_bytes = max_bytes
        self._start = digest(b"beginning", name)
        self._name: bytes | None = self._start  # of the steps fitted so far

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_this_process, (self._max_bytes,)

    def of_fold(self, name: bytes) -> Beginnings:
        """Return the beginnings that were fitted on the training rows of this name."""
        return Beginnings(self.kept, self._max_bytes, name)

    @contextmanager
    def lent_to(self, pipeline: Any) -> Generator[None]:
        """Set this as the ``memory`` of a Pipeline in the block, unless the Pipeline has another.

        After the block a scorer may fit the Pipeline on other rows.
        """
        previous = pipeline.memory
        if previous is None:
            pipeline.memory = self
        try:
            yield
        finally:
            pipeline.memory = previous

    def cache(self, fit_transform: Callable[..., Any], ignore: object = ()) -> Callable[..., Any]:
        """Return a function that fits and transforms, or returns the kept result.

        A Pipeline asks for it once at the beginning of each fit.
        """
        self._name = self._start
        return partial(self._call, fit_transform)

    def _call(
        self, fit_transform: Callable[..., Any], step: Any, X: Any, *args: Any, **options: Any
    ) -> Any:
        try:
            self._name = None if self._name is None else digest(self._name, encode(step))
        except NoKey:
            self._name = None
        if self._name is None:
            return fit_transform(step, X, *args, **options)
        key = (self._name, 0)
        pickled = self.kept.find(key)
        if pickled is not None:
            return pickle.loads(pickled.data)
        began = perf_counter()
        result = fit_transform(step, X, *args, **options)
        seconds = perf_counter() - began
        try:
            array = np.frombuffer(pickle.dumps(result, protocol=5), np.uint8)
        except Exception:  # noqa: BLE001  # a step that cannot be pickled is fitted each time
            return result
        self.kept.keep(key, array, seconds)
        return result


def _in_this_process(max_bytes: int) -> Beginnings:
    if not _of_this_process or _of_this_process[0].max_bytes != max_bytes:
        _of_this_process[:] = [ModelCache(max_bytes)]
    return Beginnings(_of_this_process[0], max_bytes)
