"""Scores of single rows during training, and the steps at which they are reported."""

from collections.abc import Collection
from copy import copy

import numpy as np

from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.types import Array

#: The number of steps in one pass over the rows.
STEPS_PER_PASS = 16

#: The first step that is reported, after an eighth of a pass.
FIRST_STEP = 2
#: The last step of the pass.
LAST_STEP = STEPS_PER_PASS

#: The number of folds that are scored before all others.
NESTED_FOLDS = 16
#: The minimum number of folds for scoring nested folds first.
MIN_FOLDS_FOR_NESTED = 2 * NESTED_FOLDS


#: The first leaf of the tree. The spine is the path from the root to this leaf.
FIRST_LEAF = Node(0, 1)

#: The step at which the nested folds are scored. Training their models takes about four passes.
NESTED_STEP = 4 * STEPS_PER_PASS


class RowScores:
    """A sequence of row scores to which further rows are appended.

    Parameters
    ----------
    n_rows : int
        The maximum number of rows.
    has_weights : bool
    ends : collection of int
        The numbers of rows after which the scores so far are requested.
    dtype : dtype
        The dtype of the scores.

    Attributes
    ----------
    n_rows : int
        The number of rows so far.
    marks : list of int
        The positions at which a tail may begin or end, in ascending order.
    """

    def __init__(
        self, n_rows: int, has_weights: bool, ends: Collection[int] = (), dtype: type = np.float64
    ) -> None:
        self.n_rows = 0
        # Half of the number of rows is rounded up, as in ``tail``.
        self.marks = sorted({*ends, *((end + 1) // 2 for end in ends)})
        self._values: Array = np.empty(n_rows, dtype)
        self._weights = np.empty(n_rows) if has_weights else None

    def add(self, values: Array, weights: Array | None) -> None:
        """Append the scores of further rows."""
        part = slice(self.n_rows, self.n_rows + len(values))
        self._values[part] = values
        if self._weights is not None:
            self._weights[part] = weights
        self.n_rows = part.stop

    @property
    def values(self) -> Array:
        """The scores of the rows so far, (n_rows,)."""
        return self._values[: self.n_rows]

    @property
    def weights(self) -> Array | None:
        """The weights of the rows so far."""
        return None if self._weights is None else self._weights[: self.n_rows]

    @property
    def n_bytes(self) -> int:
        """The number of bytes of the scores and weights."""
        return self._values.nbytes + (0 if self._weights is None else self._weights.nbytes)

    def first(self, n_rows: int) -> "RowScores":
        """Return the scores of the first ``n_rows`` rows."""
        first = copy(self)
        first.n_rows = n_rows
        return first

    @property
    def tail(self) -> "slice[int]":
        """The slice of the second half of the rows so far."""
        return slice((self.n_rows + 1) // 2, self.n_rows)

    def mean(self, rows: "slice[int]") -> float:
        """Return the mean score of a slice of rows; NaN if their total weight is 0."""
        values = self.values[rows]
        if self._weights is None:
            return float(values.mean())
        weights = self._weights[rows]
        total = weights.sum()
        return float(weights @ values / total) if total > 0 else float("nan")


def spine_length(plan: Partition) -> int:
    """Return the number of rows on which the model of the first fold is trained."""
    return plan.n_rows - (plan.begin(1) - plan.begin(0))


def spine_steps(plan: Partition) -> dict[int, int]:
    """Return a dict that maps the number of rows trained on to the step that ends there.

    A step is a sixteenth of a pass over all rows, rounded up. The last step ends when the model of
    the first fold is complete.
    """
    length = spine_length(plan)
    steps: dict[int, int] = {}
    for step in range(1, STEPS_PER_PASS + 1):
        n_rows = min(-(-step * plan.n_rows // STEPS_PER_PASS), length)
        steps.setdefault(n_rows, step)
    return steps
