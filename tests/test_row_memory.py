"""Memory of prepared rows, which the process keeps and uses again."""

import gc

import numpy as np
import pytest

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv.rows import memory
from optuna_treecv.rows.memory import empty_rows
from optuna_treecv.rows.memory import MOST_KEPT

SHAPE = (10_000, 64)


def test_memory_is_used_again_when_nobody_looks_at_it():
    rows = empty_rows(SHAPE, np.float64)
    address = rows.ctypes.data
    assert rows.shape == SHAPE
    assert rows.dtype == np.float64
    assert address % 64 == 0
    for last in (rows[5:7], memoryview(rows), rows.reshape(-1).view("u1")):
        del rows
        gc.collect()
        assert empty_rows(SHAPE, np.float64).ctypes.data != address
        memory._kept.clear()
        rows = last if isinstance(last, np.ndarray) else np.asarray(last)
    del rows, last
    assert len(memory._kept) == 1
    assert empty_rows(SHAPE, np.float64).ctypes.data == address


def test_little_is_kept():
    for n_bytes in (2**20, MOST_KEPT + 64):
        empty_rows((n_bytes,), np.uint8)
        assert not memory._kept
    some = [empty_rows((n_rows, 64), np.float64) for n_rows in (10_000, 20_000, 30_000)]
    some.clear()
    assert len(memory._kept) == 1


@pytest.mark.parametrize("n_rows", [9_000, 60_000])
def test_memory_of_another_size_goes(n_rows):
    rows = empty_rows((20_000, 64), np.float64)
    del rows
    others = empty_rows((n_rows, 64), np.float64)
    assert not memory._kept
    assert len(others) == n_rows


def test_an_evaluation_in_used_memory_has_the_same_bits():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(SHAPE[0], 61))
    y = X[:, 0] + generator.normal(size=len(X)) > 0
    first = tree_cross_validate(PegasosClassifier(), X, y, cv=5)
    assert len(memory._kept) == 1
    memory._kept[0][:] = 255  # NaN
    again = tree_cross_validate(PegasosClassifier(), X, y, cv=5)
    assert np.array_equal(first.test_score, again.test_score)
