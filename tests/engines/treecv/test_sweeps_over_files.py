"""A sweep over rows in a file trains and tests the same models as the walk over rows in memory."""

from __future__ import annotations

from math import log2
from types import SimpleNamespace

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
from recorder import Recorder
from recorder import trained_on

from optuna_treecv.engines.treecv.sweeps import piece_bounds
from optuna_treecv.engines.treecv.sweeps import rows_to_read
from optuna_treecv.engines.treecv.walk import subtrees_beside_spine
from optuna_treecv.engines.treecv.walk import walk_to_leaves
from optuna_treecv.engines.treecv.walk import walk_tree
from optuna_treecv.rows.partition import cut
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition


class Reader:
    """Takes note of the pieces that a walk reads."""

    def __init__(self, n_block):
        self.n_block = n_block
        self.held = []

    def hold(self, start, stop, following=(0, 0)):
        self.held.append((start, stop))

    def release(self):
        """Hold nothing."""

    def expect(self, what, n_rows):
        self.expected = n_rows()


class PartRecorder(Recorder):
    """Trains on the piece that was read last, and on nothing else."""

    def __init__(self, n_block, trains_pairs=False):
        self.file = Reader(n_block)
        self.rows = SimpleNamespace(file=self.file)
        self.trains_pairs = trains_pairs

    def update_part(self, part):
        rows = cut(part.phase.rows, part.begin, part.end)
        start, stop = self.file.held[-1]
        assert start <= rows.start < rows.stop <= stop
        self.update(part.state, rows)

    def update_both_parts(self, part, other):
        self.update_part(part)
        self.update_part(other)


@st.composite
def cases(draw):
    n_rows = draw(st.integers(2, 120))
    n_folds = draw(st.one_of(st.integers(2, n_rows), st.just(n_rows)))
    bounds = None
    if draw(st.booleans()):
        first = draw(st.integers(0, n_rows - n_folds))
        inner = st.sets(
            st.integers(first + 1, n_rows - 1), min_size=n_folds - 1, max_size=n_folds - 1
        )
        bounds = np.array([first, *sorted(draw(inner)), n_rows], np.int64)
    n_block = draw(st.integers(1, n_rows + 5))
    return Partition(n_rows, n_folds, bounds), n_block


def swept(plan, n_block, n_jobs=1, most=32, trains_pairs=False):
    """Return what each fold's model was trained on and tested, the row updates, and the file."""
    learner = PartRecorder(n_block, trains_pairs)
    fed, tested = {}, {}

    def test_leaf(fold, state):
        assert fold.first not in fed, "a fold is tested once"
        fed[fold.first] = list(state)
        tested[fold.first] = [*range(*plan.rows(fold))]

    def test(node, state, start, stop):
        if n_jobs == 1:
            held = learner.file.held[-1]
            assert held[0] <= start < stop <= held[1]
        if node.n_folds == 1:
            before = fed.setdefault(node.first, list(state))
            assert before == state
            tested.setdefault(node.first, []).extend(range(start, stop))
            return 0
        whole = PartRecorder(n_block)
        whole.update_part = None
        return walk_to_leaves(plan, whole, test_leaf, node, state)

    done = list(walk_tree(plan, learner, test, plan.blocks(most), n_jobs))
    assert [node for node, _ in done] == plan.blocks(most)
    return fed, tested, sum(n_updates for _, n_updates in done), learner.file


@pytest.mark.slow
@settings(max_examples=60)
@given(cases(), st.integers(1, 32), st.booleans())
def test_every_model_sees_its_rows_in_the_same_order(case, most, trains_pairs):
    plan, n_block = case
    fed, tested, n_updates, _ = swept(plan, n_block, 1, most, trains_pairs)
    in_memory, expected = trained_on(plan)
    assert fed == in_memory
    assert n_updates == expected
    assert tested == {fold: [*range(*plan.rows(Node(fold, fold + 1)))] for fold in fed}


@pytest.mark.slow
@settings(max_examples=30)
@given(cases())
def test_threads_share_the_models_of_a_piece(case):
    plan, n_block = case
    assert swept(plan, n_block, n_jobs=3)[:3] == swept(plan, n_block)[:3]


@settings(max_examples=50)
@given(cases())
def test_nodes_lie_within_a_piece_or_consist_of_pieces(case):
    plan, n_block = case
    bounds = piece_bounds(plan, n_block)
    assert bounds[0] == 0 and bounds[-1] == plan.n_rows
    assert all(0 < n <= n_block * 3 // 2 for n in np.diff(bounds))
    nodes = [plan.root]
    while nodes:
        node = nodes.pop()
        start, stop = plan.rows(node)
        is_within = np.searchsorted(bounds, start, "right") == np.searchsorted(bounds, stop)
        assert is_within or {start, stop} <= set(bounds)
        if node.n_folds > 1:
            nodes += plan.split(node)


@pytest.mark.parametrize("depth", range(1, 9))
def test_so_many_readings(depth):
    n_folds = 2**depth  # each is a piece
    plan = Partition(8 * n_folds, n_folds)
    *_, file = swept(plan, 8)
    read = sum(stop - start for start, stop in file.held) / plan.n_rows
    assert read == 1 + log2(n_folds) / 2 == file.expected / plan.n_rows


@pytest.mark.slow
@pytest.mark.parametrize("k", [10, 50, 65, 100, 128, 150, 200, 640, 6400])
def test_readings_of_other_numbers_of_folds(k):
    plan = Partition(6400, k)
    for n_blocks in range(8, 140, 9):
        n_block = -(-plan.n_rows // n_blocks)
        read = rows_to_read(plan, n_block) / plan.n_rows
        assert read <= 1 + log2(plan.n_rows / n_block) / 2 + 0.5


def test_a_walk_may_begin_below_the_root_and_stay_above_folds():
    plan, learner = Partition(64, 16), PartRecorder(8)
    states, state, node = {plan.root: []}, [], plan.root
    while node.n_folds > 1:
        left, _ = plan.split(node)
        learner.update(state, plan.phase(node, left).rows)
        states[left], node = list(state), left
    tested, models = {}, {}

    def hold(node, state, start, stop):
        tested.setdefault(node, []).extend(range(start, stop))
        models[node] = list(state)
        return 0

    nodes = plan.blocks(4)
    pending = subtrees_beside_spine(plan, states, plan.root, nodes[0])
    done = list(walk_tree(plan, learner, hold, nodes, 1, pending, stops_at_blocks=True))
    assert [node for node, _ in done] == nodes
    for node in nodes:
        rows = [*range(*plan.rows(node))]
        assert tested[node] == rows  # 16 rows in two pieces
        assert sorted([*models[node], *rows]) == [*range(64)]
