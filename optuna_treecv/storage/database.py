"""The database of a store: connections, transactions, the schema and its migrations."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import wait
from contextlib import contextmanager
from contextlib import nullcontext
from contextlib import suppress
import os
import re
from threading import Lock
from threading import Thread
from time import monotonic
from typing import Any
from typing import TypeGuard
from typing import TypeVar
import warnings
from weakref import finalize

import sqlalchemy as sa
from sqlalchemy import Connection as Connection  # for modules without SQLAlchemy

from optuna_treecv.storage.outages import advice_on
from optuna_treecv.storage.outages import Outages
from optuna_treecv.storage.outages import Scope
from optuna_treecv.storage.tables import EVALUATIONS
from optuna_treecv.storage.tables import METADATA
from optuna_treecv.storage.tables import SCHEMA

#: The base class of all SQLAlchemy errors.
DatabaseError = sa.exc.SQLAlchemyError
#: The errors that a failing database may raise. UnicodeDecodeError is included because the SQLite
#: driver cannot decode all of its messages.
FAILURES = (DatabaseError, OSError, UnicodeDecodeError)


class SchemaError(ValueError):
    """Raised if the version of the tables in a store is missing or unknown."""


#: The seconds within which a server must accept a connection.
CONNECT_SECONDS = 5
#: The seconds to wait for a lock that another process holds.
WAIT_SECONDS = 5.0
#: The seconds that a trial waits for a server. The server also cancels statements that take
#: longer.
ANSWER_SECONDS = 10.0
#: The seconds to wait for a server that reads many rows or changes tables.
LOAD_SECONDS = 300.0
#: The seconds after which a server ends the idle transaction of a process that hangs.
IDLE_SECONDS = 60.0

#: The types of the argument ``store``, besides an open ``Database``.
Given = str | sa.URL | sa.Engine | Callable[[], sa.Engine]

# Scopes of failures besides a single purpose: all attempts, or all attempts to write.
_STORE: Scope = (None, False)
_WRITING: Scope = (None, True)
# The end of the warning "trials continue without ..." if these scopes fail.
_SCOPE_NAMES: dict[Scope | None, str] = {_STORE: "it", _WRITING: "writing to it"}

# The maximum number of abandoned transactions that may still be running. Each of them holds its
# data in memory.
_MAX_ABANDONED = 8

# The key of the advisory lock for writers in a PostgreSQL database.
_LOCK = int.from_bytes(b"treecv", "big")

T = TypeVar("T")


#: The current version of the tables. Tables with an earlier version are migrated when a store is
#: opened.
SCHEMA_VERSION = 5


class Database:
    """A SQLite file or a PostgreSQL database with the tables of this package.

    It is thread-safe. After unpickling, it connects again on first use. After a fork, it does not
    use the connections of the parent process.

    Parameters
    ----------
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable
        An engine is used as it is. A callable, () -> Engine, is called once per process. A pickle
        contains the callable; otherwise, it contains the URL, including the password.
    create : bool
        Whether to create missing tables.

    Raises
    ------
    ValueError
        If the database cannot be used; the message states the reason.
    ImportError
        If the driver is not installed.
    """

    #: How often the file of a SQLite store was deleted or replaced while in use.
    n_files = 0
    _file: tuple[int, int] | None = None
    _prepared = False

    def __init__(self, store: Given, *, create: bool = True) -> None:
        self._make = store if _is_factory(store) else None
        self._url, self._engine = _url_and_engine(store)
        self._own = not isinstance(store, sa.Engine)
        self._start()
        try:
            self._prepare(create)
        except FAILURES as error:
            # SQLite reads a file in write-ahead mode only if it may write to its folder.
            url = f"sqlite:///file:{_path(self._url)}?immutable=1&uri=true"
            is_read_only = _code_of(error).startswith("SQLITE_READONLY")
            hint = f"; if no process writes to the file, use {url}" if is_read_only else ""
            raise ValueError(
                f"store must be a database that can be opened, got {self}: "
                f"{reason_of(error)}{hint}.{advice_on(error)}"
            ) from error

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        # All threads share the connection of a StaticPool, but only one may have a transaction.
        self._static = Lock()
        self._outages = Outages()
        self._abandoned: list[Future[Any]] = []  # abandoned transactions that are still running

    def __str__(self) -> str:
        return without_password(self._url)

    def __getstate__(self) -> dict[str, Any]:
        if _is_memory(self._url):
            raise ValueError(
                f"store {self} cannot be pickled, because no other process can access a database "
                "in memory; use a SQLite file or a PostgreSQL database instead."
            )
        url = str(self) if self._make else self._url.render_as_string(hide_password=False)
        return {"url": url, "make": self._make}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._url, self._engine, self._own = sa.make_url(state["url"]), None, True
        self._make = state["make"]
        self._start()

    @property
    def engine(self) -> sa.Engine:
        """The engine of this process."""
        if self._pid != os.getpid():
            if self._engine is not None:
                # This reference prevents garbage collection of the inherited connections, which
                # would close the sockets or files of the parent process.
                self._inherited = self._engine.pool
                self._engine.dispose(close=False)
            self._start()
        with self._lock:
            if self._engine is None:
                self._engine = _make_engine(self._url) if self._make is None else self._make()
                if self._make is None:
                    finalize(self, _dispose, self._engine, self._pid).atexit = False
            return self._engine

    def close(self) -> None:
        """Close the connections of this process, unless the caller passed the engine."""
        if self._own:
            self.engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Return a context manager that yields a connection for one read transaction."""
        self._prepare_once()
        with self._transaction(write=False) as connection:
            yield connection

    def read(self, work: Callable[[Connection], T]) -> T:
        """Call ``work`` in a read transaction and return its result.

        With a database server, ``work`` is called in another thread, and TimeoutError is raised if
        the server does not respond.
        """

        def transact() -> T:
            with self.reading() as connection:
                return work(connection)

        return self._run_with_timeout(transact, LOAD_SECONDS)

    def sizes(self) -> list[tuple[str, int, int | None]]:
        """Return (name, number of rows, size in bytes) for each table.

        The size is None if unknown.
        """

        def measure(connection: Connection) -> list[tuple[str, int, int | None]]:
            sizes = []
            for table in METADATA.sorted_tables:
                count = sa.select(sa.func.count()).select_from(table)
                n_rows = connection.execute(count).scalar_one()
                sizes.append((table.name, n_rows, _n_bytes(connection, table.name)))
            return sizes

        return self.read(measure)

    def vacuum(self) -> None:
        """Return the space of deleted rows in a SQLite file to the file system.

        PostgreSQL does this automatically.
        """
        if _is_sqlite(self._url):
            engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.exec_driver_sql("VACUUM")

    @contextmanager
    def writing(self, *, alone: bool = False) -> Iterator[Connection]:
        """Return a context manager that yields a connection for one write transaction.

        The transaction is committed at the end.

        SQLite allows only one writer at a time; other writers wait. With ``alone=True``, this is
        also the case in PostgreSQL. Waiting too long for a lock raises an error.
        """
        self._prepare_once()
        with self._transaction(write=True) as connection:
            if alone:
                _exclude_writers(connection)
            yield connection

    def attempt(
        self,
        work: Callable[[Connection], T],
        otherwise: T,
        *,
        without: str,
        write: bool = False,
        alone: bool = False,
    ) -> T:
        """Call ``work`` and return its result; return ``otherwise`` if the database fails.

        There is one warning per outage, which names what trials continue ``without``. After a
        failure, there are no further attempts for some time. If ``work`` fails, this applies only
        to attempts with the same ``without``, because a single table may be corrupt while others
        work. If no transaction can be started, it applies to all attempts. A failure to write does
        not prevent reading, because a locked or read-only database can still be read.

        With a database server, ``work`` is called in another thread. The transaction is abandoned
        if the server does not respond.
        """
        # An attempt to write is also stopped by a failure to read the same table.
        scopes = {_STORE, (without, False)} | ({_WRITING, (without, True)} if write else set())
        if not self._outages.may_try(scopes):
            return otherwise
        start = monotonic()
        is_begun = False

        def transact() -> T:
            nonlocal is_begun
            self._prepare_once()
            with self._transaction(write, ANSWER_SECONDS) as connection:
                is_begun = True
                if alone:
                    _exclude_writers(connection)
                return work(connection)

        try:
            result = self._run_with_timeout(transact, ANSWER_SECONDS)
        except (*FAILURES, SchemaError) as failure:
            error = self._find_cause(failure) if is_begun else failure
            failing = self._failing_scope(error, is_begun, (without, write))
            if is_begun:  # neither the store nor writing fails as a whole
                self._outages.end({_STORE, _WRITING} & scopes - {failing})
            if failing is None or self._outages.note(failing, monotonic() - start):
                missing = _SCOPE_NAMES.get(failing, without)
                warnings.warn(
                    f"store {self}: {reason_of(error)}; trials continue without "
                    f"{missing}.{advice_on(error)}",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return otherwise
        self._outages.end(scopes)
        return result

    def _run_with_timeout(self, transact: Callable[[], T], seconds: float) -> T:
        """Return the result of ``transact``; raise TimeoutError if a server does not respond."""
        if _is_sqlite(self._url):  # it only waits for locks
            return transact()
        engine = self.engine  # after a fork, this is a new engine
        # The timeouts of a server do not work if it is suspended. A driver would then wait
        # forever, even for a connection from its pool.
        self._abandoned = [future for future in self._abandoned if not future.done()]
        if len(self._abandoned) >= _MAX_ABANDONED:
            raise TimeoutError(f"{_MAX_ABANDONED} transactions still have no response")
        answer: Future[T] = Future()
        # This must be a daemon thread. At exit, Python would wait for the thread of an executor.
        Thread(target=_settle, args=(answer, transact), daemon=True).start()
        wait([answer], seconds)
        if not answer.done():
            self._abandoned.append(answer)
            engine.dispose()  # idle connections may be broken, too
            raise TimeoutError(f"no response within {seconds:g} seconds")
        return answer.result()

    def _find_cause(self, error: Exception) -> Exception:
        """Return the cause of a failed statement, which may be a change of the schema."""
        if not isinstance(error, sa.exc.ProgrammingError | sa.exc.IntegrityError):
            if _code_of(error) != "SQLITE_ERROR":  # a missing or an unexpected column
                return error
        try:
            self._run_with_timeout(self._read_version, ANSWER_SECONDS)
        except SchemaError as newer:
            self._prepared = False  # later attempts check the schema first
            return newer
        except FAILURES:
            pass
        return error

    def _failing_scope(self, error: Exception, is_begun: bool, scope: Scope) -> Scope | None:
        """Return the scope of attempts that a failure prevents, or None."""
        if isinstance(error, SchemaError):
            return _STORE
        # If the database rejects a statement because of its content, the next attempt may succeed.
        if isinstance(error, sa.exc.IntegrityError | sa.exc.DataError):
            return None
        is_lost = isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated
        if is_lost or isinstance(error, TimeoutError):
            return _STORE
        is_read_only = _code_of(error).startswith(("SQLITE_READONLY", "25006"))
        if is_begun and not is_read_only:
            return scope
        return _WRITING if scope[1] and (is_begun or _is_sqlite(self._url)) else _STORE

    @contextmanager
    def _transaction(
        self, write: bool, answer_seconds: float | None = None
    ) -> Iterator[Connection]:
        """Return a context manager that yields a connection for one transaction.

        The transaction is committed at the end if ``write`` is true.

        ``answer_seconds`` limits the time of each statement on a server.
        """
        engine = self.engine
        is_alone = self._static if isinstance(engine.pool, sa.StaticPool) else nullcontext()
        with is_alone, engine.connect() as connection:
            connection.begin()
            if connection.dialect.name == "sqlite":
                # The SQLite driver would begin the transaction only at the first change.
                driver: Any = connection.connection.dbapi_connection
                if driver.in_transaction:  # begun by an event handler of the user's engine
                    connection.exec_driver_sql("ROLLBACK")
                driver.execute(f"PRAGMA busy_timeout = {1000 * WAIT_SECONDS:.0f}")
                connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
            else:
                seconds = {"lock_timeout": WAIT_SECONDS}
                if answer_seconds is not None:
                    seconds["statement_timeout"] = answer_seconds
                    seconds["idle_in_transaction_session_timeout"] = IDLE_SECONDS
                limits = (f"set_config('{n}', '{1000 * s:.0f}', true)" for n, s in seconds.items())
                connection.exec_driver_sql(f"SELECT {', '.join(limits)}")
            yield connection
            if write:
                connection.commit()

    def _prepare_once(self) -> None:
        self._notice_replaced_file()
        if not self._prepared:  # after unpickling, or after the file was replaced
            self._prepare(create=True)

    def _notice_replaced_file(self) -> None:
        """Reconnect if the SQLite file was deleted or replaced, to avoid losing results."""
        if self._file is None or self._file == _file_at(self._url):
            return
        with self._lock:
            if self._file is None:  # another thread has noticed it
                return
            self._file, self._prepared = None, False
            self.n_files += 1
        self.engine.dispose()
        warnings.warn(
            f"store {self}: the file was deleted or replaced while in use; trials continue with "
            "the file that is now at this path, without the results that were stored before.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _prepare(self, create: bool) -> None:
        """Create or migrate the schema. No lock is taken if it is up to date."""
        if not create and self._own and is_missing(self._url):  # connecting would create the file
            raise FileNotFoundError("there is no such file")
        version = self._run_with_timeout(self._read_version, ANSWER_SECONDS)
        if version is None and not create:
            raise FileNotFoundError("no trial has written to this database")
        if version != SCHEMA_VERSION:
            self._run_with_timeout(self._make_schema, LOAD_SECONDS)
        self._file = _file_at(self._url)
        self._prepared = True

    def _make_schema(self) -> None:
        if self._own and self._make is None and _is_sqlite(self._url):
            # In write-ahead mode, readers do not wait for a writer. SQLite stores the mode in the
            # file, so it applies to all connections. If the file is read-only, this raises an
            # OperationalError.
            with self.engine.connect() as connection, suppress(sa.exc.OperationalError):
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        with self._transaction(write=True) as connection:
            _exclude_writers(connection)
            version = self._version(connection)  # another process may have changed it
            if version not in (None, SCHEMA_VERSION):
                _migrate(connection)
            METADATA.create_all(connection)
            connection.execute(sa.delete(SCHEMA))
            connection.execute(sa.insert(SCHEMA).values(version=SCHEMA_VERSION))

    def _read_version(self) -> int | None:
        with self._transaction(write=False, answer_seconds=ANSWER_SECONDS) as connection:
            return self._version(connection)

    def _version(self, connection: Connection) -> int | None:
        """Return the version of the tables, or None if there are none."""
        if not sa.inspect(connection).has_table(SCHEMA.name):
            return None
        # SQLite accepts values of any type in any column.
        query = sa.select(sa.type_coerce(SCHEMA.c.version, sa.types.NullType())).limit(2)
        versions: list[Any] = list(connection.scalars(query))
        if len(versions) != 1 or type(versions[0]) is not int or versions[0] < 1:
            raise SchemaError(
                "store must have exactly one row in its table treecv_schema, a version from 1 to "
                f"{SCHEMA_VERSION}, got {self} with {versions or 'no row'}; nothing was changed."
            )
        if versions[0] > SCHEMA_VERSION:
            raise SchemaError(
                f"store must have tables of version {SCHEMA_VERSION} or older, got {self} with "
                f"version {versions[0]}, which a newer optuna_treecv has created."
            )
        return int(versions[0])


#: A store: a URL, an engine, a callable that returns an engine, or an open database.
AnyStore = Given | Database


def _migrate(connection: Connection) -> None:
    """Migrate existing tables from any earlier version to the current one."""
    # These tables can be dropped. Leases last only a minute, and old models would not be found,
    # because their keys have changed.
    for table in ("treecv_claims", "treecv_models"):
        connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
    columns = sa.inspect(connection).get_columns(EVALUATIONS.name)
    if "n_updates_saved" not in {column["name"] for column in columns}:
        added = "n_updates_saved BIGINT DEFAULT 0 NOT NULL"
        connection.execute(sa.text(f"ALTER TABLE {EVALUATIONS.name} ADD COLUMN {added}"))


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield chunks of values that are small enough for one statement.

    A statement may have 32766 parameters in SQLite and 65535 in PostgreSQL.
    """
    for start in range(0, len(values), 500):
        yield values[start : start + 500]


def _settle(answer: Future[T], work: Callable[[], T]) -> None:
    """Call ``work`` and pass its result or error to a future."""
    try:
        answer.set_result(work())
    except BaseException as error:  # noqa: BLE001  # the caller raises the error
        answer.set_exception(error)


def _is_factory(store: object) -> TypeGuard[Callable[[], sa.Engine]]:
    return callable(store) and not isinstance(store, sa.Engine | sa.URL)


def _url_and_engine(store: Given) -> tuple[sa.URL, sa.Engine | None]:
    """Return the URL of a store, and its engine if an engine or a callable was passed."""
    if _is_factory(store):
        result = store()
        if not isinstance(result, sa.Engine):
            raise ValueError(f"store must return an Engine if it is a callable, got {result!r}.")
        store = result
    if isinstance(store, sa.Engine):
        if _is_memory(store.url) and not isinstance(store.pool, sa.StaticPool):
            raise _no_memory(store.url)
        url, engine = store.url, store
    elif isinstance(store, str | sa.URL):
        url, engine = _parse(store), None
    else:
        raise ValueError(
            "store must be a SQLAlchemy URL or Engine, or a callable that returns an Engine, got "
            f"{store!r}."
        )
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ValueError(
            "store must be SQLite (sqlite:///file.db) or PostgreSQL (postgresql://...), got "
            f"{without_password(url)}."
        )
    return url, engine


def _parse(store: str | sa.URL) -> sa.URL:
    try:
        url = sa.make_url(store)
        if "\0" in str(store):
            raise ValueError("a name cannot contain a null byte")
    except (sa.exc.ArgumentError, ValueError) as error:
        raise ValueError(
            "store must be a SQLAlchemy URL such as 'sqlite:///models.db', got "
            f"{re.sub(':[^:@]*@', ':***@', str(store))!r}."
        ) from error
    if url.drivername == "postgresql":  # by default, SQLAlchemy 2.0 uses psycopg2 and 2.1 psycopg
        url = url.set(drivername="postgresql+psycopg")
    if _is_memory(url):
        raise _no_memory(url)
    if (path := _path(url)) is not None:  # workers may have other working directories
        url = url.set(database=os.path.abspath(path))
    return url


def _dispose(engine: sa.Engine, pid: int) -> None:
    """Close the connections of an unused engine; Python 3.13 would warn about them.

    A forked process must not close the connections of its parent.
    """
    if os.getpid() == pid:
        engine.dispose()


def _make_engine(url: sa.URL) -> sa.Engine:
    arguments: dict[str, Any] = {}
    if _is_sqlite(url):
        arguments = {"timeout": WAIT_SECONDS}
    elif url.get_driver_name().startswith("psycopg"):
        # All of these, except the first, limit the time for noticing that a server has
        # disappeared.
        arguments = {
            "connect_timeout": CONNECT_SECONDS,
            "tcp_user_timeout": 1000 * CONNECT_SECONDS,
            "keepalives_idle": CONNECT_SECONDS,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }
    arguments = {name: value for name, value in arguments.items() if name not in url.query}
    try:
        # pool_pre_ping replaces connections that the server has closed, because this is not an
        # outage.
        engine = sa.create_engine(url, connect_args=arguments, pool_pre_ping=not _is_sqlite(url))
    except ImportError as error:
        raise ImportError(
            f"store {without_password(url)} needs a driver that cannot be imported ({error}): pip "
            "install 'optuna-treecv[postgres]' installs psycopg, the driver for postgresql://."
        ) from error
    if engine.dialect.is_async:
        raise ValueError(f"store must name a synchronous driver, got {without_password(url)}.")
    if _is_sqlite(url):
        sa.event.listen(engine, "connect", _set_up_sqlite)
    return engine


def _set_up_sqlite(connection: Any, record: Any) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.text_factory = _text_or_bytes


def _text_or_bytes(data: bytes) -> str | bytes:
    """Decode text; return bytes unchanged if they cannot be decoded.

    The default of the SQLite driver would raise an error for such bytes.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _exclude_writers(connection: Connection) -> None:
    """Acquire the exclusive lock for writers in PostgreSQL.

    In SQLite, beginning a write transaction acquires such a lock.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")


def _n_bytes(connection: Connection, table: str) -> int | None:
    if connection.dialect.name == "postgresql":
        query = "SELECT pg_total_relation_size(CAST(:table AS regclass))"
    else:
        query = (
            "SELECT SUM(pgsize) FROM dbstat WHERE name IN "
            "(SELECT name FROM sqlite_master WHERE tbl_name = :table)"
        )
    try:
        return connection.scalar(sa.text(query), {"table": table})
    except sa.exc.OperationalError:  # not every build of SQLite has dbstat
        return None


def _is_sqlite(url: sa.URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _is_memory(url: sa.URL) -> bool:
    name = url.database or ":memory:"
    return _is_sqlite(url) and (":memory:" in name or url.query.get("mode") == "memory")


def _no_memory(url: sa.URL) -> ValueError:
    return ValueError(
        "store must be a SQLite file or an Engine with StaticPool, because each connection to "
        f"SQLite in memory is another database, got {without_password(url)}."
    )


def _path(url: sa.URL) -> str | None:
    """Return the path in a SQLite URL, or None if the URL has no path."""
    name = url.database
    return None if not _is_sqlite(url) or not name or name.startswith("file:") else name


def _file_at(url: sa.URL) -> tuple[int, int] | None:
    """Return the device and the inode of a SQLite file, or None if there is no file."""
    try:
        status = None if (path := _path(url)) is None else os.stat(path)
    except OSError:
        return None
    return None if status is None else (status.st_dev, status.st_ino)


def is_missing(url: str | sa.URL) -> bool:
    """Return whether a URL refers to a SQLite file that does not exist."""
    url = sa.make_url(url)
    return not _is_memory(url) and (path := _path(url)) is not None and not os.path.exists(path)


def without_password(url: sa.URL) -> str:
    """Return a URL as text without its password, for messages."""
    return url.difference_update_query(["password"]).render_as_string(hide_password=True)


def _code_of(error: Exception) -> str:
    """Return the error code of the driver; "" if there is none."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    return getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or ""


def reason_of(error: BaseException) -> str:
    """Return the first line of an error message; for database errors, of the driver's message."""
    cause = (
        error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
    )
    lines = str(cause).splitlines() or [type(cause).__name__]
    return " ".join(lines[0].split()).rstrip(".")
