"""What an engine for texts could save: searches over settings of TfidfVectorizer, three ways.

    OMP_NUM_THREADS=1 python benchmarks/texts.py

Each row searches 8 values of ``min_df`` of ``TfidfVectorizer`` or of a classifier's parameter, on
3,000 texts of 20 newsgroups in 5 folds: by ``GridSearchCV``; by ``GridSearchCV`` of a Pipeline
with ``memory``; and with the words counted once, where each fold and value only selects columns
and weights them. The last one is about the least that an engine could take, because it fits all
classifiers. All run in one process with one thread; the times are of one run.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import fetch_20newsgroups
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import ParameterGrid
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.svm import LinearSVC

CV = StratifiedKFold(5)
N_TEXTS = 3000
MIN_DF = {"text__min_df": [1, 2, 3, 5, 8, 12, 20, 30]}
SEARCHES: list[tuple[str, Any, dict[str, list[Any]]]] = [
    ("LinearSVC(C=0.1)", LinearSVC(C=0.1), MIN_DF),
    ("LinearSVC()", LinearSVC(), {"model__C": np.geomspace(0.01, 10, 8).tolist()}),
    ("SGDClassifier(max_iter=1)", SGDClassifier(max_iter=1, tol=None, random_state=0), MIN_DF),
    ("SGDClassifier(max_iter=20)", SGDClassifier(max_iter=20, tol=None, random_state=0), MIN_DF),
]


def scores_of_counts(texts: Any, y: np.ndarray, model: Any, grid: dict[str, Any]) -> np.ndarray:
    """Return the mean score of each candidate; words are counted once."""
    counts = CountVectorizer(dtype=np.float64).fit_transform(texts)
    candidates, scores = [*ParameterGrid(grid)], []
    for train, test in CV.split(texts, y):
        all_trained, all_tested, of_fold = counts[train], counts[test], []
        n_documents, weighted = np.diff(all_trained.tocsc().indptr), dict[int, Any]()
        for params in candidates:
            min_df = params.get("text__min_df", 1)
            if min_df not in weighted:
                columns = np.flatnonzero(n_documents >= min_df)
                trained, tested = all_trained[:, columns], all_tested[:, columns]
                tfidf = TfidfTransformer().fit(trained)
                weighted = {min_df: (tfidf.transform(trained), tfidf.transform(tested))}
            trained, tested = weighted[min_df]
            own = {"C": params["model__C"]} if "model__C" in params else {}
            fitted = clone(model).set_params(**own).fit(trained, y[train])
            of_fold.append(fitted.score(tested, y[test]))
        scores.append(of_fold)
    return np.mean(scores, axis=0)


def main() -> None:
    """Print the table."""
    texts, y = fetch_20newsgroups(return_X_y=True)
    texts, y = texts[:N_TEXTS], y[:N_TEXTS]
    print("| search | GridSearchCV, s | with memory, s | counted once, s | largest difference |")
    print("|---|---:|---:|---:|---:|")
    for name, model, grid in SEARCHES:
        times, scores = [], []
        with TemporaryDirectory() as folder:
            for memory in (None, folder):
                start = perf_counter()
                pipeline = Pipeline([("text", TfidfVectorizer()), ("model", model)], memory=memory)
                search = GridSearchCV(pipeline, grid, cv=CV, refit=False).fit(texts, y)
                times.append(perf_counter() - start)
                scores.append(search.cv_results_["mean_test_score"])
        start = perf_counter()
        scores.append(scores_of_counts(texts, y, model, grid))
        times.append(perf_counter() - start)
        cells = [f"{seconds:.1f}" for seconds in times]
        apart = np.abs(np.diff(scores, axis=0)).max()
        searched = ", ".join(key.partition("__")[2] for key in grid)
        print("|", " | ".join([f"{name}, {searched}", *cells, f"{apart:.0e}"]), "|", flush=True)


if __name__ == "__main__":
    main()
