"""Names of classes and functions that mean the same code in every later process."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.metadata import Distribution
from importlib.metadata import distributions
from importlib.metadata import packages_distributions
import json
from operator import attrgetter
from pathlib import Path
import platform
import sys
from typing import Any

# The ufuncs of SciPy, and those of NumPy before 2.2, do not tell the module that they are from.
_MODULES_OF_UFUNCS = ("numpy", "scipy.special")


def global_name(value: Any, name: str | None = None) -> tuple[str, str] | None:
    """Return the module and the name under which exactly this object is found.

    None if there is no such name, as for a lambda or a class that was defined inside a function.

    Parameters
    ----------
    value : object
    name : str, optional
        The name in the module, if the object does not know it.
    """
    name = name or getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return None
    for module in (getattr(value, "__module__", None), *_MODULES_OF_UFUNCS):
        try:
            if module in sys.modules and attrgetter(name)(sys.modules[module]) is value:
                return module, name
        except AttributeError:
            continue
    return None


def modules_of(value: Any, module: str) -> set[str]:
    """Return the modules that the code of a class or function of this module is from.

    These are those of a class's bases too. Bases from Python's own library are left out.
    """
    bases = value.__mro__ if isinstance(value, type) else ()
    modules = {base.__module__ for base in bases}
    return {module} | {
        name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names
    }


@cache
def installed_version(module: str) -> str | None:
    """Return the name and version of the distribution that a module was installed from.

    None if the code of the module may change under one version: in scripts, in notebooks, in
    checkouts on the path and in editable installations. None also where the installer did not
    write down which files it installed (the packages of Debian).

    Parameters
    ----------
    module : str
        The name of an imported module.
    """
    top = module.partition(".")[0]
    if top == "builtins":
        return f"Python {platform.python_version()}"
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return None
    # "a.b" is a/b.py, or a/b/__init__.py if it is a package.
    depth = module.count(".") + 1 + hasattr(sys.modules[module], "__path__")
    path = "/".join(Path(file).parts[-depth:])
    for name in dict.fromkeys(_packages().get(top, ())):
        for distribution in distributions(name=name):
            if _is_from(distribution, path, file):
                return _version(distribution)
    return None


@cache
def _packages() -> Any:
    return packages_distributions()  # takes 0.1 s in an environment of 80 distributions


def _is_from(distribution: Distribution, path: str, file: str) -> bool:
    """Return whether a distribution installed this file.

    Several distributions may share a top-level package, and a folder on the path may hide an
    installed package of the same name. So the file itself is looked up.
    """
    record = distribution.read_text("RECORD") or ""
    if f"\n{path}," not in f"\n{record}":
        return False
    installed = Path(str(distribution.locate_file(path)))
    return installed.exists() and installed.samefile(file)


def _version(distribution: Distribution) -> str | None:
    found = f"{distribution.metadata['Name']} {distribution.version}"
    source = distribution.read_text("direct_url.json")
    if source is None:
        return found
    if json.loads(source).get("dir_info", {}).get("editable"):
        return None
    # Not from a package index, so that other code may be installed under the same version. The
    # record holds a hash of each file.
    record = distribution.read_text("RECORD") or ""
    return f"{found} {sha256(record.encode()).hexdigest()}"
