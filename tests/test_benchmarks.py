"""The benchmark's own code for peers: TreeCV in Python, and ridge in closed form."""

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
    monkeypatch.syspath_prepend(Path(__file__).parent / "benchmarks")
    yield import_module("peers")
    for name in ("peers", "datasets"):
        del sys.modules[name]


@pytest.mark.parametrize("kind", ["binary", "three_classes", "regression"])
@pytest.mark.parametrize("k", [2, 7, 10, "loo"])
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
