"""The engine of the tree over rows that lie elsewhere: models travel, and rows stay.

The model of a node is sent to the rows that it waits for, block after block. A node whose rows are
all in one block is walked there in one call, which answers with the scores of its folds.
"""

from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv.caching.caches import ArrayThenCount
from optuna_treecv.caching.keys import digest
from optuna_treecv.core.engine import Candidate
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import Work
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Request
from optuna_treecv.engines.treecv.learners.adapter import Adapter
from optuna_treecv.engines.treecv.learners.compiled import CompiledLearner
from optuna_treecv.engines.treecv.learners.compiled import Lanes
from optuna_treecv.engines.treecv.learners.compiled import MOST_ROWS
from optuna_treecv.engines.treecv.learners.compiled import settings_key
from optuna_treecv.engines.treecv.learners.from_estimator import make_learner
from optuna_treecv.engines.treecv.leaves import Leaves
from optuna_treecv.engines.treecv.sweeps import Descent
from optuna_treecv.engines.treecv.sweeps import Waiting
from optuna_treecv.engines.treecv.trained import check_has_row_scores
from optuna_treecv.engines.treecv.trained import check_incremental_estimator
from optuna_treecv.engines.treecv.trained import cost_of_tree
from optuna_treecv.engines.treecv.trained import declined
from optuna_treecv.engines.treecv.trained import kernel_test
from optuna_treecv.engines.treecv.trained import lane_parameters
from optuna_treecv.engines.treecv.trained import node_test
from optuna_treecv.engines.treecv.trained import output_bytes
from optuna_treecv.engines.treecv.trained import TrainedPlan
from optuna_treecv.engines.treecv.trained import why_no_tree
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.preprocessing.decisions import split
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.distributed import Block
from optuna_treecv.rows.distributed import RemoteBlocks
from optuna_treecv.rows.distributed import RemoteCall
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import joined
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.scoring.scores import unknown_spreads

# Training on a row takes as long as 16 numbers and 9 more for each model beside others do; fewer
# than 8 models leave a part of vectors empty.
_OF_ROW, _OF_MODEL, _FEWEST_LANES = 16, 9, 8

# The most rows of several folds that are scored at once.
_ROWS_PER_PIECE = 2**16


@dataclass(frozen=True)
class Models:
    """Learners side by side without rows, which travel to the blocks.

    Attributes
    ----------
    settings : list of estimator
        Compiled ones are settled.
    responses : tuple of str
    seed : int
        Of a single one that is not compiled.
    before : FittedSteps or None
        The steps before compiled ones.
    """

    settings: list[Any]
    responses: tuple[str, ...]
    seed: int
    before: Any = None

    def bind(self, rows: PreparedRows) -> Any:
        """Return a learner that is bound to the rows of a block."""
        first = self.settings[0]
        if not isinstance(first, CompiledEstimator):
            return make_learner(first, rows, self.responses, self.seed)
        learners = [CompiledLearner(one, rows, self.before) for one in self.settings]
        return learners[0] if len(learners) == 1 else Lanes(learners)


class Scored(NamedTuple):
    """What is to be known of tested folds.

    Attributes
    ----------
    metrics : sequence of Metric
    at_leaf : list of int
        The numbers of those that need fitted estimators.
    estimator : estimator
        One of the kind that is tested.
    needs_outputs : bool
        Whether what models say of all rows is needed, and not only the scores of folds.
    """

    metrics: Sequence[Metric]
    at_leaf: list[int]
    estimator: Any
    needs_outputs: bool


# What is called where the blocks are. States are copied, since a call may be made twice.


def train(
    block: Block, models: Models, state: Any, start: int, stop: int, how: str = "update"
) -> Any:
    """Return a copy of a state that is trained on the rows start to stop - 1 of all.

    ``how`` is the method of the learner that does it.
    """
    learner = models.bind(block.rows)
    state = _own(learner, state)
    getattr(learner, how)(state, block.slice_of(start, stop))
    return state


def _own(learner: Any, state: Any) -> Any:
    """Return a copy of a state; None is that of no rows."""
    return learner.start() if state is None else learner.snapshot(state)


