"""Says whether other threads run while one is inside a call."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from time import monotonic
from time import sleep


def others_run_during(call: Callable[[], object]) -> bool:
    """Return whether another thread gets several turns within one call.

    If the call held the GIL, the other thread would run before and after it only. On a busy
    machine a thread may get no turn for a while, hence the calls that follow.
    """
    latest = monotonic() + 60
    while monotonic() < latest:
        if turns_during(call) > 5:
            return True
    return False


def turns_during(call: Callable[[], object]) -> int:
    turns, is_over = 0, False

    def take_turns() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            sleep(1e-5)

    other = Thread(target=take_turns)
    other.start()
    before = turns
    call()
    during = turns - before
    is_over = True
    other.join()
    return during
