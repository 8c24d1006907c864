"""Fitted beginnings of Pipelines, which trials share.

Trials that differ only in the parameters of later steps fit the steps before them once per fold,
as scikit-learn's ``Pipeline(memory=...)`` does, but in memory and within a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
import pickle
from time import perf_counter
from typing import Any

import numpy as np

from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.sharing.memory_cache import ModelCache

# The cache of a worker process, which all tasks that it gets share.
_of_this_process: list[ModelCache] = []


class Beginnings:
    """Where fitted beginnings are kept; each worker process of joblib has its own place.

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
        """Have a Pipeline use this memory in this block, unless it has one of its own.

        Afterwards a scorer may fit it on other rows.
        """
        own = pipeline.memory
        if own is None:
            pipeline.memory = self
        try:
            yield
        finally:
            pipeline.memory = own

    def cache(self, fit_transform: Callable[..., Any], ignore: object = ()) -> Callable[..., Any]:
        """Return a function that fits and transforms, or takes what is kept.

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
        found = self.kept.find(key)
        if found is not None:
            return pickle.loads(found.data)
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
