"""Simulate trees over rows that lie on many machines, between which only states travel.

    python benchmarks/cluster.py [NAME=VALUE ...]

It prints the tables of "Many machines" in docs/how_it_works/scale.rst, in a minute. NAME is a
field of ``Costs``, such as ``task=0.002``. Nothing is measured here.

Each worker holds one block of equally many rows, and runs one task at a time. A task trains one
state on the rows of a phase that lie on one worker, or it tests there, or it walks a whole subtree
whose rows lie on one worker. When a task is done, the scheduler assigns those that go on with its
state, one after another. The state travels, if it is on another worker, and the task waits until
its worker is free. Messages do not slow each other down. All trees start at once, and the time is
that of the last task. A row that is tested costs as much as a row update.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from heapq import heappop
from heapq import heappush
from itertools import product
from math import log2
import sys
from typing import NamedTuple

from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition

K = 100


class Costs(NamedTuple):
    """Seconds, unless something else is said."""

    ns_1: float = 25  # nanoseconds per row of a state of one lane
    ns_8: float = 88
    ns_32: float = 297
    state: float = 500  # bytes per lane
    message: float = 1e-3
    bandwidth: float = 1.25e9  # bytes per second
    task: float = 1e-3  # of a worker, for each task
    scheduler: float = 2e-4  # for each task


class Task(NamedTuple):
    """Rows on one worker that one state is trained on or tests."""

    worker: int
    n_rows: int  # row updates and tests
    after: int | None  # the number of the task that makes the state; None: a state of no rows


class Run(NamedTuple):
    """What a simulation found: seconds, those of work by all workers, and messages."""

    seconds: float
    busy: float
    n_messages: int

    def share(self, n_workers: int) -> float:
        """Return the share of the time in which workers train and test."""
        return self.busy / (n_workers * self.seconds)


def tree_tasks(plan: Partition, bounds: list[int]) -> list[Task]:
    """Return the tasks of a tree; worker i holds the rows bounds[i] to bounds[i + 1] - 1."""
    tasks: list[Task] = []

    def walk(node: Node, after: int | None) -> None:
        start, stop = plan.rows(node)
        worker = worker_of(start, bounds)
        if worker == worker_of(stop - 1, bounds):
            tasks.append(Task(worker, stop - start + updates_below(plan, node), after))
        elif node.n_folds == 1:
            go_on(tasks, bounds, after, start, stop)
        else:
            for child in plan.split(node):
                phase = plan.phase(node, child)
                walk(child, go_on(tasks, bounds, after, phase.start, phase.stop))

    walk(plan.root, None)
    return tasks


def chain_tasks(plan: Partition, bounds: list[int]) -> list[Task]:
    """Return the tasks of k chains without the tree.

    Each begins after its fold and goes round, so that not all begin on the same worker.
    """
    tasks: list[Task] = []
    for fold in range(plan.n_folds):
        begin, end = plan.rows(Node(fold, fold + 1))
        after = go_on(tasks, bounds, None, end, plan.n_rows)
        after = go_on(tasks, bounds, after, 0, begin)
        go_on(tasks, bounds, after, begin, end)
    return tasks


def go_on(
    tasks: list[Task], bounds: list[int], after: int | None, start: int, stop: int
) -> int | None:
    """Add the tasks of a state on the rows start to stop - 1; return the last one's number."""
    while start < stop:
        worker = worker_of(start, bounds)
        end = min(stop, bounds[worker + 1])
        tasks.append(Task(worker, end - start, after))
        start, after = end, len(tasks) - 1
    return after


def worker_of(row: int, bounds: list[int]) -> int:
    return bisect_right(bounds, row) - 1


def updates_below(plan: Partition, node: Node) -> int:
    """Return the row updates below a node."""
    if node.n_folds == 1:
        return 0
    start, stop = plan.rows(node)
    return stop - start + sum(updates_below(plan, child) for child in plan.split(node))


def paths(tasks: list[Task]) -> list[int]:
    """Return the rows of the longest path from each task on, itself included."""
    longest = [0] * len(tasks)
    for number in reversed(range(len(tasks))):
        task = tasks[number]
        longest[number] += task.n_rows
        if task.after is not None:
            longest[task.after] = max(longest[task.after], longest[number])
    return longest


def simulate(
    tasks: list[Task],
    n_trees: int,
    n_workers: int,
    costs: Costs,
    lanes: int = 32,
    order: str = "behind",
) -> Run:
    """Run ``n_trees`` times the same tasks.

    Of those that wait for a worker, it runs the one with the longest path behind it first, of all
    trees ("behind") or of the first tree ("tree"), or that with the longest path that begins with
    the task itself ("from").
    """
    row = getattr(costs, f"ns_{lanes}") * 1e-9
    travel = costs.message + lanes * costs.state / costs.bandwidth
    longest, followers = paths(tasks), defaultdict(list)
    own = [0 if order == "from" else task.n_rows for task in tasks]
    ranks = sorted(range(len(tasks)), key=lambda i: (own[i] - longest[i], -longest[i], i))
    for rank, number in enumerate(ranks):
        followers[tasks[number].after].append((rank, number))
    # A task of a tree is (its rank among all of the worker, its number, the tree).
    waiting: list[list[tuple[int, int, int]]] = [[] for _ in range(n_workers)]
    is_busy = [False] * n_workers
    events: list[tuple[float, bool, int, tuple[int, int, int]]] = []  # time, whether it ends, ...
    now = assigned = busy = 0.0
    n_messages = 0

    def assign(after: int | None, tree: int) -> None:
        nonlocal assigned, n_messages
        for rank, number in followers[after]:
            worker = tasks[number].worker
            assigned = max(assigned, now) + costs.scheduler
            moves = after is not None and tasks[after].worker != worker
            n_messages += moves
            one = (rank + tree * len(tasks) * (order == "tree"), number, tree)
            heappush(events, (assigned + travel * moves, False, worker, one))

    for tree in range(n_trees):
        assign(None, tree)
    while events:
        now, ends, worker, one = heappop(events)
        if ends:
            is_busy[worker] = False
            assign(*one[1:])
        else:
            heappush(waiting[worker], one)
        if waiting[worker] and not is_busy[worker]:
            one, is_busy[worker] = heappop(waiting[worker]), True
            work = tasks[one[1]].n_rows * row
            busy += work
            heappush(events, (now + costs.task + work, True, worker, one))
    return Run(now, busy, n_messages)


