"""Writes the stubs of the compiled modules from their Cython sources.

    python tests/stubs.py

The declarations in C give the types of numbers and arrays, and annotations those of other objects.
An object without an annotation may be anything. ``tests/package/test_stubs.py`` compares the stubs
in ``optuna_treecv`` with what this writes.
"""

from __future__ import annotations

from pathlib import Path
import re

PACKAGE = Path(__file__).resolve().parents[1] / "optuna_treecv"
KERNELS = sorted(PACKAGE.rglob("*.pyx"))
MOST_COLUMNS = 99

#: What Python sees of a source: a constant, a class, or a function, method or property.
SEEN = re.compile(
    r"^(?P<constant>[A-Z]\w*)(?:: (?P<type>.+?))? = "
    r"|^cdef class (?P<owner>\w+)(?P<base>.*):$"
    r"|^(?P<property>    @property\n)?(?P<indent> *)def (?P<name>\w+)\((?P<arguments>(?s:.*?))\)"
    r"(?: -> (?P<returned>.+))?:\n(?P<body>(?:\n|(?P=indent) .*\n)*)",
    re.MULTILINE,
)
ATTRIBUTE = re.compile(r"^    cdef readonly (\w+) (\w+)", re.MULTILINE)
ARGUMENT = re.compile(
    r"(?P<c_type>(?:\[[^\]]*\]|[^:=\[])*?)(?P<name>\w+)(?P<none> not None| or None)?"
    r"(?:: (?P<type>[^=]+?))?(?: ?= ?(?P<default>.+))?"
)
#: Where a stub imports a name from, if it uses it.
IMPORTED = {"Any": "from typing import Any", "np": "import numpy as np"}


def python_type(c_type: str) -> str:
    """Return the type of what Python gives or gets for a C type."""
    if c_type.endswith("]"):
        return "np.ndarray"  # a memoryview
    if re.fullmatch(r"int|u?int\d+_t|Py_ssize_t", c_type):
        return "int"
    return {"": "Any", "bint": "bool", "double": "float", "floating": "float"}.get(c_type, c_type)


def argument(declared: str) -> str:
    """Return an argument as a stub declares it."""
    found = ARGUMENT.fullmatch(declared)
    assert found is not None, declared
    if found["name"] == "self":
        return "self"
    of_type = found["type"] or python_type(found["c_type"].removeprefix("const ").strip())
    if found["none"] == " or None" or (found["c_type"] and found["default"] == "None"):
        of_type += " | None"
    return f"{found['name']}: {of_type}" + (f" = {found['default']}" if found["default"] else "")


def function(found: re.Match[str]) -> str:
    """Return the declaration of a function, method or property."""
    indent = found["indent"]
    listed = re.sub(r"#.*", "", found["arguments"])
    listed = re.split(r",(?![^\[(]*[\])])", listed)  # not at commas in brackets
    arguments = [argument(one.strip()) for one in listed if one.strip()]
    gives = re.search(r"^ *return\b.*\S", found["body"], re.MULTILINE)
    end = f") -> {found['returned'] or ('Any' if gives else 'None')}: ...\n"
    line = f"{indent}def {found['name']}({', '.join(arguments)}{end}"
    if len(line) > MOST_COLUMNS + 1:
        inside = f"{indent}    {', '.join(arguments)}\n"
        if len(inside) > MOST_COLUMNS + 1:
            inside = "".join(f"{indent}    {one},\n" for one in arguments)
        line = f"{indent}def {found['name']}(\n{inside}{indent}{end}"
    return f"{indent}@property\n" * bool(found["property"]) + line


def attributes(owner: str, text: str) -> str:
    """Return the attributes of a class that Python can read."""
    body = re.search(rf"^cdef class {owner}\b.*:\n((?:\n|    .*\n)*)", text, re.MULTILINE)
    found = ATTRIBUTE.findall(body[1] if body else "")
    return "".join(f"    {name}: {python_type(c_type)}\n" for c_type, name in found)


def stub(source: Path) -> str:
    """Return the stub of a module, or "" if Python sees nothing of it."""
    text = source.read_text()
    declared = source.with_suffix(".pxd")
    declarations = declared.read_text() if declared.exists() else text
    parts: list[str] = []
    previous = None
    for found in SEEN.finditer(text):
        kind = next(name for name in ("constant", "owner", "name") if found[name])
        if not found["indent"] and (kind != previous or kind == "owner"):
            parts.append("")
        if kind == "constant":
            parts[-1] += f"{found['constant']}: {found['type'] or 'Any'}\n"
        elif kind == "owner":
            parts[-1] = f"class {found['owner']}{found['base']}:\n"
            parts[-1] += attributes(found["owner"], declarations)
        else:
            parts[-1] += function(found)
        previous = kind if not found["indent"] else previous
    content = "\n".join(re.sub(r":\n\Z", ": ...\n", part) for part in parts)
    imports = dict(IMPORTED)
    for included in re.findall(r'^include "(.+)"$', text, re.MULTILINE):
        declarations += source.with_name(included).read_text()
    cimport = re.compile(r"^from (optuna_treecv\S+) cimport (\w+)$", re.MULTILINE)
    for module, name in cimport.findall(declarations + text):
        imports[name] = f"from {module} import {name}"
    used = [line for name, line in imports.items() if re.search(rf"\b{name}\b", content)]
    lines = "\n\n".join(
        "\n".join(group)
        for kind in ("from typing", "import", "from optuna")
        if (group := [line for line in used if line.startswith(kind)])
    )
    return f"{lines}\n\n{content}" if lines else content


if __name__ == "__main__":
    for source in KERNELS:
        written = source.with_suffix(".pyi")
        if text := stub(source):
            written.write_text(text)
        else:
            written.unlink(missing_ok=True)
