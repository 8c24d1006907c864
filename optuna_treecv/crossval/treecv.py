"""The engine "treecv": the k trainings do their common part only once, along a tree.

Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015); the recursion itself is in ``tree/walk.py``.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence
from math import log2
from typing import Any
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import is_classifier
from sklearn.base import is_regressor

from optuna_treecv.crossval import lanes
from optuna_treecv.crossval.early import FirstPass
from optuna_treecv.crossval.engine import Early
from optuna_treecv.crossval.engine import Missing
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.trained import lane_parameters
from optuna_treecv.crossval.trained import node_test
from optuna_treecv.crossval.trained import Trained
from optuna_treecv.crossval.trained import Training
from optuna_treecv.crossval.trained import why_not_passed_further
from optuna_treecv.crossval.trained import why_not_trained_further
from optuna_treecv.crossval.trained import why_trained_further
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import DIVERGENCE_ADVICE
from optuna_treecv.learners.from_estimator import forget_seeds
from optuna_treecv.learners.linear import LinearEstimator
from optuna_treecv.learners.names import name_of
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring import Leaves
from optuna_treecv.sharing.prefixes import Prefix
from optuna_treecv.sharing.shared_learner import SharedLearner
from optuna_treecv.sharing.stored_cache import AnyCache
from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.learner import ModelReader
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.walk import sum_along_tree
from optuna_treecv.tree.walk import TestedBlock
from optuna_treecv.tree.walk import walk_summing
from optuna_treecv.tree.walk import walk_tree

if TYPE_CHECKING:
    from optuna_treecv.crossval.job import Job
    from optuna_treecv.crossval.task import Task


class TreeCV(Trained):
    """At most n log2(2k) row updates per epoch for k folds of n rows in all."""

    name = "treecv"
    asked_by = ("auto", "holdout", "treecv")

    def why_not(self, job: Job) -> str:
        """Return why models cannot be trained further along a tree, a clause."""
        cut = job.task.repeats[0].cut
        if why := why_not_trained_further(job) or why_not_passed_further(job):
            return why
        if isinstance(cut, Folds):
            return ""
        return cut.why_no_tree or "the training sets of its folds grow"

    def why(self, job: Job) -> str:
        """Return why models are trained further."""
        return why_trained_further(job)

    def share(self, learner: Learner, cache: AnyCache, root: Prefix, n_epochs: int) -> Learner:
        """Return a learner that looks models up in the cache, if its states have keys."""
        if isinstance(learner, CompiledLearner):
            return SharedLearner(learner, cache, root, n_epochs)
        return learner

    def early(self, training: Training) -> Generator[Early]:
        """Yield the progressive losses along the first pass, and those of 16 folds of many."""
        training.first_pass = FirstPass(training)
        yield from training.first_pass.events()

    def walk(self, training: Training) -> Generator[TestedBlock]:
        """Walk the tree from where the first pass has come to."""
        if training.job.average is not None:
            return walk_averaging(training)
        if training.first_pass is not None:
            return training.first_pass.walk_rest()
        return super().walk(training)

    def test_folds(
        self, repeat: Repeat, learner: Learner, leaves: Leaves, n_jobs: int
    ) -> Generator[TestedBlock]:
        """Walk the tree; a compiled learner walks each block in one call."""
        test = node_test(repeat.plan, learner, leaves)
        return walk_tree(repeat.plan, learner, test, repeat.blocks, n_jobs)

    def parameters_beside(self, estimator: Any) -> tuple[str, ...]:
        """Return the parameters in which compiled learners on lanes may differ."""
        return lane_parameters(estimator)

    def missing(self, job: Job) -> Missing | None:
        """Return what is missing of the first repeat."""
        return lanes.missing(job)

    def together(self, jobs: Sequence[Job], watch: Watch | None, are_leased: bool) -> bool:
        """Train compiled learners row by row, in one walk over the tree."""
        return lanes.evaluate(jobs, watch, are_leased)

    def average(self, estimator: Any) -> FoldAverage:
        """Return what takes the models of linear learners."""
        kind = type(estimator)
        from_sklearn = kind.__module__.startswith("sklearn.linear_model.")
        is_model = is_classifier(estimator) or is_regressor(estimator)
        if not issubclass(kind, LinearEstimator) and not (from_sklearn and is_model):
            super().average(estimator)
        return FoldAverage(estimator)

    def cost(self, job: Job) -> str:
        """Return the row updates at most, and those of k trainings from scratch."""
        task, n_epochs = job.task, job.n_epochs
        n_standard = n_epochs * task.n_updates_standard
        if task.n_folds == 1:
            return (
                f"One model is trained, in {n_standard:,} row updates, and tested on other rows."
            )
        return (
            f"A tree over {task.folds_in_words} of {task.data.n_rows:,} rows takes at most "
            f"{n_epochs * most_updates(task):,} row updates; k trainings from scratch take "
            f"{n_standard:,}."
        )


def most_updates(task: Task) -> int:
    """Return the most row updates that the tree takes for one epoch."""
    return int(task.data.n_rows * log2(2 * task.n_folds)) * task.n_repeats


def walk_averaging(training: Training) -> Generator[TestedBlock]:
    """Walk the tree and add up the models of its folds; compiled learners walk it in blocks."""
    plan, blocks, leaves = training.repeat.plan, training.repeat.blocks, training.leaves
    learner, average = training.learner, training.job.average
    assert isinstance(learner, ModelReader) and average is not None
    sums: dict[Node, np.ndarray] = {}

    def test(node: Node, state: Any) -> int:
        if isinstance(learner, CompiledLearner) and not leaves.at_leaf:
            assert leaves.outputs is not None
            walked = learner.walk_summing(plan, node, state, leaves.outputs.array)
        else:
            assert isinstance(learner, ModelReader)
            walked = walk_summing(plan, learner, leaves.test_leaf, node, state)
        n_updates, sums[node] = walked
        return n_updates

    for block in walk_tree(plan, learner, test, blocks, training.job.task.settings.n_threads):
        if block.block == blocks[-1]:
            average.add(learner, sum_along_tree(plan, sums), plan.n_folds)
        yield block


class FoldAverage:
    """The average of the models of all folds and repeats, one vector while leaves are visited.

    Blum, Kalai & Langford (1999) use a fold model drawn at random for each prediction, the k-fold
    hypothesis. The mean of the fold models' weights is one model that is at least as stable.

    Parameters
    ----------
    estimator : estimator
        As given.
    """

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
        self._learner: Any = None
        self._total: Any = 0.0
        self._n_models = 0

    def add(self, learner: ModelReader, total: np.ndarray, n_models: int) -> None:
        """Add the models of one repeat."""
        self._learner = learner
        self._total = self._total + total
        self._n_models += n_models

    def finish(self) -> Any:
        """Return a fitted estimator with the mean of the models, or the error if there is none."""
        mean = self._total / self._n_models
        if not np.all(np.isfinite(mean)):
            return ValueError(
                f"{name_of(self._estimator)} diverges on some fold, so that the fold models have "
                f"no average; {DIVERGENCE_ADVICE}"
            )
        fitted = self._learner.with_numbers(mean)
        forget_seeds(fitted, self._estimator)
        names = self._learner.rows.feature_names
        if names is not None and isinstance(self._learner, CompiledLearner):
            fitted.feature_names_in_ = names
        return fitted
