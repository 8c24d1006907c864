"""Identify the code of classes and functions: by module and version, or by content.

Code in ``site-packages`` is identified by module and name. Other code is identified by its
content, because it may change without changing its name: in scripts, notebooks, checkouts and
editable installations. For example, running a notebook cell again defines a new function with the
same name, and ``%autoreload`` modifies classes in place.

The content consists of the instructions, constants, defaults and closures of functions, the
attributes of classes, and, recursively, the content of everything that they refer to by a global
name. The content of functions in other modules is not included: ``helpers.f`` is identified by its
name in the module ``helpers``.
"""

from collections.abc import Callable
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import Distribution
from importlib.metadata import distribution
from importlib.metadata import PackageNotFoundError
from importlib.metadata import packages_distributions
from operator import attrgetter
import os
from pathlib import Path
import platform
import sys
from types import BuiltinFunctionType
from types import CodeType
from types import FunctionType
from types import ModuleType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
# The folders into which pip and Debian install packages.
_INSTALL_FOLDERS = {"site-packages", "dist-packages"}
_CODE_ATTRIBUTES = (
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_flags",
    "co_names",
)
# The attributes by which methods, properties, cached functions and other descriptors refer to
# functions.
_WRAPPED_ATTRIBUTES = ("__func__", "__self__", "__wrapped__", "fget", "fset", "fdel")


@cache
def is_fixed(module: str) -> bool:
    """Return whether a module belongs to Python, to this package or to ``site-packages``."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == _PACKAGE:
        return top != "__main__"
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not _INSTALL_FOLDERS.isdisjoint(Path(file).parts)


def content_of_code(
    value: Any, encode: Callable[[Any], bytes], met: dict[int, Any]
) -> Iterator[bytes]:
    """Yield bytes that identify the content of a class, a function, a module or a descriptor.

    Parameters
    ----------
    value : class, function, module or descriptor
    encode : callable
        (value) -> bytes. Encodes constants and attributes, which may be code themselves.
    met : dict
        The values encountered so far, by ``id``; initially empty. It is needed because code may
        refer to itself.
    """
    if id(value) in met:
        yield b"%d" % list(met).index(id(value))
        return
    met[id(value)] = value
    module = str(getattr(value, "__module__", ""))
    name = getattr(value, "__qualname__", "")
    is_named = isinstance(value, type | FunctionType | BuiltinFunctionType) and "<" not in name
    yield f"{module}:{name}".encode()
    if isinstance(value, ModuleType):
        yield value.__name__.encode()
    elif is_named and is_fixed(module):
        pass  # the name suffices, except for lambdas and local functions, which have closures
    elif isinstance(value, type):
        yield from map(encode, value.__bases__)
        for name, attribute in sorted(vars(value).items()):
            if hasattr(type(attribute), "__get__") or not name.startswith("__"):
                yield name.encode()
                yield encode(attribute)
    elif isinstance(value, FunctionType):
        yield from map(encode, (value.__defaults__, value.__kwdefaults__))
        yield from _content_of(value.__code__, encode)
        for name, used in _used_by(value):
            yield name.encode()
            yield encode(used)
    else:
        for name in _WRAPPED_ATTRIBUTES:
            yield encode(getattr(value, name, None))
        yield from map(encode, getattr(value, "__dict__", {}).values())


def is_code(value: Any) -> bool:
    """Return whether a value is a class, a function, a module or a descriptor."""
    is_named = isinstance(value, type | ModuleType | BuiltinFunctionType)
    return is_named or hasattr(type(value), "__get__")  # as functions and properties have


def _content_of(code: CodeType, encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    """Yield bytes that identify compiled code; line numbers are ignored."""
    yield code.co_code
    yield from (encode(getattr(code, name)) for name in _CODE_ATTRIBUTES)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _content_of(constant, encode)
        else:
            yield encode(constant)


def _used_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a function's closure and the globals that it uses.

    Builtins are omitted.
    """
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the cell has no value yet
            yield name, cell.cell_contents
    for name in sorted(_names_in(function.__code__) & function.__globals__.keys()):
        yield name, function.__globals__[name]


def _names_in(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


# Modules of ufuncs. The ufuncs of SciPy, and of NumPy before 2.2, have no ``__module__``.
_MODULES_OF_UFUNCS = ("numpy", "scipy.special")

_packages = cache(packages_distributions)  # takes 0.2 s for 80 distributions


def _distributions(package: str) -> Iterator[Distribution]:
    """Yield the distributions that may contain a package, first the one with its name."""
    with suppress(PackageNotFoundError):
        yield distribution({"sklearn": "scikit-learn"}.get(package, package))
    yield from map(distribution, filter(None, _packages().get(package, ())))


def global_name(value: Any, name: str | None = None) -> tuple[str, str] | None:
    """Return the module and the name by which an object can be imported, or None.

    It is None if importing this name does not give the same object, as for lambdas and for classes
    defined inside a function.

    Parameters
    ----------
    value : object
    name : str, optional
        The name in the module, for objects without ``__qualname__`` and ``__name__``.
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


@cache
def installed_version(module: str) -> str | None:
    """Return the name and version of the distribution that contains a module, or None.

    It is None if the code may change without changing its version: in scripts, notebooks,
    checkouts on the path and editable installations.

    Parameters
    ----------
    module : str
        The name of an imported module.
    """
    top = module.partition(".")[0]
    if not is_fixed(module) or top == "__main__":
        return None
    if top in sys.stdlib_module_names:
        return f"Python {platform.python_version()}"
    file = str(sys.modules[module].__file__)
    for installed in _distributions(top):
        # Several distributions may share a package, and a folder may shadow an installed package.
        path = Path(os.path.relpath(file, str(installed.locate_file("")))).as_posix()
        if f"\n{path}," in f"\n{installed.read_text('RECORD') or ''}":
            return _version(installed)
    return None


def _version(installed: Distribution) -> str:
    # Different code from outside a package index may have the same version. Therefore, include a
    # digest of the record, which contains a hash of each file.
    record = installed.read_text("RECORD") if installed.read_text("direct_url.json") else None
    of_files = sha256(record.encode()).hexdigest() if record else ""
    return f"{installed.metadata['Name']} {installed.version} {of_files}".rstrip()
