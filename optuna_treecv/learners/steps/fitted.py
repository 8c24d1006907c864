"""The steps of a Pipeline before its learner, fitted on all rows: done once, or running.

In the steps that are done once, a placeholder stands for each running step and lets the rows pass.
A compiled learner scales the rows and fills in missing values itself, by the moments of the rows
that a model has seen (``_kernels/moments.pxd``). In Python, ``Running`` trains the steps by
``partial_fit`` on the rows of each phase. Afterwards the steps are put back as a model has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextlib import nullcontext
from copy import copy
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any
from typing import Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.base import OneToOneFeatureMixin
from sklearn.base import TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _num_samples
from sklearn.utils.validation import validate_data

from optuna_treecv._kernels.scaled import MOST_NUMBERS
from optuna_treecv._kernels.scaled import Scaled
from optuna_treecv._kernels.tree import Kernel
from optuna_treecv.learners.adapter import Adapter
from optuna_treecv.learners.adapter import adapter_layout
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.exact.moments import is_rounding
from optuna_treecv.learners.seeds import seeded
from optuna_treecv.learners.steps.decisions import adds_columns
from optuna_treecv.learners.steps.decisions import COMPILED
from optuna_treecv.learners.steps.decisions import ignores_zero_columns
from optuna_treecv.learners.steps.decisions import is_running_imputer
from optuna_treecv.learners.steps.decisions import PYTHON
from optuna_treecv.learners.steps.decisions import Split
from optuna_treecv.learners.steps.parts import COMPOSED
from optuna_treecv.learners.steps.parts import leaves_of
from optuna_treecv.learners.steps.parts import naming_step
from optuna_treecv.learners.steps.parts import parts_of
from optuna_treecv.learners.steps.parts import path_to
from optuna_treecv.learners.steps.parts import rows_after
from optuna_treecv.learners.steps.parts import unshared
from optuna_treecv.rows.checks import check_columns
from optuna_treecv.rows.checks import naming_entries
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.data import SparseRows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds

# Sparse rows are made dense before they are scaled, if they have at most so many columns.
_MOST_DENSE = 96


class NotAheadError(Exception):
    """Raised where steps cannot be done ahead of the folds, with the reason, a clause."""


class Placeholder(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Stands in the place of a running step and lets the rows pass, as numbers.

    Parameters
    ----------
    step : transformer
        A StandardScaler, or one that runs in Python.
    in_python : bool
        Whether it runs in Python.

    Attributes
    ----------
    constant : int or None
        What takes the place of the rows while it is found out which columns they become.
    dtype : str
        The type of the rows, if it runs in Python.
    is_sparse : bool
        Whether they are sparse.
    """

    constant: int | None = None

    def __init__(self, step: Any, in_python: bool = False) -> None:
        self.step = step
        self.in_python = in_python
        self._is_from_sklearn = type(step).__module__.startswith("sklearn.")

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the rows as the step does; one that runs in Python is tried on them."""
        if not self.in_python:
            if sparse.issparse(X) and self.step.with_mean:
                clone(self.step).fit(X)  # raises its own error
            self._checked(X, reset=True)
            return self
        # Steps of others may take strings, or need the names of the columns.
        is_named = hasattr(X, "columns") and self._is_from_sklearn
        try:
            with naming_entries(X) if is_named else nullcontext():
                self._try(self._checked(X, reset=True), y)
        except NotAheadError:
            raise
        except Exception as error:  # of code that is not ours
            if self._is_from_sklearn and isinstance(error, ValueError):
                raise
            name = type(self.step).__name__
            raise NotAheadError(f"{name} raises an error on an array: {error}") from error
        return self

    def _try(self, rows: Any, y: Any) -> None:
        """Try the step on the rows, since it must take an array and keep its columns."""
        tried = clone(self.step).partial_fit(rows, *(() if y is None else (y,)))
        # A copy, since a step with copy=False writes into the rows that it gets.
        after = tried.transform(take_rows(rows, slice(0, 1)).copy())
        name = type(self.step).__name__
        if hasattr(after, "iloc"):
            raise NotAheadError(f"{name} returns a data frame")
        if sparse.issparse(after) != sparse.issparse(rows):
            raise NotAheadError(f"{name} makes dense rows of sparse ones, or the reverse")
        if np.shape(after) != (1, rows.shape[1]):
            raise NotAheadError(f"{name} changes the number of columns")
        self.dtype, self.is_sparse = rows.dtype.str, sparse.issparse(rows)
        # The next step must not get integers where this one returns fractions.
        self._returned = np.result_type(rows.dtype, getattr(after, "dtype", rows.dtype))

    def transform(self, X: Any) -> Any:
        """Return the rows, or ``constant`` in their place."""
        rows = self._passed(X)
        return rows if self.constant is None else np.full(rows.shape, self.constant)

    def _passed(self, X: Any) -> Any:
        """Return the rows, in a type that holds what the step makes of them too."""
        rows = self._checked(X, reset=False)
        return rows.astype(self._returned, copy=False) if self.in_python else rows

    def _checked(self, X: Any, reset: bool) -> Any:
        if self._is_from_sklearn:
            check_columns(X)
        takes_sparse = self.in_python or not self.step.with_mean
        return validate_data(
            self,
            X,
            accept_sparse="csr" if takes_sparse else False,
            dtype="numeric" if self.in_python else [np.float64, np.float32],
            ensure_all_finite=False,  # the step and the learner say what is wrong
            reset=reset,
        )

    def put_back(self, trained: Any) -> Any:
        """Return the step as a model has it.

        Parameters
        ----------
        trained : transformer or tuple (n_rows, moments)
            The step as it was trained, if it runs in Python. Otherwise the number of rows that the
            model has seen and the moments of their columns, (3, n_columns): the means, the sums of
            squared deviations, and the means of the values that are not missing, or 0.
        """
        fitted = copy(trained) if self.in_python else clone(self.step)
        _copy_names(self, fitted)
        if self.in_python:
            return fitted
        n_rows, (mean, M2, _) = trained
        fitted.n_samples_seen_ = n_rows
        fitted.mean_ = mean.copy() if fitted.with_mean or fitted.with_std else None
        fitted.var_ = fitted.scale_ = None
        if fitted.with_std:
            fitted.var_ = M2 / n_rows
            are_constant = is_rounding(fitted.var_, n_rows, mean)
            fitted.scale_ = np.where(are_constant, 1.0, np.sqrt(fitted.var_))
        return fitted


def _copy_names(fitted: Any, other: Any) -> None:
    """Set what a fitted transformer knows of the columns it has got."""
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(fitted, name):
            setattr(other, name, getattr(fitted, name))


class ImputerPlaceholder(Placeholder):
    """Stands in the place of a SimpleImputer.

    That of an imputer by means lets the missing values pass. An imputer by a constant fills them
    in. Both leave out a column that has no value in the rows that they are fitted on, so they can
    stand before all folds only where each fold has a value of each column: they count the values.

    Parameters
    ----------
    step : SimpleImputer
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the imputer, whose means are not used, and see which columns it keeps."""
        self.like = clone(self.step).fit(X)
        _copy_names(self.like, self)
        self._kept = np.ones(self.n_features_in_, bool)
        if not self.step.keep_empty_features:
            missing = MissingIndicator(
                missing_values=self.step.missing_values, features="all", sparse=False
            )
            n_known = (~missing.fit_transform(X)).sum(axis=0)
            self._kept = n_known > 0
            # In how few rows a column has values; those without any are left out in all folds.
            self.fewest_known = int(n_known[self._kept].min(initial=_num_samples(X)))
        return self

    def _passed(self, X: Any) -> Any:
        """Return the rows, as an array."""
        if not is_running_imputer(self.step):
            return self.like.transform(X)
        check_columns(X)
        X = validate_data(
            self, X, dtype=[np.float64, np.float32], ensure_all_finite=False, reset=False
        )
        return X if self._kept.all() else X[:, self._kept]

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns that are kept."""
        names: np.ndarray = self.like.get_feature_names_out(input_features)
        return names

    def put_back(self, trained: tuple[int, np.ndarray]) -> SimpleImputer:
        """Return the imputer with the means of the values known in the rows of a model."""
        imputer = deepcopy(self.like)
        imputer.statistics_[self._kept] = trained[1][2]
        return imputer


