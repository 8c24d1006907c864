"""Names classes and functions by their content, where their code may change under one name.

That is code of scripts, notebooks, checkouts and editable installations: a cell that is run again
makes another function of the same name, and ``%autoreload`` changes a class in place. Code in
``site-packages`` is known by its module and name.

A name covers the instructions, constants, defaults and closures of functions, the attributes of
classes, and the same of what they refer to by a global name. Attributes of modules are not
covered: ``helpers.f`` is known as ``f`` of the module ``helpers``.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from functools import cache
from pathlib import Path
import sys
from types import BuiltinFunctionType
from types import CodeType
from types import FunctionType
from types import ModuleType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
# The folders into which pip and Debian install packages.
_INSTALLED = {"site-packages", "dist-packages"}
_OF_CODE = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_names")
# What methods, properties, cached functions and the like are made of.
_PARTS = ("__func__", "__self__", "__wrapped__", "fget", "fset", "fdel")


@cache
def is_fixed(module: str) -> bool:
    """Return whether the code of a module is Python's, this package's or in ``site-packages``."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == _PACKAGE:
        return top != "__main__"
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not _INSTALLED.isdisjoint(Path(file).parts)


def content_of_code(
    value: Any, encode: Callable[[Any], bytes], met: dict[int, Any]
) -> Iterator[bytes]:
    """Yield what stands for a class, a function or a part of a class.

    Parameters
    ----------
    value : class, function, module or descriptor
    encode : callable
        (value) -> bytes, for the constants and attributes on the way, which may be code again.
    met : dict
        What was met before, by its identity; at first empty. A function may refer to itself.
    """
    if id(value) in met:
        yield b"%d" % list(met).index(id(value))
        return
    met[id(value)] = value
    module = str(getattr(value, "__module__", ""))
    name = getattr(value, "__qualname__", "")
    yield f"{module}:{name}".encode()
    if isinstance(value, ModuleType):
        yield value.__name__.encode()
    elif (
        isinstance(value, type | FunctionType | BuiltinFunctionType)
        and is_fixed(module)
        and "<" not in name
    ):
        pass  # but a lambda or a function in a function has a closure
    elif isinstance(value, type):
        yield from map(encode, value.__bases__)
        for name, attribute in sorted(vars(value).items()):
            if _is_part(attribute) or not name.startswith("__"):
                yield name.encode()
                yield encode(attribute)
    elif isinstance(value, FunctionType):
        yield from map(encode, (value.__defaults__, value.__kwdefaults__))
        yield from _content_of(value.__code__, encode)
        for name, one in _used_by(value):
            yield name.encode()
            yield encode(one)
    else:
        for name in _PARTS:
            yield encode(getattr(value, name, None))
        yield from map(encode, getattr(value, "__dict__", {}).values())


def is_code(value: Any) -> bool:
    """Return whether a value is a class, a function, a module or a part of a class."""
    return isinstance(value, type | ModuleType | BuiltinFunctionType) or _is_part(value)


def _is_part(value: Any) -> bool:
    """Return whether a value is a function, or turns into one where it is an attribute."""
    return hasattr(type(value), "__get__")


def _content_of(code: CodeType, encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    """Yield the parts of compiled code, but for the lines on which it stands."""
    yield code.co_code
    yield from (encode(getattr(code, name)) for name in _OF_CODE)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _content_of(constant, encode)
        else:
            yield encode(constant)


def _used_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that a function takes from outside, but for Python's own."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            pass
    for name in sorted(_names_in(function.__code__) & function.__globals__.keys()):
        yield name, function.__globals__[name]


def _names_in(code: CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))
