"""Training histories, by which trials find models that they can share.

A prefix is the sequence of row ranges on which a model has been trained. Two trials can share a
model if their training sequences begin with the same prefix. The key of a prefix is a digest of
its row ranges and their orders, so it is the same for all trials.
"""

from functools import lru_cache
from hashlib import blake2b
import struct

from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.rows.partition import Phase

_NOTHING = Phase(0, 0)


class Prefix:
    """A training history: the sequence of row ranges on which a model has been trained.

    Attributes
    ----------
    name : bytes
        The key: a digest of the sequence.
    n_seen : int
        The number of row updates in the sequence, including replays.
    origin, phase, end : Prefix, Phase, int
        The sequence consists of the sequence of ``origin``, followed by the first ``end`` updates
        of ``phase``.
    below : dict
        Cached results of ``prefixes_below``, for trees that differ only in the number of epochs.
    n_prefixes : list of int
        The number of prefixes that were created from the same root, in a list that they share.
    """

    __slots__ = ("_next", "below", "end", "n_prefixes", "n_seen", "name", "origin", "phase")

    def __init__(
        self, name: bytes, n_seen: int = 0, origin: "Prefix | None" = None, phase: Phase = _NOTHING
    ) -> None:
        self.name = name
        self.n_seen = n_seen
        self.origin = self if origin is None else origin
        self.phase = phase
        self.end = n_seen - self.origin.n_seen
        self.n_prefixes: list[int] = [0] if origin is None else origin.n_prefixes
        self.n_prefixes[0] += 1
        self.below: dict[tuple[Node, int], dict[int, Prefix]] = {}
        self._next: dict[tuple[Phase, int], Prefix] = {}

    def feed(self, phase: Phase, end: int) -> "Prefix":
        """Return this prefix, extended by the first ``end`` updates of a phase."""
        prefix = self._next.get((phase, end))
        if prefix is None:
            prefix = Prefix(_digest_after(self.name, phase, end), self.n_seen + end, self, phase)
            self._next[phase, end] = prefix
        return prefix


def _digest_after(prefix: bytes, phase: Phase, n_updates: int) -> bytes:
    """Return the key of a prefix that is extended by ``n_updates`` updates of a phase."""
    hashed = blake2b(prefix, digest_size=16)
    numbers = phase.start, phase.stop, n_updates, phase.seed or 0, phase.seed is not None
    hashed.update(struct.pack("<qqqQ?", *numbers))
    if phase.replays is not None:
        hashed.update(struct.pack("<qQqqq", *phase.replays))
    return hashed.digest()


def plan_key(plan: Partition) -> bytes:
    """Return a digest of all parameters of a tree."""
    bounds = b"" if plan.bounds is None else plan.bounds.tobytes()
    numbers = struct.pack("<qq?Q", plan.n_rows, plan.n_folds, plan.random, plan.seed)
    epochs = [encode(plan.n_epochs)] if plan.n_epochs > 1 else []
    return digest(numbers, bounds, *epochs)


@lru_cache(1024)
def count_nodes(n_folds: int, least: int) -> int:
    """Return how many nodes of a tree over ``n_folds`` folds hold out at least ``least`` folds."""
    if n_folds < least or n_folds == 1:
        return int(n_folds >= least)
    return 1 + count_nodes((n_folds + 1) // 2, least) + count_nodes(n_folds // 2, least)


def prefixes_below(prefix: Prefix, plan: Partition, node: Node, least: int) -> dict[int, Prefix]:
    """Return the prefixes of all nodes below ``node`` that hold out at least ``least`` folds.

    The keys of the dict are the indices of the nodes in preorder, in which ``node`` itself has the
    index 0.
    """
    prefixes = prefix.below.get((node, plan.n_epochs))
    if prefixes is None:
        prefixes = {}
        number = 1
        for child in plan.split(node):
            phase = plan.phase(node, child)
            n_kept = count_nodes(child.n_folds, least)
            if n_kept > 0:
                fed_prefix = prefixes[number] = prefix.feed(phase, phase.n_updates)
                if child.n_folds > 1:
                    below = prefixes_below(fed_prefix, plan, child, least)
                    prefixes |= {number + i: p for i, p in below.items()}
            number += n_kept
        prefix.below[node, plan.n_epochs] = prefixes
    return prefixes
