"""Lanes: several compiled learners trained side by side in one reading of the rows."""

from __future__ import annotations

from optuna_treecv._kernels.lanes import MOST
from optuna_treecv._kernels.lanes import VECTOR_BYTES
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import KernelTrainer

# The most bytes of a state of lanes. A walk works in several states, and third-level caches hold
# 32 MB.
_MOST_STATE_BYTES = 2**24


class Lanes(KernelTrainer):
    """Learners side by side; each gets the bits that it gets alone.

    The learners are of one kind and differ only in its ``lane_parameters``. Outputs are those of
    all rows for the first learner, then for the second: (n_learners * n_rows, n_outputs).
    """

    def __init__(self, learners: list[CompiledLearner]) -> None:
        first, rows = learners[0].settings, learners[0].rows
        n_classes = None if rows.classes is None else len(rows.classes)
        settings = [learner.settings for learner in learners]
        super().__init__(first.make_lanes(rows.X, rows.y, n_classes, settings), rows.X.dtype)

    @staticmethod
    def most(learner: CompiledLearner) -> int:
        """Return how many learners like this one are best evaluated at once.

        0 means that one alone is too large.
        """
        bytes_per_lane = learner.state_bytes // learner.n_outputs
        n_lanes = max(VECTOR_BYTES // learner.dtype.itemsize, _MOST_STATE_BYTES // bytes_per_lane)
        return min(MOST, n_lanes) // learner.n_outputs

    @staticmethod
    def least(learner: CompiledLearner) -> int:
        """Return from how many learners on lanes, which fill whole vectors, are the faster way."""
        return 1 + 3 * VECTOR_BYTES // (8 * learner.dtype.itemsize * learner.n_outputs)
