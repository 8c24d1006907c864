"""Points of a grid are trained once by all who share a store; and those who wait for somebody go
on when this one fails, is killed or is lost with the store.
"""

from __future__ import annotations

import pickle
from threading import Barrier
from threading import Thread
import time

import pytest
from sqlalchemy import select
from sqlalchemy import text

from optuna_treecv import claims as claims_module
from optuna_treecv.claims import Claims
from optuna_treecv.database import Database
from optuna_treecv.records import ClaimRow
from optuna_treecv.stores import ModelStore

NAMES = ["aa", "bb", "cc"]


def claims_of(url):
    return Claims(ModelStore(Database(url)))


def expiries(url):
    with Database(url).reading() as session:
        return sorted(session.scalars(select(ClaimRow.expires)))


def clock(url):
    with Database(url).reading() as session:
        return claims_module._now(session)


def until(condition):
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < 60
        time.sleep(0.01)


class Background:
    """A call in a thread; what it returns, or raises."""

    def __init__(self, function, *args):
        self._call = function, args
        self.result = None
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        function, args = self._call
        try:
            self.result = function(*args)
        except Exception as error:  # noqa: BLE001
            self.result = error

    @property
    def is_over(self):
        return not self.thread.is_alive()

    def end(self):
        self.thread.join(60)
        assert self.is_over
        return self.result


# Claims.


def test_a_name_is_held_by_one(store_url):
    ours, theirs = claims_of(store_url), claims_of(store_url)
    with ours.hold(NAMES[:2]) as mine:
        assert mine == NAMES[:2] and theirs.held() == set(mine)
        with theirs.hold(NAMES) as others:
            assert others == ["cc"]
            with ours.hold(NAMES) as more:  # another thread of ours, say
                assert more == []
        assert theirs.held() == set(mine)
    assert ours.held() == set() and expiries(store_url) == []


def test_claims_are_pickled(store_url):
    with pickle.loads(pickle.dumps(claims_of(store_url))).hold(NAMES) as mine:
        assert mine == NAMES


def test_a_name_is_taken_by_one_of_many_at_once(store_url):
    names = [f"{i:04x}" for i in range(40)]
    taken, all_have_asked = [], Barrier(6)

    def work(i):
        with claims_of(store_url).hold(names[i:] + names[:i]) as mine:
            taken.extend(mine)
            all_have_asked.wait(60)

    threads = [Background(work, i) for i in range(6)]
    for thread in threads:
        thread.end()
    assert sorted(taken) == names


def test_a_block_that_raises_releases(store_url):
    with pytest.raises(KeyboardInterrupt):
        with claims_of(store_url).hold(NAMES):
            raise KeyboardInterrupt
    assert expiries(store_url) == []


def test_a_claim_lasts_a_minute_by_the_clock_of_the_database(store_url, monkeypatch):
    """It begins when it is taken, however long that waits for others."""
    real = time.time  # here the database's clock, as it is on this machine
    for name in ("time.time", "optuna_treecv.claims.time"):
        monkeypatch.setattr(name, lambda: 0.0, raising=False)
    assert claims_module.CLAIM_SECONDS == 60
    expires = []

    def take():
        with claims_of(store_url).hold(NAMES):
            expires.extend(expiries(store_url))

    with Database(store_url).writing(alone=True):
        thread = Background(take)
        time.sleep(1)
        earliest = real()
    assert thread.end() is None
    assert len(expires) == 3 and expires[0] == expires[-1]
    assert earliest + 59.99 < expires[0] < real() + 60.01


def test_an_abandoned_claim_expires(store_url, monkeypatch):
    monkeypatch.setattr(claims_module, "CLAIM_SECONDS", 1.0)
    monkeypatch.setattr(Claims, "_renew", lambda *_: None)  # as if the process had been killed
    with claims_of(store_url).hold(NAMES[:1]):
        claims = claims_of(store_url)
        assert claims.held() == {"aa"}
        assert Background(claims.wait, "aa").end() is None
        assert claims.held() == set()
        with claims.hold(NAMES) as mine:
            assert mine == NAMES
    # The first owner has released its own only, and this was gone.
    assert expiries(store_url) == []


def test_a_claim_is_renewed(store_url, monkeypatch):
    monkeypatch.setattr(claims_module, "CLAIM_SECONDS", 0.9)
    claims = claims_of(store_url)
    with claims.hold(NAMES):
        begin = clock(store_url)
        until(lambda: clock(store_url) > begin + 2 * 0.9)
        with claims_of(store_url).hold(NAMES) as theirs:
            assert theirs == []
        assert claims.held() == set(NAMES)


def test_a_store_that_is_lost_holds_nobody_up(store_url):
    claims = claims_of(store_url)
    with claims._store.database.writing() as session:
        session.execute(text("DROP TABLE treecv_claims"))
    with pytest.warns(RuntimeWarning, match="treecv_claims.*go on without claims") as caught:
        with claims.hold(NAMES) as mine, claims.hold(NAMES) as theirs:
            assert mine == theirs == NAMES
            assert claims.held() == set()
            claims.wait("aa")
    assert len(caught) == 1
