"""Ends worker processes whose parent has died, since nobody takes their results."""

from __future__ import annotations

from functools import cache
import os
import signal
from threading import Thread
from time import sleep

# Seconds between two looks at the parent.
_POLL_SECONDS = 1.0


def end_with(parent: int) -> None:
    """End this process soon after its parent, if that is the process with this number.

    joblib's workers outlive a process that is killed: they finish what they have begun and then
    wait for minutes. Processes of other origin, such as Dask's workers, are left alone.
    """
    if os.getppid() == parent:
        _watch(parent, os.getpid())


@cache  # once per process, also in one that was forked
def _watch(parent: int, own: int) -> None:
    Thread(target=_end_after, args=(parent, own), name="treecv-parent", daemon=True).start()


def _end_after(parent: int, own: int) -> None:
    while os.getppid() == parent:
        sleep(_POLL_SECONDS)
    os.kill(own, signal.SIGTERM)
