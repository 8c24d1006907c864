"""The cross-validation of one estimator: finds kept results or computes them, scores the folds."""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.evaluation import Repeat
from optuna_treecv.crossval.subtrees import pieces
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.from_estimator import as_estimator
from optuna_treecv.learners.from_estimator import layout_for
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.scoring import Leaves
from optuna_treecv.scoring import Loss
from optuna_treecv.scoring import OutputsAtLeaves
from optuna_treecv.scoring import Scorer
from optuna_treecv.scoring import ScoresAtLeaves
from optuna_treecv.scoring import ScoresOfOutputs
from optuna_treecv.sharing.keys import is_ours
from optuna_treecv.sharing.results import OutputsAhead
from optuna_treecv.sharing.results import Results
from optuna_treecv.sharing.results import results_of
from optuna_treecv.sharing.results import RowsIdentity
from optuna_treecv.sharing.shared_learner import SharedLearner
from optuna_treecv.sharing.stored_cache import StoredModelCache
from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan
from optuna_treecv.tree.walk import TestedBlock


@dataclass(frozen=True, eq=False)  # arrays have no single ==
class CVResult:
    """The result of a cross-validation.

    Attributes
    ----------
    test_score : ndarray of shape (n_repeats * n_folds,)
        The score of each fold, in the order of the folds, repeat after repeat.
    mean : float
        The mean of the fold scores, the paper's R.
    std : float or None
        The standard deviation of the fold scores, as scikit-learn's ``std_test_score``; None if
        the mean is not finite.
    n_folds : int
        Folds per repeat.
    n_updates : int
        Row updates: rows trained on, counted over all models.
    n_updates_saved : int
        Row updates that sharing models with other evaluations made unnecessary.
    n_updates_standard : int
        Row updates that k trainings from scratch would take.
    seconds : float
        The time from prepared rows to scores.
    seconds_prepare : float
        The time to check, permute and pad the rows.
    diverged_folds : int
        Folds whose model or loss was not finite. Such a fold scores 1 for "error", inf for other
        losses and -inf for scorers.
    """

    test_score: np.ndarray
    mean: float
    std: float | None
    n_folds: int
    n_updates: int
    n_updates_saved: int
    n_updates_standard: int
    seconds: float
    seconds_prepare: float
    diverged_folds: int

    def __repr__(self) -> str:
        """Return all but the fold scores, which may be half a million."""
        std = "None" if self.std is None else f"{self.std:.6g}"
        return (
            f"CVResult(mean={self.mean:.6g}, std={std}, n_folds={self.n_folds}, "
            f"test_score=<{len(self.test_score)} scores>,\n"
            f"    n_updates={self.n_updates}, n_updates_saved={self.n_updates_saved}, "
            f"n_updates_standard={self.n_updates_standard},\n"
            f"    seconds={self.seconds:.3g}, seconds_prepare={self.seconds_prepare:.3g}, "
            f"diverged_folds={self.diverged_folds})"
        )


class Bound(NamedTuple):
    """An estimator bound to the rows of a repeat.

    Attributes
    ----------
    learner : Learner
    identity : RowsIdentity
        The names of the rows.
    results : Results or None
        Where the results are kept; None if the estimator has no key.
    """

    learner: Learner
    identity: RowsIdentity
    results: Results | None


