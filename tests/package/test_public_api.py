"""The public API is what ``tests/data/public_api.txt`` lists (``docs/reference/stability.rst``).

Run ``python tests/package/test_public_api.py`` to write the file again after a change. A name or a
parameter that was in a release is only removed after its deprecation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
import inspect
from pathlib import Path
import re
from typing import Any

import pytest

import optuna_treecv
from optuna_treecv import results
from optuna_treecv.accelerate import make_parser as make_accelerate_parser
from optuna_treecv.reporting.cli import make_parser as make_cli_parser

LIST = Path(__file__).parents[1] / "data" / "public_api.txt"
MODULES = ("accelerate", "dashboard", "dask", "history", "paper", "report", "results", "testing")

#: What the package itself calls: hooks of learners, rows, pruners and caches.
INTERNAL = re.compile(
    r"ModelCache\.\w|DaskRows\.\w|RacingPruner\.(forget|tell|warn_once)|"
    r"\.(has_epochs|lane_parameters|make_kernel|may_be_cut|respond|rtol|set_\w+_request)\b|"
    r"Curve\.(of|in_brief|has_ended)|FoldModels\.ordered"
)
#: Classes whose objects are made by functions and methods alone.
MADE = {"CVResult", "TreeCVObjective", *results.__all__}


def signature_of(value: Any) -> str:
    """Return the parameters of a callable, with their defaults, without annotations.

    For classes whose objects only the package makes, return the public fields instead.
    """
    if getattr(value, "__name__", "") in MADE:
        fields = value.__dataclass_fields__ if is_dataclass(value) else ()
        return "".join(f" .{name}" for name in fields if name[0] != "_")
    parameters = inspect.signature(value).parameters.values()
    plain = [p.replace(annotation=p.empty) for p in parameters if p.name != "self"]
    text = str(inspect.Signature(plain))
    return re.sub(r" at 0x[0-9a-f]+|<class '([\w.]+)'>", r"\1", text)


def members_of(name: str, value: type) -> Iterator[str]:
    """Yield the public methods, with their parameters, and the properties that we define."""
    shown = {*inspect.signature(value).parameters, *getattr(value, "__dataclass_fields__", ())}
    for member in sorted(vars(value).keys() - shown):
        content = inspect.getattr_static(value, member)
        if member.startswith("_"):
            continue
        if isinstance(content, (classmethod, staticmethod)) or inspect.isfunction(content):
            yield f"{name}.{member}{signature_of(getattr(value, member))}"
        else:
            yield f"{name}.{member}"


def public_modules() -> Iterator[Any]:
    """Yield the public modules."""
    yield optuna_treecv
    for name in MODULES:
        yield import_module(f"optuna_treecv.{name}")


def public_api() -> Iterator[str]:
    """Yield a line for each public function, class, method, attribute and option."""
    for module in public_modules():
        for name in sorted(module.__all__):
            value = getattr(module, name)
            path = f"{module.__name__}.{name}"
            yield f"{path}{signature_of(value)}"
            if isinstance(value, type):
                yield from (m for m in members_of(path, value) if not INTERNAL.search(m))
    for parser in (make_cli_parser(), make_accelerate_parser()):
        yield re.sub(r"\s+", " ", parser.format_usage()).strip()
        for action in parser._actions:
            for name, command in (getattr(action, "choices", None) or {}).items():
                options = [" ".join(a.option_strings) or a.dest for a in command._actions]
                yield f"{parser.prog} {name}: {', '.join(options)}"


def test_the_public_api_is_as_listed() -> None:
    pytest.importorskip("dask")
    assert list(public_api()) == LIST.read_text("utf-8").splitlines()


def test_each_listed_name_has_a_page_in_the_reference() -> None:
    pytest.importorskip("dask")
    reference = (Path(__file__).parents[2] / "docs" / "reference" / "index.rst").read_text("utf-8")
    pages = set(re.findall(r"^   (?:dask\.)?(\w+)$", reference, flags=re.MULTILINE))
    assert {name for module in public_modules() for name in module.__all__} == pages


def test_files_of_a_release_have_its_version() -> None:
    root, version = Path(__file__).parents[2], optuna_treecv.__version__
    assert f"\nversion: {version}\n" in (root / "CITATION.cff").read_text("utf-8")
    assert f'version: "{version}"' in (root / "conda" / "recipe.yaml").read_text("utf-8")
    assert (root / "CHANGELOG.md").read_text("utf-8").startswith(f"# Changelog\n\n## {version} ")


def test_no_pickle_is_read_from_a_store_or_a_file() -> None:
    """``SECURITY.md`` promises that whoever writes to a store cannot run code."""
    reading = re.compile(r"pickle\.loads?\(|marshal|\beval\(|\bexec\(|allow_pickle=True")
    package = Path(optuna_treecv.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if reading.search(path.read_text("utf-8")) and path.name != "testing.py"
    }
    assert found == {"plans/fold_task.py"}  # from a cache in memory, and errors of workers


if __name__ == "__main__":
    LIST.write_text("\n".join(public_api()) + "\n", "utf-8")
    print(f"{LIST}, of optuna_treecv {optuna_treecv.__version__}")
