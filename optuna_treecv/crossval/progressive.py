"""The engine "progressive": one pass, in which each row is tested before the model learns it.

It is progressive validation (Blum, Kalai & Langford 1999), also known as prequential evaluation or
test-then-train. The scores are those of all the models along the pass.
"""

from collections.abc import Generator

import numpy as np

from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.trained import Trained
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.tree.plan import Learner
from optuna_treecv.tree.plan import ModelTrainer
from optuna_treecv.tree.plan import Phase
from optuna_treecv.tree.walk import STEPS_PER_PASS
from optuna_treecv.tree.walk import test_then_train
from optuna_treecv.tree.walk import TestedBlock


class Progressive(Trained):
    """As many row updates as there are rows."""

    name = "progressive"
    methods = ("progressive",)

    def why_not(self, job: Job) -> str:
        """Return "": ``check`` refuses what cannot be trained further."""
        return ""

    def leaves_for(self, job: Job, repeat: Repeat, learner: Learner) -> Leaves:
        """Return what is kept: all scores follow from outputs."""
        return Leaves(repeat.plan, learner, job.estimator, job.scoring.metrics)

    def cost(self, job: Job) -> str:
        """Return the length of the pass."""
        return (
            f"One model is trained on the {job.task.data.n_rows:,} rows. From the second eighth "
            "on it is tested on each before it acts."
        )

    def test_folds(
        self, repeat: Repeat, learner: Learner, leaves: Leaves, n_jobs: int
    ) -> Generator[TestedBlock]:
        """Test each row of the only chunk before it is trained on."""
        plan = repeat.plan
        assert leaves.outputs is not None and isinstance(learner, ModelTrainer)
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
        yield plan.root, plan.n_rows
