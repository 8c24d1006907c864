"""The cache through which trials share the trees, the prepared rows and the scores of folds."""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.base import clone

from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.caching.results import ScoreCache
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import folds_key
from optuna_treecv.core.request import Request
from optuna_treecv.core.request import score_cache
from optuna_treecv.engines.ensembles.growth import FoldRows
from optuna_treecv.engines.ensembles.growth import Growth
from optuna_treecv.engines.ensembles.growth import kind_of
from optuna_treecv.engines.ensembles.growth import of_size
from optuna_treecv.engines.ensembles.growth import Prepared
from optuna_treecv.engines.ensembles.growth import TreeLimit
from optuna_treecv.engines.ensembles.growth import with_last
from optuna_treecv.plans.fold_task import FoldResult
from optuna_treecv.scoring.scores import are_known

# The approximate size in bytes of the scores of a fold for one number of trees.
_SCORE_BYTES = 1000


@dataclass
class Fold:
    """The ensemble of one fold and its scores. Trials with more trees can continue its growth.

    Attributes
    ----------
    growth : Growth or None
        The ensemble; None before growth begins and after the trees have been released.
    scores : dict of (int, TreeLimit) to FoldResult
        The scores for each number of trees and each limit.
    outputs : dict of (int, TreeLimit) to list of ndarray of shape (n_test, n_outputs)
        The most recent predictions for the test rows, one array per method, with the keys of
        ``scores``.
    oob_scores : dict of int to (float or None)
        The out-of-bag score for each number of trees.
    seconds : float
        The time spent on growing and scoring.
    n_row_bytes : int
        The size of the prepared rows in bytes.
    """

    growth: Growth | None = None
    scores: dict[tuple[int, TreeLimit], FoldResult] = field(default_factory=dict)
    outputs: dict[tuple[int, TreeLimit], list[np.ndarray]] = field(default_factory=dict)
    oob_scores: dict[int, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    n_row_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """The approximate size of the fold in bytes."""
        n_bytes = 0 if self.growth is None else self.growth.nbytes + self.n_row_bytes
        return n_bytes + _SCORE_BYTES * len(self.scores)


class FoldCache:
    """Caches trees and prepared rows, and stores scores, for the folds of one candidate.

    Parameters
    ----------
    request : Request
    repeat : Repeat
    engine : str
    estimator : estimator
        The estimator of the folds, with the seeds of the repeat.
    ensemble : estimator
        The last step, with the parameter values with which it is grown.
    methods : list of str
        The methods by which the ensemble predicts, such as ``predict_proba``.
    is_shared : bool
        Whether other trials use the same trees, with another number of trees or another limit.
    """

    def __init__(
        self,
        request: Request,
        repeat: Repeat,
        engine: str,
        estimator: Candidate,
        ensemble: Any,
        methods: list[str],
        is_shared: bool,
    ) -> None:
        self._request, self._repeat, self._engine = request, repeat, engine
        self._estimator, self._ensemble = estimator, ensemble
        kind = kind_of(ensemble)
        assert kind is not None
        self._kind = kind
        self._is_best = request.settings.n_estimators == "best"
        self._trees = self._key_of_trees(methods) if is_shared else b""

    @property
    def _memory(self) -> ModelCache | None:
        return self._request.cross_validation.shared.memory

    @property
    def shares_trees(self) -> bool:
        """Whether trials with another number of trees use the same trees."""
        return bool(self._trees)

    @property
    def key_of_folds(self) -> bytes:
        """The cache key of the folds and the order of their rows."""
        return folds_key(self._request, self._repeat)

    @cached_property
    def _key_of_rows(self) -> bytes:
        """The cache key of the rows, the folds and the transformers; empty if there is no key."""
        steps = with_last(self._estimator, None)
        if (name := first_key(steps, encode, lasting_key)) is None:
            return b""
        rows = self._request.cross_validation.data_key()[0]
        return digest(rows, self.key_of_folds, self._kind.__name__.encode(), name)

    def _key_of_trees(self, methods: list[str]) -> bytes:
        """Return the cache key of the trees, which does not depend on their number.

        It is empty if a part of the estimator has no key.
        """
        ensemble = clone(self._ensemble).set_params(**{self._kind.size: 1})
        key = first_key((ensemble, tuple(methods)), encode, lasting_key)
        return b"" if key is None or not self._key_of_rows else digest(self._key_of_rows, key)

    # Trees are cached in memory, but not stored.

    def take_fold(self, chunk: int) -> Fold:
        """Remove a fold that another trial has released from the cache, and return it.

        If there is no such fold, return a new fold.
        """
        fold = None
        if self._memory is not None and self._trees:
            fold = self._memory.take(("growth", self._trees, chunk))
        return fold or Fold()

    def release_fold(self, chunk: int, fold: Fold) -> None:
        """Put a fold into the cache for trials with another number of trees."""
        if self._memory is None or not self._trees or not fold.seconds:
            return
        fold.outputs = {}
        if fold.growth is not None:
            fold.growth.forget_rows()
            vars(fold.growth).pop("take", None)  # it references the request
        self._memory.keep(("growth", self._trees, chunk), fold, fold.seconds)

    def prepared(self, chunk: int, take: Callable[[], FoldRows]) -> Prepared:
        """Return the cached prepared rows of a fold, or compute and cache them."""
        memory, kind = self._memory, self._kind

        def cached(name: Any, make: Callable[[], Any]) -> Any:
            key = first_key((chunk, name), encode)
            if memory is None or key is None or not self._key_of_rows:
                return make()
            value = memory.find(key := digest(self._key_of_rows, key))
            if value is None:
                began, value = perf_counter(), make()
                if value is not None:
                    memory.keep(key, value, perf_counter() - began)
            return value

        facts = cached("facts", lambda: kind.facts(take()))
        settings = kind.settings(self._ensemble, facts)
        prepared: Prepared = cached(
            settings, lambda: kind.prepare(self._ensemble, settings, take())
        )
        return prepared

    # Scores are also stored. After a crash, the scores of finished blocks of trees are read again.

    @cached_property
    def _stored(self) -> ScoreCache:
        """The store of the scores of single folds."""
        sized = of_size(self._estimator, 1)
        stored = score_cache(self._request, self._repeat, self._engine, [sized])
        return stored.for_candidate(self._request.settings.truncate)

    def find_scores(self, chunk: int, end: int, n_sizes: int) -> list[FoldResult] | None:
        """Return a fold's stored scores for each number of trees in a block; None if missing."""
        shape = len(self._request.scoring.metrics), (0, 0)
        n_values = FoldResult.size(*shape)
        values = self._stored.find(n_values * n_sizes, self._key_of_block(chunk, end))
        if values is None:
            return None
        return [FoldResult.of(x, *shape) for x in values.reshape(-1, n_values)]

    def store_scores(
        self, chunk: int, end: int, results: list[FoldResult], seconds: float
    ) -> None:
        """Store a fold's scores for each number of trees in a block."""
        if all(are_known(self._request.scoring.metrics, r.scores) for r in results):
            values = np.concatenate([result.numbers() for result in results])
            self._stored.keep(values, seconds, self._key_of_block(chunk, end))

    def _key_of_block(self, chunk: int, end: int) -> bytes:
        return digest(self.key_of_folds, encode((chunk, end, self._is_best)))

    def close(self) -> None:
        """Close the store."""
        self._stored.close()
