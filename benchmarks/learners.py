"""Compare times and errors of the learners with those of scikit-learn's.

    python benchmarks/learners.py [runs] [folder with a9a.svm.bz2 and a9a.t.svm.bz2]

All run in the same process with one thread. The output is Markdown tables of medians. scikit-learn
downloads Covertype (581,012 x 54, float64) and 20 newsgroups, vectorised (18,846 x 130,107), or
finds them in $SCIKIT_LEARN_DATA.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
import sys
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import fetch_20newsgroups_vectorized
from sklearn.datasets import fetch_covtype
from sklearn.datasets import load_svmlight_file
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import train_test_split

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv.engines.treecv.learners.from_estimator import make_learner
from optuna_treecv.estimators.base import layout_for
from optuna_treecv.paper import StreamingKMeans
from optuna_treecv.rows.data import Data

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else None


def timed(function: Callable[[], Any]) -> float:
    begin = perf_counter()
    function()
    return perf_counter() - begin


def learner_on(estimator: Any, X: Any, y: Any) -> Any:
    """Return a learner bound to permuted rows."""
    data = Data(X, y)
    order = np.random.default_rng(0).permutation(data.n_rows).astype(np.uint32)
    return make_learner(estimator, data.prepare(layout_for(estimator), order), None, 0)


def one_pass(learner: Any) -> float:
    state = learner.start()
    return timed(lambda: learner.update(state, slice(0, len(learner.rows.order))))


def passes(X: np.ndarray, y: np.ndarray) -> None:
    """Compare one pass of each learner, and leave-one-out, with one epoch of SGDClassifier."""
    sgd = SGDClassifier(max_iter=1, tol=None, shuffle=False)
    learners = {
        "PEGASOS": PegasosClassifier(1e-6),
        "averaged SGD, hinge": AveragedSGDClassifier(step_size=0.01),
        "averaged SGD, log loss": AveragedSGDClassifier("log_loss", step_size=0.01),
        "streaming SVRG": StreamingSVRGClassifier(),
        "streaming SVRG, auto step": StreamingSVRGClassifier(),
    }
    learners["streaming SVRG"].set_params(step_size=0.01)
    bound = {name: learner_on(estimator, X, y) for name, estimator in learners.items()}
    epoch = []
    times: dict[str, list[float]] = {name: [] for name in learners}
    for _ in range(RUNS):
        epoch.append(timed(lambda: sgd.fit(X, y)))
        for name in learners:
            times[name].append(one_pass(bound[name]))
    print(f"One unshuffled `SGDClassifier` epoch: {median(epoch):.4f} s\n")
    print("| one pass over Covertype | seconds | of the epoch | must |\n|---|---|---|---|")
    for name, seconds in times.items():
        must = "at most 1.5" if "SVRG" in name else ""
        print(
            f"| {name} | {median(seconds):.4f} | {median(seconds) / median(epoch):.2f} | {must} |"
        )


def svrg_loo(X: np.ndarray, y: np.ndarray) -> None:
    """Compare leave-one-out with n times the time per row of the phase that contains row n."""
    n = len(y)
    print(
        "\n| streaming SVRG, leave one out | seconds | ns a row of the last phase | n rows of it |"
    )
    print("|---|---|---|---|")
    for name, estimator in {
        "row n in a batch": StreamingSVRGClassifier(step_size=0.01),
        "row n in an inner phase": StreamingSVRGClassifier(
            step_size=0.01, initial_batch_size=1000, batch_growth=1.0, inner_steps=10**7
        ),
    }.items():
        learner = learner_on(estimator, X, y)
        state = learner.start()
        learner.update(state, slice(0, n - 50_000))
        used = learner.estimator(state).n_rows_used_
        rows, loo = [], []
        for _ in range(RUNS):
            last = learner.snapshot(state)
            rows.append(timed(partial(learner.update, last, slice(n - 50_000, n))) / 50_000)
            loo.append(tree_cross_validate(estimator, X, y, cv="loo").seconds)
        moved = learner.estimator(last).n_rows_used_ - used
        assert moved == (0 if "batch" in name else 50_000), "another phase began"
        row = median(rows)
        print(
            f"| {name} (must: at most 25) | {median(loo):.3f} | {1e9 * row:.1f} | "
            f"{median(loo) / (n * row):.1f} |"
        )


def newsgroups() -> None:
    """Compare leave-one-out with single passes on wide sparse rows."""
    bunch = fetch_20newsgroups_vectorized(subset="all")
    X, y = bunch.data.tocsr(), bunch.target == 0
    print("\n| 20 newsgroups, leave one out | one pass | leave one out | passes | MB of models |")
    print("|---|---|---|---|---|")
    for name, estimator in {
        "PEGASOS (must: 40 passes, 64 MB)": PegasosClassifier(1e-5),
        "PEGASOS, averaged, projected": PegasosClassifier(1e-5, average=True, project=True),
        "averaged SGD": AveragedSGDClassifier(step_size=1.0),
        "streaming SVRG": StreamingSVRGClassifier(step_size=1.0),
    }.items():
        learner = learner_on(estimator, X, y)
        single, loo = [], []
        for _ in range(RUNS):
            single.append(one_pass(learner))
            loo.append(tree_cross_validate(estimator, X, y, cv="loo").seconds)
        kernel = learner._kernel
        # One state per level, for the five levels that Python walks and those of a block below,
        # plus the log. The system does not count memory that no level touches.
        levels = 5 + (len(y) // 32).bit_length() + 1
        megabytes = (levels * kernel.state_bytes + kernel.log_bytes) / 1e6
        print(
            f"| {name} | {1e3 * median(single):.2f} ms | {median(loo):.3f} s | "
            f"{median(loo) / median(single):.1f} | {megabytes:.1f} |"
        )


def clusters(X: np.ndarray) -> None:
    """Compare 100 folds of online K-means with 100 fits of MiniBatchKMeans, in one run."""
    ours = [tree_cross_validate(StreamingKMeans(8), X, cv=100) for _ in range(RUNS)]
    seconds = median(result.seconds for result in ours)
    theirs = timed(lambda: cross_val_score(MiniBatchKMeans(8), X, cv=100))
    print("\n| 8 clusters, 100 folds, Covertype | ours | `cross_val_score` | ratio | must |")
    print("|---|---|---|---|---|")
    print(f"| online K-means | {seconds:.2f} s | {theirs:.1f} s | {theirs / seconds:.0f} | 10 |")


def errors(name: str, X: Any, y: Any, test_X: Any, test_y: Any) -> None:
    """Compare one pass of the logistic learners with converged logistic regression."""
    best = 1 - LogisticRegression(max_iter=1000).fit(X, y).score(test_X, test_y)
    print(f"| {name} | LogisticRegression, to the optimum | {100 * best:.2f} | |")
    for learner in (StreamingSVRGClassifier(), AveragedSGDClassifier()):
        if isinstance(learner, AveragedSGDClassifier):
            learner.set_params(loss="log_loss")
        found = {}
        for eta in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3):
            model = learner.set_params(step_size=eta, random_state=0)
            if X.shape[1] < 1000 and not isinstance(X, np.ndarray):
                X, test_X = X.toarray(), test_X.toarray()
            found[eta] = 1 - model.fit(X, y).score(test_X, test_y)
        eta = min(found, key=found.__getitem__)
        kind = type(learner).__name__
        print(
            f"| {name} | {kind}, step size {eta} | {100 * found[eta]:.2f} | "
            f"{100 * (found[eta] - best):+.2f} |"
        )


def main() -> None:
    X, y = fetch_covtype(return_X_y=True)
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), y == 1
    passes(X, y)
    svrg_loo(X, y)
    newsgroups()
    clusters(X)
    print("\n| test error, one pass | learner | % | points above |\n|---|---|---|---|")
    train_X, test_X, train_y, test_y = train_test_split(X, y, test_size=0.1, random_state=0)
    errors("Covertype", train_X, train_y, test_X, test_y)
    if FOLDER is not None:
        train_X, train_y = load_svmlight_file(str(FOLDER / "a9a.svm.bz2"), n_features=123)
        test_X, test_y = load_svmlight_file(str(FOLDER / "a9a.t.svm.bz2"), n_features=123)
        errors("a9a", train_X, train_y, test_X, test_y)


if __name__ == "__main__":
    main()
