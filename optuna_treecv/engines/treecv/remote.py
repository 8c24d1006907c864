"""The engine "treecv" on remote rows: models are sent to the rows, which are not moved.

The rows are distributed over the workers in blocks. To train the model of a node, its state is
sent from block to block, in the order of the rows. If all rows that a node holds out are in one
block, the worker of this block walks the subtree below the node in one call, which returns the
scores of the folds.
"""

from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from math import log2
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import Work
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.engines.treecv.conditions import check_incremental_estimator
from optuna_treecv.engines.treecv.conditions import cost_of_tree
from optuna_treecv.engines.treecv.conditions import lane_parameters
from optuna_treecv.engines.treecv.conditions import why_no_tree
from optuna_treecv.engines.treecv.learners.adapter import Adapter
from optuna_treecv.engines.treecv.learners.compiled import CompiledLearner
from optuna_treecv.engines.treecv.learners.compiled import Lanes
from optuna_treecv.engines.treecv.learners.from_estimator import make_learner
from optuna_treecv.engines.treecv.leaves import kernel_test
from optuna_treecv.engines.treecv.leaves import Leaves
from optuna_treecv.engines.treecv.leaves import node_test
from optuna_treecv.engines.treecv.trained import check_has_row_scores
from optuna_treecv.engines.treecv.trained import declined
from optuna_treecv.engines.treecv.trained import output_bytes
from optuna_treecv.engines.treecv.trained import TrainedPlan
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.preprocessing.decisions import split
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.distributed import Block
from optuna_treecv.rows.distributed import RemoteBlocks
from optuna_treecv.rows.distributed import RemoteCall
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.rows.partition import Phase
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import joined
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import TestedRows

# The time of training a batch of m models on one row is proportional to
# _TIME_PER_ROW + m * _TIME_PER_MODEL.
_TIME_PER_ROW = 16
_TIME_PER_MODEL = 9

# The minimal number of models per tree if a batch is divided among several trees. Fewer models do
# not fill a SIMD vector.
_MIN_MODELS_PER_TREE = 8

# The approximate maximum number of rows whose folds are scored together.
_ROWS_PER_PIECE = 2**16


@dataclass(frozen=True)
class Models:
    """A batch of learners without their rows, which is sent to the workers.

    Attributes
    ----------
    estimators : list of estimator
        One unfitted estimator per learner. The attributes of compiled estimators that depend on
        all rows or on the seed have been set.
    responses : tuple of str
        The response methods that are needed.
    seed : int
        The seed of an estimator that is not compiled. A batch with such an estimator contains no
        other one.
    before : FittedSteps or None
        The preprocessing of compiled estimators.
    """

    estimators: list[Any]
    responses: tuple[str, ...]
    seed: int
    before: Any = None

    def bind(self, rows: PreparedRows) -> Any:
        """Return the learner, or ``Lanes`` of several learners, for the rows of a block."""
        first = self.estimators[0]
        if not isinstance(first, CompiledEstimator):
            return make_learner(first, rows, self.responses, self.seed)
        learners = [CompiledLearner(e, rows, self.before) for e in self.estimators]
        return learners[0] if len(learners) == 1 else Lanes(learners)


class Scored(NamedTuple):
    """What is requested for each tested fold: scores, and possibly outputs.

    Attributes
    ----------
    metrics : sequence of Metric
    at_leaf : list of int
        The indices of the metrics that need the fitted estimator, not only outputs.
    estimator : estimator
        One of the estimators of the batch.
    needs_outputs : bool
        Whether the outputs for all rows are needed, not only the scores of folds.
    """

    metrics: Sequence[Metric]
    at_leaf: list[int]
    estimator: Any
    needs_outputs: bool


# The functions below run on the worker that has the block. They copy states before training,
# because a worker may be called again with the same arguments.


def train(
    block: Block, models: Models, state: Any, start: int, stop: int, method: str = "update"
) -> Any:
    """Return a copy of a state, trained on the prepared rows start to stop - 1 of the block.

    ``start`` and ``stop`` are indices among the rows of all blocks. ``method`` is the learner's
    method to call: "update", "survey" or "replay".
    """
    learner = models.bind(block.rows)
    state = _copy_state(learner, state)
    getattr(learner, method)(state, block.slice_of(start, stop))
    return state


