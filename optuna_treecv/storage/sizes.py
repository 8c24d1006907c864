"""Sizes: rows and bytes per table, evaluations per study; and how to free unused space."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import case
from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import further_run
from optuna_treecv.storage.tables import Base
from optuna_treecv.storage.tables import EvaluationRow


class TableSize(NamedTuple):
    """The size of one table; ``n_bytes`` is None where the database cannot tell."""

    name: str
    n_rows: int
    n_bytes: int | None


class StudySize(NamedTuple):
    """The evaluations of one study; ``name`` is None for trials without a study."""

    name: str | None
    n_complete: int
    n_pruned: int


def table_sizes(session: Session) -> list[TableSize]:
    """Return the size of each of our tables."""
    return [
        TableSize(
            table.name,
            session.execute(select(func.count()).select_from(table)).scalar_one(),
            _n_bytes(session, table.name),
        )
        for table in Base.metadata.sorted_tables
    ]


def study_sizes(session: Session) -> list[StudySize]:
    """Return the number of complete and pruned evaluations for each study, by name.

    The several scores of a trial count once.
    """
    by_study = (
        select(
            EvaluationRow.study_name,
            func.sum(case((EvaluationRow.state == "complete", 1), else_=0)),
            func.sum(case((EvaluationRow.state == "pruned", 1), else_=0)),
        )
        .where(EvaluationRow.run.not_like(further_run("%", "%")))
        .group_by(EvaluationRow.study_name)
        .order_by(EvaluationRow.study_name)
    )
    return [StudySize(*row) for row in session.execute(by_study)]


def vacuum(database: Database) -> None:
    """Return the room of deleted rows to the file system; PostgreSQL does that by itself."""
    if database.engine.dialect.name == "sqlite":
        with database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM")


def _n_bytes(session: Session, table: str) -> int | None:
    if session.connection().dialect.name == "postgresql":
        query = "SELECT pg_total_relation_size(CAST(:table AS regclass))"
    else:
        query = (
            "SELECT SUM(pgsize) FROM dbstat WHERE name IN "
            "(SELECT name FROM sqlite_master WHERE tbl_name = :table)"
        )
    try:
        return session.scalar(text(query), {"table": table})
    except OperationalError:  # not every build of SQLite has dbstat
        return None
