"""The rounding errors of exact folds on columns that hurt sums, beside those of a refit."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
import sys

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_val_predict

COLUMNS = [
    "one fold holds a column",
    "a column of one fold lies 1e9 away",
    "a dummy set in one row",
    "offset 1e6",
    "scales 1e-6 to 1e6",
]


pytestmark = pytest.mark.filterwarnings("ignore:An ill-conditioned matrix")


@pytest.fixture
def accuracy(monkeypatch):
    """Return the benchmark that measures the errors, whose reference is QR in long double."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    yield import_module("accuracy")
    del sys.modules["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "n_folds", "n_rows", "is_scaled"),
    [
        (columns, n_folds, n_rows, (number + is_odd) % 2 == 1)
        for number, columns in enumerate(COLUMNS)
        for n_folds, n_rows, is_odd in [(5, 500, 0), (80, 80, 1)]
    ],
)
def test_errors_are_those_of_a_refit(accuracy, columns, is_scaled, n_folds, n_rows, monkeypatch):
    monkeypatch.setattr(accuracy, "K", n_folds)
    X = accuracy.problems(n=n_rows)[columns]
    y = (X / X.std(axis=0)).sum(axis=1) + np.random.default_rng(1).normal(size=len(X))
    model = Ridge(accuracy.ALPHA)
    if is_scaled:
        model = make_pipeline(StandardScaler(), model)
    cv = KFold(n_folds)
    exact = accuracy.fold_by_fold(accuracy.long_double, X, y, is_scaled)
    ours = tree_cross_val_predict(model, X, y, cv=cv, method="exact") - exact
    refit = cross_val_predict(model, X, y, cv=cv) - exact
    allowed = max(10 * np.abs(refit).max(), 1e-12 * y.std())
    assert np.abs(ours).max() <= allowed


def test_a_difference_of_sums_would_not_do(accuracy):
    """The reason for merging: total minus fold loses all digits, or most of them."""
    X = accuracy.problems(n=500)["a column of one fold lies 1e9 away"]
    y = (X / X.std(axis=0)).sum(axis=1)
    right = accuracy.fold_by_fold(accuracy.long_double, X, y, False)
    for shift in (False, True):

        def solve(*given, shift=shift):
            return accuracy.by_difference(*given, shift=shift)

        error = accuracy.fold_by_fold(solve, X, y, False) - right
        assert not np.abs(error).max() < 1
