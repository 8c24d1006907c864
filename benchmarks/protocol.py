"""How much one must know to own the core: counts of the protocol between it and the engines.

python benchmarks/protocol.py
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import fields
from pathlib import Path
import re

import optuna_treecv
from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Engine
from optuna_treecv.core.engine import Plan

PACKAGE = Path(optuna_treecv.__file__).parent
PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"


def code_lines(source: str) -> int:
    """Return the lines that are neither blank nor of comments, imports or docstrings."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        is_text = isinstance(body, list) and body and isinstance(body[0], ast.Expr)
        if is_text and isinstance(body[0].value, ast.Constant):
            left_out |= set(range(body[0].lineno, body[0].end_lineno + 1))
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, node.end_lineno + 1))
    return sum(
        number not in left_out and bool(line.strip()) and not line.strip().startswith("#")
        for number, line in enumerate(source.splitlines(), 1)
    )


def main() -> None:
    sources = {path.relative_to(PACKAGE): path.read_text() for path in PACKAGE.rglob("*.py")}
    every = "\n".join(sources.values())
    of_engine = {field.name for field in fields(Engine)}
    of_plan = {"capabilities", "reason", "name"} | {
        name for name, one in vars(Plan).items() if callable(one) and name[0] != "_"
    }
    of_core = {"with_request"}  # no plan overrides it
    of_core |= {name for name, one in vars(Plan).items() if isinstance(one, property)}
    classes = Counter(
        node.name
        for source in sources.values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    )
    toy = re.findall(
        r"```python\n(.*?)```", PAGE.read_text().partition("## Add an engine")[2], flags=re.DOTALL
    )[0]
    core = [source for path, source in sources.items() if path.parts[0] == "core"]
    names = sorted((of_engine | of_plan) - of_core)
    for what, count in {
        "job, request, plan, candidate: Any": len(
            re.findall(r"\b(?:job|request|plan|candidate): Any\b", every)
        ),
        "methods and attributes of an engine and its plan": len(names),
        "capabilities of a plan": len(fields(Capabilities)),
        "events": len(re.findall(r"^Event = (.*)$", every, re.MULTILINE)[0].split("|")),
        "places that fall back to fits": every.count("self._refit_folds("),
        "class names that are defined twice": sum(count > 1 for count in classes.values()),
        "code lines of the toy engine": code_lines(toy),
        "code lines of the core": sum(map(code_lines, core)),
    }.items():
        print(f"{count:6,}  {what}")
    print(" ".join(names))


if __name__ == "__main__":
    main()
