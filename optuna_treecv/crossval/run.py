"""The cross-validation of one estimator: finds kept results or computes them, scores the folds."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from optuna_treecv.crossval.choice import settle
from optuna_treecv.crossval.early import EarlyRepeat
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.methods import RepeatRun
from optuna_treecv.crossval.progressive import half_width
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Request
from optuna_treecv.crossval.subtrees import pieces
from optuna_treecv.learners.from_estimator import as_estimator
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.scoring import Pooled
from optuna_treecv.sharing.stored_cache import StoredModelCache
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan


@dataclass(frozen=True, eq=False)  # arrays have no single ==
class Score:
    """What a cross-validation has found by one loss or scorer.

    Attributes
    ----------
    test_score : ndarray of shape (n_repeats * n_folds,)
        The score of each fold, in the order of the folds, repeat after repeat. A pooled score has
        one value for each repeat, and no fold scores.
    mean : float
        The mean of ``test_score``.
    std : float or None
        The standard deviation of the fold scores; None if the mean is not finite, or there is a
        single score, or it is pooled.
    std_error : float or None
        The standard error of a pooled score, None for others. That of several repeats is the mean
        of theirs, since they have the same rows.
    direction : {"minimize", "maximize"}
        Whether lower or higher values are better.
    """

    test_score: np.ndarray
    mean: float
    std: float | None
    std_error: float | None
    direction: str

    def __repr__(self) -> str:
        """Return all but the fold scores."""
        spread = _spread(self.std, self.std_error)
        return (
            f"Score(mean={self.mean:.6g}, {spread}, direction={self.direction!r}, "
            f"test_score=<{len(self.test_score)} scores>)"
        )


@dataclass(frozen=True, eq=False)
class CVResult:
    """The result of a cross-validation.

    Attributes
    ----------
    test_score : ndarray of shape (n_repeats * n_folds,)
        The score of each fold, in the order of the folds, repeat after repeat. A pooled score has
        one value for each repeat, and no fold scores. Of several scores this is the first
        optimised one, as are the next three.
    mean : float
        The mean of the fold scores, the paper's R.
    std : float or None
        The standard deviation of the fold scores, as scikit-learn's ``std_test_score``; None if
        the mean is not finite, or there is a single score, or it is pooled.
    std_error : float or None
        The standard error of a pooled score, None for others.
    scores : dict of str to Score
        The result of each score by its name, in the order of ``scoring``.
    half_width : float or None
        For ``method="progressive"`` and scores of rows between 0 and 1: with probability 0.95,
        ``mean`` is no further from the mean risk of the models along the pass. None for others.
    method : {"exact", "treecv", "chain", "fit", "standard", "holdout", "progressive"}
        How the folds were evaluated. "chain" is what the tree becomes for a splitter of time
        series.
    why : str
        Why "auto" has chosen this method and not a faster one, a clause; "" if the user chose.
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
    std_error: float | None
    half_width: float | None
    scores: dict[str, Score]
    method: str
    why: str
    n_folds: int
    n_updates: int
    n_updates_saved: int
    n_updates_standard: int
    seconds: float
    seconds_prepare: float
    diverged_folds: int

    def __repr__(self) -> str:
        """Return all but the fold scores, which may be half a million."""
        several = ""
        if len(self.scores) > 1:
            means = (f"{name!r}: {score.mean:.6g}" for name, score in self.scores.items())
            several = f"    scores={{{', '.join(means)}}},\n"
        spread = _spread(self.std, self.std_error)
        if self.half_width is not None:
            spread = f"half_width={self.half_width:.6g}"
        why = f"    why={self.why!r},\n" if self.why and self.method == "fit" else ""
        return (
            f"CVResult(mean={self.mean:.6g}, {spread}, method={self.method!r}, "
            f"n_folds={self.n_folds}, test_score=<{len(self.test_score)} scores>,\n"
            f"{several}{why}"
            f"    n_updates={self.n_updates}, n_updates_saved={self.n_updates_saved}, "
            f"n_updates_standard={self.n_updates_standard},\n"
            f"    seconds={self.seconds:.3g}, seconds_prepare={self.seconds_prepare:.3g}, "
            f"diverged_folds={self.diverged_folds})"
        )


