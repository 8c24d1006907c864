"""The scores of one estimator: what is known of its folds, its rows and all rows together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from optuna_treecv.crossval.engine import Repeat
from optuna_treecv.crossval.engine import TestedFolds
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import in_full
from optuna_treecv.scoring.scores import pooled_score
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import scores_of_rows
from optuna_treecv.scoring.scores import spread_of
from optuna_treecv.scoring.scores import SPREAD_SIZE
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.tree.plan import Node

if TYPE_CHECKING:
    from optuna_treecv.crossval.job import Job

# The most rows of several folds that are scored at once, so that scoring takes little memory.
_ROWS_PER_PIECE = 2**16


class Scorebook:
    """Turns tested folds into scores, and holds these.

    Parameters
    ----------
    job : Job
        Its scoring is known. The book does not refer to it.

    Attributes
    ----------
    scores : ndarray of shape (n_metrics, n_repeats * n_folds)
        The scores of the first ``n_scored`` chunks, in the order in which they lie along the tree;
        NaN for pooled ones.
    spreads : ndarray of shape (n_metrics, 3, n_repeats * n_folds) or None
        See ``FoldScores``; None where each fold is a single row.
    pooled : ndarray of shape (n_metrics, n_repeats, 2)
        The pooled scores of the repeats that are done, with their standard errors; NaN for others.
    n_scored, n_diverged : int
        The number of chunks that are scored, and of those that have diverged.
    part_rows : (ndarray, ndarray or None) or None
        The scores of the rows that were added since ``begin_part``, and their weights; None if
        they are not known, or not asked for.
    responses : list of dict of str to ndarray
        Of each repeat that is done, see ``TestedFolds``.
    """

    def __init__(self, job: Job) -> None:
        task, repeats = job.task, job.task.repeats
        self._estimator = job.estimator
        self._classes = job.classes
        self._scoring = job.scoring
        self._needs_rows = job.needs_rows
        self._score_weights = task.data.score_weights
        n_metrics, n_folds = len(job.scoring.metrics), repeats[0].cut.n_folds
        n_scores = len(repeats) * n_folds
        self.scores = np.empty((n_metrics, n_scores))
        self.spreads: np.ndarray | None = None
        self._tests_single_rows = task.tests_single_rows
        if not self._tests_single_rows:
            self.spreads = np.full((n_metrics, SPREAD_SIZE, n_scores), np.nan)
        self.pooled = np.full((n_metrics, len(repeats), 2), np.nan)
        self.n_scored = self.n_diverged = 0
        # Of each row as given: the sum of its losses, and their number where it is tested often.
        self._losses = self._n_tests = None
        if task.settings.row_losses:
            cut = repeats[0].cut
            self._losses = task.data.room.empty((cut.n_rows,), np.float32)
            self._losses[:] = np.nan
            if len(repeats) > 1 or not isinstance(cut, Folds):
                self._losses[:] = 0
                self._n_tests = np.zeros(cut.n_rows, np.int32)
        self._part: list[tuple[np.ndarray, np.ndarray | None]] = []
        self.responses: list[Mapping[str, np.ndarray]] = []

    def begin_part(self) -> None:
        """Forget the scores of rows so far, but for those that are kept."""
        self._part = []

    @property
    def part_rows(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        if len(self._part) < 2:
            return self._part[0] if self._part else None
        weights = [weights for _, weights in self._part if weights is not None]
        scores = np.concatenate([scores for scores, _ in self._part])
        return scores, np.concatenate(weights) if weights else None

    def add(self, repeat: Repeat, tested: TestedFolds) -> None:
        """Score tested folds; the last ones of a repeat bring its pooled scores."""
        begin, of_rows = self.n_scored, []
        folds, plan = tested.folds, repeat.plan
        size = max(1, _ROWS_PER_PIECE * plan.n_folds // plan.n_rows)
        for start in range(folds.first, folds.last, size):
            piece = Node(start, min(start + size, folds.last))
            rows = self._add_piece(repeat, tested, piece)
            if rows is not None:
                of_rows.append(rows)
        self._part += of_rows
        if self._losses is not None:
            losses = np.concatenate([scores for scores, _ in of_rows] or [np.empty(0)])
            if self._tests_single_rows:  # the score of a fold is that of its row
                losses = self.scores[self._scoring.optimized[0], begin : self.n_scored]
            numbers = (tested.rows or repeat.cut.tested_from)(*tested.folds)
            if self._n_tests is None:
                self._losses[numbers] = losses
            else:
                np.add.at(self._losses, numbers, losses.astype(np.float32))
                np.add.at(self._n_tests, numbers, 1)
        if tested.folds.last == repeat.cut.n_folds:
            pooled = tested.pooled
            if pooled is None and tested.tested is not None:
                pooled = self.pooled_of(tested.tested(Node(0, repeat.cut.n_folds)))
            if pooled is not None:
                self.pooled[:, repeat.number] = pooled
            self.responses.append(tested.responses)

    def _add_piece(
        self, repeat: Repeat, tested: TestedFolds, piece: Node
    ) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Score a piece; return the scores of its rows and their weights if they are known."""
        scores, rows = tested.scores, None
        if tested.tested is not None and (scores is None or self._needs_rows):
            rows = tested.tested(piece)
        if scores is not None:
            scores = scores.part(piece.first, piece.n_folds)
        else:
            assert rows is not None
            called = None if tested.called is None else tested.called(piece)
            scores = self.scores_of(rows, called)
        chunks = slice(self.n_scored, self.n_scored + piece.n_folds)
        self.scores[:, chunks] = scores.scores
        if self.spreads is not None:
            self.spreads[:, :, chunks] = in_full(scores.spreads, scores.scores.shape)
        self.n_scored = chunks.stop
        self.n_diverged += int(np.count_nonzero(scores.diverged))
        if not self._needs_rows:
            return None
        plan = repeat.plan
        if tested.row_scores is not None:
            begin, end = (plan.begin(at) - plan.begin(0) for at in piece)
            of_rows, weights = tested.row_scores[begin:end], self._score_weights
            if weights is not None:
                weights = weights[repeat.cut.tested_from(*piece)]
        elif rows is not None:
            of_rows, weights = self.row_scores_of(rows), rows.weights
        else:
            return None
        first = self._scoring.optimized[0]
        spreads = None if self.spreads is None else self.spreads[first, :, chunks]
        if self._losses is not None and spreads is not None and np.any(np.isnan(spreads)):
            begins = plan.begins(piece) - plan.begin(piece.first)
            spreads[:] = spread_of(of_rows, self.scores[first, chunks], weights, begins)
        return of_rows, weights

    def scores_of(
        self, rows: TestedRows, called: Mapping[int, np.ndarray] | None = None
    ) -> FoldScores:
        """Return the scores of folds; ``called`` has those that do not follow from outputs."""
        metrics = self._scoring.metrics
        return scores_of_folds(metrics, rows, self._estimator, self._classes, called)

    def row_scores_of(self, rows: TestedRows) -> np.ndarray:
        """Return the scores of rows by the first optimised metric, (n_rows,) of float64."""
        return scores_of_rows(self._scoring.first, rows, self._estimator, self._classes)

    def pooled_of(self, rows: TestedRows) -> np.ndarray:
        """Return the pooled scores of all tested rows of a repeat, as ``pooled`` has them."""
        scores = np.full((len(self.scores), 2), np.nan)
        for number, metric in enumerate(self._scoring.metrics):
            if isinstance(metric, Pooled):
                scores[number] = pooled_score(metric, rows, self._estimator, self._classes)
        return scores

    def row_losses(self) -> np.ndarray | None:
        """Return the mean score of each row, float32, if these are kept; NaN if never tested.

        They take 4 bytes per row, and 4 more where rows are tested several times.
        """
        if self._losses is None or self._n_tests is None:
            return self._losses
        with np.errstate(invalid="ignore"):
            return self._losses / self._n_tests.astype(np.float32)
