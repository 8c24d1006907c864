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
from optuna_treecv._kernels.scaled_sparse import MOST_NONZEROS
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
_MOST_DENSE = 512


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
        n_columns = some.shape[1]
        try:
            self._columns = running_columns(self._fitted, n_columns)
        except AttributeError:
            self.why_not = UNNAMED
            return
        self._runs = has_running(found.pipeline)
        self._makes_dense = False
        if not self._runs:
            return
        if not sparse.issparse(some):
            self._check_at_most(n_columns, MOST_WIDTH - 1, "rows")
        elif np.any(self._columns.centred) or np.any(self._columns.imputed):
            self._makes_dense = found.last.row_layout.sparse
            self._check_at_most(n_columns, _MOST_DENSE, "sparse rows that it centres or fills in")
        else:
            most = int(np.diff(self._fitted.transform(X).indptr).max())
            self._check_at_most(most, MOST_NONZEROS - 1, "sparse rows", "nonzeros")

    def _check_at_most(self, n: int, most: int, rows: str, of: str = "columns") -> None:
        if n > most:
            self.why_not = f"compiled scaling takes {rows} of at most {most} {of}, got {n}"

    def transform(self, X: Any) -> Any:
        """Return rows after the steps, unscaled."""
        after = self._fitted.transform(X)
        return after.toarray() if self._makes_dense else after

    def layout_for(self, pipeline: Pipeline) -> RowLayout:
        """Return the layout of the rows that the learner behind these steps needs."""
        layout: RowLayout = pipeline.steps[-1][1].row_layout
        if not np.any(self._columns.imputed):
            return layout
        return replace(layout, missing=self._columns.imputed.tobytes())

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
        if isinstance(rows.X, SparseRows):
            return ScaledSparse(kernel, self._columns.scaled)
        return Scaled(kernel, self._columns.centred, self._columns.scaled, rows.blocks)

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
