"""The steps of a Pipeline before its learner, fitted on all rows: done once, or running."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array

from optuna_treecv._kernels.scaled import MOST_NUMBERS
from optuna_treecv._kernels.scaled import Scaled
from optuna_treecv._kernels.tree import Kernel
from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.adapter import adapter_layout
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.seeds import seeded
from optuna_treecv.learners.steps.decisions import ignores_zero_columns
from optuna_treecv.learners.steps.decisions import is_running_imputer
from optuna_treecv.learners.steps.errors import naming_step
from optuna_treecv.learners.steps.parts import unshared
from optuna_treecv.learners.steps.placeholders import all_placeholders
from optuna_treecv.learners.steps.placeholders import NotAheadError
from optuna_treecv.learners.steps.placeholders import Running
from optuna_treecv.learners.steps.placeholders import running_in
from optuna_treecv.learners.steps.placeholders import with_placeholders
from optuna_treecv.learners.steps.placeholders import without_placeholders
from optuna_treecv.learners.steps.split import Split
from optuna_treecv.learners.steps.stacked import why_form_varies
from optuna_treecv.rows.checks import naming_entries
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.data import SparseRows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import Cut

# Sparse rows are made dense before they are scaled, if they have at most so many columns.
_MOST_DENSE = 96


class FittedSteps:
    """Steps before a learner, fitted on all rows, with placeholders for those that run.

    They run in the learner's kernel (``around``), or else in a step before the learner
    (``Running``).

    Parameters
    ----------
    found : Split
    X : the rows as given
    y : ndarray or None
        The targets as given.

    Attributes
    ----------
    is_compiled : bool
        Whether they run in the learner's kernel.

    Raises
    ------
    NotAheadError
        If the learner cannot stand behind these steps.
    """

    def __init__(self, found: Split, X: Any, y: np.ndarray | None = None) -> None:
        self.is_compiled = found.is_compiled
        # Copies, since the caller may change these steps, or fit them to other rows.
        self._given = clone(found.pipeline)
        self._X, self._y = X, y
        with self.naming():
            before = with_placeholders("", found.before, found.kinds)
            self._fitted = clone(before).fit(unshared(before, X), y)
            some = self._transform(take_rows(X, slice(0, 1)))
        if not self.is_compiled and not _are_numbers(some):
            raise NotAheadError("the rows after its steps are no array of numbers")
        takes_sparse = found.last.row_layout.sparse if self.is_compiled else True
        if sparse.issparse(some) and not (sparse.issparse(X) or takes_sparse):
            raise ValueError(
                f"estimator must have steps that give dense rows to {type(found.last).__name__}, "
                "got sparse ones; sparse_output=False of a OneHotEncoder, or sparse_threshold=0 "
                "of a ColumnTransformer, would be right."
            )
        self._running = running_in(self._fitted, some.shape[1])
        self._makes_dense = self._lies_beside = False
        if self.is_compiled:
            self._lay_out(some, takes_sparse)

    def _lay_out(self, some: Any, takes_sparse: bool) -> None:
        """Find out what a kernel does to which columns, and how the rows lie for it."""
        n_columns = some.shape[1]
        #: Whether the mean of a column is subtracted, whether it is divided by its scale, and
        #: whether its mean takes the place of missing values.
        self._acts = np.zeros((3, n_columns), np.uint8)
        for part, at in self._running:
            if is_running_imputer(part.step):
                self._acts[2, at] = 1
            else:
                self._acts[:2, at] = [[part.step.with_mean], [part.step.with_std]]
        self._is_beside = (self._acts[0] | self._acts[2]).view(bool)
        if not self._running:
            return
        if not sparse.issparse(some):
            _check_at_most(n_columns, MOST_NUMBERS - 1, "rows", "columns")
        elif self._is_beside.any() and n_columns <= _MOST_DENSE:
            self._makes_dense = takes_sparse
        else:
            most = int(np.diff(self._transform(self._X).indptr).max() + self._is_beside.sum())
            _check_at_most(most, MOST_NUMBERS - 1, "sparse rows", "numbers")
            self._lies_beside = bool(self._is_beside.any())

    def _transform(self, X: Any) -> Any:
        """Return rows after the steps that are done once."""
        return self._fitted.transform(unshared(self._fitted, X))

    def transform(self, X: Any) -> Any:
        """Return rows after the steps that are done once, as they are prepared."""
        after = self._transform(X)
        if self.is_compiled:
            return after.toarray() if self._makes_dense else after
        if sparse.issparse(after):
            return after
        with naming_entries(after):  # where a table has missing integers, these are objects
            return check_array(after, dtype="numeric", ensure_all_finite=False)

    def naming(self) -> AbstractContextManager[None]:
        """Name the step, or the column after the steps, that an error is about."""
        return naming_step(self._given, self._X, self._y)

    def fewest_known(self, learner: Any) -> int | None:
        """Return in how few rows a column that is filled has values; None: it does not matter.

        A linear learner gives no weight to a column whose mean is not known, as if it was left
        out.
        """
        found = [
            part.fewest_known
            for part in all_placeholders(self._fitted)
            if hasattr(part, "fewest_known")
            and not (is_running_imputer(part.step) and ignores_zero_columns(learner))
        ]
        return min(found, default=None)

    def why_form_varies(self, cuts: Iterable[Cut]) -> str:
        """Return why some folds would get sparse rows and others not, a clause; "" if not.

        Kernels give the same for sparse and dense rows.
        """
        return "" if self.is_compiled else why_form_varies(self._fitted, self._X, cuts)

    def as_given(self, order: np.ndarray) -> Any:
        """Return rows as they were given."""
        return take_rows(self._X, order)

    def layout_for(self, pipeline: Pipeline) -> RowLayout:
        """Return the layout of the rows that the learner behind these steps needs."""
        if not self.is_compiled:
            return adapter_layout(pipeline)
        layout: RowLayout = pipeline.steps[-1][1].row_layout
        if np.any(self._acts[2]):
            layout = replace(layout, missing=self._acts[2].tobytes())
        return replace(layout, beside=self._is_beside.tobytes()) if self._lies_beside else layout

    def learner(
        self,
        pipeline: Pipeline,
        rows: PreparedRows,
        response_methods: tuple[str, ...],
        seed: int,
    ) -> CompiledLearner | Adapter:
        """Return the learner of a Pipeline with such steps, bound to rows after them."""
        name, last = pipeline.steps[-1]
        if self.is_compiled:
            learner: CompiledLearner = last.make_learner(rows, seed, self)
            return learner
        seed %= 2**32
        if self._running:
            parts = [
                (seeded(clone(part.step), seed), at.start, at.stop, part.dtype, part.is_sparse)
                for part, at in self._running
            ]
            last = Pipeline([(f"before {name}", Running(parts)), (name, last)])
        return Adapter(last, rows, response_methods, seed, self)

    def around(self, kernel: Kernel, rows: PreparedRows) -> Kernel:
        """Return a kernel over rows that sees them scaled, if there is a scaler."""
        if not self._running:
            return kernel
        flags = self._acts[0], self._acts[1]
        if not isinstance(rows.X, SparseRows):
            return Scaled(kernel, *flags, rows.blocks)
        if rows.X.dense is None:
            return Scaled(kernel, *flags)
        return Scaled(kernel, *flags, rows.blocks, np.flatnonzero(self._is_beside))

    def settings(self) -> dict[str, Any]:
        """Return what states depend on besides the learner and the rows after the steps."""
        return {"running steps": tuple(self._acts)} if self._running else {}

    def fitted(
        self, last: Any, kernel: Kernel | None = None, state: np.ndarray | None = None
    ) -> Pipeline:
        """Return a fitted Pipeline of these steps and a fitted learner.

        Parameters
        ----------
        last : estimator
            Fitted. If its steps run in Python, these stand before it.
        kernel : Kernel or None
            From ``around``, for a compiled learner.
        state : ndarray or None
            A state of the kernel; None for an average of models, which has none.
        """
        trained: list[Any] = []
        if self._running and not self.is_compiled:
            (_, running), (_, last) = last.steps
            trained = [step for step, *_ in running.parts]
        elif self._running:
            n_rows, moments = 0, np.zeros((3, self._acts.shape[1]))
            if isinstance(kernel, Scaled):
                assert state is not None
                n_rows = kernel.moments(state, *moments)
            trained = [(n_rows, moments[:, at]) for _, at in self._running]
        put_back = {
            part: part.put_back(one) for (part, _), one in zip(self._running, trained, strict=True)
        }
        given = copy(self._given)
        given.steps = given.steps[:-1]
        whole = copy(self._given)
        steps = without_placeholders(given, self._fitted, put_back).steps
        whole.steps = [*steps, (self._given.steps[-1][0], last)]
        return whole


def _check_at_most(n: int, most: int, rows: str, of: str) -> None:
    if n > most:
        raise NotAheadError(f"compiled scaling takes {rows} of at most {most} {of}, got {n}")


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
