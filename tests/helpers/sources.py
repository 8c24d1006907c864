"""The modules of the package as syntax trees, which are made once for all tests of a file."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import optuna_treecv

PACKAGE = Path(optuna_treecv.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))
