"""The database of a store: connections, the schema and its migrations, transactions."""

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
from sqlalchemy.orm import Session as Session  # for modules that must not import SQLAlchemy
from sqlalchemy.pool import StaticPool

from optuna_treecv.storage.tables import Base
from optuna_treecv.storage.tables import SchemaRow

#: The base class of all errors that a database raises.
DatabaseError = SQLAlchemyError

#: Seconds within which a server must answer.
CONNECT_SECONDS = 5
#: Seconds that a writer waits for other writers.
WAIT_SECONDS = 60.0
#: Seconds without further attempts after a store has failed.
RETRY_SECONDS = 30.0

# The key of our advisory lock in a PostgreSQL database.
_LOCK = int.from_bytes(b"treecv", "big")

T = TypeVar("T")


def _add_models(connection: Connection) -> None:
    connection.execute(
        text("ALTER TABLE treecv_evaluations ADD COLUMN n_updates_saved BIGINT DEFAULT 0 NOT NULL")
    )
    # The present table is still that of version 2. If a later migration changes it, this one must
    # create the table as it was in version 2.
    Base.metadata.create_all(connection, tables=[Base.metadata.tables["treecv_models"]])


def _add_claims(connection: Connection) -> None:
    """Do nothing: version 3 added the table treecv_claims, which version 4 replaces."""


def _replace_claims_by_leases(connection: Connection) -> None:
    # Leases last a minute, so none is worth copying. The present table is still that of version 4;
    # see _add_models.
    connection.execute(text("DROP TABLE IF EXISTS treecv_claims"))
    Base.metadata.create_all(connection, tables=[Base.metadata.tables["treecv_leases"]])


#: The first migrates from version 1 to 2, the next one from 2 to 3, and so on.
MIGRATIONS: list[Callable[[Connection], None]] = [
    _add_models,
    _add_claims,
    _replace_claims_by_leases,
]
SCHEMA_VERSION = 1 + len(MIGRATIONS)


class Database:
    """A SQLite file or a PostgreSQL database with our tables.

    Threads may share it. After pickling it reconnects on first use. After a fork it does not use
    the connections of the parent process.

    Parameters
    ----------
    store : str, sqlalchemy.URL or sqlalchemy.Engine
        An engine is used as it is.
    create : bool
        Create the tables if there are none.

    Raises
    ------
    ValueError
        If the database cannot be used; the message says why.
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
        """Return advice for a SQLite file in a read-only folder, else an empty string.

        SQLite can read a file in write-ahead mode only if it may write to the folder.
        """
        path = _path(self._url)
        if path is None or not os.path.exists(path) or os.access(os.path.dirname(path), os.W_OK):
            return ""
        return (
            f"; if the file is in a read-only folder and no process writes to it, use "
            f"sqlite:///file:{path}?immutable=1&uri=true"
        )

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        # All threads share the connection of a StaticPool, but a transaction belongs to one.
        self._static = Lock()
        # Keyed by whether the attempt is one to write.
        self._retry_at = {False: 0.0, True: 0.0}
        self._failing: set[bool] = set()

    def __str__(self) -> str:
        return without_password(self._url)

    def __getstate__(self) -> dict[str, Any]:
        if _is_memory(self._url):
            raise ValueError(
                "store must be a SQLite file or a PostgreSQL database to be sent to other "
                f"processes, got {self}: no other process can see a database in memory."
            )
        return {"url": self._url.render_as_string(hide_password=False)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._url, self._engine, self._own = make_url(state["url"]), None, True
        self._prepared = False
        self._start()

    @property
    def engine(self) -> Engine:
        """The engine of this process."""
        if self._pid != os.getpid():
            if self._engine is not None:
                # This reference keeps the inherited connections from being garbage-collected.
                # That would close them, and with them the parent's socket or file.
                self._inherited = self._engine.pool
                self._engine.dispose(close=False)
            self._start()
        with self._lock:
            if self._engine is None:
                self._engine = _make_engine(self._url)
            return self._engine

    def close(self) -> None:
        """Close the connections of this process, unless the caller passed the engine."""
        if self._own:
            self.engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Return a session for one read transaction."""
        self._prepare_once()
        with self._session() as session:
            _begin(session.connection(), "BEGIN")
            yield session

    @contextmanager
    def writing(
        self, *, alone: bool = False, wait_seconds: float = WAIT_SECONDS
    ) -> Iterator[Session]:
        """Return a session for one write transaction, committed at the end.

        SQLite allows one writer at a time, and other writers wait. ``alone`` does the same on
        PostgreSQL.
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
        """Return the result of ``work``, or ``otherwise`` if the database fails.

        There is one warning per outage; it says what trials go on ``without``. After a failure
        there is no further attempt for some time. Reading and writing are retried separately,
        since a full or read-only database can still be read.
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
        # If the database refuses a statement for its content, the next attempt may still succeed.
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
        if not self._prepared:  # after unpickling
            self._prepare(create=True)

    def _prepare(self, create: bool) -> None:
        """Create or migrate the schema; if it is up to date, no lock is taken."""
        if not create and self._own and is_missing(self._url):  # SQLite would create the file
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
            version = self._version(session)  # again: another process may have changed it
            if version is None:
                Base.metadata.create_all(connection)
                session.execute(insert(SchemaRow).values(version=SCHEMA_VERSION))
                return
            for migrate in MIGRATIONS[version - 1 :]:
                migrate(connection)
            session.execute(update(SchemaRow).values(version=SCHEMA_VERSION))

    def _write_ahead(self) -> None:
        """Switch SQLite to write-ahead mode, so that readers do not wait for a writer.

        SQLite stores the mode in the file, so it applies to all connections.
        """
        # A read-only file raises an OperationalError.
        with self.engine.connect() as connection, suppress(OperationalError):
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")

    def _version(self, session: Session) -> int | None:
        if not inspect(session.connection()).has_table(SchemaRow.__tablename__):
            return None
        version = session.scalars(select(SchemaRow.version)).one()
        if version > SCHEMA_VERSION:
            raise ValueError(
                f"store must have tables of version {SCHEMA_VERSION} or older, got {self} with "
                f"version {version}, which a newer optuna_treecv has created."
            )
        return version


