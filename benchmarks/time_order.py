"""Scores by the tree and the chain against those of ``fit``, on rows in the order of time.

    OMP_NUM_THREADS=1 python benchmarks/time_order.py

It reads elec2, weather_noaa, bike_sharing_hour and nycflights13 (by date, every eighth row) from
$OPTUNA_TREECV_DATA, and the first 100,000 rows of Covertype in the order of its file from
$SCIKIT_LEARN_DATA. All learners stand behind a StandardScaler. The Markdown table has mean scores
over five folds by ``method="treecv"`` and ``method="fit"``, and the standard deviation of the
latter over four seeds: for growing windows (the chain), for contiguous folds, and for the same
folds with ``shuffle=False``. Scores are accuracies, R^2, or minus the squared distance to the
nearest centre. It takes about a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
import warnings

import datasets
import numpy as np
from sklearn.datasets import fetch_covtype
from sklearn.model_selection import KFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingKMeans

CLASSIFIERS = (
    PegasosClassifier(),
    AveragedSGDClassifier(),
    StreamingSVRGClassifier(),
    GaussianNB(),
)
REGRESSORS = AveragedSGDRegressor(), StreamingSVRGRegressor(), LSQSGDRegressor()
SPLITS = {
    "windows": {"cv": TimeSeriesSplit(5)},
    "folds": {"cv": KFold(5)},
    "folds, shuffle=False": {"cv": KFold(5), "shuffle": False},
}


def rows_in_time() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name, X and y of each data set in the order of time."""
    for name in ("elec2", "weather_noaa", "bike_sharing_hour"):
        with np.load(datasets.file_of(f"{name}.npz")) as file:
            yield name, file["X"].astype(float), file["y"]
    with np.load(datasets.file_of("nycflights13.npz")) as file:
        X, y = file["numeric"].astype(float), file["arr_delay"]
    rows = np.lexsort((X[:, 1], X[:, 0]))[::8]  # by month and day
    yield "nycflights13", X[rows], y[rows]
    X, y = fetch_covtype(return_X_y=True, download_if_missing=False)
    yield "Covertype", X[:100_000], (y[:100_000] == 2).astype(int)


def mean_score(model: Any, X: np.ndarray, y: Any, scoring: str, **options: Any) -> float:
    """Return the mean score over the folds; larger is better."""
    result = tree_cross_validate(model, X, y, scoring=scoring, **options)
    mean = float(np.mean(result.test_score))
    return -mean if scoring == "squared_distance" else mean


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print("| data | learner | splits | treecv | fit | sd of fit |\n|---|---|---|---|---|---|")
    for name, X, y in rows_in_time():
        is_class = len(np.unique(y)) == 2
        target = y if is_class else (y - y.mean()) / y.std()
        for learner in (*(CLASSIFIERS if is_class else REGRESSORS), StreamingKMeans(8)):
            is_kmeans = isinstance(learner, StreamingKMeans)
            model = make_pipeline(StandardScaler(), learner)
            scoring = "squared_distance" if is_kmeans else "accuracy" if is_class else "r2"
            rows = X, None if is_kmeans else target
            for splits, options in SPLITS.items():
                score = partial(mean_score, model, *rows, scoring, **options)
                fits = [score(method="fit", random_state=seed) for seed in range(4)]
                tree = score(method="treecv")
                print(
                    f"| {name} | {type(learner).__name__} | {splits} | {tree:.3f} "
                    f"| {fits[0]:.3f} | {np.std(fits, ddof=1):.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
