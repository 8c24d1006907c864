"""The bytes of every kernel's states, against digests that were recorded.

Keys of kept models name what a state was trained on, and ``FORMAT`` names what its bytes mean. So
a change of the bytes without a new ``FORMAT`` would let a program misunderstand models that are
kept. States are the same on every machine. To record the digests anew:

    PYTHONPATH=tests/helpers python tests/engines/treecv/test_golden_states.py
"""

from __future__ import annotations

from hashlib import sha256
import json
from pathlib import Path

from kernel_families import CASES
from kernel_families import FAMILIES
from kernel_families import N_ROWS
from kernel_families import trained
from kernel_families import VALUES
import numpy as np
import pytest
from scipy import sparse

from optuna_treecv._kernels import FORMAT
from optuna_treecv.rows.memory import pad_rows

RECORDED = Path(__file__).with_name("golden_states.json")
COMMAND = "PYTHONPATH=tests/helpers python tests/engines/treecv/test_golden_states.py"


def digest(family: str, dtype: str, form: str) -> str:
    """A digest of all states of a family of kernels."""
    values = VALUES.astype(dtype)
    given = sparse.csr_array(values) if form == "sparse" else values
    X = pad_rows(given, np.arange(N_ROWS, dtype=np.uint32), True)
    of_states = sha256()

    def y_type(y: np.ndarray) -> np.ndarray:
        return y if y.dtype == np.int32 else y.astype(dtype)

    make, _ = FAMILIES[family]
    for kernel in make(X, y_type=y_type, is_sparse=form == "sparse"):
        for state in trained(kernel):
            of_states.update(state)
    return of_states.hexdigest()[:32]


def test_digests_belong_to_this_format():
    recorded = json.loads(RECORDED.read_text())["format"]
    assert recorded == FORMAT, f"FORMAT is {FORMAT}, the digests are of {recorded}: {COMMAND}"


@pytest.mark.parametrize(("family", "dtype", "form"), CASES)
def test_states_are_those_recorded(family, dtype, form):
    recorded = json.loads(RECORDED.read_text())["digests"]
    assert digest(family, dtype, form) == recorded[f"{family} {dtype} {form}"], (
        "This kernel's states have other bytes than when they were recorded. If that was not"
        " intended, it is a mistake. If it was, raise FORMAT in optuna_treecv/_kernels/__init__.py"
        f" and record the digests anew: {COMMAND}"
    )


if __name__ == "__main__":
    digests = {" ".join(case): digest(*case) for case in CASES}
    RECORDED.write_text(json.dumps({"format": FORMAT, "digests": digests}, indent=2) + "\n")
