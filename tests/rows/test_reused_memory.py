"""Memory of prepared rows, which the process keeps and uses again."""

from collections.abc import Iterator
import gc
import mmap
import sys
import tracemalloc
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.caching.caches import ArrayThenCount
from optuna_treecv.rows import memory
from optuna_treecv.rows import row_file
from optuna_treecv.rows.memory import empty_parts
from optuna_treecv.rows.memory import empty_rows
from optuna_treecv.rows.memory import MOST_KEPT

SHAPE = (10_000, 64)
LOOKS = [lambda rows: rows[5:7], memoryview, lambda rows: rows.ravel().view("u1")]


@pytest.fixture(autouse=True, scope="module")
def _objects_of_libraries_are_no_garbage() -> Iterator[None]:
    """Let a collection look only at what is made here, because all the others take 0.2 seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _no_garbage_of_other_tests() -> None:
    gc.collect()
    memory._kept.clear()


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_memory_is_used_again_when_nobody_looks_at_it(look):
    rows = empty_rows(SHAPE, np.float64)
    address = rows.ctypes.data
    assert rows.shape == SHAPE
    assert rows.dtype == np.float64
    assert address % 64 == 0
    last = look(rows)
    del rows
    gc.collect()
    assert not memory._kept
    del last
    assert len(memory._kept) == 1
    assert empty_rows(SHAPE, np.float64).ctypes.data == address


@pytest.mark.slow
def test_little_is_kept():
    for n_bytes in (2**20, MOST_KEPT + 64):
        empty_rows((n_bytes,), np.uint8)
        assert not memory._kept
    some = [empty_rows((n_rows, 64), np.float64) for n_rows in (10_000, 20_000, 30_000)]
    some.clear()
    assert len(memory._kept) == 1


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [9_000, 60_000])
def test_memory_of_another_size_goes(n_rows):
    rows = empty_rows((20_000, 64), np.float64)
    del rows
    others = empty_rows((n_rows, 64), np.float64)
    assert not memory._kept
    assert len(others) == n_rows


@pytest.mark.slow
def test_nothing_is_kept_where_memory_is_short():
    X = np.random.default_rng(0).normal(size=(SHAPE[0], 61))
    tree_cross_validate(PegasosClassifier(), X, X[:, 0] > 0, cv=5)
    assert memory._kept
    tree_cross_validate(PegasosClassifier(), X, X[:, 0] > 0, cv=5, max_memory="1MiB")
    assert not memory._kept


@pytest.mark.slow
def test_an_evaluation_in_used_memory_has_the_same_bits():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(SHAPE[0], 61))
    y = X[:, 0] + generator.normal(size=len(X)) > 0
    first = tree_cross_validate(PegasosClassifier(), X, y, cv=5)
    assert len(memory._kept) == 1
    memory._kept[0][:] = 255  # NaN
    again = tree_cross_validate(PegasosClassifier(), X, y, cv=5)
    assert np.array_equal(first.test_score, again.test_score)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("look", LOOKS)
def test_parts_of_memory_go_one_by_one(look):
    gc.collect()  # what goes here, and not below
    n_bytes = 2**23 + 24  # parts end within pages
    whole, parts = empty_parts(4, n_bytes)
    assert [len(part) for part in parts] == 4 * [n_bytes]
    whole.reshape(4, n_bytes)[:] = np.array([[1], [2], [3], [4]])
    del whole
    before = resident_bytes()
    last = look(parts.pop(1))
    gc.collect()
    assert before - resident_bytes() < n_bytes // 2
    assert np.all(np.asarray(last) == 2)
    del last
    assert before - resident_bytes() > n_bytes * 9 // 10
    for part, number in zip(parts, (1, 3, 4), strict=True):
        assert np.all(part == number)
    del part
    parts.clear()
    assert before - resident_bytes() > 4 * n_bytes * 9 // 10


@pytest.mark.slow
def test_small_parts_share_pages():
    whole, parts = empty_parts(3, 100)
    whole[:] = 7
    del whole
    del parts[1]
    assert np.all(np.concatenate(parts) == 7)


@pytest.mark.slow
@pytest.mark.parametrize(("n_rows", "n_copies"), [(200, 8), (4000, 0)])
def test_outputs_of_few_rows_keep_no_memory_of_others(n_rows, n_copies, monkeypatch):
    of = mock.Mock(side_effect=ArrayThenCount.of)
    monkeypatch.setattr(ArrayThenCount, "of", of)
    X = np.random.default_rng(0).normal(size=(n_rows, 3))
    models = [PegasosClassifier(alpha) for alpha in np.geomspace(1e-3, 1, 8)]
    tree_cross_validate_many(models, X, X[:, 0] > 0, cv=5)
    assert of.call_count == n_copies


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(row_file, "_MOST_PIECE", 2**18)


@pytest.fixture
def mixed():
    """Return an array, a frame of floats and integers with the same numbers, and labels."""
    generator = np.random.default_rng(0)
    X = generator.integers(9, size=(40_000, 31)).astype(np.float64)
    X[:, 0] += generator.random(len(X))
    frame = pd.DataFrame({f"c{j}": X[:, j] if j == 0 else X[:, j].astype(int) for j in range(31)})
    return X, frame, X[:, 1] + generator.normal(size=len(X)) > 4


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
def test_a_frame_is_not_copied_as_a_whole(mixed):
    X, frame, y = mixed
    tree_cross_validate(PegasosClassifier(), frame[:100], y[:100], cv=5)  # imports
    tracemalloc.start()
    found = tree_cross_validate(PegasosClassifier(), frame, y, cv=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.4 * len(X) * 32 * 8
    expected = tree_cross_validate(PegasosClassifier(), X, y, cv=5)
    assert np.array_equal(found.test_score, expected.test_score)


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
def test_an_entry_of_a_late_piece_is_named(mixed):
    X, frame, y = mixed
    X[39_990, 0] = np.nan
    frame["c0"] = X[:, 0]
    with pytest.raises(ValueError, match="NaN in column 'c0', row 39990"):
        tree_cross_validate(PegasosClassifier(), frame, y)
    with pytest.raises(ValueError, match="NaN in column 0, row 39990"):
        tree_cross_validate(PegasosClassifier(), X, y)
    for column, value in ((0, np.nan), (2, "a")):
        entries = X.astype(object)
        entries[:, 0] = 0
        entries[39_990, column] = value
        for max_memory in (None, "2MB"):
            with pytest.raises(ValueError, match=f"column {column}, row 39990"):
                tree_cross_validate(PegasosClassifier(), entries, y, max_memory=max_memory)
