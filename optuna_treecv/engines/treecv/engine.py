"""The engine "treecv": a tree of models over the folds, in place of k separate trainings.

This is Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015); the recursion itself is in ``walk.py``.

If early scores are requested, the model of the first leaf is trained first, in one pass over all
rows outside the first fold. It is tested on each row just before it is trained on it (Blum, Kalai
& Langford 1999). With 32 folds or more, the walk then trains the models of the 16 nodes of level
4, which are the fold models of a 16-fold cross-validation, before it walks any of their subtrees.
"""

from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from sklearn.base import is_classifier
from sklearn.base import is_regressor

from optuna_treecv.caching.caches import ArrayThenCount
from optuna_treecv.caching.caches import COUNT_BYTES
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import ModelSum
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import RowProgress
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import Watch
from optuna_treecv.core.engine import Work
from optuna_treecv.core.repeat import divide_nodes
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.core.row_scores import FIRST_LEAF
from optuna_treecv.core.row_scores import FIRST_STEP
from optuna_treecv.core.row_scores import MIN_FOLDS_FOR_NESTED
from optuna_treecv.core.row_scores import NESTED_FOLDS
from optuna_treecv.core.row_scores import NESTED_STEP
from optuna_treecv.core.row_scores import RowScores
from optuna_treecv.core.row_scores import spine_length
from optuna_treecv.core.row_scores import spine_steps
from optuna_treecv.engines.treecv.conditions import check_incremental_estimator
from optuna_treecv.engines.treecv.conditions import cost_of_tree
from optuna_treecv.engines.treecv.conditions import lane_parameters
from optuna_treecv.engines.treecv.conditions import warning_of_order
from optuna_treecv.engines.treecv.conditions import why_no_tree
from optuna_treecv.engines.treecv.learner import Learner
from optuna_treecv.engines.treecv.learner import ModelTrainer
from optuna_treecv.engines.treecv.learners.compiled import CompiledLearner
from optuna_treecv.engines.treecv.learners.compiled import Lanes
from optuna_treecv.engines.treecv.learners.from_estimator import forget_seeds
from optuna_treecv.engines.treecv.learners.linear import LinearEstimator
from optuna_treecv.engines.treecv.leaves import kernel_test
from optuna_treecv.engines.treecv.leaves import node_test
from optuna_treecv.engines.treecv.sweeps import rows_to_read
from optuna_treecv.engines.treecv.trained import declined
from optuna_treecv.engines.treecv.trained import Training
from optuna_treecv.engines.treecv.trained import WalkedPlan
from optuna_treecv.engines.treecv.walk import Pending
from optuna_treecv.engines.treecv.walk import spine_phases
from optuna_treecv.engines.treecv.walk import step_ends_within
from optuna_treecv.engines.treecv.walk import subtrees_beside_spine
from optuna_treecv.engines.treecv.walk import sum_along_tree
from optuna_treecv.engines.treecv.walk import TestedBlock
from optuna_treecv.engines.treecv.walk import walk_spine
from optuna_treecv.engines.treecv.walk import walk_to_leaves
from optuna_treecv.engines.treecv.walk import walk_tree
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.memory import LEAST_PART
from optuna_treecv.rows.partition import cut
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.rows.partition import Rows
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.scores import scores_of_rows
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque


def plan_tree(request: Request) -> Plan | Declined:
    """Return the plan for an incremental estimator, or the reason for declining the request."""
    if why_not := why_no_tree(request):
        return declined(request, why_not)
    check_incremental_estimator(request)
    if request.settings.method in ("auto", "holdout"):
        request.cross_validation.warn_once("order", lambda: warning_of_order(request))
    return TreePlan(request)


def _is_linear(estimator: Estimator) -> bool:
    """Return whether models are linear, so that the mean of their weights is a model, too."""
    kind = type(estimator)
    from_sklearn = kind.__module__.startswith("sklearn.linear_model.")
    is_model = is_classifier(estimator) or is_regressor(estimator)
    return issubclass(kind, LinearEstimator) or (from_sklearn and is_model)


