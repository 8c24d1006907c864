"""The tables of a store, and functions for reading and validating rows.

All names begin with ``treecv_``, so that the tables can be in the same database as Optuna's
tables. No foreign key refers to Optuna's tables, and no key uses Optuna's trial ids, because they
may be reassigned.
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
    """A time in UTC, stored without a time zone but with a time zone in Python.

    SQLite does not support time zones.
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

#: The version of these tables in a database, in a single row.
SCHEMA = sa.Table(
    "treecv_schema",
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
)

#: The cross-validations of trials, with one row per metric.
EVALUATIONS = sa.Table(
    "treecv_evaluations",
    METADATA,
    # A random id, which is also in the user attribute "treecv" of the trial. It remains valid if a
    # study is copied or renamed.
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
    # A string, because seeds are unsigned 64-bit integers, but integers in SQL are signed.
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
    """Return a column for the evaluation that a row belongs to."""
    evaluation = sa.ForeignKey(EVALUATIONS.c.run, ondelete="CASCADE")
    return sa.Column("run", sa.String(32), evaluation, primary_key=True)


#: Fold scores, with one row per fold. Fold indices count the folds of all repeats.
FOLD_SCORES = sa.Table(
    "treecv_fold_scores",
    METADATA,
    _run(),
    sa.Column("fold", sa.Integer, primary_key=True, autoincrement=False),
    _filled("score", sa.Double),
)

#: All fold scores of evaluations with too many folds for one row per fold.
FOLD_SCORE_BLOCKS = sa.Table(
    "treecv_fold_score_blocks",
    METADATA,
    _run(),
    _filled("n_scores", sa.BigInteger),
    # Compressed by zlib. Scores take one byte each if all of them are integers from 0 to 255, as
    # errors are; otherwise, they are little-endian float64.
    _filled("scores", sa.LargeBinary),
)

#: Models that trials share, as bytes.
MODELS = sa.Table(
    "treecv_models",
    METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    _filled("key", sa.LargeBinary(32), index=True),
    _filled("n_bytes", sa.BigInteger),
    # The time for training the model again.
    _filled("seconds", sa.Double),
    _filled("created_at", UTCDateTime, default=now),
    # This must be the last column, so that SQLite can read the other columns without reading it.
    _filled("payload", sa.LargeBinary),
    # Ids must never be reused, because readers query for ids above the last id that they have
    # read.
    sqlite_autoincrement=True,
)

#: Leases: for each key, a worker is computing the results with this key.
LEASES = sa.Table(
    "treecv_leases",
    METADATA,
    sa.Column("key", sa.LargeBinary(32), primary_key=True),
    _filled("owner", sa.String(32)),
    # In seconds since 1970, by the clock of the database.
    _filled("expires", sa.Double),
)


# Reading rows. Rows may be corrupt or written by other programs, so values need not have the type
# of their column: SQLite accepts any value in any column, and PostgreSQL accepts times that Python
# cannot represent.

# The maximum number of rows that are listed in a warning.
_MAX_NAMED = 5
# For each Python type of a column, the types that a driver may return, and a name for messages.
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
    """Collects rows that are omitted because of invalid values, for a single warning.

    Parameters
    ----------
    table : str
        The name of the table.
    key : str
        The name of the column that identifies a row.

    Attributes
    ----------
    keys : list
        The keys of all omitted rows so far.
    reasons : list of str
        The reasons for omitting the first few rows.
    """

    table: str
    key: str
    keys: list[Any] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def add(self, key: Any, reason: str) -> None:
        """Add an omitted row."""
        self.keys.append(key)
        if len(self.keys) <= _MAX_NAMED:
            self.reasons.append(f"{self.key} {shown(key)} ({reason})")

    def warn(self, store: object, stacklevel: int = 2) -> bool:
        """Warn if rows were omitted; return whether any were."""
        if not self.keys:
            return False
        more = len(self.keys) - len(self.reasons)
        reasons = ", ".join(self.reasons) + (f" and {more} more" if more else "")
        warnings.warn(
            f"store {store}: invalid rows of {self.table} are omitted: {reasons}.",
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
    """Yield the valid rows of a table, ordered by the first column.

    Parameters
    ----------
    connection : Connection
    columns : tuple of Column
        The columns to read. The first column identifies a row.
    where : sequence of ColumnElement
        The conditions that rows must satisfy.
    omitted : Omitted
        Collects the invalid rows.
    problem_of : callable, default=lambda row: None
        (row) -> a message if the row is invalid for another reason, or None.
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
    """Return a query for raw values of the driver, and the name and converter of each column."""
    query = sa.select(*(_raw(column, dialect) for column in columns)).order_by(columns[0])
    return query, [(column.name, _converter(column, dialect)) for column in columns]


def _raw(column: sa.Column[Any], dialect: sa.Dialect) -> sa.ColumnElement[Any]:
    """Return an expression for the raw values of a column, as returned by the driver."""
    if dialect.name == "postgresql" and _kind(column) is dict:
        # The driver would raise an error for JSON that Python cannot represent.
        raw: sa.ColumnElement[Any] = sa.cast(column, sa.Text)
    elif dialect.name == "postgresql" and _kind(column) is datetime:
        # The driver would raise an error for times that Python cannot represent.
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
    """Return a function that converts values of the driver, or raises ValueError."""
    kind: Any = _kind(column)
    accepted, name = _ACCEPTED_TYPES[kind]
    n_bits = 64 if isinstance(column.type, sa.BigInteger) else 32
    name = f"an integer of {n_bits} bits" if kind is int else name
    bound = 2 ** (n_bits - 1)
    process: Any = json.loads if kind is dict else None
    if kind is datetime:  # SQLAlchemy's processors of other types are too lenient
        process = column.type.dialect_impl(dialect).result_processor(dialect, None)

    def convert(value: Any) -> Any:
        if value is None and column.nullable:
            return None
        try:
            result = value if process is None else process(value)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            result = None
        if not isinstance(result, accepted) or (kind is int and not -bound <= result < bound):
            raise ValueError(f"{column.name} must be {name}, got {shown(value)}")
        return kind(result) if kind in (bytes, float) else result

    return convert


def shown(value: Any) -> str:
    """Return the repr of a value, shortened for messages."""
    shown = repr(value if not isinstance(value, bytes) else value[:40])
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
