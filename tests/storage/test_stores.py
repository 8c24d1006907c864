"""Stored models: writing and reading, the limit in bytes, damage, and failures of the store."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
import pickle
import threading
import time
import warnings

import numpy as np
import pytest
from sqlalchemy import create_engine
from sqlalchemy import event
from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy import update

from optuna_treecv.storage import database as database_module
from optuna_treecv.storage import model_store as stores
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import record
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.storage.model_store import NewModel
from optuna_treecv.storage.model_store import StoredModel
from optuna_treecv.storage.tables import MODELS

HEADER = 28
# For what does not depend on the kind of the database.
on_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch):
    monkeypatch.setattr(stores, "NEWS_SECONDS", 0.0)


def key_of(i: int) -> bytes:
    return i.to_bytes(32, "big")


def kept(i: int, n_bytes: int = 100, seconds: float = 1.0) -> NewModel:
    payload = np.random.default_rng(i).integers(0, 256, n_bytes, np.uint8)
    return NewModel(key_of(i), payload, seconds)


def payloads(database: Database) -> dict[int, bytes]:
    with database.reading() as session:
        return {row.id: row.payload for row in session.execute(select(MODELS))}


def set_payload(database: Database, id: int, payload: bytes) -> None:
    with database.writing() as session:
        session.execute(update(MODELS).where(MODELS.c.id == id).values(payload=payload))


@contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# Writing and reading.


def test_reads_what_was_written(store_url):
    store = ModelStore(Database(store_url))
    sizes = [0, 1, 7, 4096, 3_000_001]
    store.write([kept(n_bytes, n_bytes) for n_bytes in sizes])
    news = ModelStore(Database(store_url)).read_new()
    assert [known.key for known in news] == [key_of(size) for size in sizes]
    for known, size in zip(news, sizes, strict=True):
        read = store.read(known)
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, kept(size, size).payload)
        assert read.flags.writeable and read.flags.owndata


def test_an_array_of_any_layout(store_url):
    store = ModelStore(Database(store_url))
    strided = np.arange(200, dtype=np.uint8)[::-2]
    store.write([NewModel(key_of(1), strided, 1.0)])
    np.testing.assert_array_equal(store.read(store.read_new()[0]), strided)


def test_news_are_what_came_since(store_url):
    ours, theirs = ModelStore(Database(store_url)), ModelStore(Database(store_url))
    assert ours.read_new() == []
    theirs.write([kept(1), kept(2)])
    assert [known.key for known in ours.read_new()] == [key_of(1), key_of(2)]
    assert ours.read_new() == []
    ours.write([kept(3)])
    theirs.write([kept(4)])
    assert [known.key for known in ours.read_new()] == [key_of(3), key_of(4)]


def test_news_are_one_query_in_two_seconds(store_url, monkeypatch):
    monkeypatch.setattr(stores, "NEWS_SECONDS", 2.0)
    now = 100.0
    monkeypatch.setattr(stores, "monotonic", lambda: now)
    store = ModelStore(Database(store_url))
    queries = []
    event.listen(store.database.engine, "before_cursor_execute", lambda *a: queries.append(a[2]))
    assert store.read_new() == []
    selects = sum("treecv_models" in query for query in queries)
    assert selects == 1
    store.write([kept(1)])
    queries.clear()
    now += 1.9
    assert store.read_new() == []
    assert queries == []
    now += 0.2
    assert len(store.read_new()) == 1
    assert not any("payload" in query for query in queries)


def test_what_is_there_is_not_written_again(store_url):
    store = ModelStore(Database(store_url))
    store.write([kept(1), kept(1), kept(2)])
    store.write([kept(1), kept(2), kept(3)])
    assert [known.key for known in store.read_new()] == [key_of(1), key_of(2), key_of(3)]


@pytest.mark.slow
def test_many_at_once(store_url):
    store = ModelStore(Database(store_url))
    store.write([kept(i) for i in range(1200)])
    store.write([kept(i) for i in range(1300)])
    assert [known.key for known in store.read_new()] == [key_of(i) for i in range(1300)]


def test_a_write_is_one_commit(store_url):
    store = ModelStore(Database(store_url), max_bytes=1000)
    commits = []
    event.listen(store.database.engine, "commit", commits.append)
    store.write([kept(i) for i in range(20)])
    assert len(commits) == 1
    store.write([])
    assert len(commits) == 1
    store.read(store.read_new()[0])
    assert len(commits) == 1


def test_a_pickled_store(store_url):
    store = ModelStore(Database(store_url), max_bytes=12345)
    store.write([kept(1)])
    store.read_new()
    copy = pickle.loads(pickle.dumps(store))
    assert copy.max_bytes == 12345
    np.testing.assert_array_equal(copy.read(copy.read_new()[0]), kept(1).payload)


# The limit in bytes.


@on_sqlite
def test_models_of_least_seconds_a_byte_go_first(store_url):
    store = ModelStore(Database(store_url), max_bytes=10 * (100 + HEADER))
    seconds = np.random.default_rng(0).permutation(4.0 ** np.arange(16))
    store.write([kept(i, seconds=seconds[i]) for i in range(16)])
    left = np.flatnonzero(seconds >= 4.0**6).tolist()
    assert [known.key for known in store.read_new()] == [key_of(i) for i in left]
    # As large as three of them, with more seconds per byte than the three of the fewest.
    store.write([kept(20, 3 * (100 + HEADER) - HEADER, seconds=3 * 4.0**9)])
    left = [*np.flatnonzero(seconds >= 4.0**9).tolist(), 20]
    assert [known.key for known in ModelStore(store.database).read_new()] == [
        key_of(i) for i in left
    ]


@on_sqlite
@pytest.mark.slow
def test_every_model_leaves_eventually(store_url):
    store = ModelStore(Database(store_url), max_bytes=4 * (100 + HEADER))
    store.write([kept(0, seconds=10.0)])
    n_written = 0
    while key_of(0) in [known.key for known in ModelStore(store.database).read_new()]:
        n_written += 1
        store.write([kept(n_written)])
        assert n_written < 200
    # Five models are there when one has to go, and the oldest of the others has an age of 3 / 5.
    assert n_written == 75 and 10 / (1 + 75 / 5) == 1 / (1 + 3 / 5)


@on_sqlite
def test_of_equal_models_the_older_go_first(store_url):
    store = ModelStore(Database(store_url), max_bytes=3 * (100 + HEADER))
    for i in range(5):
        store.write([kept(i)])
    assert [known.key for known in store.read_new()] == [key_of(2), key_of(3), key_of(4)]


@pytest.mark.slow
def test_the_bound_holds(store_url):
    rng = np.random.default_rng(0)
    store = ModelStore(Database(store_url), max_bytes=20_000)
    for i in range(30):
        sizes = rng.integers(0, 3000, 4)
        store.write([kept(10 * i + j, int(n), rng.random()) for j, n in enumerate(sizes)])
        found = payloads(store.database)
        assert sum(map(len, found.values())) <= 20_000
        with store.database.reading() as session:
            assert session.scalar(select(func.sum(MODELS.c.n_bytes))) == sum(
                map(len, found.values())
            )
    assert sum(map(len, found.values())) > 15_000


def test_a_payload_above_the_bound_is_not_written(store_url):
    store = ModelStore(Database(store_url), max_bytes=1000)
    store.write([kept(1), kept(2, 1001 - HEADER, seconds=1e9), kept(3, 1000 - HEADER, 0.0)])
    assert [known.key for known in store.read_new()] == [key_of(1)]
    store.write([kept(3, 1000 - HEADER, seconds=1e9)])
    assert [known.key for known in store.read_new()] == [key_of(3)]


# Damage.


def check_damage(store: ModelStore, known: StoredModel, i: int) -> None:
    """Check that damage is detected, warned of and deleted, and that writing works again."""
    store._has_warned = False
    with pytest.warns(RuntimeWarning, match=rf"invalid rows of treecv_models .* id {known.id} \("):
        assert store.read(known) is None
    assert known.id not in payloads(store.database)
    with no_warning():
        assert store.read(known) is None
        store.write([kept(i)])
        (again,) = store.read_new()
        assert again.key == known.key and again.id > known.id
        np.testing.assert_array_equal(store.read(again), kept(i).payload)


def flip(payload: bytes, position: int) -> bytes:
    damaged = bytearray(payload)
    damaged[position] ^= 0x10
    return bytes(damaged)


@pytest.mark.slow
def test_each_damage_is_found(store_url):
    lengths = [0, 1, 4, HEADER - 1, HEADER, HEADER + 1, HEADER + 99]
    positions = [0, 3, 4, 11, 12, 27, HEADER, HEADER + 50, HEADER + 99]
    damages = [lambda payload, n=n: payload[:n] for n in lengths]
    damages += [lambda payload, n=n: flip(payload, n) for n in positions]
    damages += [lambda payload: payload + b"\0", lambda _: payloads(store.database)[intact.id]]
    store = ModelStore(Database(store_url))
    store.write([kept(i) for i in range(len(damages) + 1)])
    *models, intact = store.read_new()
    found = payloads(store.database)
    for (i, known), damage in zip(enumerate(models), damages, strict=True):
        set_payload(store.database, known.id, damage(found[known.id]))
        check_damage(store, known, i)


@pytest.mark.slow
def test_one_warning_for_all_damaged_models(store_url):
    store = ModelStore(Database(store_url))
    store.write([kept(i) for i in range(60)])
    with store.database.writing() as session:
        session.execute(update(MODELS).values(payload=b"damaged"))
    known = store.read_new()
    with pytest.warns(RuntimeWarning, match="invalid rows of treecv_models .* id 1 ") as w:
        assert [store.read(one) for one in known] == [None] * 60
    assert len(w) == 1 and payloads(store.database) == {}
    store.write([kept(i) for i in range(60)])
    assert [one.key for one in store.read_new()] == [key_of(i) for i in range(60)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("payload", 5),
        ("payload", 2**40),
        ("payload", "text"),
        ("key", 2**40),
        ("key", "text"),
        ("n_bytes", "a"),
        ("n_bytes", 2**62),
        ("n_bytes", -1),
    ],
)
def test_a_value_of_another_type(tmp_path, column, value):
    """SQLite accepts any value. The model is left out, deleted and written again."""
    store = ModelStore(Database(f"sqlite:///{tmp_path / 'store.db'}"))
    written = [kept(i) for i in range(3)]
    store.write(written)
    with store.database.writing() as session:
        session.execute(
            text(f"UPDATE treecv_models SET {column} = :value WHERE id = 2"), {"value": value}
        )
    with pytest.warns(RuntimeWarning, match=rf"treecv_models .* id 2 \({column} must be") as w:
        news = store.read_new()
        found = [store.read(known) for known in news]
        store.write(written)
    assert len([x for x in w if x.category is RuntimeWarning]) == 1
    is_seen = len(news) == 3  # a payload is not looked at before it is needed
    assert [one is None for one in found] == ([False, True, False] if is_seen else [False] * 2)
    assert set(payloads(store.database)) == {1, 3, 4}
    np.testing.assert_array_equal(store.read(store.read_new()[0]), kept(1).payload)


def test_another_store_in_the_place_of_the_old_one(tmp_path):
    """The new store's ids start again and stand for other models."""
    path = tmp_path / "store.db"
    store = ModelStore(Database(f"sqlite:///{path}"))
    store.write([kept(1)])
    (known,) = store.read_new()
    store.database.engine.dispose()
    path.unlink()
    other = ModelStore(Database(f"sqlite:///{path}"))
    other.write([kept(2)])
    assert other.read_new()[0].id == known.id
    with warnings.catch_warnings():
        # Not every file system gives the new file another number when nobody has the old one open.
        warnings.filterwarnings("ignore", message=".*the file was deleted or replaced")
        assert store.read(known) is None
    assert len(payloads(other.database)) == 1


