"""What in a store fails at present, and when it is tried again."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from time import monotonic
from typing import TypeAlias

#: Seconds without further attempts after a failure.
RETRY_SECONDS = 30.0
#: A failure that took long is tried again after so many times its duration, so that waiting takes
#: a small part of the time.
PAUSE_PER_SECOND = 5

#: What can fail on its own: the purpose of an attempt (None: all of them), and whether it writes.
Scope: TypeAlias = tuple[str | None, bool]


class Outages:
    """The failures of one store. Threads may share it.

    Only one thread at a time tries whether an outage is over; the others go on.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._retry_at: dict[Scope, float] = {}

    def may_try(self, scopes: Iterable[Scope]) -> bool:
        """Return whether none of these fails, or it is time for another attempt."""
        now = monotonic()
        with self._lock:
            failing = [scope for scope in scopes if scope in self._retry_at]
            if any(now < self._retry_at[scope] for scope in failing):
                return False
            for scope in failing:
                self._retry_at[scope] = now + RETRY_SECONDS
        return True

    def note(self, scope: Scope, seconds: float) -> bool:
        """Note a failure that took some seconds; return whether it is a new outage.

        It is not new if this purpose, or any purpose, is known to fail.
        """
        pause = max(RETRY_SECONDS, PAUSE_PER_SECOND * seconds)
        with self._lock:
            known = any(one[0] in (scope[0], None) for one in self._retry_at)
            self._retry_at[scope] = monotonic() + pause
        return not known

    def end(self, scopes: Iterable[Scope]) -> None:
        """Note a success."""
        if self._retry_at:
            with self._lock:
                for scope in scopes:
                    self._retry_at.pop(scope, None)
