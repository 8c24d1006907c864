"""Measure trees over the rows of Covertype on workers of Dask.

    OMP_NUM_THREADS=1 python benchmarks/dask_workers.py [RUNS]

A grid of 128 values of alpha with 10 and with 100 folds, on one worker and on two, in turns, which
are processes of this machine with one thread each. Without Dask, the same rows lie in the memory
of one process. The last case kills one of two workers in the middle. The output is a Markdown
table of medians of RUNS runs (default 3). Bytes are those that all processes send, for each tree
of models side by side. The last column is an evaluation of one model, before which the rows are
shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import ExitStack
import os
from pathlib import Path
import signal
from statistics import median
import sys
from tempfile import TemporaryDirectory
from threading import Timer
from time import perf_counter
from typing import Any
import warnings

import dask.array as da
import datasets
import distributed
import numpy as np

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.dask import DaskRows
from optuna_treecv.engines.treecv import remote

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from dask_processes import counting  # noqa: E402
from dask_processes import Processes  # noqa: E402

MODELS = [PegasosClassifier(alpha=alpha) for alpha in np.geomspace(1e-7, 1e-1, 128)]


@contextmanager
def cluster(n_workers: int) -> Iterator[Any]:
    """Yield the client of a new cluster."""
    with ExitStack() as at_end:
        processes = Processes(Path(at_end.enter_context(TemporaryDirectory())))
        at_end.callback(processes.end)
        _, address = processes.start_scheduler()
        for _ in range(n_workers):
            processes.start_worker(address, "--no-nanny")
        client = at_end.enter_context(distributed.Client(address, set_as_default=False))
        client.wait_for_workers(n_workers)
        yield client


def evaluate(cv: int, *rows: Any) -> tuple[float, np.ndarray]:
    """Return the seconds of an evaluation, and its scores."""
    began = perf_counter()
    results = tree_cross_validate_many(MODELS, *rows, cv=cv)
    return perf_counter() - began, np.array([one.test_score for one in results])


def count_trees() -> list[int]:
    """Return a list to which each tree that is walked from now on adds its number of models."""
    models_of_trees, tree = [], remote.RemoteTree

    def record(repeat: Any, models: Any, *arguments: Any) -> Any:
        models_of_trees.append(len(models.estimators))
        return tree(repeat, models, *arguments)

    remote.RemoteTree = record
    return models_of_trees


def main(runs: int = 3) -> None:
    warnings.filterwarnings("ignore", ".*large graph")
    X, y, name = datasets.covertype()
    trees = count_trees()
    lazy = da.from_array(X, chunks=(len(X) // 20, X.shape[1]))
    print(f"{name}, {X.shape[0]:,} x {X.shape[1]}, {len(MODELS)} values of alpha\n")
    print("| folds, workers | seconds | trees x models | KB per tree | one model, shuffled |")
    print("|---|---|---|---|---|")
    for cv in (10, 100):
        found: dict[str, list[tuple[float, ...]]] = {}
        _, expected = evaluate(cv, X, y)
        for _ in range(runs):
            seconds, _ = evaluate(cv, X, y)
            found.setdefault("in memory", []).append((seconds, 0, 0, 0, 0))
            for n_workers, is_killed in [(1, False), (2, False), (2, True)]:
                with cluster(n_workers) as client:
                    rows = DaskRows(lazy, y, client=client)
                    tree_cross_validate_many(MODELS[:1], rows, cv=2)  # workers import the package
                    trees.clear()
                    began = perf_counter()
                    tree_cross_validate_many(MODELS[:1], rows, cv=cv)
                    shuffle = perf_counter() - began
                    trees.clear()
                    if is_killed:
                        pid = next(iter(client.run(os.getpid).values()))
                        usual = found[f"{n_workers}"][-1][0]
                        Timer(usual / 2, os.kill, (pid, signal.SIGKILL)).start()
                        seconds, scores = evaluate(cv, rows)
                        sent = {"bytes": 0}
                    else:
                        with counting(client) as sent:
                            seconds, scores = evaluate(cv, rows)
                    assert np.array_equal(scores, expected)
                    case = f"{n_workers}, of which one is killed" if is_killed else f"{n_workers}"
                    row = seconds, len(trees), max(trees), sent["bytes"] / len(trees), shuffle
                    found.setdefault(case, []).append(row)
        for case, rows_of in found.items():
            seconds, n_trees, size, n_bytes, shuffle = map(median, zip(*rows_of, strict=True))
            print(
                f"| {cv}, {case} | {seconds:.1f} | {n_trees:.0f} x {size:.0f} "
                f"| {n_bytes / 1000:.0f} | {shuffle:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
