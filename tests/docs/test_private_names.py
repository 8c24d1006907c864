"""Private names of other libraries are listed with what to do when they go."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
import re

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how_it_works" / "private_names.rst"

#: Private by their spelling alone: named tuples and ``sys``.
DOCUMENTED = {"_fields", "_replace", "_getframe"}
# Of our own, in pickles of before.
GONE = {"_name_of_metadata"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.isidentifier()


def names_that_are_ours(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.arg():
                yield node.arg


def private_imports(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            for name in () if parts[0] == "optuna_treecv" else node.names:
                if any(map(is_private, [*parts, name.name])):
                    yield f"{node.module}.{name.name}"


def private_attributes(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield private names of attributes, also those that are given to ``getattr`` and the like."""
    for node in nodes:
        match node:
            case ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                if is_private(name):
                    yield name


@pytest.mark.slow
def test_the_list_is_that_of_the_code():
    paths = (ROOT / "optuna_treecv").rglob("*.py")
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    ours = set(names_that_are_ours(nodes)) | DOCUMENTED | GONE
    used = set(private_attributes(nodes)) - ours
    used |= set(private_imports(nodes))
    first_column = re.findall(r"^   \* - (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    listed = {name for line in first_column for name in re.findall(r"``(\S+?)``", line)}
    assert listed == used
