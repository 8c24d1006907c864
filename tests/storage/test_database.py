"""Opening, creating, migrating and losing a store's database, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait
from contextlib import closing
from contextlib import contextmanager
import gc
import multiprocessing
import os
from pathlib import Path
import pickle
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from typing import Any
import warnings

import numpy as np
import optuna
import pytest
from sqlalchemy import create_engine
from sqlalchemy import delete
from sqlalchemy import event
from sqlalchemy import func
from sqlalchemy import insert
from sqlalchemy import inspect
from sqlalchemy import make_url
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy import update
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores
from optuna_treecv.storage import database as database_module
from optuna_treecv.storage import outages
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.database import SCHEMA_VERSION
from optuna_treecv.storage.evaluations import record
from optuna_treecv.storage.model_store import Leases
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.storage.model_store import NewModel
from optuna_treecv.storage.tables import METADATA
from optuna_treecv.storage.tables import MODELS
from optuna_treecv.storage.tables import SCHEMA

FORK = multiprocessing.get_context("fork")
# The scripts that make a store of an old version, one after the other.
OLD_STORE = {1: ["v1"], 2: ["v2"], 3: ["v2", "v3"], 4: ["v2", "v3", "v4"]}


def in_processes(n: int, work: Callable[[int], None]) -> None:
    """Run in n forked processes; a failure in one of them fails the test."""
    failures = FORK.SimpleQueue()

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException:
            failures.put(traceback.format_exc())
        finally:
            os._exit(0)  # without the exit handlers of pytest or the parent

    processes = [FORK.Process(target=run, args=(i,), daemon=True) for i in range(n)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert failures.empty(), failures.get()


def in_threads(n: int, work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(n) as pool:
        list(pool.map(work, range(n)))


def schema_of(database: Database) -> dict[str, object]:
    """Return the schema, which must not depend on how a database was created."""
    inspector = inspect(database.engine)
    return {
        name: (
            {
                column["name"]: (str(column["type"]), column["nullable"], column["default"])
                for column in inspector.get_columns(name)
            },
            inspector.get_pk_constraint(name)["constrained_columns"],
            sorted(tuple(index["column_names"]) for index in inspector.get_indexes(name)),
            [(key["referred_table"], key["options"]) for key in inspector.get_foreign_keys(name)],
        )
        for name in inspector.get_table_names()
    }


def tables_of(url: str) -> list[str]:
    engine = create_engine(url)
    names = inspect(engine).get_table_names()
    engine.dispose()
    return names


def version_of(database: Database) -> int:
    with database.reading() as session:
        return session.scalars(select(SCHEMA.c.version)).one()


def set_version(database: Database, version: int) -> None:
    with database.writing() as session:
        session.execute(update(SCHEMA).values(version=version))


def make_old(url: str, version: int) -> None:
    """Make a store of an old version; on SQLite, from the dump of a real one."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(make_url(url).database)) as connection:
            for name in OLD_STORE[version]:
                script = Path(__file__).with_name(f"store_{name}.sql")
                connection.executescript(script.read_text())
        return
    database = Database(url)
    with database.writing() as session:
        if version == 4:
            for column in ("low", "high"):
                session.execute(text(f"ALTER TABLE treecv_models ADD COLUMN {column} FLOAT"))
        else:
            session.execute(text("DROP TABLE treecv_leases"))
        if version == 3:
            session.execute(text("CREATE TABLE treecv_claims (key BYTEA PRIMARY KEY)"))
        if version == 1:
            session.execute(text("DROP TABLE treecv_models"))
            session.execute(text("ALTER TABLE treecv_evaluations DROP COLUMN n_updates_saved"))
        session.execute(update(SCHEMA).values(version=version))
    database.engine.dispose()


@contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# Opening.


@pytest.mark.slow
def test_makes_the_schema_once(store_url):
    first = Database(store_url)
    assert set(inspect(first.engine).get_table_names()) == set(METADATA.tables)
    assert all(name.startswith("treecv_") for name in METADATA.tables)
    second = Database(store_url)
    assert version_of(second) == SCHEMA_VERSION == 5


