"""The engine "treecv": the k trainings do their common part only once, along a tree.

Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015); the recursion itself is in ``tree/walk.py``.

The training of the first leaf's model is one pass over all rows but its own. Where scores are
wanted early, each row is tested before the model is trained on it (Blum, Kalai & Langford 1999).
With many folds, the tree is then walked breadth-first to 16 nodes: their models are those of a
cross-validation with 16 folds.
"""

from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from datetime import UTC
from functools import partial
from math import log2
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.base import is_regressor

from optuna_treecv.crossval.engine import divided
from optuna_treecv.crossval.engine import Early
from optuna_treecv.crossval.engine import empty_scores
from optuna_treecv.crossval.engine import FEWEST_FOLDS
from optuna_treecv.crossval.engine import FIRST_LEAF
from optuna_treecv.crossval.engine import FIRST_STEP
from optuna_treecv.crossval.engine import Missing
from optuna_treecv.crossval.engine import NESTED_FOLDS
from optuna_treecv.crossval.engine import NESTED_STEP
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import RowScores
from optuna_treecv.crossval.engine import scored
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
from optuna_treecv.learners.compiled import divergence_advice
from optuna_treecv.learners.compiled import Lanes
from optuna_treecv.learners.compiled import MOST_ROWS
from optuna_treecv.learners.from_estimator import forget_seeds
from optuna_treecv.learners.linear import LinearEstimator
from optuna_treecv.learners.names import name_of
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.memory import LEAST_PART
from optuna_treecv.scoring.at_leaves import ArrayThenCount
from optuna_treecv.scoring.at_leaves import COUNT_BYTES
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.sharing.caches import AnyCache
from optuna_treecv.sharing.caches import StoredModelCache
from optuna_treecv.sharing.keys import settings_key
from optuna_treecv.sharing.prefix import Prefix
from optuna_treecv.sharing.shared_learner import SharedLearner
from optuna_treecv.tree.plan import cut
from optuna_treecv.tree.plan import Learner
from optuna_treecv.tree.plan import ModelTrainer
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan
from optuna_treecv.tree.plan import Rows
from optuna_treecv.tree.walk import beside_the_spine
from optuna_treecv.tree.walk import ends_within
from optuna_treecv.tree.walk import length_of_spine
from optuna_treecv.tree.walk import Pending
from optuna_treecv.tree.walk import phases_of_spine
from optuna_treecv.tree.walk import steps_of_spine
from optuna_treecv.tree.walk import sum_along_tree
from optuna_treecv.tree.walk import TestedBlock
from optuna_treecv.tree.walk import walk_spine
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

    def share(self, learner: Learner, cache: AnyCache, root: Prefix) -> Learner:
        """Return a learner that looks models up in the cache, if its states have keys."""
        if isinstance(learner, CompiledLearner):
            return SharedLearner(learner, cache, root)
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

    def average(self, estimator: Any, else_right: str) -> "FoldAverage":
        """Return what takes the models of linear learners."""
        kind = type(estimator)
        from_sklearn = kind.__module__.startswith("sklearn.linear_model.")
        is_model = is_classifier(estimator) or is_regressor(estimator)
        if not issubclass(kind, LinearEstimator) and not (from_sklearn and is_model):
            super().average(estimator, else_right)
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

    def test(node: Node, state: Any, start: int, stop: int) -> int:
        if stop < plan.rows(node)[1]:
            return 0
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
                f"no average; {divergence_advice(self._estimator)}"
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
            alike = bound.rows, settings, job.n_epochs
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
    began, since = perf_counter(), datetime.now(UTC)
    first = members[0][0]
    repeat, n_threads = first.repeats[number], first.task.settings.n_threads
    learners = [bound.learner for _, bound in members]
    ahead = [Ahead() for _ in members]
    if first.task.settings.is_early and number == 0:
        lanes = EarlyLanes(repeat.plan, learners, first.scoring.first, n_threads, watch)
        outputs, tested = lanes.evaluate()
        ahead = lanes.ahead
    else:
        plan, learner = repeat.plan, Lanes(learners, COUNT_BYTES)
        out, outputs = _room(plan, learner, len(members))
        n_updates = walk_lanes(plan, learner, out, repeat.blocks, n_threads)
        tested = list(range(len(members)))
        for one in ahead:
            one.n_updates = n_updates
    seconds = (perf_counter() - began) / len(members)
    for i, of_model in zip(tested, outputs, strict=True):
        if of_model.array.nbytes < LEAST_PART and not of_model.was_kept:
            of_model = ArrayThenCount.of(of_model.array, 0)
        of_model.n_updates = ahead[i].n_updates
        if ahead[i].lost_at is None:
            are_leased &= not of_model.was_kept  # but in a file
            ahead[i].outputs, ahead[i].since = of_model, since if are_leased else None
    for results, (job, _) in zip(ahead, members, strict=True):
        results.seconds = seconds
        job.ahead[number] = results
    if are_leased:
        cache = first.task.shared.cache
        assert isinstance(cache, StoredModelCache)
        cache.write(  # a negative count says that no trial has counted these row updates yet
            bound.results.to_write(
                ArrayThenCount.of(results.outputs.array, -results.n_updates), results.seconds
            )
            for results, (_, bound) in zip(ahead, members, strict=True)
            if results.outputs is not None
        )


