"""The cross-validation of one estimator: finds kept results or computes them, scores the folds."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from time import perf_counter
from typing import Any

import numpy as np

from optuna_treecv.crossval.choice import settle
from optuna_treecv.crossval.early import EarlyRepeat
from optuna_treecv.crossval.epochs import epochs_of
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.fold_average import check_has_averages
from optuna_treecv.crossval.fold_average import FoldAverage
from optuna_treecv.crossval.intervals import Scores
from optuna_treecv.crossval.methods import Instead
from optuna_treecv.crossval.methods import Method
from optuna_treecv.crossval.methods import RepeatRun
from optuna_treecv.crossval.misleading import why_not_finite
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Request
from optuna_treecv.crossval.result import CVResult
from optuna_treecv.crossval.result import mean_and_std
from optuna_treecv.crossval.result import Score
from optuna_treecv.crossval.row_losses import RowLosses
from optuna_treecv.crossval.subtrees import pieces
from optuna_treecv.learners.from_estimator import as_estimator
from optuna_treecv.learners.from_estimator import described
from optuna_treecv.scoring import FoldScores
from optuna_treecv.scoring import in_full
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import range_of
from optuna_treecv.scoring import spread_of
from optuna_treecv.scoring import SPREAD_SIZE
from optuna_treecv.scoring import unknown_spreads
from optuna_treecv.sharing.stored_cache import StoredModelCache
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan


class Run(Request):
    """One estimator's way through an evaluation.

    Iterate over it to the end, or leave it early; then ask for ``result``. A second iteration
    begins anew. Iterating yields the number of each reported part, 0, 1, ..., once its folds are
    scored. A part is a subtree at depth min(5, depth of the tree). With repeats parts are larger,
    so that there are at most 32 in all, or one per repeat.

    Parameters
    ----------
    evaluation : Evaluation
    estimator : estimator
    n_epochs : int or None
        The epochs of this estimator; None: those of the evaluation.

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

    def __init__(
        self, evaluation: Evaluation, estimator: Any, n_epochs: int | None = None
    ) -> None:
        estimator = as_estimator(estimator)
        self.method: Method
        self.method, scoring = settle(evaluation, estimator, n_epochs=n_epochs)
        super().__init__(evaluation, estimator, scoring)
        self.n_epochs = epochs_of(evaluation, estimator, self.method, n_epochs=n_epochs)
        if self.method.is_one_pass:
            given = evaluation.n_epochs if n_epochs is None else n_epochs
            evaluation.unused.warn(estimator, n_epochs=given)
        # Where each fold is a single row, its score is that of the row.
        self.needs_rows = evaluation.row_losses and not evaluation.tests_single_rows
        self.key = self.fingerprint = ""
        self._early: EarlyRepeat | None = None
        self._begin(0)

    def _begin(self, n_scores: int) -> None:
        """Make room for this many scores, and forget what an earlier iteration has found."""
        n_metrics = len(self.scoring.metrics)
        self.chunk_scores = np.empty((n_metrics, n_scores))
        self._spreads: np.ndarray | None = None
        if not self.evaluation.tests_single_rows:
            self._spreads = unknown_spreads(n_metrics, n_scores)
        self._row_losses = RowLosses(self.evaluation) if self.evaluation.row_losses else None
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
        repeat = self.repeats[0]
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
        self._begin(self.n_to_score)
        part = 0
        try:
            for repeat in self.repeats:
                with closing(self._score_repeat(repeat)) as parts:
                    for _ in parts:
                        yield part
                        part += 1
            self._warn_if_not_finite()
        finally:
            if isinstance(self.cache, StoredModelCache):
                self.cache.end(self.comes_again)

    def _warn_if_not_finite(self) -> None:
        scores = self.chunk_scores[self.scoring.optimized[0]]
        if not self.is_pooled and not np.isfinite(scores).all():
            mean = mean_and_std(scores)[0]
            self.evaluation.warn_once("finite", lambda: why_not_finite(mean, self.diverged_folds))

    @property
    def method_name(self) -> str:
        """What was done: "holdout" if that was asked for, else the name of the method."""
        asked = self.evaluation.asked_method
        return asked if asked == "holdout" else self.method.name

    def average_models(self) -> None:
        """Ask for the average of the models of all folds; models are not shared then."""
        check_has_averages(self.method, self.estimator)
        self.average, self.cache = FoldAverage(self.estimator), None

    def ask_for_rows(self) -> bool:
        """Ask for the scores of single rows; return whether the metric has them."""
        self.needs_rows = self.evaluation.scores_rows(self.scoring.first, self.estimator)
        return self.needs_rows

    @property
    def is_pooled(self) -> bool:
        """Whether the first optimised score is pooled, so that folds have none."""
        return isinstance(self.scoring.first, Pooled)

    @property
    def score_range(self) -> tuple[float, float] | None:
        """The bounds of the first optimised score, where they are known."""
        return None if isinstance(self.scoring.first, Pooled) else range_of(self.scoring.first)

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

    def complete(self) -> None:
        """Evaluate all folds."""
        for _ in self:
            pass

    def finish(self) -> CVResult:
        """Evaluate all folds, and return the result."""
        self.complete()
        return self.result()

    def describe(self) -> dict[str, Any]:
        """Return what was evaluated, in words and numbers."""
        return {
            **self.evaluation.describe(),
            "method": self.method_name,
            "key": self.key,
            "fingerprint": self.fingerprint,
            "learner": described(self.estimator),
        }

    def fold_scores(self, number: int) -> np.ndarray:
        """Return the scores of all folds, repeat after repeat; NaN where there is none (yet).

        Parameters
        ----------
        number : int
            That of the metric.
        """
        return self._by_number(self.chunk_scores[number, : self.n_scored])

    def _by_number(self, scored: np.ndarray) -> np.ndarray:
        """Return numbers of the first chunks by fold, repeat after repeat."""
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
            scores=scores,
            row_losses=(
                self._row_losses.finish()
                if self._row_losses is not None and self.is_complete
                else None
            ),
            method=self.method_name,
            why=self.method.why,
            n_folds=evaluation.n_folds,
            n_updates=self.n_updates,
            n_updates_saved=max(0, self._n_needed - self.n_updates),
            n_updates_standard=self.n_epochs * evaluation.n_updates_standard,
            seconds=self.seconds,
            seconds_prepare=self.seconds_prepare,
            diverged_folds=self.diverged_folds,
            _name=self.scoring.name,
            _kfold_estimator=(
                self.average.finish() if self.average is not None and self.is_complete else None
            ),
        )

    def _score_of(self, number: int) -> Score:
        """Return what was found by one metric."""
        metric = self.scoring.metrics[number]
        if isinstance(metric, Pooled):
            done = ~np.isnan(self.pooled_scores[number, :, 0])
            scores, errors = self.pooled_scores[number, done].T
            if len(scores) == 0:  # the run was left before its end
                return Score(scores, np.nan, None, metric.direction)
            error = float(np.mean(errors))
            known = None if np.isnan(error) else error
            mean = mean_and_std(scores)[0]
            return Score(scores, mean, None, metric.direction, None, True, known)
        scores = self.fold_scores(number)
        if self.n_scored < len(scores):
            scores = scores[~np.isnan(scores)]
        if len(scores) == 0:  # the run was left before its first fold
            return Score(scores, np.nan, None, metric.direction)
        mean, std = mean_and_std(scores)
        std = std if len(scores) > 1 else None
        if not self.is_complete:
            return Score(scores, mean, std, metric.direction)
        return Score(scores, mean, std, metric.direction, self._scores_behind(number, scores))

    def _scores_behind(self, number: int, scores: np.ndarray) -> Scores:
        """Return the scores of folds by a metric, and what is known of the rows behind them."""
        metric = self.scoring.metrics[number]
        assert not isinstance(metric, Pooled)
        tested = self.evaluation.tested(self.method_name)
        spreads = None
        if self._spreads is not None:
            spreads = self._spreads[number]
            if any(cut.numbers is not None for cut in tested.cuts):
                spreads = np.array([self._by_number(of_chunks) for of_chunks in spreads])
            spreads = spreads.reshape(SPREAD_SIZE, -1, tested.n_folds)
        by_fold = scores.reshape(-1, tested.n_folds)
        return Scores(self.scoring.names[number], metric, by_fold, spreads, tested)

    def _score_repeat(self, repeat: Repeat) -> Generator[Node]:
        """Evaluate one repeat; yield its scored parts."""
        own: RepeatRun
        if self._early is not None and repeat.number == 0:
            own, self._early = self._early, None
        else:
            own = self._begun(repeat)
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

    def _begun(self, repeat: Repeat) -> RepeatRun:
        try:
            return self.method.begin(self, repeat)
        except Instead as found:
            self.method = found.method
            return found.own

    def _score(self, plan: Plan, part: Node, own: RepeatRun) -> None:
        """Score the folds of a part."""
        of_rows = []
        for piece in pieces(plan, part):
            self._take(own.scores(piece))
            if self.needs_rows:
                of_rows.append(own.row_scores(piece))
        self.part_rows = _joined(of_rows)
        if self._row_losses is not None:
            chunks = slice(self.n_scored - part.n_folds, self.n_scored)
            losses = self.chunk_scores[self.scoring.optimized[0], chunks]
            if not self.evaluation.tests_single_rows:
                assert self.part_rows is not None  # refused otherwise
                losses = self.part_rows[0]
                self._fill_spreads(plan, part, *self.part_rows)
            self._row_losses.add(own.tested_rows(part), losses)

    def _fill_spreads(
        self, plan: Plan, part: Node, scores: np.ndarray, weights: np.ndarray | None
    ) -> None:
        """Compute the first metric's spreads from the scores of rows where they are not known."""
        number = self.scoring.optimized[0]
        chunks = slice(self.n_scored - part.n_folds, self.n_scored)
        if self._spreads is None or not np.any(np.isnan(self._spreads[number, :, chunks])):
            return
        begins = plan.begins(part) - plan.begin(part.first)
        means = self.chunk_scores[number, chunks]
        self._spreads[number, :, chunks] = spread_of(scores, means, weights, begins)

    def _take(self, found: FoldScores) -> None:
        """Take note of the scores of a piece, which then can go before the next piece."""
        part = slice(self.n_scored, self.n_scored + len(found.diverged))
        self.chunk_scores[:, part] = found.scores
        if self._spreads is not None:
            self._spreads[:, :, part] = in_full(found.spreads, found.scores.shape)
        self.n_scored = part.stop
        self.diverged_folds += int(np.count_nonzero(found.diverged))


def _joined(
    pieces: list[tuple[np.ndarray, np.ndarray | None] | None],
) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Return the scores of rows of all pieces, with their weights; None if one has none."""
    known = [piece for piece in pieces if piece is not None]
    if not known or len(known) < len(pieces):
        return None
    if len(known) == 1:
        return known[0]
    weights = [one for _, one in known if one is not None]
    scores = np.concatenate([one for one, _ in known])
    return scores, np.concatenate(weights) if weights else None
