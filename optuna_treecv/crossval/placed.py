"""The engine of the tree over rows that lie elsewhere: models travel, and rows stay.

The model of a node is sent to the rows that it waits for, block after block. A node whose rows are
all in one block is walked there in one call, which answers with the scores of its folds.
"""

from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from dataclasses import replace
from itertools import pairwise
from math import log2
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv.crossval.engine import Missing
from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import TestedFolds
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.trained import Ahead
from optuna_treecv.crossval.trained import bind
from optuna_treecv.crossval.trained import check_has_row_scores
from optuna_treecv.crossval.trained import node_test
from optuna_treecv.crossval.trained import Training
from optuna_treecv.crossval.treecv import TreeCV
from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import Lanes
from optuna_treecv.learners.compiled import MOST_ROWS
from optuna_treecv.learners.from_estimator import make_learner
from optuna_treecv.learners.steps.decisions import split
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.placed import Block
from optuna_treecv.rows.placed import Placement
from optuna_treecv.scoring.at_leaves import ArrayThenCount
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import joined
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import SPREAD_SIZE
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.scoring.scores import unknown_spreads
from optuna_treecv.sharing.keys import settings_key
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan
from optuna_treecv.tree.sweeps import Descent
from optuna_treecv.tree.sweeps import Waiting

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
    plan = Plan(n, len(bounds) - 1, bounds)
    start, stop = plan.rows(node)
    if isinstance(learner, Lanes):
        out = np.empty((len(models.settings) * n, learner.n_outputs), learner.dtype)
        n_updates = 0
        if node.n_folds == 1:
            learner.outputs(state, start, stop, out)
        else:
            n_updates = learner.walk_subtree(plan, node, state, out)
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


class Tree(Descent):
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
        placement: Placement = learner.rows.X
        super().__init__(plan, placement.bounds, lambda state: state)
        if scored.at_leaf and models.before is not None:
            name = scored.metrics[scored.at_leaf[0]].name
            raise ValueError(
                "scoring must follow from predictions for a Pipeline whose rows lie on a cluster, "
                f"but {name!r} is called with estimators."
            )
        if scored.at_leaf and not np.isin(placement.bounds[1:-1], repeat.cut.begins()).all():
            name = scored.metrics[scored.at_leaf[0]].name
            raise ValueError(
                f"scoring must follow from predictions where a fold lies in several places, but "
                f"{name!r} is called with estimators; more folds, or fewer workers, would be "
                "right."
            )
        self.placement, self.models, self.scored = placement, models, scored
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


def _walk(trees: Sequence[Tree]) -> Generator[None]:
    """Walk trees over the same rows at the same time; yield after each call."""
    for tree in trees:
        tree.begin(None)
    flying: dict[int, tuple[Tree, Waiting, int]] = {}
    number = 0
    with trees[0].placement.calls() as calls:
        while True:
            for tree in trees:
                for one, stop, block, priority, (function, *arguments) in tree.calls():
                    flying[number] = tree, one, stop
                    calls.submit(number, block, priority, function, *arguments)
                    number += 1
            if not flying:
                return
            name, result = calls.next()
            tree, one, stop = flying.pop(name)
            tree.take(one, stop, result)
            yield