def test_an_open_store_takes_no_lock(store_url):
    with Database(store_url).writing(alone=True):
        Database(store_url)


def test_sqlite_writes_ahead_and_enforces_foreign_keys(tmp_path):
    Database(f"sqlite:///{tmp_path / 'store.db'}")
    database = Database(f"sqlite:///{tmp_path / 'store.db'}")
    with database.engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 5_000}


def test_postgresql_means_psycopg(postgres_url):
    database = Database(postgres_url.replace("+psycopg", ""))
    assert database.engine.driver == "psycopg"


def test_a_url_object_and_an_engine_are_stores(store_url):
    engine = create_engine(store_url)
    assert Database(engine).engine is engine
    assert version_of(Database(make_url(store_url))) == SCHEMA_VERSION


def test_a_users_engine_is_used_as_it_is(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'store.db'}")
    Database(engine)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "delete"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 0


def test_a_path_is_the_same_file_in_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    database = Database("sqlite:///store.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert version_of(pickle.loads(pickle.dumps(database))) == SCHEMA_VERSION
    assert not list((tmp_path / "elsewhere").iterdir())


# Refusals.


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        (3, "store must be a SQLAlchemy URL or Engine, or a callable .*, got 3"),
        (None, "store must be a SQLAlchemy URL or Engine, or a callable .*, got None"),
        ("models.db", "store must be a SQLAlchemy URL such as 'sqlite:///models.db', got 'models"),
        ("mysql://me:secret@host/name", r"PostgreSQL .*, got mysql://me:\*\*\*@host/name"),
        ("postgres://host/name", "store must be SQLite .* or PostgreSQL .*got postgres://host"),
        ("sqlite+nothing:///x.db", "store must .*nothing"),
        ("sqlite://", "each connection to SQLite in memory is another database"),
        ("sqlite:///:memory:", "another database"),
        ("sqlite:///file:name?mode=memory&cache=shared&uri=true", "another database"),
        ("sqlite:////no/such/folder/x.db", "store must be .*unable to open database file"),
        ("sqlite:////tmp", "store must be .*unable to open database file"),
        ("host:secret@x", r"store must be a SQLAlchemy URL .*'host:\*\*\*@x'"),
    ],
)
def test_refuses(store, reason):
    with pytest.raises(ValueError, match=reason) as refusal:
        Database(store)
    assert "secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_refuses_an_engine_in_memory_without_a_static_pool():
    with pytest.raises(ValueError, match="Engine with StaticPool"):
        Database(create_engine("sqlite://"))


def test_refuses_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be one" * 50)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="store must be .*notes.txt: file is not a database"):
        Database(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_refuses_a_server_that_is_not_there():
    pytest.importorskip("psycopg")
    with closing(socket.socket()) as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(ValueError, match="store must be .*[Cc]onnection refused") as refusal:
            Database(f"postgresql://me:secret@127.0.0.1:{port}/name?password=secret")
    assert "secret" not in str(refusal.value)


def test_waits_5_seconds_for_a_server():
    pytest.importorskip("psycopg")
    given = []

    def connect(dialect, record, arguments, options):
        given.append(options)
        raise OSError("timeout expired")

    for query, seconds in [("", 5), ("?connect_timeout=9", "9")]:
        database = Database.__new__(Database)
        database.__setstate__({"url": f"postgresql+psycopg://me@host/name{query}", "make": None})
        event.listen(database.engine, "do_connect", connect)
        with pytest.warns(RuntimeWarning, match="timeout expired"):
            assert look(database) is None
        assert given[-1]["connect_timeout"] == seconds
        assert given[-1]["tcp_user_timeout"] == 5000
        assert given[-1]["keepalives_idle"] == 5


def test_a_missing_driver_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"pip install 'optuna-treecv\[postgres\]'"):
        Database("postgresql://host/name")


