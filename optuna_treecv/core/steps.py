"""Preprocessing that is fitted once for all trials, and the prepared rows after it."""

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

# The most fitted steps that are cached, the most recently used ones.
_MAX_FITTED = 16


class Steps:
    """The preprocessing of one cross-validation, with its caches.

    Parameters
    ----------
    X : the rows as given
    y : ndarray or None
        The targets as given.
    cache : ModelCache or None
        The cache of preprocessed rows; None: only the most recently used ones are cached.
    """

    def __init__(self, X: Features, y: Array | None, cache: ModelCache | None) -> None:
        self.X, self.y, self._cache = X, y, cache
        self._name = token()
        self._last_rows: tuple[Hashable, PreparedRows] | None = None
        self._fitted: OrderedDict[bytes, Opaque] = OrderedDict()
        self._fitting = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return Steps, (self.X, self.y, self._cache)  # steps and rows are computed again

    def rows(self, name: Hashable, make: Callable[[], PreparedRows]) -> PreparedRows:
        """Return preprocessed rows from the cache, or prepare them; for one thread at a time.

        The most recently used ones are always cached. Others are in the cache of models while it
        has room for them, and are prepared again otherwise.
        """
        if self._last_rows is None or self._last_rows[0] != name:
            self._last_rows = None  # their memory may be needed for the others
            key = b"rows", self._name, name
            rows: PreparedRows | None = None if self._cache is None else self._cache.find(key)
            if rows is None:
                rows = make()
                if self._cache is not None:
                    self._cache.keep(key, rows, rows.seconds)
            self._last_rows = name, rows
        return self._last_rows[1]

    def fitted(self, name: bytes | None, make: Callable[[], T]) -> T | str:
        """Return the fitted steps from the cache, or fit them.

        Return the reason instead if they cannot be fitted once for all folds, for example because
        they contain an object that has no key (``name`` is None).
        """
        if name is None:
            return "its steps contain an object that has no key, such as a lambda"
        with self._fitting:
            if name not in self._fitted:
                try:
                    self._fitted[name] = make()
                except NotAheadError as error:
                    self._fitted[name] = str(error)
            self._fitted.move_to_end(name)
            if len(self._fitted) > _MAX_FITTED:
                self._fitted.popitem(last=False)
            return self._fitted[name]
