"""Evaluates several compiled learners together while the rows are read once.

The outputs wait in their jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from time import perf_counter
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from optuna_treecv.crossval.engine import empty_scores
from optuna_treecv.crossval.engine import FEWEST_FOLDS
from optuna_treecv.crossval.engine import FIRST_LEAF
from optuna_treecv.crossval.engine import FIRST_STEP
from optuna_treecv.crossval.engine import Missing
from optuna_treecv.crossval.engine import NESTED_FOLDS
from optuna_treecv.crossval.engine import NESTED_STEP
from optuna_treecv.crossval.engine import RowScores
from optuna_treecv.crossval.engine import scored
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.repeat import divided
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.trained import Ahead
from optuna_treecv.crossval.trained import bind
from optuna_treecv.crossval.trained import Bound
from optuna_treecv.crossval.trained import outputs_are_enough
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.lanes import Lanes
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.scoring import ArrayThenCount
from optuna_treecv.scoring import Metric
from optuna_treecv.sharing.keys import lanes_key
from optuna_treecv.sharing.stored_cache import StoredModelCache
from optuna_treecv.tree.plan import cut
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan
from optuna_treecv.tree.plan import Rows
from optuna_treecv.tree.spine import ends_within
from optuna_treecv.tree.spine import phases_of_spine
from optuna_treecv.tree.spine import steps_of_spine
from optuna_treecv.tree.walk import Begun
from optuna_treecv.tree.walk import beside_the_spine
from optuna_treecv.tree.walk import walk_tree

if TYPE_CHECKING:
    from optuna_treecv.crossval.job import Job


def missing(job: Job) -> Missing | None:
    """Return what is missing of the first repeat; None if the results are there already."""
    bound = _unfinished(job, job.repeats[0], {})
    if bound is None:
        return None
    n_bytes = _output_bytes(bound.learner) * job.task.n_repeats
    if job.task.settings.is_early:  # scores of the first pass and of 16 folds
        n_bytes += 2 * len(bound.learner.rows.order) * np.dtype(np.float64).itemsize
    return Missing(bound.results.name, n_bytes)


def evaluate(jobs: Sequence[Job], watch: Watch | None, are_leased: bool) -> bool:
    """Compute the outputs of those learners that can be trained side by side.

    Parameters
    ----------
    jobs : sequence of Job
    watch : Watch or None
    are_leased : bool
        Whether other processes may wait for the results, so that they go to the store at once.

    Returns
    -------
    bool
        Whether there were any.
    """
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


def _groups(jobs: Sequence[Job], repeat: Repeat) -> Iterable[dict[str, tuple[Job, Bound]]]:
    """Group the learners whose results are missing; a group can be evaluated side by side.

    The keys within a group are the names of the results.
    """
    groups: dict[tuple[bytes, bytes, int], dict[str, tuple[Job, Bound]]] = {}
    prepared: dict[tuple[RowLayout, bytes], PreparedRows] = {}
    for job in jobs:
        bound = _unfinished(job, job.repeats[repeat.number], prepared)
        if bound is not None:
            alike = bound.identity.rows, lanes_key(bound.learner), job.n_epochs
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
        out, n_updates = _outputs_of(learners, repeat, n_threads)
        tested = list(range(len(members)))
        counts = [n_updates for _ in members]
    seconds = (perf_counter() - began) / len(members)
    for i, outputs in zip(tested, _cut(out, counts), strict=True):
        if ahead[i].lost_at is None:
            ahead[i].outputs = outputs
    for own, (job, _) in zip(ahead, members, strict=True):
        own.seconds = seconds
        job.ahead[number] = own
    if are_leased:
        cache = first.task.shared.cache
        assert isinstance(cache, StoredModelCache)
        cache.write(
            bound.results.to_write(own.outputs, own.seconds)
            for own, (_, bound) in zip(ahead, members, strict=True)
            if own.outputs is not None
        )


def _outputs_of(
    learners: list[CompiledLearner], repeat: Repeat, n_jobs: int
) -> tuple[np.ndarray, int]:
    """Return the outputs of learners for all rows, one after the other, and the row updates."""
    plan, lanes = repeat.plan, Lanes(learners)
    out = np.empty((len(learners) * plan.n_rows, lanes.n_outputs), lanes.dtype)

    def test(node: Node, state: Any) -> int:
        return lanes.walk_subtree(plan, node, state, out)

    blocks = walk_tree(plan, lanes, test, repeat.blocks, n_jobs)
    return out, sum(block.n_updates for block in blocks)


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

    def __init__(
        self,
        plan: Plan,
        learners: list[CompiledLearner],
        metric: Metric,
        n_jobs: int,
        watch: Watch | None,
    ) -> None:
        self._plan = plan
        self._learners = learners
        self._metric = metric
        self._n_jobs = n_jobs
        self._watch = watch
        self._lanes = Lanes(learners)
        self._members = list(range(len(learners)))  # the learners on the lanes, in their order
        self._alive = set(self._members)
        self._states: dict[Node, np.ndarray] = {}
        ends = steps_of_spine(plan)
        of_rows = learners[0].rows
        self.ahead = [Ahead(empty_scores(metric, max(ends), of_rows, ends)) for _ in learners]

    def evaluate(self) -> tuple[np.ndarray, list[int]]:
        """Walk the tree; return the outputs of those whose folds are tested, and who they are.

        Returns
        -------
        outputs : ndarray of shape (n_members * n_rows, n_outputs)
            All rows for the first of them, then all rows for the second.
        members : list of int
            Some of them may have lost, if fewer than half have.
        """
        self._first_pass()
        begun = None
        if self._plan.n_folds >= FEWEST_FOLDS and self._alive:
            begun = self._walk_to_nested()
        if not self._alive:
            return np.empty((0, self._lanes.n_outputs), self._lanes.dtype), []
        plan, lanes = self._plan, self._lanes
        if begun is None:
            begun = beside_the_spine(plan, self._states, plan.root, FIRST_LEAF)
        out = np.empty((len(self._members) * plan.n_rows, lanes.n_outputs), lanes.dtype)

        def test(node: Node, state: Any) -> int:
            return lanes.walk_subtree(plan, node, state, out)

        blocks = divided(plan, [one.node for one in begun], self._n_jobs)
        for block in walk_tree(plan, lanes, test, blocks, self._n_jobs, begun):
            self._count(block.n_updates)
        return out, self._members

    def _first_pass(self) -> None:
        steps, n_before = steps_of_spine(self._plan), 0
        progressive: list[Any] = [one.progressive for one in self.ahead]
        state = self._lanes.start()
        for node, phase in phases_of_spine(self._plan):
            rows, done = phase.rows, 0
            for end in ends_within(steps, n_before, phase.n_rows) if phase.n_rows else []:
                out = self._tested(state, rows, done, end)
                self._add(progressive, out, rows, done, end)
                self._count(end - done)
                done = end
                step = steps.get(n_before + end)
                if step is not None and step >= FIRST_STEP:
                    tail = progressive[min(self._alive)].tail
                    state = self._drop(step, progressive, tail, [state])[0]
                    if not self._alive:
                        return
            n_before += phase.n_rows
            self._states[node] = self._lanes.snapshot(state)

    def _walk_to_nested(self) -> list[Begun] | None:
        """Walk to the 16 nodes of level 4, and score all rows by their models.

        Return what is left to walk; None if no learner is left.
        """
        plan, lanes = self._plan, self._lanes
        nodes = plan.blocks(NESTED_FOLDS)
        out = np.empty((len(self._members) * plan.n_rows, lanes.n_outputs), lanes.dtype)
        held: dict[Node, np.ndarray] = {}

        def hold(node: Node, state: np.ndarray) -> int:
            lanes.outputs(state, *plan.rows(node), out)
            held[node] = state
            return 0

        begun = beside_the_spine(plan, self._states, plan.root, nodes[0])
        for block in walk_tree(plan, lanes, hold, nodes, self._n_jobs, begun):
            self._count(block.n_updates)
        start, stop = plan.rows(plan.root)
        n_rows, of_rows = stop - start, self._learners[0].rows
        each: list[Any] = [None for _ in self._learners]
        for number in self._members:
            each[number] = self.ahead[number].nested = empty_scores(self._metric, n_rows, of_rows)
        by_model = out.reshape(len(self._members), plan.n_rows, -1)[:, start:stop]
        self._add(each, by_model, slice(start, stop), 0, n_rows)
        left = [held[node] for node in nodes[1:]]
        below = [node for node in self._states if node.last <= nodes[0].last]
        self._states = {node: self._states[node] for node in below}
        left = self._drop(NESTED_STEP, each, slice(0, n_rows), left)
        if not self._alive:
            return None
        rest = [Begun(node, state) for node, state in zip(nodes[1:], left, strict=True)]
        return beside_the_spine(plan, self._states, nodes[0], FIRST_LEAF) + rest

    def _tested(self, state: np.ndarray, rows: Rows, begin: int, end: int) -> np.ndarray:
        """Test and train on some rows of a phase; return the outputs (n_members, n_rows, ...)."""
        n_members, n_rows = len(self._members), end - begin
        out = np.empty((n_members * n_rows, self._lanes.n_outputs), self._lanes.dtype)
        self._lanes.test_then_train(state, cut(rows, begin, end), out)
        return out.reshape(n_members, n_rows, -1)

    def _add(
        self, scores: Sequence[RowScores], out: np.ndarray, rows: Rows, begin: int, end: int
    ) -> None:
        """Score the rows begin to end - 1 among ``rows`` by each learner that has not lost."""
        for number, outputs in zip(self._members, out, strict=True):
            if number in self._alive:
                learner, part = self._learners[number], cut(rows, begin, end)
                values = scored(learner, self._metric, learner.settings, outputs, part)
                scores[number].add(*values)

    def _count(self, n_rows: int) -> None:
        for number in self._alive:
            self.ahead[number].n_updates += n_rows

    def _drop(
        self, step: int, scores: Sequence[RowScores], rows: slice, states: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Ask who has lost; return the states without these if the others fill few lanes."""
        if self._watch is None:
            return states
        alive = sorted(self._alive)
        losers = self._watch.losers(step, [scores[number] for number in alive], rows)
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
