"""How long rows take until they are prepared, by the layout in which they are given.

    OMP_NUM_THREADS=1 python benchmarks/prepare.py

All rows of Covertype are copied in random order, to new memory and to memory that the process has
kept; the medians of seven rounds. Earlier versions run it too, and keep no memory.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import datasets
import numpy as np
import pandas as pd

from optuna_treecv import PegasosClassifier
from optuna_treecv.estimators.base import layout_for
from optuna_treecv.rows.data import Data

N_ROUNDS = 7

try:
    from optuna_treecv.rows.memory import _kept as kept
except ImportError:
    kept = []


def main() -> None:
    """Print the milliseconds of each layout."""
    X, y, _ = datasets.covertype()
    layout = layout_for(PegasosClassifier())
    order = np.random.default_rng(0).permutation(len(X)).astype(np.uint32)
    print("| | new memory, ms | used again, ms |\n|---|---|---|")
    for dtype in ("float64", "float32"):
        in_rows = np.ascontiguousarray(X, dtype)
        columns = {f"x{j}": in_rows[:, j].copy() for j in range(X.shape[1])}
        mixed = {
            name: values.astype(np.int32) if j > 9 else values
            for j, (name, values) in enumerate(columns.items())
        }
        for name, given in {
            "array in C order": in_rows,
            "array in Fortran order": np.asfortranarray(in_rows),
            "frame": pd.DataFrame(columns),
            "frame of floats and integers": pd.DataFrame(mixed),
        }.items():
            data = Data(given, y)
            times: list[list[float]] = [[], []]
            for _ in range(N_ROUNDS):
                kept.clear()
                for each in times:
                    began = perf_counter()
                    rows = data.prepare(layout, order)
                    each.append(perf_counter() - began)
                    del rows
            new, again = (1e3 * median(each) for each in times)
            print(f"| {name}, {dtype} | {new:.1f} | {again:.1f} |")


if __name__ == "__main__":
    main()
