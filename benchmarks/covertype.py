"""Compare times with scikit-learn on the full Covertype (581,012 x 54, float64).

    python benchmarks/covertype.py [runs]

Both run in the same process with one thread. The output is a Markdown table with ratios of
medians. scikit-learn downloads the data or finds it in $SCIKIT_LEARN_DATA. If
$TREECV_BENCHMARK_ROWS is set, only that many rows are used.
"""

from __future__ import annotations

from collections.abc import Callable
import os
from statistics import median
import sys
from time import perf_counter
import tracemalloc
from typing import Any

import numpy as np
from sklearn.datasets import fetch_covtype
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score

from optuna_treecv import CVResult
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv.rows import memory

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
SGD = SGDClassifier(max_iter=1, tol=None)
PEGASOS = PegasosClassifier(alpha=1e-6)


def timed(function: Callable[[], Any]) -> float:
    begin = perf_counter()
    function()
    return perf_counter() - begin


def row(what: str, ours: float, theirs: float, must: str, faster: bool) -> None:
    ratio = f"{theirs / ours:.1f} times faster" if faster else f"{ours / theirs:.2f} of its time"
    print(f"| {what} | {ours:.3f} s | {theirs:.3f} s | {ratio} | {must} |", flush=True)


def main() -> None:
    X, y = fetch_covtype(return_X_y=True)
    n = int(os.environ.get("TREECV_BENCHMARK_ROWS", len(X)))
    X, y = X[:n] / X.std(axis=0), (y == 1)[:n]

    def evaluate(**options: Any) -> CVResult:
        return tree_cross_validate(PEGASOS, X, y, **options)

    # The two take turns, so that a slow moment of the machine affects both.
    fit, cv10, whole, prepare = [], [], [], []
    seconds: dict[str, list[float]] = {"k=10": [], "loo": [], "fixed": [], "random": []}
    for _ in range(RUNS):
        fit.append(timed(lambda: SGD.fit(X, y)))
        cv10.append(timed(lambda: cross_val_score(SGD, X, y, cv=10)))
        begin = perf_counter()
        seconds["k=10"].append(evaluate(cv=10).seconds)
        whole.append(perf_counter() - begin)
        loo = evaluate(cv="loo")
        seconds["loo"].append(loo.seconds)
        prepare.append(loo.seconds_prepare)
        seconds["fixed"].append(evaluate(cv=100).seconds)
        seconds["random"].append(evaluate(cv=100, order="random").seconds)

    print(f"n={n:,}, d={X.shape[1]}, {RUNS} runs, medians\n")
    print("| PEGASOS | ours | scikit-learn | ratio | must (aim) |")
    print("|---|---|---|---|---|")
    fit_s, cv10_s = median(fit), median(cv10)
    times = {name: median(values) for name, values in seconds.items()}
    row(
        "TreeCV k=10 / `cross_val_score(cv=10)`",
        times["k=10"],
        cv10_s,
        "15 (30) times faster",
        True,
    )
    row("LOOCV / one `SGDClassifier` epoch", times["loo"], fit_s, "at most 2.0 (1.0)", False)
    row("random order, k=100 / one epoch", times["random"], fit_s, "at most 1.3 (0.8)", False)
    row("preparing the rows / one epoch", median(prepare), fit_s, "at most 1.5 (0.8)", False)
    row(
        "whole call, k=10 / `cross_val_score(cv=10)`",
        median(whole),
        cv10_s,
        "5 (8) times faster",
        True,
    )
    ratio = times["random"] / times["fixed"]
    print(f"\nRandom order takes {ratio:.2f} times as long as fixed order at k=100.")

    adapter, cv100 = [], []
    for _ in range(max(1, RUNS // 2)):
        adapter.append(timed(lambda: tree_cross_validate(SGD, X, y, cv=100)))
        cv100.append(timed(lambda: cross_val_score(SGD, X, y, cv=100)))
    print("\n| SGDClassifier through the adapter | ours | scikit-learn | ratio | must (aim) |")
    print("|---|---|---|---|---|")
    row(
        "k=100 / `cross_val_score(cv=100)`",
        median(adapter),
        median(cv100),
        "8 (12) times faster",
        True,
    )

    print("\n| k | updates | seconds | ns an update |")
    print("|---|---|---|---|")
    points = []
    for k in [2**i for i in range(1, 11)]:
        results = [evaluate(cv=k) for _ in range(RUNS)]
        took = median(result.seconds for result in results)
        points.append((k, results[0].n_updates, took))
        print(f"| {k} | {points[-1][1]:,} | {took:.4f} | {1e9 * took / points[-1][1]:.1f} |")
    _, updates, took = np.array(points).T
    slope, constant = np.polyfit(updates, took, 1)
    off = np.max(np.abs((slope * updates + constant) / took - 1))
    print(
        f"\nLinear: {1e9 * slope:.1f} ns an update + {1e3 * constant:.1f} ms; "
        f"largest deviation {off:.0%}."
    )
    more = times["loo"] - points[-1][2]
    print(
        f"\nFrom k=1024 to LOOCV, {n - 1024:,} leaves more: {1e6 * more / (n - 1024):.2f} us a "
        "leaf, its training included (must: overhead below 1 us)."
    )

    memory._kept.clear()  # whose peak would not be seen
    tracemalloc.start()
    evaluate(cv="loo")
    peak = tracemalloc.get_traced_memory()[1]
    rows = 8 * n * (-(-(X.shape[1] + 1) // 8) * 8) + 4 * n  # X padded, class codes
    beyond = (peak - rows) / n
    print(f"\nLOOCV: {beyond:.1f} bytes a row beyond one prepared copy of the rows (must: 24).")


if __name__ == "__main__":
    main()
