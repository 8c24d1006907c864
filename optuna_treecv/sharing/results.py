"""State shared by the jobs of a task: names of rows, the cache, and results in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from threading import Lock
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import MOST_ROWS
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.scoring.at_leaves import ArrayThenCount
from optuna_treecv.scoring.at_leaves import COUNT_BYTES
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.sharing.caches import AnyCache
from optuna_treecv.sharing.caches import ModelCache
from optuna_treecv.sharing.caches import StoredModelCache
from optuna_treecv.sharing.fold_results import Beginnings
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import fingerprint
from optuna_treecv.sharing.keys import is_ours
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.sharing.keys import SCORED_BY
from optuna_treecv.sharing.keys import settings_key
from optuna_treecv.sharing.keys import targets_key
from optuna_treecv.sharing.keys import token
from optuna_treecv.sharing.shared_learner import Prefix
from optuna_treecv.tree.plan import Learner

# The most repeats whose prefixes are remembered, and the most prefixes of one repeat. A prefix
# takes about a kilobyte, and a hyper-parameter that begins to act at some row, such as
# ``average_start``, adds some for each of its values.
_MOST_ROOTS = 8
_MOST_PREFIXES = 2**14


class RowsIdentity(NamedTuple):
    """Names of prepared rows.

    Attributes
    ----------
    rows : bytes
        The name of the rows that models are trained on.
    targets : bytes or None
        The name of what predictions are compared with; None if that has no name.
    """

    rows: bytes
    targets: bytes | None


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
        return None if self.cache is None else self.cache.memory

    def identity(
        self, layout: RowLayout, rows: PreparedRows, repeat: int, steps: bytes = b""
    ) -> RowsIdentity:
        """Return the names of rows that were prepared after some steps."""
        with self._lock:
            if (layout, repeat, steps) not in self._identities:
                rows_digest = fingerprint(rows) if self._with_others else None
                targets = targets_key(rows) if rows_digest else b""
                self._identities[layout, repeat, steps] = RowsIdentity(
                    rows_digest or token(), targets
                )
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
                name = content() if self._with_others else None
                if name is not None and names:
                    name = None if None in names else digest(name, *filter(None, names))
                self._data_name = name or token(), name is not None
            return self._data_name

    def beginnings(self, n_workers: int) -> Beginnings:
        """Return the cache of fitted beginnings of Pipelines, for this process and its workers."""
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
            if root is None or root.n_prefixes[0] > _MOST_PREFIXES:
                root = Prefix(identity.rows)
            self._roots[identity.rows, repeat] = root
            if len(self._roots) > _MOST_ROOTS:
                del self._roots[next(iter(self._roots))]
            return root

    def cache_for(self, estimator: Any) -> AnyCache | None:
        """Return the cache for an estimator's models.

        Code from outside this package may be different in the next process under the same name,
        so its models stay in memory.
        """
        if isinstance(self.cache, StoredModelCache):
            return self.cache.of_run() if is_ours(type(estimator)) else self.cache.memory
        return self.cache


class Results:
    """The results of one estimator on one repeat, in the cache or to be put there.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
    key : tuple of bytes
        Everything that the outputs depend on.
    targets : bytes or None
        A digest of the targets, on which scores depend too; None: scores are not kept.
    """

    def __init__(
        self, cache: AnyCache | None, key: tuple[bytes, ...], targets: bytes | None
    ) -> None:
        self._cache = cache
        self._key = key
        self._targets = targets

    @cached_property
    def name(self) -> str:
        """The digest of the rows, the settings, the folds and the method, in hexadecimal."""
        return digest(*self._key).hex()

    def take(self, leaves: Leaves) -> int | None:
        """Fill in the results if they are kept; return the row updates that they took."""
        results, memories = leaves.results(), {}
        for name, result in results.items():  # outputs are the largest, and come last
            key = self._key_of(name, len(result.memory))
            memory = None if self._cache is None or key is None else self._cache.find(key)
            if memory is None:
                continue
            memories[name] = memory
            if leaves.suffice(memories):
                for one, kept in memories.items():
                    results[one].take(kept)
                return results[name].n_updates
        return None

    def has_outputs(self, n_bytes: int) -> bool:
        """Return whether outputs of that many bytes are kept, without reading them."""
        key = self._key_of("outputs", n_bytes + COUNT_BYTES)
        return self._cache is not None and key is not None and self._cache.has_any([key])

    def to_write(self, outputs: ArrayThenCount, seconds: float) -> tuple[Key, np.ndarray, float]:
        """Return outputs in the form that ``StoredModelCache.write`` takes."""
        key = self._key_of("outputs", len(outputs.memory))
        assert key is not None  # only scores may have none
        return key, outputs.memory, seconds

    def keep(self, leaves: Leaves, n_updates: int, seconds: float) -> None:
        """Keep the results that were not kept yet, with their row updates and seconds."""
        for name, results in leaves.to_keep().items():
            key = self._key_of(name, len(results.memory))
            if self._cache is not None and key is not None:
                results.n_updates = n_updates
                results.memory.flags.writeable = False
                self._cache.keep(key, results.memory, seconds)

    def _key_of(self, name: str, n_bytes: int) -> Key | None:
        """Return the key of a result; for scores it covers the targets and the scoring code."""
        if name == "outputs":
            return *self._key, b"", encode(name), n_bytes
        if self._targets is None:
            return None
        return *self._key, digest(SCORED_BY, self._targets), encode(name), n_bytes


def results_of(
    learner: Learner,
    cache: AnyCache | None,
    identity: RowsIdentity,
    folds: bytes,
    method: str,
) -> Results | None:
    """Return the results of a learner on some folds; None if the learner has no key."""
    try:
        if isinstance(learner, CompiledLearner):
            settings = settings_key(learner, MOST_ROWS)
        elif isinstance(learner, Adapter):
            settings = encode(learner.fresh) + encode(learner.response_methods)
        else:
            return None
    except NoKey:
        return None
    key = identity.rows, digest(settings), folds, encode(method)
    return Results(cache, key, identity.targets)
