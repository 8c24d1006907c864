"""Grown forests, kept in memory as one block of bytes each."""

from __future__ import annotations

from typing import Any

import numpy as np

from optuna_treecv.learners.trees.forest import as_arrays
from optuna_treecv.learners.trees.forest import Forest
from optuna_treecv.learners.trees.forest import from_arrays
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import Key
from optuna_treecv.sharing.memory_cache import ModelCache


class KeptForests:
    """The forest that is kept for some rows and settings; a newer one takes its place.

    A forest is large and soon grown again, so it is not written to a store.

    Parameters
    ----------
    cache : ModelCache or None
    name : bytes or None
        What the trees depend on, but for where they end; None: nothing is kept.
    more : tuple
        Further parts of the name.
    """

    def __init__(
        self, cache: ModelCache | None, name: bytes | None, more: tuple[Any, ...]
    ) -> None:
        self._cache = None if name is None else cache
        self._name = b"" if name is None else name + encode(more)

    def find(self) -> Forest | None:
        """Return the forest that was kept last, if it is still there."""
        heads = self._heads()
        if self._cache is None or not heads:
            return None
        block = self._cache.find(self._key(f"forest {len(heads) - 1}", heads[-1]))
        return None if block is None else from_arrays(block)

    def keep(self, forest: Forest, seconds: float) -> None:
        """Keep a forest in place of the one before."""
        if self._cache is None:
            return
        block = as_arrays(forest)
        block.flags.writeable = False
        number = len(self._heads())
        head = np.array([len(block)], np.int64).view(np.uint8)
        head.flags.writeable = False
        self._cache.keep(self._key(f"forest {number}", len(block)), block, seconds)
        self._cache.keep(self._key(f"head {number}", len(head)), head, seconds)

    def _heads(self) -> list[int]:
        """Return the sizes of the forests that were kept one after the other."""
        sizes: list[int] = []
        while self._cache is not None:
            head = self._cache.find(self._key(f"head {len(sizes)}", 8))
            if head is None:
                break
            sizes.append(int(head.view(np.int64)[0]))
        return sizes

    def _key(self, what: str, n_bytes: int) -> Key:
        return self._name, encode(what), n_bytes
