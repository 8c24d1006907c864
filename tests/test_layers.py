"""Imports point down: search, study, crossval, core, sharing, scoring, learners, tree, rows."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
import re

import pytest

import optuna_treecv

PACKAGE = Path(optuna_treecv.__file__).parent

# The folders (and files outside of folders) that each one may import besides itself.
ALLOWED = {
    "__init__": {
        "core",
        "crossval",
        "learners",
        "moved",
        "results",
        "scoring",
        "search",
        "sharing",
        "study",
    },
    "accelerate": {"search"},
    "history": {"reporting"},
    "paper": {"learners"},
    "report": {"reporting"},
    "results": {"core", "study"},
    "dashboard": {"reporting"},
    "dask": {"rows", "sharing"},
    "testing": {"core", "crossval", "learners", "rows", "study", "tree", "_kernels"},
    "search": {
        "core",
        "crossval",
        "learners",
        "rows",
        "scoring",
        "sharing",
        "storage",
        "study",
        "_kernels",
    },
    "study": {"core", "crossval", "learners", "rows", "scoring", "sharing", "storage"},
    "crossval": {"core", "learners", "numerics", "rows", "scoring", "sharing", "tree", "_kernels"},
    "core": {"dask", "learners", "rows", "scoring", "sharing", "tree", "_kernels"},
    "moved": {"core"},
    "sharing": {"learners", "rows", "scoring", "storage", "tree", "_kernels"},
    "scoring": {"learners", "rows", "tree"},
    "learners": {"numerics", "rows", "tree", "_kernels"},
    "numerics": {"rows"},
    "tree": {"rows", "_kernels"},
    "rows": {"_kernels"},
    "reporting": {"core", "crossval", "learners", "scoring", "storage", "study"},
    "storage": set(),
    "_kernels": set(),
}
# The folders and files that may import a library.
LIBRARIES = {
    "dask": {"dask"},
    "distributed": {"dask"},
    "optuna": {"reporting", "search", "study"},
    "optuna_dashboard": {"reporting"},
    "plotly": {"reporting"},
    "pandas": {"dask", "learners", "reporting"},
    "river": {"learners"},
    "sqlalchemy": {"storage"},
    "sklearn": {
        "accelerate",
        "core",
        "crossval",
        "learners",
        "numerics",
        "reporting",
        "rows",
        "scoring",
        "search",
        "sharing",
        "study",
        "testing",
        "tree",
    },
}


def place_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    return {*names, *(node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))}


# What the package may grow to. A new capability raises the number of classes by at most 15.
MOST_IN_A_CHAIN, MOST_CLASSES = 23, 367

MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    place = place_of(path)
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "optuna_treecv":
            assert rest[0] in ALLOWED[place] | {place}, f"{place} imports {name}"
        elif top in LIBRARIES:
            assert place in LIBRARIES[top], f"{place} imports {name}"


def test_there_is_no_way_back_up():
    below: dict[str, set[str]] = {}
    while len(below) < len(ALLOWED):
        ready = {
            place
            for place, allowed in ALLOWED.items()
            if place not in below and allowed <= below.keys()
        }
        assert ready, f"a circle among {sorted(ALLOWED.keys() - below.keys())}"
        below |= {place: ALLOWED[place] for place in ready}


def test_every_module_has_its_place():
    assert {place_of(path) for path in MODULES} == set(ALLOWED)


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.name == "__init__.py"], ids=lambda p: p.parent.name
)
def test_a_folder_only_hands_names_on(path):
    """An ``__init__.py`` holds only imports and constants; code is in files with a name."""
    for node in ast.parse(path.read_text()).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_name = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.List)
        is_check = isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_naming = isinstance(node, ast.For) and ast.unparse(node.iter) == "__all__"
        is_known = is_docstring or is_name or is_check or is_import or is_naming
        assert is_known, f"{path}, line {node.lineno}"


def package_imports() -> dict[str, set[str]]:
    """Return the modules of this package that each one imports, also for types alone."""
    found = {}
    for path in MODULES:
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        name = name.removesuffix(".__init__")
        tree = ast.walk(ast.parse(path.read_text()))
        modules = (node.module or "" for node in tree if isinstance(node, ast.ImportFrom))
        found[name] = {one for one in modules if one.startswith("optuna_treecv")} - {name}
    return found


def test_chains_of_imports_stay_short():
    """To change a module, one must know those below it."""
    imported, above = package_imports(), set()

    @cache
    def length(name: str) -> int:
        above.add(name)
        longest = max(
            (length(one) for one in imported.get(name, ()) if one not in above), default=0
        )
        above.discard(name)
        return 1 + longest

    assert max(map(length, imported)) <= MOST_IN_A_CHAIN


def test_there_are_no_more_nouns():
    """Classes and structs; a new one should take the place of another."""
    kinds = r"^\s*(cdef\s+)?(packed\s+)?(class|struct|enum|cppclass)\b"
    sources = [one for one in PACKAGE.rglob("*") if one.suffix in (".pyx", ".pxd", ".pxi", ".h")]
    if not sources:
        pytest.skip("the sources of the kernels are not installed")
    of_kernels = sum(len(re.findall(kinds, one.read_text(), re.MULTILINE)) for one in sources)
    of_python = sum(
        isinstance(node, ast.ClassDef)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
    )
    assert of_python + of_kernels <= MOST_CLASSES
