"""Names that pickles of earlier versions hold, and where these classes are now."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
import sys
from types import ModuleType
from typing import Any

#: Modules that are gone, and where their classes are now.
MOVED = {
    "crossval.engine": "core.repeat",
    "crossval.intervals": "core.intervals",
    "crossval.result": "core.result",
    "crossval.routing": "core.routing",
    "crossval.settings": "core.settings",
    "crossval.steps": "core.steps",
    "crossval.task": "core.cross_validation",
    "crossval.tested": "core.tested",
}
RENAMED = {"Task": "CrossValidation"}


def _find(module: str, name: str) -> Any:
    """Return a class by the name that it had in a module that is gone."""
    now = import_module(f"optuna_treecv.{MOVED[module]}")
    return getattr(now, RENAMED.get(name, name))


class _Moved(MetaPathFinder, Loader):
    """Stands for modules that are gone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_gone = fullname.removeprefix("optuna_treecv.") in MOVED
        return ModuleSpec(fullname, self) if is_gone else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix("optuna_treecv.")
        vars(module)["__getattr__"] = partial(_find, name)


sys.meta_path.insert(0, _Moved())
