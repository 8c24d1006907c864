"""The command ``optuna-treecv``: what is in a store, and room in it."""

from __future__ import annotations

import argparse
from datetime import datetime
from datetime import UTC
import re
import sys

import optuna
from optuna.exceptions import OptunaError
from sqlalchemy import case
from sqlalchemy import func
from sqlalchemy import make_url
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from optuna_treecv.database import Database
from optuna_treecv.database import is_missing
from optuna_treecv.database import reason_of
from optuna_treecv.database import SCHEMA_VERSION
from optuna_treecv.history import forget
from optuna_treecv.history import runs_of
from optuna_treecv.records import Base
from optuna_treecv.records import EvaluationRow
from optuna_treecv.stores import evict

_UNITS = ["b", "kb", "mb", "gb", "tb"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; what it returns is the exit code."""
    options = _parser().parse_args(arguments)
    try:
        database = Database(options.url, create=False)
        try:
            _store(database, options)
        finally:
            database.engine.dispose()
    except (ValueError, ImportError, SQLAlchemyError) as error:
        print(f"optuna-treecv: {reason_of(error)}.", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="optuna-treecv")
    commands = parser.add_subparsers(required=True, metavar="store")
    store = commands.add_parser("store", help="show what is in a store, or delete from it")
    store.add_argument(
        "url", help="such as sqlite:///treecv_store.db or postgresql://user@host/name"
    )
    store.add_argument(
        "--max-bytes",
        type=_bytes,
        metavar="SIZE",
        help="delete shared models until the others fit, such as 100MB",
    )
    store.add_argument("--forget-study", metavar="NAME", help="delete a study's evaluations")
    store.add_argument(
        "--storage",
        metavar="URL",
        help="delete the evaluations of studies that no trial in this Optuna storage names any "
        "more; all of the store's studies should be in it",
    )
    return parser


def _bytes(given: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?) *([kmgt]?b)?", given.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 100MB or 2GB, got {given!r}.")
    number, unit = match.groups()
    return int(float(number) * 1000 ** _UNITS.index(unit or "b"))


def _store(database: Database, options: argparse.Namespace) -> None:
    n_deleted = 0
    if options.max_bytes is not None:
        with database.writing(alone=True) as session:
            n_models = evict(session, options.max_bytes)
        print(f"deleted: {n_models} shared models")
        n_deleted += n_models
    if options.forget_study is not None:
        n_forgotten = forget(database, study_name=options.forget_study)
        print(f"deleted: {n_forgotten} evaluations of study {options.forget_study!r}")
        n_deleted += n_forgotten
    if options.storage is not None:
        n_forgotten = _forget_unnamed(database, options.storage)
        print(f"deleted: {n_forgotten} evaluations that no trial names any more")
        n_deleted += n_forgotten
    if n_deleted and database.engine.dialect.name == "sqlite":
        # PostgreSQL sees to that by itself.
        with database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM")
    _show(database)


def _forget_unnamed(database: Database, storage: str) -> int:
    begun = datetime.now(UTC)  # what is recorded meanwhile has a trial that we may have missed
    with database.reading() as session:
        query = select(EvaluationRow.run, EvaluationRow.study_name)
        recorded = {run: study_name for run, study_name in session.execute(query)}
    named = _named_in(storage)
    if recorded and not named & recorded.keys():
        # The wrong storage would cost the whole history.
        raise ValueError(
            "storage must be where the store's studies are, got one whose trials name none of "
            f"its {len(recorded)} evaluations; --forget-study deletes those of one study."
        )
    without_study = {run for run, study_name in recorded.items() if study_name is None}
    return forget(database, keep_runs=named | without_study, before=begun)


def _named_in(storage: str) -> set[str]:
    """The runs that the trials of an Optuna storage name; the storage is only read."""
    try:
        if is_missing(make_url(storage)):
            raise FileNotFoundError("there is no such file")
        rdb = optuna.storages.RDBStorage(storage, skip_table_creation=True)
        names = optuna.get_all_study_names(rdb)
        return {
            run
            for name in names
            for run in runs_of(optuna.load_study(study_name=name, storage=rdb))
        }
    except (SQLAlchemyError, OSError, ImportError, RuntimeError, OptunaError) as error:
        # Optuna's own say less than what they come from.
        cause = error.__cause__ if isinstance(error, OptunaError) else None
        raise ValueError(
            f"storage must be an Optuna storage that can be opened: {reason_of(cause or error)}."
        ) from error


def _show(database: Database) -> None:
    with database.reading() as session:
        print(f"{database}: tables of version {SCHEMA_VERSION}")
        tables = [
            (table.name, str(session.scalar(select(func.count()).select_from(table))), size)
            for table in Base.metadata.sorted_tables
            for size in [_size(session, table.name)]
        ]
        by_study = (
            select(
                EvaluationRow.study_name,
                func.sum(case((EvaluationRow.state == "complete", 1), else_=0)),
                func.sum(case((EvaluationRow.state == "pruned", 1), else_=0)),
            )
            .group_by(EvaluationRow.study_name)
            .order_by(EvaluationRow.study_name)
        )
        studies = [
            ("(no study)" if name is None else name, str(complete), str(pruned))
            for name, complete, pruned in session.execute(by_study)
        ]
    _print_table([("table", "rows", "bytes"), *tables])
    if studies:
        _print_table([("study", "complete", "pruned"), *studies])


def _size(session: Session, table: str) -> str:
    if session.connection().dialect.name == "postgresql":
        query = "SELECT pg_total_relation_size(CAST(:table AS regclass))"
    else:
        query = (
            "SELECT SUM(pgsize) FROM dbstat WHERE name IN "
            "(SELECT name FROM sqlite_master WHERE tbl_name = :table)"
        )
    try:
        return str(session.scalar(text(query), {"table": table}))
    except OperationalError:  # not all builds of SQLite know dbstat
        return "?"


def _print_table(rows: list[tuple[str, str, str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    print()
    for name, *numbers in rows:
        cells = (number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True))
        print(f"{name.ljust(widths[0])}  {'  '.join(cells)}")
