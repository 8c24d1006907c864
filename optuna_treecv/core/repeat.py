"""One of the cross-validations of an evaluation: its folds, and the tree over them."""

from typing import NamedTuple

from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.prefix import plan_key
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition

#: The most parts that are reported, or shared out among threads.
MAX_BLOCKS = 32

# Without reports, one thread walks a tree of fewer rows than this as one block, and several
# threads take a few blocks each: above the blocks the interpreter works, and with a cache siblings
# are not trained together there.
_ROWS_IN_ONE_BLOCK = 2**22
_BLOCKS_PER_THREAD = 4


class Repeat(NamedTuple):
    """One of the ``n_repeats`` cross-validations.

    Attributes
    ----------
    number : int
        0, 1, ...
    cut : Folds or Splits
        How the rows are cut.
    plan : Partition
        The tree over the folds. Over splits, its rows are the test rows of all of them, one after
        another, and only its nodes mean anything.
    key : bytes
        A digest of the tree or of the splits.
    blocks, parts : list of Node
        The folds that are evaluated at once, and those after which a report is due.
    """

    number: int
    cut: Cut
    plan: Partition
    key: bytes
    blocks: list[Node]
    parts: list[Node]


def make_repeat(
    number: int, cut: Cut, is_random: bool, seed: int, n_jobs: int, reports_of: int | None
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
        plan = Partition(cut.n_rows, cut.n_folds, cut.bounds, is_random, seed)
        key = plan_key(plan)
    else:
        bounds = cut.begins()
        plan = Partition(int(bounds[-1]), cut.n_folds, bounds, is_random, seed)
        key = digest(plan_key(plan), *map(encode, cut.arrays()))
    n_blocks = 1 if n_jobs == 1 else min(_BLOCKS_PER_THREAD * n_jobs, MAX_BLOCKS)
    if reports_of is not None or plan.n_rows >= _ROWS_IN_ONE_BLOCK:
        n_blocks = MAX_BLOCKS
    blocks = plan.blocks(n_blocks)
    parts = blocks if reports_of is None else plan.blocks(MAX_BLOCKS // reports_of)
    return Repeat(number, cut, plan, key, blocks, parts)


def divide_nodes(plan: Partition, nodes: list[Node], n_jobs: int) -> list[Node]:
    """Return subtrees of which these nodes consist, enough for that many threads."""
    blocks = list(nodes)
    while n_jobs > 1 and len(blocks) < _BLOCKS_PER_THREAD * n_jobs:
        largest = max(blocks, key=lambda node: node.n_folds)
        if largest.n_folds == 1:
            break
        at = blocks.index(largest)
        blocks[at : at + 1] = plan.split(largest)
    return blocks