def with_placeholders(path: str, step: Any, kinds: Mapping[str, str]) -> Any:
    """Return a step, not fitted, with a placeholder for each running step.

    Parameters
    ----------
    path : str
    step : transformer
    kinds : mapping
        How the parts of the step are treated, by their paths.
    """
    if type(step) in COMPOSED:
        copied = copy(step)
        parts = [
            (name, with_placeholders(path_to(path, name), part, kinds), *rest)
            for name, part, *rest in parts_of(step)
        ]
        if type(step) is ColumnTransformer:
            *parts, (_, copied.remainder) = parts
        setattr(copied, COMPOSED[type(step)], parts)
        return copied
    kind = kinds.get(path)
    if type(step) is SimpleImputer and (kind == COMPILED or not step.keep_empty_features):
        return ImputerPlaceholder(step)
    return Placeholder(step, kind == PYTHON) if kind in (COMPILED, PYTHON) else step


def without_placeholders(step: Any, fitted: Any, trained: Mapping[Placeholder, Any]) -> Any:
    """Return a fitted step with its running steps as they are for some model.

    Parameters
    ----------
    step : transformer
        As given.
    fitted : transformer
        From ``with_placeholders``, fitted.
    trained : mapping
        The running steps by their placeholders. A step that gets no columns has none.
    """
    if isinstance(fitted, Placeholder):
        return trained.get(fitted, getattr(fitted, "like", fitted.step))
    if not all_placeholders(fitted):
        return fitted
    whole = copy(fitted)
    # The parameters of the fitted step hold placeholders, as does the remainder below.
    vars(whole).update(clone(step).get_params(deep=False))
    originals = {name: part for name, part, *_ in parts_of(step)}
    parts = [
        (name, without_placeholders(originals.get(name, part), part, trained), *rest)
        for name, part, *rest in parts_of(fitted, is_fitted=True)
    ]
    if type(step) is ColumnTransformer:
        whole.transformers_ = parts
        whole._remainder = ("remainder", whole.remainder, *fitted._remainder[2:])
    else:
        setattr(whole, COMPOSED[type(step)], parts)
    return whole


