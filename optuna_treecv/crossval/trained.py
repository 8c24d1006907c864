"""What all methods have in common that train models further, by ``partial_fit`` or compiled."""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from optuna_treecv.crossval.identity import under_configuration
from optuna_treecv.crossval.masses import check_masses_of_classes
from optuna_treecv.crossval.methods import SideBySide
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Bound
from optuna_treecv.crossval.request import Request
from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.incremental import check_incremental
from optuna_treecv.learners.steps.split import compiled_part
from optuna_treecv.learners.steps.split import Split
from optuna_treecv.learners.steps.split import split
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.splits import Splits
from optuna_treecv.scoring import FoldScores
from optuna_treecv.scoring import Leaves
from optuna_treecv.scoring import Metric
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import PooledScore
from optuna_treecv.scoring import response_of
from optuna_treecv.scoring import Scorer
from optuna_treecv.sharing.keys import is_ours
from optuna_treecv.sharing.prefixes import Prefix
from optuna_treecv.sharing.results import results_of
from optuna_treecv.sharing.shared_learner import SharedLearner
from optuna_treecv.sharing.stored_cache import AnyCache
from optuna_treecv.sharing.stored_cache import StoredModelCache
from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.walk import TestedBlock


class Trained(ABC):
    """A method that trains models further."""

    name: str
    side_by_side: SideBySide | None = None
    is_one_pass = True

    def __init__(self, why: str = "") -> None:
        self.why = why

    def check(
        self, estimator: Any, of_class: bool = False, searched: Collection[str] = ()
    ) -> None:
        """Refuse an estimator that cannot be trained further, or with wrong parameters."""
        try:
            if isinstance(split(estimator), str):
                check_incremental(estimator, of_class)
        except ValueError as error:
            raise ValueError(f"{error} With method='fit' each fold is fitted anew.") from error
        found = split(estimator)
        if isinstance(found, Split) and isinstance(found.last, CompiledEstimator):
            n_prefix = len(found.prefix)
            of_last = [name[n_prefix:] for name in searched if name.startswith(found.prefix)]
            found.last.check_parameters(but=of_last)
        elif isinstance(estimator, CompiledEstimator):
            estimator.check_parameters(but=searched)

    def begin(self, request: Request, repeat: Repeat) -> TrainedRepeat:
        """Bind the estimator to the prepared rows."""
        return TrainedRepeat(self, request, repeat)

    def share(self, learner: Learner, cache: AnyCache, root: Prefix, n_epochs: int) -> Learner:
        """Return the learner that shares models with other evaluations of the same rows.

        Parameters
        ----------
        learner : Learner
        cache : ModelCache or StoredModelCache
            Where the models are kept.
        root : Prefix
            The prefix before the first prepared row.
        n_epochs : int
            The updates per row.
        """
        return learner

    @abstractmethod
    def test_folds(
        self, repeat: Repeat, learner: Learner, leaves: Leaves, n_jobs: int
    ) -> Generator[TestedBlock]:
        """Test each fold with a model that has not seen its rows.

        Parameters
        ----------
        repeat : Repeat
            The folds, and the tree over them.
        learner : Learner
            Bound to the prepared rows.
        leaves : Leaves
            Takes what the models say.
        n_jobs : int
            Threads.

        Yields
        ------
        TestedBlock
            Each of the repeat's blocks once all its folds are tested, and the row updates since
            the block before.
        """


def bind(request: Request, method: str, repeat: Repeat, rows: PreparedRows) -> Bound:
    """Bind an estimator to the rows of a repeat; for the first repeat this is done once.

    Raises
    ------
    ValueError
        If a parameter of the estimator is wrong.
    """
    if repeat.number == 0 and request.bound is not None:
        return request.bound
    evaluation = request.evaluation
    scoring = request.scoring
    responses = responses_of(request.estimator, scoring.metrics, evaluation.scored_by_row(scoring))
    learner = evaluation.learner(request.estimator, rows, responses, repeat)
    identity = evaluation.identity(request.estimator, rows, repeat.number)
    if isinstance(learner, CompiledLearner):
        check_masses_of_classes(learner, repeat.cut)
    folds = repeat.key
    if not isinstance(request.estimator, CompiledEstimator):
        folds = under_configuration(folds)
    results = results_of(learner, request.cache, identity, folds, method)
    bound = Bound(learner, identity, results)
    if repeat.number == 0:
        request.bound = bound
    return bound