def _room(plan: Plan, lanes: Lanes, n_models: int) -> tuple[np.ndarray, list[ArrayThenCount]]:
    """Return room for the outputs of all learners, and for those of each with their count."""
    shape = plan.n_rows, lanes.n_outputs
    whole, each = ArrayThenCount.side_by_side(
        n_models, shape, lanes.dtype, lanes.out_rows, lanes.rows
    )
    return whole.reshape(-1, lanes.n_outputs), each


class FirstPass:
    """The beginning of a walk over the tree, with scores before those of its folds.

    Ask for ``events`` to their end, and then for ``walk_rest``.

    Parameters
    ----------
    training : Training
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._plan = training.repeat.plan
        self._learner = training.learner
        self._metric = training.job.scoring.first
        self._scored = partial(scored, self._learner, self._metric, training.job.estimator)
        self._n_threads = training.job.task.settings.n_threads
        self._states: dict[Node, Any] = {}  # of the nodes on the spine
        self._pending: list[Pending] | None = None

    def events(self) -> Generator[Early]:
        """Train on the first pass, and then down to 16 nodes; yield each step."""
        training = self._training
        is_large = self._plan.n_folds >= FEWEST_FOLDS
        if training.ahead is not None:
            yield from self._replayed(training.ahead, is_large)
            return
        training.is_training = True
        ends, n_rows = steps_of_spine(self._plan), length_of_spine(self._plan)
        scores = empty_scores(self._metric, n_rows, self._learner.rows, ends)
        for rows, outputs, step in walk_spine(self._plan, self._learner, self._states):
            scores.add(*self._scored(outputs, rows))
            training.n_needed += len(outputs)
            training.n_walked += len(outputs)
            if step is not None:
                yield Early(step, scores)
        if not self._states:
            training.n_needed = 0  # the tree needs another pass
        if is_large:
            yield Early(NESTED_STEP, self._nested())

    def _replayed(self, ahead: Ahead, is_large: bool) -> Generator[Early]:
        """Yield what was computed together with other jobs, until it lost against them."""
        assert ahead.progressive is not None
        for n_rows, step in steps_of_spine(self._plan).items():
            if n_rows > ahead.progressive.n_rows:
                return
            yield Early(step, ahead.progressive.first(n_rows), step == ahead.lost_at)
        if is_large and ahead.nested is not None:
            yield Early(NESTED_STEP, ahead.nested, ahead.lost_at == NESTED_STEP)

    def _nested(self) -> RowScores:
        """Walk the tree to its 16 nodes of level 4; return the scores of all rows they test."""
        plan, learner = self._plan, self._learner
        nodes = plan.blocks(NESTED_FOLDS)
        outputs = learner.rows.empty((plan.n_rows, learner.n_outputs), learner.dtype)
        pending = self._left(plan.root, nodes[0])
        held, n_updates = _models_at(nodes, plan, learner, outputs, self._n_threads, pending)
        self._training.n_needed += n_updates
        self._training.n_walked += n_updates
        self._pending = self._left(nodes[0], FIRST_LEAF) or [Pending(nodes[0], held[nodes[0]])]
        self._pending += [Pending(node, held[node]) for node in nodes[1:]]
        start, stop = plan.rows(plan.root)
        scores = empty_scores(self._metric, stop - start, self._learner.rows)
        scores.add(*self._scored(outputs[start:stop], slice(start, stop)))
        return scores

    def walk_rest(self) -> Generator[TestedBlock]:
        """Test the folds from where the first pass or the 16 nodes have come to."""
        plan, learner = self._plan, self._learner
        pending = self._pending or self._left(plan.root, FIRST_LEAF)
        nodes = [plan.root] if pending is None else [one.node for one in pending]
        blocks = divided(plan, nodes, self._n_threads)
        test = node_test(plan, learner, self._training.leaves)
        return walk_tree(plan, learner, test, blocks, self._n_threads, pending)

    def _left(self, top: Node, bottom: Node) -> list[Pending] | None:
        """Return what is left to walk between two nodes on the spine; None: everything."""
        return beside_the_spine(self._plan, self._states, top, bottom) if self._states else None


@dataclass(eq=False)
class EarlyLanes:
    """Learners that are evaluated together along one tree.

    Parameters
    ----------
    plan : Plan
    learners : list of CompiledLearner
        Those that ``Lanes`` takes.
    metric : Loss or Scorer
        Scores the rows.
    n_jobs : int
        Threads.
    watch : Watch or None
        None: no learner is left out.

    Attributes
    ----------
    ahead : list of Ahead
        What is known of each learner.
    """

    plan: Plan
    learners: list[CompiledLearner]
    metric: Metric
    n_jobs: int
    watch: Watch | None

    def __post_init__(self) -> None:
        self._lanes = Lanes(self.learners, COUNT_BYTES)
        self._members = list(range(len(self.learners)))  # the learners on the lanes
        self._alive = set(self._members)
        self._states: dict[Node, np.ndarray] = {}
        ends = steps_of_spine(self.plan)
        scores = partial(empty_scores, self.metric, max(ends), self.learners[0].rows, ends)
        self.ahead = [Ahead(scores()) for _ in self.learners]

    def evaluate(self) -> tuple[list[ArrayThenCount], list[int]]:
        """Walk the tree; return the outputs of those whose folds are tested, and who they are.

        Returns
        -------
        outputs : list of ArrayThenCount
            Those of each, without their count.
        members : list of int
            Some of them may have lost, if fewer than half have.
        """
        self._first_pass()
        pending = None
        if self.plan.n_folds >= FEWEST_FOLDS and self._alive:
            pending = self._walk_to_nested()
        if not self._alive:
            return [], []
        plan, lanes = self.plan, self._lanes
        if pending is None:
            pending = beside_the_spine(plan, self._states, plan.root, FIRST_LEAF)
        out, outputs = _room(plan, lanes, len(self._members))
        blocks = divided(plan, [one.node for one in pending], self.n_jobs)
        self._count(walk_lanes(plan, lanes, out, blocks, self.n_jobs, pending))
        return outputs, self._members

    def _first_pass(self) -> None:
        steps, n_before = steps_of_spine(self.plan), 0
        progressive: list[Any] = [one.progressive for one in self.ahead]
        lanes, state = self._lanes, self._lanes.start()
        for node, phase in phases_of_spine(self.plan):
            rows, begin = phase.rows, 0
            for end in ends_within(steps, n_before, phase.n_rows) if phase.n_rows else []:
                n_members = len(self._members)
                out = np.empty((n_members * (end - begin), lanes.n_outputs), lanes.dtype)
                self._lanes.test_then_train(state, cut(rows, begin, end), out)
                by_model = out.reshape(n_members, end - begin, -1)
                self._add(progressive, by_model, rows, begin, end)
                self._count(end - begin)
                begin = end
                step = steps.get(n_before + end)
                if step is not None and step >= FIRST_STEP:
                    tail = progressive[min(self._alive)].tail
                    state = self._drop(step, progressive, tail, [state])[0]
                    if not self._alive:
                        return
            n_before += phase.n_rows
            self._states[node] = self._lanes.snapshot(state)

    def _walk_to_nested(self) -> list[Pending] | None:
        """Walk to the 16 nodes of level 4, and score all rows by their models.

        Return what is left to walk; None if no learner is left.
        """
        plan, lanes = self.plan, self._lanes
        nodes = plan.blocks(NESTED_FOLDS)
        shape = len(self._members) * lanes.out_rows, lanes.n_outputs
        out = lanes.rows.empty(shape, lanes.dtype)
        pending = beside_the_spine(plan, self._states, plan.root, nodes[0])
        held, n_updates = _models_at(nodes, plan, lanes, out, self.n_jobs, pending)
        self._count(n_updates)
        start, stop = plan.rows(plan.root)
        n_rows, of_rows = stop - start, self.learners[0].rows
        each: list[Any] = [None for _ in self.learners]
        for number in self._members:
            each[number] = self.ahead[number].nested = empty_scores(self.metric, n_rows, of_rows)
        by_model = out.reshape(len(self._members), lanes.out_rows, -1)[:, start:stop]
        self._add(each, by_model, slice(start, stop), 0, n_rows)
        left = [held[node] for node in nodes[1:]]
        below = [node for node in self._states if node.last <= nodes[0].last]
        self._states = {node: self._states[node] for node in below}
        left = self._drop(NESTED_STEP, each, slice(0, n_rows), left)
        if not self._alive:
            return None
        rest = [Pending(node, state) for node, state in zip(nodes[1:], left, strict=True)]
        return beside_the_spine(plan, self._states, nodes[0], FIRST_LEAF) + rest

    def _add(
        self, scores: Sequence[RowScores], out: np.ndarray, rows: Rows, begin: int, end: int
    ) -> None:
        """Score the rows begin to end - 1 among ``rows`` by each learner that has not lost."""
        for number, outputs in zip(self._members, out, strict=True):
            if number in self._alive:
                learner, part = self.learners[number], cut(rows, begin, end)
                values = scored(learner, self.metric, learner.settings, outputs, part)
                scores[number].add(*values)

    def _count(self, n_rows: int) -> None:
        for number in self._alive:
            self.ahead[number].n_updates += n_rows

    def _drop(
        self, step: int, scores: Sequence[RowScores], rows: slice, states: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Ask who has lost; return the states without these if the others fill few lanes."""
        if self.watch is None:
            return states
        alive = sorted(self._alive)
        losers = self.watch.losers(step, [scores[number] for number in alive], rows)
        for i in losers:
            self.ahead[alive[i]].lost_at = step
            self._alive.remove(alive[i])
        if not 0 < 2 * len(self._alive) <= len(self._members):
            return states
        places = [i for i, number in enumerate(self._members) if number in self._alive]
        fewer = self._lanes.only(places)
        taken = [fewer.take(self._lanes, state, places) for state in states]
        self._states = {
            node: fewer.take(self._lanes, state, places) for node, state in self._states.items()
        }
        self._lanes, self._members = fewer, [self._members[i] for i in places]
        return taken