def all_placeholders(fitted: Any) -> list[Placeholder]:
    """Return the placeholders among the fitted parts of a step."""
    leaves = leaves_of("", fitted, is_fitted=True)
    return [leaf for _, leaf in leaves if isinstance(leaf, Placeholder)]


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

    They run in the learner's kernel (``around``), or else in a step before the learner
    (``Running``).

    Parameters
    ----------
    parts : Split
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

    Raises
    ------
    NotAheadError
        If the learner cannot stand behind these steps.
    """

    def __init__(self, parts: Split, X: Any, y: np.ndarray | None = None) -> None:
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
        # An integer, since the rows may be of an integer type.
        unused = next(number for number in count() if not np.any(_dense(some) == number))
        self._running = [
            (part, at)
            for part in all_placeholders(self._fitted)
            if (at := self._written_by(part, unused)).start < at.stop
        ]
        self._makes_dense = self._lies_beside = False
        self.settings: dict[str, Any] = {}
        if self.is_compiled:
            self._lay_out(some, takes_sparse)

    def _written_by(self, part: Placeholder, unused: int) -> slice:
        """Return which of the columns after all steps a running step writes; none if it does not.

        They hold a number that is unused otherwise where the placeholder returns it, since no step
        that is done once stands behind one that runs.
        """
        if isinstance(part, ImputerPlaceholder) and not is_running_imputer(part.step):
            return slice(0, 0)
        part.constant = unused
        after = self._transform(take_rows(self.X, slice(0, 1)))
        part.constant = None
        columns = np.flatnonzero(_dense(after)[0] == unused).tolist()
        return slice(columns[0], columns[-1] + 1) if columns else slice(0, 0)

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
        self.settings = {"running steps": tuple(self._acts)}
        n_numbers, (rows, numbers) = n_columns, ("rows", "columns")
        if sparse.issparse(some):
            self._lies_beside = bool(self._is_beside.any())
            if self._lies_beside and n_columns <= _MOST_DENSE:
                self._makes_dense, self._lies_beside = takes_sparse, False
                return
            # A sparse row has the numbers stored in it and those of all columns beside it.
            n_numbers = int(np.diff(self._transform(self.X).indptr).max() + self._is_beside.sum())
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
        """Return why some folds would get sparse rows and others not, a clause; "" if not.

        A ColumnTransformer decides it by the density of what its branches return for the rows that
        it is fitted on; done once, by all rows. Learners such as ``SGDClassifier`` treat sparse
        rows in another way, but kernels give the same for both.
        """
        stacks: list[tuple[ColumnTransformer, list[tuple[Any, Any]]]] = []

        def note(path: str, step: Any, X: Any, branches: list[tuple[Any, Any]]) -> Any:
            if type(step) is ColumnTransformer and any(sparse.issparse(X) for _, X in branches):
                stacks.append((step, branches))
            return step.transform(unshared(step, X))

        if self.is_compiled:
            return ""
        # One row tells whether any branch is sparse, before all rows are transformed.
        rows_after("", self._fitted, take_rows(self.X, slice(0, 1)), note)
        if stacks:
            stacks.clear()
            rows_after("", self._fitted, self.X, note)
        for step, branches in stacks:
            if not all(_is_sure(cut, step, branches) for cut in cuts):
                return (
                    "a ColumnTransformer returns sparse rows to some training sets and dense rows "
                    f"to others (sparse_threshold={step.sparse_threshold})"
                )
        return ""

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
        seed %= 2**32  # scikit-learn takes no larger ones
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
            A state of the kernel.
        """
        trained: list[Any] = []
        if self._running and not self.is_compiled:
            (_, running), (_, last) = last.steps
            trained = [step for step, *_ in running.parts]
        elif self._running:
            assert isinstance(kernel, Scaled)
            assert state is not None
            moments = np.zeros((3, self._acts.shape[1]))
            n_rows = kernel.moments(state, *moments)
            trained = [(n_rows, moments[:, at]) for _, at in self._running]
        put_back = {
            part: part.put_back(one) for (part, _), one in zip(self._running, trained, strict=True)
        }
        whole = copy(self._pipeline)
        *before, (name, _) = whole.steps
        steps = without_placeholders(Pipeline(before), self._fitted, put_back).steps
        whole.steps = [*steps, (name, last)]
        return whole


