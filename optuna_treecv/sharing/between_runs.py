"""What all runs of an evaluation share: the cache, and the names of the rows."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.sharing.beginnings import Beginnings
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import fingerprint
from optuna_treecv.sharing.keys import is_ours
from optuna_treecv.sharing.keys import targets_key
from optuna_treecv.sharing.keys import token
from optuna_treecv.sharing.memory_cache import ModelCache
from optuna_treecv.sharing.prefixes import Prefix
from optuna_treecv.sharing.results import RowsIdentity
from optuna_treecv.sharing.stored_cache import AnyCache
from optuna_treecv.sharing.stored_cache import StoredModelCache

# The most repeats whose prefixes are remembered, and the most prefixes of one repeat. A prefix
# takes about a kilobyte, and a hyper-parameter that begins to act at some row, such as
# ``average_start``, adds some for each of its values.
_MOST_ROOTS = 8
_MOST_PREFIXES = 2**14


class SharedBetweenRuns:
    """The models and results of one evaluation, and the names under which they are kept.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
        Where models and results are kept; None: nowhere.
    with_others : bool
        Whether other evaluations may use the same cache. If so, rows are named by their content.
    """

    def __init__(self, cache: AnyCache | None, with_others: bool) -> None:
        self.cache = cache
        self._with_others = with_others
        self._identities: dict[tuple[RowLayout, int, bytes], RowsIdentity] = {}
        self._roots: dict[tuple[bytes, int], Prefix] = {}
        self._data_name: tuple[bytes, bool] | None = None
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedBetweenRuns, (self.cache, self._with_others)

    @property
    def memory(self) -> ModelCache | None:
        """The cache of this process, without a store behind it."""
        return self.cache.memory if isinstance(self.cache, StoredModelCache) else self.cache

    def identity(
        self, layout: RowLayout, rows: PreparedRows, repeat: int, steps: bytes = b""
    ) -> RowsIdentity:
        """Return the names of rows that were prepared after some steps."""
        with self._lock:
            if (layout, repeat, steps) not in self._identities:
                found = fingerprint(rows) if self._with_others else None
                targets = targets_key(rows) if found else b""
                self._identities[layout, repeat, steps] = RowsIdentity(found or token(), targets)
            return self._identities[layout, repeat, steps]

    def data_name(
        self, content: Callable[[], bytes | None], *names: bytes | None
    ) -> tuple[bytes, bool]:
        """Return a name for rows as given, and whether later processes name them so too.

        Parameters
        ----------
        content : callable
            () -> the digest of the rows as given; None if they have none.
        *names : bytes or None
            Names of what else belongs to them; None for what has no name.
        """
        with self._lock:
            if self._data_name is None:
                found = content() if self._with_others else None
                if found is not None and names:
                    found = None if None in names else digest(found, *filter(None, names))
                self._data_name = found or token(), found is not None
            return self._data_name

    def beginnings(self, n_workers: int) -> Beginnings:
        """Return where fitted beginnings of Pipelines are kept, in this process and in workers."""
        memory = self.memory
        assert memory is not None
        return Beginnings(memory, memory.max_bytes // n_workers)

    def root(self, identity: RowsIdentity, repeat: int) -> Prefix:
        """Return the empty prefix over the rows of a repeat.

        Those of a few repeats are kept. They are only looked up faster: a new one has the same
        name.
        """
        with self._lock:
            root = self._roots.pop((identity.rows, repeat), None)
            if root is None or root.made[0] > _MOST_PREFIXES:
                root = Prefix(identity.rows)
            self._roots[identity.rows, repeat] = root
            if len(self._roots) > _MOST_ROOTS:
                del self._roots[next(iter(self._roots))]
            return root

    def cache_for(self, estimator: Any) -> AnyCache | None:
        """Return where an estimator's models are kept.

        Code from outside this package may be different in the next process under the same name,
        so its models stay in memory.
        """
        if isinstance(self.cache, StoredModelCache):
            return self.cache.of_run() if is_ours(type(estimator)) else self.cache.memory
        return self.cache
