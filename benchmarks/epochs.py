"""Compare several epochs in the tree with separate trainings of as many shuffled epochs.

    OMP_NUM_THREADS=1 python benchmarks/epochs.py [ROWS]

The first table is for averaged learners and 11 values of alpha, 1e-6 to 1e-1, on at most ROWS rows
(20,000), standardised. Its cells have, in points (0.01 of error): the mean absolute difference
between the tree and ``method="standard"``, the mean difference, and the regret: the difference
between the standard method's error at the alpha that the tree prefers and its best error, in
standard errors of the latter. In brackets, for 10 folds, the mean absolute difference of the
standard method with itself, with other random orders. The last columns have the passes over the
rows of the tree and of the standard method, and the time of the tree,
per epoch, against the tree of one epoch: medians of 5 runs that take turns.

The second table has errors of scikit-learn's ``partial_fit`` on digits, 8 folds.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
import sys
from time import perf_counter
from typing import Any
import warnings

from datasets import a9a
from datasets import letter
from datasets import magic
from datasets import w8a
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
ALPHAS = np.geomspace(1e-6, 1e-1, 11)
RUNS = 5


def averaged_tail(alpha: float, n_updates: int) -> AveragedSGDClassifier:
    """Return PEGASOS, with the mean of the second half of its hypotheses."""
    return AveragedSGDClassifier(
        alpha=alpha,
        step_size=1 / alpha,
        learning_rate="invscaling",
        power_t=1.0,
        average=True,
        average_start=n_updates // 2,
    )


#: (alpha, number of updates) -> model
LEARNERS: dict[str, Callable[[float, int], Any]] = {
    "PEGASOS, averaged tail": averaged_tail,
    "PEGASOS, averaged": lambda alpha, _: PegasosClassifier(alpha, average=True),
    "averaged SGD, log loss": lambda alpha, _: AveragedSGDClassifier(
        loss="log_loss", alpha=alpha, average=True
    ),
    "averaged SGD, hinge loss": lambda alpha, _: AveragedSGDClassifier(
        alpha=alpha, step_size=0.01, average=True
    ),
    "streaming SVRG": lambda alpha, _: StreamingSVRGClassifier(alpha),
    "PEGASOS, last": lambda alpha, _: PegasosClassifier(alpha),
}


def cells(
    model_of: Callable[[float, int], Any], X: np.ndarray, y: np.ndarray, k: int, c: int
) -> str:
    """Return the cells for one learner."""
    options = {"cv": k, "n_epochs": c}
    models = [model_of(float(alpha), int(c * len(y) * (1 - 1 / k))) for alpha in ALPHAS]
    ours = tree_cross_validate_many(models, X, y, **options)
    theirs = tree_cross_validate_many(models, X, y, **options, method="standard")
    own, reference = (np.array([one.mean for one in found]) for found in (ours, theirs))
    differences, noise = 100 * (own - reference), ""
    if k == 10:
        # A random order leaves the folds as they are.
        options |= {"method": "standard", "order": "random"}
        others = tree_cross_validate_many(models, X, y, **options)
        other = np.array([one.mean for one in others])
        noise = f" ({100 * np.abs(other - reference).mean():.3f})"
    best = int(np.argmin(reference))
    regret = (reference[np.argmin(own)] - reference[best]) / theirs[best].std_error
    return (
        f"{100 * reference[best]:.2f} | {np.abs(differences).mean():.3f}{noise} | "
        f"{differences.mean():+.3f} | {regret:.2f} | "
        f"{ours[0].n_updates / len(y):.1f} / {theirs[0].n_updates / len(y):.0f} | "
        f"{slowness(models[5], X, y, k, c):.2f}"
    )


def slowness(model: Any, X: np.ndarray, y: np.ndarray, k: int, c: int) -> float:
    """Return the time of c epochs against c times that of one."""
    times: dict[int, list[float]] = {1: [], c: []}
    for _ in range(RUNS):
        for n_epochs, own in times.items():
            own.append(tree_cross_validate(model, X, y, cv=k, n_epochs=n_epochs).seconds)
    return median(times[c]) / (c * median(times[1]))


def linear() -> None:
    """Print the first table."""
    print("| data, learner | k | c | best | difference (noise) | mean | regret | passes | time |")
    print("|---|---|---|---|---|---|---|---|---|")
    for read in (magic, a9a, w8a, letter):
        X, y, name = read()
        X = X.toarray() if hasattr(X, "toarray") else X
        X, y = scale(X[:ROWS]), y[:ROWS]
        for learner, model_of in LEARNERS.items():
            for k in (10, 100):
                for c in (5, 20):
                    found = cells(model_of, X, y, k, c)
                    print(f"| {name}, {learner} | {k} | {c} | {found} |", flush=True)


def networks() -> None:
    """Print the second table."""
    X, y = load_digits(return_X_y=True)
    X = scale(X)
    models = {
        "MLPClassifier((32,))": MLPClassifier((32,), max_iter=1),
        "MLPClassifier((32,), batch_size=32, learning_rate_init=0.01)": MLPClassifier(
            (32,), batch_size=32, learning_rate_init=0.01, max_iter=1
        ),
        "SGDClassifier()": SGDClassifier(max_iter=1, tol=None),
    }
    print("| model | c | standard | tree | seconds |\n|---|---|---|---|---|")
    for name, model in models.items():
        for c in (1, 5, 20):
            means, seconds = np.zeros(2), np.zeros(2)
            for seed in range(3):
                for number, method in enumerate(("standard", "treecv")):
                    began = perf_counter()
                    result = tree_cross_validate(
                        model, X, y, cv=8, n_epochs=c, method=method, random_state=seed
                    )
                    seconds[number] += (perf_counter() - began) / 3
                    means[number] += result.mean / 3
            print(
                f"| {name} | {c} | {means[0]:.4f} | {means[1]:.4f} | {seconds[0]:.1f}, "
                f"{seconds[1]:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    networks()
    print()
    linear()
