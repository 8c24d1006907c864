"""Says in one sentence which step before a learner cannot take which column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Sequence
from contextlib import contextmanager
from importlib import import_module
from math import isinf
from numbers import Real
import re
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import Pipeline

from optuna_treecv.learners.steps.running import PASSED
from optuna_treecv.rows.entries import find_entry
from optuna_treecv.rows.entries import is_number
from optuna_treecv.rows.entries import plain

# What scikit-learn says of columns, of their names, and of the form of the rows.
_NOT_THERE = (
    "not columns of the dataframe|only supported for dataframes|all features must be in|"
    "is not in list"
)
_SAME_NAMES = "Expected unique column names"
_NO_TABLE = "2-dimensional container|Expected 2D array, got 1D"
_NO_COLUMNS = r"0 feature\(s\)"
# A step for texts takes a table for the names of its columns, so it returns a row for each.
_NO_TEXTS = (
    "out of range|concatenation axis|n_samples=1|inconsistent numbers of sam|attribute 'lower'"
)
# What it says of entries. With "in column", ``naming_entries`` has found them already.
_NAN = "X contains NaN(?! in column)"
_INFINITY = "X contains infinity(?! in column)"
_NO_NUMBER = (
    "could not convert string|must be a string or a real number|arrays of bytes/strings|"
    "unsupported operand type|does not support argument|DateTime64DType|TimeDelta64DType"
)
_BOTH_KINDS = "uniformly strings or numbers"
_OF_ENTRIES = f"{_NAN}|{_INFINITY}|{_NO_NUMBER}|{_BOTH_KINDS}"
_ANY = f"{_NOT_THERE}|{_SAME_NAMES}|{_NO_TABLE}|{_NO_COLUMNS}|{_NO_TEXTS}|{_OF_ENTRIES}"

# So many names of columns are listed.
_MOST_NAMES = 10


@contextmanager
def naming_steps(estimator: Any, X: Any) -> Generator[None]:
    """Replace errors of steps before a learner by a sentence that names the step and the column.

    The steps are done again, to find the one that fails. If none does, or if scikit-learn's
    sentence says as much, the error is left as it is.

    Parameters
    ----------
    estimator : estimator
        Errors of estimators that are no Pipelines are left as they are.
    X : the rows as given
    """
    try:
        yield
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        sentence = None
        if type(estimator) is Pipeline and re.search(_ANY, str(error)):
            try:
                sentence = _sentence(estimator.steps, X, str(error))
            except Exception:  # noqa: BLE001  # steps may raise anything, and need y perhaps
                pass
        if sentence is None:
            raise
        raise ValueError(sentence) from error


class _Rows(NamedTuple):
    """Rows on their way through the steps.

    Attributes
    ----------
    X : rows
    names : list or None
        The names of the columns as given, or their numbers; None if a step has made the columns.
    """

    X: Any
    names: list[Any] | None

    @property
    def is_table(self) -> bool:
        return len(np.shape(self.X)) == 2

    def select(self, columns: Any, numbers: list[int]) -> _Rows:
        """Return some columns: as a ColumnTransformer has them, and by their numbers."""
        names = None if self.names is None else [self.names[number] for number in numbers]
        return _Rows(_indexing()._safe_indexing(self.X, columns, axis=1), names)


# Each of these returns None if it finds nothing wrong, or nothing to add to what was ``said``.


def _sentence(steps: Sequence[tuple[str, Any]], X: Any, said: str) -> str | None:
    """Return a sentence about the names of columns, a step, or the rows that the learner gets."""
    if re.search(_SAME_NAMES, said):
        name, n_times = Counter(X.columns).most_common(1)[0]
        return f"X must have columns of different names, got {name!r} {n_times} times."
    rows = _Rows(X, None)
    if rows.is_table:
        rows = _Rows(X, list(X.columns) if hasattr(X, "columns") else list(range(X.shape[1])))
    *before, (name, last) = steps
    sentence = _of_steps(before, "", rows, said)
    if sentence is not None:
        return sentence
    fitted = clone(Pipeline(before)).fit(X)
    names = fitted.get_feature_names_out().tolist()
    return _refused(_called(name, last), _Rows(fitted.transform(X), names), said)


def _of_steps(steps: Sequence[tuple[str, Any]], inside: str, rows: _Rows, said: str) -> str | None:
    """Return a sentence about the first step that cannot take the rows."""
    for name, step in steps:
        if step not in PASSED:
            sentence = _of_step(inside + name, step, rows, said)
            if sentence is not None:
                return sentence
            rows = _Rows(_done(step, rows.X), None)
    return None


def _of_step(name: str, step: Any, rows: _Rows, said: str) -> str | None:
    if type(step) is Pipeline:
        return _of_steps(step.steps, f"{name}__", rows, said)
    if type(step) is FeatureUnion:
        parts = [(part, one, rows) for part, one in step.transformer_list]
    elif type(step) is ColumnTransformer:
        selected = _selected(name, step, rows)
        if isinstance(selected, str):
            return selected
        parts = selected
    else:
        return _of_single(_called(name, step), step, rows, said)
    for part, one, its_rows in parts:
        if one not in (*PASSED, "drop"):
            sentence = _of_step(f"{name}__{part}", one, its_rows, said)
            if sentence is not None:
                return sentence
    return None


def _selected(
    name: str, step: ColumnTransformer, rows: _Rows
) -> list[tuple[str, Any, _Rows]] | str:
    """Return the parts of a ColumnTransformer with their rows, or what is wrong with a column."""
    left = set(range(rows.X.shape[1]))
    parts = []
    for part, one, columns in step.transformers:
        columns = columns(rows.X) if callable(columns) else columns
        try:
            numbers = _indexing()._get_column_indices(rows.X, columns)
        except ValueError as error:
            if rows.names is None or not re.search(_NOT_THERE, str(error)):
                raise
            return _wrong_columns(_called(name, step), part, columns, rows.X)
        left -= set(numbers)
        if numbers:
            parts.append((part, one, rows.select(columns, numbers)))
    if left:
        numbers = sorted(left)
        parts.append(("remainder", step.remainder, rows.select(numbers, numbers)))
    return parts


def _wrong_columns(called: str, part: str, columns: Any, X: Any) -> str:
    """Return a sentence about columns, given as names, numbers or a mask, that X does not have."""
    ends = (columns.start, columns.stop) if isinstance(columns, slice) else columns
    asked = [one for one in np.atleast_1d(ends).tolist() if one is not None]
    n_columns = X.shape[1]
    if isinstance(asked[0], bool):
        return (
            f"columns of {part!r} in {called} must be a mask with an entry for each of the "
            f"{n_columns} columns of X, got {len(asked)} entries."
        )
    if not isinstance(asked[0], str):
        missing = [one for one in asked if not -n_columns <= one < n_columns]
        there = f"{n_columns} columns"
    elif hasattr(X, "columns"):
        missing = [one for one in asked if one not in X.columns]
        there = _names(list(X.columns))
    else:
        return (
            f"X must be a data frame with the {_columns(asked)}, which {called} asks for, got "
            f"{type(X).__name__} of shape {X.shape}."
        )
    return f"X must have the {_columns(missing)}, which {called} asks for, got {there}."


def _of_single(called: str, step: Any, rows: _Rows, said: str) -> str | None:
    """Return a sentence about a step without parts."""
    if isinstance(step, CountVectorizer | HashingVectorizer) and rows.is_table:
        return (
            f"X must reach {called} as one column of texts, got {_listed(rows)} as a table; a "
            "ColumnTransformer passes one column if its name is not in a list."
        )
    try:
        after = _done(step, rows.X)
    except Exception as error:  # noqa: BLE001  # a step may raise anything
        return _refused(called, rows, str(error))
    has_lost_all = after.shape[1] == 0 and isinstance(step, SimpleImputer)
    if has_lost_all and re.search(_NO_COLUMNS, said):
        one = "one of " if rows.X.shape[1] > 1 else ""
        return (
            f"X must hold a value in {one}{_listed(rows)} for {called}, which leaves out columns "
            "without any, and no other column is left; keep_empty_features=True would keep them."
        )
    return None


def _refused(called: str, rows: _Rows, said: str) -> str | None:
    """Return a sentence for the error of a step or a learner."""
    if not rows.is_table and rows.names and re.search(_NO_TABLE, said):
        (name,) = rows.names
        return (
            f"columns must be a list for {called}, which takes a table, got {name!r}; "
            f"[{name!r}] would be right."
        )
    if not rows.is_table:
        return None
    if re.search(_BOTH_KINDS, said):
        return _both_kinds(called, rows)
    if re.search(_NO_NUMBER, said):
        return _wrong_entry(called, rows, "numbers", is_number)
    if re.search(_NAN, said):
        return _wrong_entry(called, rows, "finite numbers", _is_not_nan)
    if re.search(_INFINITY, said):
        return _wrong_entry(called, rows, "finite numbers", _is_not_infinite)
    return None


def _wrong_entry(
    called: str, rows: _Rows, what: str, is_right: Callable[[Any], bool]
) -> str | None:
    found = find_entry(rows.X, is_right)
    if found is None:
        return None
    value = repr(found.value)
    if isinstance(found.value, float):
        value = "NaN" if np.isnan(found.value) else "infinity"
    column = "" if rows.names is None else f"column {plain(rows.names[found.column])!r}, "
    return f"X must hold {what} for {called}, got {value} in {column}row {found.row}."


def _both_kinds(called: str, rows: _Rows) -> str | None:
    for number, name in enumerate(rows.names or ()):
        column = _indexing()._safe_indexing(rows.X, [number], axis=1)
        text = find_entry(column, lambda value: not isinstance(value, str))
        other = find_entry(column, lambda value: not isinstance(value, Real) or value != value)
        if text is not None and other is not None:
            return (
                f"X must hold either strings or numbers in a column for {called}, got "
                f"{text.value!r} and {other.value!r} in column {plain(name)!r}."
            )
    return None


def _is_not_nan(value: Any) -> bool:
    return not isinstance(value, float) or value == value


def _is_not_infinite(value: Any) -> bool:
    return not isinstance(value, float) or not isinf(value)


def _indexing() -> Any:
    """Return scikit-learn's module that selects columns; without it, errors stay as they are."""
    return import_module("sklearn.utils._indexing")


def _done(step: Any, X: Any) -> Any:
    return clone(step).fit(X).transform(X)


def _called(name: str, step: Any) -> str:
    return f"the {type(step).__name__} {name!r}"


def _listed(rows: _Rows) -> str:
    return "its columns" if rows.names is None else f"the {_columns(rows.names)}"


def _columns(names: list[Any]) -> str:
    return f"column{'s' * (len(names) > 1)} {_names(names)}"


def _names(names: list[Any]) -> str:
    listed = ", ".join(repr(plain(name)) for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{listed} and {more} more" if more > 0 else listed
