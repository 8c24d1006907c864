"""The engine "treecv": the k trainings do their common part only once, along a tree.

Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015); the recursion itself is in ``tree/walk.py``.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Sequence
from math import log2
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.base import is_regressor

from optuna_treecv.crossval.early import EarlyLanes
from optuna_treecv.crossval.early import FirstPass
from optuna_treecv.crossval.early import walk_lanes
from optuna_treecv.crossval.engine import Early
from optuna_treecv.crossval.engine import Missing
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.task import Task
from optuna_treecv.crossval.trained import Ahead
from optuna_treecv.crossval.trained import bind
from optuna_treecv.crossval.trained import Bound
from optuna_treecv.crossval.trained import lane_parameters
from optuna_treecv.crossval.trained import node_test
from optuna_treecv.crossval.trained import outputs_are_enough
from optuna_treecv.crossval.trained import Trained
from optuna_treecv.crossval.trained import Training
from optuna_treecv.crossval.trained import why_not_in_tree
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import DIVERGENCE_ADVICE
from optuna_treecv.learners.compiled import MOST_ROWS
from optuna_treecv.learners.from_estimator import forget_seeds
from optuna_treecv.learners.lanes import Lanes
from optuna_treecv.learners.linear import LinearEstimator
from optuna_treecv.learners.names import name_of
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.at_leaves import ArrayThenCount
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.sharing.caches import AnyCache
from optuna_treecv.sharing.caches import StoredModelCache
from optuna_treecv.sharing.keys import settings_key
from optuna_treecv.sharing.shared_learner import Prefix
from optuna_treecv.sharing.shared_learner import SharedLearner
from optuna_treecv.tree.plan import Learner
from optuna_treecv.tree.plan import ModelTrainer
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.walk import sum_along_tree
from optuna_treecv.tree.walk import TestedBlock
from optuna_treecv.tree.walk import walk_to_leaves
from optuna_treecv.tree.walk import walk_tree


class TreeCV(Trained):
    """At most n log2(2k) row updates per epoch for k folds of n rows in all."""

    name = "treecv"
    methods = ("auto", "holdout", "treecv")

    def why_not(self, job: Job) -> str:
        """Return why models cannot be trained further along a tree, a clause."""
        cut = job.task.repeats[0].cut
        if why := why_not_in_tree(job):
            return why
        if isinstance(cut, Folds):
            return ""
        return cut.why_no_tree or "the training sets of its folds grow"

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
        """Return what is missing of the first repeat; None if the results are there already."""
        bound = _unfinished(job, job.repeats[0], {})
        if bound is None:
            return None
        n_bytes = _output_bytes(bound.learner) * job.task.n_repeats
        if job.task.settings.is_early:  # scores of the first pass and of 16 folds
            n_bytes += 2 * len(bound.learner.rows.order) * np.dtype(np.float64).itemsize
        return Missing(bound.results.name, n_bytes)

    def together(self, jobs: Sequence[Job], watch: Watch | None, are_leased: bool) -> bool:
        """Train compiled learners on lanes: row by row, in one walk over the tree."""
        is_any = False
        for repeat in jobs[0].task.repeats:
            for group in _groups(jobs, repeat):
                names = list(group)
                learner = group[names[0]][1].learner
                least, most = Lanes.least(learner), Lanes.most(learner)
                if most < least:
                    continue
                for first in range(0, len(names), most):
                    part = names[first : first + most]
                    if len(part) >= least:
                        members = [group[name] for name in part]
                        _evaluate_group(members, repeat.number, watch, are_leased)
                        is_any = True
        return is_any

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
    assert isinstance(learner, ModelTrainer) and average is not None
    sums: dict[Node, np.ndarray] = {}

    def test(node: Node, state: Any) -> int:
        if isinstance(learner, CompiledLearner) and not leaves.at_leaf:
            assert leaves.outputs is not None
            n_updates, sums[node] = learner.walk_summing(plan, node, state, leaves.outputs.array)
        else:
            total: list[np.ndarray] = []
            n_updates = walk_to_leaves(plan, learner, leaves.test_leaf, node, state, total)
            sums[node] = total[0]
        return n_updates

    n_threads = training.job.task.settings.n_threads
    for block, n_updates in walk_tree(plan, learner, test, blocks, n_threads):
        if block == blocks[-1]:
            average.add(learner, sum_along_tree(plan, sums, plan.root), plan.n_folds)
        yield block, n_updates


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

    def add(self, learner: ModelTrainer, total: np.ndarray, n_models: int) -> None:
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


def _groups(jobs: Sequence[Job], repeat: Repeat) -> Iterable[dict[str, tuple[Job, Bound]]]:
    """Group the learners whose results are missing; a group can be evaluated side by side.

    The keys within a group are the names of the results.
    """
    groups: dict[tuple[bytes, bytes, int], dict[str, tuple[Job, Bound]]] = {}
    prepared: dict[tuple[RowLayout, bytes], PreparedRows] = {}
    for job in jobs:
        bound = _unfinished(job, job.repeats[repeat.number], prepared)
        if bound is not None:
            learner = bound.learner
            settings = settings_key(learner, MOST_ROWS, *learner.lane_parameters)
            alike = bound.identity.rows, settings, job.n_epochs
            groups.setdefault(alike, {})[bound.results.name] = job, bound
    return groups.values()


def _unfinished(
    job: Job, repeat: Repeat, prepared: dict[tuple[RowLayout, bytes], PreparedRows]
) -> Bound | None:
    """Return a job bound to a repeat if its results are needed and missing.

    The repeat's rows are taken from ``prepared``, or put there.
    """
    task = job.task
    try:
        after = job.layout, job.steps_name
        if after not in prepared:
            prepared[after] = job.rows(repeat)
        bound = bind(job, repeat, prepared[after])
    except Exception:  # noqa: BLE001  # the job itself will raise it
        return None
    learner, results = bound.learner, bound.results
    if not isinstance(learner, CompiledLearner):  # its steps are too wide to be compiled
        return None
    if task.settings.is_early and not learner.phases_may_be_cut:
        return None
    follow = (outputs_are_enough(job.estimator, learner, one) for one in job.scoring.metrics)
    if results is None or not all(follow) or repeat.number in job.ahead:
        return None
    return None if results.has_outputs(_output_bytes(learner)) else bound


def _output_bytes(learner: CompiledLearner) -> int:
    return len(learner.rows.order) * learner.n_outputs * learner.dtype.itemsize


def _evaluate_group(
    members: list[tuple[Job, Bound]], number: int, watch: Watch | None, are_leased: bool
) -> None:
    """Compute the outputs of a group on the repeat with this number, in one walk."""
    began = perf_counter()
    first = members[0][0]
    repeat, n_threads = first.repeats[number], first.task.settings.n_threads
    learners = [bound.learner for _, bound in members]
    ahead = [Ahead() for _ in members]
    if first.task.settings.is_early and number == 0:
        lanes = EarlyLanes(repeat.plan, learners, first.scoring.first, n_threads, watch)
        out, tested = lanes.evaluate()
        ahead = lanes.ahead
        counts = [ahead[i].n_updates for i in tested]
    else:
        plan, learner = repeat.plan, Lanes(learners)
        out = np.empty((len(members) * plan.n_rows, learner.n_outputs), learner.dtype)
        n_updates = walk_lanes(plan, learner, out, repeat.blocks, n_threads)
        tested = list(range(len(members)))
        counts = [n_updates for _ in members]
    seconds = (perf_counter() - began) / len(members)
    for i, outputs in zip(tested, _cut(out, counts), strict=True):
        if ahead[i].lost_at is None:
            ahead[i].outputs = outputs
    for results, (job, _) in zip(ahead, members, strict=True):
        results.seconds = seconds
        job.ahead[number] = results
    if are_leased:
        cache = first.task.shared.cache
        assert isinstance(cache, StoredModelCache)
        cache.write(
            bound.results.to_write(results.outputs, results.seconds)
            for results, (_, bound) in zip(ahead, members, strict=True)
            if results.outputs is not None
        )


def _cut(array: np.ndarray, counts: list[int]) -> list[ArrayThenCount]:
    """Copy an array into equal parts that can go one by one, each with its count.

    The array shrinks meanwhile to nothing, so that this takes the memory of one more part.
    """
    parts = []
    for number in range(len(counts) - 1, -1, -1):
        begin = number * (len(array) // (number + 1))
        parts.append(ArrayThenCount.of(array[begin:], counts[number]))
        array.resize((begin, *array.shape[1:]), refcheck=False)
    return parts[::-1]
