"""The sums of an objective whose rows lie elsewhere, block after block."""

from __future__ import annotations

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
    """Sums of losses of rows that lie elsewhere. Models travel there, and sums come back.

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
        return self._sums("sums_of_slopes", models, set_of)

    def reach(self, moves: np.ndarray, set_of: np.ndarray) -> np.ndarray:
        """Return how far models move the predictors of their training rows at most, (n_lanes,)."""
        return np.max(self._there("reach", moves, set_of), axis=0)

    def diagonals(self, models: np.ndarray, set_of: np.ndarray) -> np.ndarray:
        """Return the diagonals of Hessians over training rows, (n_lanes, n_outputs, width)."""
        return np.add.reduce(self._there("diagonals", models, set_of))

    def curvature(
        self, models: np.ndarray, set_of: np.ndarray, by_group: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the slopes and Hessians of models over training rows."""
        return self._sums("curvature", models, set_of, by_group)

    def _sums(self, method: str, *arguments: Any) -> Any:
        each = zip(*self._there(method, *arguments), strict=True)
        return tuple(np.add.reduce(some) for some in each)

    def _there(self, method: str, *arguments: Any) -> list[Any]:
        """Return what a method says of each block."""
        what = self.loss, self.has_intercept, self.columns, self.class_weights
        numbers = self.precision, self.precision_of_hessians, self.tolerance
        chunks = self.chunks.n_rows, self.chunks.bounds
        return self.rows.X.over(
            0, len(self.rows.X), _called, self.code, chunks, what, numbers, method, arguments
        )


def _called(
    block: Block,
    start: int,
    stop: int,
    code: int | None,
    chunks: tuple[int, np.ndarray],
    what: tuple[Any, ...],
    numbers: tuple[type, type, float],
    method: str,
    arguments: tuple[Any, ...],
) -> Any:
    rows = block.rows if code is None else one_against_the_rest(block.rows, code)
    sets = Sets.of(Chunks(*chunks)).within(block.start, block.start + stop)
    loss, has_intercept, columns, class_weights = what
    objective = Objective(rows, sets, loss, has_intercept, columns, class_weights, numbers[0])
    # These follow from all rows.
    objective.precision, objective.precision_of_hessians, objective.tolerance = numbers
    with np.errstate(all="ignore"):
        return getattr(objective, method)(*arguments)


def one_against_the_rest(rows: PreparedRows, code: int) -> PreparedRows:
    """Return rows with targets 1 for one class and 0 for the others."""
    codes = rows.targets
    assert codes is not None
    return replace(rows, targets=(codes == code).astype(codes.dtype))
