"""Prepared rows as a cache of models keeps them, by the bytes that they take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import SparseRows


@dataclass(frozen=True)
class Made:
    """Prepared rows, and the seconds that it took to make them."""

    rows: PreparedRows
    seconds: float

    @property
    def nbytes(self) -> int:
        """The bytes of the rows, and of the moments of their blocks if they are scaled."""
        X = self.rows.X
        parts = [X]
        if isinstance(X, SparseRows):
            parts = [X.values, X.columns, X.begins, X.dense]
        elif sparse.issparse(X):
            parts = [X.data, X.indices, X.indptr]
        parts += [self.rows.y, self.rows.targets, self.rows.weights, self.rows.score_weights]
        dense = X.dense if isinstance(X, SparseRows) else X
        # Three float64 vectors for each 64 rows, and for each pair of these, and so on.
        of_blocks = dense.size * 3 * 8 * 2 // 64 if isinstance(dense, np.ndarray) else 0
        return of_blocks + sum(part.nbytes for part in parts if part is not None)
