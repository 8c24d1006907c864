"""Divides a tree into subtrees, for threads, reports and scoring, and tests them."""

from __future__ import annotations

from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan

#: The most parts that are reported, or shared out among threads.
MAX_BLOCKS = 32

# Without reports, one thread walks a tree of fewer rows than this as one block, and several
# threads take a few blocks each: above the blocks the interpreter works, and with a cache siblings
# are not trained together there.
_ROWS_IN_ONE_BLOCK = 2**22
_BLOCKS_PER_THREAD = 4


def walked_blocks(plan: Plan, n_jobs: int, reports: bool) -> list[Node]:
    """Return the subtrees that are walked one by one, or by one thread each."""
    if reports or plan.n_rows >= _ROWS_IN_ONE_BLOCK:
        return plan.blocks(MAX_BLOCKS)
    if n_jobs == 1:
        return plan.blocks(1)
    return plan.blocks(min(_BLOCKS_PER_THREAD * n_jobs, MAX_BLOCKS))


def reported_parts(plan: Plan, n_repeats: int) -> list[Node]:
    """Return the subtrees after which a report is due: at most 32 over all repeats."""
    return plan.blocks(MAX_BLOCKS // n_repeats)


def divided(plan: Plan, nodes: list[Node], n_jobs: int) -> list[Node]:
    """Return subtrees of which these nodes consist, enough for that many threads."""
    blocks = list(nodes)
    while n_jobs > 1 and len(blocks) < _BLOCKS_PER_THREAD * n_jobs:
        largest = max(blocks, key=lambda node: node.n_folds)
        if largest.n_folds == 1:
            break
        at = blocks.index(largest)
        blocks[at : at + 1] = plan.split(largest)
    return blocks
