"""A learner that records its training rows, and the walks that feed it."""

from __future__ import annotations

from types import SimpleNamespace

from optuna_treecv.engines.treecv.walk import walk_to_leaves
from optuna_treecv.engines.treecv.walk import walk_tree
from optuna_treecv.rows.partition import rows_of


class Recorder:
    """A learner whose state is the list of rows that it was trained on."""

    rows = SimpleNamespace(file=None)

    def start(self):
        return []

    def update(self, state, phase):
        rows = rows_of(phase)
        state.extend(range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist())

    def snapshot(self, state):
        return list(state)


def trained_on(plan, walk=walk_tree, n_jobs=1, most=32):
    """Return the training rows of each fold's model, in order, and the counted row updates."""
    learner = Recorder()
    fed = {}

    def test_leaf(fold, state):
        assert fold.first not in fed, "a fold is tested once"
        fed[fold.first] = list(state)

    def test(node, state, *rows):
        return walk_to_leaves(plan, learner, test_leaf, node, state)

    done = list(walk(plan, learner, test, plan.blocks(most), n_jobs))
    assert [node for node, _ in done] == plan.blocks(most)
    return fed, sum(n_updates for _, n_updates in done)


def recurrence(plan, first, last):
    """Return the row updates below a node.

    Its two children are together trained on each of its rows once.
    """
    if last - first == 1:
        return 0
    middle = (first + last + 1) // 2
    own = plan.begin(last) - plan.begin(first)
    return own + recurrence(plan, first, middle) + recurrence(plan, middle, last)
