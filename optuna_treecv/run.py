"""One estimator's way through an evaluation: bound to its rows, walked or found, scored."""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from typing import NamedTuple

import numpy as np

from optuna_treecv.cache import StoredModelCache
from optuna_treecv.data import PreparedRows
from optuna_treecv.evaluation import Evaluation
from optuna_treecv.keys import is_ours
from optuna_treecv.learners import as_estimator
from optuna_treecv.learners import name_of
from optuna_treecv.learners.base import Learner
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.plan import Node
from optuna_treecv.plan import Plan
from optuna_treecv.scoring import Leaves
from optuna_treecv.scoring import Loss
from optuna_treecv.scoring import OutputsAtLeaves
from optuna_treecv.scoring import Scorer
from optuna_treecv.scoring import ScoresAtLeaves
from optuna_treecv.scoring import ScoresOfOutputs
from optuna_treecv.sharing import Results
from optuna_treecv.sharing import SharedLearner
from optuna_treecv.walk import replay

# Rows that are scored at once, if they are several folds.
_ROWS_A_PIECE = 2**16


@dataclass(frozen=True, eq=False)  # arrays have no single ==
class CVResult:
    """What a cross-validation found.

    Attributes
    ----------
    test_score : ndarray of shape (n_repeats * n_folds,)
        The score of each fold, in the order of the folds, repeat after repeat.
    mean : float
        Their mean, the paper's R.
    std : float or None
        Their standard deviation (of the folds, as scikit-learn's ``std_test_score``); None if the
        mean is not finite.
    n_folds : int
        Folds a repeat.
    n_updates : int
        Rows trained on, counted over all models.
    n_updates_saved : int
        Rows that need not be trained on, because models were shared with other evaluations.
    n_updates_standard : int
        Rows that k trainings from scratch would take.
    seconds : float
        The evaluation alone: from prepared rows to scores.
    seconds_prepare : float
        Checking, permuting and padding the rows.
    diverged_folds : int
        Folds whose model or loss was not finite. They score 1 for "error", inf for other losses
        and -inf for scorers.
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


class Bound(NamedTuple):
    """An estimator on the rows of a repeat.

    Attributes
    ----------
    learner : Learner
    identity : bytes
        The name of the rows.
    results : Results or None
        Where its results are kept; None if it has no key.
    """

    learner: Learner
    identity: bytes
    results: Results | None


class Run:
    """One estimator's way through an evaluation. Iterate it to the end, or leave it early; then
    ask for ``result``.

    Iterating yields the number of each reported part, 0, 1, ..., once its folds are scored. A part
    is a subtree at depth min(5, depth of the tree), less deep with repeats, so that there are at
    most 32 in all, or one a repeat.

    Raises
    ------
    ValueError
        If the estimator cannot be evaluated by the evaluation's scoring, or cannot go on training.

    Attributes
    ----------
    is_claimed : bool
        Whether other processes may wait for the outputs, so that they go to the store at once.
    walked : ndarray of shape (n_repeats * n_folds,)
        The scores of the first ``n_scored`` folds, in the order in which they lie along the tree.
    """

    def __init__(self, evaluation: Evaluation, estimator: Any) -> None:
        self.evaluation = evaluation
        self.estimator = as_estimator(estimator)
        self.scoring = evaluation.scoring_of(self.estimator)
        self.is_claimed = False
        self.walked = np.empty(0)
        self.n_scored = 0
        self.n_updates = 0
        self._n_needed = 0  # rows of all phases that were passed, trained on or not
        self.diverged_folds = 0
        self.seconds = 0.0
        self.seconds_prepare = 0.0
        self.key = self.fingerprint = ""  # what was trained how, and on which rows
        self._bound: Bound | None = None

    def bind(self, plan: Plan, rows: PreparedRows, repeat: int) -> Bound:
        """The estimator on the rows of a repeat; on those of repeat 0 it is bound once.

        Raises
        ------
        ValueError
            If a parameter of the estimator is wrong.
        """
        if repeat == 0 and self._bound is not None:
            return self._bound
        evaluation = self.evaluation
        method = self.scoring.response_method
        learner = evaluation.learner(self.estimator, rows, method, repeat)
        bound = Bound(learner, *evaluation.results(self.estimator, learner, plan, repeat))
        if repeat == 0:
            self._bound = bound
        return bound

    def __iter__(self) -> Iterator[int]:
        evaluation = self.evaluation
        self.walked = np.empty(evaluation.n_repeats * evaluation.n_folds)
        part = 0
        for repeat in range(evaluation.n_repeats):
            rows, seconds = evaluation.rows(self.estimator, repeat)
            self.seconds_prepare += seconds
            plan = evaluation.plan(repeat)
            with closing(self._walk(plan, rows, repeat)) as parts:
                for _ in parts:
                    yield part
                    part += 1

    def about(self) -> dict[str, Any]:
        """What was evaluated, in words and numbers."""
        evaluation = self.evaluation
        return {
            "key": self.key,
            "fingerprint": self.fingerprint,
            "learner": name_of(self.estimator),
            "cv": evaluation.cv,
            "n_folds": evaluation.n_folds,
            "n_repeats": evaluation.n_repeats,
            "n_rows": evaluation.data.n_rows,
            "n_features": evaluation.data.X.shape[1],
            "order": evaluation.order,
            "method": evaluation.method,
            "scoring": self.scoring.name,
            "direction": self.scoring.direction,
            "random_state": str(evaluation.seed),
        }

    def finish(self) -> CVResult:
        """Walk to the end."""
        for _ in self:
            pass
        return self.result()

    def by_fold(self) -> np.ndarray:
        """The scores of all folds, repeat after repeat; NaN where there is none yet."""
        evaluation = self.evaluation
        if self.n_scored == len(self.walked) and all(f.numbers is None for f in evaluation.folds):
            return self.walked
        scores = np.full(evaluation.n_repeats * evaluation.n_folds, np.nan)
        for repeat, folds in enumerate(evaluation.folds):
            first = repeat * folds.n_folds
            walked = self.walked[first : min(first + folds.n_folds, self.n_scored)]
            of = slice(len(walked)) if folds.numbers is None else folds.numbers[: len(walked)]
            scores[first : first + folds.n_folds][of] = walked
        return scores

    def result(self) -> CVResult:
        """The result over the folds scored so far."""
        evaluation = self.evaluation
        scores = self.by_fold()
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
            n_updates_standard=evaluation.n_repeats
            * (evaluation.n_folds - 1)
            * evaluation.data.n_rows,
            seconds=self.seconds,
            seconds_prepare=self.seconds_prepare,
            diverged_folds=self.diverged_folds,
        )

    def _walk(self, plan: Plan, rows: PreparedRows, repeat: int) -> Generator[Node]:
        """Walk one repeat's tree, or take its results where they are kept, and score its parts
        from the left.
        """
        evaluation = self.evaluation
        cache = evaluation.cache_for(self.estimator)
        learner, identity, results = self.bind(plan, rows, repeat)
        if cache is not None:
            if repeat == 0:
                self.fingerprint = identity.hex()
                self.key = "" if results is None else results.name
            if isinstance(learner, CompiledLearner) and evaluation.method == "treecv":
                learner = SharedLearner(learner, cache, evaluation.way(identity, repeat))
        leaves = self._leaves(plan, learner)
        needed_before, seconds_before = self._n_needed, self.seconds
        parts = evaluation.parts(plan)
        # What this process has walked counts as trained, though it may be in the store by now.
        found = None if results is None else evaluation.found.take(results.name)
        n_kept = None if results is None or found is not None else results.take(leaves)
        walks = False
        if n_kept is not None:
            blocks = replay(parts, n_kept)
        elif found is not None and isinstance(leaves, OutputsAtLeaves):
            begin = perf_counter()
            leaves.outputs.array[:] = found.outputs
            self.n_updates += found.n_updates
            self.seconds += found.seconds + perf_counter() - begin
            blocks = replay(parts, found.n_updates)
        else:
            walks = True
            blocks = evaluation.walk(plan, learner, leaves)
        n_before = self.n_updates
        begin = perf_counter()
        with closing(blocks):
            for part in parts:
                for block, n_updates in blocks:
                    self._n_needed += n_updates
                    if walks and isinstance(learner, SharedLearner):
                        self.n_updates = n_before + learner.n_updates
                    elif walks:
                        self.n_updates += n_updates
                    if block.last == part.last:
                        break
                for piece in _pieces(plan, part):
                    scores, diverged = leaves.scores(piece)
                    self.walked[self.n_scored : self.n_scored + len(scores)] = scores
                    self.n_scored += len(scores)
                    self.diverged_folds += int(np.count_nonzero(diverged))
                self.seconds += perf_counter() - begin
                yield part
                begin = perf_counter()
        if results is not None:
            n_updates = self._n_needed - needed_before
            seconds = self.seconds - seconds_before
            results.keep(leaves, n_updates, seconds)
            if self.is_claimed and walks and isinstance(leaves, OutputsAtLeaves):
                assert isinstance(cache, StoredModelCache)
                cache.write([results.to_write(leaves.outputs, seconds)])

    def _leaves(self, plan: Plan, learner: Learner) -> Leaves:
        """What to do at the leaves."""
        if isinstance(self.scoring, Loss):
            return OutputsAtLeaves(plan, learner, self.scoring)
        if isinstance(learner, CompiledLearner | SharedLearner):
            if outputs_are_enough(self.estimator, learner, self.scoring):
                return ScoresOfOutputs(plan, learner, self.scoring)
        return ScoresAtLeaves(plan, learner, self.scoring)


def _pieces(plan: Plan, part: Node) -> Iterator[Node]:
    """Neighbouring folds of few rows, so that what scoring takes is little beside the scores."""
    n_folds = max(1, _ROWS_A_PIECE * plan.n_folds // plan.n_rows)
    for first in range(part.first, part.last, n_folds):
        yield Node(first, min(first + n_folds, part.last))


def outputs_are_enough(
    estimator: Any, learner: CompiledLearner | SharedLearner, scoring: Loss | Scorer
) -> bool:
    """Whether scores follow from outputs. A scorer of one's own may look at more than predictions,
    and one's own estimator may predict in ways of its own.
    """
    if isinstance(scoring, Loss):
        return True
    return scoring.is_made and learner.can_answer and is_ours(type(estimator))


def mean_and_std(scores: np.ndarray) -> tuple[float, float | None]:
    """Of scores; the standard deviation is None if one of them is not finite."""
    with np.errstate(all="ignore"):
        mean, std = float(np.mean(scores)), float(np.std(scores))
    if np.isfinite(std):
        return mean, std
    size = np.abs(scores).max()
    if not np.isfinite(size):
        return mean, None
    return float(np.mean(scores / size) * size), float(np.std(scores / size) * size)
