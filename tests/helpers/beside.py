"""Says whether other threads run while one is inside a call."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from time import sleep


def others_run_during(call: Callable[[], object]) -> bool:
    """Return whether another thread gets several turns within a call, in one of several calls.

    If the call held the GIL, the other thread would run before and after it only. On a busy
    machine it may get no turn in a call of some milliseconds.
    """
    return any(turns_during(call) > 5 for _ in range(20))


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
    try:
        call()
        return turns - before
    finally:
        is_over = True
        other.join()
