"""A study in the terminal: its note as plain text."""

import re
from typing import Any

import optuna

from optuna_treecv.reporting.evaluations import Evaluations
from optuna_treecv.reporting.note import note_of


def study_of(storage: str, name: str | None) -> optuna.Study:
    """Return the study of this name in an Optuna storage, or its only one.

    Raises
    ------
    ValueError
        If there is none, or it is not said which.
    """
    rdb = optuna.storages.RDBStorage(storage, skip_table_creation=True)
    names = optuna.get_all_study_names(rdb)
    if name is None and len(names) == 1:
        (name,) = names
    if name not in names:
        which = ", ".join(map(repr, names)) or "none, since the storage is empty"
        raise ValueError(f"--study-name must be the name of a study: {which}, got {name!r}")
    return optuna.load_study(study_name=name, storage=rdb)


def explained(study: optuna.Study, store: Any) -> str:
    """Return what a study has found, as text: its note with columns one below the other."""
    lines = _plain_lines(note_of(Evaluations(study, store)))
    tables: dict[int, list[list[str]]] = {}  # by the number of their first line
    first = 0
    for number, line in enumerate(lines):
        if line.startswith("|"):
            first = number if not lines[number - 1].startswith("|") else first
            row = [one.strip().removesuffix("&emsp;") for one in line.split("|")[1:-1]]
            tables.setdefault(first, []).append(row)
    for begin, rows in tables.items():
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for number, row in enumerate(rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines[begin + number] = "  ".join(cells).rstrip()
        lines[begin + 1] = "  ".join("-" * width for width in widths)
        if not lines[begin]:  # a table without a head
            lines[begin + 1] = ""
    return re.sub("\n{3,}", "\n\n", "\n".join(lines))


def _plain_lines(note: str) -> list[str]:
    """Return the lines of a note without marks of bold text, but for those in code."""
    lines, is_code = [], False
    for line in note.splitlines():
        is_code ^= line.startswith("```")
        parts: list[str] = re.split(r"(`+[^`].*?`+)", line)
        plain = [re.sub(r"\*\*([^*]+)\*\*", r"\1", one) for one in parts[::2]]
        parts[::2] = plain
        lines.append(line if is_code else "".join(parts))
    return lines