def test_a_file_that_is_deleted_while_in_use(tmp_path, make_evaluation):
    path = tmp_path / "store.db"
    store = ModelStore(Database(f"sqlite:///{path}"))
    store.write([kept(1), kept(2)])
    first, second = store.read_new()
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.warns(RuntimeWarning, match="store .*: the file was deleted or replaced") as w:
        assert store.read(first) is None
        store.write([kept(3)])
        assert record(store.database, make_evaluation(), np.zeros(10))
        assert store.read(second) is None
    assert len(w) == 1
    with no_warning():
        assert [known.key for known in store.read_new()] == [key_of(3)]
    other = ModelStore(Database(f"sqlite:///{path}"))
    assert [known.key for known in other.read_new()] == [key_of(3)]


def test_a_folder_that_is_deleted_while_in_use(tmp_path, make_evaluation, retry_now):
    folder = tmp_path / "folder"
    folder.mkdir()
    store = ModelStore(Database(f"sqlite:///{folder / 'store.db'}"))
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    with pytest.warns(RuntimeWarning) as w:
        store.write([kept(1)])
        assert store.read_new() == []
        assert not record(store.database, make_evaluation(), np.zeros(10))
    assert [str(one.message).split("; trials")[1] for one in w] == [
        " continue with the file that is now at this path, without the results that were "
        "stored before.",
        " continue without writing to it.",
    ]
    folder.mkdir()
    retry_now(store.database)
    with no_warning():
        store.write([kept(1)])
        assert len(store.read_new()) == 1


