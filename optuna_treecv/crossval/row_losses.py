"""The losses of all rows, in the order of the rows as given."""

from __future__ import annotations

import numpy as np

from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.rows.folds import Folds


class RowLosses:
    """Gathers the losses of rows; 4 bytes per row, and 4 more where a row is tested repeatedly.

    Parameters
    ----------
    evaluation : Evaluation
    """

    def __init__(self, evaluation: Evaluation) -> None:
        cuts = [repeat.cut for repeat in evaluation.repeats]
        self._losses = np.full(evaluation.data.n_rows, np.nan, np.float32)
        self._n_tests: np.ndarray | None = None
        if len(cuts) > 1 or not isinstance(cuts[0], Folds):
            self._losses[:] = 0
            self._n_tests = np.zeros(evaluation.data.n_rows, np.int32)

    def add(self, rows: np.ndarray, losses: np.ndarray) -> None:
        """Take note of the losses of some rows."""
        if self._n_tests is None:
            self._losses[rows] = losses
            return
        np.add.at(self._losses, rows, losses.astype(np.float32))
        np.add.at(self._n_tests, rows, 1)

    def finish(self) -> np.ndarray:
        """Return the mean loss of each row; NaN where it was never tested."""
        if self._n_tests is None:
            return self._losses
        with np.errstate(invalid="ignore"):
            return self._losses / self._n_tests.astype(np.float32)
