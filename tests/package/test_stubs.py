"""The stubs of the compiled modules say what their sources say."""

from __future__ import annotations

from pathlib import Path

import pytest
from stubs import KERNELS
from stubs import PACKAGE
from stubs import stub

import optuna_treecv

INSTALLED = Path(optuna_treecv.__file__).parent


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.stem)
def test_stub_says_what_the_source_says(source):
    written = source.with_suffix(".pyi")
    found = written.read_text() if written.exists() else ""
    assert found == stub(source), "Run python tests/stubs.py."


def test_stubs_are_installed():
    stubs = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.pyi")}
    assert stubs <= {path.relative_to(INSTALLED) for path in INSTALLED.rglob("*.pyi")}