def test_a_model_that_is_gone(store_url):
    store = ModelStore(Database(store_url))
    store.write([kept(1)])
    (known,) = store.read_new()
    with store.database.writing() as session:
        stores.evict(session, 0)
    with no_warning():
        assert store.read(known) is None


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_that_is_read_is_executed(store_url, tmp_path):
    marker = tmp_path / "executed"
    bomb = pickle.dumps(Bomb(marker))
    store = ModelStore(Database(store_url))
    store.write([kept(1), NewModel(key_of(2), np.frombuffer(bomb, np.uint8), 1.0)])
    first, second = store.read_new()
    set_payload(store.database, first.id, bomb)
    check_damage(store, first, 1)
    assert store.read(second).tobytes() == bomb  # with a valid header it is read as mere bytes
    assert not marker.exists()
    pickle.loads(bomb)
    assert marker.exists()


# Outages.


def check_silence(store: ModelStore, known: StoredModel) -> None:
    assert store.read_new() == []
    assert store.read(known) is None
    store.write([kept(9)])


@pytest.mark.slow
def test_a_server_that_goes_and_comes_back(postgres_server, postgres_url, retry_now):
    store = ModelStore(Database(postgres_url))
    store.write([kept(1)])
    (known,) = store.read_new()
    postgres_server.stop()
    try:
        with pytest.warns(RuntimeWarning, match="; trials continue without it.$") as w:
            check_silence(store, known)
            retry_now(store.database)
            check_silence(store, known)
        assert len(w) == 1
    finally:
        postgres_server.start()
    retry_now(store.database)
    with no_warning():
        np.testing.assert_array_equal(store.read(known), kept(1).payload)
        store.write([kept(2)])
        assert [known.key for known in store.read_new()] == [key_of(2)]


