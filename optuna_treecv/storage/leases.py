"""Leases reserve results for one worker, so that no two workers compute the same."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event
from threading import Thread
from time import sleep
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection
from sqlalchemy import delete
from sqlalchemy import insert
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy import update

from optuna_treecv.storage.checked_rows import LeftOut
from optuna_treecv.storage.checked_rows import read_checked
from optuna_treecv.storage.database import parts
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.storage.tables import LEASES

#: Seconds that a lease outlives its owner.
LEASE_SECONDS = 60.0
# How often a living owner renews it in that time.
_RENEWALS = 3
# A lease that lasts longer than so many times this was dated by a clock that was set back since.
_LONGEST = 2
#: Seconds between two looks at a lease that somebody waits for.
POLL_SECONDS = 0.25

# Seconds since 1970 by the database's clock, since workers' clocks differ. PostgreSQL's now() is
# the time at which the transaction began, before it waited for others.
_CLOCKS = {
    "sqlite": text("SELECT (julianday('now') - 2440587.5) * 86400.0"),
    "postgresql": text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"),
}
_COLUMNS = (LEASES.c.key, LEASES.c.expires)


class Leases:
    """Leases on names of results, for all threads and processes that share a database.

    An owner stores its results before it gives up its lease. Therefore anyone who has looked at
    the leases looks at the store afresh afterwards.

    If the database fails, there is a warning and some work is done twice; nothing is raised.

    Parameters
    ----------
    store : ModelStore
        The store of the results; the leases are in the same database.
    """

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._has_warned = False

    def held(self) -> set[str]:
        """Return the names on which there is a lease."""

        def look(connection: Connection) -> set[str]:
            now = _now(connection)
            rows = read_checked(connection, _COLUMNS, [LEASES.c.expires > now], left_out)
            latest = now + _LONGEST * LEASE_SECONDS
            return {row["key"].hex() for row in rows if row["expires"] <= latest}

        left_out = LeftOut("treecv_leases", "key")
        nothing: set[str] = set()
        held = self._store.database.attempt(look, nothing, without="leases")
        if not self._has_warned:
            self._has_warned = left_out.warn(self._store.database)
        self._store.look_anew()
        return held

    def wait(self, name: str) -> None:
        """Wait until there is no lease on a name: it was given up, or its owner was killed."""
        sleep(POLL_SECONDS)  # a lease that is not shown may still be in the way of others
        while name in self.held():
            sleep(POLL_SECONDS)

    @contextmanager
    def hold(self, names: Sequence[str]) -> Generator[list[str]]:
        """Take a lease on each name that has none, and keep these leases to the end of the block.

        They are given up as soon as what the block has put into the store's queue is written.

        Parameters
        ----------
        names : sequence of str
            Distinct, in hexadecimal digits.

        Yields
        ------
        list of str
            The names that had no lease; all names if the database fails.
        """
        owner = uuid4().hex  # of this block: another thread is another owner

        def take(connection: Connection) -> list[str]:
            now = _now(connection)
            latest = now + _LONGEST * LEASE_SECONDS
            expires = LEASES.c.expires  # NULL where the table was made by somebody else
            is_over = or_(expires <= now, expires > latest, expires.is_(None))
            connection.execute(delete(LEASES).where(is_over))
            taken: set[bytes] = set()
            for part in parts([bytes.fromhex(name) for name in names]):
                taken.update(
                    connection.scalars(select(LEASES.c.key).where(LEASES.c.key.in_(part)))
                )
            free = [name for name in names if bytes.fromhex(name) not in taken]
            own = {"owner": owner, "expires": now + LEASE_SECONDS}
            if free:
                rows = [{"key": bytes.fromhex(name), **own} for name in free]
                connection.execute(insert(LEASES), rows)
            return free

        mine = self._write(take, list(names))
        self._store.look_anew()
        if not mine:
            yield mine
            return
        ended = Event()
        try:
            Thread(target=self._renew, args=(owner, ended), daemon=True).start()
            yield mine
        finally:
            self._store.queue.put(partial(self._give_up, owner, ended))

    def _give_up(self, owner: str, ended: Event) -> None:
        ended.set()
        own = LEASES.c.owner == owner
        self._write(lambda connection: connection.execute(delete(LEASES).where(own)), None)

    def _renew(self, owner: str, ended: Event) -> None:
        """Renew an owner's leases until they are given up."""

        def renew(connection: Connection) -> None:
            expires = _now(connection) + LEASE_SECONDS
            own = update(LEASES).where(LEASES.c.owner == owner)
            connection.execute(own.values(expires=expires))

        while not ended.wait(LEASE_SECONDS / _RENEWALS):
            self._write(renew, None)

    def _write(self, work: Callable[[Connection], Any], otherwise: Any) -> Any:
        # One writer at a time: nobody can take a name between another's look and insert.
        return self._store.database.attempt(
            work,
            otherwise,
            write=True,
            alone=True,
            without="leases",
        )


def _now(connection: Connection) -> float:
    return float(connection.execute(_CLOCKS[connection.dialect.name]).scalar_one())
