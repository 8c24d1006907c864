"""Measure the errors of exact folds of ridge regression on columns that hurt sums.

    OMP_NUM_THREADS=1 python benchmarks/accuracy.py

The output is a Markdown table: the largest error of an out-of-fold prediction of 2,000 rows and 5
folds, in standard deviations of y. The reference is a QR factorisation in long double.

* total minus fold: X'X and X'y of a fold's training rows are the difference of those of all rows,
  shifted by their mean, and those of the fold; then Cholesky.
* raw: the same without the shift.
* exact folds: ours.
* refit: ``fit`` of scikit-learn for each fold.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import cho_factor
from scipy.linalg import cho_solve
from scipy.linalg import LinAlgError
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_val_predict

ALPHA = 1e-3
K = 5

Solve = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool], np.ndarray]


def problems(n: int = 2000, d: int = 6) -> dict[str, np.ndarray]:
    """Return X by what is special about its columns; the first fold is the first fifth."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    first = np.arange(n) < n // K
    held, far, dummy = X.copy(), X.copy(), X.copy()
    held[~first, 0] = 0
    far[first, 0] += 1e9
    dummy[:, 0] = np.arange(n) == n // 2
    return {
        "one fold holds a column": held,
        "a column of one fold lies 1e9 away": far,
        "a dummy set in one row": dummy,
        "offset 1e6": X + 1e6,
        "scales 1e-6 to 1e6": X * np.geomspace(1e-6, 1e6, d),
    }


def long_double(
    X: np.ndarray, y: np.ndarray, _: np.ndarray, test: np.ndarray, is_scaled: bool
) -> np.ndarray:
    """Return predictions by Householder's QR, in long double."""
    wide = np.longdouble
    X, y, test = X.astype(wide), y.astype(wide), test.astype(wide)
    centre, mean = X.mean(axis=0), y.mean()
    X, test = X - centre, test - centre
    if is_scaled:
        scale = np.sqrt((X**2).mean(axis=0))
        scale[scale == 0] = 1
        X, test = X / scale, test / scale
    d = X.shape[1]
    A = np.vstack([X, np.sqrt(wide(ALPHA)) * np.eye(d, dtype=wide)])
    b = np.concatenate([y - mean, np.zeros(d, wide)])
    for j in range(d):
        v = A[j:, j].copy()
        v[0] += np.copysign(np.sqrt(v @ v), v[0])
        v /= np.sqrt(v @ v)
        A[j:, j:] -= 2 * np.outer(v, v @ A[j:, j:])
        b[j:] -= 2 * v * (v @ b[j:])
    coef = np.zeros(d, wide)
    for j in reversed(range(d)):
        coef[j] = (b[j] - A[j, j + 1 : d] @ coef[j + 1 :]) / A[j, j]
    return test @ coef + mean


def by_difference(
    X: np.ndarray, y: np.ndarray, own: np.ndarray, test: np.ndarray, is_scaled: bool, shift: bool
) -> np.ndarray:
    """Return predictions from the total minus the fold; NaN if that breaks down."""
    everything = np.column_stack([np.vstack([X, test]), np.concatenate([y, own])])
    origin = everything.mean(axis=0) if shift else np.zeros(everything.shape[1])
    shifted = everything - origin
    fold = shifted[len(X) :]
    n = len(X)
    mean = (shifted.sum(axis=0) - fold.sum(axis=0)) / n
    scatter = shifted.T @ shifted - fold.T @ fold - n * np.outer(mean, mean)
    scale = np.ones(len(mean) - 1)
    if is_scaled:
        with np.errstate(invalid="ignore"):
            scale = np.sqrt(scatter.diagonal()[:-1] / n)
        scale[scale == 0] = 1
    gram = scatter[:-1, :-1] / np.outer(scale, scale) + ALPHA * np.eye(len(scale))
    try:
        coef = cho_solve(cho_factor(gram), scatter[:-1, -1] / scale)
    except (LinAlgError, ValueError):
        return np.full(len(test), np.nan)
    return (fold[:, :-1] - mean[:-1]) / scale @ coef + mean[-1] + origin[-1]


def fold_by_fold(solve: Solve, X: np.ndarray, y: np.ndarray, is_scaled: bool) -> np.ndarray:
    predicted = np.empty(len(y), np.longdouble)
    for train, test in KFold(K).split(X):
        predicted[test] = solve(X[train], y[train], y[test], X[test], is_scaled)
    return predicted


def main() -> None:
    print("| columns | total minus fold | raw | exact folds | refit |\n|---|---|---|---|---|")
    rng = np.random.default_rng(1)
    for name, X in problems().items():
        y = (X / X.std(axis=0)).sum(axis=1) + rng.normal(size=len(X))
        for is_scaled in (False, True):
            model = Ridge(ALPHA)
            if is_scaled:
                model = make_pipeline(StandardScaler(), model)
            right = fold_by_fold(long_double, X, y, is_scaled)
            found = [
                fold_by_fold(
                    lambda *given, shift=shift: by_difference(*given, shift=shift),
                    *(X, y, is_scaled),
                )
                for shift in (True, False)
            ]
            found.append(tree_cross_val_predict(model, X, y, cv=KFold(K), method="exact"))
            found.append(cross_val_predict(model, X, y, cv=KFold(K)))
            errors = [float(np.abs(one - right).max() / y.std()) for one in found]
            shown = (f"{error:.0e}" if error < np.inf else "breaks down" for error in errors)
            print("|", " | ".join([name + ", scaled" * is_scaled, *shown]), "|", flush=True)


if __name__ == "__main__":
    main()