def cut(n_rows: int, n_workers: int) -> tuple[Partition, list[int]]:
    """Return the plan, and the first row of each worker's block and the end of the last one."""
    return Partition(n_rows, K), [worker * n_rows // n_workers for worker in range(n_workers + 1)]


def path_and_work(n_rows: int, n_trees: int, n_workers: int, costs: Costs, lanes: int) -> float:
    """Return roughly the seconds of trees: their longest path and a worker's share of the work."""
    row = getattr(costs, f"ns_{lanes}") * 1e-9
    return n_rows * row * (1 + n_trees * log2(2 * K) / n_workers)


def table(title: str, *rows: Iterable[object]) -> None:
    """Print a table in reStructuredText; the first row is its head."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    line = "  ".join("=" * width for width in widths)
    body = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    print(f"\n{title}\n", line, body[0], line, *body[1:], line, sep="\n", flush=True)


def main(costs: Costs) -> None:
    n, sizes, flights = 10**9, (8, 32, 128, 1024), (1, 4, 16, 64)
    trees = {size: tree_tasks(*cut(n, size)) for size in (*sizes, 512)}
    print(costs)

    rows: list[list[object]] = [["workers", *flights, "messages", "MB"]]
    for size in sizes:
        runs = [simulate(trees[size], many, size, costs) for many in flights]
        shares = [f"{one.share(size):.2f} ({one.share(size) * size:.3g})" for one in runs]
        megabytes = runs[0].n_messages * 32 * costs.state / 1e6
        rows.append([size, *shares, f"{runs[0].n_messages:,}", f"{megabytes:.1f}"])
    table("Busy share (speed-up) by trees in flight; messages and MB per tree", *rows)

    flown = ((1, 8), (16, 32), (64, 128), (64, 1024))
    slow = costs._replace(message=0.1)
    rows = [["rows", *(f"{many}, {size}" for many, size in flown), "16, 32 at 100 ms"]]
    for many_rows in (10**7, 10**8, 10**9, 10**10, 10**11):
        found = [
            simulate(tree_tasks(*cut(many_rows, size)), many, size, one).share(size)
            for many, size, one in (*((*pair, costs) for pair in flown), (16, 32, slow))
        ]
        rows.append([f"{many_rows:.0e}", *(f"{share:.2f}" for share in found)])
    table("Busy share by rows, for trees in flight, workers", *rows)

    splits = ((1, 32), (4, 8), (32, 1))
    rows = [["grids", "workers", *(f"{many} x {lanes}" for many, lanes in splits)]]
    for grids, size in product((1, 4, 16), sizes[:3]):
        pairs = [
            (
                simulate(trees[size], grids * many, size, costs, lanes).seconds,
                path_and_work(n, grids * many, size, costs, lanes),
            )
            for many, lanes in splits
        ]
        rows.append([grids, size, *(f"{one:.0f} ({rule:.0f})" for one, rule in pairs)])
    table("Seconds for grids of 32, as trees x lanes (by the rule)", *rows)

    rows = [["workers", "copies", "each with", "trees", *(f"{m:.0e} rows" for m in (n, n // 10))]]
    for total, copies in product((128, 1024), (1, 4, 16, 64)):
        size, many = total // copies, 64 // copies
        plans = [cut(many_rows, size) for many_rows in (n, n // 10)]
        runs = [simulate(tree_tasks(*plan), many, size, costs) for plan in plans]
        rows.append([total, copies, size, many, *(f"{one.seconds:.0f}" for one in runs)])
    table(
        "Seconds of 64 trees by copies of the cluster, each with so many workers and trees", *rows
    )

    orders = ("behind", "from", "tree")
    rows = [["workers", "trees", *orders, "behind, cut along nodes"]]
    for size, many in product(sizes[:3], flights):
        plan = Partition(n, K)
        whole = [*(plan.begin(node.first) for node in plan.blocks(size)), n]
        runs = [simulate(trees[size], many, size, costs, order=order) for order in orders]
        runs.append(simulate(tree_tasks(plan, whole), many, size, costs))
        rows.append([size, many, *(f"{one.seconds:.0f}" for one in runs)])
    table("Seconds by the path that goes first, and with blocks cut along the tree", *rows)

    rows = [["workers", "1 grid: chains", "tree", "16 grids: chains", "trees"]]
    for size in (32, 128, 512):
        kinds = (chain_tasks(*cut(n, size)), trees[size])
        runs = [simulate(tasks, many, size, costs) for many in (1, 16) for tasks in kinds]
        rows.append([size, *(f"{one.seconds:.0f}" for one in runs)])
    table(f"Seconds of {K} chains without the tree, 32 lanes", *rows)


if __name__ == "__main__":
    given = (argument.split("=") for argument in sys.argv[1:])
    main(Costs(**{name: float(value) for name, value in given}))
