"""Caches of fitted preprocessing, and of the prepared rows that it has transformed."""

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Hashable
from threading import Lock
from typing import TypeVar

from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.keys import token
from optuna_treecv.preprocessing.parts import NotAheadError
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.types import Array
from optuna_treecv.types import Features
from optuna_treecv.types import Opaque

T = TypeVar("T")

# The maximum number of fitted preprocessing steps in the cache; the least recently used are
# evicted.
_MAX_FITTED = 16


class Steps:
    """The caches for the preprocessing of one cross-validation.

    Parameters
    ----------
    X : features as given
    y : ndarray or None
        The targets as given.
    cache : ModelCache or None
        The cache for preprocessed rows; None: only the most recently used rows are cached.
    """

    def __init__(self, X: Features, y: Array | None, cache: ModelCache | None) -> None:
        self.X, self.y, self._cache = X, y, cache
        self._name = token()
        self._last_rows: tuple[Hashable, PreparedRows] | None = None
        self._fitted: OrderedDict[bytes, Opaque] = OrderedDict()
        self._fitting = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return Steps, (self.X, self.y, self._cache)  # fitted steps and rows are recomputed

    def rows(self, key: Hashable, make: Callable[[], PreparedRows]) -> PreparedRows:
        """Return preprocessed rows from the cache, or prepare them.

        Only one thread at a time may call this method.

        The most recently used rows are always cached. Other rows are cached with the models, as
        long as there is enough memory; otherwise, they are prepared again.
        """
        if self._last_rows is None or self._last_rows[0] != key:
            self._last_rows = None  # the new rows may need their memory
            cache_key = b"rows", self._name, key
            rows = None if self._cache is None else self._cache.find(cache_key)
            if rows is None:
                rows = make()
                if self._cache is not None:
                    self._cache.keep(cache_key, rows, rows.seconds)
            self._last_rows = key, rows
        return self._last_rows[1]

    def fitted(self, key: bytes | None, make: Callable[[], T]) -> T | str:
        """Return fitted preprocessing steps from the cache, or fit them.

        If they cannot be fitted once for all folds, return the reason instead. This includes steps
        without a key (``key`` is None).
        """
        if key is None:
            return "its steps contain an object that cannot be hashed, such as a lambda"
        with self._fitting:
            if key not in self._fitted:
                try:
                    self._fitted[key] = make()
                except NotAheadError as error:
                    self._fitted[key] = str(error)
            self._fitted.move_to_end(key)
            if len(self._fitted) > _MAX_FITTED:
                self._fitted.popitem(last=False)
            return self._fitted[key]