def test_refuses_a_newer_schema(store_url):
    set_version(Database(store_url), SCHEMA_VERSION + 1)
    before = tables_of(store_url)
    with pytest.raises(ValueError, match="store must have .*version 5 or older, got .*version 6"):
        Database(store_url)
    assert tables_of(store_url) == before


@pytest.mark.parametrize("versions", [["x"], [None], [2.5], [0], [-1], [], [4, 4]])
def test_refuses_an_impossible_version(tmp_path, versions):
    path = tmp_path / "store.db"
    Database(f"sqlite:///{path}").engine.dispose()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE treecv_schema")
        connection.execute("CREATE TABLE treecv_schema (version)")
        connection.executemany("INSERT INTO treecv_schema VALUES (?)", [(v,) for v in versions])
        connection.commit()
        before = list(connection.iterdump())
        with pytest.raises(
            ValueError, match="store must have exactly one row in its table treecv_schema.*got sql"
        ):
            Database(f"sqlite:///{path}")
        assert list(connection.iterdump()) == before


def test_opens_only_what_is_there_if_asked_to(store_url, tmp_path):
    with pytest.raises(ValueError, match="store must be"):
        Database(store_url, create=False)
    assert not (tmp_path / "store.db").exists()
    sqlite3.connect(tmp_path / "store.db").close()
    with pytest.raises(ValueError, match="no trial has written to this database"):
        Database(store_url, create=False)
    Database(store_url)
    Database(store_url, create=False)


# Migrating.


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_migrates_an_old_store(store_url, tmp_path, request, version):
    make_old(store_url, version)
    migrated = Database(store_url)
    assert version_of(migrated) == SCHEMA_VERSION
    if store_url.startswith("sqlite"):
        new = f"sqlite:///{tmp_path / 'new.db'}"
    else:
        new = request.getfixturevalue("postgres_server").new_schema()
    assert schema_of(migrated) == schema_of(Database(new))


def test_keeps_what_version_1_wrote(tmp_path, make_evaluation):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    make_old(url, 1)
    database = Database(url)
    old = load_evaluations(database)
    assert old["trial_number"].tolist() == [0, 1]
    assert old["state"].tolist() == ["complete", "pruned"]
    assert old["mean"].tolist() == [0.25, np.inf]
    assert old["params_alpha"].tolist() == [0.5, 2.0]
    assert old["random_state"].tolist() == [str(2**64 - 1)] * 2
    assert old["n_updates_saved"].tolist() == [0, 0]
    scores = load_fold_scores(database)["score"].tolist()
    assert scores == [0.125, 0.25, 0.25, 0.375, 0.5, np.inf]
    assert record(database, make_evaluation(n_updates_saved=7), np.zeros(10))
    assert load_evaluations(database)["n_updates_saved"].tolist() == [0, 0, 7]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_keeps_what_later_versions_wrote(tmp_path, version):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    make_old(url, version)
    store = ModelStore(Database(url))
    assert load_evaluations(store.database)["n_updates_saved"].tolist() == [50]
    assert load_fold_scores(store.database)["score"].tolist() == [0.125, 0.25, 0.25, 0.375]
    assert store.read_new() == []  # models of old keys are of no use
    store.write([NewModel(b"new", np.zeros(3), 1.0)])
    store.refresh()
    assert [known.key for known in store.read_new()] == [b"new"]
    with Leases(store).hold(["ab"]) as mine:
        assert mine == ["ab"]


