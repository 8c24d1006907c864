"""Lanes: several compiled learners trained side by side while the rows are read once."""

from typing import Any
from typing import cast

import numpy as np

from optuna_treecv._kernels.lanes import LanesKernel
from optuna_treecv._kernels.lanes import MOST
from optuna_treecv._kernels.lanes import VECTOR_BYTES
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import KernelTrainer

# The most bytes that a state of several lanes may have. A walk uses several states at a time, and
# a third-level cache holds 32 MB.
_MOST_STATE_BYTES = 2**24


class Lanes(KernelTrainer):
    """Learners trained side by side; the results are bit for bit those of training them alone.

    The learners are of one class and differ only in its ``lane_parameters``. Outputs hold all rows
    for the first learner, then all rows for the second: (n_learners * n_rows, n_outputs).
    """

    def __init__(self, learners: list[CompiledLearner]) -> None:
        first: Any = learners[0].settings
        rows = learners[0].rows
        n_classes = None if rows.classes is None else len(rows.classes)
        settings = [learner.settings for learner in learners]
        self.rows = rows
        self.learners = learners
        kernel = first.make_lanes(rows.X, rows.y, n_classes, settings)
        kernel.weigh(learners[0].weights, first.is_balanced)
        before = learners[0].before
        super().__init__(kernel if before is None else before.around(kernel, rows), rows.X.dtype)

    def only(self, numbers: list[int]) -> "Lanes":
        """Return some of the learners."""
        return Lanes([self.learners[number] for number in numbers])

    def take(self, lanes: "Lanes", state: np.ndarray, numbers: list[int]) -> np.ndarray:
        """Return the state of these learners, which are some of ``lanes``, from a state of all.

        ``numbers`` say which they are among ``lanes``.
        """
        taken = self.start()
        chosen = np.array(numbers, np.int64)
        cast(LanesKernel, self._kernel).take(
            cast(LanesKernel, lanes._kernel), state, chosen, taken
        )
        return taken

    @staticmethod
    def most(learner: CompiledLearner) -> int:
        """Return the largest useful number of such learners on lanes.

        0 means that a single learner is too large.
        """
        bytes_per_lane = learner.state_bytes // learner.n_outputs
        n_lanes = max(VECTOR_BYTES // learner.dtype.itemsize, _MOST_STATE_BYTES // bytes_per_lane)
        return min(MOST, n_lanes) // learner.n_outputs

    @staticmethod
    def least(learner: CompiledLearner) -> int:
        """Return the smallest number of such learners for which lanes are faster.

        Lanes fill whole vectors, so a few learners alone use only a part of each.
        """
        return 1 + 3 * VECTOR_BYTES // (8 * learner.dtype.itemsize * learner.n_outputs)
