"""Store models and results as bytes that workers share; leases prevent duplicate work.

This module neither interprets nor executes the bytes.
"""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextlib import suppress
from functools import partial
import hashlib
import os
from struct import Struct
from threading import Condition
from threading import Event
from threading import Lock
from threading import Thread
from time import monotonic
from time import sleep
from typing import Any
from typing import NamedTuple
from uuid import uuid4
import warnings
from weakref import WeakSet

import numpy as np
import sqlalchemy as sa

from optuna_treecv.storage.database import chunks
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.tables import LEASES
from optuna_treecv.storage.tables import MODELS
from optuna_treecv.storage.tables import Omitted
from optuna_treecv.storage.tables import read_checked

#: The minimum seconds between two queries for models that other workers have written.
NEWS_SECONDS = 2.0

#: The default maximum of the total size of all models in bytes.
DEFAULT_MAX_BYTES = 2**28

# The end of the warning "trials continue without ..." if the database fails.
_SHARED_MODELS = "shared models"

# The header of a payload: magic bytes, number of bytes, and a digest of the key and the bytes.
_HEADER = Struct("<4sQ16s")
_MAGIC = b"TCV2"

# The maximum size of a model in bytes.
_MAX_MODEL_BYTES = 2**40

_KNOWN = (MODELS.c.id, MODELS.c.key, MODELS.c.n_bytes)
_WITH_PAYLOAD = (MODELS.c.id, MODELS.c.payload)


class NewModel(NamedTuple):
    """A model to write to the store."""

    key: bytes
    payload: np.ndarray
    seconds: float


class StoredModel(NamedTuple):
    """An entry of the store."""

    id: int
    key: bytes