def test_a_migration_that_fails_leaves_the_old_store(store_url, monkeypatch):
    make_old(store_url, 1)

    migrate = database_module._migrate

    def migrate_and_fail(connection: Any) -> None:
        migrate(connection)
        connection.execute(text("SELECT * FROM treecv_nothing"))

    with monkeypatch.context() as patched:
        patched.setattr(database_module, "_migrate", migrate_and_fail)
        patched.setattr(database_module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        with pytest.raises(ValueError, match="store must be .*treecv_nothing"):
            Database(store_url)
    assert "treecv_models" not in tables_of(store_url)
    assert version_of(Database(store_url)) == SCHEMA_VERSION


@pytest.mark.slow
@pytest.mark.parametrize("begin", ["nothing", "version 1"])
def test_processes_make_or_migrate_at_once(store_url, begin):
    if begin != "nothing":
        make_old(store_url, int(begin[-1]))
    barrier = FORK.Barrier(4)

    def work(i: int) -> None:
        barrier.wait(120)
        assert version_of(Database(store_url)) == SCHEMA_VERSION

    in_processes(4, work)
    database = Database(store_url)
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(SCHEMA)) == 1
        if store_url.startswith("sqlite"):
            assert session.scalar(text("PRAGMA journal_mode")) == "wal"


# Transactions.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_writers_wait_for_each_other(store_url, kind):
    database = Database(store_url)
    with database.writing() as session:
        session.execute(insert(SCHEMA).values(version=-1000))

    def count(i: int) -> None:
        for _ in range(10):
            with database.writing(alone=True) as session:
                found = session.scalars(select(SCHEMA.c.version).order_by(SCHEMA.c.version))
                lowest = found.first()
                time.sleep(0.001)
                session.execute(
                    update(SCHEMA)
                    .where(SCHEMA.c.version == lowest)
                    .values(version=SCHEMA.c.version + 1)
                )

    if kind == "processes":
        in_processes(4, count)
    else:
        in_threads(4, count)
    with database.reading() as session:
        assert session.scalar(select(func.min(SCHEMA.c.version))) == -1000 + 40


def test_an_error_undoes_the_transaction(store_url):
    database = Database(store_url)
    with pytest.raises(KeyError):
        with database.writing() as session:
            session.execute(update(SCHEMA).values(version=7))
            raise KeyError
    assert version_of(database) == SCHEMA_VERSION


def test_an_engine_that_begins_by_itself(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'store.db'}")

    @event.listens_for(engine, "begin")
    def begin(connection):
        connection.exec_driver_sql("BEGIN")

    database = Database(engine)
    set_version(database, 1)
    assert version_of(database) == 1


def test_threads_share_the_one_connection_of_a_static_pool():
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    database = Database(engine)

    def work(i: int) -> None:
        for _ in range(20):
            with database.writing() as session:
                session.execute(update(SCHEMA).values(version=SCHEMA.c.version + 1))
                time.sleep(0.0005)
                if i == 0:
                    session.rollback()

    in_threads(4, work)
    with database.reading() as session:
        assert session.scalars(select(SCHEMA.c.version)).one() == SCHEMA_VERSION + 60


# Other processes.


def test_pickles_without_its_engine(store_url):
    database = Database(store_url)
    made = []
    event.listen(database.engine, "connect", lambda *_: made.append(1))
    for store in (database, Database(create_engine(store_url))):
        copy = pickle.loads(pickle.dumps(store))
        assert copy._engine is None
        assert str(copy) == str(store)
        assert version_of(copy) == SCHEMA_VERSION
        assert copy.engine is not store.engine


def test_a_pickle_keeps_the_password():
    database = Database.__new__(Database)
    database.__setstate__({"url": "postgresql+psycopg://me:secret@host/name", "make": None})
    assert "secret" not in str(database)
    assert pickle.loads(pickle.dumps(database))._url.password == "secret"


def engine_of_the_environment():
    return create_engine(os.environ["TEST_STORE"])


def test_a_callable_keeps_the_password_out_of_pickles(postgres_url, monkeypatch):
    monkeypatch.setenv("TEST_STORE", postgres_url.replace("treecv@", "treecv:secret@"))
    database = Database(engine_of_the_environment)
    assert database.engine.url.password == "secret"
    pickled = pickle.dumps(database)
    assert b"secret" not in pickled and "secret" not in str(database)
    copy = pickle.loads(pickled)
    assert str(copy) == str(database)
    assert version_of(copy) == SCHEMA_VERSION
    assert copy.engine is not database.engine


