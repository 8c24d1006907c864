"""Finds the entry of X that is no finite number, for error messages that name column and row."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Sequence
from contextlib import contextmanager
import re
from typing import Any

import numpy as np

# The errors of scikit-learn and NumPy where rows hold something else than finite numbers.
_NO_NUMBERS = re.compile(
    "contains (NaN|infinity)|could not convert string|must be a string or a real number|"
    "arrays of bytes/strings|Complex data|unsupported operand type"
)


@contextmanager
def naming_entries(
    X: Any, order: np.ndarray | None = None, names: Sequence[Any] | None = None
) -> Generator[None]:
    """Replace errors that rows which are no finite numbers cause, by one that names the entry.

    Parameters
    ----------
    X : array, sparse matrix or data frame
    order : ndarray, default=None
        Row i of X is row ``order[i]`` of the data as given.
    names : sequence, default=None
        The names of the columns; None: those of a data frame, and the numbers of others.

    Raises
    ------
    ValueError
        In place of an error of scikit-learn or NumPy. If all entries of X are finite, because a
        step of a Pipeline made the others, it is that error itself.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        said = _NO_NUMBERS.search(str(error))
        sentence = None if said is None else _wrong_entry(X, order, names, said[1] is None)
        if sentence is None:
            raise
        raise ValueError(sentence) from error


def _wrong_entry(
    X: Any, order: np.ndarray | None, names: Sequence[Any] | None, of_type: bool
) -> str | None:
    """Return a sentence about the first column with a wrong entry, if there is one.

    Where the error is ``of_type``, an entry that is no number is looked for first: others may be
    missing rightly, since an imputer fills them.
    """
    if len(getattr(X, "shape", ())) != 2:
        return None
    if not hasattr(X, "tocoo") and hasattr(X, "dtype") and X.dtype.kind not in "biufO":
        return f"X must hold numbers, got type {X.dtype}."
    entry = _find_entry(X, _is_number, order) if of_type else None
    entry = entry or _find_entry(X, _is_finite, order)
    if entry is None:
        return None
    value, column, row = entry
    called = getattr(X, "columns", range(X.shape[1])) if names is None else names
    where = f"in column {_plain(called[column])!r}, row {row}"
    if not isinstance(value, float):
        return f"X must hold numbers, got {value!r} {where}."
    what = "NaN" if np.isnan(value) else "infinity"
    return f"Input X contains {what} {where}, but must hold finite numbers."


def _find_entry(
    X: Any, is_right: Callable[[Any], bool], order: np.ndarray | None
) -> tuple[Any, int, int] | None:
    """Return the wrong entry of the first column that has one, its column, and its row as given.

    Of several wrong entries in a column it is the one that comes first in the data as given.
    """

    def first(
        values: np.ndarray, wrong: np.ndarray, rows: np.ndarray, column: int
    ) -> tuple[Any, int, int]:
        given = rows[wrong] if order is None else order[rows[wrong]]
        return _plain(values[wrong[np.argmin(given)]]), int(column), int(given.min())

    if hasattr(X, "tocoo"):
        entries = X.tocoo()
        wrong = np.flatnonzero([not is_right(value) for value in entries.data.tolist()])
        if not len(wrong):
            return None
        column = entries.col[wrong].min()
        wrong = wrong[entries.col[wrong] == column]
        return first(entries.data, wrong, entries.row, column)
    for column in range(X.shape[1]):
        values = X.iloc[:, column].to_numpy() if hasattr(X, "iloc") else np.asarray(X[:, column])
        wrong = np.flatnonzero([not is_right(value) for value in values.tolist()])
        if len(wrong):
            return first(values, wrong, np.arange(len(values)), column)
    return None


def _is_finite(value: Any) -> bool:
    """Return whether a value is a finite number, or a text of one."""
    try:
        return bool(np.isfinite(float(value)))
    except (OverflowError, TypeError, ValueError):
        return False


def _is_number(value: Any) -> bool:
    """Return whether NumPy makes a float of a value, be it NaN; None becomes NaN."""
    try:
        float(value)
    except (TypeError, ValueError):
        return value is None
    except OverflowError:
        pass
    return True


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as Python's, any other value as it is."""
    return value.item() if isinstance(value, np.generic) else value
