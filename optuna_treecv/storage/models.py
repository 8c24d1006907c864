"""Where the bytes of shared models are.

Nothing here knows what the bytes mean, and none of them is ever executed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import hashlib
import os
from struct import Struct
from threading import Lock
from time import monotonic
from typing import NamedTuple
import warnings

import numpy as np
from sqlalchemy import delete
from sqlalchemy import func
from sqlalchemy import insert
from sqlalchemy import select
from sqlalchemy.orm import Session

from optuna_treecv.storage.database import CONNECT_SECONDS
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.database import parts
from optuna_treecv.storage.tables import ModelRow

#: Seconds between two looks at what others have written.
NEWS_SECONDS = 2.0

_WITHOUT = "shared models"

# Magic, number of bytes, digest of the bytes and of what they are for.
_HEADER = Struct("<4sQ16s")
_MAGIC = b"TCV1"
_INTERVAL = Struct("<?d?dQ")


class Kept(NamedTuple):
    """A model to be shared.

    It is valid for hyper-parameters in [low, high]; None where there is no such interval.
    """

    key: bytes
    payload: np.ndarray
    seconds: float
    low: float | None = None
    high: float | None = None


class Known(NamedTuple):
    """A model that is there for the reading."""

    id: int
    key: bytes
    low: float | None
    high: float | None


class ModelStore:
    """Shared models in a database, bounded in bytes.

    A database that fails costs a warning and shared models for a while, never an exception.
    Threads may share a store, and it can be pickled.

    Parameters
    ----------
    database : Database
        Where the models are.
    max_bytes : int
        Of all models; those that take the least seconds a byte to train again go first.
    """

    def __init__(self, database: Database, max_bytes: int = 2**30) -> None:
        self.database = database
        self.max_bytes = max_bytes
        self._start()

    def _start(self) -> None:
        self._last_id = 0
        self._next_look = 0.0
        self._pid, self._looking = os.getpid(), Lock()

    def __getstate__(self) -> tuple[Database, int]:
        return self.database, self.max_bytes

    def __setstate__(self, state: tuple[Database, int]) -> None:
        self.database, self.max_bytes = state
        self._start()

    def news(self) -> list[Known]:
        """Models that came since the last call, by anyone; at most one query in two seconds, but
        for ``look_anew``.
        """

        def look(session: Session) -> list[Known]:
            columns = ModelRow.id, ModelRow.key, ModelRow.low, ModelRow.high
            query = select(*columns).where(ModelRow.id > self._last_id).order_by(ModelRow.id)
            return [Known(*row) for row in session.execute(query)]

        looking = self._lock()
        if not looking.acquire(blocking=False):
            return []
        try:
            if monotonic() < self._next_look:
                return []
            nothing: list[Known] = []
            found = self.database.attempt(look, nothing, without=_WITHOUT)
            self._next_look = monotonic() + NEWS_SECONDS
            if found:
                self._last_id = found[-1].id
            return found
        finally:
            looking.release()

    def look_anew(self) -> None:
        """Let the next call of ``news`` ask, however short a time ago the last one did."""
        with self._lock():  # a look that goes on would put this off again
            self._next_look = 0.0

    def _lock(self) -> Lock:
        if self._pid != os.getpid():  # a thread of the parent may have had it
            self._pid, self._looking = os.getpid(), Lock()
        return self._looking

    def read(self, known: Known) -> np.ndarray | None:
        """The payload; None if it is gone. A damaged one is deleted, to be written anew."""
        columns = ModelRow.key, ModelRow.low, ModelRow.high, ModelRow.payload
        query = select(*columns).where(ModelRow.id == known.id)
        row = self.database.attempt(lambda s: s.execute(query).first(), None, without=_WITHOUT)
        if row is None or tuple(row[:3]) != known[1:]:  # of another file in the old one's place
            return None
        payload = _unpack(row.payload, *known[1:])
        if payload is None:
            warnings.warn(
                f"store {self.database}: model {known.id} is damaged and deleted.",
                RuntimeWarning,
                stacklevel=2,
            )
            damaged = delete(ModelRow).where(ModelRow.id == known.id)
            self._write(lambda session: session.execute(damaged))
        return payload

    def write(self, kept: Sequence[Kept]) -> None:
        """Add models that are not there yet, in one transaction, and make room for them."""
        rows = {}
        for key, payload, seconds, low, high in kept:
            packed = _pack(key, payload, low, high)
            if len(packed) <= self.max_bytes:
                rows[key, low, high] = {
                    "key": key,
                    "low": low,
                    "high": high,
                    "n_bytes": len(packed),
                    "seconds": seconds,
                    "payload": packed,
                }

        def add(session: Session) -> None:
            there = select(ModelRow.key, ModelRow.low, ModelRow.high)
            for part in parts([key for key, _, _ in rows]):
                for key, low, high in session.execute(there.where(ModelRow.key.in_(part))):
                    rows.pop((key, low, high), None)
            if rows:
                session.execute(insert(ModelRow), list(rows.values()))
                evict(session, self.max_bytes)

        if rows:
            self._write(add)

    def _write(self, work: Callable[[Session], object]) -> None:
        # One writer at a time, so that ids are committed in their order and none is looked for
        # too early.
        self.database.attempt(
            work,
            None,
            write=True,
            alone=True,
            wait_seconds=CONNECT_SECONDS,
            without=_WITHOUT,
        )


def evict(session: Session, max_bytes: int) -> int:
    """Delete the models of least seconds a byte, the older first, until the others fit; how many.

    The session must be the only writer.
    """
    total = session.scalar(select(func.sum(ModelRow.n_bytes)))
    if total is None or total <= max_bytes:
        return 0
    worth = ModelRow.seconds / ModelRow.n_bytes
    up_to_here = func.sum(ModelRow.n_bytes).over(order_by=(worth.desc(), ModelRow.id.desc()))
    ranked = select(ModelRow.id, up_to_here.label("up_to_here")).subquery()
    evicted = list(session.scalars(select(ranked.c.id).where(ranked.c.up_to_here > max_bytes)))
    for part in parts(evicted):
        session.execute(delete(ModelRow).where(ModelRow.id.in_(part)))
    return len(evicted)


def _digest(key: bytes, low: float | None, high: float | None, payload: memoryview) -> bytes:
    # This makes 0.0 of -0.0 too, which not every SQLite keeps.
    ends = (low is None, low or 0.0, high is None, high or 0.0)
    digest = hashlib.blake2b(_INTERVAL.pack(*ends, len(key)), digest_size=16)
    digest.update(key)
    digest.update(payload)
    return digest.digest()


def _pack(key: bytes, payload: np.ndarray, low: float | None, high: float | None) -> bytes:
    data = payload.tobytes()
    digest = _digest(key, low, high, memoryview(data))
    return _HEADER.pack(_MAGIC, len(data), digest) + data


def _unpack(packed: bytes, key: bytes, low: float | None, high: float | None) -> np.ndarray | None:
    """The payload, in memory of its own, if it is what was written for this key."""
    if len(packed) < _HEADER.size:
        return None
    magic, length, digest = _HEADER.unpack_from(packed)
    data = memoryview(packed)[_HEADER.size :]
    if magic != _MAGIC or length != len(data) or digest != _digest(key, low, high, data):
        return None
    return np.frombuffer(data, np.uint8).copy()