class ModelStore:
    """A store of shared models in a database, with a limited total size.

    If the database fails, there is a warning instead of an error, and models are not shared for
    some time. A store is thread-safe and can be pickled.

    Parameters
    ----------
    database : Database
        The database of the models.
    max_bytes : int
        The maximum of the total size of all models. Old models, and models with a short training
        time per byte, are deleted first.

    Attributes
    ----------
    queue : WriteQueue
        The queue for asynchronous writes.
    """

    def __init__(self, database: Database, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.database = database
        self.max_bytes = max_bytes
        self.queue = WriteQueue()
        self._last_id, self._n_files = 0, 0
        self._has_warned = False
        self._next_look = 0.0
        self._pid, self._looking = os.getpid(), Lock()

    def __reduce__(self) -> "tuple[type[ModelStore], tuple[Database, int]]":
        return ModelStore, (self.database, self.max_bytes)

    def read_new(self) -> list[StoredModel]:
        """Return the models that have been written by any worker since the last call.

        The database is queried at most once in two seconds, except after ``refresh``.
        """

        def problem_of(row: dict[str, Any]) -> str | None:
            is_size = _HEADER.size <= row["n_bytes"] <= _MAX_MODEL_BYTES  # evict() relies on it
            return None if is_size else f"n_bytes must be a size, got {row['n_bytes']}"

        def look(connection: sa.Connection) -> list[StoredModel]:
            if self._n_files != self.database.n_files:  # the ids of another file are unrelated
                self._n_files, self._last_id = self.database.n_files, 0
            where = [MODELS.c.id > self._last_id]
            rows = read_checked(connection, _KNOWN, where, omitted, problem_of)
            return [StoredModel(*(row[name] for name in StoredModel._fields)) for row in rows]

        looking = self._lock()
        if not looking.acquire(blocking=False):
            return []
        try:
            if monotonic() < self._next_look:
                return []
            omitted = Omitted("treecv_models", "id")
            new_models = self.database.attempt(look, list[StoredModel](), without=_SHARED_MODELS)
            self._next_look = monotonic() + NEWS_SECONDS
            if new_models or omitted.keys:
                self._last_id = max([*omitted.keys, *(model.id for model in new_models[-1:])])
            self._delete(omitted)
            return new_models
        finally:
            looking.release()

    def refresh(self) -> None:
        """Make the next call of ``read_new`` query the database immediately."""
        with self._lock():  # otherwise, a query in progress would overwrite _next_look
            self._next_look = 0.0

    def _lock(self) -> Lock:
        if self._pid != os.getpid():  # a thread of the parent process may hold the lock
            self._pid, self._looking = os.getpid(), Lock()
        return self._looking

    def read(self, model: StoredModel) -> np.ndarray | None:
        """Return the payload of a model, or None if it was deleted or is corrupt."""
        # The key is compared, too, because the file may have been replaced.
        where = [MODELS.c.id == model.id, MODELS.c.key == model.key]
        omitted, payload = Omitted("treecv_models", "id"), None

        def look(connection: sa.Connection) -> dict[str, Any] | None:
            return next(read_checked(connection, _WITH_PAYLOAD, where, omitted), None)

        row = self.database.attempt(look, None, without=_SHARED_MODELS)
        if row is not None:
            payload = _unpack(row["payload"], model.key)
            if payload is None:
                omitted.add(model.id, "the payload is not what was written for this key")
        self._delete(omitted)
        return payload

    def _delete(self, omitted: Omitted) -> None:
        """Warn about corrupt rows, and delete them, so that they can be written again."""
        if not self._has_warned:  # warn once, because there may be thousands
            self._has_warned = omitted.warn(self.database, stacklevel=3)

        def delete(connection: sa.Connection) -> None:
            is_same = self._n_files == self.database.n_files  # else these are other models' ids
            for part in chunks(omitted.keys if is_same else []):
                connection.execute(sa.delete(MODELS).where(MODELS.c.id.in_(part)))

        if omitted.keys:
            self.queue.put(partial(self._write, delete))

    def write(self, models: Sequence[NewModel]) -> None:
        """Add new models to the database, and evict others if necessary, in one transaction."""
        rows = {}
        for key, payload, seconds in models:
            if payload.nbytes + _HEADER.size <= self.max_bytes:
                packed = _pack(key, payload)
                row = {"key": key, "n_bytes": len(packed), "seconds": seconds}
                rows[key] = row | {"payload": packed}

        def add(connection: sa.Connection) -> None:
            present = _present(connection, MODELS.c.key, rows)
            if new := [row for key, row in rows.items() if key not in present]:
                connection.execute(sa.insert(MODELS), new)
                evict(connection, self.max_bytes)

        if rows:
            self._write(add)

    def _write(self, work: Callable[[sa.Connection], None]) -> None:
        # There must be only one writer at a time, so that ids are committed in ascending order.
        # Otherwise, ``read_new`` could miss a lower id that is committed later.
        self.database.attempt(work, None, write=True, alone=True, without=_SHARED_MODELS)


def _present(connection: sa.Connection, column: Any, keys: Iterable[bytes]) -> set[bytes]:
    """Return the keys that occur in a column."""
    queries = (sa.select(column).where(column.in_(part)) for part in chunks(list(keys)))
    return {key for query in queries for key in connection.scalars(query)}


def evict(connection: sa.Connection, max_bytes: int) -> int:
    """Delete old and less valuable models until the others fit into ``max_bytes``.

    The value of a model is its training time per byte, divided by (1 + age). The age is the number
    of models that have been written since, divided by the number of models in the database.
    Therefore, every model is evicted eventually; reads are not recorded. The connection must be
    the only writer.

    Returns
    -------
    int
        The number of deleted models.
    """
    total = connection.scalar(sa.select(sa.func.sum(MODELS.c.n_bytes)))
    if total is None or total <= max_bytes:
        return 0
    age = 1.0 * (sa.func.max(MODELS.c.id).over() - MODELS.c.id) / sa.func.count().over()
    worth = (MODELS.c.seconds / MODELS.c.n_bytes / (1 + age)).label("worth")
    aged = sa.select(MODELS.c.id, MODELS.c.n_bytes, worth).subquery()
    up_to_here = sa.func.sum(aged.c.n_bytes).over(order_by=(aged.c.worth.desc(), aged.c.id.desc()))
    ranked = sa.select(aged.c.id, up_to_here.label("up_to_here")).subquery()
    query = sa.select(ranked.c.id).where(ranked.c.up_to_here > max_bytes)
    evicted = list(connection.scalars(query))
    for part in chunks(evicted):
        connection.execute(sa.delete(MODELS).where(MODELS.c.id.in_(part)))
    return len(evicted)


def _digest(key: bytes, payload: memoryview) -> bytes:
    digest = hashlib.blake2b(len(key).to_bytes(8, "little"), digest_size=16)
    digest.update(key)
    digest.update(payload)
    return digest.digest()


def _pack(key: bytes, payload: np.ndarray) -> bytes:
    data = np.ascontiguousarray(payload).data.cast("B")
    return b"".join((_HEADER.pack(_MAGIC, len(data), _digest(key, data)), data))


def _unpack(packed: bytes, key: bytes) -> np.ndarray | None:
    """Return a copy of the payload, or None if it differs from what was written for this key."""
    if len(packed) < _HEADER.size:
        return None
    magic, length, digest = _HEADER.unpack_from(packed)
    data = memoryview(packed)[_HEADER.size :]
    if magic != _MAGIC or length != len(data) or digest != _digest(key, data):
        return None
    return np.frombuffer(data, np.uint8).copy()


# Leases.

#: The seconds for which a lease is valid if its owner does not renew it.
LEASE_SECONDS = 60.0
# How often an owner renews its leases within LEASE_SECONDS.
_RENEWALS = 3
# A lease that expires in more than this multiple of LEASE_SECONDS is ignored: the clock must have
# been set back since it was written.
_MAX_LEASE_FACTOR = 2
#: The seconds between two checks of a lease by a waiting worker.
POLL_SECONDS = 0.25

# Queries for the seconds since 1970 by the clock of the database, because the clocks of workers
# differ. In PostgreSQL, now() would be the time at which the transaction began, before it waited
# for other transactions.
_CLOCKS = {
    "sqlite": sa.text("SELECT (julianday('now') - 2440587.5) * 86400.0"),
    "postgresql": sa.text(
        "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"
    ),
}


class Leases:
    """Leases on result keys, for all threads and processes that share a database.

    The owner of a lease is computing the results with this key. It stores the results before it
    releases the lease. Therefore, the store must be queried again after reading leases.

    If the database fails, there is a warning instead of an error, and some results are computed
    twice.

    Parameters
    ----------
    store : ModelStore
        The store of the results; the leases are in the same database.
    """

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        attempt = store.database.attempt
        # There must be only one writer at a time, so that no other worker can lease a key between
        # the query and the insert.
        self._write: Any = partial(attempt, write=True, alone=True, without="leases")

    def leased_keys(self) -> set[str]:
        """Return all keys that have a lease, as hexadecimal digits."""

        def look(connection: sa.Connection) -> set[str]:
            # SQLite takes values of any type.
            column = sa.type_coerce(LEASES.c.key, sa.types.NullType())
            keys: Any = connection.scalars(sa.select(column).where(_is_valid(_now(connection))))
            return {bytes(key).hex() for key in keys if isinstance(key, bytes | memoryview)}

        held = self._store.database.attempt(look, set[str](), without="leases")
        self._store.refresh()
        return held

    def wait(self, name: str) -> None:
        """Wait until a key has no lease, because it was released or has expired."""
        sleep(POLL_SECONDS)  # even a lease that leased_keys() does not list may block others
        while name in self.leased_keys():
            sleep(POLL_SECONDS)

    @contextmanager
    def hold(self, names: Sequence[str]) -> Generator[list[str]]:
        """Return a context manager that holds leases on all keys that are not leased yet.

        The leases are released after the writes that the block has queued in the store.

        Parameters
        ----------
        names : sequence of str
            Distinct keys, as hexadecimal digits.

        Yields
        ------
        list of str
            The keys that are now leased by this block; all keys if the database fails.
        """
        owner = uuid4().hex  # unique to this block, because each thread is a separate owner

        def take(connection: sa.Connection) -> list[str]:
            now = _now(connection)
            # The column may be NULL if other code created the table.
            is_over = sa.or_(~_is_valid(now), LEASES.c.expires.is_(None))
            connection.execute(sa.delete(LEASES).where(is_over))
            taken = _present(connection, LEASES.c.key, map(bytes.fromhex, names))
            free = [name for name in names if bytes.fromhex(name) not in taken]
            lease = {"owner": owner, "expires": now + LEASE_SECONDS}
            if free:
                rows = [{"key": bytes.fromhex(name), **lease} for name in free]
                connection.execute(sa.insert(LEASES), rows)
            return free

        mine = self._write(take, list(names))
        self._store.refresh()
        if not mine:
            yield mine
            return
        ended = Event()
        try:
            Thread(target=self._renew, args=(owner, ended), daemon=True).start()
            yield mine
        finally:
            self._store.queue.put(partial(self._release, owner, ended))

    def _release(self, owner: str, ended: Event) -> None:
        ended.set()
        deletion = sa.delete(LEASES).where(LEASES.c.owner == owner)
        self._write(lambda connection: connection.execute(deletion), None)

    def _renew(self, owner: str, ended: Event) -> None:
        """Renew the leases of an owner until they are released."""
        renewal = sa.update(LEASES).where(LEASES.c.owner == owner)
        while not ended.wait(LEASE_SECONDS / _RENEWALS):
            self._write(lambda c: c.execute(renewal.values(expires=_now(c) + LEASE_SECONDS)), None)


def _is_valid(now: float) -> sa.ColumnElement[bool]:
    return LEASES.c.expires.between(now, now + _MAX_LEASE_FACTOR * LEASE_SECONDS)


def _now(connection: sa.Connection) -> float:
    return float(connection.execute(_CLOCKS[connection.dialect.name]).scalar_one())


# Asynchronous writes.

# All queues of this process. They are reset after a fork, because their threads do not exist in
# the forked process.
_queues: "WeakSet[WriteQueue]" = WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: [*map(WriteQueue.__init__, [*_queues])])

