"""Finds the entry of X that is no finite number, for error messages that name column and row."""

from __future__ import annotations

from collections.abc import Generator
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
def naming_entries(X: Any, order: np.ndarray | None = None) -> Generator[None]:
    """Replace errors that rows which are no finite numbers cause, by one that names the entry.

    Parameters
    ----------
    X : array, sparse matrix or data frame
    order : ndarray, default=None
        Row i of X is row ``order[i]`` of the data as given.

    Raises
    ------
    ValueError
        In place of an error of scikit-learn or NumPy. If all entries of X are finite, because a
        step of a Pipeline made the others, it is that error itself.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        sentence = _wrong_entry(X, order) if _NO_NUMBERS.search(str(error)) else None
        if sentence is None:
            raise
        raise ValueError(sentence) from error


def _wrong_entry(X: Any, order: np.ndarray | None) -> str | None:
    """Return a sentence about the first column with a wrong entry, if there is one."""
    if hasattr(X, "tocoo"):
        entries = X.tocoo()
        is_wrong = ~np.isfinite(entries.data)
        if not np.any(is_wrong):
            return None
        column = entries.col[is_wrong].min()
        there = np.flatnonzero(is_wrong & (entries.col == column))
        return _sentence(entries.data, there, entries.row, order, column)
    if hasattr(X, "dtype") and X.dtype.kind not in "biufO":
        return f"X must hold numbers, got type {X.dtype}."
    for j in range(X.shape[1]):
        values = X.iloc[:, j].to_numpy() if hasattr(X, "iloc") else np.asarray(X[:, j])
        there = np.flatnonzero([not _is_finite(value) for value in values.tolist()])
        if len(there):
            column = X.columns[j] if hasattr(X, "columns") else j
            return _sentence(values, there, np.arange(len(values)), order, column)
    return None


def _is_finite(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except (OverflowError, TypeError, ValueError):
        return False


def _sentence(
    values: np.ndarray, there: np.ndarray, rows: np.ndarray, order: np.ndarray | None, column: Any
) -> str:
    """Return the sentence about the first of the wrong values, in the order as given."""
    given = rows[there] if order is None else order[rows[there]]
    first = there[np.argmin(given)]
    where = f"in column {_plain(column)!r}, row {given.min()}"
    value = _plain(values[first])
    if not isinstance(value, float):
        return f"X must hold numbers, got {value!r} {where}."
    what = "NaN" if np.isnan(value) else "infinity"
    return f"Input X contains {what} {where}, but must hold finite numbers."


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
