"""60 settings of a random forest: ``GridSearchCV``, and ours from one growth per fold.

    OMP_NUM_THREADS=1 python benchmarks/forests.py [N_ROWS]

Both run in turns on magic with 5 folds and one thread.
"""

import sys
from time import perf_counter

import datasets
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import StratifiedKFold

from optuna_treecv import TreeCVSearchCV

SIZES = list(range(25, 301, 25))
GRIDS = {
    "n_estimators": {"n_estimators": list(range(5, 301, 5))},
    "n_estimators and max_depth": {"n_estimators": SIZES, "max_depth": [4, 8, 12, 16, None]},
}


def main(n_rows: int = 4000) -> None:
    """Print the seconds of both for each grid, and the largest difference of their means."""
    X, y, _ = datasets.magic()
    order = np.random.default_rng(0).permutation(len(X))[:n_rows]
    X, y = np.asarray(X, dtype=np.float64)[order], np.asarray(y)[order]
    forest = RandomForestClassifier(n_jobs=1, random_state=0)
    options = {"scoring": "accuracy", "refit": False}
    options["cv"] = StratifiedKFold(5, shuffle=True, random_state=0)
    for name, grid in GRIDS.items():
        truncate = "max_depth" in grid
        searches = {
            "ours": TreeCVSearchCV(forest, param_grid=grid, truncate=truncate, **options),
            "GridSearchCV": GridSearchCV(forest, grid, **options),
        }
        seconds, scores = {}, {}
        for who, search in searches.items():
            began = perf_counter()
            found = search.fit(X, y).cv_results_
            seconds[who] = perf_counter() - began
            points = map(str, (sorted(one.items()) for one in found["params"]))
            scores[who] = dict(zip(points, found["mean_test_score"], strict=True))
        theirs, own = seconds["GridSearchCV"], seconds["ours"]
        apart = max(abs(scores["ours"][at] - mean) for at, mean in scores["GridSearchCV"].items())
        print(
            f"{len(X):,} rows, 60 settings of {name}: GridSearchCV {theirs:.1f} s, ours "
            f"{own:.1f} s, {theirs / own:.1f} times; means differ by at most {apart:.2g}",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
