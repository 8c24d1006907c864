"""Reads rows that may be damaged, or written by others: no value has to be of its column's type.

SQLite takes any value in any column. PostgreSQL takes times that Python cannot represent.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from datetime import UTC
from functools import lru_cache
import json
from typing import Any
import warnings

from sqlalchemy import BigInteger
from sqlalchemy import case
from sqlalchemy import cast
from sqlalchemy import Column
from sqlalchemy import ColumnElement
from sqlalchemy import Connection
from sqlalchemy import Dialect
from sqlalchemy import JSON
from sqlalchemy import literal
from sqlalchemy import Select
from sqlalchemy import select
from sqlalchemy import Text
from sqlalchemy import type_coerce
from sqlalchemy.types import NullType
from sqlalchemy.types import TypeDecorator

# So many rows are named in a warning.
_MOST_NAMED = 5
# For each type of a column: the types of the driver, and a name for messages.
_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    bytes: ((bytes, memoryview), "bytes"),
    dict: ((dict,), "a JSON object"),
    datetime: ((datetime,), "a time"),
}


@dataclass
class LeftOut:
    """Rows that are left out because of their values, for one warning about all of them.

    Parameters
    ----------
    table : str
        The table of the rows.
    key : str
        The column that names a row.
    what : str, default="are left out"
        What happens to the rows.

    Attributes
    ----------
    keys : list
        The names of the rows so far.
    reasons : list of str
        Why the first of them are left out.
    """

    table: str
    key: str
    what: str = "are left out"
    keys: list[Any] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def add(self, key: Any, reason: str) -> None:
        """Add a row."""
        self.keys.append(key)
        if len(self.keys) <= _MOST_NAMED:
            self.reasons.append(f"{self.key} {shown(key)} ({reason})")

    def warn(self, store: object, stacklevel: int = 2) -> bool:
        """Warn if there is any such row, and return whether there is."""
        if not self.keys:
            return False
        more = len(self.keys) - len(self.reasons)
        named = ", ".join(self.reasons) + (f" and {more} more" if more else "")
        warnings.warn(
            f"store {store}: damaged rows of {self.table} {self.what}: {named}.",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
        return True


def read_checked(
    connection: Connection,
    columns: tuple[Any, ...],
    where: Sequence[ColumnElement[bool]],
    left_out: LeftOut,
    problem_of: Callable[[dict[str, Any]], str | None] = lambda row: None,
) -> Iterator[dict[str, Any]]:
    """Yield rows of a table whose values are of their columns' types, ordered by the first column.

    Parameters
    ----------
    connection : Connection
    columns : tuple of Column
        The first one names a row.
    where : sequence of ColumnElement
        Conditions.
    left_out : LeftOut
        Where other rows are counted.
    problem_of : callable, default=lambda row: None
        Returns what else is wrong with a row, or None.
    """
    query, converters = _query_and_converters(columns, connection.dialect)
    for values in connection.execute(query.where(*where)):
        try:
            row = {
                name: convert(value)
                for (name, convert), value in zip(converters, values, strict=True)
            }
            problem = problem_of(row)
        except ValueError as damaged:
            problem = str(damaged)
        if problem is None:
            yield row
        else:
            left_out.add(values[0], problem)


@lru_cache(maxsize=64)
def _query_and_converters(
    columns: tuple[Column[Any], ...], dialect: Dialect
) -> tuple[Select[Any], list[tuple[str, Callable[[Any], Any]]]]:
    """Return a query for values as the driver gives them, and names and converters of columns."""
    query = select(*(_raw(column, dialect) for column in columns)).order_by(columns[0])
    return query, [(column.name, _converter(column, dialect)) for column in columns]


def _raw(column: Column[Any], dialect: Dialect) -> ColumnElement[Any]:
    """Return a column whose values are taken from the driver as they are."""
    if dialect.name == "postgresql" and _kind(column) is dict:
        # The driver raises where Python cannot represent the JSON.
        found: ColumnElement[Any] = cast(column, Text)
    elif dialect.name == "postgresql" and _kind(column) is datetime:
        # The driver raises for other times.
        first, last = (end.replace(tzinfo=UTC) for end in (datetime.min, datetime.max))
        is_valid = column.between(literal(first, column.type), literal(last, column.type))
        found = case((is_valid, column), else_=None)
    else:
        found = column
    return type_coerce(found, NullType()).label(column.name)


def _kind(column: Column[Any]) -> type:
    """Return the Python type of a column's values."""
    kind = column.type
    kind = kind.impl_instance if isinstance(kind, TypeDecorator) else kind
    return dict if isinstance(kind, JSON) else kind.python_type


def _converter(column: Column[Any], dialect: Dialect) -> Callable[[Any], Any]:
    """Return a function from the driver's value to that of the column, or to a ValueError."""
    kind: Any = _kind(column)
    accepted, name = _KINDS[kind]
    n_bits = 64 if isinstance(column.type, BigInteger) else 32
    name = f"an integer of {n_bits} bits" if kind is int else name
    most = 2 ** (n_bits - 1)
    process: Any = json.loads if kind is dict else None
    if kind is datetime:  # others are taken as they are; SQLAlchemy accepts 5 as bytes
        process = column.type.dialect_impl(dialect).result_processor(dialect, None)

    def convert(value: Any) -> Any:
        if value is None and column.nullable:
            return None
        try:
            found = value if process is None else process(value)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            found = None
        if not isinstance(found, accepted) or (kind is int and not -most <= found < most):
            raise ValueError(f"{column.name} must be {name}, got {shown(value)}")
        return kind(found) if kind in (bytes, float) else found

    return convert


def shown(value: Any) -> str:
    """Return a value for a message, shortened."""
    shown = repr(value if not isinstance(value, bytes) else value[:40])
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
