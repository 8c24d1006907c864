"""The tables of a store, and validated reading of rows.

All names begin with ``treecv_``, so that the tables can share a database with Optuna's. No foreign
key refers to Optuna's tables, and no key uses its trial ids, because they may be reassigned.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from datetime import UTC
from functools import lru_cache
from functools import partial
import json
from typing import Any
import warnings

import sqlalchemy as sa


class UTCDateTime(sa.TypeDecorator[datetime]):
    """A time in UTC, without time zone in the table and with time zone in Python.

    SQLite has no time zones.
    """

    impl = sa.DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def now() -> datetime:
    return datetime.now(UTC)


#: All tables of a store.
METADATA = sa.MetaData()

_filled = partial(sa.Column, nullable=False)

#: The version of these tables in a database; the table has one row.
SCHEMA = sa.Table(
    "treecv_schema",
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
)

#: The cross-validations of trials, one row per score.
EVALUATIONS = sa.Table(
    "treecv_evaluations",
    METADATA,
    # A random name, also in the trial's user attribute "treecv". It stays valid if a study is
    # copied or renamed.
    sa.Column("run", sa.String(32), primary_key=True),
    _filled("key", sa.String(64), index=True, default=""),
    _filled("fingerprint", sa.String(64), default=""),
    sa.Column("study_name", sa.String, index=True),
    sa.Column("trial_number", sa.Integer),
    _filled("state", sa.String(8), default="complete"),
    _filled("learner", sa.String),
    _filled("parameters", sa.JSON),
    _filled("cv", sa.String),
    _filled("n_folds", sa.Integer),
    _filled("n_repeats", sa.Integer, default=1),
    _filled("n_rows", sa.BigInteger),
    _filled("n_features", sa.Integer),
    _filled("order", sa.String, default="fixed"),
    _filled("method", sa.String, default="treecv"),
    _filled("scoring", sa.String),
    _filled("direction", sa.String(8)),
    # A string, because seeds are unsigned 64-bit integers and those of SQL are signed.
    _filled("random_state", sa.String),
    sa.Column("mean", sa.Double),
    sa.Column("std", sa.Double),
    _filled("folds_scored", sa.Integer),
    _filled("diverged_folds", sa.Integer, default=0),
    _filled("n_updates", sa.BigInteger),
    _filled("n_updates_saved", sa.BigInteger, default=0, server_default=sa.text("0")),
    _filled("n_updates_standard", sa.BigInteger),
    _filled("seconds", sa.Double),
    _filled("seconds_prepare", sa.Double, default=0.0),
    _filled("created_at", UTCDateTime, default=now),
    _filled("versions", sa.JSON, default=dict),
)


def _run() -> sa.Column[str]:
    """Return a column with the evaluation of a row."""
    evaluation = sa.ForeignKey(EVALUATIONS.c.run, ondelete="CASCADE")
    return sa.Column("run", sa.String(32), evaluation, primary_key=True)


#: Fold scores, one row for each; fold numbers continue over the repeats.
FOLD_SCORES = sa.Table(
    "treecv_fold_scores",
    METADATA,
    _run(),
    sa.Column("fold", sa.Integer, primary_key=True, autoincrement=False),
    _filled("score", sa.Double),
)

#: All fold scores of an evaluation that has too many for one row each.
FOLD_SCORE_BLOCKS = sa.Table(
    "treecv_fold_score_blocks",
    METADATA,
    _run(),
    _filled("n_scores", sa.BigInteger),
    # Compressed by zlib: a byte per score if all are whole numbers from 0 to 255, such as errors;
    # otherwise little-endian float64.
    _filled("scores", sa.LargeBinary),
)

#: The bytes of models that trials share.
MODELS = sa.Table(
    "treecv_models",
    METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    _filled("key", sa.LargeBinary(32), index=True),
    _filled("n_bytes", sa.BigInteger),
    # The time to train the model again.
    _filled("seconds", sa.Double),
    _filled("created_at", UTCDateTime, default=now),
    # The last column, so that SQLite need not read past it for the other columns.
    _filled("payload", sa.LargeBinary),
    # An id must never be reused, because readers query for ids above the last one they saw.
    sqlite_autoincrement=True,
)

#: Leases: a worker is computing the results with this key.
LEASES = sa.Table(
    "treecv_leases",
    METADATA,
    sa.Column("key", sa.LargeBinary(32), primary_key=True),
    _filled("owner", sa.String(32)),
    # Seconds since 1970, by the database's clock.
    _filled("expires", sa.Double),
)


# Rows may be corrupt, or written by others, so values may not have the type of their column.
# SQLite accepts any value in any column, PostgreSQL accepts times that Python cannot represent.

# The maximum number of rows that a warning names.
_MAX_NAMED = 5
# The types of the driver and a name for messages, by the type of a column.
_ACCEPTED_TYPES: dict[type, tuple[tuple[type, ...], str]] = {
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    bytes: ((bytes, memoryview), "bytes"),
    dict: ((dict,), "a JSON object"),
    datetime: ((datetime,), "a time"),
}


@dataclass
class Omitted:
    """Rows that are omitted because of invalid values, for one warning about all of them.

    Parameters
    ----------
    table : str
        The table of the rows.
    key : str
        The column that identifies a row.

    Attributes
    ----------
    keys : list
        The keys of the rows so far.
    reasons : list of str
        The reasons for the first of them.
    """

    table: str
    key: str
    keys: list[Any] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def add(self, key: Any, reason: str) -> None:
        """Add a row."""
        self.keys.append(key)
        if len(self.keys) <= _MAX_NAMED:
            self.reasons.append(f"{self.key} {shown(key)} ({reason})")

    def warn(self, store: object, stacklevel: int = 2) -> bool:
        """Warn if there are such rows, and return whether there are."""
        if not self.keys:
            return False
        more = len(self.keys) - len(self.reasons)
        reasons = ", ".join(self.reasons) + (f" and {more} more" if more else "")
        warnings.warn(
            f"store {store}: damaged rows of {self.table} are left out: {reasons}.",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
        return True


def read_checked(
    connection: sa.Connection,
    columns: tuple[Any, ...],
    where: Sequence[sa.ColumnElement[bool]],
    omitted: Omitted,
    problem_of: Callable[[dict[str, Any]], str | None] = lambda row: None,
) -> Iterator[dict[str, Any]]:
    """Yield rows of a table with valid values, ordered by the first column.

    Parameters
    ----------
    connection : Connection
    columns : tuple of Column
        The first one identifies a row.
    where : sequence of ColumnElement
        Conditions.
    omitted : Omitted
        Collects other rows.
    problem_of : callable, default=lambda row: None
        (row) -> message about a further problem, or None.
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
            omitted.add(values[0], problem)