def test_a_callable_returns_an_engine():
    with pytest.raises(ValueError, match="store must return an Engine if it is a callable, got 3"):
        Database(lambda: 3)


def test_a_pickled_one_makes_the_schema_where_it_arrives(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'store.db'}")
    pickled = pickle.dumps(database)
    database.engine.dispose()
    for path in tmp_path.iterdir():
        path.unlink()
    assert version_of(pickle.loads(pickled)) == SCHEMA_VERSION


def test_refuses_to_pickle_memory():
    database = Database(create_engine("sqlite://", poolclass=StaticPool))
    with pytest.raises(ValueError, match="^store .* cannot be pickled, because no other process"):
        pickle.dumps(database)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["url", "engine"])
def test_a_forked_child_leaves_its_parents_connections_alone(store_url, given):
    database = Database(store_url if given == "url" else create_engine(store_url))
    made = []
    event.listen(database.engine, "connect", lambda *_: made.append(os.getpid()))

    def server_process() -> int:
        with database.reading() as session:
            if database.engine.dialect.name == "sqlite":
                return id(session.connection.dbapi_connection)
            return session.scalar(text("SELECT pg_backend_pid()"))

    database.engine.dispose()
    before = server_process()

    def child(i: int) -> None:
        database._lock.acquire()  # as if another thread of the parent held it
        made.clear()
        assert server_process() != before or store_url.startswith("sqlite")
        assert made == [os.getpid()]
        with database.writing() as session:
            session.execute(update(SCHEMA).values(version=SCHEMA.c.version + 10))

    in_processes(1, child)
    assert server_process() == before
    assert made == [os.getpid()]
    with database.reading() as session:
        assert session.scalars(select(SCHEMA.c.version)).one() == SCHEMA_VERSION + 10


# Outages.


def look(database: Database) -> int | None:
    return database.attempt(
        lambda session: session.scalars(select(SCHEMA.c.version)).one(), None, without="it"
    )


def test_a_table_that_is_locked_stops_what_needs_it(
    postgres_url, monkeypatch, make_evaluation, retry_now
):
    monkeypatch.setattr(database_module, "WAIT_SECONDS", 0.3)
    store = ModelStore(Database(postgres_url))
    with Database(postgres_url).writing() as session:
        session.execute(text("LOCK TABLE treecv_models"))
        with pytest.warns(RuntimeWarning, match="timeout; trials continue without shared") as w:
            assert store.read_new() == []
            store.write([NewModel(b"k", np.zeros(3, np.uint8), 1.0)])
            with Leases(store).hold(["ab"]) as mine:
                assert mine == ["ab"] and Leases(store).leased_keys() == {"ab"}
            assert record(store.database, make_evaluation(), np.zeros(10))
        assert len(w) == 1
    retry_now(store.database)
    with no_warning():
        store.write([NewModel(b"k", np.zeros(3, np.uint8), 1.0)])
        store.refresh()
        assert len(store.read_new()) == 1


