"""The fold scores of an objective's best trials in memory, so that trials can be paired later."""

from __future__ import annotations

from datetime import datetime
from threading import Lock
from typing import Any
from typing import NamedTuple
from typing import TypeAlias

import numpy as np

from optuna_treecv.crossval.result import CVResult

#: The most bytes that one objective holds: 64 MiB.
MOST_BYTES = 2**26


_Name: TypeAlias = tuple[int, datetime | None]


class Held(NamedTuple):
    """What is held of one trial.

    Attributes
    ----------
    value : float
        Its mean, of which smaller ones are better.
    folds : ndarray of shape (n_repeats * n_folds,)
        The scores of its folds, in one byte each where all are 0 or 1.
    rows : ndarray of shape (n_rows,), float32, or None
        The scores of its rows.
    """

    value: float
    folds: np.ndarray
    rows: np.ndarray | None

    @property
    def n_bytes(self) -> int:
        return self.folds.nbytes + (0 if self.rows is None else self.rows.nbytes)


class HeldScores:
    """Holds fold scores by the number of the trial and the time when it began.

    Its parameters would not do: a callable may make other estimators of the same parameters.

    When there is no more room, the scores of rows go first, those of the worst trial before
    others; then the fold scores of the worst trial.

    Parameters
    ----------
    most_bytes : int
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: dict[_Name, Held] = {}
        self._lock = Lock()
        self.n_bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldScores, (self._most_bytes,)

    def note(self, trial: Any, result: CVResult, direction: str) -> None:
        """Take note of a complete trial's scores; one whose mean is infinite is not held."""
        name = _name_of(trial)
        if not np.isfinite(result.mean):
            return
        value = result.mean if direction == "minimize" else -result.mean
        held = Held(value, _packed(result.test_score), result.row_losses)
        with self._lock:
            self._forget(name)
            self._held[name] = held
            self.n_bytes += held.n_bytes
            while self.n_bytes > self._most_bytes:
                self._make_room()

    def find(self, trial: Any) -> Held | None:
        """Return what is held of a trial."""
        with self._lock:
            return self._held.get(_name_of(trial))

    def _make_room(self) -> None:
        """Forget the rows of the worst trial that has any, or else the worst trial."""
        having = [name for name, held in self._held.items() if held.rows is not None]
        worst = max(having or self._held, key=lambda name: self._held[name].value)
        held = self._held[worst]
        self._forget(worst)
        if held.rows is not None:
            self._held[worst] = held._replace(rows=None)
            self.n_bytes += held.folds.nbytes

    def _forget(self, name: _Name) -> None:
        if (gone := self._held.pop(name, None)) is not None:
            self.n_bytes -= gone.n_bytes


def _name_of(trial: Any) -> _Name:
    return trial.number, trial.datetime_start


def _packed(scores: np.ndarray) -> np.ndarray:
    """Return scores that are 0 or 1 as int8, and others as they are."""
    with np.errstate(invalid="ignore"):
        small = scores.astype(np.int8)
    fits = np.array_equal(small, scores) and bool(np.all((small >= 0) & (small <= 1)))
    return small if fits else scores.copy()