#: A store: a URL, an engine or an open database.
AnyStore: TypeAlias = str | URL | Engine | Database


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield parts small enough for one statement.

    A statement may have 32766 parameters in SQLite and 65535 in PostgreSQL.
    """
    for start in range(0, len(values), 500):
        yield values[start : start + 500]


def _url_and_engine(store: str | URL | Engine) -> tuple[URL, Engine | None]:
    """Return the URL of a store, and its engine if the caller passed one."""
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
        if "\0" in str(store):
            raise ValueError("a name cannot hold a null byte")
    except (ArgumentError, ValueError) as error:
        raise ValueError(
            "store must be a SQLAlchemy URL such as 'sqlite:///models.db', got "
            f"{re.sub(':[^:@]*@', ':***@', str(store))!r}."
        ) from error
    if url.drivername == "postgresql":  # SQLAlchemy 2.0 would use psycopg2, 2.1 psycopg
        url = url.set(drivername="postgresql+psycopg")
    if _is_memory(url):
        raise _no_memory(url)
    if (path := _path(url)) is not None:  # absolute: a worker may run in another folder
        url = url.set(database=os.path.abspath(path))
    return url


def _make_engine(url: URL) -> Engine:
    arguments: dict[str, Any] = {}
    if _is_sqlite(url):
        arguments = {"timeout": WAIT_SECONDS}
    elif url.get_driver_name().startswith("psycopg"):
        # The second one limits the wait for a server that disappears after it has connected.
        arguments = {
            "connect_timeout": CONNECT_SECONDS,
            "tcp_user_timeout": 1000 * CONNECT_SECONDS,
        }
    arguments = {name: value for name, value in arguments.items() if name not in url.query}
    try:
        # pool_pre_ping replaces a connection that the server has dropped; this is no outage.
        engine = create_engine(url, connect_args=arguments, pool_pre_ping=not _is_sqlite(url))
    except ImportError as error:
        raise ImportError(
            f"store {without_password(url)} needs a driver that cannot be imported ({error}): pip "
            "install 'optuna-treecv[postgres]' installs psycopg, the driver for postgresql://."
        ) from error
    if engine.dialect.is_async:
        raise ValueError(f"store must name a synchronous driver, got {without_password(url)}.")
    if _is_sqlite(url):
        event.listen(engine, "connect", _enforce_foreign_keys)
    return engine


def _enforce_foreign_keys(connection: Any, record: Any) -> None:
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: Connection, statement: str) -> None:
    """Begin a transaction at once on SQLite, whose driver would begin it at the first change."""
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.dbapi_connection
        if driver.in_transaction:  # an event handler of the user's engine may have begun one
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
    """Return the file of a SQLite URL, or None if the URL does not give a path."""
    name = url.database
    return None if not _is_sqlite(url) or not name or name.startswith("file:") else name


def is_missing(url: str | URL) -> bool:
    """Return whether a URL names a missing SQLite file, which opening it would create."""
    url = make_url(url)
    return not _is_memory(url) and (path := _path(url)) is not None and not os.path.exists(path)


def without_password(url: URL) -> str:
    """Return a URL without its password, for messages."""
    return url.difference_update_query(["password"]).render_as_string(hide_password=True)


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's message; for a database error, the driver's message."""
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(said).splitlines() or [type(said).__name__]
    return " ".join(lines[0].split()).rstrip(".")
