"""Labels are found and numbered as NumPy does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from optuna_treecv.rows.data import as_codes
from optuna_treecv.rows.data import distinct_labels

LABELS: dict[str, Any] = {
    "two": [0, 1],
    "around zero": [-128, -1, 0, 3, 127],
    "with gaps": [5, 90, 40],
    "far from zero": [2**40, 2**40 + 3],
    "the largest": [2**63 - 1, 2**63 - 2],
    "far apart": [0, 10**15],
}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "uint64", "bool", "str"])
@pytest.mark.parametrize("name", LABELS)
def test_classes_and_codes_are_those_of_numpy(name: str, dtype: str) -> None:
    labels = np.array(LABELS[name])
    if dtype != "str" and not (labels.astype(dtype) == labels).all():
        pytest.skip("the type does not hold them")
    y = np.random.default_rng(0).choice(labels.astype(dtype), 600)
    classes = distinct_labels(y)
    assert classes.dtype == y.dtype
    assert classes.tolist() == np.unique(y).tolist()
    codes = as_codes(y, classes)
    assert codes.dtype == np.int32
    assert codes.tolist() == np.searchsorted(classes, y).tolist()
