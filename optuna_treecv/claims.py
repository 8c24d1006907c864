"""Who is at what: names of results, claimed in a store so that no two workers make the same."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Sequence
from contextlib import contextmanager
from threading import Event
from threading import Thread
from time import sleep
from typing import Any
from uuid import uuid4

from sqlalchemy import delete
from sqlalchemy import insert
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy import update
from sqlalchemy.orm import Session

from optuna_treecv.database import CONNECT_SECONDS
from optuna_treecv.database import parts
from optuna_treecv.records import ClaimRow
from optuna_treecv.stores import ModelStore

#: Seconds that a claim holds if its owner is killed; it is renewed three times as often.
CLAIM_SECONDS = 60.0
#: Seconds between two looks at a claim that somebody waits for.
POLL_SECONDS = 0.25

# Seconds since 1970 by the database's clock: workers' clocks differ. PostgreSQL's now() would be
# the time before the transaction waited for others.
_CLOCKS = {
    "sqlite": text("SELECT (julianday('now') - 2440587.5) * 86400.0"),
    "postgresql": text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"),
}


class Claims:
    """Claims of names in a database, for all who share it, threads and processes alike.

    Results are stored before the claim on them is released. So whoever has looked at the claims
    next looks at the store anew.

    A database that fails costs a warning, and work that is done twice; never an exception.

    Parameters
    ----------
    store : ModelStore
        Where the results are, and in the same database the claims.
    """

    def __init__(self, store: ModelStore) -> None:
        self._store = store

    def held(self) -> set[str]:
        """The names that anybody holds."""

        def look(session: Session) -> set[str]:
            unexpired = select(ClaimRow.key).where(ClaimRow.expires > _now(session))
            return {key.hex() for key in session.scalars(unexpired)}

        nothing: set[str] = set()
        held = self._store.database.attempt(look, nothing, without="claims")
        self._store.look_anew()
        return held

    def wait(self, name: str) -> None:
        """Until nobody holds a name: it was released, or its owner was killed."""
        sleep(POLL_SECONDS)  # even where a store can be written and not read, which says nobody
        while name in self.held():
            sleep(POLL_SECONDS)

    @contextmanager
    def hold(self, names: Sequence[str]) -> Generator[list[str]]:
        """Take those of the names that nobody holds, and hold them to the end of the block.

        Parameters
        ----------
        names : sequence of str
            In hexadecimal digits, each once.

        Yields
        ------
        list of str
            Those that were free; all of them where the database fails.
        """
        owner = uuid4().hex  # of this one block: another thread is somebody else

        def take(session: Session) -> list[str]:
            now = _now(session)
            session.execute(delete(ClaimRow).where(ClaimRow.expires <= now))
            taken: set[bytes] = set()
            for part in parts([bytes.fromhex(name) for name in names]):
                taken.update(session.scalars(select(ClaimRow.key).where(ClaimRow.key.in_(part))))
            free = [name for name in names if bytes.fromhex(name) not in taken]
            own = {"owner": owner, "expires": now + CLAIM_SECONDS}
            if free:
                rows = [{"key": bytes.fromhex(name), **own} for name in free]
                session.execute(insert(ClaimRow), rows)
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
            ended.set()
            own = ClaimRow.owner == owner
            self._write(lambda session: session.execute(delete(ClaimRow).where(own)), None)

    def _renew(self, owner: str, ended: Event) -> None:
        """Hold what an owner holds until the end of its block."""

        def renew(session: Session) -> None:
            expires = _now(session) + CLAIM_SECONDS
            own = update(ClaimRow).where(ClaimRow.owner == owner)
            session.execute(own.values(expires=expires))

        while not ended.wait(CLAIM_SECONDS / 3):
            self._write(renew, None)

    def _write(self, work: Callable[[Session], Any], otherwise: Any) -> Any:
        # One writer at a time, so that nobody takes a name between another's look and insert.
        return self._store.database.attempt(
            work,
            otherwise,
            write=True,
            alone=True,
            wait_seconds=CONNECT_SECONDS,
            without="claims",
        )


def _now(session: Session) -> float:
    return float(session.execute(_CLOCKS[session.connection().dialect.name]).scalar_one())
