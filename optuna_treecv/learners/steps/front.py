"""The steps of a Pipeline before a compiled learner: done once, or running in its kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from typing import cast

import numpy as np
from scipy import sparse
from sklearn.pipeline import Pipeline

from optuna_treecv._kernels.scaled import MOST_WIDTH
from optuna_treecv._kernels.scaled import Scaled
from optuna_treecv._kernels.scaled_sparse import MOST_NUMBERS
from optuna_treecv._kernels.scaled_sparse import ScaledSparse
from optuna_treecv._kernels.tree import Kernel
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.steps.fitted import FittedSteps
from optuna_treecv.learners.steps.fitted import UNNAMED
from optuna_treecv.learners.steps.running import has_running
from optuna_treecv.learners.steps.running import InKernel
from optuna_treecv.learners.steps.running import Moments
from optuna_treecv.learners.steps.running import Placeholder
from optuna_treecv.learners.steps.running import running_columns
from optuna_treecv.learners.steps.split import Split
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.data import SparseRows

# Sparse rows are made dense before they are scaled, if they have at most so many columns.
_MOST_DENSE = 96


class Front(FittedSteps):
    """The steps before a compiled learner, fitted on all rows.

    Parameters
    ----------
    found : Split
    X : the rows as given
    y : ndarray or None
        The targets as given.
    """

    is_compiled = True

    def __init__(self, found: Split, X: Any, y: np.ndarray | None = None) -> None:
        super().__init__(found, X, y)
        some = self._first_row
        if sparse.issparse(some) and not (sparse.issparse(X) or found.last.row_layout.sparse):
            raise ValueError(
                f"estimator must have steps that give dense rows to {type(found.last).__name__}, "
                "got sparse ones; sparse_output=False of a OneHotEncoder, or sparse_threshold=0 "
                "of a ColumnTransformer, would be right."
            )
        n_columns = some.shape[1]
        try:
            self._columns = running_columns(self._fitted, n_columns)
        except AttributeError:
            self.why_not = UNNAMED
            return
        self._runs = has_running(found.pipeline)
        self._is_beside = (self._columns.centred | self._columns.imputed).view(bool)
        self._makes_dense = self._lies_beside = False
        if not self._runs:
            return
        if not sparse.issparse(some):
            self._check_at_most(n_columns, MOST_WIDTH - 1, "rows")
        elif self._is_beside.any() and n_columns <= _MOST_DENSE:
            self._makes_dense = found.last.row_layout.sparse
        else:
            most = int(np.diff(self._transform(X).indptr).max() + self._is_beside.sum())
            self._check_at_most(most, MOST_NUMBERS - 1, "sparse rows", "numbers")
            self._lies_beside = bool(self._is_beside.any())

    def _check_at_most(self, n: int, most: int, rows: str, of: str = "columns") -> None:
        if n > most:
            self.why_not = f"compiled scaling takes {rows} of at most {most} {of}, got {n}"

    def transform(self, X: Any) -> Any:
        """Return rows after the steps, unscaled."""
        after = self._transform(X)
        return after.toarray() if self._makes_dense else after

    def layout_for(self, pipeline: Pipeline) -> RowLayout:
        """Return the layout of the rows that the learner behind these steps needs."""
        layout: RowLayout = pipeline.steps[-1][1].row_layout
        if np.any(self._columns.imputed):
            layout = replace(layout, missing=self._columns.imputed.tobytes())
        if self._lies_beside:
            layout = replace(layout, beside=self._is_beside.tobytes())
        return layout

    def learner(
        self,
        pipeline: Pipeline,
        rows: PreparedRows,
        response_methods: tuple[str, ...],
        seed: int,
    ) -> CompiledLearner:
        """Return the learner of a Pipeline with such steps, bound to rows after them."""
        last: CompiledEstimator = pipeline.steps[-1][1]
        return last.make_learner(rows, seed, self)

    def around(self, kernel: Kernel, rows: PreparedRows) -> Kernel:
        """Return a kernel over rows that sees them scaled, if there is a scaler."""
        if not self._runs:
            return kernel
        flags = self._columns.centred, self._columns.scaled
        if not isinstance(rows.X, SparseRows):
            return Scaled(kernel, *flags, rows.blocks)
        if rows.X.dense is None:
            return ScaledSparse(kernel, *flags)
        return ScaledSparse(kernel, *flags, np.flatnonzero(self._is_beside), rows.blocks)

    def settings(self) -> dict[str, Any]:
        """Return what states depend on besides the learner and the rows after the steps."""
        return {"running steps": tuple(self._columns)} if self._runs else {}

    def fitted(
        self, last: CompiledEstimator, kernel: Kernel, state: np.ndarray | None
    ) -> Pipeline:
        """Return a fitted Pipeline of these steps and a fitted learner.

        Parameters
        ----------
        last : CompiledEstimator
            Fitted.
        kernel : Kernel
            From ``around``.
        state : ndarray or None
            The learner's state; None for an average of models, which has none.
        """
        n_columns = len(self._columns.centred)
        moments = Moments(0, *np.zeros((3, n_columns)))
        if isinstance(kernel, Scaled | ScaledSparse):
            assert state is not None
            n_rows = kernel.moments(state, *moments[1:])
            moments = Moments(n_rows, *moments[1:])

        def put_back(placeholder: Placeholder, columns: slice) -> Any:
            return cast(InKernel, placeholder).fitted(moments.of(columns))

        return self._with(last, put_back)
