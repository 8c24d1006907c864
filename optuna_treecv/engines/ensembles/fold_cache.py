"""The cache of trees, prepared rows and scores of folds that trials share, and its keys."""

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

# The approximate bytes of the scores of a fold after one number of trees.
_SCORE_BYTES = 1000


@dataclass
class Fold:
    """The ensemble of one fold, which trials of other sizes may continue, and its scores.

    Attributes
    ----------
    growth : Growth or None
        None before growth begins and after the release of the trees.
    scores : dict of (int, TreeLimit) to FoldResult
        By the number of trees and their limit.
    outputs : dict of (int, TreeLimit) to list of ndarray of shape (n_test, n_outputs)
        The predictions of the last of these for the test rows, one array per method.
    oob_scores : dict of int to (float or None)
        By the number of trees.
    seconds : float
        The time of growth and scores.
    n_row_bytes : int
        The bytes of the prepared rows.
    """

    growth: Growth | None = None
    scores: dict[tuple[int, TreeLimit], FoldResult] = field(default_factory=dict)
    outputs: dict[tuple[int, TreeLimit], list[np.ndarray]] = field(default_factory=dict)
    oob_scores: dict[int, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    n_row_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """The approximate bytes of the fold."""
        n_bytes = 0 if self.growth is None else self.growth.nbytes + self.n_row_bytes
        return n_bytes + _SCORE_BYTES * len(self.scores)


class FoldCache:
    """The trees, prepared rows and scores of the folds of one evaluation, in memory or stored.

    Parameters
    ----------
    request : Request
    repeat : Repeat
    engine : str
    estimator : estimator
        The estimator of the folds, with the seeds of the repeat.
    ensemble : estimator
        The last step, as it grows.
    methods : list of str
        The methods of the predictions.
    is_shared : bool
        Whether other trials need other sizes or limits of the same trees.
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
        """Whether trials of other sizes continue the trees."""
        return bool(self._trees)

    @property
    def key_of_folds(self) -> bytes:
        """The key of the rows and of the folds."""
        return folds_key(self._request, self._repeat)

    @cached_property
    def _key_of_rows(self) -> bytes:
        """The key of the rows, the folds and the transformers; empty without one."""
        steps = with_last(self._estimator, None)
        if (name := first_key(steps, encode, lasting_key)) is None:
            return b""
        rows = self._request.cross_validation.data_key()[0]
        return digest(rows, self.key_of_folds, self._kind.__name__.encode(), name)

    def _key_of_trees(self, methods: list[str]) -> bytes:
        """Return the key of ensembles that differ in size alone; empty without one."""
        ensemble = clone(self._ensemble).set_params(**{self._kind.size: 1})
        key = first_key((ensemble, tuple(methods)), encode, lasting_key)
        return b"" if key is None or not self._key_of_rows else digest(self._key_of_rows, key)

    # Trees, only in memory.

    def take_fold(self, chunk: int) -> Fold:
        """Return a fold released by a trial of another size, and remove it; or a new fold."""
        fold = None
        if self._memory is not None and self._trees:
            fold = self._memory.take(("growth", self._trees, chunk))
        return fold or Fold()

    def release_fold(self, chunk: int, fold: Fold) -> None:
        """Release a fold to trials of other sizes, within the limits of the cache."""
        if self._memory is None or not self._trees or not fold.seconds:
            return
        fold.outputs = {}
        if fold.growth is not None:
            fold.growth.forget_rows()
            vars(fold.growth).pop("take", None)  # it references the request
        self._memory.keep(("growth", self._trees, chunk), fold, fold.seconds)

    def prepared(self, chunk: int, take: Callable[[], FoldRows]) -> Prepared:
        """Return the prepared rows of a fold, computed unless they are cached."""
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

    # Scores, also stored: after a crash, a trial continues after a block of trees.

    @cached_property
    def _stored(self) -> ScoreCache:
        """The store of the scores of single folds; those of all folds are stored at the end."""
        sized = of_size(self._estimator, 1)
        stored = score_cache(self._request, self._repeat, self._engine, [sized])
        return stored.for_candidate(self._request.settings.truncate)

    def find_scores(self, chunk: int, end: int, n_sizes: int) -> list[FoldResult] | None:
        """Return the stored scores of a fold after each number of trees of a block, or None."""
        shape = len(self._request.scoring.metrics), (0, 0)
        n_numbers = FoldResult.size(*shape)
        numbers = self._stored.find(n_numbers * n_sizes, self._key_of_block(chunk, end))
        if numbers is None:
            return None
        return [FoldResult.of(x, *shape) for x in numbers.reshape(-1, n_numbers)]

    def store_scores(
        self, chunk: int, end: int, results: list[FoldResult], seconds: float
    ) -> None:
        """Store the scores of a fold after each number of trees of a block."""
        if all(are_known(self._request.scoring.metrics, r.scores) for r in results):
            numbers = np.concatenate([result.numbers() for result in results])
            self._stored.keep(numbers, seconds, self._key_of_block(chunk, end))

    def _key_of_block(self, chunk: int, end: int) -> bytes:
        return digest(self.key_of_folds, encode((chunk, end, self._is_best)))

    def close(self) -> None:
        """Close the store."""
        self._stored.close()
