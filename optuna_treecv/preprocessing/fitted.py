"""The steps of a Pipeline before its learner, fitted on all rows: done once, or running.

In the steps that are done once, placeholders stand for the running steps (``placeholders.py``).
A compiled learner scales the rows and fills in missing values itself, by the moments of the rows
that a model has seen (``_kernels/moments.pxd``). In Python, ``Running`` trains the steps by
``partial_fit`` on the rows of each phase.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from typing import Any
from typing import Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array
from sklearn.utils import check_consistent_length

from optuna_treecv.estimators.base import layout_for
from optuna_treecv.estimators.traits import seeded
from optuna_treecv.preprocessing.decisions import DividedPipeline
from optuna_treecv.preprocessing.decisions import ignores_zero_columns
from optuna_treecv.preprocessing.forms import why_form_varies
from optuna_treecv.preprocessing.kinds import is_running_imputer
from optuna_treecv.preprocessing.parts import naming_step
from optuna_treecv.preprocessing.parts import unshared
from optuna_treecv.preprocessing.placeholders import all_placeholders
from optuna_treecv.preprocessing.placeholders import columns_of_placeholders
from optuna_treecv.preprocessing.placeholders import ImputerPlaceholder
from optuna_treecv.preprocessing.placeholders import NotAheadError
from optuna_treecv.preprocessing.placeholders import with_placeholders
from optuna_treecv.preprocessing.placeholders import without_placeholders
from optuna_treecv.rows.checks import naming_entries
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import Cut

# The most numbers of a row that ``engines/treecv/kernels/scaled.pyx`` takes, half of its ``ROOM``.
MOST_NUMBERS = 2**11

# Sparse rows are made dense before they are scaled, if they have at most so many columns.
_MOST_DENSE = 96


class Running(BaseEstimator):
    """Trains steps on their columns of the rows, each on what the steps before it return.

    Parameters
    ----------
    parts : list of tuple (step, start, stop, dtype, is_sparse)
        The steps in their order, which are trained in place; the first and the last column of each
        (exclusive); and the form in which it gets them, as in ``Placeholder``.
    """

    def __init__(self, parts: list[tuple[Any, int, int, str, bool]]) -> None:
        self.parts = parts

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Train each step on further rows."""
        labels = () if y is None else (y,)
        for number, (step, start, stop, dtype, is_sparse) in enumerate(self.parts, 1):
            rows = _columns_of(X, start, stop, dtype, is_sparse)
            step.partial_fit(rows, *labels)
            # Rows are transformed only for a later step that reads some of these columns.
            behind = self.parts[number:]
            if any(first < stop and start < end for _, first, end, *_ in behind):
                X = _with_columns(X, start, stop, step.transform(rows))
        return self

    def transform(self, X: Any) -> Any:
        """Return the rows as the steps transform them."""
        for step, start, stop, dtype, is_sparse in self.parts:
            rows = _columns_of(X, start, stop, dtype, is_sparse)
            X = _with_columns(X, start, stop, step.transform(rows))
        return X


def _columns_of(X: Any, start: int, stop: int, dtype: str, is_sparse: bool) -> Any:
    """Return columns of rows, in the form in which a step gets them from the steps before."""
    columns = X if (start, stop) == (0, X.shape[1]) else X[:, start:stop]
    if is_sparse and not sparse.issparse(X):
        columns = sparse.csr_matrix(columns)
    elif sparse.issparse(X) and not is_sparse:
        columns = columns.toarray()
    return columns.astype(dtype, copy=False)


def _with_columns(X: Any, start: int, stop: int, columns: Any) -> Any:
    """Return rows with others of their columns, as sparse or dense as they were."""
    check_consistent_length(X, columns)
    if columns.shape[1] != stop - start:
        raise ValueError(
            "estimator must have running steps that keep the number of columns, got one that "
            f"makes {columns.shape[1]} of {stop - start}."
        )
    if not sparse.issparse(X):
        columns = columns.toarray() if sparse.issparse(columns) else columns
        return np.hstack([X[:, :start], columns, X[:, stop:]])
    columns = type(X)(columns)
    return sparse.hstack([X[:, :start], columns, X[:, stop:]], format="csr")


