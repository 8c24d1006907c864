"""The package under test is the installed one, not the folder beside the tests."""

from importlib.metadata import version
import os
from pathlib import Path
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tomllib

import pytest

import optuna_treecv
from optuna_treecv.engines.treecv.kernels import tree

CHECKOUT = Path(__file__).resolve().parents[2]


def test_imported_from_where_it_was_installed() -> None:
    imported = Path(optuna_treecv.__file__).resolve()
    editable = (CHECKOUT / "optuna_treecv" / "_kernels" / "order.pyx").exists() and any(
        part == "build" for part in Path(tree.__file__).parts
    )
    assert editable or CHECKOUT not in imported.parents


def test_kernels_are_compiled() -> None:
    assert Path(tree.__file__).suffix in {".so", ".pyd"}


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python cannot do without the GIL"
)
def test_no_module_asks_for_the_gil():
    # Python enables the GIL when it imports a module that does not declare that it needs none.
    code = """
import pkgutil, optuna_treecv
for module in pkgutil.walk_packages(optuna_treecv.__path__, "optuna_treecv."):
    if "kernels." in module.name:
        __import__(module.name)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "always", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "to load module 'optuna_treecv" not in done.stderr


def test_typed() -> None:
    assert (Path(optuna_treecv.__file__).parent / "py.typed").exists()


def test_sources_stay_at_home() -> None:
    package = Path(optuna_treecv.__file__).parent
    if package.resolve() != CHECKOUT / "optuna_treecv":
        assert not list(package.rglob("*.pyx")) + list(package.rglob("*.h"))


@pytest.mark.slow
def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert "version" not in project and project["dynamic"] == ["version"]
    assert version("optuna-treecv") == optuna_treecv.__version__


def test_files_that_pyproject_names_are_there() -> None:
    text = (CHECKOUT / "pyproject.toml").read_text()
    named = re.findall(r"\b(?:tests|examples|docs|optuna_treecv)/[\w/]+(?:[.][a-z]+)?", text)
    assert len(named) > 10
    built = {"docs/_build"}
    assert [name for name in named if not (CHECKOUT / name).exists() and name not in built] == []


@pytest.mark.slow
def test_a_folder_that_was_not_built_says_so(tmp_path) -> None:
    sources = CHECKOUT / "optuna_treecv"
    shutil.copytree(
        sources, tmp_path / "optuna_treecv", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    done = subprocess.run(
        # -S and the path: without the installed package, but with what it depends on.
        [sys.executable, "-S", "-c", "import optuna_treecv"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(site.getsitepackages())},
        capture_output=True,
        text=True,
    )
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError: optuna_treecv was imported from its source folder")
    assert "python -m pip install -e . --no-build-isolation" in said
