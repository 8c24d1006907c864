"""Keeps Optuna's messages of each trial from being shown."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

import optuna

_lock = Lock()
_levels: list[int] = []  # the level before the first of those that are quiet now, and its copies


@contextmanager
def quiet() -> Generator[None]:
    """Show warnings of Optuna alone; several threads may do so at the same time."""
    with _lock:
        _levels.append(_levels[0] if _levels else optuna.logging.get_verbosity())
        optuna.logging.set_verbosity(max(_levels[0], optuna.logging.WARNING))
    try:
        yield
    finally:
        with _lock:
            before = _levels.pop()
            if not _levels:
                optuna.logging.set_verbosity(before)
