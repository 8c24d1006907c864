"""Invariants of the tree, for any number of rows and folds and any fold boundaries."""

from __future__ import annotations

from concurrent.futures import Future
from math import log2
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from recorder import Recorder
from recorder import recurrence
from recorder import trained_on
import reference

from optuna_treecv.core.repeat import Repeat
from optuna_treecv.engines.treecv.passes import StandardPlan
from optuna_treecv.engines.treecv.trained import Training
import optuna_treecv.engines.treecv.walk
from optuna_treecv.engines.treecv.walk import walk_tree
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.testing import treecv


def walk_standard(plan, learner, test, blocks, n_jobs):
    folds = Folds(np.arange(plan.n_rows, dtype=np.uint32), plan.n_folds, plan.bounds)
    repeat = Repeat(0, folds, plan, b"", blocks, blocks)
    request = SimpleNamespace(settings=SimpleNamespace(n_threads=n_jobs))
    plan_of_folds = SimpleNamespace(request=request)
    training = Training(plan_of_folds, repeat, learner, SimpleNamespace(test_leaf=test))
    return StandardPlan.test_folds(plan_of_folds, training)


@st.composite
def plans(draw):
    n_rows = draw(st.integers(2, 80))
    n_folds = draw(st.one_of(st.integers(2, n_rows), st.just(n_rows)))
    bounds = None
    if draw(st.booleans()):
        inner = draw(
            st.sets(st.integers(1, n_rows - 1), min_size=n_folds - 1, max_size=n_folds - 1)
        )
        bounds = np.array([0, *sorted(inner), n_rows], np.int64)
    return Partition(n_rows, n_folds, bounds, draw(st.booleans()), draw(st.integers(0, 2**64 - 1)))


def assert_every_other_row_once(plan, fed):
    assert sorted(fed) == list(range(plan.n_folds))
    tested = []
    for fold, rows in fed.items():
        start, stop = plan.rows(Node(fold, fold + 1))
        assert stop > start
        tested.extend(range(start, stop))
        assert not set(rows) & set(range(start, stop)), (
            "no row is trained into the model that tests it"
        )
        assert sorted(rows) == [row for row in range(plan.n_rows) if not start <= row < stop]
    assert sorted(tested) == list(range(plan.n_rows))


@given(plans(), st.integers(1, 40))
def test_tree_trains_every_other_row_once_and_tests_each_row_once(plan, most):
    fed, n_updates = trained_on(plan, most=most)
    assert_every_other_row_once(plan, fed)
    assert n_updates == recurrence(plan, 0, plan.n_folds)


@pytest.mark.slow
@given(plans())
def test_standard_trains_every_other_row_once(plan):
    fed, n_updates = trained_on(plan, walk_standard)
    assert_every_other_row_once(plan, fed)
    assert n_updates == (plan.n_folds - 1) * plan.n_rows


@given(st.integers(2, 3000), st.data())
def test_updates_stay_below_n_log2_2k(n_rows, data):
    n_folds = data.draw(st.integers(2, n_rows))
    plan = Partition(n_rows, n_folds)
    # The paper's bound. If chunk sizes differ by a row, there may be some more row updates.
    slack = 0 if n_rows % n_folds == 0 else n_folds
    assert recurrence(plan, 0, n_folds) <= n_rows * log2(2 * n_folds) + slack


@pytest.mark.slow
@given(plans())
def test_tree_is_algorithm_1_as_printed(plan):
    chunks = [range(*plan.rows(Node(i, i + 1))) for i in range(plan.n_folds)]
    expected = {}

    def train(model, rows, n_seen):
        start, stop = rows[0], rows[-1] + 1
        assert list(rows) == list(range(start, stop))
        if plan.random and len(rows) > 1:
            rows = reference.random_order(plan.seed, start, stop, n_seen)
        return [*model, *rows]

    treecv(chunks, train, lambda model, fold: expected.update({fold: model}), [])
    assert trained_on(plan)[0] == expected


@pytest.mark.slow
@given(plans(), st.integers(2, 4))
def test_threads_change_nothing(plan, n_jobs):
    for walk in (walk_tree, walk_standard):
        assert trained_on(plan, walk, n_jobs) == trained_on(plan, walk)


@given(st.integers(0, 7), st.integers(0, 1000))
def test_powers_of_two_nest(level, more_rows):
    k = 2**level
    n_rows = 2 * k + more_rows
    small, large = Partition(n_rows, max(k, 1)), Partition(n_rows, 2 * k)
    assert [large.begin(2 * i) for i in range(k)] == [small.begin(i) for i in range(k)]


@given(plans(), st.integers(0, 70))
def test_blocks_cut_the_folds_from_the_left(plan, most):
    blocks = plan.blocks(most)
    assert len(blocks) <= max(1, most)
    assert blocks[0].first == 0 and blocks[-1].last == plan.n_folds
    assert all(left.last == right.first for left, right in zip(blocks, blocks[1:], strict=False))
    sizes = [block.n_folds for block in blocks]
    assert max(sizes) - min(sizes) <= 1


def test_a_tree_has_at_most_32_blocks_at_depth_5():
    assert [len(Partition(1000, k).blocks(32)) for k in (2, 10, 31, 32, 33, 64, 100, 1000)] == [
        *(2, 10, 31, 32, 32, 32, 32, 32)
    ]


def test_random_phases_of_a_row_range_differ_with_what_was_seen():
    plan = Partition(64, 4, None, True, 5)
    left, right = plan.split(plan.root)
    one = plan.phase(plan.root, left).rows
    assert sorted(one) == list(range(32, 64))
    assert not np.array_equal(one, plan.phase(Node(0, 4), right).rows + 32)


@pytest.mark.parametrize("walk", [walk_tree, walk_standard])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_an_error_in_a_block_reaches_the_caller(walk, n_jobs):
    plan = Partition(100, 50)

    def test(node, state, *rows):
        if node.first >= 30:
            raise RuntimeError("no such luck")
        return 0

    with pytest.raises(RuntimeError, match="no such luck"):
        list(walk(plan, Recorder(), test, plan.blocks(32), n_jobs))


def test_an_error_reaches_the_caller_though_a_block_ends_meanwhile(monkeypatch):
    class Ending(Future):
        def set_exception(self, error):
            if not self.done():
                self.set_result(0)  # as if another thread had been faster
            super().set_exception(error)

    class Waiting(Future):
        def result(self, timeout=None):
            return super().result(120)

    plan = Partition(100, 4)
    kinds = iter([Ending, Waiting, Waiting, Waiting])
    monkeypatch.setattr(optuna_treecv.engines.treecv.walk, "Future", lambda: next(kinds)())

    def test(node, state, *rows):
        raise RuntimeError("no such luck")

    with pytest.raises(RuntimeError, match="no such luck"):
        list(walk_tree(plan, Recorder(), test, plan.blocks(32), 2))


@pytest.mark.parametrize("walk", [walk_tree, walk_standard])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_leaving_early_cancels_the_rest(walk, n_jobs):
    plan = Partition(4000, 2000)
    tested = []
    blocks = walk(
        plan, Recorder(), lambda node, *_: tested.append(node) or 0, plan.blocks(32), n_jobs
    )
    next(blocks)
    blocks.close()
    assert 1 <= len(set(tested)) < 2000
    n_tested = len(tested)
    assert n_tested == len(tested)
