"""Measure one model alone, and as the only model of a kernel with lanes.

    OMP_NUM_THREADS=1 python benchmarks/one_lane.py [RUNS]

The output is a Markdown table: the shortest of RUNS walks (default 5) of ten folds and of
leave-one-out, and how many times as long lanes take. datasets.py describes the data. Both give the
same outputs, which is checked.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

import datasets
import numpy as np
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv.engines.treecv.learners.compiled import Lanes
from optuna_treecv.engines.treecv.learners.from_estimator import make_learner
from optuna_treecv.estimators.base import layout_for
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.partition import Partition

ESTIMATORS = {
    "PEGASOS": PegasosClassifier(1e-4),
    "averaged PEGASOS": PegasosClassifier(1e-4, average=True),
    "SGD": AveragedSGDClassifier("log_loss", 1e-4, 0.1, average=False),
    "averaged SGD": AveragedSGDClassifier("log_loss", 1e-4, 0.1),
    "streaming SVRG": StreamingSVRGClassifier(1e-4, 0.1),
}


def walked(learner: Any, plan: Partition, dtype: type, runs: int) -> tuple[float, np.ndarray]:
    """Return the seconds of the shortest walk, and its outputs."""
    seconds = []
    for _ in range(runs):
        out = np.zeros((plan.n_rows, learner.n_outputs), dtype)
        state = learner.start()
        began = perf_counter()
        learner.walk_subtree(plan, plan.root, state, out)
        seconds.append(perf_counter() - began)
    return min(seconds), out


def main(runs: int = 5) -> None:
    X, y, name = datasets.magic()
    X = scale(X)
    sparse, of_sparse, sparse_name = datasets.w8a()
    data = [(X, y, name), (X.astype(np.float32), y, f"{name}, float32")]
    data.append((sparse[:5000], of_sparse[:5000], f"{sparse_name}, 5,000 rows"))
    print("| data | model | folds | alone, ms | one lane, ms | ratio |\n|---|---|---|---|---|---|")
    for X, y, name in data:
        n_rows = X.shape[0]
        for model, estimator in ESTIMATORS.items():
            rows = Data(X, y).prepare(layout_for(estimator), np.arange(n_rows, dtype=np.uint32))
            learner = make_learner(estimator, rows, "predict", 0)
            for n_folds in (10, n_rows):
                plan = Partition(n_rows, n_folds)
                alone, out = walked(learner, plan, X.dtype, runs)
                in_lane, of_lane = walked(Lanes([learner]), plan, X.dtype, runs)
                np.testing.assert_array_equal(out, of_lane)
                print(
                    f"| {name} | {model} | {n_folds:,} | {1e3 * alone:.2f} | {1e3 * in_lane:.2f} "
                    f"| {in_lane / alone:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