class TrainedRepeat:
    """One estimator's way through one repeat: finds kept results or trains models.

    Parameters
    ----------
    method : Trained
    request : Request
    repeat : Repeat
    """

    def __init__(self, method: Trained, request: Request, repeat: Repeat) -> None:
        self._method = method
        self._request = request
        self._repeat = repeat
        evaluation = request.evaluation
        rows, self.seconds_prepare = evaluation.rows(request.estimator, repeat)
        learner, identity, self._results = bind(request, method.name, repeat, rows)
        self.key = self.fingerprint = ""
        if request.cache is not None:
            self.fingerprint = identity.rows.hex()
            self.key = "" if self._results is None else self._results.name
            root = evaluation.shared.root(identity, repeat.number)
            # Before the folds are known, rows are tested in parts of phases.
            if learner.phases_may_be_cut or not evaluation.is_early:
                learner = method.share(learner, request.cache, root, request.n_epochs)
        self.seconds_before = 0.0
        self._learner = learner
        self._leaves = self._make_leaves(learner)
        asked = request.evaluation.row_losses and request.needs_rows
        if asked and not self._leaves.has_row_scores(self._first):
            raise ValueError(
                f"row_losses must be False for scoring={request.scoring.name!r} of "
                f"{name_of(request.estimator)}, which scores each fold as a whole; a loss, such "
                "as 'error' or 'squared_error', would be right."
            )
        self._n_trained = 0
        self._trains_now = False

    def _make_leaves(self, learner: Learner) -> Leaves:
        """Return what is kept at the leaves, and scored."""
        return leaves_for(
            self._request.estimator, self._request.scoring.metrics, self._repeat, learner
        )

    @property
    def n_updates(self) -> int:
        """The rows trained on so far."""
        if self._trains_now and isinstance(self._learner, SharedLearner):
            return self._learner.n_updates
        return self._n_trained

    def blocks(self) -> Generator[TestedBlock]:
        """Evaluate the folds, or take their results where they are kept."""
        kept = self._kept_blocks()
        if kept is not None:
            yield from kept
            return
        self._trains_now = True
        n_jobs = self._request.evaluation.n_jobs
        blocks = self._method.test_folds(self._repeat, self._learner, self._leaves, n_jobs)
        for block in blocks:
            self._n_trained += block.n_updates
            yield block

    def scores(self, folds: Node) -> FoldScores:
        """Return the scores of tested folds."""
        return self._leaves.scores(folds)

    def pooled(self, metric: Pooled) -> PooledScore:
        """Return a score over all rows, now that all of them are tested."""
        return self._leaves.pooled(metric)

    def row_scores(self, folds: Node) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the scores of the rows of tested folds, and their weights."""
        return self._leaves.row_scores(folds, self._first)

    @property
    def _first(self) -> int:
        """The number of the first optimised metric."""
        return self._request.scoring.optimized[0]

    def tested_rows(self, folds: Node) -> np.ndarray:
        """Return the rows as given that ``row_scores`` has."""
        return self._repeat.cut.tested_from(folds.first, folds.last)

    def keep(self, n_needed: int, seconds: float) -> None:
        """Keep the results; other processes may wait for them."""
        if self._results is None:
            return
        self._results.keep(self._leaves, n_needed, seconds)
        outputs = self._leaves.outputs
        if self._request.is_leased and self._trains_now and outputs is not None:
            assert isinstance(self._request.cache, StoredModelCache)
            self._request.cache.write([self._results.to_write(outputs, seconds)])

    def _kept_blocks(self) -> Generator[TestedBlock] | None:
        """Fill the leaves with results that are there already; None if there are none."""
        if self._results is None:
            return None
        # Outputs computed ahead count as trained now, though they may be in the store by now.
        ahead = self._request.ahead.pop(self._repeat.number, None)
        if ahead is None:
            n_updates = self._results.take(self._leaves)
            return None if n_updates is None else _replay(self._repeat.parts, n_updates)
        if self._leaves.needs_models:
            return None
        if ahead.outputs is None:  # it was left out by its early scores, but not pruned
            return None
        began = perf_counter()
        self._leaves.outputs = ahead.outputs
        self._n_trained = ahead.outputs.n_updates
        self.seconds_before = ahead.seconds + perf_counter() - began
        return _replay(self._repeat.parts, ahead.outputs.n_updates)


def leaves_for(
    estimator: Any, metrics: Sequence[Metric], repeat: Repeat, learner: Learner
) -> Leaves:
    """Return what is kept at the leaves and scored; without metrics these are the outputs."""
    cut = repeat.cut
    tested = cut.prepared(cut.tested()) if isinstance(cut, Splits) else None
    at_leaf = [
        number
        for number, metric in enumerate(metrics)
        if not outputs_are_enough(estimator, learner, metric)
    ]
    called = [metrics[number] for number in at_leaf]
    if isinstance(learner, Adapter) and all(getattr(one, "is_made", False) for one in called):
        learner = learner.without_steps()  # such scorers look at predictions alone
    return Leaves(repeat.plan, learner, estimator, metrics, at_leaf, tested)


def outputs_are_enough(estimator: Any, learner: Learner, metric: Metric) -> bool:
    """Return whether a score follows from the outputs.

    A user's own scorer may look at more than predictions, and a user's own estimator may predict
    in its own way.
    """
    if not isinstance(metric, Scorer):
        return True
    can_answer = isinstance(learner, CompiledLearner | SharedLearner) and learner.can_answer
    return metric.is_made and can_answer and is_ours(type(compiled_part(estimator)))


def responses_of(
    estimator: Any, metrics: Sequence[Metric], by_row: Sequence[Metric] = ()
) -> tuple[str, ...]:
    """Return the responses from which losses and pooled scores follow, and those ``by_row``."""
    of_outputs = [*(one for one in metrics if not isinstance(one, Scorer)), *by_row]
    return tuple(dict.fromkeys(response_of(metric, estimator) for metric in of_outputs))


def _replay(blocks: list[Node], n_updates: int) -> Generator[TestedBlock]:
    """Yield blocks whose results are there already; the first one gets all row updates."""
    for block in blocks:
        yield TestedBlock(block, n_updates)
        n_updates = 0
