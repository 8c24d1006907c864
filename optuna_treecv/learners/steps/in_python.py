"""The steps of a Pipeline before any learner with ``partial_fit``: done once, or trained too."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array

from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.adapter import adapter_layout
from optuna_treecv.learners.seeds import seeded
from optuna_treecv.learners.steps.by_partial_fit import CannotRunError
from optuna_treecv.learners.steps.by_partial_fit import Running
from optuna_treecv.learners.steps.by_partial_fit import Untrained
from optuna_treecv.learners.steps.fitted import FittedSteps
from optuna_treecv.learners.steps.fitted import UNNAMED
from optuna_treecv.learners.steps.running import running_parts
from optuna_treecv.learners.steps.split import Split
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.entries import naming_entries


class PythonFront(FittedSteps):
    """The steps before any learner with ``partial_fit``, fitted on all rows.

    The learner is trained behind a step that holds the running ones, ``Running``.

    Parameters
    ----------
    found : Split
    X : the rows as given
    y : ndarray or None
        The targets as given.
    """

    is_compiled = False

    def __init__(self, found: Split, X: Any, y: np.ndarray | None = None) -> None:
        try:
            super().__init__(found, X, y)
        except CannotRunError as error:
            self.why_not = str(error)
            return
        if not _are_numbers(self._first_row):
            self.why_not = "the rows after its steps are no array of numbers"
            return
        try:
            parts = running_parts(self._fitted, self._first_row.shape[1])
        except AttributeError:
            self.why_not = UNNAMED
            return
        # A ColumnTransformer fits no step that gets no columns.
        self._running = [
            (part, at) for part, at in parts if isinstance(part, Untrained) and at.start < at.stop
        ]

    def transform(self, X: Any) -> Any:
        """Return rows after the steps that are done once."""
        after = self._transform(X)
        if sparse.issparse(after):
            return after
        with naming_entries(after):  # where a table has missing integers, these are objects
            return check_array(after, dtype="numeric", ensure_all_finite=False)

    def layout_for(self, pipeline: Pipeline) -> RowLayout:
        """Return the layout of the rows that the learner behind these steps needs."""
        return adapter_layout(pipeline)

    def learner(
        self,
        pipeline: Pipeline,
        rows: PreparedRows,
        response_methods: tuple[str, ...],
        seed: int,
    ) -> Adapter:
        """Return the learner of a Pipeline with such steps, bound to rows after them."""
        seed %= 2**32
        name, behind = pipeline.steps[-1]
        if self._running:
            parts = [
                (seeded(clone(part.step), seed), at.start, at.stop, part.dtype, part.is_sparse)
                for part, at in self._running
            ]
            behind = Pipeline([(f"before {name}", Running(parts)), (name, behind)])
        return Adapter(behind, rows, response_methods, seed, self)

    def fitted(self, behind: Any) -> Pipeline:
        """Return a fitted Pipeline of these steps and what was trained behind them."""
        trained: dict[Any, Any] = {}
        if self._running:
            (_, running), (_, behind) = behind.steps
            for (placeholder, _), (step, *_) in zip(self._running, running.parts, strict=True):
                trained[placeholder] = placeholder.fitted(step)

        def put_back(placeholder: Any, columns: slice) -> Any:
            return trained.get(placeholder, placeholder.step)

        return self._with(behind, put_back)


def _are_numbers(row: Any) -> bool:
    """Return whether a row is one of an array or a sparse matrix, and holds numbers."""
    if sparse.issparse(row):
        return True
    if not isinstance(row, np.ndarray):
        return False
    try:
        check_array(row, dtype="numeric", ensure_all_finite=False)
    except (TypeError, ValueError):
        return False
    return True
