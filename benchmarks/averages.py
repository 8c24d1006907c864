"""Measure the average of fold models against the model that is trained on all rows, on Covertype.

    OMP_NUM_THREADS=1 python benchmarks/averages.py [SAMPLES]

Samples of 10,000 rows, and their errors on 150,000 other rows: means with standard deviations over
the samples. The first table is for rows of length 1 and no intercept, the second for columns of
variance 1 and an intercept, as in ``interval_coverage.py``. A third table has the seconds of
evaluations of all rows with and without the average, and with and without the losses of rows:
medians of 7 runs that take turns.
"""

from __future__ import annotations

from statistics import median
import sys
from time import perf_counter
from typing import Any

from coverage import learners
from coverage import TRUTH
from datasets import covertype
import numpy as np
from sklearn.base import clone
from sklearn.preprocessing import normalize

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate

SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 30
ROWS, RUNS = 10_000, 7


def risks(X: np.ndarray, y: np.ndarray, has_intercept: bool) -> None:
    """Print a table of errors."""
    print("| learner | all rows | average of 10 folds | of 100 folds |\n|---|---|---|---|")
    for learner, model in learners(has_intercept).items():
        found: list[list[float]] = []
        for seed in range(SAMPLES):
            rows = TRUTH + np.random.default_rng(seed).choice(len(y) - TRUTH, ROWS, replace=False)
            models = [clone(model).set_params(random_state=seed).fit(X[rows], y[rows])]
            for k in (10, 100):
                options: dict[str, Any] = {"cv": k, "random_state": seed, "kfold_models": True}
                result = tree_cross_validate(model, X[rows], y[rows], **options)
                models.append(result.kfold_estimator())
            found.append([1 - one.score(X[:TRUTH], y[:TRUTH]) for one in models])
        means, deviations = np.mean(found, axis=0), np.std(found, axis=0)
        pairs = zip(means, deviations, strict=True)
        print(f"| {learner} | {' | '.join(f'{mean:.4f} ({std:.4f})' for mean, std in pairs)} |")


def costs(X: np.ndarray, y: np.ndarray) -> None:
    """Print a table of seconds."""
    print("| learner, folds | plain | kfold_models | row_losses |\n|---|---|---|---|")
    log_loss = AveragedSGDClassifier(loss="log_loss", step_size=0.01, average=True)
    for learner, model, scoring in (
        ("PEGASOS, error", PegasosClassifier(), "error"),
        ("averaged SGD, log loss", log_loss, "log_loss"),
    ):
        for k in (10, 100, "loo"):
            asked: list[dict[str, Any]] = [{}, {"kfold_models": True}, {"row_losses": True}]
            times: list[list[float]] = [[] for _ in asked]
            for _ in range(RUNS):
                for own, options in zip(times, asked, strict=True):
                    began = perf_counter()
                    tree_cross_validate(model, X, y, cv=k, scoring=scoring, **options)
                    own.append(perf_counter() - began)
            plain, *others = map(median, times)
            cells = " | ".join(f"{one:.3f} ({one / plain:.2f})" for one in others)
            print(f"| {learner}, {k} | {plain:.3f} | {cells} |")


if __name__ == "__main__":
    X, y, name = covertype()
    print(f"{name}, {SAMPLES} samples of {ROWS:,} rows\n")
    risks(normalize(X), y, has_intercept=False)
    print()
    risks(X, y, has_intercept=True)
    print(f"\n{len(y):,} rows, seconds with all copies and checks\n")
    costs(X, y)