class Run:
    """One estimator's way through an evaluation.

    Iterate over it to the end, or leave it early; then ask for ``result``. A second iteration
    begins anew. Iterating yields the number of each reported part, 0, 1, ..., once its folds are
    scored. A part is a subtree at depth min(5, depth of the tree). With repeats parts are larger,
    so that there are at most 32 in all, or one per repeat.

    Raises
    ------
    ValueError
        If the estimator cannot be evaluated by the evaluation's scoring, or cannot be trained
        further.

    Attributes
    ----------
    ahead : dict of int to OutputsAhead
        The outputs of repeats that were computed before they are iterated over. They go when they
        are used, or with the run.
    is_leased : bool
        Whether other processes may wait for the outputs, so that they go to the store at once.
    comes_again : bool
        Whether another run may have the same parameters, so that its results go to the store.
    chunk_scores : ndarray of shape (n_repeats * n_folds,)
        The scores of the first ``n_scored`` chunks, in the order in which they lie along the tree.
    key, fingerprint : str
        What was trained how, and on which rows.
    """

    def __init__(self, evaluation: Evaluation, estimator: Any) -> None:
        self.evaluation = evaluation
        self.estimator = as_estimator(estimator)
        self.scoring = evaluation.scoring_for(self.estimator)
        evaluation.unused.warn(self.estimator)
        self.ahead: dict[int, OutputsAhead] = {}
        self.is_leased = False
        self.comes_again = True
        self.key = self.fingerprint = ""
        self._cache = evaluation.shared.cache_for(self.estimator)
        self._bound: Bound | None = None
        self._begin(0)

    def _begin(self, n_scores: int) -> None:
        """Make room for this many scores, and forget what an earlier iteration has found."""
        self.chunk_scores = np.empty(n_scores)
        self.n_scored = 0
        self.n_updates = 0
        self._n_needed = 0  # rows of all phases, trained on or not
        self.diverged_folds = 0
        self.seconds = 0.0
        self.seconds_prepare = 0.0

    def bind(self, repeat: Repeat, rows: PreparedRows) -> Bound:
        """Bind the estimator to the rows of a repeat; for the first repeat this is done once.

        Raises
        ------
        ValueError
            If a parameter of the estimator is wrong.
        """
        if repeat.number == 0 and self._bound is not None:
            return self._bound
        evaluation = self.evaluation
        method = self.scoring.response_method
        learner = evaluation.learner(self.estimator, rows, method, repeat)
        identity = evaluation.shared.identity(layout_for(self.estimator), rows, repeat.number)
        name = evaluation.method.name
        results = results_of(learner, self._cache, identity, repeat.plan, name)
        bound = Bound(learner, identity, results)
        if repeat.number == 0:
            self._bound = bound
        return bound

    def __iter__(self) -> Iterator[int]:
        evaluation = self.evaluation
        self._begin(evaluation.n_repeats * evaluation.n_folds)
        part = 0
        try:
            for repeat in evaluation.repeats:
                rows, seconds = evaluation.rows(self.estimator, repeat)
                self.seconds_prepare += seconds
                with closing(self._score_repeat(repeat, rows)) as parts:
                    for _ in parts:
                        yield part
                        part += 1
        finally:
            if isinstance(self._cache, StoredModelCache):
                self._cache.end(self.comes_again)

    def finish(self) -> CVResult:
        """Evaluate all folds."""
        for _ in self:
            pass
        return self.result()

    def describe(self) -> dict[str, Any]:
        """Return what was evaluated, in words and numbers."""
        return {
            **self.evaluation.describe(),
            "key": self.key,
            "fingerprint": self.fingerprint,
            "learner": name_of(self.estimator),
            "scoring": self.scoring.name,
            "direction": self.scoring.direction,
        }

    def fold_scores(self) -> np.ndarray:
        """Return the scores of all folds, repeat after repeat; NaN where there is none yet."""
        scored = self.chunk_scores[: self.n_scored]
        n_folds = self.evaluation.n_folds
        each = [
            repeat.folds.by_number(scored[repeat.number * n_folds :][:n_folds])
            for repeat in self.evaluation.repeats
        ]
        return each[0] if len(each) == 1 else np.concatenate(each)

    def result(self) -> CVResult:
        """Return the result over the folds scored so far."""
        evaluation = self.evaluation
        scores = self.fold_scores()
        if self.n_scored < len(scores):
            scores = scores[~np.isnan(scores)]
        mean, std = mean_and_std(scores)
        return CVResult(
            test_score=scores,
            mean=mean,
            std=std,
            n_folds=evaluation.n_folds,
            n_updates=self.n_updates,
            n_updates_saved=max(0, self._n_needed - self.n_updates),
            n_updates_standard=evaluation.n_updates_standard,
            seconds=self.seconds,
            seconds_prepare=self.seconds_prepare,
            diverged_folds=self.diverged_folds,
        )

    def _score_repeat(self, repeat: Repeat, rows: PreparedRows) -> Generator[Node]:
        """Evaluate one repeat, or take its results where they are kept; yield its scored parts."""
        evaluation, plan = self.evaluation, repeat.plan
        learner, identity, results = self.bind(repeat, rows)
        if self._cache is not None:
            if repeat.number == 0:
                self.fingerprint = identity.rows.hex()
                self.key = "" if results is None else results.name
            root = evaluation.shared.root(identity, repeat.number)
            learner = evaluation.method.share(learner, self._cache, root)
        leaves = self._leaves(plan, learner)
        needed_before, seconds_before = self._n_needed, self.seconds
        blocks = self._kept_blocks(repeat, results, leaves)
        is_trained_now = blocks is None
        if blocks is None:
            blocks = evaluation.method.test_folds(
                plan, learner, leaves, repeat.blocks, evaluation.n_jobs
            )
        n_before = self.n_updates
        began = perf_counter()
        with closing(blocks):
            for part in repeat.parts:
                for block, n_updates in blocks:
                    self._n_needed += n_updates
                    if is_trained_now and isinstance(learner, SharedLearner):
                        self.n_updates = n_before + learner.n_updates
                    elif is_trained_now:
                        self.n_updates += n_updates
                    if block.last == part.last:
                        break
                self._score(plan, part, leaves)
                self.seconds += perf_counter() - began
                yield part
                began = perf_counter()
        if results is not None:
            n_updates = self._n_needed - needed_before
            seconds = self.seconds - seconds_before
            results.keep(leaves, n_updates, seconds)
            if self.is_leased and is_trained_now and isinstance(leaves, OutputsAtLeaves):
                assert isinstance(self._cache, StoredModelCache)
                self._cache.write([results.to_write(leaves.outputs, seconds)])

    def _kept_blocks(
        self, repeat: Repeat, results: Results | None, leaves: Leaves
    ) -> Generator[TestedBlock] | None:
        """Fill the leaves with results that are there already; None if there are none."""
        if results is None:
            return None
        # Outputs computed ahead count as trained by this run, though they may be in the store now.
        ahead = self.ahead.pop(repeat.number, None)
        if ahead is None:
            n_updates = results.take(leaves)
            return None if n_updates is None else _replay(repeat.parts, n_updates)
        if not isinstance(leaves, OutputsAtLeaves):
            return None
        began = perf_counter()
        leaves.outputs = ahead.outputs
        self.n_updates += ahead.outputs.n_updates
        self.seconds += ahead.seconds + perf_counter() - began
        return _replay(repeat.parts, ahead.outputs.n_updates)

    def _score(self, plan: Plan, part: Node, leaves: Leaves) -> None:
        """Score the folds of a part."""
        for piece in pieces(plan, part):
            scores, diverged = leaves.scores(piece)
            self.chunk_scores[self.n_scored : self.n_scored + len(scores)] = scores
            self.n_scored += len(scores)
            self.diverged_folds += int(np.count_nonzero(diverged))

    def _leaves(self, plan: Plan, learner: Learner) -> Leaves:
        """Return what is kept at the leaves, and how it is scored."""
        if isinstance(self.scoring, Loss):
            return OutputsAtLeaves(plan, learner, self.scoring)
        if isinstance(learner, CompiledLearner | SharedLearner):
            if outputs_are_enough(self.estimator, learner, self.scoring):
                return ScoresOfOutputs(plan, learner, self.scoring)
        return ScoresAtLeaves(plan, learner, self.scoring)


def outputs_are_enough(
    estimator: Any, learner: CompiledLearner | SharedLearner, scoring: Loss | Scorer
) -> bool:
    """Return whether the scores follow from the outputs.

    A user's own scorer may look at more than predictions, and a user's own estimator may predict
    in its own way.
    """
    if isinstance(scoring, Loss):
        return True
    return scoring.is_made and learner.can_answer and is_ours(type(estimator))


def mean_and_std(scores: np.ndarray) -> tuple[float, float | None]:
    """Return mean and standard deviation of scores; the latter is None if a score is infinite."""
    with np.errstate(all="ignore"):
        mean, std = float(np.mean(scores)), float(np.std(scores))
    if np.isfinite(std):
        return mean, std
    size = np.abs(scores).max()
    if not np.isfinite(size):
        return mean, None
    return float(np.mean(scores / size) * size), float(np.std(scores / size) * size)


def _replay(blocks: list[Node], n_updates: int) -> Generator[TestedBlock]:
    """Yield blocks whose results are there already; the first one gets all row updates."""
    for block in blocks:
        yield TestedBlock(block, n_updates)
        n_updates = 0
