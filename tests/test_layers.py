"""Imports go one way: objective, crossval -> run -> evaluation -> walk -> learners -> kernels."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import optuna_treecv

PACKAGE = Path(optuna_treecv.__file__).parent

# What each module may import of ours.
ALLOWED = {
    "__init__": {"objective", "crossval", "run", "learners", "cache"},
    "objective": {
        *(
            "batches",
            "cache",
            "claims",
            "database",
            "evaluation",
            "grid_sampler",
            "history",
            "keys",
            "learners",
            "records",
            "run",
            "stores",
        ),
    },
    "batches": {"claims", "evaluation", "run", "together"},
    "grid_sampler": set(),
    "claims": {"database", "records", "stores"},
    "dashboard": {"report"},
    "report": {"history"},
    "crossval": {"evaluation", "run", "together"},
    "together": {
        *("cache", "data", "evaluation", "learners", "plan", "run", "scoring", "sharing", "walk"),
    },
    "testing": {"crossval", "data", "folds", "learners", "_kernels"},
    "run": {
        *("cache", "data", "evaluation", "keys", "learners", "plan", "scoring", "sharing", "walk"),
    },
    "evaluation": {
        *("cache", "data", "folds", "keys", "learners", "plan", "scoring", "sharing", "walk"),
        "_kernels",
    },
    "sharing": {"cache", "data", "keys", "learners", "plan", "scoring"},
    "cache": {"data", "keys", "stores"},
    "keys": {"data", "plan"},
    "walk": {"learners", "plan"},
    "scoring": {"data", "learners", "plan"},
    "learners": {"data", "learners", "plan", "_kernels"},
    "data": {"_kernels"},
    "folds": {"_kernels"},
    "plan": {"_kernels"},
    "cli": {"database", "history", "records", "stores"},
    "history": {"database", "records"},
    "stores": {"database", "records"},
    "database": {"records"},
    "records": set(),
    "_kernels": {"_kernels"},
}
# Who may import which library.
LIBRARIES = {
    "optuna": {"cli", "objective", "grid_sampler", "report", "dashboard"},
    "optuna_dashboard": {"dashboard"},
    "plotly": {"report"},
    "river": {"learners"},
    "sqlalchemy": {"cli", "history", "claims", "stores", "database", "records"},
    "sklearn": {
        "objective",
        "evaluation",
        "walk",
        "scoring",
        "learners",
        "data",
        "folds",
        "testing",
    },
}


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    return {*names, *(node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))}


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_imports_go_one_way(path):
    layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "optuna_treecv":
            assert rest[0] in ALLOWED[layer], f"{layer} imports {name}"
        elif top in LIBRARIES:
            assert layer in LIBRARIES[top], f"{layer} imports {name}"


def test_every_module_has_its_place():
    found = {
        path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")
    }
    assert found == set(ALLOWED)