def _copy_state(learner: Any, state: Any) -> Any:
    """Return a copy of a state, or a new state if ``state`` is None."""
    return learner.start() if state is None else learner.snapshot(state)


def outputs_of(block: Block, models: Models, state: Any, start: int, stop: int) -> np.ndarray:
    """Return the outputs for the rows start to stop - 1: (n_models, n_rows, n_outputs)."""
    learner, rows = models.bind(block.rows), block.slice_of(start, stop)
    n = len(block.rows.order)
    out = np.empty((len(models.estimators) * n, learner.n_outputs), learner.dtype)
    learner.outputs(state, rows.start, rows.stop, out)
    return out.reshape(-1, n, learner.n_outputs)[:, rows]


def fit(block: Block, models: Models, state: Any) -> Any:
    """Return a fitted estimator with the model of a state; None if the model is not finite."""
    return models.bind(block.rows).estimator(state)


def test(
    block: Block, models: Models, state: Any, begins: np.ndarray, scored: Scored
) -> tuple[int, list[FoldScores], np.ndarray | None]:
    """Walk the tree below a node whose rows are all in one block, and test its folds.

    Parameters
    ----------
    block : Block
    models : Models
    state : state or None
        The state of the node. None for a new state, if the node is the root.
    begins : ndarray of shape (n_folds + 1,)
        The first row of each fold of the node, and the end of the last fold.
    scored : Scored

    Returns
    -------
    n_updates : int
        The number of row updates.
    scores : list of FoldScores
        The scores of the folds, for each model.
    outputs : ndarray of shape (n_models, n_rows, n_outputs) or None
        The outputs, if requested.
    """
    rows, node = block.rows, Node(0, len(begins) - 1)
    learner, n = models.bind(rows), len(block.rows.order)
    state = _copy_state(learner, state)
    bounds = begins - block.start
    if bounds[-1] < n:  # the last fold of a partition must end with the last row
        bounds = np.append(bounds, n)
    plan = Partition(n, len(bounds) - 1, bounds)
    start, stop = plan.rows(node)
    if isinstance(learner, Lanes):
        out = np.empty((len(models.estimators) * n, learner.n_outputs), learner.dtype)
        n_updates = kernel_test(plan, learner, out)(node, state, start, stop)
        by_model: list[Any] = []
        for model, outputs in zip(learner.learners, out.reshape(-1, n, out.shape[1]), strict=True):
            leaves = Leaves(plan, model, scored.estimator, scored.metrics)
            assert leaves.outputs is not None
            leaves.outputs.array = outputs
            by_model.append(leaves)
    else:
        leaves = Leaves(plan, learner, scored.estimator, scored.metrics, scored.at_leaf)
        n_updates, by_model = node_test(plan, learner, leaves)(node, state, start, stop), [leaves]
    size = max(1, _ROWS_PER_PIECE * node.n_folds // max(1, stop - start))
    pieces = [Node(first, min(first + size, node.last)) for first in range(0, node.n_folds, size)]
    scores = [joined([_scores(leaves, scored, at) for at in pieces]) for leaves in by_model]
    of_rows = None
    if scored.needs_outputs:
        of_rows = np.stack([leaves.outputs.array[start:stop] for leaves in by_model])
    return n_updates, scores, of_rows


def _scores(leaves: Leaves, scored: Scored, folds: Node) -> FoldScores:
    classes = leaves.learner.rows.classes
    tested, called = leaves.tested(folds), leaves.called(folds)
    return scores_of_folds(scored.metrics, tested, scored.estimator, classes, called)


#: A coroutine that trains models. It yields calls, and is resumed with the result of each call. It
#: may also yield further coroutines, which then run concurrently with it.
Steps = Generator[Any, Any, Any]


class RemoteTree:
    """A walk over the tree on remote rows, for one model or a batch.

    Parameters
    ----------
    repeat : Repeat
    models : Models
    scored : Scored
    learner : Learner
        The learner of one of the models, with the remote rows.

    Attributes
    ----------
    n_updates : int
        The number of row updates of each model so far.
    tested : dict of int to (Node, list of FoldScores or None, ndarray or None)
        Maps the index of a fold to the tested node that begins with it, the fold scores of each
        model, and the outputs, (n_models, n_rows, n_outputs). If the rows of a fold are in several
        blocks, its scores are None, because they must be computed from the outputs.
    fitted : estimator or None
        The estimator that ``fit`` has trained.
    """

    def __init__(self, repeat: Repeat, models: Models, scored: Scored, learner: Any) -> None:
        blocks: RemoteBlocks = learner.rows.X
        name = scored.metrics[scored.at_leaf[0]].name if scored.at_leaf else ""
        if name and models.before is not None:
            raise ValueError(
                "scoring must be computed from predictions if a Pipeline is evaluated on remote "
                f"rows, got {name!r}, which needs fitted estimators."
            )
        if name and not np.isin(blocks.bounds[1:-1], repeat.cut.begins()).all():
            raise ValueError(
                "scoring must be computed from predictions if several workers or threads share "
                f"the rows of a fold, got {name!r}, which needs fitted estimators; use more folds "
                "or fewer workers instead."
            )
        self.blocks, self.n_updates, self.fitted = blocks, 0, None
        self.tested: dict[int, tuple[Node, list[FoldScores] | None, np.ndarray | None]] = {}
        self._plan, self._models, self._scored = repeat.plan, models, scored
        # Whether transformers are fitted to a whole phase before the model is trained on it.
        self._surveys = isinstance(learner, CompiledLearner) and not learner.phases_may_be_cut

    def walk(self) -> Steps:
        """Train the models of the tree, and test all folds."""
        plan = self._plan
        state = yield from self._train(None, plan.first_phase, plan.root)
        yield from self._descend(plan.root, state)

    def fit(self) -> Steps:
        """Train on all rows in prepared order, from the first block to the last."""
        # The node (n_folds, n_folds) is empty: after this phase, no rows are held out.
        n_rows, n_folds = self._plan.n_rows, self._plan.n_folds
        state = yield from self._train(None, Phase(0, n_rows), Node(n_folds, n_folds))
        last = len(self.blocks.bounds) - 2
        self.fitted = yield RemoteCall(last, fit, (self._models, state))

    def _train(self, state: Any, phase: Phase, node: Node) -> Steps:
        """Train a state on a phase, after which it is the state of ``node``."""
        spans = self.blocks.spans(phase.start, phase.stop)
        start, stop = self._plan.rows(node)
        for method in ("survey", "replay") if self._surveys and len(spans) > 1 else ("update",):
            for block, begin, end in spans:
                # The priority of the call is the number of rows on the longest path of training
                # after it. Below a node, this path has about as many rows as the node holds out.
                n_left = phase.stop - end + stop - start
                state = yield RemoteCall(
                    block, train, (self._models, state, begin, end, method), n_left
                )
        self.n_updates += phase.n_rows
        return state

    def _descend(self, node: Node, state: Any) -> Steps:
        """Train the models below a node, and test the folds of the node."""
        plan, (start, stop) = self._plan, self._plan.rows(node)
        spans = self.blocks.spans(start, stop)
        if len(spans) == 1:
            begins = np.append(plan.begins(node), stop)
            arguments = self._models, state, begins, self._scored
            n_updates, scores, outputs = yield RemoteCall(spans[0][0], test, arguments)
            self.n_updates += n_updates
            self.tested[node.first] = node, scores, outputs
        elif node.n_folds == 1:
            outputs = []
            for block, *part in spans:
                outputs.append((yield RemoteCall(block, outputs_of, (self._models, state, *part))))
            self.tested[node.first] = node, None, np.concatenate(outputs, axis=1)
        else:
            for child in plan.split(node):
                yield self._child(node, child, state)

    def _child(self, parent: Node, node: Node, state: Any) -> Steps:
        state = yield from self._train(state, self._plan.phase(parent, node), node)
        yield from self._descend(node, state)


def _run_steps(blocks: RemoteBlocks, parts: Iterable[Steps]) -> Generator[None]:
    """Run coroutines concurrently, and yield each time all of them wait for calls."""
    ready: list[tuple[Steps, Any]] = [(part, None) for part in parts]
    waiting: dict[RemoteCall, Steps] = {}
    with blocks.calls() as calls:
        while ready:
            while ready:
                part, result = ready.pop()
                try:
                    request = part.send(result)
                except StopIteration:
                    continue
                if isinstance(request, RemoteCall):
                    waiting[request] = part
                    calls.submit(request)
                else:
                    ready += [(part, None), (request, None)]
            yield
            if waiting:
                call, result = calls.next()
                ready.append((waiting.pop(call), result))


def plan_remote_tree(request: Request) -> Plan | Declined:
    """Return the plan for an incremental estimator on remote rows, or decline the request."""
    if why_not := _reason_against_remote(request) or why_no_tree(request):
        return declined(request, why_not)
    check_incremental_estimator(request)
    return RemoteTreePlan(request)


def _reason_against_remote(request: Request) -> str:
    """Return the reason why models cannot be trained on remote rows; "" if they can be."""
    settings, estimator = request.settings, request.estimator
    parts = split(estimator)
    if isinstance(estimator, Pipeline) and (
        isinstance(parts, str)
        or not parts.is_compiled
        or not all(isinstance(step, StandardScaler) for _, step in estimator.steps[:-1])
        or sparse.issparse(request.data.X.sample)
    ):
        return (
            "its steps need all rows in one place (except a StandardScaler of dense rows before "
            "an estimator of this package)"
        )
    if settings.order == "random":
        return "order='random' reads the rows of each phase in a random order"
    if settings.is_early:
        return f"report={settings.report!r} tests each row just before training on it"
    if getattr(estimator, "settings", None) == "theory":
        return "settings='theory' needs all rows in one place"
    return ""


class RemoteTreePlan(TrainedPlan):
    """The plan "treecv" on remote rows, whose results are not cached."""

    name = "treecv"

    def __init__(self, request: Request) -> None:
        super().__init__(request, shared_parameters=lane_parameters(request.estimator))
        if self.n_epochs > 1:
            raise ValueError(
                f"n_epochs must be 1 for remote rows, got {self.n_epochs}: further epochs "
                "read rows in random order."
            )

    def cost(self) -> str:
        """Return a sentence that compares the tree's row updates with those of k trainings."""
        return cost_of_tree(self.request, self.n_epochs)

    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return the keys of the results, which are not cached."""
        bound = self.bind(candidate, repeat)
        key, group = bound.key.hex(), self.group(candidate, bound)
        fingerprint = bound.rows.hex() if key else ""
        needs_outputs = self.request.needs_predictions
        n_bytes = output_bytes(bound.learner, repeat) if needs_outputs else 0
        return Results(key, fingerprint, group, n_bytes=n_bytes, bound=bound)

    def evaluate(self, work: Work) -> Generator[Event]:
        """Divide the candidates among one or several trees, and walk these concurrently."""
        candidates, _, repeat, *_ = work
        learners = [bound.learner for bound in work.bound]
        leaves = self.leaves_for(candidates[0], repeat, learners[0])
        check_has_row_scores(self.request, leaves, learners[0])
        n, n_trees = len(candidates), 1
        if n > 1:
            max_models = max(1, Lanes.max_learners(learners[0]))
            n_trees = _n_trees(n, max_models, repeat.plan.n_folds, learners[0])
        members = [part.tolist() for part in np.array_split(np.arange(n), n_trees)]
        metrics, needs_outputs = self.request.scoring.metrics, self.request.needs_predictions
        scored = Scored(metrics, list(leaves.at_leaf), candidates[0], needs_outputs)
        trees = []
        for part in members:
            of_tree = [learners[i] for i in part]
            models = self._models(candidates[0], repeat, of_tree, self.responses)
            trees.append(RemoteTree(repeat, models, scored, of_tree[0]))
        with closing(_run_steps(trees[0].blocks, [tree.walk() for tree in trees])) as steps:
            for tree, part in zip(trees, members, strict=True):
                yield from _yield_folds(tree, part, steps, work, leaves.methods)

    def _models(
        self,
        candidate: Candidate,
        repeat: Repeat,
        learners: Sequence[Any],
        responses: tuple[str, ...],
    ) -> Models:
        """Return a batch of learners without their rows, to be sent to the workers."""
        seed = self.request.settings.seed + repeat.number
        if isinstance(learners[0], Adapter):
            return Models([candidate], responses, seed)
        before = copy(learners[0].before)
        if before is not None:
            before.X = None  # otherwise X would be sent with each model
        return Models([learner.settings for learner in learners], responses, seed, before)

    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> np.ndarray:
        """Return the prediction for each row by a model that was not trained on the row."""
        learner = self.learner(candidate, self.rows(repeat), (method,))
        scored = Scored((), [], candidate, needs_outputs=True)
        models = self._models(candidate, repeat, [learner], (method,))
        tree, plan = RemoteTree(repeat, models, scored, learner), repeat.plan
        for _ in _run_steps(tree.blocks, [tree.walk()]):
            pass
        outputs = np.empty((plan.n_rows, learner.n_outputs), learner.dtype)
        for node, _, of_node in tree.tested.values():
            assert of_node is not None
            outputs[slice(*plan.rows(node))] = of_node[0]
        return self.in_given_order(candidate, learner, outputs, method)

    def fit(self, candidate: Candidate) -> Any:
        """Return an estimator trained on all rows, from the first block to the last."""
        repeat = self.repeats[0]
        learner = self.learner(candidate, self.rows(repeat))
        models = self._models(candidate, repeat, [learner], self.responses)
        tree = RemoteTree(repeat, models, Scored((), [], candidate, False), learner)
        for _ in _run_steps(tree.blocks, [tree.fit()]):
            pass
        return self.finish_estimator(candidate, tree.fitted)


def _yield_folds(
    tree: RemoteTree,
    members: Sequence[int],
    steps: Iterator[None],
    work: Work,
    methods: Collection[str],
) -> Iterator[TestedFolds]:
    """Yield the folds of one tree from the left, for each candidate, as soon as they are tested.

    ``members`` are the indices of the candidates. Each ``next(steps)`` advances the training.
    """
    plan, first, n_before = work.repeat.plan, 0, 0
    while first < plan.n_folds:
        while first not in tree.tested:
            next(steps)
        folds, scores, outputs = tree.tested.pop(first)
        n_needed, n_before = tree.n_updates - n_before, tree.n_updates
        start, stop = plan.rows(folds)
        begins = None if folds.n_folds == stop - start else plan.begins(folds) - start
        for place, candidate in enumerate(members):
            cost, learner, tested = work.sinks[candidate].cost, work.bound[candidate].learner, None
            cost.n_updates += n_needed
            cost.seconds_prepare = learner.rows.seconds
            if outputs is not None:
                tested = TestedRows.of(
                    learner.rows,
                    slice(start, stop),
                    outputs[place],
                    learner.respond,
                    begins,
                    methods,
                )
            of_folds = None if scores is None else scores[place]
            yield TestedFolds(candidate, folds, n_needed, tested, of_folds)
        first = folds.last


def _n_trees(n_models: int, max_models: int, n_folds: int, learner: Any) -> int:
    """Return the number of trees among which to divide a batch, each of at most ``max_models``.

    The time of T trees is about n c (1 + T log2(2 k) / W), with n rows, k folds and W blocks. Here
    c is the time of training the models of one tree on one row. The first term is the time of the
    longest path through a tree, and the second term is the time of all work that falls to a block.
    """
    min_trees, n_blocks = -(-n_models // max_models), len(learner.rows.X.bounds) - 1

    def seconds(n_trees: int) -> float:
        row_time = _TIME_PER_ROW + _TIME_PER_MODEL * -(-n_models // n_trees)
        return row_time * (1 + n_trees * log2(2 * n_folds) / n_blocks)

    return min(
        {min_trees, *range(min_trees, n_models // _MIN_MODELS_PER_TREE + 1), n_models}, key=seconds
    )