@lru_cache(maxsize=64)
def _query_and_converters(
    columns: tuple[sa.Column[Any], ...], dialect: sa.Dialect
) -> tuple[sa.Select[Any], list[tuple[str, Callable[[Any], Any]]]]:
    """Return a query for raw values of the driver, and the names and converters of columns."""
    query = sa.select(*(_raw(column, dialect) for column in columns)).order_by(columns[0])
    return query, [(column.name, _converter(column, dialect)) for column in columns]


def _raw(column: sa.Column[Any], dialect: sa.Dialect) -> sa.ColumnElement[Any]:
    """Return a column whose values are those of the driver."""
    if dialect.name == "postgresql" and _kind(column) is dict:
        # The driver raises an error if Python cannot represent the JSON.
        raw: sa.ColumnElement[Any] = sa.cast(column, sa.Text)
    elif dialect.name == "postgresql" and _kind(column) is datetime:
        # The driver raises an error for other times.
        first, last = (end.replace(tzinfo=UTC) for end in (datetime.min, datetime.max))
        is_valid = column.between(sa.literal(first, column.type), sa.literal(last, column.type))
        raw = sa.case((is_valid, column), else_=None)
    else:
        raw = column
    return sa.type_coerce(raw, sa.types.NullType()).label(column.name)


def _kind(column: sa.Column[Any]) -> type:
    """Return the Python type of a column's values."""
    kind = column.type
    kind = kind.impl_instance if isinstance(kind, sa.TypeDecorator) else kind
    return dict if isinstance(kind, sa.JSON) else kind.python_type


def _converter(column: sa.Column[Any], dialect: sa.Dialect) -> Callable[[Any], Any]:
    """Return a function that converts values of the driver, or raises a ValueError."""
    kind: Any = _kind(column)
    accepted, name = _ACCEPTED_TYPES[kind]
    n_bits = 64 if isinstance(column.type, sa.BigInteger) else 32
    name = f"an integer of {n_bits} bits" if kind is int else name
    most = 2 ** (n_bits - 1)
    process: Any = json.loads if kind is dict else None
    if kind is datetime:  # other types need no processor; SQLAlchemy's would accept 5 as bytes
        process = column.type.dialect_impl(dialect).result_processor(dialect, None)

    def convert(value: Any) -> Any:
        if value is None and column.nullable:
            return None
        try:
            result = value if process is None else process(value)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            result = None
        if not isinstance(result, accepted) or (kind is int and not -most <= result < most):
            raise ValueError(f"{column.name} must be {name}, got {shown(value)}")
        return kind(result) if kind in (bytes, float) else result

    return convert


def shown(value: Any) -> str:
    """Return a value for a message, shortened."""
    shown = repr(value if not isinstance(value, bytes) else value[:40])
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
