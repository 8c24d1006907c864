"""The storage of shared models, as bytes.

This module does not interpret the bytes, and never executes any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import hashlib
import os
from struct import Struct
from threading import Lock
from time import monotonic
from typing import Any
from typing import NamedTuple
from typing import TypeAlias

import numpy as np
from sqlalchemy import Connection
from sqlalchemy import delete
from sqlalchemy import func
from sqlalchemy import insert
from sqlalchemy import select

from optuna_treecv.storage.checked_rows import LeftOut
from optuna_treecv.storage.checked_rows import read_checked
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.database import parts
from optuna_treecv.storage.tables import MODELS
from optuna_treecv.storage.write_queue import WriteQueue

#: Seconds between two queries for models that other workers have written.
NEWS_SECONDS = 2.0

#: The default room for models.
DEFAULT_MAX_BYTES = 2**28

# What trials go on without if the database fails.
_SHARED_MODELS = "shared models"

# Magic, number of bytes, digest of the bytes together with their key and interval.
_HEADER = Struct("<4sQ16s")
_MAGIC = b"TCV1"
_INTERVAL = Struct("<?d?dQ")

# No model has more bytes.
_LARGEST = 2**40

_TABLE = MODELS.c
_KNOWN = (_TABLE.id, _TABLE.key, _TABLE.low, _TABLE.high, _TABLE.n_bytes)
_WITH_PAYLOAD = (*_KNOWN, _TABLE.payload)


class Kept(NamedTuple):
    """A model to be shared.

    It is valid for values of a hyper-parameter in [low, high]. Both are None if there is no such
    interval.
    """

    key: bytes
    payload: np.ndarray
    seconds: float
    low: float | None = None
    high: float | None = None


#: The key and the interval of a model.
Domain: TypeAlias = tuple[bytes, float | None, float | None]


class Known(NamedTuple):
    """A model that the database holds."""

    id: int
    key: bytes
    low: float | None
    high: float | None


class ModelStore:
    """Shared models in a database, limited in bytes.

    If the database fails, there is a warning and models are not shared for a while; nothing is
    raised. Threads may share a store, and it can be pickled.

    Parameters
    ----------
    database : Database
        The database that holds the models.
    max_bytes : int
        The limit for all models together. The oldest, and those with the least training seconds
        per byte, are deleted first.

    Attributes
    ----------
    queue : WriteQueue
        For writes that nobody waits for.
    """

    def __init__(self, database: Database, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.database = database
        self.max_bytes = max_bytes
        self.queue = WriteQueue()
        self._start()

    def _start(self) -> None:
        self._last_id, self._n_files = 0, 0
        self._damaged: set[int] = set()  # the ids of models that are yet to be deleted
        self._has_warned = False
        self._next_look = 0.0
        self._pid, self._looking = os.getpid(), Lock()

    def __getstate__(self) -> tuple[Database, int]:
        return self.database, self.max_bytes

    def __setstate__(self, state: tuple[Database, int]) -> None:
        self.database, self.max_bytes = state
        self.queue = WriteQueue()
        self._start()

    def news(self) -> list[Known]:
        """Return the models that any worker has written since the last call.

        There is at most one query in two seconds, except after ``look_anew``.
        """

        def look(connection: Connection) -> list[Known]:
            if self._n_files != self.database.n_files:  # another file has other ids
                self._n_files, self._last_id = self.database.n_files, 0
                self._damaged.clear()
            where = [MODELS.c.id > self._last_id]
            rows = read_checked(connection, _KNOWN, where, left_out, _problem_of_model)
            return [Known(*(row[name] for name in Known._fields)) for row in rows]

        looking = self._lock()
        if not looking.acquire(blocking=False):
            return []
        try:
            if monotonic() < self._next_look:
                return []
            if self._damaged:
                self._write(lambda connection: None)
            left_out = _left_out()
            nothing: list[Known] = []
            found = self.database.attempt(look, nothing, without=_SHARED_MODELS)
            self._next_look = monotonic() + NEWS_SECONDS
            if found or left_out.keys:
                self._last_id = max([*left_out.keys, *(known.id for known in found[-1:])])
            self._note_damaged(left_out)
            return found
        finally:
            looking.release()

    def look_anew(self) -> None:
        """Make the next call of ``news`` query the database, however recent the last query."""
        with self._lock():  # a query in progress would set _next_look again
            self._next_look = 0.0

    def _lock(self) -> Lock:
        if self._pid != os.getpid():  # a thread of the parent process may have held the lock
            self._pid, self._looking = os.getpid(), Lock()
        return self._looking

    def read(self, known: Known) -> np.ndarray | None:
        """Return the payload of a model, or None if it was deleted or is damaged.

        Damaged models are deleted together, at the next ``write`` or look for news.
        """
        where = [MODELS.c.id == known.id]
        left_out, found = _left_out(), None

        def look(connection: Connection) -> dict[str, Any] | None:
            return next(read_checked(connection, _WITH_PAYLOAD, where, left_out), None)

        row = self.database.attempt(look, None, without=_SHARED_MODELS)
        if row is not None:
            if tuple(row[name] for name in Known._fields) != known:  # the file was replaced
                return None
            found = _unpack(row["payload"], *known[1:])
            if found is None:
                left_out.add(known.id, "the payload is not what was written for this key")
        self._note_damaged(left_out)
        return found

    def _note_damaged(self, left_out: LeftOut) -> None:
        self._damaged.update(left_out.keys)
        if not self._has_warned:  # there may be thousands
            self._has_warned = left_out.warn(self.database, stacklevel=3)

    def write(self, kept: Sequence[Kept]) -> None:
        """Add models that the database does not hold yet, and delete others to make room.

        Both happen in one transaction.
        """
        new = {(one.key, one.low, one.high): one for one in kept}
        there: set[Domain] = self.database.attempt(
            lambda connection: self._there(connection, new), set(), without=_SHARED_MODELS
        )
        rows = {}
        for domain, (key, payload, seconds, low, high) in new.items():
            if domain not in there and payload.nbytes + _HEADER.size <= self.max_bytes:
                packed = _pack(key, payload, low, high)
                rows[domain] = {
                    "key": key,
                    "low": low,
                    "high": high,
                    "n_bytes": len(packed),
                    "seconds": seconds,
                    "payload": packed,
                }

        def add(connection: Connection) -> None:
            for domain in self._there(connection, rows):  # written meanwhile
                del rows[domain]
            if rows:
                connection.execute(insert(MODELS), list(rows.values()))
                evict(connection, self.max_bytes)

        if rows:
            self._write(add)

    def _there(self, connection: Connection, models: Collection[Domain]) -> set[Domain]:
        """Return those of some models that the database holds undamaged, as far as is known."""
        columns = MODELS.c.id, MODELS.c.key, MODELS.c.low, MODELS.c.high
        found: set[Domain] = set()
        for part in parts(list({key for key, _, _ in models})):
            query = select(*columns).where(MODELS.c.key.in_(part))
            for number, key, low, high in connection.execute(query):
                if number not in self._damaged:
                    found.add((key, low, high))
        return found.intersection(models)

    def _write(self, work: Callable[[Connection], object]) -> None:
        damaged = list(self._damaged)

        def delete_and_work(connection: Connection) -> bool:
            for part in parts(damaged):
                connection.execute(delete(MODELS).where(MODELS.c.id.in_(part)))
            work(connection)
            return True

        # One writer at a time, so that ids are committed in ascending order. Otherwise ``news``
        # could skip a lower id that is committed later.
        if self.database.attempt(
            delete_and_work, False, write=True, alone=True, without=_SHARED_MODELS
        ):
            self._damaged.difference_update(damaged)


def _left_out() -> LeftOut:
    return LeftOut("treecv_models", "id", "and others like them are deleted and trained again")


def _problem_of_model(row: dict[str, Any]) -> str | None:
    """Return what is wrong with the size of a model, from which the bound is computed."""
    if _HEADER.size <= row["n_bytes"] <= _LARGEST:
        return None
    return f"n_bytes must be a size, got {row['n_bytes']}"


def evict(connection: Connection, max_bytes: int) -> int:
    """Delete the oldest and least useful models until the others fit.

    A model is worth the seconds of its training per byte, divided by 1 + its age. The age is the
    number of models written since, in units of the number of models that are there. So every model
    leaves eventually, as nobody knows which ones are used. The connection must be the only writer.

    Returns
    -------
    int
        The number of deleted models.
    """
    total = connection.scalar(select(func.sum(MODELS.c.n_bytes)))
    if total is None or total <= max_bytes:
        return 0
    age = 1.0 * (func.max(MODELS.c.id).over() - MODELS.c.id) / func.count().over()
    worth = (MODELS.c.seconds / MODELS.c.n_bytes / (1 + age)).label("worth")
    aged = select(MODELS.c.id, MODELS.c.n_bytes, worth).subquery()
    up_to_here = func.sum(aged.c.n_bytes).over(order_by=(aged.c.worth.desc(), aged.c.id.desc()))
    ranked = select(aged.c.id, up_to_here.label("up_to_here")).subquery()
    evicted = list(connection.scalars(select(ranked.c.id).where(ranked.c.up_to_here > max_bytes)))
    for part in parts(evicted):
        connection.execute(delete(MODELS).where(MODELS.c.id.in_(part)))
    return len(evicted)


def _digest(key: bytes, low: float | None, high: float | None, payload: memoryview) -> bytes:
    # ``or`` also turns -0.0 into 0.0, since not every SQLite keeps the sign of zero.
    ends = (low is None, low or 0.0, high is None, high or 0.0)
    digest = hashlib.blake2b(_INTERVAL.pack(*ends, len(key)), digest_size=16)
    digest.update(key)
    digest.update(payload)
    return digest.digest()


def _pack(key: bytes, payload: np.ndarray, low: float | None, high: float | None) -> bytes:
    data = np.ascontiguousarray(payload).data.cast("B")
    return b"".join((_HEADER.pack(_MAGIC, len(data), _digest(key, low, high, data)), data))


def _unpack(packed: bytes, key: bytes, low: float | None, high: float | None) -> np.ndarray | None:
    """Return a copy of the payload, or None if it is not what was written for this key."""
    if len(packed) < _HEADER.size:
        return None
    magic, length, digest = _HEADER.unpack_from(packed)
    data = memoryview(packed)[_HEADER.size :]
    if magic != _MAGIC or length != len(data) or digest != _digest(key, low, high, data):
        return None
    return np.frombuffer(data, np.uint8).copy()
