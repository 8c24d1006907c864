"""A store's database: opened, its schema made or migrated, one short transaction at a time."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import suppress
from functools import partial
import os
import re
from threading import Lock
from time import monotonic
from typing import Any
from typing import TypeAlias
from typing import TypeVar
import warnings

from sqlalchemy import Connection
from sqlalchemy import create_engine
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy import insert
from sqlalchemy import inspect
from sqlalchemy import make_url
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy import update
from sqlalchemy import URL
from sqlalchemy.exc import ArgumentError
from sqlalchemy.exc import DataError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import IntegrityError
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session as Session  # for those who do not import SQLAlchemy
from sqlalchemy.pool import StaticPool

from optuna_treecv.storage.tables import Base
from optuna_treecv.storage.tables import SchemaRow

#: The base of all errors that a database raises.
DatabaseError = SQLAlchemyError

#: Seconds until a server must have answered.
CONNECT_SECONDS = 5
#: Seconds that a writer waits for other writers.
WAIT_SECONDS = 60.0
#: Seconds for which a store that failed is left alone.
RETRY_SECONDS = 30.0

# Of PostgreSQL's advisory lock, one of ours in a database.
_LOCK = int.from_bytes(b"treecv", "big")

T = TypeVar("T")


def _add_models(connection: Connection) -> None:
    connection.execute(
        text("ALTER TABLE treecv_evaluations ADD COLUMN n_updates_saved BIGINT DEFAULT 0 NOT NULL")
    )
    # Today's table is version 2's: a migration that changes it must spell out here what it was.
    Base.metadata.create_all(connection, tables=[Base.metadata.tables["treecv_models"]])


def _add_claims(connection: Connection) -> None:
    """Version 3 had the table treecv_claims, which version 4 replaces: nothing to make."""


def _replace_claims_by_leases(connection: Connection) -> None:
    # Leases last a minute, so none is worth copying. Today's table is version 4's, likewise.
    connection.execute(text("DROP TABLE IF EXISTS treecv_claims"))
    Base.metadata.create_all(connection, tables=[Base.metadata.tables["treecv_leases"]])


#: The first leads from version 1 to 2, and so on.
MIGRATIONS: list[Callable[[Connection], None]] = [
    _add_models,
    _add_claims,
    _replace_claims_by_leases,
]
SCHEMA_VERSION = 1 + len(MIGRATIONS)


class Database:
    """A SQLite file or a PostgreSQL database with our tables.

    Threads may share it. A pickled one opens again on first use, a forked one leaves its parent's
    connections alone.

    Parameters
    ----------
    store : str, sqlalchemy.URL or sqlalchemy.Engine
        An engine is used as it is.
    create : bool
        Make the tables where there are none.

    Raises
    ------
    ValueError
        If it cannot be used; the sentence says why.
    ImportError
        If the driver is not installed.
    """

    def __init__(self, store: str | URL | Engine, *, create: bool = True) -> None:
        self._url, self._engine = _url_and_engine(store)
        self._own = self._engine is None
        self._start()
        try:
            self._prepare(create)
        except (DatabaseError, OSError) as error:
            raise ValueError(
                f"store must be a database that can be opened, got {self}: {reason_of(error)}"
                f"{self._advice()}."
            ) from error

    def _advice(self) -> str:
        """SQLite reads a file that was written ahead only where it may write beside it."""
        path = _path(self._url)
        if path is None or not os.path.exists(path) or os.access(os.path.dirname(path), os.W_OK):
            return ""
        return (
            f"; a file that nobody writes any more, in a folder that is read-only, is "
            f"sqlite:///file:{path}?immutable=1&uri=true"
        )

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        # The connection of a StaticPool is everybody's, a transaction is one thread's.
        self._static = Lock()
        # By whether it is for writing.
        self._retry_at = {False: 0.0, True: 0.0}
        self._failing: set[bool] = set()

    def __str__(self) -> str:
        return without_password(self._url)

    def __getstate__(self) -> dict[str, Any]:
        if _is_memory(self._url):
            raise ValueError(
                "store must be a SQLite file or a PostgreSQL database to be sent to other "
                f"processes, got {self}: nobody else sees this one's memory."
            )
        return {"url": self._url.render_as_string(hide_password=False)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._url, self._engine, self._own = make_url(state["url"]), None, True
        self._prepared = False
        self._start()

    @property
    def engine(self) -> Engine:
        """This process's engine."""
        if self._pid != os.getpid():
            if self._engine is not None:
                # Kept: connections that were collected would be closed, in this process and on
                # its parent's socket or file.
                self._inherited = self._engine.pool
                self._engine.dispose(close=False)
            self._start()
        with self._lock:
            if self._engine is None:
                self._engine = _make_engine(self._url)
            return self._engine

    def close(self) -> None:
        """Close this process's connections, unless the engine was given."""
        if self._own:
            self.engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session for one look at the tables."""
        self._prepare_once()
        with self._session() as session:
            _begin(session.connection(), "BEGIN")
            yield session

    @contextmanager
    def writing(
        self, *, alone: bool = False, wait_seconds: float = WAIT_SECONDS
    ) -> Iterator[Session]:
        """A session for one transaction, committed at the end.

        SQLite has one writer at a time, who waits for the others; ``alone`` makes it so on
        PostgreSQL too.
        """
        self._prepare_once()
        with self._writing(alone, wait_seconds) as session:
            yield session

    def attempt(
        self,
        work: Callable[[Session], T],
        otherwise: T,
        *,
        without: str,
        write: bool = False,
        alone: bool = False,
        wait_seconds: float = WAIT_SECONDS,
    ) -> T:
        """What ``work`` returns, or ``otherwise`` where the database fails.

        Then there is one warning an outage, which says what trials go on ``without``, and no
        further attempt for some time. A database that can be read may be full or read-only: it is
        read all the same.
        """
        if monotonic() < self._retry_at[write]:
            return otherwise
        session_of = partial(self.writing, alone=alone, wait_seconds=wait_seconds)
        try:
            with session_of() if write else self.reading() as session:
                result = work(session)
        except (DatabaseError, OSError) as error:
            self._note(error, write, without)
            return otherwise
        self._failing.discard(write)
        return result

    def _note(self, error: Exception, write: bool, without: str) -> None:
        # What the database refuses for its content says nothing about the next attempt.
        if isinstance(error, IntegrityError | DataError):
            known = False
        else:
            with self._lock:
                known = bool(self._failing)
                self._failing.add(write)
                self._retry_at[write] = monotonic() + RETRY_SECONDS
        if not known:
            warnings.warn(
                f"store {self}: {reason_of(error)}; trials go on without {without}.",
                RuntimeWarning,
                stacklevel=4,
            )

    @contextmanager
    def _session(self) -> Iterator[Session]:
        engine = self.engine
        if isinstance(engine.pool, StaticPool):
            with self._static, Session(engine) as session:
                yield session
        else:
            with Session(engine) as session:
                yield session

    @contextmanager
    def _writing(self, alone: bool, wait_seconds: float) -> Iterator[Session]:
        with self._session() as session:
            connection = session.connection()
            milliseconds = int(1000 * wait_seconds)
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")
                _begin(connection, "BEGIN IMMEDIATE")
            elif alone:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {milliseconds}")
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            yield session
            session.commit()

    def _prepare_once(self) -> None:
        if not self._prepared:  # unpickled
            self._prepare(create=True)

    def _prepare(self, create: bool) -> None:
        """Make or migrate the schema. Most often there is nothing to do, and no lock is taken."""
        if not create and self._own and is_missing(self._url):  # SQLite would make the file
            raise FileNotFoundError("there is no such file")
        with self._session() as session:
            version = self._version(session)
        if version is None and not create:
            raise FileNotFoundError("no trial has written to it, it has no table treecv_schema")
        if version != SCHEMA_VERSION:
            self._make_schema()
        self._prepared = True

    def _make_schema(self) -> None:
        if self._own and _is_sqlite(self._url):
            self._write_ahead()
        with self._writing(alone=True, wait_seconds=WAIT_SECONDS) as session:
            connection = session.connection()
            version = self._version(session)  # another process may have been here
            if version is None:
                Base.metadata.create_all(connection)
                session.execute(insert(SchemaRow).values(version=SCHEMA_VERSION))
                return
            for migrate in MIGRATIONS[version - 1 :]:
                migrate(connection)
            session.execute(update(SchemaRow).values(version=SCHEMA_VERSION))

    def _write_ahead(self) -> None:
        """Let readers go on while one writes. SQLite keeps it in the file, for all connections."""
        with self.engine.connect() as connection, suppress(OperationalError):  # read-only
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")

    def _version(self, session: Session) -> int | None:
        if not inspect(session.connection()).has_table(SchemaRow.__tablename__):
            return None
        version = session.scalars(select(SchemaRow.version)).one()
        if version > SCHEMA_VERSION:
            raise ValueError(
                f"store must have tables of version {SCHEMA_VERSION} or older, got {self} with "
                f"version {version}, which a newer optuna_treecv has made."
            )
        return version


#: What names a store: a URL, an engine or an open database.
AnyStore: TypeAlias = str | URL | Engine | Database


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """So many as one statement can name: SQLite takes 32766 parameters, PostgreSQL 65535."""
    for start in range(0, len(values), 500):
        yield values[start : start + 500]


def _url_and_engine(store: str | URL | Engine) -> tuple[URL, Engine | None]:
    """What was given, if it is something that we can use."""
    if isinstance(store, Engine):
        if _is_memory(store.url) and not isinstance(store.pool, StaticPool):
            raise _no_memory(store.url)
        url, engine = store.url, store
    elif isinstance(store, str | URL):
        url, engine = _parse(store), None
    else:
        raise ValueError(f"store must be a SQLAlchemy URL or Engine, got {store!r}.")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ValueError(
            "store must be SQLite (sqlite:///file.db) or PostgreSQL (postgresql://...), got "
            f"{without_password(url)}."
        )
    return url, engine


def _parse(store: str | URL) -> URL:
    try:
        url = make_url(store)
    except (ArgumentError, ValueError) as error:
        raise ValueError(
            "store must be a SQLAlchemy URL such as 'sqlite:///models.db', got "
            f"{re.sub(':[^:@]*@', ':***@', str(store))!r}."
        ) from error
    if url.drivername == "postgresql":  # psycopg2 to SQLAlchemy 2.0, psycopg to 2.1
        url = url.set(drivername="postgresql+psycopg")
    if _is_memory(url):
        raise _no_memory(url)
    if (path := _path(url)) is not None:  # the same file for a process in another folder
        url = url.set(database=os.path.abspath(path))
    return url


def _make_engine(url: URL) -> Engine:
    arguments: dict[str, Any] = {}
    if _is_sqlite(url):
        arguments = {"timeout": WAIT_SECONDS}
    elif url.get_driver_name().startswith("psycopg"):
        # The second is for what was sent to a server that is there no more.
        arguments = {
            "connect_timeout": CONNECT_SECONDS,
            "tcp_user_timeout": 1000 * CONNECT_SECONDS,
        }
    arguments = {name: value for name, value in arguments.items() if name not in url.query}
    try:
        # A connection that a server has dropped since is replaced, not an outage.
        engine = create_engine(url, connect_args=arguments, pool_pre_ping=not _is_sqlite(url))
    except ImportError as error:
        raise ImportError(
            f"store {without_password(url)} needs a driver that cannot be imported ({error}): pip "
            "install 'optuna-treecv[postgres]' brings psycopg, the driver of postgresql://."
        ) from error
    if engine.dialect.is_async:
        raise ValueError(f"store must name a driver without async, got {without_password(url)}.")
    if _is_sqlite(url):
        event.listen(engine, "connect", _enforce_foreign_keys)
    return engine


def _enforce_foreign_keys(connection: Any, record: Any) -> None:
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: Connection, statement: str) -> None:
    """Begin at once on SQLite, whose driver waits for the first change."""
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.dbapi_connection
        if driver.in_transaction:  # by an event of a user's engine
            connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql(statement)


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _is_memory(url: URL) -> bool:
    name = url.database or ":memory:"
    return _is_sqlite(url) and (":memory:" in name or url.query.get("mode") == "memory")


def _no_memory(url: URL) -> ValueError:
    return ValueError(
        f"store must be a SQLite file or an Engine with StaticPool, got {without_password(url)}: "
        "each connection to SQLite in memory is another database."
    )


def _path(url: URL) -> str | None:
    """The file of a SQLite URL, if it is named by a path."""
    name = url.database
    return None if not _is_sqlite(url) or not name or name.startswith("file:") else name


def is_missing(url: str | URL) -> bool:
    """Whether a URL names a SQLite file that does not exist; opening it would create the file."""
    url = make_url(url)
    return not _is_memory(url) and (path := _path(url)) is not None and not os.path.exists(path)


def without_password(url: URL) -> str:
    """A URL for messages."""
    return url.difference_update_query(["password"]).render_as_string(hide_password=True)


def reason_of(error: BaseException) -> str:
    """The first line of what a driver says."""
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(said).splitlines() or [type(said).__name__]
    return " ".join(lines[0].split()).rstrip(".")
