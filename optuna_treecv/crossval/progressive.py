"""The method "progressive": one pass, in which each row is tested before the model learns it.

It is progressive validation (Blum, Kalai & Langford 1999), also known as prequential evaluation or
test-then-train. The scores are those of all the models along the pass.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Request
from optuna_treecv.crossval.trained import Trained
from optuna_treecv.crossval.trained import TrainedRepeat
from optuna_treecv.scoring import Leaves
from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.learner import RowTester
from optuna_treecv.tree.plan import Phase
from optuna_treecv.tree.spine import STEPS_PER_PASS
from optuna_treecv.tree.spine import test_then_train
from optuna_treecv.tree.walk import TestedBlock


class Progressive(Trained):
    """As many row updates as there are rows."""

    name = "progressive"

    def begin(self, request: Request, repeat: Repeat) -> TrainedRepeat:
        """Bind the estimator to the prepared rows."""
        return ProgressiveRepeat(self, request, repeat)

    def test_folds(
        self, repeat: Repeat, learner: Learner, leaves: Leaves, n_jobs: int
    ) -> Generator[TestedBlock]:
        """Test each row of the only chunk before it is trained on."""
        plan = repeat.plan
        assert leaves.outputs is not None and isinstance(learner, RowTester)
        state = learner.start()
        learner.update(state, plan.first_phase)
        start, stop = plan.rows(plan.root)
        phase = Phase(start, stop, start, plan.seed if plan.random else None)
        outputs = np.empty((phase.n_rows, learner.n_outputs), learner.dtype)
        steps = range(1, STEPS_PER_PASS + 1)
        ends = sorted({-(-step * phase.n_rows // STEPS_PER_PASS) for step in steps})
        for _ in test_then_train(learner, state, phase.rows, ends, outputs):
            pass
        leaves.outputs.array[phase.rows] = outputs
        yield TestedBlock(plan.root, plan.n_rows)


class ProgressiveRepeat(TrainedRepeat):
    """One estimator's way through one pass: all scores follow from outputs."""

    def _make_leaves(self, learner: Learner) -> Leaves:
        request = self._request
        return Leaves(self._repeat.plan, learner, request.estimator, request.scoring.metrics)