def say(block: Block, models: Models, state: Any, start: int, stop: int) -> np.ndarray:
    """Return what models say of some rows, (n_models, n_rows, n_outputs)."""
    learner, rows = models.bind(block.rows), block.slice_of(start, stop)
    n = len(block.rows.order)
    out = np.empty((len(models.settings) * n, learner.n_outputs), learner.dtype)
    learner.outputs(state, rows.start, rows.stop, out)
    return out.reshape(-1, n, learner.n_outputs)[:, rows]


def fit(block: Block, models: Models, state: Any) -> Any:
    """Return the fitted estimator of a state; None if its model is not finite."""
    return models.bind(block.rows).estimator(state)


def test(
    block: Block, models: Models, state: Any, begins: np.ndarray, scored: Scored
) -> tuple[int, list[FoldScores], np.ndarray | None]:
    """Walk the tree below a node.

    Parameters
    ----------
    block : Block
    models : Models
    state : state or None
        That of the node; None: no row was seen, since all of them lie in this block.
    begins : ndarray of shape (n_folds + 1,)
        The first row of each of its folds, and where the last one ends.
    scored : Scored

    Returns
    -------
    n_updates : int
    scores : list of FoldScores
        Of each model.
    outputs : ndarray of shape (n_models, n_rows, n_outputs) or None
    """
    rows, node = block.rows, Node(0, len(begins) - 1)
    learner, n = models.bind(rows), len(block.rows.order)
    state = _own(learner, state)
    bounds = begins - block.start
    if bounds[-1] < n:  # a plan ends with the last row
        bounds = np.append(bounds, n)
    plan = Partition(n, len(bounds) - 1, bounds)
    start, stop = plan.rows(node)
    if isinstance(learner, Lanes):
        out = np.empty((len(models.settings) * n, learner.n_outputs), learner.dtype)
        n_updates = kernel_test(plan, learner, out)(node, state, start, stop)
        each: list[Any] = []
        for one, outputs in zip(learner.learners, out.reshape(-1, n, out.shape[1]), strict=True):
            leaves = Leaves(plan, one, scored.estimator, scored.metrics)
            assert leaves.outputs is not None
            leaves.outputs.array = outputs
            each.append(leaves)
    else:
        leaves = Leaves(plan, learner, scored.estimator, scored.metrics, scored.at_leaf)
        n_updates, each = node_test(plan, learner, leaves)(node, state, start, stop), [leaves]
    size = max(1, _ROWS_PER_PIECE * node.n_folds // max(1, stop - start))
    pieces = [Node(first, min(first + size, node.last)) for first in range(0, node.n_folds, size)]
    scores = [joined([_scores(one, scored, at) for at in pieces]) for one in each]
    of_rows = None
    if scored.needs_outputs:
        of_rows = np.stack([one.outputs.array[start:stop] for one in each])
    return n_updates, scores, of_rows


def _scores(leaves: Leaves, scored: Scored, folds: Node) -> FoldScores:
    classes = leaves.learner.rows.classes
    tested, called = leaves.tested(folds), leaves.called(folds)
    return scores_of_folds(scored.metrics, tested, scored.estimator, classes, called)


class RemoteTree(Descent):
    """A tree in flight, for one or several models side by side.

    Parameters
    ----------
    repeat : Repeat
    models : Models
    scored : Scored
    learner : Learner
        One of the models, to answer and not to train, bound to rows that lie elsewhere.

    Attributes
    ----------
    n_updates : int
        The rows that each model was trained on.
    scores : list of FoldScores
        Of each model, for all folds.
    outputs : ndarray of shape (n_models, n_rows, n_outputs) or None
        What models say, where that is needed.
    """

    def __init__(self, repeat: Repeat, models: Models, scored: Scored, learner: Any) -> None:
        plan = repeat.plan
        blocks: RemoteBlocks = learner.rows.X
        super().__init__(plan, blocks.bounds, lambda state: state)
        if scored.at_leaf and models.before is not None:
            name = scored.metrics[scored.at_leaf[0]].name
            raise ValueError(
                "scoring must follow from predictions for a Pipeline whose rows lie on a cluster, "
                f"but {name!r} is called with estimators."
            )
        if scored.at_leaf and not np.isin(blocks.bounds[1:-1], repeat.cut.begins()).all():
            name = scored.metrics[scored.at_leaf[0]].name
            raise ValueError(
                f"scoring must follow from predictions where a fold lies in several places, but "
                f"{name!r} is called with estimators; more folds, or fewer workers, would be "
                "right."
            )
        self.blocks, self.models, self.scored = blocks, models, scored
        self._learner = learner
        self._surveys = _surveys(learner)
        n_models, shape = len(models.settings), (len(scored.metrics), plan.n_folds)
        self.n_updates = 0
        self.scores = [
            FoldScores(np.full(shape, np.nan), np.zeros(shape[1], bool), unknown_spreads(*shape))
            for _ in range(n_models)
        ]
        self.outputs: np.ndarray | None = None
        if scored.needs_outputs:
            self.outputs = np.empty((n_models, plan.n_rows, learner.n_outputs), learner.dtype)
        self._said: dict[int, np.ndarray] = {}  # of folds that lie in several blocks
        self._is_tested = np.zeros(plan.n_folds, bool)

    @property
    def n_done(self) -> int:
        """How many folds from the left are tested."""
        left = np.flatnonzero(~self._is_tested)
        return int(left[0]) if len(left) else self.plan.n_folds

    def calls(self) -> Iterator[tuple[Waiting, int, int, int, tuple[Any, ...]]]:
        """Yield what can be called now.

        It is a model, up to which row it gets, in which block, how urgent that is, and the call.
        """
        waiting = list(self.waiting.items())
        self.waiting.clear()
        for block, models in waiting:
            for one in models:
                stop = min(self.bounds[block + 1], one.stop)
                begin, end = self.plan.rows(one.node)
                # The rows of the longest path after the call: others wait for it that long. Below
                # a node, it has about as many as the node holds out.
                left = 0 if one.phase is None else one.stop - stop + end - begin
                how = self._how(one, stop)
                call: tuple[Any, ...] = (train, self.models, one.state, one.start, stop, how)
                if one.phase is None and stop - one.start < end - begin:
                    call = (say, self.models, one.state, one.start, stop)
                elif one.phase is None:
                    begins = np.append(self.plan.begins(one.node), end)
                    call = (test, self.models, one.state, begins, self.scored)
                yield one, stop, block, left, call

    def _how(self, one: Waiting, stop: int) -> str:
        """Return how a model is trained: steps learn of a whole phase before the model does."""
        if one.is_surveyed:
            return "replay"
        is_whole = one.phase is None or (one.start, stop) == (one.phase.start, one.phase.stop)
        return "survey" if self._surveys and not is_whole else "update"

    def take(self, one: Waiting, stop: int, result: Any) -> None:
        """Take the result of a call."""
        node, start = one.node, one.start
        if one.phase is not None:
            one.state = result
            if self._how(one, stop) == "survey":
                one.is_surveyed = stop == one.stop
                one.start = one.phase.start if one.is_surveyed else stop
                self._wait(one)
                return
            self.n_updates += stop - start
        elif isinstance(result, tuple):
            n_updates, scores, outputs = result
            self.n_updates += n_updates
            if self.outputs is not None:
                self.outputs[:, start:stop] = outputs
            for of_model, some in zip(self.scores, scores, strict=False):
                self._set(of_model, node, some)
        else:
            self._take_said(node, start, stop, result)
        if self.advance(one, stop):
            self._is_tested[node.first : node.last] = True

    def _take_said(self, node: Node, start: int, stop: int, said: np.ndarray) -> None:
        """Take what models say of a part of a fold; score the fold once it is complete."""
        if self.outputs is not None:
            self.outputs[:, start:stop] = said
        begin, end = self.plan.rows(node)
        shape = len(said), end - begin, said.shape[2]
        of_fold = self._said.setdefault(node.first, np.empty(shape, said.dtype))
        of_fold[:, start - begin : stop - begin] = said
        if stop < end:
            return
        rows, scored = self._learner.rows, self.scored
        for of_model, outputs in zip(self.scores, self._said.pop(node.first), strict=True):
            begins = None if end - begin == 1 else np.zeros(1, np.int64)
            part = slice(begin, end)
            tested = TestedRows.of(rows, part, outputs, self._learner.respond, begins)
            of_fold_scores = scores_of_folds(
                scored.metrics, tested, scored.estimator, rows.classes
            )
            self._set(of_model, node, joined([of_fold_scores]))

    def _set(self, scores: FoldScores, node: Node, some: FoldScores) -> None:
        folds = slice(node.first, node.last)
        for array, values in zip(scores, some, strict=True):
            assert array is not None
            array[..., folds] = values


def _walk(trees: Sequence[RemoteTree]) -> Generator[None]:
    """Walk trees over the same rows at the same time; yield after each call."""
    for tree in trees:
        tree.begin(None)
    flying: dict[int, tuple[RemoteTree, Waiting, int]] = {}
    number = 0
    with trees[0].blocks.calls() as calls:
        while True:
            for tree in trees:
                for one, stop, block, priority, (function, *arguments) in tree.calls():
                    flying[number] = tree, one, stop
                    calls.submit(RemoteCall(number, block, function, arguments, priority))
                    number += 1
            if not flying:
                return
            name, result = calls.next()
            tree, one, stop = flying.pop(name)
            tree.take(one, stop, result)
            yield


def plan_remote_tree(request: Request) -> Plan | Declined:
    """Return a plan for incremental estimators, which are trained where the rows are."""
    if why_not := _why_not(request) or why_no_tree(request):
        return declined(request, why_not)
    check_incremental_estimator(request)
    return RemoteTreePlan(request)


def _why_not(request: Request) -> str:
    """Return why models cannot be trained where the rows are, a clause."""
    settings, estimator = request.settings, request.estimator
    parts = split(estimator)
    if isinstance(estimator, Pipeline) and (
        isinstance(parts, str)
        or not parts.is_compiled
        or not all(isinstance(step, StandardScaler) for _, step in estimator.steps[:-1])
        or sparse.issparse(request.data.X.sample)
    ):
        return (
            "its steps need all rows in one place; only a StandardScaler of dense rows "
            "before a learner of this package does not"
        )
    if settings.order == "random":
        return "order='random' reads rows in orders of their own"
    if settings.is_early:
        return f"report={settings.report!r} tests rows one after another"
    if getattr(estimator, "settings", None) == "theory":
        return "settings='theory' looks at all rows"
    return ""


class RemoteTreePlan(TrainedPlan):
    """The tree over remote rows. Scores are not stored."""

    name = "treecv"

    def __init__(self, request: Request) -> None:
        super().__init__(request, shared_parameters=lane_parameters(request.estimator))
        if self.n_epochs > 1:
            raise ValueError(
                "n_epochs must be 1 where the rows lie on a cluster, since replays read them in "
                f"any order, got {self.n_epochs}."
            )

    def cost(self) -> str:
        """Return the row updates at most, and those of k trainings from scratch."""
        return cost_of_tree(self.request, self.n_epochs)

    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return the names of what is computed."""
        bound = self.bind(candidate, repeat)
        learner = bound.learner
        group = b""
        if self.capabilities.shared_parameters and not self.at_leaf(candidate, learner):
            settings = settings_key(learner, MOST_ROWS, *learner.lane_parameters)
            group = digest(repr(self.layout).encode(), settings)
        key = bound.key.hex()
        fingerprint = bound.rows.hex() if key else ""
        needs_outputs = self.request.needs_predictions
        n_bytes = output_bytes(learner, repeat) if needs_outputs else 0
        return Results(key, fingerprint, group, n_bytes=n_bytes, bound=bound)

    def evaluate(self, work: Work) -> Generator[Event]:
        """Walk the trees of several models side by side, all at the same time."""
        candidates, _, repeat, *_ = work
        learners = [one.learner for one in work.bound]
        leaves = self.leaves_for(candidates[0], repeat, learners[0])
        check_has_row_scores(self.request, leaves, learners[0])
        n, n_trees = len(candidates), 1
        if n > 1:
            most = max(1, Lanes.most(learners[0]))
            n_trees = _n_trees(n, most, repeat.plan.n_folds, learners[0])
        members = [part.tolist() for part in np.array_split(np.arange(n), n_trees)]
        metrics, needs_outputs = self.request.scoring.metrics, self.request.needs_predictions
        scored = Scored(metrics, list(leaves.at_leaf), candidates[0], needs_outputs)
        trees = []
        for part in members:
            of_tree = [learners[i] for i in part]
            models = self._models(candidates[0], repeat, of_tree, self.responses)
            trees.append(RemoteTree(repeat, models, scored, of_tree[0]))
        with closing(_walk(trees)) as steps:
            for tree, part in zip(trees, members, strict=True):
                yield from self._folds_of(tree, part, steps, work)

    def _folds_of(
        self, tree: RemoteTree, members: Sequence[int], steps: Iterator[None], work: Work
    ) -> Iterator[TestedFolds]:
        """Yield the folds of the candidates of one tree, part after part."""
        candidates, sinks, repeat, *_, bound = work
        n_before = 0
        for part in repeat.parts:
            while tree.n_done < part.last:
                next(steps)
            n_needed, n_before = tree.n_updates - n_before, tree.n_updates
            for place, candidate in enumerate(members):
                sinks[candidate].cost.n_updates += n_needed
                learner, rows = bound[candidate].learner, None
                sinks[candidate].cost.seconds_prepare = learner.rows.seconds
                if tree.outputs is not None:
                    outputs = ArrayThenCount.view(tree.outputs[place], 0)
                    leaves = self.leaves_for(candidates[candidate], repeat, learner, outputs)
                    rows = leaves.tested(part)
                scores = tree.scores[place].part(part.first, part.n_folds)
                yield TestedFolds(candidate, part, n_needed, rows, scores)

    def _models(
        self,
        candidate: Candidate,
        repeat: Repeat,
        learners: Sequence[Any],
        responses: tuple[str, ...],
    ) -> Models:
        """Return learners, which differ in the parameters of lanes, without their rows."""
        seed = self.request.settings.seed + repeat.number
        if isinstance(learners[0], Adapter):
            return Models([candidate], responses, seed)
        before = copy(learners[0].before)
        if before is not None:
            before.X = None  # it would travel with each model
        return Models([one.settings for one in learners], responses, seed, before)

    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> np.ndarray:
        """Return the responses of the models of the folds."""
        learner = self.learner(candidate, self.rows(repeat), (method,))
        scored = Scored((), [], candidate, needs_outputs=True)
        models = self._models(candidate, repeat, [learner], (method,))
        tree = RemoteTree(repeat, models, scored, learner)
        for _ in _walk([tree]):
            pass
        assert tree.outputs is not None
        return self.in_given_order(candidate, learner, tree.outputs[0], method)

    def fit(self, candidate: Candidate) -> Any:
        """Train on all rows in prepared order, from the first block to the last."""
        repeat, state = self.repeats[0], None
        learner = self.learner(candidate, self.rows(repeat))
        blocks: RemoteBlocks = learner.rows.X
        models = self._models(candidate, repeat, [learner], self.responses)
        with blocks.calls() as calls:
            for how in ("survey", "replay") if _surveys(learner) else ("update",):
                for block, (start, stop) in enumerate(pairwise(blocks.bounds)):
                    calls.submit(
                        RemoteCall(block, block, train, (models, state, start, stop, how))
                    )
                    state = calls.next()[1]
            calls.submit(RemoteCall(-1, block, fit, (models, state)))
            fitted = calls.next()[1]
        return self.as_fitted(candidate, fitted)


def _surveys(learner: Any) -> bool:
    """Return whether steps learn of a whole phase before the model is trained on it."""
    return isinstance(learner, CompiledLearner) and not learner.phases_may_be_cut


def _n_trees(n_models: int, most: int, n_folds: int, learner: Any) -> int:
    """Return into how many trees models are divided, of at most ``most`` side by side.

    T trees take about as long as their longest path, n rows, and a block's share of the work
    together: n c (1 + T log2(2 k) / W), with the time c per row.
    """
    fewest, n_blocks = -(-n_models // most), len(learner.rows.X.bounds) - 1

    def seconds(n_trees: int) -> float:
        of_row = _OF_ROW + _OF_MODEL * -(-n_models // n_trees)
        return of_row * (1 + n_trees * log2(2 * n_folds) / n_blocks)

    return min({fewest, *range(fewest, n_models // _FEWEST_LANES + 1), n_models}, key=seconds)
