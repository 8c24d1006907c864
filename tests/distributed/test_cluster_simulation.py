"""The simulation of a cluster, held to values that are known without it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from importlib import import_module
from pathlib import Path
import sys

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from optuna_treecv.engines.treecv.sweeps import piece_bounds
from optuna_treecv.engines.treecv.sweeps import Sweep
from optuna_treecv.rows.partition import Partition
from optuna_treecv.testing import treecv


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
        yield import_module("cluster")
        del sys.modules["cluster"]


def costs(cluster, **given):
    """Return costs of nothing but a second per row, and of what is given."""
    nothing = dict.fromkeys(cluster.Costs._fields, 0.0)
    return cluster.Costs(**{**nothing, "ns_32": 1e9, "bandwidth": 1.0, **given})


def count_updates(plan):
    """Return the row updates of Algorithm 1 as the paper prints it."""
    counts = [0]
    chunks = [range(plan.begin(fold), plan.begin(fold + 1)) for fold in range(plan.n_folds)]
    treecv(chunks, lambda _, rows, n_seen: counts.append(len(rows)), lambda *_: None, None)
    return sum(counts)


def even(n_rows, n_workers):
    return [worker * n_rows // n_workers for worker in range(n_workers + 1)]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 4.0),  # n rows, one after another
        ({"task": 0.25, "message": 0.5}, 4 * 1.25 + 3 * 0.5),
        ({"state": 1.0, "bandwidth": 64.0}, 4 + 3 * 0.5),  # 32 bytes
        ({"ns_32": 0.0, "scheduler": 1.0}, 12.0),  # it assigns one of 12 tasks after another
    ],
)
def test_a_tree_of_four_blocks_by_hand(cluster, given, seconds):
    tasks = cluster.tree_tasks(Partition(4, 4), even(4, 4))
    # Each child of the root is trained on two blocks, each leaf on one, and each is tested on one.
    assert len(tasks) == 2 * 2 + 4 + 4
    run = cluster.simulate(tasks, 1, 4, costs(cluster, **given))
    assert run.seconds == seconds
    assert run.busy == (0 if "scheduler" in given else 12)
    assert run.n_messages == 10  # all states but the first two, which have seen no rows
    if not given:
        assert run.share(4) == 0.75  # log2(4) + 1 times faster


class Recorder:
    """Learner and file of a sweep: a state is a list of the blocks and the rows it has seen."""

    rows, trains_pairs = None, False

    def __init__(self, plan, n_block):
        self.n_block, self.bounds = n_block, piece_bounds(plan, n_block)
        self.seen = []

    def hold(self, *_):
        """Read nothing."""

    start, snapshot, release = list, list, hold

    def update_part(self, part):
        self.see(part.state, part.phase.start + part.begin, part.phase.start + part.end)

    def see(self, state, start, stop):
        block = bisect_right(self.bounds, start) - 1
        assert stop <= self.bounds[block + 1]
        state.append((block, stop - start))
        self.seen.append(tuple(state))


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data(), st.integers(2, 80))
def test_the_tasks_are_what_a_sweep_does(cluster, data, n):
    plan = Partition(n, data.draw(st.integers(2, n)))
    recorder = Recorder(plan, data.draw(st.integers(1, n)))

    def test(node, state, start, stop):
        recorder.see(state, start, stop)
        return 0

    sweep = Sweep(plan, recorder, test, (), recorder)
    sweep.begin([])
    for _ in sweep.rounds():
        pass
    tasks, seen = cluster.tree_tasks(plan, recorder.bounds), []
    for task in tasks:
        before = () if task.after is None else seen[task.after]
        seen.append((*before, (task.worker, task.n_rows)))
    n_tests = sum(task.n_rows for task in tasks) - count_updates(plan)
    assert n_tests == n
    assert len(seen) == len(recorder.seen)
    # A task of a whole subtree also counts its row updates, which a sweep leaves to the kernel.
    without_last = Counter(tuple(one[:-1]) + one[-1][:1] for one in seen)
    assert without_last == Counter(tuple(one[:-1]) + one[-1][:1] for one in recorder.seen)
