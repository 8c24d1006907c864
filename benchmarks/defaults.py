"""Compare the errors of the learners with their default settings, each in one pass.

    OMP_NUM_THREADS=1 python benchmarks/defaults.py

The output is a Markdown table of the mean losses of 5 folds: the share of wrong classes, or the
squared error of targets with variance 1. "scaled" columns have variance 1.
"""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate

SETS = [  # data, number of rows, whether the columns are scaled here
    (datasets.letter, 20_000, True),
    (datasets.letter, 20_000, False),
    (datasets.fashion_mnist, 20_000, True),
    (datasets.fashion_mnist, 20_000, False),
    (datasets.covertype, 50_000, True),
    (datasets.magic, 19_020, True),
    (datasets.magic, 19_020, False),
    (datasets.w8a, 49_749, False),
    (datasets.newsgroups, 18_846, False),
    (datasets.nycflights13, 50_000, False),
    (datasets.protein, 45_730, True),
    (datasets.protein, 45_730, False),
]


def error(estimator: Any, X: Any, y: np.ndarray) -> float:
    """Return the mean loss of 5 folds."""
    estimator.set_params(random_state=0)
    result = tree_cross_validate(estimator, X, y, cv=5, stratify=False, random_state=0)
    return float(np.mean(result.test_score))


def main() -> None:
    print("| data | averaged SGD | streaming SVRG |\n|---|---|---|")
    for load, n_rows, scaled in SETS:
        X, y, name = load()
        X, y = X[:n_rows], y[:n_rows]
        if scaled:
            X = scale(X.astype(float))
            name += ", scaled"
        regression = y.dtype.kind == "f"
        found = [
            error(AveragedSGDRegressor() if regression else AveragedSGDClassifier(), X, y),
            error(StreamingSVRGRegressor() if regression else StreamingSVRGClassifier(), X, y),
        ]
        print(f"| {name} | {found[0]:.4f} | {found[1]:.4f} |", flush=True)


if __name__ == "__main__":
    main()
