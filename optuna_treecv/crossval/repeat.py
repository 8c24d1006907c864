"""One of the repeats of a cross-validation: how its rows are cut and in which parts it goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from optuna_treecv.crossval.subtrees import reported_parts
from optuna_treecv.crossval.subtrees import walked_blocks
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import plan_key
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan


class Repeat(NamedTuple):
    """One of the ``n_repeats`` cross-validations.

    Attributes
    ----------
    number : int
        0, 1, ...
    cut : Folds or Splits
        How the rows are cut.
    plan : Plan
        The tree over the folds. Over splits, its rows are the test rows of all of them, one after
        another, and only its nodes mean anything.
    key : bytes
        A digest of the tree or of the splits.
    blocks, parts : list of Node
        The folds that are evaluated at once, and those after which a report is due.
    """

    number: int
    cut: Cut
    plan: Plan
    key: bytes
    blocks: list[Node]
    parts: list[Node]

    @property
    def most_left_out(self) -> int:
        """The most rows that a fold is not trained on."""
        n_trained, _ = self.cut.count(np.ones(self.cut.n_rows, bool))
        return self.cut.n_rows - int(n_trained.min())

    def with_epochs(self, n_epochs: int) -> Repeat:
        """Return the same repeat for models that are trained for several epochs."""
        if n_epochs == 1:
            return self
        key = digest(self.key, encode(("epochs", n_epochs)))
        return self._replace(plan=replace(self.plan, n_epochs=n_epochs), key=key)


def make_repeat(
    number: int,
    cut: Cut,
    is_random: bool,
    seed: int,
    n_jobs: int,
    reports_of: int | None,
) -> Repeat:
    """Return a repeat.

    Parameters
    ----------
    number : int
    cut : Folds or Splits
    is_random : bool
        Whether each training phase has a random order of its own.
    seed : int
        Of these orders, 64 bits.
    n_jobs : int
        The number of threads.
    reports_of : int or None
        The number of repeats that together report at most 32 times; None if none reports.
    """
    if isinstance(cut, Folds):
        plan = Plan(cut.n_rows, cut.n_folds, cut.bounds, is_random, seed)
        key = plan_key(plan)
    else:
        bounds = cut.bounds()
        plan = Plan(int(bounds[-1]), cut.n_folds, bounds, is_random, seed)
        key = digest(plan_key(plan), *map(encode, cut.arrays()))
    blocks = walked_blocks(plan, n_jobs, reports_of is not None)
    parts = blocks if reports_of is None else reported_parts(plan, reports_of)
    return Repeat(number, cut, plan, key, blocks, parts)
