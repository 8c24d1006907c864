"""Small data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest


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