class Run(Request):
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
    chunk_scores : ndarray of shape (n_metrics, n_repeats * n_folds)
        The scores of the first ``n_scored`` chunks, in the order in which they lie along the tree;
        NaN for pooled ones.
    pooled_scores : ndarray of shape (n_metrics, n_repeats, 2)
        The pooled scores of the repeats that are done, with their standard errors; NaN for others.
    part_rows : (ndarray, ndarray or None) or None
        The scores of the rows of the part that was yielded last, and their weights; None if they
        are not known, or not asked for.
    key, fingerprint : str
        What was trained how, and on which rows.
    method : Method
        How the folds are evaluated.
    """

    def __init__(self, evaluation: Evaluation, estimator: Any) -> None:
        estimator = as_estimator(estimator)
        self.method, scoring = settle(evaluation, estimator)
        super().__init__(evaluation, estimator, scoring)
        if self.method.is_one_pass:
            evaluation.unused.warn(estimator)
        self.key = self.fingerprint = ""
        self._early: EarlyRepeat | None = None
        self._begin(0)

    def _begin(self, n_scores: int) -> None:
        """Make room for this many scores, and forget what an earlier iteration has found."""
        n_metrics = len(self.scoring.metrics)
        self.chunk_scores = np.empty((n_metrics, n_scores))
        self.pooled_scores = np.full((n_metrics, self.evaluation.n_repeats, 2), np.nan)
        self.part_rows: tuple[np.ndarray, np.ndarray | None] | None = None
        self.n_scored = 0
        self.n_updates = 0
        self._n_needed = 0  # rows of all phases, trained on or not
        self.diverged_folds = 0
        self.seconds = 0.0
        self.seconds_prepare = 0.0

    def begin_early(self) -> EarlyRepeat:
        """Begin the first repeat; iterating over the run later goes on from there."""
        repeat = self.evaluation.repeats[0]
        began = self.method.begin(self, repeat)
        assert isinstance(began, EarlyRepeat)  # choice.py has checked the method
        self._early = began
        self.key, self.fingerprint = began.key, began.fingerprint
        return began

    def leave_early(self) -> None:
        """Note what was done of a run that is left before any fold is scored."""
        assert self._early is not None
        self._begin(self.n_to_score)
        self.seconds, self.n_updates = self._early.seconds_before, self._early.n_updates
        self.seconds_prepare = self._early.seconds_prepare
        if isinstance(self.cache, StoredModelCache):
            self.cache.end(self.comes_again)

    def __iter__(self) -> Generator[int]:
        evaluation = self.evaluation
        self._begin(self.n_to_score)
        part = 0
        try:
            for repeat in evaluation.repeats:
                with closing(self._score_repeat(repeat)) as parts:
                    for _ in parts:
                        yield part
                        part += 1
        finally:
            if isinstance(self.cache, StoredModelCache):
                self.cache.end(self.comes_again)

    @property
    def method_name(self) -> str:
        """What was done: "holdout" if that was asked for, else the name of the method."""
        asked = self.evaluation.asked_method
        return asked if asked == "holdout" else self.method.name

    def ask_for_rows(self) -> bool:
        """Ask for the scores of single rows; return whether the metric has them."""
        self.needs_rows = self.evaluation.scores_rows(self.scoring.first, self.estimator)
        return self.needs_rows

    @property
    def n_parts(self) -> int:
        """The number of parts of all repeats."""
        return sum(len(repeat.parts) for repeat in self.evaluation.repeats)

    @property
    def n_to_score(self) -> int:
        """The number of folds of all repeats."""
        return self.evaluation.n_repeats * self.evaluation.n_folds

    @property
    def is_complete(self) -> bool:
        return self.n_scored == self.n_to_score

    def finish(self) -> CVResult:
        """Evaluate all folds."""
        for _ in self:
            pass
        return self.result()

    def describe(self) -> dict[str, Any]:
        """Return what was evaluated, in words and numbers."""
        return {
            **self.evaluation.describe(),
            "method": self.method_name,
            "key": self.key,
            "fingerprint": self.fingerprint,
            "learner": name_of(self.estimator),
        }

    def fold_scores(self, number: int) -> np.ndarray:
        """Return the scores of all folds, repeat after repeat; NaN where there is none (yet).

        Parameters
        ----------
        number : int
            That of the metric.
        """
        scored = self.chunk_scores[number, : self.n_scored]
        n_folds = self.evaluation.n_folds
        each = [
            repeat.cut.by_number(scored[repeat.number * n_folds :][:n_folds])
            for repeat in self.evaluation.repeats
        ]
        return each[0] if len(each) == 1 else np.concatenate(each)

    def result(self) -> CVResult:
        """Return the result over the folds scored so far."""
        evaluation = self.evaluation
        names = self.scoring.names
        scores = {name: self._score_of(number) for number, name in enumerate(names)}
        first = scores[self.scoring.name]
        return CVResult(
            test_score=first.test_score,
            mean=first.mean,
            std=first.std,
            std_error=first.std_error,
            half_width=(
                half_width(evaluation, self.scoring)
                if self.method.name == "progressive" and self.is_complete
                else None
            ),
            scores=scores,
            method=self.method_name,
            why=self.method.why,
            n_folds=evaluation.n_folds,
            n_updates=self.n_updates,
            n_updates_saved=max(0, self._n_needed - self.n_updates),
            n_updates_standard=evaluation.n_updates_standard,
            seconds=self.seconds,
            seconds_prepare=self.seconds_prepare,
            diverged_folds=self.diverged_folds,
        )

    def _score_of(self, number: int) -> Score:
        """Return what was found by one metric."""
        metric = self.scoring.metrics[number]
        if isinstance(metric, Pooled):
            done = ~np.isnan(self.pooled_scores[number, :, 0])
            scores, errors = self.pooled_scores[number, done].T
            if len(scores) == 0:  # the run was left before its end
                return Score(scores, np.nan, None, None, metric.direction)
            error = float(np.mean(errors))
            known = None if np.isnan(error) else error
            return Score(scores, mean_and_std(scores)[0], None, known, metric.direction)
        scores = self.fold_scores(number)
        if self.n_scored < len(scores):
            scores = scores[~np.isnan(scores)]
        if len(scores) == 0:  # the run was left before its first fold
            return Score(scores, np.nan, None, None, metric.direction)
        mean, std = mean_and_std(scores)
        return Score(scores, mean, std if len(scores) > 1 else None, None, metric.direction)

    def _score_repeat(self, repeat: Repeat) -> Generator[Node]:
        """Evaluate one repeat; yield its scored parts."""
        own: RepeatRun
        if self._early is not None and repeat.number == 0:
            own, self._early = self._early, None
        else:
            own = self.method.begin(self, repeat)
        self.seconds_prepare += own.seconds_prepare
        if repeat.number == 0:
            self.key, self.fingerprint = own.key, own.fingerprint
        needed_before, done_before = self._n_needed, self.n_updates
        seconds_before = self.seconds
        is_first = True
        began = perf_counter()
        try:
            with closing(own.blocks()) as blocks:
                for part in repeat.parts:
                    for block, n_updates in blocks:
                        self._n_needed += n_updates
                        self.n_updates = done_before + own.n_updates
                        if block.last == part.last:
                            break
                    self._score(repeat.plan, part, own)
                    self.seconds += perf_counter() - began
                    if is_first:
                        self.seconds += own.seconds_before
                        is_first = False
                    yield part
                    began = perf_counter()
        finally:  # what had begun when the run was left is done too
            self.n_updates = done_before + own.n_updates
        began = perf_counter()
        for number, metric in enumerate(self.scoring.metrics):
            if isinstance(metric, Pooled):
                self.pooled_scores[number, repeat.number] = own.pooled(metric)
        self.seconds += perf_counter() - began
        own.keep(self._n_needed - needed_before, self.seconds - seconds_before)

    def _score(self, plan: Plan, part: Node, own: RepeatRun) -> None:
        """Score the folds of a part."""
        for piece in pieces(plan, part):
            self._take(*own.scores(piece))
        self.part_rows = own.row_scores(part) if self.needs_rows else None

    def _take(self, scores: np.ndarray, diverged: np.ndarray) -> None:
        """Take note of the scores of a piece, which then can go before the next piece."""
        n_scored = self.n_scored + len(diverged)
        self.chunk_scores[:, self.n_scored : n_scored] = scores
        self.n_scored = n_scored
        self.diverged_folds += int(np.count_nonzero(diverged))


def _spread(std: float | None, std_error: float | None) -> str:
    """Return the standard error as text where there is one, else the standard deviation."""
    if std_error is not None:
        return f"std_error={std_error:.6g}"
    return "std=None" if std is None else f"std={std:.6g}"


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