class FittedSteps:
    """Steps before a learner, fitted on all rows, with placeholders for those that run.

    They run in the learner's kernel, or else in a step before the learner (``Running``).

    Parameters
    ----------
    parts : DividedPipeline
    X : the rows as given
    y : ndarray or None
        The targets as given.

    Attributes
    ----------
    X : the rows as given
    is_compiled : bool
        Whether they run in the learner's kernel.
    settings : dict
        What states depend on besides the learner and the rows after the steps.
    acts : ndarray of shape (3, n_columns)
        Whether the kernel subtracts the mean of a column, divides it by its scale, and puts its
        mean in the place of missing values.
    is_beside : ndarray of shape (n_columns,)
        The columns that a kernel reads beside sparse rows.
    has_running : bool
        Whether any step runs.

    Raises
    ------
    NotAheadError
        If the learner cannot stand behind these steps.
    """

    def __init__(self, parts: DividedPipeline, X: Any, y: np.ndarray | None = None) -> None:
        self.is_compiled = parts.is_compiled
        # Copies, since the caller may change these steps, or fit them to other rows.
        self._pipeline = clone(parts.pipeline)
        self.X, self._y = X, y
        with self.naming():
            before = with_placeholders("", parts.before, parts.kinds)
            self._fitted = clone(before).fit(unshared(before, X), y)
            some = self._transform(take_rows(X, slice(0, 1)))
        if not self.is_compiled and not sparse.issparse(some):
            try:
                are_numbers = isinstance(some, np.ndarray)  # a data frame has names of columns
                check_array(some, dtype="numeric", ensure_all_finite=False)
            except (TypeError, ValueError):
                are_numbers = False
            if not are_numbers:
                raise NotAheadError("the rows after its steps are no array of numbers")
        takes_sparse = parts.last.row_layout.sparse if self.is_compiled else True
        if sparse.issparse(some) and not (sparse.issparse(X) or takes_sparse):
            raise ValueError(
                f"estimator must have steps that give dense rows to {type(parts.last).__name__}, "
                "got sparse ones; sparse_output=False of a OneHotEncoder, or sparse_threshold=0 "
                "of a ColumnTransformer, would be right."
            )
        self._running = [
            (part, slice(columns[0], columns[-1] + 1))
            for part, columns in columns_of_placeholders(self._fitted, X, some)
            if not isinstance(part, ImputerPlaceholder) or is_running_imputer(part.step)
        ]
        self.has_running = bool(self._running)
        self._makes_dense = self._lies_beside = False
        self.settings: dict[str, Any] = {}
        if self.is_compiled:
            self._lay_out(some, takes_sparse)

    def _lay_out(self, some: Any, takes_sparse: bool) -> None:
        """Find out what a kernel does to which columns, and how the rows lie for it."""
        n_columns = some.shape[1]
        self.acts = np.zeros((3, n_columns), np.uint8)
        for part, at in self._running:
            if is_running_imputer(part.step):
                self.acts[2, at] = 1
            else:
                self.acts[:2, at] = [[part.step.with_mean], [part.step.with_std]]
        self.is_beside = (self.acts[0] | self.acts[2]).view(bool)
        if not self._running:
            return
        self.settings = {"running steps": tuple(self.acts)}
        n_numbers, (rows, numbers) = n_columns, ("rows", "columns")
        if sparse.issparse(some):
            self._lies_beside = bool(self.is_beside.any())
            if self._lies_beside and n_columns <= _MOST_DENSE:
                self._makes_dense, self._lies_beside = takes_sparse, False
                return
            # A sparse row has the numbers stored in it and those of all columns beside it.
            n_numbers = int(np.diff(self._transform(self.X).indptr).max() + self.is_beside.sum())
            rows, numbers = "sparse rows", "numbers"
        if n_numbers >= MOST_NUMBERS:
            raise NotAheadError(
                f"compiled scaling takes {rows} of at most {MOST_NUMBERS - 1} {numbers}, got "
                f"{n_numbers}"
            )

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
        return naming_step(self._pipeline, self.X, self._y)

    def fewest_known(self, learner: Any) -> int | None:
        """Return in how few rows a column that is filled has values; None: it does not matter.

        A linear learner gives no weight to a column whose mean is not known, as if it was left
        out.
        """
        known = (
            part.fewest_known
            for part in all_placeholders(self._fitted)
            if hasattr(part, "fewest_known")
            and not (is_running_imputer(part.step) and ignores_zero_columns(learner))
        )
        return min(known, default=None)

    def why_form_varies(self, cuts: Iterable[Cut]) -> str:
        """Return as the function does; kernels give the same for sparse and dense rows."""
        return "" if self.is_compiled else why_form_varies(self._fitted, self.X, cuts)

    def layout_for(self, pipeline: Pipeline) -> RowLayout:
        """Return the layout of the rows that the learner behind these steps needs."""
        if not self.is_compiled:
            return layout_for(pipeline)
        layout: RowLayout = pipeline.steps[-1][1].row_layout
        if np.any(self.acts[2]):
            layout = replace(layout, missing=self.acts[2].tobytes())
        return replace(layout, beside=self.is_beside.tobytes()) if self._lies_beside else layout

    def running(self, name: str, last: Any, seed: int) -> Any:
        """Return a learner with this name behind the steps that run with it in Python."""
        if not self._running:
            return last
        parts = [
            (seeded(clone(part.step), seed), at.start, at.stop, part.dtype, part.is_sparse)
            for part, at in self._running
        ]
        return Pipeline([(f"before {name}", Running(parts)), (name, last)])

    def fitted(self, last: Any, moments: tuple[int, np.ndarray] | None = None) -> Pipeline:
        """Return a fitted Pipeline of these steps and a fitted learner.

        Parameters
        ----------
        last : estimator
            Fitted. If its steps run in Python, these stand before it.
        moments : (int, ndarray of shape (3, n_columns)) or None
            If they run in its kernel, the number of rows and the moments of the columns.
        """
        trained: list[Any] = []
        if self._running and not self.is_compiled:
            (_, running), (_, last) = last.steps
            trained = [step for step, *_ in running.parts]
        elif self._running:
            assert moments is not None
            n_rows, of_columns = moments
            trained = [(n_rows, of_columns[:, at]) for _, at in self._running]
        put_back = {
            part: part.put_back(one) for (part, _), one in zip(self._running, trained, strict=True)
        }
        whole = copy(self._pipeline)
        *before, (name, _) = whole.steps
        steps = without_placeholders(Pipeline(before), self._fitted, put_back).steps
        whole.steps = [*steps, (name, last)]
        return whole
