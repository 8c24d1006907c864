"""The words of the package: the form of its messages, and phrases that it does not use."""

import ast
from collections.abc import Iterator
from pathlib import Path
import re

import pytest
from sources import MODULES
from sources import nodes_of
from sources import PACKAGE

KERNELS = sorted(path for end in ("pyx", "pxd", "pxi") for path in PACKAGE.rglob(f"*.{end}"))

#: Phrases that are no idiom of the field, or no idiom.
FORBIDDEN = [
    "would be right",
    "may be right",
    ", a clause",
    "says of",
    "say of",
    "lie elsewhere",
    "lies elsewhere",
    "is told",
    "are told",
    "so many",
    "of its own",
    "of their own",
    "by itself",
    "plain fit",
    "trained further",
    "take note of",
    "nobody",
    "Return what",
]

#: Names of variables that name no content.
EMPTY_NAMES = {"one", "some", "each", "its", "said", "asked", "found", "every", "own", "rest"}
WITHOUT_EMPTY_NAMES = (
    *("caching", "core", "crossval", "engines", "estimators", "numerics", "plans"),
    *("preprocessing", "rows", "scoring", "search", "selection", "storage", "study"),
)

#: How advice begins.
VERBS = "use|pass|create|set|give|add|evaluate"

WARN = {"warn", "warn_caller", "_warn_once"}


def text_of(node: ast.expr) -> str:
    """Return the text of a literal, with the source of expressions in braces; "" of others."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    return text_of(node.left) + text_of(node.right) if isinstance(node, ast.BinOp) else ""


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines and the texts of all errors and warnings of a module."""
    for node in nodes_of(path):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if isinstance(node, ast.Raise) or name in WARN:
            for text in filter(None, map(text_of, call.args)):
                yield node.lineno, text


def prose(path: Path) -> str:
    """Return a file with single spaces, without the marks of comments and ends of strings."""
    return re.sub(r"""(\bf?["']|["'#]|\s)+""", " ", path.read_text())


@pytest.mark.slow
def test_phrases_that_are_no_idiom_do_not_occur():
    forbidden = re.compile(rf"\b(?:{'|'.join(map(re.escape, FORBIDDEN))})\b")
    wrong = [
        f"{path.relative_to(PACKAGE)}: {phrase}"
        for path in MODULES + KERNELS
        for phrase in forbidden.findall(prose(path))
    ]
    assert wrong == []


@pytest.mark.slow
def test_messages_have_one_form():
    wrong = []
    for path in MODULES:
        for line, text in messages(path):
            if " " not in text or not re.match(r"\w+ (must|needs?)\b", text):
                continue  # a topic, or a warning, or a sentence about something else
            ends = text.endswith((".", "}", ")", " "))
            advice = re.search(rf"; (?!(?:{VERBS}) )[^;]*instead", text)
            if not ends or advice:
                wrong.append(f"{path.name}:{line}: {text}")
    assert wrong == []


def stored_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines and the names of variables and arguments."""
    for node in nodes_of(path):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


@pytest.mark.slow
def test_variables_name_their_content():
    wrong = [
        f"{path.name}:{line}: {name}"
        for folder in WITHOUT_EMPTY_NAMES
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for line, name in stored_names(path)
        if name in EMPTY_NAMES
    ]
    assert wrong == []
