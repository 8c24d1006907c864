"""The results of an estimator that is trained along a tree: its outputs, and scores of folds."""

from functools import cached_property

import numpy as np

from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import MOST_ROWS
from optuna_treecv.scoring.at_leaves import ArrayThenCount
from optuna_treecv.scoring.at_leaves import COUNT_BYTES
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.sharing.caches import AnyCache
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.sharing.keys import SCORED_BY
from optuna_treecv.sharing.keys import settings_key
from optuna_treecv.tree.plan import Learner


class Results:
    """The results of one estimator on one repeat, in the cache or to be put there.

    Parameters
    ----------
    cache : ModelCache, StoredModelCache or None
    data, folds, settings : bytes
        The names of all that the outputs depend on.
    targets : (bytes, bool)
        The name of the targets and their weights, on which scores depend too, and whether later
        processes give them the same name.
    """

    def __init__(
        self,
        cache: AnyCache | None,
        data: bytes,
        folds: bytes,
        settings: bytes,
        targets: tuple[bytes, bool],
    ) -> None:
        self._cache = cache
        self._names = data, folds, settings
        self._of_scores = digest(SCORED_BY, targets[0])
        self._lasts = targets[1]

    @classmethod
    def of(
        cls,
        learner: Learner,
        method: str,
        cache: AnyCache | None,
        data: bytes,
        folds: bytes,
        targets: tuple[bytes, bool],
    ) -> "Results | None":
        """Return the results of a learner that a method trains; None if it has no key."""
        try:
            if isinstance(learner, CompiledLearner):
                settings = settings_key(learner, MOST_ROWS)
            elif isinstance(learner, Adapter):
                settings = encode(learner.fresh) + encode(learner.response_methods)
                if learner.rows.file is not None:  # partial_fit gets pieces of phases
                    settings += encode(learner.rows.file.n_block)
            else:
                return None
        except NoKey:
            return None
        return cls(cache, data, folds, digest(settings, method.encode()), targets)

    @cached_property
    def name(self) -> str:
        """The digest of the rows, the settings, the folds and the method, in hexadecimal."""
        return digest(*self._names).hex()

    def take(self, leaves: Leaves) -> int | None:
        """Fill in the results if they are kept; return the row updates that they took."""
        results, memories = leaves.results(), {}
        for name, result in results.items():  # outputs are the largest, and come last
            key = self._key_of(name, len(result.memory))
            memory = None if self._cache is None else self._cache.find(key)
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
        return self._cache is not None and self._cache.has(key)

    def to_write(self, outputs: ArrayThenCount, seconds: float) -> tuple[Key, np.ndarray, float]:
        """Return outputs in the form that ``StoredModelCache.write`` takes."""
        return self._key_of("outputs", len(outputs.memory)), outputs.memory, seconds

    def keep(self, leaves: Leaves, n_updates: int, seconds: float) -> None:
        """Keep the results that were not kept yet, with their row updates and seconds."""
        if self._cache is None:
            return
        for name, results in leaves.to_keep().items():
            results.n_updates = n_updates
            results.memory.flags.writeable = False
            cache = self._cache if name == "outputs" or self._lasts else self._cache.memory
            cache.keep(self._key_of(name, len(results.memory)), results.memory, seconds)

    def _key_of(self, name: str, n_bytes: int) -> Key:
        """Return the key of a result; for scores it covers the targets and the scoring code."""
        unit = b"outputs" if name == "outputs" else digest(self._of_scores, encode(name))
        return Key(*self._names, unit, n_bytes)
