"""Outages of a store: what fails, and when to try again."""

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
import re
from threading import Lock
from time import monotonic

#: Seconds without further attempts after a failure.
RETRY_SECONDS = 30.0
#: A slow failure is tried again after this many times its duration, so that waiting takes a small
#: share of the time.
PAUSE_PER_SECOND = 5

# The messages of PostgreSQL. Drivers have no code for errors of failed connections.
_FULL_SERVER = re.compile("too many clients|connection slots are reserved")

#: Attempts that may fail together: their purpose (None: any), and whether they write.
Scope = tuple[str | None, bool]


@dataclass(eq=False)
class Outages:
    """The failures of one store; thread-safe.

    Only one thread at a time checks whether an outage is over; the others continue.
    """

    _lock: Lock = field(default_factory=Lock)
    _retry_at: dict[Scope, float] = field(default_factory=dict)

    def may_try(self, scopes: Iterable[Scope]) -> bool:
        """Return whether none of these scopes fails, or it is time for another attempt."""
        now = monotonic()
        with self._lock:
            failing = [scope for scope in scopes if scope in self._retry_at]
            if any(now < self._retry_at[scope] for scope in failing):
                return False
            for scope in failing:
                self._retry_at[scope] = now + RETRY_SECONDS
        return True

    def note(self, scope: Scope, seconds: float) -> bool:
        """Record a failure that took some seconds; return whether it is a new outage.

        It is not new if this purpose, or any purpose, already fails.
        """
        pause = max(RETRY_SECONDS, PAUSE_PER_SECOND * seconds)
        with self._lock:
            is_known = any(purpose in (scope[0], None) for purpose, _ in self._retry_at)
            self._retry_at[scope] = monotonic() + pause
        return not is_known

    def end(self, scopes: Iterable[Scope]) -> None:
        """Record a success."""
        if self._retry_at:
            with self._lock:
                for scope in scopes:
                    self._retry_at.pop(scope, None)


def advice_on(error: BaseException) -> str:
    """Return advice for a server without free connections; "" for other errors."""
    if not _FULL_SERVER.search(f"{error} {error.__cause__}"):
        return ""
    return (
        " Each worker takes 4 or 5 connections: raise the server's max_connections to at least 5 "
        "times the number of workers, or use Optuna's gRPC storage proxy, so that each worker "
        "takes only the 2 connections of the store."
    )
