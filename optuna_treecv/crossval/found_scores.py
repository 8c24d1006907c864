"""The scores of a repeat whose folds are all evaluated at once."""

from __future__ import annotations

import numpy as np

from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.crossval.request import Request
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring import FoldScores
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import PooledScore
from optuna_treecv.sharing.exact_results import ExactResult
from optuna_treecv.tree.plan import Node


class FoundScores:
    """What all methods have in common that keep the scores of a repeat as one result."""

    _request: Request
    _repeat: Repeat
    _found: ExactResult | None

    def scores(self, folds: Node) -> FoldScores:
        """Return the scores of folds."""
        found, part = self._found, slice(folds.first, folds.last)
        assert found is not None
        spreads = None if found.spreads is None else found.spreads[:, :, part]
        return FoldScores(found.scores[:, part], found.diverged[part], spreads)

    def pooled(self, metric: Pooled) -> PooledScore:
        """Return a score over all rows."""
        assert self._found is not None
        number = self._request.scoring.metrics.index(metric)
        return PooledScore(*map(float, self._found.pooled[number]))

    def row_scores(self, folds: Node) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the scores of the rows of some folds, and their weights."""
        assert self._found is not None
        if self._found.of_rows is None:
            return None
        cut = self._repeat.cut
        bounds = cut.begins() if isinstance(cut, Folds) else cut.bounds()
        begin, end = bounds[[folds.first, folds.last]] - bounds[0]
        weights = self._request.evaluation.data.score_weights
        if weights is not None:
            weights = weights[self.tested_rows(folds)]
        return self._found.of_rows[begin:end], weights

    def tested_rows(self, folds: Node) -> np.ndarray:
        """Return the rows as given that ``row_scores`` has."""
        return self._repeat.cut.tested_from(folds.first, folds.last)
