"""Running steps that are trained by ``partial_fit`` on the rows of each phase.

In the steps that are done once, ``Untrained`` stands in the place of each and lets the rows pass.
``Running`` holds the steps themselves, and trains them on their columns of the rows after that.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextlib import nullcontext
from copy import copy
from typing import Any
from typing import Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.base import TransformerMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import validate_data

from optuna_treecv.learners.steps.once import ROWWISE
from optuna_treecv.learners.steps.running import copy_names
from optuna_treecv.learners.steps.running import counting_placeholder
from optuna_treecv.learners.steps.running import Placeholder
from optuna_treecv.rows.checks import check_columns
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.entries import naming_entries


class CannotRunError(Exception):
    """Raised by the fit of a step's placeholder, with the reason why the step cannot run."""


def runs_in_python(step: Any) -> bool:
    """Return whether a step is one that ``partial_fit`` trains."""
    return hasattr(step, "partial_fit") and type(step) not in ROWWISE


def python_placeholder(step: Any) -> Any:
    """Return the placeholder of a step that runs in Python, or the step itself."""
    return Untrained(step) if runs_in_python(step) else counting_placeholder(step)


class Untrained(Placeholder):
    """Stands in the place of a step with ``partial_fit`` and lets the rows pass, as numbers.

    Parameters
    ----------
    step : transformer

    Attributes
    ----------
    dtype : str
        The type of the rows.
    is_sparse : bool
        Whether they are sparse.
    """

    def __init__(self, step: Any) -> None:
        self.step = step

    def fit(self, X: Any, y: Any = None) -> Self:
        """Try the step on the rows, since it must take an array and keep its columns."""
        with self._as_reason(X):
            rows = self._checked(X, reset=True)
            tried = clone(self.step).partial_fit(rows, *(() if y is None else (y,)))
            after = tried.transform(take_rows(rows, slice(0, 1)).copy())
        name = type(self.step).__name__
        if hasattr(after, "iloc"):
            raise CannotRunError(f"{name} returns a data frame")
        if sparse.issparse(after) != sparse.issparse(rows):
            raise CannotRunError(f"{name} makes dense rows of sparse ones, or the reverse")
        if np.shape(after) != (1, rows.shape[1]):
            raise CannotRunError(f"{name} changes the number of columns")
        self.dtype, self.is_sparse = rows.dtype.str, sparse.issparse(rows)
        # The next step must not get integers where this one returns fractions.
        self._returned = np.result_type(rows.dtype, getattr(after, "dtype", rows.dtype))
        return self

    @property
    def _is_from_sklearn(self) -> bool:
        return type(self.step).__module__.startswith("sklearn.")

    @contextmanager
    def _as_reason(self, X: Any) -> Generator[None]:
        """Raise errors as reasons; those of scikit-learn's steps about wrong entries as they are.

        Steps of others may take strings, or need the names of the columns.
        """
        is_frame = hasattr(X, "columns")
        try:
            with naming_entries(X) if is_frame and self._is_from_sklearn else nullcontext():
                yield
        except Exception as error:  # of code that is not ours
            if self._is_from_sklearn and isinstance(error, ValueError):
                raise
            name = type(self.step).__name__
            raise CannotRunError(f"{name} raises an error on an array: {error}") from error

    def transform(self, X: Any) -> Any:
        """Return the rows, in a type that holds what the step makes of them too."""
        return self._checked(X, reset=False).astype(self._returned, copy=False)

    def _checked(self, X: Any, reset: bool) -> Any:
        if self._is_from_sklearn:
            check_columns(X)
        return validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype="numeric",
            ensure_all_finite=False,  # the step and the learner say what is wrong
            reset=reset,
        )

    def fitted(self, trained: Any) -> Any:
        """Return the step as it was trained, with the names of the columns."""
        step = copy(trained)
        copy_names(self, step)
        return step


class Running(TransformerMixin, BaseEstimator):
    """Trains steps on their columns of the rows, each on what the steps before it return.

    Parameters
    ----------
    parts : list of tuple (step, start, stop, dtype, is_sparse)
        The steps in their order, which are trained in place; the first and the last column of each
        (exclusive); and the form in which it gets them, as in ``Untrained``.
    """

    def __init__(self, parts: list[tuple[Any, int, int, str, bool]]) -> None:
        self.parts = parts

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train the steps, which have seen no rows."""
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Train each step on further rows."""
        labels = () if y is None else (y,)
        for number, (step, start, stop, dtype, is_sparse) in enumerate(self.parts, 1):
            rows = _columns_of(X, start, stop, dtype, is_sparse)
            step.partial_fit(rows, *labels)
            behind = self.parts[number:]
            if any(first < stop and start < end for _, first, end, *_ in behind):
                X = _with_columns(X, start, stop, step.transform(rows))
        self._is_fitted = True
        return self

    def transform(self, X: Any) -> Any:
        """Return the rows as the steps transform them."""
        for step, start, stop, dtype, is_sparse in self.parts:
            rows = _columns_of(X, start, stop, dtype, is_sparse)
            X = _with_columns(X, start, stop, step.transform(rows))
        return X

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_is_fitted")


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
