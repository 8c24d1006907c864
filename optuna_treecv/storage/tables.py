"""The tables of a store: columns and their types.

All names begin with ``treecv_``, so that the tables can share a database with Optuna's. No foreign
key refers to Optuna's tables, and no key uses its trial ids, since they may be assigned anew.
"""

from __future__ import annotations

from datetime import datetime
from datetime import UTC
import math
from typing import Any
from uuid import uuid4

import numpy as np
from sqlalchemy import BigInteger
from sqlalchemy import DateTime
from sqlalchemy import Dialect
from sqlalchemy import Double
from sqlalchemy import ForeignKey
from sqlalchemy import Integer
from sqlalchemy import JSON
from sqlalchemy import LargeBinary
from sqlalchemy import String
from sqlalchemy import text
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column
from sqlalchemy.orm import MappedAsDataclass
from sqlalchemy.types import TypeDecorator


def plain(value: Any) -> Any:
    """Convert a value to what JSON can hold.

    PostgreSQL refuses NaN and infinities, so these become "nan", "inf" and "-inf".
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(part) for part in value]
    return repr(value)


class PlainJSON(TypeDecorator[Any]):
    """JSON of any value that a trial can suggest."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return plain(value)


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


class Base(MappedAsDataclass, DeclarativeBase):
    type_annotation_map = {
        dict[str, Any]: PlainJSON,
        datetime: UTCDateTime,
        float: Double,
    }


class SchemaRow(Base, kw_only=True):
    """The version of these tables in a database; the table has one row."""

    __tablename__ = "treecv_schema"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class EvaluationRow(Base, kw_only=True):
    """The cross-validation of one trial."""

    __tablename__ = "treecv_evaluations"

    #: Chosen by us and kept in the trial's user attribute "treecv". It stays valid if a study is
    #: copied or renamed.
    run: Mapped[str] = mapped_column(
        String(32), primary_key=True, default_factory=lambda: uuid4().hex[:16]
    )
    key: Mapped[str] = mapped_column(String(64), index=True, default="")
    fingerprint: Mapped[str] = mapped_column(String(64), default="")
    study_name: Mapped[str | None] = mapped_column(index=True, default=None)
    trial_number: Mapped[int | None] = mapped_column(default=None)
    state: Mapped[str] = mapped_column(String(8), default="complete")
    learner: Mapped[str]
    parameters: Mapped[dict[str, Any]]
    cv: Mapped[str]
    n_folds: Mapped[int]
    n_repeats: Mapped[int] = mapped_column(default=1)
    n_rows: Mapped[int] = mapped_column(BigInteger)
    n_features: Mapped[int]
    order: Mapped[str] = mapped_column(default="fixed")
    method: Mapped[str] = mapped_column(default="treecv")
    scoring: Mapped[str]
    direction: Mapped[str] = mapped_column(String(8))
    #: A string, since seeds are unsigned 64-bit integers and those of SQL are signed.
    random_state: Mapped[str]
    mean: Mapped[float | None]
    std: Mapped[float | None] = mapped_column(default=None)
    folds_scored: Mapped[int]
    diverged_folds: Mapped[int] = mapped_column(default=0)
    n_updates: Mapped[int] = mapped_column(BigInteger)
    n_updates_saved: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    n_updates_standard: Mapped[int] = mapped_column(BigInteger)
    seconds: Mapped[float]
    seconds_prepare: Mapped[float] = mapped_column(default=0.0)
    created_at: Mapped[datetime] = mapped_column(default_factory=now)
    versions: Mapped[dict[str, Any]] = mapped_column(default_factory=dict)


class FoldScoreRow(Base, kw_only=True):
    """One fold score; fold numbers continue over the repeats."""

    __tablename__ = "treecv_fold_scores"

    run: Mapped[str] = mapped_column(
        String(32), ForeignKey(EvaluationRow.run, ondelete="CASCADE"), primary_key=True
    )
    fold: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    score: Mapped[float]


class FoldScoreBlockRow(Base, kw_only=True):
    """All fold scores of an evaluation that has too many for one row each."""

    __tablename__ = "treecv_fold_score_blocks"

    run: Mapped[str] = mapped_column(
        String(32), ForeignKey(EvaluationRow.run, ondelete="CASCADE"), primary_key=True
    )
    n_scores: Mapped[int] = mapped_column(BigInteger)
    #: Compressed by zlib: a byte per score if all are whole numbers from 0 to 255, such as errors;
    #: otherwise little-endian float64.
    scores: Mapped[bytes] = mapped_column(LargeBinary)


class ModelRow(Base, kw_only=True):
    """The bytes of a model that trials share."""

    __tablename__ = "treecv_models"
    # An id must never be reused, because readers query for ids above the last one they saw.
    __table_args__ = {"sqlite_autoincrement": True}

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, init=False
    )
    key: Mapped[bytes] = mapped_column(LargeBinary(32), index=True)
    #: The interval of a hyper-parameter for which the model is valid.
    low: Mapped[float | None]
    high: Mapped[float | None]
    n_bytes: Mapped[int] = mapped_column(BigInteger)
    #: The time to train the model again.
    seconds: Mapped[float]
    created_at: Mapped[datetime] = mapped_column(default_factory=now, insert_default=now)
    #: The last column, so that SQLite need not read past it for the other columns.
    payload: Mapped[bytes] = mapped_column(LargeBinary)


class LeaseRow(Base, kw_only=True):
    """A lease: a worker is computing the results with this name."""

    __tablename__ = "treecv_leases"

    key: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    owner: Mapped[str] = mapped_column(String(32))
    #: Seconds since 1970, by the database's clock.
    expires: Mapped[float]
