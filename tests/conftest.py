"""Small data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from optuna_treecv._kernels.order import derive_seed
import pytest

from optuna_treecv._kernels import reference
from optuna_treecv.folds import make_folds


def data_of(n: int, d: int, n_classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows in noisy classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    scores = X @ rng.normal(size=(d, n_classes)) + rng.normal(size=(n, n_classes))
    return X, scores.argmax(axis=1)


@pytest.fixture
def make_data() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    return data_of


@pytest.fixture
def binary() -> tuple[np.ndarray, np.ndarray]:
    return data_of(83, 5)


@pytest.fixture
def three_classes() -> tuple[np.ndarray, np.ndarray]:
    return data_of(61, 4, n_classes=3)


@pytest.fixture
def regression() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(79, 6))
    y = X @ rng.normal(size=6) * 0.2 + 0.1 * rng.normal(size=79)
    return X, y


def paths_of(n_rows, n_folds, order="fixed", shuffle=True, random_state=0):
    """Rows as given: what each fold holds out, and the phases that its model is trained in, by
    Algorithm 1 as the paper writes it.
    """
    seed = derive_seed(random_state, 0)
    prepared = make_folds(n_folds, np.empty((n_rows, 1)), None, None, shuffle, seed, n_rows).order
    cuts = [i * n_rows // n_folds for i in range(n_folds + 1)]
    chunks = [range(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    paths = {}

    def train(path, rows, n_seen):
        if order == "random" and len(rows) > 1:
            rows = reference.random_order(seed, rows[0], rows[-1] + 1, n_seen)
        return [*path, prepared[list(rows)]]

    reference.treecv(chunks, train, lambda path, fold: paths.update({fold: path}), [])
    return [(prepared[list(chunks[fold])], paths[fold]) for fold in range(n_folds)]


@pytest.fixture
def training_paths():
    return paths_of
