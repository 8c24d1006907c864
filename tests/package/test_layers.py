"""Imports point down: search, study, crossval, engines, plans, core, caching, scoring, rows.

Engines know nothing of each other, and nothing below them knows an engine.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path
import re

import pytest
from sources import MODULES
from sources import nodes_of
from sources import PACKAGE
from sources import tree_of

ENGINE_PACKAGES = [f"engines.{path.parent.name}" for path in PACKAGE.glob("engines/*/engine.py")]

# What all engines are made of.
BELOW = {
    "_kernels",
    "caching",
    "core",
    "estimators",
    "numerics",
    "plans",
    "preprocessing",
    "rows",
    "scoring",
    "types",
}
# The folders (and files outside of folders) that each one may import besides itself. Each engine
# is a folder of its own, which imports no other one.
ALLOWED = {
    "__init__": {
        *("caching", "core", "crossval", "moved", "results", "scoring", "search"),
        *("selection", "study"),
        *ENGINE_PACKAGES,
    },
    "accelerate": {"search"},
    "history": {"reporting"},
    "paper": {"engines.treecv"},
    "report": {"reporting"},
    "results": {"core", "selection", "study"},
    "dashboard": {"reporting"},
    "dask": {"caching", "rows"},
    "testing": BELOW | {"crossval", "engines.treecv", "search", "study"},
    "search": BELOW | {"crossval", "selection", "storage", "study"},
    "selection": BELOW | {"crossval"},
    "study": (BELOW - {"plans"}) | {"crossval", "storage"},
    "reporting": {"core", "crossval", "estimators", "scoring", "storage", "study"},
    "crossval": BELOW | {"engines"},
    **dict.fromkeys(ENGINE_PACKAGES, BELOW),
    "engines": {"core", "plans", *ENGINE_PACKAGES},
    "plans": BELOW - {"plans"},
    "core": BELOW - {"core", "plans"} | {"dask"},
    "moved": set(),
    "caching": {"estimators", "rows", "scoring", "storage", "_kernels"},
    "scoring": {"estimators", "rows", "types"},
    "preprocessing": {"estimators", "numerics", "rows", "_kernels"},
    "estimators": {"numerics", "rows", "_kernels"},
    "numerics": {"rows", "types"},
    "rows": {"_kernels"},
    "storage": set(),
    "types": set(),
    "_kernels": set(),
}
# The folders and files that may import a library.
LIBRARIES = {
    "dask": {"dask"},
    "distributed": {"dask"},
    "optuna": {"reporting", "search", "study"},
    "optuna_dashboard": {"reporting"},
    "plotly": {"reporting"},
    "pandas": {"dask", "estimators", "preprocessing", "reporting", "testing"},
    "river": {"estimators", "engines"},
    "sqlalchemy": {"storage"},
    "sklearn": {
        *("accelerate", "crossval", "engines", "reporting", "search", "study", "testing"),
        "selection",
        *(BELOW - {"_kernels"}),
    },
}


def place_of(parts: Sequence[str]) -> str:
    """Return the folder of a module below the package; of an engine, the folder of the engine."""
    is_engine = parts[0] == "engines" and len(parts) > 1 and parts[1] != "__init__"
    return ".".join(parts[:2]) if is_engine else parts[0]


def parts_of(path: Path) -> tuple[str, ...]:
    return path.relative_to(PACKAGE).with_suffix("").parts


def imports(path: Path) -> set[str]:
    nodes = nodes_of(path)
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            is_whole = node.module == PACKAGE.name  # from optuna_treecv import engines
            names += [f"{node.module}.{one.name}" for one in node.names] if is_whole else []
            names += [] if is_whole else [str(node.module)]
    return {*names}


# What the package may grow to. A new capability raises the number of classes by at most 15.
MOST_IN_A_CHAIN, MOST_CLASSES = 17, 386


@pytest.mark.slow
def test_imports_point_down():
    wrong = []
    for path in MODULES:
        place = place_of(parts_of(path))
        for name in imports(path):
            top, *rest = name.split(".")
            if top == "optuna_treecv" and rest:
                is_allowed = place_of(rest) in ALLOWED[place] | {place}
            else:
                is_allowed = top not in LIBRARIES or place.partition(".")[0] in LIBRARIES[top]
            if not is_allowed:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert wrong == []


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
    assert {place_of(parts_of(path)) for path in MODULES} == set(ALLOWED)


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.name == "__init__.py"], ids=lambda p: p.parent.name
)
def test_a_folder_only_hands_names_on(path):
    """An ``__init__.py`` holds only imports and constants; code is in files with a name."""
    for node in tree_of(path).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_name = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.List)
        is_check = isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_naming = isinstance(node, ast.For) and ast.unparse(node.iter) == "__all__"
        is_list = isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ENGINES"
        is_known = is_docstring or is_name or is_check or is_import or is_naming or is_list
        assert is_known, f"{path}, line {node.lineno}"


@cache
def package_imports() -> dict[str, set[str]]:
    """Return the modules of this package that each one imports, also for types alone."""
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in MODULES
    }
    found = {}
    for name, path in modules.items():
        below = set()
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "") in modules:
                of_names = {f"{node.module}.{alias.name}" for alias in node.names}
                below |= of_names & modules.keys() or {node.module}
        found[name] = below - {name}
    return found


@pytest.mark.slow
def test_no_file_imports_itself_by_others():
    """Files are taken away that import none of those that are left; in the end none is left."""
    left = dict(package_imports())
    while bottom := [name for name, below in left.items() if not below & left.keys()]:
        for name in bottom:
            del left[name]
    assert not left


@pytest.mark.slow
def test_no_public_class_has_the_name_of_another():
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


@pytest.mark.slow
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


@pytest.mark.slow
def test_there_are_no_more_nouns():
    """Classes and structs; a new one should take the place of another."""
    kinds = r"^\s*(cdef\s+)?(packed\s+)?(class|struct|enum|cppclass)\b"
    sources = [one for one in PACKAGE.rglob("*") if one.suffix in (".pyx", ".pxd", ".pxi", ".h")]
    if not sources:
        pytest.skip("the sources of the kernels are not installed")
    of_kernels = sum(len(re.findall(kinds, one.read_text(), re.MULTILINE)) for one in sources)
    of_python = sum(isinstance(node, ast.ClassDef) for path in MODULES for node in nodes_of(path))
    assert of_python + of_kernels <= MOST_CLASSES
