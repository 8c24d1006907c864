"""Outages of a store: which attempts fail, and when to try again."""

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
import re
from threading import Lock
from time import monotonic

#: The minimum seconds between a failure and the next attempt.
RETRY_SECONDS = 30.0
#: After a slow failure, the next attempt is made after this multiple of its duration. Trials
#: therefore spend only a small share of their time waiting.
PAUSE_PER_SECOND = 5

# Messages of a PostgreSQL server without free connections. Errors of failed connections have no
# error code.
_FULL_SERVER = re.compile("too many clients|connection slots are reserved")

#: A set of attempts that may fail together: their purpose (None: any purpose), and whether they
#: write.
Scope = tuple[str | None, bool]


@dataclass(eq=False)
class Outages:
    """The current outages of one store; thread-safe.

    Only one thread at a time tests whether an outage is over; other threads continue without the
    store.
    """

    _lock: Lock = field(default_factory=Lock)
    _retry_at: dict[Scope, float] = field(default_factory=dict)

    def may_try(self, scopes: Iterable[Scope]) -> bool:
        """Return whether none of these scopes has an outage, or it is time for another attempt."""
        now = monotonic()
        with self._lock:
            failing = [scope for scope in scopes if scope in self._retry_at]
            if any(now < self._retry_at[scope] for scope in failing):
                return False
            for scope in failing:
                self._retry_at[scope] = now + RETRY_SECONDS
        return True

    def note(self, scope: Scope, seconds: float) -> bool:
        """Record a failure that took ``seconds``; return whether it begins a new outage.

        The outage is not new if attempts with this purpose, or with any purpose, already fail.
        """
        pause = max(RETRY_SECONDS, PAUSE_PER_SECOND * seconds)
        with self._lock:
            is_known = any(purpose in (scope[0], None) for purpose, _ in self._retry_at)
            self._retry_at[scope] = monotonic() + pause
        return not is_known

    def end(self, scopes: Iterable[Scope]) -> None:
        """Record a success, which ends the outages of these scopes."""
        if self._retry_at:
            with self._lock:
                for scope in scopes:
                    self._retry_at.pop(scope, None)


def advice_on(error: BaseException) -> str:
    """Return advice if the error means that a server has no free connections; otherwise ""."""
    if not _FULL_SERVER.search(f"{error} {error.__cause__}"):
        return ""
    return (
        " Each worker needs 4 or 5 connections: increase max_connections of the server to at "
        "least 5 times the number of workers, or use Optuna's gRPC storage proxy, with which each "
        "worker needs only the 2 connections of the store."
    )
