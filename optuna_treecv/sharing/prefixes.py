"""Prefixes: the sequence of row ranges that a model has seen, under which it is shared.

Two trainings have a model in common where their sequences begin alike. A prefix is named by a
digest of its row ranges and their orders, so it is the same for all trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import numpy as np

from optuna_treecv.sharing.keys import fed
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Phase
from optuna_treecv.tree.plan import Plan

# A model is kept if its training phase reads at least so many bytes of rows. Then looking models
# up and keeping them takes a fifth of the time of training them, or less.
_LEAST_BYTES = 2**18

_NOTHING = Phase(0, 0)


class Prefix:
    """Identifies a training history: the sequence of row ranges that a model has seen.

    Attributes
    ----------
    name : bytes
        A digest of the sequence.
    n_seen : int
        The number of rows in it, replays included.
    origin, phase, end : Prefix, Phase, int
        The sequence is that of ``origin`` followed by the first ``end`` updates of the phase.
    below : dict
        What ``prefixes_below`` remembers of trees that differ in their epochs only.
    made : list of int
        How many prefixes have been made from the same root.
    """

    __slots__ = ("_next", "below", "end", "made", "n_seen", "name", "origin", "phase")

    def __init__(
        self, name: bytes, n_seen: int = 0, origin: Prefix | None = None, phase: Phase = _NOTHING
    ) -> None:
        self.name = name
        self.n_seen = n_seen
        self.origin = self if origin is None else origin
        self.phase = phase
        self.end = n_seen - self.origin.n_seen
        self.made: list[int] = [0] if origin is None else origin.made
        self.made[0] += 1
        self.below: dict[tuple[Node, int], dict[int, Prefix]] = {}
        self._next: dict[tuple[Phase, int], Prefix] = {}

    def feed(self, phase: Phase, end: int) -> Prefix:
        """Return this prefix followed by the first ``end`` updates of a phase."""
        prefix = self._next.get((phase, end))
        if prefix is None:
            name = fed(self.name, phase, end)
            prefix = self._next[phase, end] = Prefix(name, self.n_seen + end, self, phase)
        return prefix


@dataclass(eq=False, slots=True)
class LazyModel:
    """The model of a prefix, which is trained when somebody asks for its state.

    Attributes
    ----------
    prefix : Prefix
    before : LazyModel or None
        The model from which it is trained, on the rows of the prefix's phase from ``begin`` on;
        None before the first row.
    state : ndarray or None
        None until it is made. Others may hold the same array, so it must not be changed.
    """

    prefix: Prefix
    before: LazyModel | None = None
    begin: int = 0
    state: np.ndarray | None = None


@dataclass(eq=False, slots=True)
class Branch:
    """What the walk holds for a state: a reference to the model that the branch has come to."""

    model: LazyModel


def least_kept_folds(plan: Plan, row_bytes: float) -> int:
    """Return how many folds the smallest nodes hold out whose models are kept.

    The training phase before a node is about as long as the rows that the node holds out.
    """
    return max(1, ceil(_LEAST_BYTES * plan.n_folds / (row_bytes * plan.n_epochs * plan.n_rows)))


def is_worth_keeping(n_bytes: float) -> bool:
    """Return whether a model is worth keeping whose phase reads so many bytes of rows."""
    return n_bytes >= _LEAST_BYTES


@lru_cache(1024)
def count_nodes(n_folds: int, least: int) -> int:
    """Return how many nodes of a tree of ``n_folds`` folds hold out at least ``least`` folds."""
    if n_folds < least:
        return 0
    if n_folds == 1:
        return 1
    return 1 + count_nodes((n_folds + 1) // 2, least) + count_nodes(n_folds // 2, least)


def prefixes_below(prefix: Prefix, plan: Plan, node: Node, least: int) -> dict[int, Prefix]:
    """Return the prefixes below a node of the nodes that hold out at least ``least`` folds.

    The keys are numbers of nodes: the node itself is 0, parents come before their children, left
    before right.
    """
    found = prefix.below.get((node, plan.n_epochs))
    if found is None:
        found = {}
        number = 1
        for child in plan.split(node):
            phase = plan.phase(node, child)
            n_kept = count_nodes(child.n_folds, least)
            if n_kept > 0:
                fed_prefix = found[number] = prefix.feed(phase, phase.n_updates)
                if child.n_folds > 1:
                    below = prefixes_below(fed_prefix, plan, child, least)
                    found |= {number + i: each for i, each in below.items()}
            number += n_kept
        prefix.below[node, plan.n_epochs] = found
    return found
