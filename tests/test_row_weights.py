"""Weights of rows in the kernels: each kernel equals its NumPy twin with the same weights."""

from __future__ import annotations

import numpy as np
import pytest

from optuna_treecv._kernels.kmeans import KMeans
from optuna_treecv._kernels.pegasos import Pegasos
from optuna_treecv._kernels.pegasos_lanes import PegasosLanes

# What weigh refuses.


def pegasos(n_classes=2, dtype=np.float64):
    X = np.ones((6, 8), dtype)
    return Pegasos(X, np.arange(6, dtype=np.int32) % n_classes, n_classes, 0.1, False, False)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(5), r"float64 of shape \(6,\) as X has its rows, got float64 of shape \(5,\)"),
        (np.ones(6, np.float32), "got float32"),
        (np.ones((6, 1)), r"got float64 of shape \(6, 1\)"),
        (np.ones(12)[::2], "contiguous"),
        (np.array([1, 1, -1e-300, 1, 1, 1]), "finite and at least 0"),
        (np.array([1, 1, np.nan, 1, 1, 1]), "finite and at least 0"),
        (np.array([1, 1, np.inf, 1, 1, 1]), "finite and at least 0"),
    ],
)
def test_wrong_weights_are_refused(weights, message):
    kernel = pegasos()
    with pytest.raises(ValueError, match=message):
        kernel.weigh(weights)
    kernel.weigh(np.ones(6))


def test_weigh_is_called_once():
    kernel = pegasos()
    kernel.weigh(None, True)
    with pytest.raises(ValueError, match="called once"):
        kernel.weigh(None, True)


def test_only_class_codes_are_balanced():
    X, codes = np.ones((6, 8)), np.array([0, 1, 2, 0, 1, 2], np.int32)
    for kernel in (
        KMeans(X, 2),
        Pegasos(X, np.zeros(6, np.int32), 1, 0.1, False, False),
    ):
        with pytest.raises(ValueError, match="two or more classes"):
            kernel.weigh(None, True)
    with pytest.raises(ValueError, match="class codes below 2, got 2"):
        Pegasos(X, codes, 2, 0.1, False, False).weigh(None, True)


@pytest.mark.parametrize("n_classes", [2, 7, 8])
def test_states_get_longer_by_the_masses(n_classes):
    X, y = np.ones((8, 8)), np.arange(8, dtype=np.int32) % n_classes
    for make in (
        lambda: Pegasos(X, y, n_classes, 0.1, False, False),
        lambda: PegasosLanes(X, y, n_classes, [0.1, 0.2], True, False),
    ):
        plain, weighted, balanced = make(), make(), make()
        weighted.weigh(np.ones(8))
        balanced.weigh(None, True)
        assert weighted.state_bytes == plain.state_bytes
        assert balanced.state_bytes == plain.state_bytes + (64 if n_classes < 8 else 128)
        assert balanced.model_bytes == plain.model_bytes