def _describe_readings(request: Request) -> str:
    """Return ", which is read ... times" for rows on disk, to end a sentence; else ""."""
    data = request.data
    if not data.is_large:
        return ""
    n_block = max(1, data.room.block_bytes * data.n_rows // data.n_bytes)
    n_read = rows_to_read(request.cross_validation.repeats[0].plan, n_block)
    return f", which is read {n_read / data.n_rows:.1f} times"


class TreePlan(WalkedPlan):
    """The plan "treecv": a walk over the tree, for a single candidate or for a batch."""

    name = "treecv"
    shares_models = True

    def __init__(self, request: Request) -> None:
        super().__init__(
            request,
            early_reports="rows",
            shared_parameters=lane_parameters(request.estimator),
            averages_models=_is_linear(request.estimator),
            readings=_describe_readings(request),
        )

    def early(self, training: Training) -> Generator[RowProgress]:
        """Yield the progressive scores of the first pass, then the scores of 16 coarse folds."""
        training.first_pass = FirstPass(training)
        yield from training.first_pass.events()

    def test_folds(self, training: Training) -> Generator[TestedBlock]:
        """Walk the tree, from where the first pass ended if early scores were requested."""
        if self.request.wants_average:
            return walk_and_average(training)
        if training.first_pass is not None:
            return training.first_pass.walk_remaining()
        plan, blocks = training.repeat.plan, training.repeat.blocks
        test = node_test(plan, training.learner, training.leaves)
        n_threads = self.request.settings.n_threads
        return walk_tree(plan, training.learner, test, blocks, n_threads)

    def evaluate(self, work: Work) -> Generator[Event]:
        """Evaluate one candidate alone, or a batch in walks that train several candidates each.

        A walk trains at most ``Lanes.max_learners`` candidates. If too few candidates remain for
        the last walk to be faster than separate walks, they are skipped. Their trials evaluate
        them alone later.
        """
        candidates = work.candidates
        if len(candidates) == 1:
            yield from super().evaluate(work)
            return
        learners = [bound.learner for bound in work.bound]
        min_size, max_size = Lanes.min_learners(learners[0]), Lanes.max_learners(learners[0])
        for first in range(0, len(candidates), max(1, max_size)):
            members = range(first, min(first + max_size, len(candidates)))
            if len(members) >= min_size:
                yield from self._walk_lanes(work, learners, members)

    def _walk_lanes(
        self, work: Work, learners: Sequence[CompiledLearner], members: range
    ) -> Generator[RowProgress | TestedFolds]:
        """Train candidates in one walk over the tree; yield their early scores and tested folds.

        ``members`` are the indices of the candidates.
        """
        candidates, sinks, repeat, _, watch, _ = work
        plan, n_threads = repeat.plan, self.request.settings.n_threads
        lane_learners = [learners[i] for i in members]
        if self.request.settings.is_early and repeat.number == 0:
            early = EarlyLanes(plan, lane_learners, self.request.scoring.first, n_threads, watch)
            arrays, alive = early.evaluate()
            progress = early.lanes
        else:
            lanes, alive = Lanes(lane_learners, COUNT_BYTES), list(range(len(lane_learners)))
            out, arrays = _allocate(plan, lanes, len(lane_learners))
            n_updates = walk_lanes(plan, lanes, out, repeat.blocks, n_threads)
            progress = [LaneProgress(n_updates=n_updates) for _ in lane_learners]
        outputs = dict(zip(alive, arrays, strict=True))
        for number, (candidate, lane) in enumerate(zip(members, progress, strict=True)):
            cost = sinks[candidate].cost
            cost.n_updates += lane.n_updates
            cost.seconds_prepare = lane_learners[0].rows.seconds
            yield from lane.early_scores(plan, candidate)
            if lane.pruned_at is not None:
                continue
            record = outputs[number]
            if record.array.nbytes < LEAST_PART and not record.was_kept:
                record = ArrayThenCount.of(record.array, 0)
            leaves = self.leaves_for(candidates[candidate], repeat, learners[candidate], record)
            yield TestedFolds(
                candidate,
                plan.root,
                lane.n_updates,
                leaves.tested(plan.root),
                called=leaves.called,
                record=record,
            )

    def cost(self) -> str:
        """Return a sentence that compares the tree's row updates with those of k trainings."""
        return cost_of_tree(self.request, self.n_epochs)


def walk_and_average(training: Training) -> Generator[TestedBlock]:
    """Walk the tree, and append the sum of all fold models to ``training.models``."""
    plan, blocks, leaves = training.repeat.plan, training.repeat.blocks, training.leaves
    learner = training.learner
    assert isinstance(learner, ModelTrainer)
    sums: dict[Node, Array] = {}

    def test(node: Node, state: Opaque, start: int, stop: int) -> int:
        if stop < plan.rows(node)[1]:
            return 0
        if isinstance(learner, CompiledLearner) and not leaves.at_leaf:
            assert leaves.outputs is not None
            n_updates, sums[node] = learner.walk_summing(plan, node, state, leaves.outputs.array)
        else:
            total: list[Array] = []
            n_updates = walk_to_leaves(plan, learner, leaves.test_leaf, node, state, total)
            sums[node] = total[0]
        return n_updates

    n_threads = training.plan.request.settings.n_threads
    for block, n_updates in walk_tree(plan, learner, test, blocks, n_threads):
        if block == blocks[-1]:
            total = sum_along_tree(plan, sums, plan.root)
            as_estimator = partial(_average_estimator, leaves.estimator, learner)
            training.models.append(ModelSum(0, total, plan.n_folds, as_estimator))
        yield block, n_updates


def _average_estimator(candidate: Candidate, learner: ModelTrainer, mean: Array) -> Estimator:
    """Return a fitted estimator with ``mean``, the mean of the fold models, as its model.

    For each prediction, Blum, Kalai & Langford (1999) draw one of the fold models at random (the
    k-fold hypothesis). The mean of the fold models' weights is a single model that is at least as
    stable.
    """
    fitted = learner.with_numbers(mean)
    forget_seeds(fitted, candidate)
    names = learner.rows.feature_names
    if names is not None and isinstance(learner, CompiledLearner):
        fitted.feature_names_in_ = names
    return fitted


@dataclass
class LaneProgress:
    """The early scores and the row updates of one candidate of a batch.

    Attributes
    ----------
    progressive : RowScores or None
        The scores of the first pass, up to the step at which the candidate was pruned; None if
        early scores were not requested.
    nested : RowScores or None
        The scores of 16 nested folds; None if they were not computed.
    pruned_at : int or None
        The step at which the candidate was pruned; None if all its folds are tested.
    n_updates : int
        The number of row updates.
    """

    progressive: RowScores | None = None
    nested: RowScores | None = None
    pruned_at: int | None = None
    n_updates: int = 0

    def early_scores(self, plan: Partition, candidate: int) -> Iterator[RowProgress]:
        """Yield the early scores, up to the step of pruning."""
        if self.progressive is None:
            return
        for n_rows, step in spine_steps(plan).items():
            if n_rows > self.progressive.n_rows:
                return
            first = self.progressive.first(n_rows)
            yield RowProgress(candidate, step, first, step == self.pruned_at)
        if self.nested is not None:
            is_pruned = self.pruned_at == NESTED_STEP
            yield RowProgress(candidate, NESTED_STEP, self.nested, is_pruned)


def _allocate(plan: Partition, lanes: Lanes, n_models: int) -> tuple[Array, list[ArrayThenCount]]:
    """Allocate the outputs of all models: one array, and for each model a view with its count."""
    shape = plan.n_rows, lanes.n_outputs
    whole, parts = ArrayThenCount.side_by_side(
        n_models, shape, lanes.dtype, lanes.out_rows, lanes.rows
    )
    return whole.reshape(-1, lanes.n_outputs), parts


class FirstPass:
    """The start of a walk over the tree, which yields scores before any fold is tested.

    Exhaust ``events`` first, and then call ``walk_remaining``.

    Parameters
    ----------
    training : Training
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._plan = training.repeat.plan
        self._learner = training.learner
        self._metric = training.plan.request.scoring.first
        self._compute_scores = partial(
            compute_row_scores, self._learner, self._metric, training.leaves.estimator
        )
        self._n_threads = training.plan.request.settings.n_threads
        self._states: dict[Node, Opaque] = {}  # the states of the nodes on the left spine
        self._pending: list[Pending] | None = None

    def events(self) -> Generator[RowProgress]:
        """Train in one pass, then down to the 16 nodes of level 4; yield the scores of each step.

        The 16 nodes are only trained if there are enough folds.
        """
        training = self._training
        has_nested_scores = self._plan.n_folds >= MIN_FOLDS_FOR_NESTED
        training.is_training = True
        ends, n_rows = spine_steps(self._plan), spine_length(self._plan)
        scores = empty_scores(self._metric, n_rows, self._learner.rows, ends)
        for rows, outputs, step in walk_spine(self._plan, self._learner, self._states):
            scores.add(*self._compute_scores(outputs, rows))
            training.n_needed += len(outputs)
            training.n_walked += len(outputs)
            if step is not None:
                yield RowProgress(0, step, scores)
        if not self._states:
            training.n_needed = 0  # the walk cannot use this pass, but starts from the root
        if has_nested_scores:
            yield RowProgress(0, NESTED_STEP, self._nested_scores())

    def _nested_scores(self) -> RowScores:
        """Walk the tree down to the 16 nodes of level 4; return the row scores of their models."""
        plan, learner = self._plan, self._learner
        nodes = plan.blocks(NESTED_FOLDS)
        outputs = learner.rows.empty((plan.n_rows, learner.n_outputs), learner.dtype)
        pending = self._pending_below(plan.root, nodes[0])
        models, n_updates = _walk_to_nodes(nodes, plan, learner, outputs, self._n_threads, pending)
        self._training.n_needed += n_updates
        self._training.n_walked += n_updates
        pending = self._pending_below(nodes[0], FIRST_LEAF)
        self._pending = pending or [Pending(nodes[0], models[nodes[0]])]
        self._pending += [Pending(node, models[node]) for node in nodes[1:]]
        start, stop = plan.rows(plan.root)
        scores = empty_scores(self._metric, stop - start, self._learner.rows)
        scores.add(*self._compute_scores(outputs[start:stop], slice(start, stop)))
        return scores

    def walk_remaining(self) -> Generator[TestedBlock]:
        """Test all folds, starting from the states of the first pass or of the 16 nodes."""
        plan, learner = self._plan, self._learner
        pending = self._pending or self._pending_below(plan.root, FIRST_LEAF)
        nodes = [plan.root] if pending is None else [subtree.node for subtree in pending]
        blocks = divide_nodes(plan, nodes, self._n_threads)
        test = node_test(plan, learner, self._training.leaves)
        return walk_tree(plan, learner, test, blocks, self._n_threads, pending)

    def _pending_below(self, top: Node, bottom: Node) -> list[Pending] | None:
        """Return the subtrees still to walk below ``top``; None for the whole tree.

        ``top`` and ``bottom`` are nodes on the left spine.
        """
        if not self._states:
            return None
        return subtrees_beside_spine(self._plan, self._states, top, bottom)


@dataclass(eq=False)
class EarlyLanes:
    """A batch of learners that is evaluated in one walk, with early scores and pruning.

    Parameters
    ----------
    plan : Partition
    learners : list of CompiledLearner
        One learner per candidate; they are trained together by ``Lanes``.
    metric : Loss or Scorer
        The metric of the early scores.
    n_threads : int
        The number of threads.
    watch : Watch or None
        Decides which learners are pruned. If it is None, no learner is pruned.

    Attributes
    ----------
    lanes : list of LaneProgress
        The early scores and row updates of each learner.
    """

    plan: Partition
    learners: list[CompiledLearner]
    metric: Metric
    n_threads: int
    watch: Watch | None

    def __post_init__(self) -> None:
        self._lanes = Lanes(self.learners, COUNT_BYTES)
        # The indices of the learners that are trained, and of those that have not been pruned.
        self._members = list(range(len(self.learners)))
        self._alive = set(self._members)
        self._states: dict[Node, Array] = {}
        ends = spine_steps(self.plan)
        scores = partial(empty_scores, self.metric, max(ends), self.learners[0].rows, ends)
        self.lanes = [LaneProgress(scores()) for _ in self.learners]

    def evaluate(self) -> tuple[list[ArrayThenCount], list[int]]:
        """Walk the tree; return the outputs of the remaining learners, and their indices.

        Returns
        -------
        outputs : list of ArrayThenCount
            The outputs of each learner. The counts in these arrays are not set.
        members : list of int
            The index of each of these learners. Some of them, always fewer than half, may have
            been pruned. The outputs of pruned learners are not used.
        """
        self._first_pass()
        pending = None
        if self.plan.n_folds >= MIN_FOLDS_FOR_NESTED and self._alive:
            pending = self._walk_to_nested()
        if not self._alive:
            return [], []
        plan, lanes = self.plan, self._lanes
        if pending is None:
            pending = subtrees_beside_spine(plan, self._states, plan.root, FIRST_LEAF)
        out, outputs = _allocate(plan, lanes, len(self._members))
        blocks = divide_nodes(plan, [subtree.node for subtree in pending], self.n_threads)
        self._count_updates(walk_lanes(plan, lanes, out, blocks, self.n_threads, pending))
        return outputs, self._members

    def _first_pass(self) -> None:
        steps, n_before = spine_steps(self.plan), 0
        progressive: list[Opaque] = [lane.progressive for lane in self.lanes]
        lanes, state = self._lanes, self._lanes.start()
        for node, phase in spine_phases(self.plan):
            rows, begin = phase.rows, 0
            for end in step_ends_within(steps, n_before, phase.n_rows) if phase.n_rows else []:
                n_members = len(self._members)
                out = np.empty((n_members * (end - begin), lanes.n_outputs), lanes.dtype)
                self._lanes.test_then_train(state, cut(rows, begin, end), out)
                by_model = out.reshape(n_members, end - begin, -1)
                self._add_scores(progressive, by_model, rows, begin, end)
                self._count_updates(end - begin)
                begin = end
                step = steps.get(n_before + end)
                if step is not None and step >= FIRST_STEP:
                    tail = progressive[min(self._alive)].tail
                    state = self._prune(step, progressive, tail, [state])[0]
                    if not self._alive:
                        return
            n_before += phase.n_rows
            self._states[node] = self._lanes.snapshot(state)

    def _walk_to_nested(self) -> list[Pending] | None:
        """Walk down to the 16 nodes of level 4, and score their models on the rows they hold out.

        Return the subtrees still to walk; None if all learners have been pruned.
        """
        plan, lanes = self.plan, self._lanes
        nodes = plan.blocks(NESTED_FOLDS)
        shape = len(self._members) * lanes.out_rows, lanes.n_outputs
        out = lanes.rows.empty(shape, lanes.dtype)
        pending = subtrees_beside_spine(plan, self._states, plan.root, nodes[0])
        models, n_updates = _walk_to_nodes(nodes, plan, lanes, out, self.n_threads, pending)
        self._count_updates(n_updates)
        start, stop = plan.rows(plan.root)
        n_rows, rows = stop - start, self.learners[0].rows
        scores: list[Opaque] = [None for _ in self.learners]
        for number in self._members:
            scores[number] = self.lanes[number].nested = empty_scores(self.metric, n_rows, rows)
        by_model = out.reshape(len(self._members), lanes.out_rows, -1)[:, start:stop]
        self._add_scores(scores, by_model, slice(start, stop), 0, n_rows)
        states = [models[node] for node in nodes[1:]]
        below = [node for node in self._states if node.last <= nodes[0].last]
        self._states = {node: self._states[node] for node in below}
        states = self._prune(NESTED_STEP, scores, slice(0, n_rows), states)
        if not self._alive:
            return None
        others = [Pending(node, state) for node, state in zip(nodes[1:], states, strict=True)]
        return subtrees_beside_spine(plan, self._states, nodes[0], FIRST_LEAF) + others

    def _add_scores(
        self, scores: Sequence[RowScores], out: Array, rows: Rows, begin: int, end: int
    ) -> None:
        """Add the scores of ``rows[begin:end]`` for each learner that has not been pruned.

        ``out`` has the shape (n_members, end - begin, n_outputs).
        """
        for number, outputs in zip(self._members, out, strict=True):
            if number in self._alive:
                learner, part = self.learners[number], cut(rows, begin, end)
                values = compute_row_scores(learner, self.metric, learner.settings, outputs, part)
                scores[number].add(*values)

    def _count_updates(self, n_rows: int) -> None:
        for number in self._alive:
            self.lanes[number].n_updates += n_rows

    def _prune(
        self, step: int, scores: Sequence[RowScores], rows: "slice[int]", states: list[Array]
    ) -> list[Array]:
        """Prune learners; return the states to continue with.

        If at most half of the trained learners remain, the models of the pruned ones are removed
        from the states. Otherwise the training of the pruned ones continues, but their outputs are
        not used.
        """
        if self.watch is None:
            return states
        alive = sorted(self._alive)
        losers = self.watch.losers(step, [scores[number] for number in alive], rows)
        for i in losers:
            self.lanes[alive[i]].pruned_at = step
            self._alive.remove(alive[i])
        if not 0 < 2 * len(self._alive) <= len(self._members):
            return states
        positions = [i for i, number in enumerate(self._members) if number in self._alive]
        remaining = self._lanes.only(positions)
        taken = [remaining.take(self._lanes, state, positions) for state in states]
        self._states = {
            node: remaining.take(self._lanes, state, positions)
            for node, state in self._states.items()
        }
        self._lanes, self._members = remaining, [self._members[i] for i in positions]
        return taken


def _walk_to_nodes(
    nodes: list[Node],
    plan: Partition,
    learner: Learner | Lanes,
    out: Array,
    n_threads: int,
    pending: list[Pending] | None,
) -> tuple[dict[Node, Opaque], int]:
    """Walk down to the given nodes, and write their models' outputs for the rows they hold out.

    Return a dict from node to state, and the number of row updates.
    """
    models: dict[Node, Opaque] = {}

    def test(node: Node, state: Opaque, start: int, stop: int) -> int:
        learner.outputs(state, start, stop, out)
        models[node] = state
        return 0

    blocks = walk_tree(plan, learner, test, nodes, n_threads, pending, stops_at_blocks=True)
    return models, sum(n_updates for _, n_updates in blocks)


def walk_lanes(
    plan: Partition,
    lanes: Lanes,
    out: Array,
    nodes: list[Node],
    n_threads: int,
    pending: list[Pending] | None = None,
) -> int:
    """Walk the tree and write all outputs to ``out``; return the row updates of each learner.

    ``out`` contains all rows of the first learner, then all rows of the second, and so on.
    """
    test = kernel_test(plan, lanes, out)
    blocks = walk_tree(plan, lanes, test, nodes, n_threads, pending)
    return sum(n_updates for _, n_updates in blocks)


def empty_scores(
    metric: Metric, n_rows: int, rows: PreparedRows, ends: Collection[int] = ()
) -> RowScores:
    """Return an empty ``RowScores`` for up to ``n_rows`` rows.

    It takes one byte per row if all scores are 0 or 1.
    """
    is_error = isinstance(metric, Loss) and metric.is_zero_one
    return RowScores(n_rows, rows.score_weights is not None, ends, np.int8 if is_error else float)


def compute_row_scores(
    learner: Learner, metric: Metric, estimator: Estimator, outputs: Array, rows: Rows
) -> tuple[Array, Array | None]:
    """Return the score of each row, and the row's weight in the mean (None for equal weights).

    Parameters
    ----------
    learner : Learner
    metric : Loss or Scorer
    estimator : estimator
        The learner's estimator.
    outputs : ndarray of shape (len(rows), n_outputs)
        The outputs for these rows.
    rows : slice or ndarray
        Indices of prepared rows.
    """
    tested = TestedRows.of(learner.rows, rows, outputs, learner.respond, None)
    return scores_of_rows(metric, tested, estimator, learner.rows.classes), tested.weights
