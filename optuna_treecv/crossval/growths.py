"""Ensembles that trials have grown, and that others may grow on."""

from collections import OrderedDict
from dataclasses import dataclass
from dataclasses import field
from threading import Lock
from typing import Any

from optuna_treecv.learners.growing.growth import Growth
from optuna_treecv.scoring.scores import FoldScores

#: The share of the cache of models that ensembles may take beside it.
SHARE = 0.5

# The bytes of the scores of a fold after one number of trees.
_SCORE_BYTES = 1000


@dataclass
class Fold:
    """The ensemble of one fold, and its scores after some of its trees.

    Attributes
    ----------
    growth : Growth or None
        None: it has not begun.
    scores : dict of (int, int or None) to FoldScores
        By the number of trees, and the depth at which they are cut.
    """

    growth: Growth | None = None
    scores: dict[tuple[int, int | None], FoldScores] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes that it takes, about."""
        n_trees = 0 if self.growth is None else self.growth.nbytes
        return n_trees + _SCORE_BYTES * len(self.scores)


class Growths:
    """Ensembles that trials have grown and others may grow on: those of last, within a bound.

    Scores stay where their ensembles go. A pickled one comes back empty.

    Parameters
    ----------
    max_bytes : int
        Room for the ensembles and the scores.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[bytes, list[Fold]] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Growths, (self._max_bytes,)

    def take(self, name: bytes) -> list[Fold] | None:
        """Return the folds of a name, which are nobody else's from now on; None if not there."""
        with self._lock:
            return self._held.pop(name, None)

    def put(self, name: bytes, folds: list[Fold]) -> None:
        """Hold folds; the oldest ones go where room is needed, first their ensembles."""
        with self._lock:
            self._held[name] = folds
            for drops_scores in (False, True):
                n_bytes = sum(fold.nbytes for folds in self._held.values() for fold in folds)
                for oldest in list(self._held):
                    if n_bytes <= self._max_bytes:
                        return
                    for fold in self._held[oldest]:
                        n_bytes -= fold.nbytes
                        fold.growth = None
                        n_bytes += fold.nbytes
                    if drops_scores:
                        n_bytes -= sum(fold.nbytes for fold in self._held.pop(oldest))
