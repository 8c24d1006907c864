"""What follows from sums over rows beside models, compared with scikit-learn.

    OMP_NUM_THREADS=1 python benchmarks/sums2.py TABLE

TABLE is one of

* ``sfs``: ``SequentialFeatureSelector``, forward to half of the features, around ``Ridge``, 10
  folds, as ``accelerate`` replaces it. The time of scikit-learn is measured if it takes less than
  about 2 minutes; otherwise it is estimated ("est.") from the scores of some sets of features.
* ``rfecv``: ``RFECV`` around ``Ridge``, 10 folds, in the same way.

The seconds are CPU seconds, for ours the median of five runs. The difference is the largest one
between a score of ours and of scikit-learn. Files are read from $OPTUNA_TREECV_DATA, and Covertype
from $SCIKIT_LEARN_DATA.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
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

N_FOLDS = 10
N_RUNS = 5

# The longest estimated time of scikit-learn that is measured, in seconds.
LONGEST = 120


def pol() -> tuple[np.ndarray, np.ndarray]:
    return datasets.pol()[:2]


def bike() -> tuple[np.ndarray, np.ndarray]:
    """Return all hours; the eight columns of words are one-hot: 17,379 x 61."""
    X, y, _ = datasets.bike()
    words = [(column[:, None] == np.unique(column)).astype(float) for column in X[:, :8].T]
    return np.hstack([*words, X[:, 8:]]), y


def covertype() -> tuple[np.ndarray, np.ndarray]:
    """Return the first 50,000 rows, without columns that are constant in them."""
    X, y, _ = datasets.covertype()
    X = X[:50_000]
    return X[:, np.ptp(X, axis=0) > 0], y[:50_000].astype(float)


#: For each table, the least ratio to scikit-learn on each data set.
DATA: dict[Callable[[], tuple[np.ndarray, np.ndarray]], dict[str, int]] = {
    pol: {"sfs": 300, "rfecv": 25},
    bike: {"sfs": 1_000, "rfecv": 50},
    covertype: {"sfs": 1_000, "rfecv": 100},
}


def seconds_of(call: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    began = process_time()
    result = call(*args)
    return process_time() - began, result


def ours(kind: Any, X: np.ndarray, y: np.ndarray) -> tuple[float, Any]:
    """Return the median of the seconds of several fits, and the last fitted selector."""
    runs = [seconds_of(kind(Ridge(), cv=N_FOLDS).fit, X, y) for _ in range(N_RUNS)]
    assert RECORD.calls[-1].method == "exact", RECORD.calls[-1].reason
    return float(np.median([seconds for seconds, _ in runs])), runs[-1][1]


def show(name: str, X: np.ndarray, times: tuple[float, float], must: int, *facts: str) -> None:
    ratio = times[1] / times[0]
    shown = f"{times[0]:.3f} | {times[1]:,.1f} | {ratio:,.0f} | {must:,}"
    print(f"| {name}, {X.shape[0]:,} x {X.shape[1]} | {shown} | {' | '.join(facts)} |", flush=True)


def sfs() -> None:
    print("| data | ours, s | scikit-learn, s | ratio | must | difference | set |")
    print("|---|---|---|---|---|---|---|")
    for load, must in DATA.items():
        X, y = load()
        n_steps, folds = X.shape[1] // 2, KFold(N_FOLDS)
        seconds, selector = ours(selectors.SequentialFeatureSelector, X, y)
        path = select_features(Ridge(), X, y, cv=folds)
        assert np.array_equal(path.support, selector.support_)
        # Step i scores n_features - i sets of i + 1 features.
        steps = np.unique(np.linspace(0, n_steps - 1, 5).astype(int))
        of_set, differences = [], []
        for step in steps:
            score = partial(cross_val_score, cv=folds)
            of_call, scores = seconds_of(score, Ridge(), X[:, path.masks[step]], y)
            of_set.append(of_call)
            differences.append(np.abs(scores - path.fold_scores[step]).max())
        all_steps = np.arange(n_steps)
        theirs = float((X.shape[1] - all_steps) @ np.interp(all_steps, steps, of_set))
        fact = "est."
        if theirs < LONGEST:
            original = feature_selection.SequentialFeatureSelector(Ridge(), cv=N_FOLDS)
            theirs, original = seconds_of(original.fit, X, y)
            fact = "equal" if np.array_equal(original.support_, selector.support_) else "another"
        show(load.__name__, X, (seconds, theirs), must["sfs"], f"{max(differences):.0e}", fact)


def rfecv() -> None:
    print("| data | ours, s | scikit-learn, s | ratio | must | difference | ranks |")
    print("|---|---|---|---|---|---|---|")
    for load, must in DATA.items():
        X, y = load()
        seconds, selector = ours(selectors.RFECV, X, y)
        theirs, original = seconds_of(feature_selection.RFECV(Ridge(), cv=N_FOLDS).fit, X, y)
        difference = max(
            np.abs(selector.cv_results_[f"split{i}_test_score"] - scores).max()
            for i, scores in enumerate(
                original.cv_results_[f"split{i}_test_score"] for i in range(N_FOLDS)
            )
        )
        fact = "equal" if np.array_equal(original.ranking_, selector.ranking_) else "another"
        show(load.__name__, X, (seconds, theirs), must["rfecv"], f"{difference:.0e}", fact)


TABLES: dict[str, Callable[[], None]] = {"sfs": sfs, "rfecv": rfecv}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=TABLES)
    TABLES[parser.parse_args().table]()
