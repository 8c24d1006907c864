"""Rows after steps that are done once, which trials with the same steps share.

Those asked for last are always kept. Others are kept in the cache of models while it has room for
them, and made again otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import SparseRows
from optuna_treecv.sharing.keys import token
from optuna_treecv.sharing.memory_cache import ModelCache


@dataclass(frozen=True)
class Made:
    """Prepared rows, and the seconds that it took to make them."""

    rows: PreparedRows
    seconds: float

    @property
    def nbytes(self) -> int:
        """The bytes of the rows, and of the moments of their blocks if they are scaled."""
        X = self.rows.X
        parts = [X]
        if isinstance(X, SparseRows):
            parts = [X.values, X.columns, X.begins, X.dense]
        elif sparse.issparse(X):
            parts = [X.data, X.indices, X.indptr]
        parts += [self.rows.y, self.rows.targets, self.rows.weights, self.rows.score_weights]
        dense = X.dense if isinstance(X, SparseRows) else X
        # Three float64 vectors for each 64 rows, and for each pair of these, and so on.
        of_blocks = dense.size * 3 * 8 * 2 // 64 if isinstance(dense, np.ndarray) else 0
        return of_blocks + sum(part.nbytes for part in parts if part is not None)


class KeptRows:
    """The transformed rows of one evaluation; not for two threads at once.

    Parameters
    ----------
    cache : ModelCache or None
        None: only the rows asked for last are kept.
    """

    def __init__(self, cache: ModelCache | None) -> None:
        self._cache = cache
        self._evaluation = token()
        self._last: tuple[Hashable, Made] | None = None

    def of(self, name: Hashable, make: Callable[[], Made]) -> Made:
        """Return the rows of a name, made if they are not kept."""
        if self._last is None or self._last[0] != name:
            self._last = None  # their memory may be needed for the others
            self._last = name, self._find(name, make)
        return self._last[1]

    def _find(self, name: Hashable, make: Callable[[], Made]) -> Made:
        if self._cache is None:
            return make()
        key = b"rows", self._evaluation, name
        found: Made | None = self._cache.find(key)
        if found is None:
            found = make()
            self._cache.keep(key, found, found.seconds)
        return found
