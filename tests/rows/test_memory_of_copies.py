"""An evaluation makes at most one copy of the rows, in their own type: float32 is not widened."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import HistTreeClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_validate

X = np.random.default_rng(0).normal(size=(40_000, 80))
CODES = (X[:, 0] > 0).astype(int)
MODELS = [
    PegasosClassifier(),
    AveragedSGDClassifier(),
    StreamingSVRGClassifier(),
    HistTreeClassifier(max_depth=3),
    Ridge(),
    Lasso(alpha=0.1),
    LogisticRegression(),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_rows_are_copied_once_in_their_own_type(model, dtype):
    rows = X.astype(dtype)
    tree_cross_validate(model, rows[:500], CODES[:500], cv=3)  # imports, and memory for reuse
    tracemalloc.start()
    tree_cross_validate(model, rows, CODES, cv=3, n_jobs=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.7 * rows.nbytes  # 1 for the copy; a copy in float64 would take 2
