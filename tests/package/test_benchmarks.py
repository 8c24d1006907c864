"""The benchmarks' own code for peers: TreeCV in Python, and ridge in closed form."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
import sys

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import LeaveOneOut

from optuna_treecv import tree_cross_validate


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    yield import_module("peers")
    for name in ("peers", "datasets"):
        del sys.modules[name]


@pytest.fixture
def exact(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    yield import_module("exact")
    for name in ("exact", "datasets"):
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "k"), [("binary", 2), ("binary", 10), ("three_classes", 7), ("regression", "loo")]
)
def test_treecv_in_python_equals_ours(peers, kind, k, request):
    X, y = request.getfixturevalue(kind)
    task = peers.Task(X, y, kind, step=0.1, alpha=1e-3)
    losses, n_updates = peers.python_treecv(task.theirs, task, len(y) if k == "loo" else k)
    result = tree_cross_validate(task.theirs, X, y, cv=k, stratify=False, shuffle=False)
    np.testing.assert_allclose(losses, result.test_score, rtol=1e-12)
    assert n_updates == result.n_updates


def test_hat_matrix_equals_n_fits(peers, regression):
    X, y = regression
    task = peers.Task(X, y, "", step=0.1, alpha=0)
    score, _ = peers.hat_matrix("", task, [3.0]).run()
    scores = cross_val_score(Ridge(3.0), X, y, cv=LeaveOneOut(), scoring="neg_mean_squared_error")
    assert score == pytest.approx(np.sqrt(-scores.mean()), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
def test_ten_lines_equal_n_fits(exact, regression, at_once):
    X, y = regression
    task = exact.Task(X, y, "", Ridge(), "alpha", exact.ALPHAS, "")
    _, scores = exact.ten_lines(task, at_once).run()
    found = scores["squared_error", "loo"][20]
    alpha = exact.ALPHAS[20]
    options = {"cv": LeaveOneOut(), "scoring": "neg_mean_squared_error"}
    np.testing.assert_allclose(found, -cross_val_score(Ridge(alpha), X, y, **options), rtol=1e-8)


def test_folds_by_cvmatrix_equal_those_of_the_search(exact, regression):
    pytest.importorskip("cvmatrix")
    X, y = regression
    task = exact.Task(X, y, "", Ridge(), "alpha", exact.ALPHAS, "neg_mean_squared_error")
    _, searched = exact.search(task, is_slow=False, k=7).run()
    (entry,) = exact.cvmatrix_and_eigh(task, 7)
    _, found = entry.run()
    np.testing.assert_allclose(found["squared_error", 7], searched["squared_error", 7], rtol=1e-8)
