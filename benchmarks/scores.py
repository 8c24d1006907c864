"""Measure scores of many folds, and weights of rows.

    OMP_NUM_THREADS=1 python benchmarks/scores.py [RUNS]

The output is Markdown tables of medians over RUNS runs (default 15), taken in turn. datasets.py
describes the data.

* scores: seconds of 1,000 folds of PEGASOS on magic by each score, alone and several together,
  from prepared rows. The last column is ``cross_val_score`` of scikit-learn's scorer on as many
  folds of a constant, which is what calling the scorer for each fold takes.
* weights: seconds of ten folds and of leave-one-out on Covertype, without weights and with weights
  of rows and of classes.
"""

from __future__ import annotations

from statistics import median
import sys
from time import perf_counter
from typing import Any
import warnings

import datasets
import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import tree_cross_validate

SCORES: list[Any] = ["error", "accuracy", "f1", "balanced_accuracy", "roc_auc"]
SCORES += ["average_precision", pooled("roc_auc"), ["error", "roc_auc", "average_precision"]]


def scores(runs: int) -> None:
    X, y, name = datasets.magic()
    X = scale(X)
    print(f"{name}, 1,000 folds\n\n| scoring | ms | of the error's | called for each fold, ms |")
    print("|---|---|---|---|")
    taken: list[list[float]] = [[] for _ in SCORES]
    for _ in range(runs):
        for scoring, seconds in zip(SCORES, taken, strict=True):
            result = tree_cross_validate(PegasosClassifier(1e-3), X, y, cv=1000, scoring=scoring)
            seconds.append(result.seconds)
    folds = StratifiedKFold(1000)
    for scoring, seconds in zip(SCORES, taken, strict=True):
        called = "-"
        if isinstance(scoring, str) and scoring != "error":
            began = perf_counter()
            cross_val_score(DummyClassifier(), X, y, cv=folds, scoring=scoring)
            called = f"{1e3 * (perf_counter() - began):,.0f}"
        ratio = median(seconds) / median(taken[0])
        shown = getattr(scoring, "name", scoring)
        print(f"| {shown} | {1e3 * median(seconds):.2f} | {ratio:.2f} | {called} |")


def weights(runs: int) -> None:
    X, y, name = datasets.covertype()
    rows = np.random.default_rng(0).exponential(size=len(y))
    print(f"\n{name}, seconds\n\n| estimator | cv | none | of rows | balanced | both |")
    print("|---|---|---|---|---|---|")
    for estimator in (PegasosClassifier(1e-4), AveragedSGDClassifier("log_loss", 1e-4, 0.01)):
        for cv in (10, "loo"):
            kinds = [(None, None), (rows, None), (None, "balanced"), (rows, "balanced")]
            taken: list[list[float]] = [[] for _ in kinds]
            for _ in range(max(3, runs // 3)):
                for (sample_weight, class_weight), seconds in zip(kinds, taken, strict=True):
                    estimator.set_params(class_weight=class_weight)
                    options = {"sample_weight": sample_weight, "score_weight": None}
                    result = tree_cross_validate(estimator, X, y, cv=cv, **options)
                    seconds.append(result.seconds)
            shown = " | ".join(f"{median(seconds):.3f}" for seconds in taken)
            print(f"| {type(estimator).__name__} | {cv} | {shown} |")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    scores(runs)
    weights(runs)
