"""Feature selection from sums over rows, beside scikit-learn.

    OMP_NUM_THREADS=1 python benchmarks/sums2.py TABLE

TABLE is one of

* ``sfs``: ``SequentialFeatureSelector``, forward to half of the features, around ``Ridge``, on 10
  folds. It should be 300 times as fast on pol, and 1,000 times on bike and Covertype.
* ``rfecv``: ``RFECV`` around ``Ridge``, on 10 folds. It should be 25, 50 and 100 times as fast.

A time of scikit-learn that would exceed 2 minutes is estimated from a few of its scores, and is
then followed by "est."; the largest difference is that of the scores that were computed. Ours is
the median of 5 runs. The seconds are CPU seconds of one process with one thread. Files are read
from $OPTUNA_TREECV_DATA, and Covertype from $SCIKIT_LEARN_DATA.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from functools import partial
from statistics import median
from time import process_time
from typing import Any

import datasets
import numpy as np
from sklearn import feature_selection
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import KFold

from optuna_treecv import select_features
from optuna_treecv.search import selectors
from optuna_treecv.search.stand_ins import RECORD

RUNS_OF_SELECTORS = 5
MOST_SECONDS = 120  # of a run of scikit-learn
TENTHS = KFold(10)


def rows_to_select(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a data set of numbers; columns of codes are one-hot."""
    if name == "pol":
        return datasets.pol()[:2]
    if name == "Covertype":
        X, y, _ = datasets.covertype()
        return X[:50_000], y[:50_000].astype(float)
    X, y, _ = datasets.bike()
    one_hot = [(column[:, None] == np.unique(column)).astype(float) for column in X[:, :8].T]
    return np.hstack([*one_hot, X[:, 8:]]), y


def cpu_seconds_of(call: Callable[..., Any], *args: Any, runs: int = 1) -> tuple[float, Any]:
    """Return the median CPU seconds of several calls, and the last result."""
    times = []
    for _ in range(runs):
        begin = process_time()
        result = call(*args)
        times.append(process_time() - begin)
    return median(times), result


def selected(name: str, X: np.ndarray, y: np.ndarray) -> tuple[float, Any]:
    """Return the seconds of an accelerated selector, and the selector."""
    selector = getattr(selectors, name)(Ridge(), cv=TENTHS)
    seconds, _ = cpu_seconds_of(selector.fit, X, y, runs=RUNS_OF_SELECTORS)
    assert RECORD.calls[-1].method == "exact", RECORD.calls[-1].reason
    return seconds, selector


def row_of_selector(
    name: str, X: np.ndarray, ours: float, theirs: float, difference: float, fact: str
) -> str:
    shown = f"{ours:.3f} s | {theirs:.1f} s | {theirs / ours:,.0f} | {difference:.0e} | {fact}"
    return f"| {name} {X.shape[0]:,} x {X.shape[1]} | {shown} |"


def sfs() -> Iterator[str]:
    """Yield the table of sequential selection."""
    yield "| rows | ours | scikit-learn | times | difference | features |"
    yield "|---|---|---|---|---|---|"
    for name in ("pol", "bike", "Covertype"):
        X, y = rows_to_select(name)
        seconds, selector = selected("SequentialFeatureSelector", X, y)
        path = select_features(Ridge(), X, y, cv=TENTHS)
        assert np.array_equal(path.support, selector.support_)
        # Step i scores n_features - i sets of i + 1 features.
        all_steps = np.arange(X.shape[1] // 2)
        steps = np.unique(np.linspace(0, all_steps[-1], 5).astype(int))
        of_steps, differences = [], []
        for step in steps:
            score = partial(cross_val_score, cv=TENTHS)
            of_step, scores = cpu_seconds_of(score, Ridge(), X[:, path.masks[step]], y)
            of_steps.append(of_step)
            differences.append(np.abs(scores - path.fold_scores[step]).max())
        theirs = float((X.shape[1] - all_steps) @ np.interp(all_steps, steps, of_steps))
        fact = "est."
        if theirs < MOST_SECONDS:
            original = feature_selection.SequentialFeatureSelector(Ridge(), cv=TENTHS)
            theirs, _ = cpu_seconds_of(original.fit, X, y)
            fact = "equal" if np.array_equal(original.support_, selector.support_) else "others"
        yield row_of_selector(name, X, seconds, theirs, max(differences), fact)


def rfecv() -> Iterator[str]:
    """Yield the table of recursive elimination."""
    yield "| rows | ours | scikit-learn | times | difference | ranks |"
    yield "|---|---|---|---|---|---|"
    for name in ("pol", "bike", "Covertype"):
        X, y = rows_to_select(name)
        seconds, selector = selected("RFECV", X, y)
        original = feature_selection.RFECV(Ridge(), cv=TENTHS)
        theirs, _ = cpu_seconds_of(original.fit, X, y)
        scores = [f"split{i}_test_score" for i in range(10)]
        difference = max(
            np.abs(selector.cv_results_[fold] - original.cv_results_[fold]).max()
            for fold in scores
        )
        fact = "equal" if np.array_equal(original.ranking_, selector.ranking_) else "others"
        yield row_of_selector(name, X, seconds, theirs, difference, fact)


TABLES: dict[str, Callable[[], Iterator[str]]] = {"sfs": sfs, "rfecv": rfecv}