class Placed(TreeCV):
    """The tree over rows that lie elsewhere."""

    takes_placed = True

    def why_not(self, job: Job) -> str:
        """Return why models cannot be trained where the rows are, a clause."""
        settings, estimator = job.task.settings, job.estimator
        parts = split(estimator)
        if isinstance(estimator, Pipeline) and (
            isinstance(parts, str)
            or not parts.is_compiled
            or not all(isinstance(step, StandardScaler) for _, step in estimator.steps[:-1])
            or sparse.issparse(job.task.data.X.sample)
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
        return super().why_not(job)

    def epochs(self, job: Job) -> int:
        """Return 1."""
        n_epochs = super().epochs(job)
        if n_epochs > 1:
            raise ValueError(
                "n_epochs must be 1 where the rows lie on a cluster, since replays read them in "
                f"any order, got {n_epochs}."
            )
        return n_epochs

    def start(
        self, job: Job, repeat: Repeat, watch: Watch | None = None
    ) -> Generator[TestedFolds]:
        """Take what was computed together with others, or walk the tree."""
        rows = job.rows(repeat)
        job.effort.seconds_prepare = rows.seconds
        bound = bind(job, repeat, rows)
        if repeat.number == 0 and bound.results is not None:
            job.fingerprint, job.key = bound.rows.hex(), bound.results.name
        leaves = self.leaves_for(job, repeat, bound.learner)
        if job.task.settings.row_losses and job.needs_rows:
            check_has_row_scores(job, leaves, bound.learner)
        return self._tested(Training(job, repeat, bound.learner, leaves, None))

    def _tested(self, training: Training) -> Generator[TestedFolds]:
        """Yield the parts of a repeat once their folds are tested."""
        job, leaves, ahead = training.job, training.leaves, training.ahead
        if ahead is not None:
            job.effort.seconds += ahead.seconds
            tree, scores, outputs = None, ahead.scores, ahead.outputs
        else:
            tree = _tree([job], training.repeat, [training.learner], leaves.at_leaf)
            scores, outputs = tree.scores[0], None
            if tree.outputs is not None:
                outputs = ArrayThenCount.view(tree.outputs[0], 0)
        leaves.outputs = outputs
        n_before = 0
        with closing(_walk([tree] if tree else [])) as steps:
            for part in training.repeat.parts:
                while tree is not None and tree.n_done < part.last:
                    next(steps)
                if tree is not None:
                    training.n_walked = tree.n_updates
                job.effort.n_updates = training.n_updates
                n_needed, n_before = training.n_updates - n_before, training.n_updates
                tested = None if outputs is None else leaves.tested
                responses = training.responses(part)
                yield TestedFolds(part, n_needed, tested, scores=scores, responses=responses)

    def average(self, estimator: Any, else_right: str) -> Any:
        """Refuse it, since models of folds stay where the rows are."""
        raise ValueError(f"{else_right} where the rows lie on a cluster.")

    def is_kept(self, job: Job) -> bool:
        """Return False: scores are not kept."""
        return False

    def missing(self, job: Job) -> Missing | None:
        """Return what is missing of the first repeat."""
        repeat = job.repeats[0]
        if repeat.number in job.ahead:
            return None
        bound = bind(job, repeat, job.rows(repeat))
        learner = bound.learner
        n_bytes = 8 * (SPREAD_SIZE + 2) * len(job.scoring.metrics) * job.task.n_folds
        if job.needs_outputs:
            n_bytes += repeat.plan.n_rows * learner.n_outputs * learner.dtype.itemsize
        name = str(id(job)) if bound.results is None else bound.results.name
        return Missing(name, n_bytes * job.task.n_repeats)

    def together(self, jobs: Sequence[Job], watch: Watch | None, are_leased: bool) -> bool:
        """Walk the trees of several models side by side, all at the same time."""
        is_any = False
        for number in range(jobs[0].task.n_repeats):
            groups: dict[tuple[Any, ...], list[tuple[Job, Any]]] = {}
            for job in jobs:
                try:
                    learner = bind(job, job.repeats[number], job.rows(job.repeats[number])).learner
                except ConnectionError:
                    raise
                except Exception:  # noqa: BLE001  # the job itself will raise it
                    continue
                at_leaf = self.leaves_for(job, job.repeats[number], learner).at_leaf
                if number not in job.ahead and not at_leaf:
                    settings = settings_key(learner, MOST_ROWS, *learner.lane_parameters)
                    groups.setdefault((job.layout, settings), []).append((job, learner))
            for group in groups.values():
                try:
                    _walk_together(group, number)
                except ValueError:  # a score is not defined: each job will raise its own
                    continue
                is_any = True
        return is_any

    def predict(self, job: Job, repeat: Repeat, method: str) -> np.ndarray:
        """Return the responses of the models of the folds."""
        rows = job.rows()
        learner = job.learner(rows, (method,))
        scored = Scored((), [], job.estimator, needs_outputs=True)
        tree = Tree(repeat, _models(job, [learner], (method,)), scored, learner)
        for _ in _walk([tree]):
            pass
        assert tree.outputs is not None
        return self.in_given_order(job, learner, tree.outputs[0], method)

    def refit(self, job: Job) -> Any:
        """Train on all rows in prepared order, from the first block to the last."""
        learner = job.learner(job.rows())
        placement: Placement = learner.rows.X
        models, state = _models(job, [learner], job.responses), None
        with placement.calls() as calls:
            for how in ("survey", "replay") if _surveys(learner) else ("update",):
                for block, (start, stop) in enumerate(pairwise(placement.bounds)):
                    calls.submit(block, block, 0.0, train, models, state, start, stop, how)
                    state = calls.next()[1]
            calls.submit(-1, block, 0.0, fit, models, state)
            fitted = calls.next()[1]
        return self.as_refitted(job, fitted)


def _surveys(learner: Any) -> bool:
    """Return whether steps learn of a whole phase before the model is trained on it."""
    return isinstance(learner, CompiledLearner) and not learner.phases_may_be_cut


def _models(job: Job, learners: Sequence[Any], responses: tuple[str, ...]) -> Models:
    """Return the learners without their rows."""
    if isinstance(learners[0], Adapter):
        return Models([job.estimator], responses, job.task.settings.seed)
    before = copy(learners[0].before)
    if before is not None:
        before.X = None  # it would travel with each model
    return Models([one.settings for one in learners], responses, 0, before)


def _tree(
    jobs: Sequence[Job], repeat: Repeat, learners: Sequence[Any], at_leaf: Collection[int] = ()
) -> Tree:
    """Return the tree of jobs that differ in the parameters of lanes."""
    job = jobs[0]
    models = replace(
        _models(job, learners, job.responses), seed=job.task.settings.seed + repeat.number
    )
    is_all = any(job.needs_outputs for job in jobs)
    scored = Scored(job.scoring.metrics, list(at_leaf), job.estimator, is_all)
    return Tree(repeat, models, scored, learners[0])


def _walk_together(group: Sequence[tuple[Job, Any]], number: int) -> None:
    """Evaluate jobs that differ in the parameters of lanes on the repeat with this number."""
    began = perf_counter()
    first, learner = group[0]
    repeat = first.repeats[number]
    n_trees = _n_trees(len(group), max(1, Lanes.most(learner)), repeat.plan.n_folds, learner)
    parts = np.array_split(np.arange(len(group)), n_trees)
    members = [[group[i] for i in part] for part in parts]
    trees = [_tree([job for job, _ in some], repeat, [one for _, one in some]) for some in members]
    for _ in _walk(trees):
        pass
    seconds = (perf_counter() - began) / len(group)
    for tree, some in zip(trees, members, strict=True):
        for i, (job, _) in enumerate(some):
            ahead = Ahead(scores=tree.scores[i], n_updates=tree.n_updates, seconds=seconds)
            if tree.outputs is not None:
                ahead.outputs = ArrayThenCount.view(tree.outputs[i], tree.n_updates)
            job.ahead[number] = ahead


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
