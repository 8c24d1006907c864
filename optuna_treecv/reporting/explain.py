"""A study in the terminal: its note as plain text."""

from itertools import groupby
import re
from typing import Any

import optuna
from optuna.storages import RDBStorage

from optuna_treecv.reporting.evaluations import Evaluations
from optuna_treecv.reporting.note import cells_of
from optuna_treecv.reporting.note import note_of


def study_of(storage: RDBStorage, name: str | None) -> optuna.Study:
    """Return the study of this name in an Optuna storage, or its only one.

    Raises
    ------
    ValueError
        If there is none, or it is not said which.
    """
    names = optuna.get_all_study_names(storage)
    if name is None and len(names) == 1:
        (name,) = names
    if name not in names:
        which = ", ".join(map(repr, names)) or "none, since the storage is empty"
        raise ValueError(f"--study-name must be the name of a study: {which}, got {name!r}")
    return optuna.load_study(study_name=name, storage=storage)


def explained(study: optuna.Study, store: Any) -> str:
    """Return what a study has found, as text: its note with columns one below the other."""
    lines: list[str] = []
    note = _plain_lines(note_of(Evaluations(study, store)))
    for is_table, block in groupby(note, key=lambda line: line.startswith("|")):
        of_block = list(block)
        lines += _aligned(of_block) if is_table else of_block
    return re.sub("\n{3,}", "\n\n", "\n".join(lines))


def _aligned(table: list[str]) -> list[str]:
    """Return the lines of a Markdown table with columns of equal width; its head may be empty."""
    rows = [cells_of(line) for line in table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines[1] = "  ".join("-" * width for width in widths) if lines[0] else ""
    return lines


def _plain_lines(note: str) -> list[str]:
    """Return the lines of a note without marks of bold text, but for those in code."""
    lines, is_code = [], False
    for line in note.splitlines():
        is_code ^= line.startswith("```")
        parts: list[str] = re.split(r"(`+[^`].*?`+)", line)
        parts[::2] = [re.sub(r"\*\*([^*]+)\*\*", r"\1", one) for one in parts[::2]]
        lines.append(line if is_code else "".join(parts))
    return lines
