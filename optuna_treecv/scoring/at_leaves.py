"""What is kept at the leaves of a tree, and the fold scores that follow from it."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from typing import Any
from typing import cast

import numpy as np

from optuna_treecv.rows.data import take_rows
from optuna_treecv.scoring.asked import Metric
from optuna_treecv.scoring.asked import response_of
from optuna_treecv.scoring.fold_metrics import fold_metric
from optuna_treecv.scoring.kept import ArrayThenCount
from optuna_treecv.scoring.losses import Loss
from optuna_treecv.scoring.of_rows import scores_of_rows
from optuna_treecv.scoring.of_rows import scores_rows
from optuna_treecv.scoring.pooled import Pooled
from optuna_treecv.scoring.pooled import pooled_score
from optuna_treecv.scoring.pooled import PooledScore
from optuna_treecv.scoring.scorers import score_of
from optuna_treecv.scoring.scorers import Scorer
from optuna_treecv.scoring.spread import FoldScores
from optuna_treecv.scoring.spread import unknown_spreads
from optuna_treecv.scoring.tested_rows import by_loss
from optuna_treecv.scoring.tested_rows import by_metric
from optuna_treecv.scoring.tested_rows import TestedRows
from optuna_treecv.tree.learner import Learner
from optuna_treecv.tree.learner import StandsIn
from optuna_treecv.tree.plan import Node
from optuna_treecv.tree.plan import Plan


class Leaves:
    """Keeps the outputs of each fold's model for the fold's rows, and computes all scores.

    A scorer that needs the fitted estimator itself is called at each leaf instead.

    Parameters
    ----------
    plan : Plan
    learner : Learner
    estimator : estimator
        The learner's.
    metrics : sequence of Loss, Scorer or Pooled
        None of them keeps the outputs alone.
    at_leaf : collection of int
        Which of the metrics need the fitted estimator.
    tested : ndarray of shape (plan.n_rows,) or None
        The prepared row that stands behind each row of the plan; None: the same.

    Attributes
    ----------
    outputs : ArrayThenCount or None
        The outputs for all rows of the plan, (n_rows, n_outputs); None if no score needs them.
    """

    def __init__(
        self,
        plan: Plan,
        learner: Learner,
        estimator: Any = None,
        metrics: Sequence[Metric] = (),
        at_leaf: Collection[int] = (),
        tested: np.ndarray | None = None,
    ) -> None:
        self.outputs: ArrayThenCount | None = None
        if not at_leaf or len(at_leaf) < len(metrics):
            self.outputs = ArrayThenCount((plan.n_rows, learner.n_outputs), learner.dtype)
        self._plan = plan
        self._learner = learner
        self._estimator = estimator
        self._metrics = metrics
        self._at_leaf = at_leaf
        self._tested = tested
        rows = learner.rows
        scorers = {i: metric for i, metric in enumerate(metrics) if isinstance(metric, Scorer)}
        self._fast = {
            i: found
            for i, scorer in scorers.items()
            if i not in at_leaf
            and scorer.is_registered
            and (found := fold_metric(scorer.name, rows.classes)) is not None
        }
        # The scores of scorers that are called for each fold.
        self._fold_scores = {
            i: ArrayThenCount((plan.n_folds,)) for i in scorers if i not in self._fast
        }
        self._classes = rows.classes
        self._targets = self._behind(rows.targets)
        self._weights = self._behind(rows.score_weights)

    def _behind(self, of_rows: np.ndarray | None) -> np.ndarray | None:
        """Return what stands behind the rows of the plan."""
        return of_rows if of_rows is None or self._tested is None else of_rows[self._tested]

    @property
    def needs_models(self) -> bool:
        """Whether a leaf needs more of a model than its outputs."""
        return bool(self._at_leaf)

    def results(self) -> dict[str, ArrayThenCount]:
        """Return, by name, what can be kept. No scorer is kept that its name does not identify."""
        kept = {
            self._metrics[i].name: scores
            for i, scores in self._fold_scores.items()
            if self._metrics[i].is_registered
        }
        return kept if self.outputs is None else kept | {"outputs": self.outputs}

    def to_keep(self) -> dict[str, ArrayThenCount]:
        """Return those results that were not kept yet, and that are there."""
        results = {name: one for name, one in self.results().items() if not one.was_kept}
        if any(one.was_kept for one in self._fold_scores.values()) and not self._needs_outputs:
            results.pop("outputs", None)
        return results

    def suffice(self, names: Collection[str]) -> bool:
        """Return whether all scores follow from these results."""
        return all(
            ("outputs" in names and i not in self._at_leaf)
            or (metric.is_registered and metric.name in names)
            for i, metric in enumerate(self._metrics)
        )

    @property
    def _needs_outputs(self) -> bool:
        return len(self._fold_scores) < len(self._metrics)

    def test_leaf(self, fold: Node, state: Any) -> None:
        """Take note of what a fold's model says of the fold."""
        if self.outputs is not None:
            self._keep_outputs(fold, state, self.outputs.array)
        if self._at_leaf:
            fitted = self._learner.estimator(state)
            for i in self._at_leaf:
                self._fold_scores[i].array[fold.first] = self._ask(i, fold, fitted)

    def _keep_outputs(self, fold: Node, state: Any, outputs: np.ndarray) -> None:
        start, stop = self._plan.rows(fold)
        if self._tested is None:
            self._learner.outputs(state, start, stop, outputs)
            return
        rows = self._tested[start:stop]
        # A learner answers for a range of rows. Memory of other rows is never touched.
        of_all = np.empty(
            (len(self._learner.rows.order), self._learner.n_outputs), self._learner.dtype
        )
        self._learner.outputs(state, int(rows.min()), int(rows.max()) + 1, of_all)
        outputs[start:stop] = of_all[rows]

    def _ask(self, number: int, fold: Node, fitted: Any) -> float:
        """Score a fold with an estimator, which is None if its model is not finite."""
        scorer = self._metrics[number]
        assert isinstance(scorer, Scorer)
        if fitted is None:
            return scorer.if_diverged
        start, stop = self._plan.rows(fold)
        X, y = self._rows(start, stop)
        weights = {} if self._weights is None else {"sample_weight": self._weights[start:stop]}
        return score_of(scorer, fitted, X, y, self._learner.rows.classes, weights)

    def _rows(self, start: int, stop: int) -> tuple[Any, Any]:
        if self._tested is None:
            return self._learner.score_rows(start, stop)
        rows = self._tested[start:stop]
        low = int(rows.min())
        X, y = self._learner.score_rows(low, int(rows.max()) + 1)
        return take_rows(X, rows - low), None if y is None else y[rows - low]

    def scores(self, folds: Node) -> FoldScores:
        """Return the scores of a node's folds."""
        scores = np.empty((len(self._metrics), folds.n_folds))
        diverged = np.zeros(folds.n_folds, bool)
        rows = None if self.outputs is None else self._tested_rows(folds)
        start, stop = self._plan.rows(folds)
        spreads = None if folds.n_folds == stop - start else unknown_spreads(*scores.shape)
        for i, metric in enumerate(self._metrics):
            bad: np.ndarray | None
            spread: np.ndarray | None = None
            if isinstance(metric, Loss):
                assert rows is not None
                scores[i], bad, spread = by_loss(metric, rows)
            elif isinstance(metric, Pooled):
                assert rows is not None
                scores[i], bad = np.nan, rows.diverged()
            elif (found := self._fast.get(i)) is not None:
                assert rows is not None
                method = response_of(metric, self._estimator)
                scores[i], bad, spread = by_metric(found, metric, method, rows, self._estimator)
            else:
                scores[i] = self._called(i, folds)
                bad = scores[i] == metric.if_diverged
            if bad is not None:
                diverged |= bad
            if spread is not None and spreads is not None:
                spreads[i] = spread
        return FoldScores(scores, diverged, spreads)

    def _called(self, number: int, folds: Node) -> np.ndarray:
        """Return the scores of a scorer that is called for each fold."""
        kept = self._fold_scores[number]
        if number not in self._at_leaf and not kept.was_kept:
            assert self.outputs is not None
            answering = cast(StandsIn, self._learner).answering
            for chunk in range(folds.first, folds.last):
                fold = Node(chunk, chunk + 1)
                outputs = self.outputs.array[slice(*self._plan.rows(fold))]
                fitted = answering(outputs) if np.isfinite(outputs).all() else None
                kept.array[chunk] = self._ask(number, fold, fitted)
        return kept.array[folds.first : folds.last]

    def row_scores(self, folds: Node, number: int) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the scores of the rows of a node's folds by a metric, and their weights.

        None if they do not follow from the outputs.
        """
        if not self.has_row_scores(number):
            return None
        metric, classes = self._metrics[number], self._classes
        rows = self._tested_rows(folds)
        rows.begins, weights, rows.weights = None, rows.weights, None
        return scores_of_rows(metric, rows, self._estimator, classes), weights

    def has_row_scores(self, number: int) -> bool:
        """Return whether the scores of rows by a metric follow from the outputs."""
        metric = self._metrics[number]
        follows = isinstance(metric, Loss) or number in self._fast
        return self.outputs is not None and follows and scores_rows(metric, self._classes)

    def pooled(self, metric: Pooled) -> PooledScore:
        """Return a score over all rows, once all of them are tested."""
        rows = self._tested_rows(Node(0, self._plan.n_folds))
        method = response_of(metric, self._estimator)
        return pooled_score(metric, method, rows, self._estimator, self._learner.rows.classes)

    def _tested_rows(self, folds: Node) -> TestedRows:
        assert self.outputs is not None
        start, stop = self._plan.rows(folds)
        outputs = self.outputs.array[start:stop]
        each = folds.n_folds == stop - start
        return TestedRows(
            outputs,
            lambda method: self._learner.respond(outputs, method),
            None if self._targets is None else self._targets[start:stop],
            None if self._weights is None else self._weights[start:stop],
            None if each else self._plan.begins(folds) - start,
        )