def _dense(rows: Any) -> np.ndarray:
    """Return rows, an array of them or a data frame, as a dense array."""
    return rows.toarray() if sparse.issparse(rows) else np.asarray(rows)


def _is_sure(cut: Cut, fitted: ColumnTransformer, outputs: list[tuple[Any, Any]]) -> bool:
    """Return whether each training set has the rows in the form that all rows have."""
    n_rows = outputs[0][1].shape[0]
    n_numbers, n_others = np.zeros(n_rows), 0  # of each row; of columns that all folds have
    encoded = [sparse.csc_array((n_rows, 0))]  # the columns of values that encoders find
    for part, after in outputs:
        is_sparse = sparse.issparse(after)
        # As in scikit-learn, the zeros of dense rows count as numbers.
        n_numbers += np.diff(after.tocsr().indptr) if is_sparse else after.shape[1]
        if is_sparse and any(adds_columns(leaf) for _, leaf in leaves_of("", part)):
            encoded.append(sparse.csc_array(after))
        else:
            n_others += after.shape[1]
    columns = sparse.hstack(encoded, format="csc")
    n_trained, n_numbers, n_present = _of_training_sets(cut, n_numbers, columns)
    # A column that no row of a training set has may be left out of its rows.
    for n_columns in (n_others + n_present, n_others + columns.shape[1]):
        density = n_numbers / np.maximum(n_trained * n_columns, 1)
        if np.any((density < fitted.sparse_threshold) != fitted.sparse_output_):
            return False
    return True


def _of_training_sets(
    cut: Cut, n_numbers: np.ndarray, columns: sparse.csc_array
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each training set's number of rows, of numbers, and of such columns that it has."""
    if isinstance(cut, Folds):
        begins = cut.begins()
        rows = cut.order[begins[0] :]
        tested = sparse.csr_array((np.ones(len(rows)), rows, begins - begins[0]))
        tested.resize(cut.n_folds, cut.n_rows)
        n_of_column = np.diff(columns.indptr)
        ones = sparse.csc_array(
            (np.ones(columns.nnz), columns.indices, columns.indptr), columns.shape
        )
        counts = tested @ ones
        # A training set lacks a column if its chunk has all rows of it.
        counts.data = counts.data == n_of_column[counts.indices]
        n_present = np.count_nonzero(n_of_column) - counts.sum(axis=1)
        return cut.n_rows - np.diff(begins), n_numbers.sum() - tested @ n_numbers, n_present
    by_row = columns.tocsr()
    trains = [cut.split(chunk).train_rows() for chunk in range(cut.n_folds)]
    return (
        np.array([len(rows) for rows in trains]),
        np.array([n_numbers[rows].sum() for rows in trains]),
        np.array([len(np.unique(by_row[rows].indices)) for rows in trains]),
    )
