"""Labels are found and numbered as NumPy does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.checks import distinct_labels

LABELS: dict[str, Any] = {
    "two": [0, 1],
    "around zero": [-128, -1, 0, 3, 127],
    "with gaps": [5, 90, 40],
    "far from zero": [2**40, 2**40 + 3],
    "the largest": [2**63 - 1, 2**63 - 2],
    "far apart": [0, 10**15],
}


CASES = [
    (name, dtype)
    for name, labels in LABELS.items()
    for dtype in ("int8", "uint8", "int16", "int64", "uint64", "bool", "str")
    if dtype == "str" or (np.array(labels).astype(dtype) == np.array(labels)).all()
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_classes_and_codes_are_those_of_numpy(name: str, dtype: str) -> None:
    y = np.random.default_rng(0).choice(np.array(LABELS[name]).astype(dtype), 600)
    classes = distinct_labels(y)
    assert classes.dtype == y.dtype
    assert classes.tolist() == np.unique(y).tolist()
    codes = as_codes(y, classes)
    assert codes.dtype == np.int32
    assert codes.tolist() == np.searchsorted(classes, y).tolist()
