"""Results of an estimator: kept in a cache, or computed ahead of the run that asks for them."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import MOST_ROWS
from optuna_treecv.scoring import ArrayThenCount
from optuna_treecv.scoring import COUNT_BYTES
from optuna_treecv.scoring import Leaves
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.sharing.keys import SCORED_BY
from optuna_treecv.sharing.keys import settings_key
from optuna_treecv.sharing.stored_cache import AnyCache
from optuna_treecv.tree.learner import Learner


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


class Results:
    """The results of one estimator on one repeat, in the cache or to be put there.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
    key : tuple of bytes
        Everything that the outputs depend on.
    targets : bytes or None
        What scores depend on besides; None: scores are not kept.
    """

    def __init__(
        self, cache: AnyCache | None, key: tuple[bytes, ...], targets: bytes | None
    ) -> None:
        self._cache = cache
        self._key = key
        self._targets = targets

    @cached_property
    def name(self) -> str:
        """The digest of what was trained how, on which rows, in hexadecimal digits."""
        return digest(*self._key).hex()

    def take(self, leaves: Leaves) -> int | None:
        """Fill in the results if they are kept; return the row updates that they took."""
        results, found = leaves.results(), {}
        for name, result in results.items():  # outputs are the largest, and come last
            key = self._key_of(name, len(result.memory))
            memory = None if self._cache is None or key is None else self._cache.find(key)
            if memory is None:
                continue
            found[name] = memory
            if leaves.suffice(found):
                for one, kept in found.items():
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
        """Keep the results that were not kept yet, and what they took."""
        for name, results in leaves.to_keep().items():
            key = self._key_of(name, len(results.memory))
            if self._cache is not None and key is not None:
                results.n_updates = n_updates
                results.memory.flags.writeable = False
                self._cache.keep(key, results.memory, seconds)

    def _key_of(self, name: str, n_bytes: int) -> Key | None:
        """Scores depend on what predictions are compared with, and by whose code."""
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