@contextmanager
def stopped(pid: int):
    """Stop a process for the time of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["url", "engine"])
def test_a_backend_that_is_stopped(postgres_url, monkeypatch, retry_now, given):
    engine = create_engine(postgres_url, pool_pre_ping=True)
    database = Database(postgres_url if given == "url" else engine)
    with database.reading() as session:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
    monkeypatch.setattr(database_module, "ANSWER_SECONDS", 0.5)
    with stopped(pid):
        with pytest.warns(RuntimeWarning, match="no response within .* continue without it.") as w:
            assert look(database) is None
            assert look(database) is None
        assert len(w) == 1
        retry_now(database)
        monkeypatch.setattr(database_module, "ANSWER_SECONDS", 60.0)
        with no_warning():  # on another connection
            assert look(database) == SCHEMA_VERSION


@pytest.mark.slow
def test_making_the_tables_does_not_wait_for_ever(postgres_url, monkeypatch):
    monkeypatch.setattr(database_module, "LOAD_SECONDS", 0.5)
    exclude, has_begun = database_module._exclude_writers, threading.Event()

    def exclude_and_stop(session):
        with stopped(session.scalar(text("SELECT pg_backend_pid()"))):
            has_begun.set()
            exclude(session)

    monkeypatch.setattr(database_module, "_exclude_writers", exclude_and_stop)
    with pytest.raises(ValueError, match="store must be .* no response within 0.5 seconds"):
        Database(postgres_url)
    assert has_begun.is_set()


@pytest.mark.slow
def test_what_waits_for_a_server_is_bounded(postgres_url, monkeypatch):
    """A server may accept connections and answer nothing on any of them."""
    database, go, begun = Database(postgres_url), threading.Event(), []
    monkeypatch.setattr(database_module, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(outages, "PAUSE_PER_SECOND", 0)
    monkeypatch.setattr(outages, "RETRY_SECONDS", 0)

    def work(session):
        begun.append(1)
        return go.wait(600)

    with pytest.warns(
        RuntimeWarning, match="no response within 0.1 seconds; trials continue"
    ) as w:
        for _ in range(20):
            assert database.attempt(work, "nothing", without="it") == "nothing"
    assert len([one for one in w if one.category is RuntimeWarning]) == 1
    assert len(database._abandoned) == 8 >= len(begun)
    go.set()
    wait(database._abandoned, 60)
    monkeypatch.setattr(database_module, "ANSWER_SECONDS", 60.0)
    with no_warning():
        assert look(database) == SCHEMA_VERSION


@pytest.mark.slow
def test_loaders_do_not_wait_for_ever_either(postgres_url, monkeypatch):
    database = Database(postgres_url)
    with database.reading() as session:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
    for load in (load_evaluations, load_fold_scores):
        monkeypatch.setattr(database_module, "LOAD_SECONDS", 0.5)
        with stopped(pid):
            with pytest.raises(
                ValueError, match="store must be a readable database.*no response within 0.5"
            ):
                load(database)
        monkeypatch.setattr(database_module, "LOAD_SECONDS", 60.0)
        assert load(database).empty
        with database.reading() as session:
            pid = session.scalar(text("SELECT pg_backend_pid()"))


@pytest.fixture(params=["treecv", "ordinary"])
def full_server(request, postgres_server, postgres_url):
    """Return a URL of a server with six connections, and a function that takes those left.

    Two of them are reserved for superusers, of whom "treecv" is one.
    """
    postgres_server.stop()
    postgres_server.start("-c max_connections=6 -c superuser_reserved_connections=2")
    schema = postgres_url.partition("search_path%3D")[2]
    admin = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql("CREATE ROLE ordinary LOGIN")
        connection.exec_driver_sql(f"GRANT ALL ON SCHEMA {schema} TO ordinary")
    admin.dispose()
    url = postgres_url.replace("treecv@", f"{request.param}@")
    others = create_engine(url, pool_size=10)
    taken = []

    def take():
        with pytest.raises(OperationalError):
            while len(taken) < 10:
                taken.append(others.connect())

    yield url, take
    for connection in taken:
        connection.close()
    others.dispose()
    postgres_server.stop()
    postgres_server.start()
    with admin.connect() as connection:
        connection.exec_driver_sql("DROP OWNED BY ordinary")
        connection.exec_driver_sql("DROP ROLE ordinary")
    admin.dispose()


FULL = (
    "(too many clients|slots are reserved).* increase max_connections of the server to at least 5"
)


@pytest.mark.slow  # it waits for the server
def test_a_server_without_a_free_connection(full_server):
    url, take = full_server
    database = Database(url)
    database.engine.dispose()
    take()
    with pytest.raises(ValueError, match=FULL):
        Database(url)
    with pytest.warns(RuntimeWarning, match=FULL):
        database.attempt(lambda connection: None, None, without="models")


@pytest.mark.slow  # it waits for the server
def test_a_trial_without_a_connection_to_its_storage(full_server, binary):
    """Optuna's own message blames the data."""
    url, take = full_server
    storage = optuna.storages.RDBStorage(url)
    trial = optuna.create_study(storage=storage).ask()

    def make(trial):
        storage.engine.dispose()
        take()
        return PegasosClassifier(alpha=trial.suggest_float("alpha", 0.1, 1.0))

    with pytest.raises(optuna.exceptions.StorageInternalError, match="invalid data") as caught:
        treecv_objective(make, *binary)(trial)
    (note,) = caught.value.__notes__
    assert "in trial 0" in note and "at least 5 times the number of workers" in note