def small_engine(path: Path, n_pages: int):
    """Return an engine for which the disk is full beyond a number of pages."""
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def limit(connection, _):
        connection.execute(f"PRAGMA max_page_count = {n_pages}")

    return engine


def test_a_full_disk(tmp_path, retry_now, make_evaluation):
    path = tmp_path / "store.db"
    room = ModelStore(Database(f"sqlite:///{path}"))
    room.write([kept(1)])
    (known,) = room.read_new()
    store = ModelStore(Database(small_engine(path, 30)))
    with pytest.warns(RuntimeWarning, match="disk is full; trials continue without shared") as w:
        store.write([kept(2), kept(3, 200_000)])
        store.write([kept(4)])
        np.testing.assert_array_equal(store.read(known), kept(1).payload)
    assert len(w) == 1
    assert [known.key for known in room.read_new()] == []  # neither model, not even in part
    with no_warning():
        retry_now(store.database)
        store.write([kept(5)])  # this one fits
    assert [known.key for known in room.read_new()] == [key_of(5)]
    with pytest.warns(RuntimeWarning, match="disk is full; trials continue without records"):
        scores = np.random.default_rng(0).random(30_000)
        assert not record(store.database, make_evaluation(), scores)
    with no_warning():
        retry_now(store.database)
        assert record(store.database, make_evaluation(), scores[:10])


def test_waits_5_seconds_for_a_writer_who_does_not_end(store_url, monkeypatch):
    assert database_module.WAIT_SECONDS == 5
    monkeypatch.setattr(database_module, "WAIT_SECONDS", 0.3)
    store = ModelStore(Database(store_url))
    begin = time.monotonic()
    with Database(store_url).writing(alone=True):
        with pytest.warns(RuntimeWarning, match="trials continue without"):
            store.write([kept(1)])
    assert 0.3 <= time.monotonic() - begin < 60


# Threads.


def test_no_model_is_overlooked_that_was_committed_late(postgres_url, monkeypatch):
    """PostgreSQL assigns ids before the commit, so a larger id may become visible first."""
    slow, quick = ModelStore(Database(postgres_url)), ModelStore(Database(postgres_url))
    reader = ModelStore(Database(postgres_url))
    inserted, found = threading.Event(), []

    @event.listens_for(slow.database.engine, "after_cursor_execute")
    def linger(connection, cursor, statement, *_):
        if "INSERT INTO treecv_models" in statement:
            inserted.set()
            time.sleep(0.3)

    first = threading.Thread(target=slow.write, args=([kept(1)],))
    second = threading.Thread(target=quick.write, args=([kept(2)],))
    first.start()
    assert inserted.wait(120)
    second.start()
    while first.is_alive() or second.is_alive():
        found += reader.read_new()
        time.sleep(0.01)
    found += reader.read_new()
    assert [known.key for known in found] == [key_of(1), key_of(2)]


@pytest.mark.slow
def test_threads_share_a_store(store_url):
    store, reader = (ModelStore(Database(store_url)) for _ in range(2))
    found: list[StoredModel] = []
    failures = []

    def write(i: int) -> None:
        try:
            for j in range(10):
                store.write([kept(100 * i + j)])
                store.read_new()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    with no_warning():
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            found += reader.read_new()
            time.sleep(0.001)
        for thread in threads:
            thread.join()
        found += reader.read_new()
    assert not failures
    assert sorted(model.key for model in found) == [
        key_of(100 * i + j) for i in range(4) for j in range(10)
    ]
