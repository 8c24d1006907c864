"""The steps of a Pipeline before a compiled learner: done once, but for the StandardScalers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from numbers import Real
import re
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv._kernels.scaled import MOST_WIDTH
from optuna_treecv._kernels.scaled import Scaled
from optuna_treecv._kernels.scaled_sparse import MOST_NONZEROS
from optuna_treecv._kernels.scaled_sparse import ScaledSparse
from optuna_treecv._kernels.tree import Kernel
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.linear import LinearEstimator
from optuna_treecv.learners.steps.messages import naming_steps
from optuna_treecv.learners.steps.once import adds_columns
from optuna_treecv.learners.steps.once import keeps_zero_columns
from optuna_treecv.learners.steps.once import why_not_once
from optuna_treecv.learners.steps.running import COMPOSED
from optuna_treecv.learners.steps.running import fewest_known
from optuna_treecv.learners.steps.running import has_running
from optuna_treecv.learners.steps.running import is_running_imputer
from optuna_treecv.learners.steps.running import Moments
from optuna_treecv.learners.steps.running import parts_of
from optuna_treecv.learners.steps.running import PASSED
from optuna_treecv.learners.steps.running import running_columns
from optuna_treecv.learners.steps.running import with_running
from optuna_treecv.learners.steps.running import without_running
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.data import SparseRows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.entries import naming_entries

# Sparse rows are made dense before they are scaled, if they have at most so many columns.
_MOST_DENSE = 512

# In errors about entries.
_COLUMN = re.compile(r"in column (\d+)")


class Split(NamedTuple):
    """A Pipeline, divided into the steps before its learner and a compiled learner.

    Attributes
    ----------
    pipeline : Pipeline
    before : Pipeline
        Not fitted, with a placeholder for each running step (``running.py``).
    last : CompiledEstimator
    prefix : str
        Before the names of the learner's parameters.
    """

    pipeline: Pipeline
    before: Pipeline
    last: CompiledEstimator
    prefix: str


def compiled_part(estimator: Any) -> CompiledEstimator | None:
    """Return an estimator if it is compiled, or else the compiled learner behind such steps."""
    if isinstance(estimator, CompiledEstimator):
        return estimator
    found = split(estimator)
    return found.last if isinstance(found, Split) else None


def split(estimator: Any) -> Split | str:
    """Divide a Pipeline; return why its steps cannot be done before a compiled learner, a clause.

    It is empty if there is no Pipeline, or no compiled learner at its end.
    """
    if type(estimator) is not Pipeline:
        return ""
    *before, (name, last) = estimator.steps
    if not isinstance(last, CompiledEstimator):
        return ""
    if not any(step not in PASSED for _, step in before):
        return ""
    steps = copy(estimator)
    steps.steps, steps.memory = before, None
    why = _why_not(steps, _Behind(last))
    if why:
        return why
    return Split(estimator, without_running(steps), last, f"{name}__")


class _Behind(NamedTuple):
    """What stands behind a step.

    Attributes
    ----------
    learner : CompiledEstimator
    is_last : bool
        Whether the step's output is what the learner gets.
    is_scaler : bool
        Whether a StandardScaler comes next, whose output the learner gets.
    is_zero_safe : bool
        Whether a column that is zero in all training rows has no effect on what stands behind.
    """

    learner: CompiledEstimator
    is_last: bool = True
    is_scaler: bool = False
    is_zero_safe: bool = True


def _why_not(step: Any, behind: _Behind) -> str:
    """Return why a step cannot be done before a compiled learner; empty if it can."""
    if step in (*PASSED, "drop"):
        return ""
    if type(step) is Pipeline:
        for name, part in reversed(step.steps):
            if why := _why_not(part, behind):
                return _of_step(name, part, why)
            if part not in PASSED:
                safe = behind.is_zero_safe and _keeps_zeros(part)
                is_scaler = behind.is_last and type(part) is StandardScaler
                behind = _Behind(behind.learner, False, is_scaler, safe)
        return ""
    if type(step) in (ColumnTransformer, FeatureUnion):
        if step.transformer_weights:
            return f"{_name(step)} has transformer_weights"
        for name, part, *_ in parts_of(step):
            if why := _why_not(part, behind):
                return _of_step(name, part, why)
        return ""
    if type(step) is StandardScaler:
        return _why_not_scaled(step, behind)
    if is_running_imputer(step):
        return _why_not_imputed(step, behind)
    why = why_not_once(step)
    if not why and adds_columns(step):
        if not isinstance(behind.learner, LinearEstimator):
            return f"a category that no training row has would count in {_name(behind.learner)}"
        if not behind.is_zero_safe:
            return "a later step would mix in categories that no training row has"
    return why


def _of_step(name: str, step: Any, why: str) -> str:
    """Return a reason with the name of its step; those of parts name theirs already."""
    if type(step) in COMPOSED:
        return why
    return f"the step {name!r} cannot be done before the folds: {why}"


def _keeps_zeros(step: Any) -> bool:
    if type(step) is Pipeline:
        return all(_keeps_zeros(part) for _, part in step.steps)
    if type(step) in COMPOSED:
        return all(_keeps_zeros(part) for _, part, *_ in parts_of(step))
    return step in (*PASSED, "drop") or type(step) is StandardScaler or keeps_zero_columns(step)


def _why_not_scaled(scaler: StandardScaler, behind: _Behind) -> str:
    if not behind.is_last:
        return "its scales change with the rows seen, and a later step would be done once"
    if behind.learner.settles_on_rows:
        return f"{_name(behind.learner)} derives its step size from the scaled rows"
    return ""


def _why_not_imputed(imputer: SimpleImputer, behind: _Behind) -> str:
    if imputer.add_indicator:
        return "its add_indicator looks at all rows"
    if repr(imputer.missing_values) != "<NA>" and not _is_nan(imputer.missing_values):
        return f"it takes {imputer.missing_values!r} for a missing value, and not NaN"
    if not (behind.is_last or behind.is_scaler):
        return "its means change with the rows seen, and a later step would be done once"
    if behind.learner.settles_on_rows:
        return f"{_name(behind.learner)} derives its step size from the rows"
    return ""


def _is_nan(value: Any) -> bool:
    return isinstance(value, Real) and bool(value != value)


def _name(estimator: Any) -> str:
    return type(estimator).__name__


def _first_step(estimator: Any) -> Any:
    while type(estimator) is Pipeline:
        estimator = next(step for _, step in estimator.steps if step not in PASSED)
    return estimator


class Front:
    """The steps before a compiled learner, fitted on all rows.

    Parameters
    ----------
    found : Split
    X : the rows as given

    Attributes
    ----------
    why_not : str
        Why the learner cannot scale the rows, a clause; empty if it can.
    fewest_known : int or None
        In how few rows a column has values that an imputer fills with a constant.
    """

    def __init__(self, found: Split, X: Any) -> None:
        # Copies, since the caller may change these steps, or fit them to other rows.
        self._given = clone(found.pipeline)
        self._X = X
        # A scaler that comes first takes numbers alone, so a wrong entry can be named.
        self._takes_numbers = type(_first_step(found.pipeline)) is StandardScaler
        with self.naming():
            self._fitted = clone(found.before).fit(X)
            some = self._fitted.transform(take_rows(X, slice(0, 1)))
        n_columns = some.shape[1]
        self.fewest_known = fewest_known(self._fitted)
        self.why_not = ""
        try:
            self._columns = running_columns(self._fitted, n_columns)
        except AttributeError:
            self.why_not = "a part of a FeatureUnion does not name its columns"
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

    def layout_for(self, last: CompiledEstimator) -> RowLayout:
        """Return the layout of the rows that a learner behind these steps needs."""
        if not np.any(self._columns.imputed):
            return last.row_layout
        return replace(last.row_layout, missing=self._columns.imputed.tobytes())

    @contextmanager
    def naming(self) -> Generator[None]:
        """Name the column, as given or else after the steps, that an error is about."""
        entries = naming_entries(self._X) if self._takes_numbers else nullcontext()
        with naming_steps(self._given, self._X), entries:
            try:
                yield
            except ValueError as error:
                message = _COLUMN.sub(self._renamed, str(error))
                if message == str(error) or self._takes_numbers:
                    raise
                raise ValueError(message) from error

    def _renamed(self, found: re.Match[str]) -> str:
        try:
            names = self._fitted.get_feature_names_out()
        except AttributeError:  # not every transformer names its columns
            return f"{found[0]} after the steps of the Pipeline"
        return f"in column {str(names[int(found[1])])!r}"

    def as_given(self, order: np.ndarray) -> Any:
        """Return rows as they were given."""
        return take_rows(self._X, order)

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
        given = copy(self._given)
        given.steps = given.steps[:-1]
        steps = with_running(given, self._fitted, moments)
        whole = copy(self._given)
        whole.steps = [*steps.steps, (self._given.steps[-1][0], last)]
        return whole