# The maximum number of bytes that queued jobs may hold. If there are more, callers wait.
_MAX_QUEUED_BYTES = 2**27


class WriteQueue:
    """A queue of jobs that are run one after the other in a thread.

    Before Python exits, it waits for all jobs, so that no job is lost. In a forked process, the
    queue is initially empty.
    """

    def __init__(self) -> None:
        _queues.add(self)
        self._n_bytes = 0  # held by the pending jobs
        self._changed = Condition()
        self._thread = ThreadPoolExecutor(1, "treecv-store")

    def __reduce__(self) -> "tuple[type[WriteQueue], tuple[()]]":
        return WriteQueue, ()

    def put(self, job: Callable[[], object], n_bytes: int = 0) -> None:
        """Add a job to the queue; first wait if the queued jobs hold too many bytes.

        Parameters
        ----------
        job : callable
            The function to call. If it raises an exception, there is a warning.
        n_bytes : int
            The number of bytes that the job holds until it is done.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._n_bytes == 0 or self._n_bytes + n_bytes <= _MAX_QUEUED_BYTES
            )
            self._n_bytes += n_bytes
        try:
            self._thread.submit(self._run_job, job, n_bytes)
        except RuntimeError:  # the executor is shut down, because the main thread has ended
            self._run_job(job, n_bytes)

    def wait(self) -> None:
        """Wait until all queued jobs are done."""
        self._thread.submit(int).result()

    def _run_job(self, job: Callable[[], object], n_bytes: int) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001  # a failing store must not stop a study
            # If warnings are turned into errors, later jobs must not wait forever.
            with suppress(RuntimeWarning):
                text = f"a write to the store failed: {error!r}."
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        with self._changed:
            self._n_bytes -= n_bytes
            self._changed.notify_all()