class Failing:
    """Work on a store that always fails, on a clock that the test sets."""

    def __init__(self, monkeypatch, seconds=0.0):
        self.now, self.seconds, self.n_attempts = 1000.0, seconds, 0
        for module in (database_module, outages):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)

    def __call__(self, session):
        self.n_attempts += 1
        self.now += self.seconds
        raise OperationalError("SELECT 1", {}, sqlite3.OperationalError("gone"))

    def attempt(self, database):
        assert database.attempt(self, "nothing", without="models") == "nothing"


@pytest.fixture
def database(tmp_path):
    return Database(f"sqlite:///{tmp_path / 'store.db'}")


def test_what_cannot_be_read_is_not_written(database, monkeypatch):
    """Whoever has locked a table would make a trial wait twice."""
    with pytest.warns(RuntimeWarning, match="gone; trials continue without models"):
        Failing(monkeypatch).attempt(database)
    assert not database.attempt(write, False, without="models", write=True)
    assert database.attempt(write, False, without="leases", write=True)


def test_one_thread_tries_whether_an_outage_is_over(database, monkeypatch):
    class Nested(Failing):
        def __call__(self, session):
            if self.n_attempts:
                self.now += 1.0
                n_attempts, self.n_attempts = self.n_attempts, 0
                self.attempt(database)  # as another thread would, meanwhile
                assert self.n_attempts == 0
                self.n_attempts = n_attempts
            super().__call__(session)

    failing = Nested(monkeypatch)
    with pytest.warns(RuntimeWarning, match="gone"):
        failing.attempt(database)
    failing.now += 30.1
    failing.attempt(database)
    assert failing.n_attempts == 2


@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 30.0), (10.0, 50.0)])
def test_an_outage_is_left_alone_for_a_while(database, monkeypatch, seconds, pause):
    """For 30 seconds, or for five times what the attempt has taken."""
    failing = Failing(monkeypatch, seconds)
    with pytest.warns(RuntimeWarning, match="gone; trials continue without models"):
        failing.attempt(database)
    for elapsed, n_attempts in [(0.0, 1), (pause - 0.1, 1), (0.2, 2)]:
        failing.now += elapsed
        with no_warning():
            failing.attempt(database)
        assert failing.n_attempts == n_attempts


