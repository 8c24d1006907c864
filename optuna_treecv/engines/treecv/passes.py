"""The engines "chain", "standard" and "progressive": incremental training without branches."""

from collections.abc import Generator

import numpy as np

from optuna_treecv._kernels.order import random_order
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.core.row_scores import STEPS_PER_PASS
from optuna_treecv.engines.treecv.conditions import check_incremental_estimator
from optuna_treecv.engines.treecv.conditions import why_no_chain
from optuna_treecv.engines.treecv.conditions import why_no_passes
from optuna_treecv.engines.treecv.conditions import why_not_incremental
from optuna_treecv.engines.treecv.learner import Learner
from optuna_treecv.engines.treecv.learner import ModelTrainer
from optuna_treecv.engines.treecv.trained import declined
from optuna_treecv.engines.treecv.trained import Training
from optuna_treecv.engines.treecv.trained import WalkedPlan
from optuna_treecv.engines.treecv.walk import test_then_train
from optuna_treecv.engines.treecv.walk import TestedBlock
from optuna_treecv.engines.treecv.walk import train
from optuna_treecv.estimators.base import is_grown
from optuna_treecv.numerics.moments import in_order
from optuna_treecv.plans.fits import describe_trainings
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.folds import Splits
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Phase
from optuna_treecv.rows.partition import Replays


def plan_chain(request: Request) -> Plan | Declined:
    """Return the plan for an incremental estimator on growing training sets, or decline."""
    cut = request.cross_validation.repeats[0].cut
    why_not = why_no_passes(request)
    if not why_not and isinstance(cut, Folds):
        why_not = "its training sets do not grow from fold to fold"
    elif not why_not and isinstance(cut, Splits):
        why_not = "" if cut.grows else cut.why_no_tree
    if why_not:
        return declined(request, why_not)
    if why_not := why_no_chain(request):
        return declined(request, why_not, warns=False)
    check_incremental_estimator(request)
    return ChainPlan(request)


class ChainPlan(WalkedPlan):
    """The plan "chain": one model is trained on growing sets of rows, and tested after each."""

    name = "chain"

    def cost(self) -> str:
        """Return a sentence with the number of rows and the number of tests."""
        n_rows, n_folds = self.request.data.n_rows, self.request.cross_validation.n_folds
        return (
            f"One model moves forward through the {n_rows:,} rows and is tested {n_folds:,} times."
        )

    def test_folds(self, training: Training) -> Generator[TestedBlock]:
        """Train one model incrementally, and test a copy of it at each split."""
        repeat, learner = training.repeat, training.learner
        cut, plan = repeat.cut, repeat.plan
        assert isinstance(cut, Splits)
        state, n_seen = learner.start(), 0
        for block in repeat.blocks:
            n_updates = 0
            for chunk in range(block.first, block.last):
                stop = cut.trains[chunk]
                assert isinstance(stop, int)
                replays = None
                if plan.n_epochs > 1:  # the rows from ``stop`` on must not be replayed
                    replays = Replays(plan.n_epochs, plan.seed, stop, cut.n_rows, cut.n_rows)
                phase = Phase(n_seen, stop, n_seen, plan.seed if plan.random else None, replays)
                n_updates += train(learner, state, phase)
                n_seen = stop
                training.leaves.test_leaf(Node(chunk, chunk + 1), learner.snapshot(state))
            yield block, n_updates


def plan_standard(request: Request) -> Plan | Declined:
    """Return the plan for an incremental estimator, or the reason for declining the request."""
    if is_grown(request.estimator):
        return declined(request, why_not_incremental(request))
    check_incremental_estimator(request)
    return StandardPlan(request)


class StandardPlan(WalkedPlan):
    """The plan "standard": for each fold, a new model is trained from scratch."""

    name = "standard"

    def __init__(self, request: Request) -> None:
        super().__init__(request, in_memory_reason="each training reads all its rows again")

    def cost(self) -> str:
        """Return a sentence with the number of trainings and the number of row updates."""
        passes = "one pass" if self.n_epochs == 1 else f"{self.n_epochs} passes"
        return describe_trainings(self.request, f"trainings of {passes}")

    def test_folds(self, training: Training) -> Generator[TestedBlock]:
        """Train a new model for each fold on its training rows, and test it."""
        repeat, learner = training.repeat, training.learner

        def run(block: Node) -> TestedBlock:
            n_updates = 0
            for chunk in range(block.first, block.last):
                state = learner.start()
                for epoch in range(repeat.plan.n_epochs):
                    rows = _training_rows(repeat, chunk, epoch)
                    if epoch == 0:
                        learner.update(state, rows)
                    else:
                        assert isinstance(learner, ModelTrainer)
                        learner.replay(state, rows)
                    n_updates += len(rows)
                training.leaves.test_leaf(Node(chunk, chunk + 1), state)
            return block, n_updates

        yield from in_order(self.request.settings.n_threads, run, repeat.blocks)


def _training_rows(repeat: Repeat, chunk: int, epoch: int) -> np.ndarray:
    """Return the indices of the prepared training rows of a chunk, in the order of training.

    The first epoch is in prepared order or in random order, as the plan requires. Further epochs
    are always in random order. A random order depends on the chunk and on the epoch.
    """
    cut, plan = repeat.cut, repeat.plan
    if isinstance(cut, Folds):
        return plan.rest(Node(chunk, chunk + 1), epoch)
    rows = np.sort(cut.prepared(cut.split(chunk).train_rows()))
    if not plan.random and epoch == 0:
        return rows
    order, number, n_seen = np.empty(len(rows), np.uint32), cut.number(chunk), epoch * len(rows)
    random_order(plan.seed, number, number + len(rows), n_seen, order)
    return rows[order - np.uint32(number)]


def plan_pass(request: Request) -> Plan | Declined:
    """Return the plan "progressive" for an incremental estimator; raise for other estimators."""
    check_incremental_estimator(request)
    return ProgressivePlan(request)


class ProgressivePlan(WalkedPlan):
    """The plan "progressive": one pass that tests each row just before training on it."""

    name = "progressive"
    fold_models = Plan.fold_models  # there is a single model

    def cost(self) -> str:
        """Return a sentence with the number of rows."""
        return (
            f"One model is trained on the {self.request.data.n_rows:,} rows. After the first "
            "eighth of the rows, the model is tested on each row just before training on it."
        )

    def at_leaf(self, candidate: Candidate, learner: Learner) -> list[int]:
        """Return an empty list, because all scores are computed from outputs."""
        return []

    def test_folds(self, training: Training) -> Generator[TestedBlock]:
        """Train on the first rows, then test each row of the only chunk before training on it."""
        plan, learner, leaves = training.repeat.plan, training.learner, training.leaves
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