def _models_at(
    nodes: list[Node],
    plan: Plan,
    learner: Learner | Lanes,
    out: np.ndarray,
    n_jobs: int,
    pending: list[Pending] | None,
) -> tuple[dict[Node, Any], int]:
    """Walk to some nodes, and write what their models say of their rows.

    Return these models by node, and the row updates.
    """
    models: dict[Node, Any] = {}

    def hold(node: Node, state: Any, start: int, stop: int) -> int:
        learner.outputs(state, start, stop, out)
        models[node] = state
        return 0

    blocks = walk_tree(plan, learner, hold, nodes, n_jobs, pending, stays_above=True)
    return models, sum(n_updates for _, n_updates in blocks)


def walk_lanes(
    plan: Plan,
    lanes: Lanes,
    out: np.ndarray,
    nodes: list[Node],
    n_jobs: int,
    pending: list[Pending] | None = None,
) -> int:
    """Write the outputs of all learners, one after the other; return the row updates of each."""

    def test(node: Node, state: Any, start: int, stop: int) -> int:
        if node.n_folds == 1:
            lanes.outputs(state, start, stop, out)
            return 0
        return lanes.walk_subtree(plan, node, state, out)

    blocks = walk_tree(plan, lanes, test, nodes, n_jobs, pending)
    return sum(n_updates for _, n_updates in blocks)