@pytest.mark.slow
def test_python_exits_without_a_transaction_that_is_stuck(postgres_url, tmp_path):
    script = f"""
import time
from optuna_treecv.storage.database import Database
try:
    Database({postgres_url!r})._run_with_timeout(lambda: time.sleep(1000), 0.1)
except TimeoutError:
    raise SystemExit(3)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 3


@pytest.mark.slow  # it waits
def test_a_server_that_started_anew_is_no_outage(postgres_server, postgres_url):
    database = Database(postgres_url)
    assert look(database) == SCHEMA_VERSION
    postgres_server.stop()
    postgres_server.start()
    with no_warning():
        assert look(database) == SCHEMA_VERSION


def test_an_operating_system_error_is_an_outage_and_others_are_raised(database):
    def burn(session):
        raise OSError("the disk is on fire")

    with pytest.warns(RuntimeWarning, match="on fire"):
        assert database.attempt(burn, 7, without="it") == 7
    with pytest.raises(ZeroDivisionError):
        database.attempt(lambda session: 1 / 0, 7, without="others")


def write(session) -> bool:
    session.execute(update(SCHEMA).values(version=SCHEMA_VERSION))
    return True


def check_read_only(url: str, retry_now: Callable[[Database], None]) -> None:
    database = Database(url)
    assert look(database) == SCHEMA_VERSION
    with pytest.warns(RuntimeWarning, match="attempt to write a readonly database; trials"):
        assert not database.attempt(write, False, without="it", write=True)
    with no_warning():
        assert look(database) == SCHEMA_VERSION
        retry_now(database)
        assert not database.attempt(write, False, without="it", write=True)
    with pytest.raises(OperationalError):
        with database.writing() as session:
            write(session)


def test_a_read_only_store_is_read(tmp_path, retry_now):
    path = tmp_path / "store.db"
    Database(f"sqlite:///{path}").engine.dispose()
    check_read_only(f"sqlite:///file:{path}?mode=ro&uri=true", retry_now)


def test_a_read_only_file_without_the_schema_is_refused(tmp_path):
    path = tmp_path / "store.db"
    sqlite3.connect(path).execute("CREATE TABLE other (x)").connection.close()
    with pytest.raises(ValueError, match="store must be .*attempt to write a readonly database"):
        Database(f"sqlite:///file:{path}?mode=ro&uri=true")


@pytest.mark.parametrize("folder", ["writable", "read-only"])
def test_a_file_that_the_user_may_not_write_is_read(folder, retry_now):
    path = Path(tempfile.mkdtemp(prefix="treecv-")) / "store.db"
    try:
        Database(f"sqlite:///{path}").engine.dispose()
        path.chmod(0o444)
        path.parent.chmod(0o777 if folder == "writable" else 0o555)

        def child(i: int) -> None:
            if os.getuid() == 0:  # file modes do not restrict root
                os.setgid(65534)
                os.setuid(65534)
            url = f"sqlite:///{path}"
            if folder == "read-only":  # SQLite cannot create the files that readers share
                with pytest.raises(ValueError, match="readonly database; .* sqlite:///file:") as e:
                    Database(url)
                url = str(e.value).split()[-1].removesuffix(".")
            check_read_only(url, retry_now)

        in_processes(1, child)
    finally:
        path.parent.chmod(0o777)
        shutil.rmtree(path.parent)


# In one database with Optuna.


@pytest.mark.slow
def test_a_study_in_the_same_database(store_url):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=store_url, study_name="both")
    database = Database(store_url)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    assert version_of(database) == SCHEMA_VERSION
    optuna.delete_study(study_name="both", storage=store_url)
    assert optuna.get_all_study_names(store_url) == []
    Database(store_url)


def test_ids_of_models_are_never_used_again(store_url):
    database = Database(store_url)
    ids = []
    for _ in range(3):
        with database.writing() as session:
            row = insert(MODELS).values(key=b"k", n_bytes=1, seconds=1.0, payload=b"p")
            ids += session.execute(row).inserted_primary_key
            session.execute(delete(MODELS))
    assert ids == sorted(set(ids))


def test_foreign_keys_cascade(store_url, make_evaluation):
    database = Database(store_url)
    assert record(database, make_evaluation(), np.zeros(10))
    assert record(database, make_evaluation(), np.zeros(2000))
    with database.writing() as session:
        session.execute(text("DELETE FROM treecv_evaluations"))
    with database.reading() as session:
        for table in METADATA.tables.values():
            if "score" in table.name:
                assert session.scalar(select(func.count()).select_from(table)) == 0


@pytest.mark.slow
def test_a_database_that_goes_closes_its_connections(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'store.db'}")
    closed = []
    event.listen(database.engine, "close", lambda *_: closed.append(True))
    with database.reading():
        pass
    assert not closed
    del database
    gc.collect()
    assert closed
