"""The sums of an objective whose rows are on other machines, block after block."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

import numpy as np

from optuna_treecv.engines.newton.objective import Objective
from optuna_treecv.engines.newton.sets import Sets
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.distributed import Block


@dataclass
class RemoteObjective(Objective):
    """Sums of losses of rows on other machines. Models travel to the blocks, and sums come back.

    Attributes
    ----------
    code : int or None
        The class that is told from the rest; None: targets are as they are.
    chunks : Chunks
        The folds.
    """

    code: int | None
    chunks: Chunks

    def sums_of_slopes(
        self, models: np.ndarray, set_of: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return sums over training and over test rows, and the weights of the latter."""
        return self._reduced(np.add, "sums_of_slopes", models, set_of)

    def reach(self, moves: np.ndarray, set_of: np.ndarray) -> np.ndarray:
        """Return how far models move the predictors of their training rows at most, (n_lanes,)."""
        return self._reduced(np.maximum, "reach", moves, set_of)

    def diagonals(self, models: np.ndarray, set_of: np.ndarray) -> np.ndarray:
        """Return the diagonals of Hessians over training rows, (n_lanes, n_outputs, width)."""
        return self._reduced(np.add, "diagonals", models, set_of)

    def curvature(
        self, models: np.ndarray, set_of: np.ndarray, by_group: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the slopes and Hessians of models over training rows."""
        return self._reduced(np.add, "curvature", models, set_of, by_group)

    def _reduced(self, join: np.ufunc, method: str, *arguments: Any) -> Any:
        """Return what a method returns for all rows, joined from that of blocks."""
        sent: Any = copy(self)  # blocks have rows of their own; sets would be large to send
        sent.rows = sent.targets = sent.sets = sent.sample = None
        blocks = self.rows.X
        each = blocks.over(0, len(blocks), _called, sent, method, arguments)
        if isinstance(each[0], tuple):
            return tuple(map(join.reduce, zip(*each, strict=True)))
        return join.reduce(each)


def _called(
    block: Block, start: int, stop: int, objective: Any, method: str, arguments: tuple[Any, ...]
) -> Any:
    """Call a method of an objective for the rows of a block."""
    here, code = copy(objective), objective.code
    here.rows = block.rows if code is None else one_against_the_rest(block.rows, code)
    here.targets = here.rows.targets
    here.sets = Sets.of(objective.chunks).within(block.start, block.start + stop)
    with np.errstate(all="ignore"):
        return getattr(Objective, method)(here, *arguments)


def one_against_the_rest(rows: PreparedRows, code: int) -> PreparedRows:
    """Return rows with targets 1 for one class and 0 for the others."""
    codes = rows.targets
    assert codes is not None
    return replace(rows, targets=(codes == code).astype(codes.dtype))
