"""The stubs of the compiled modules say what their sources say."""

from __future__ import annotations

import ast
from pathlib import Path
import re

import pytest

import optuna_treecv

SOURCES = Path(__file__).resolve().parents[1] / "optuna_treecv" / "_kernels"
STUBS = sorted(SOURCES.glob("*.pyi"))
INSTALLED = Path(optuna_treecv.__file__).parent / "_kernels"


def arguments_of(listed: str) -> list[tuple[str, str | None]]:
    """Names and defaults of the arguments of a Cython function."""
    listed = re.sub(r"#.*", "", listed)
    listed = re.sub(r"\[[^\]]*\]", "", listed)  # memoryviews
    names = []
    for argument in filter(None, map(str.strip, listed.split(","))):
        declared, _, default = argument.partition("=")
        name = declared.replace(" not None", "").split()[-1]
        names.append((name, default or None))
    return names


def functions_in_source(text: str) -> dict[str, list[tuple[str, str | None]]]:
    """The arguments of each function and method that Python can call, by class and name."""
    found = {}
    owner = ""
    pattern = r"^cdef class (\w+)|^class (\w+)|^( *)def (\w+)\((.*?)\):$"
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        if match[4] is None:
            owner = match[1] or match[2]
        else:
            found[f"{owner}." * bool(match[3]) + match[4]] = arguments_of(match[5])
    return found


def functions_in_stub(text: str) -> dict[str, list[tuple[str, str | None]]]:
    found = {}
    for node in ast.parse(text).body:
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef):
                names = [argument.arg for argument in function.args.args]
                defaults = [ast.unparse(default) for default in function.args.defaults]
                padded = [None] * (len(names) - len(defaults)) + defaults
                found[owner + function.name] = list(zip(names, padded, strict=True))
    return found


@pytest.mark.parametrize("stub", STUBS, ids=lambda path: path.stem)
def test_stub_says_what_the_source_says(stub):
    source = functions_in_source(stub.with_suffix(".pyx").read_text())
    declared = functions_in_stub(stub.read_text())
    # A kernel's ``start`` and the type of its model are declared once, in ``Kernel``.
    inherited = {"start", "model_type"} if stub.stem != "tree" else set()
    expected = {
        name: arguments
        for name, arguments in source.items()
        if name.rpartition(".")[2] not in inherited
    }
    if stub.stem == "tree":
        expected["Kernel.start"] = [("self", None), ("state", None)]
    assert declared == expected


def test_stubs_are_installed():
    assert {path.name for path in STUBS} <= {path.name for path in INSTALLED.glob("*.pyi")}
