"""Measure leave-one-out of logistic regression beside one fit to all rows.

    OMP_NUM_THREADS=1 python benchmarks/left_out.py [RUNS [ROWS]]

The output is a Markdown table of medians of RUNS runs (default 3) on the first ROWS rows of
Covertype (default: all), standardised, with C=1. datasets.py describes the data. The fit is
scikit-learn's by its default solver.
"""

from __future__ import annotations

from statistics import median
import sys
from time import perf_counter

import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import LeaveOneOut
from sklearn.preprocessing import scale
from threadpoolctl import threadpool_limits

from optuna_treecv import pooled
from optuna_treecv import tree_cross_validate


def main(runs: int = 3, n_rows: int | None = None) -> None:
    X, y, name = datasets.covertype()
    X, y = scale(X[:n_rows]), y[:n_rows]
    ours, theirs = [], []
    for _ in range(runs):
        began = perf_counter()
        result = tree_cross_validate(
            LogisticRegression(), X, y, cv=LeaveOneOut(), scoring=pooled("neg_log_loss")
        )
        ours.append(perf_counter() - began)
        began = perf_counter()
        LogisticRegression().fit(X, y)
        theirs.append(perf_counter() - began)
    print("| data | rows | method | leave-one-out, s | one fit, s | ratio (must: 1.5) |")
    print("|---|---|---|---|---|---|")
    ratio = median(ours) / median(theirs)
    print(
        f"| {name} | {len(y):,} | {result.method} | {median(ours):.2f} | {median(theirs):.2f} "
        f"| {ratio:.2f} |"
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main(*map(int, sys.argv[1:]))
