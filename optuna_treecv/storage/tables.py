"""The tables of a store: columns and their types.

All names begin with ``treecv_``, so that the tables can share a database with Optuna's. No foreign
key refers to Optuna's tables, and no key uses its trial ids, since they may be assigned anew.
"""

from __future__ import annotations

from datetime import datetime
from datetime import UTC
from functools import partial

from sqlalchemy import BigInteger
from sqlalchemy import Column
from sqlalchemy import DateTime
from sqlalchemy import Dialect
from sqlalchemy import Double
from sqlalchemy import ForeignKey
from sqlalchemy import Integer
from sqlalchemy import JSON
from sqlalchemy import LargeBinary
from sqlalchemy import MetaData
from sqlalchemy import String
from sqlalchemy import Table
from sqlalchemy import text
from sqlalchemy.types import TypeDecorator


class UTCDateTime(TypeDecorator[datetime]):
    """A time in UTC: without time zone in the table, with time zone in Python.

    SQLite has no time zones.
    """

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def now() -> datetime:
    return datetime.now(UTC)


#: All tables of a store.
METADATA = MetaData()

_filled = partial(Column, nullable=False)

#: The version of these tables in a database; the table has one row.
SCHEMA = Table(
    "treecv_schema", METADATA, Column("version", Integer, primary_key=True, autoincrement=False)
)

#: The cross-validations of trials, one row per score.
EVALUATIONS = Table(
    "treecv_evaluations",
    METADATA,
    # Chosen by us and kept in the trial's user attribute "treecv". It stays valid if a study is
    # copied or renamed.
    Column("run", String(32), primary_key=True),
    _filled("key", String(64), index=True, default=""),
    _filled("fingerprint", String(64), default=""),
    Column("study_name", String, index=True),
    Column("trial_number", Integer),
    _filled("state", String(8), default="complete"),
    _filled("learner", String),
    _filled("parameters", JSON),
    _filled("cv", String),
    _filled("n_folds", Integer),
    _filled("n_repeats", Integer, default=1),
    _filled("n_rows", BigInteger),
    _filled("n_features", Integer),
    _filled("order", String, default="fixed"),
    _filled("method", String, default="treecv"),
    _filled("scoring", String),
    _filled("direction", String(8)),
    # A string, since seeds are unsigned 64-bit integers and those of SQL are signed.
    _filled("random_state", String),
    Column("mean", Double),
    Column("std", Double),
    _filled("folds_scored", Integer),
    _filled("diverged_folds", Integer, default=0),
    _filled("n_updates", BigInteger),
    _filled("n_updates_saved", BigInteger, default=0, server_default=text("0")),
    _filled("n_updates_standard", BigInteger),
    _filled("seconds", Double),
    _filled("seconds_prepare", Double, default=0.0),
    _filled("created_at", UTCDateTime, default=now),
    _filled("versions", JSON, default=dict),
)


def _run() -> Column[str]:
    """Return a column with the evaluation that a row belongs to."""
    evaluation = ForeignKey(EVALUATIONS.c.run, ondelete="CASCADE")
    return Column("run", String(32), evaluation, primary_key=True)


#: Fold scores, one row for each; fold numbers continue over the repeats.
FOLD_SCORES = Table(
    "treecv_fold_scores",
    METADATA,
    _run(),
    Column("fold", Integer, primary_key=True, autoincrement=False),
    _filled("score", Double),
)

#: All fold scores of an evaluation that has too many for one row each.
FOLD_SCORE_BLOCKS = Table(
    "treecv_fold_score_blocks",
    METADATA,
    _run(),
    _filled("n_scores", BigInteger),
    # Compressed by zlib: a byte per score if all are whole numbers from 0 to 255, such as errors;
    # otherwise little-endian float64.
    _filled("scores", LargeBinary),
)

#: The bytes of models that trials share.
MODELS = Table(
    "treecv_models",
    METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    _filled("key", LargeBinary(32), index=True),
    # The interval of a hyper-parameter for which the model is valid.
    Column("low", Double),
    Column("high", Double),
    _filled("n_bytes", BigInteger),
    # The time to train the model again.
    _filled("seconds", Double),
    _filled("created_at", UTCDateTime, default=now),
    # The last column, so that SQLite need not read past it for the other columns.
    _filled("payload", LargeBinary),
    # An id must never be reused, because readers query for ids above the last one they saw.
    sqlite_autoincrement=True,
)

#: Leases: a worker is computing the results with this name.
LEASES = Table(
    "treecv_leases",
    METADATA,
    Column("key", LargeBinary(32), primary_key=True),
    _filled("owner", String(32)),
    # Seconds since 1970, by the database's clock.
    _filled("expires", Double),
)
