"""Placeholders of the steps that run with the models, and what runs them in Python.

In the steps that are done once, a placeholder stands for each running step and lets the rows pass.
A compiled learner scales the rows and fills in missing values itself, by the moments of the rows
that a model has seen (``_kernels/moments.pxd``). In Python, ``Running`` trains the steps by
``partial_fit`` on the rows of each phase. Afterwards the steps are put back as a model has them.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from contextlib import nullcontext
from copy import copy
from copy import deepcopy
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
from sklearn.utils import check_consistent_length
from sklearn.utils import Tags
from sklearn.utils.validation import _num_samples
from sklearn.utils.validation import validate_data

from optuna_treecv.learners.exact.moments import is_rounding
from optuna_treecv.learners.steps.decisions import COMPILED
from optuna_treecv.learners.steps.decisions import is_running_imputer
from optuna_treecv.learners.steps.decisions import PYTHON
from optuna_treecv.learners.steps.parts import COMPOSED
from optuna_treecv.learners.steps.parts import fitted_parts
from optuna_treecv.learners.steps.parts import parts_of
from optuna_treecv.learners.steps.parts import PASSED
from optuna_treecv.rows.checks import check_columns
from optuna_treecv.rows.checks import naming_entries
from optuna_treecv.rows.data import take_rows


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
    dtype : str
        The type of the rows, if it runs in Python.
    is_sparse : bool
        Whether they are sparse.
    """

    keeps_columns = True  # whether it has a column of output for each column of input

    def __init__(self, step: Any, in_python: bool = False) -> None:
        self.step = step
        self.in_python = in_python

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the rows as the step does; one that runs in Python is tried on them."""
        if self.in_python:
            with self._as_reason(X):
                self._try(self._checked(X, reset=True), y)
        else:
            if sparse.issparse(X) and self.step.with_mean:
                clone(self.step).fit(X)  # raises its own error
            self._checked(X, reset=True)
        return self

    def _try(self, rows: Any, y: Any) -> None:
        """Try the step on the rows, since it must take an array and keep its columns."""
        tried = clone(self.step).partial_fit(rows, *(() if y is None else (y,)))
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

    @contextmanager
    def _as_reason(self, X: Any) -> Generator[None]:
        """Raise errors as reasons; those of scikit-learn's steps about wrong entries as they are.

        Steps of others may take strings, or need the names of the columns.
        """
        entries = naming_entries(X) if hasattr(X, "columns") and self._is_from_sklearn else None
        try:
            with entries or nullcontext():
                yield
        except NotAheadError:
            raise
        except Exception as error:  # of code that is not ours
            if self._is_from_sklearn and isinstance(error, ValueError):
                raise
            name = type(self.step).__name__
            raise NotAheadError(f"{name} raises an error on an array: {error}") from error

    @property
    def _is_from_sklearn(self) -> bool:
        return type(self.step).__module__.startswith("sklearn.")

    def transform(self, X: Any) -> Any:
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

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = not getattr(self.step, "with_mean", True)
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_in_")

    @property
    def runs(self) -> bool:
        """Whether the step runs with the models."""
        return True

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

    keeps_columns = False

    @property
    def runs(self) -> bool:
        return is_running_imputer(self.step)

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

    def transform(self, X: Any) -> Any:
        """Return the rows, as an array."""
        if not self.runs:
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
        copied, attribute = copy(step), COMPOSED[type(step)]
        inside = f"{path}__" if path else ""
        parts = [
            (name, with_placeholders(inside + name, part, kinds), *rest)
            for name, part, *rest in getattr(step, attribute)
        ]
        setattr(copied, attribute, parts)
        if type(step) is ColumnTransformer:
            copied.remainder = with_placeholders(f"{inside}remainder", step.remainder, kinds)
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
    if not any(all_placeholders(fitted)):
        return fitted
    whole = clone(step)
    parameters = whole.get_params(deep=False)
    whole.__dict__.update({n: v for n, v in vars(fitted).items() if n not in parameters})
    given = {name: part for name, part, *_ in parts_of(step)}
    found = [
        (name, without_placeholders(given.get(name, part), part, trained), *rest)
        for name, part, *rest in fitted_parts(fitted)
    ]
    if type(step) is ColumnTransformer:
        whole.transformers_ = found
        whole._remainder = ("remainder", whole.remainder, *fitted._remainder[2:])
    else:
        setattr(whole, COMPOSED[type(step)], found)
    return whole


def all_placeholders(fitted: Any) -> Iterator[Placeholder]:
    """Yield the placeholders among the fitted parts of a step."""
    if isinstance(fitted, Placeholder):
        yield fitted
    elif type(fitted) in COMPOSED:
        for _, part, *_ in fitted_parts(fitted):
            yield from all_placeholders(part)


def running_in(fitted: Any, n_columns: int) -> list[tuple[Placeholder, slice]]:
    """Return the placeholder of each running step, and which of the output columns it writes.

    They are in the order in which the rows pass them. Those that write no columns are left out.

    Raises
    ------
    NotAheadError
        If a part of a FeatureUnion does not name its columns.
    """
    try:
        found = list(_written_in(fitted, slice(0, n_columns)))
    except AttributeError as error:
        raise NotAheadError("a part of a FeatureUnion does not name its columns") from error
    return [(part, at) for part, at in reversed(found) if part.runs and at.start < at.stop]


def _written_in(fitted: Any, columns: slice) -> Iterator[tuple[Placeholder, slice]]:
    if isinstance(fitted, Placeholder):
        yield fitted, columns
    elif any(all_placeholders(fitted)):
        by_name = {name: part for name, part, *_ in fitted_parts(fitted)}
        for name, written in _written_by_parts(fitted, columns):
            if name in by_name:
                yield from _written_in(by_name[name], written)


def _written_by_parts(fitted: Any, columns: slice) -> Iterator[tuple[str, slice]]:
    """Yield the names of fitted parts that write the output columns, and which they write."""
    if type(fitted) is Pipeline:
        for name, part in reversed(fitted.steps):
            yield name, columns
            if not _keeps_columns(part):
                return
    elif type(fitted) is ColumnTransformer:
        for name, written in fitted.output_indices_.items():
            yield name, slice(columns.start + written.start, columns.start + written.stop)
    else:
        begin = columns.start
        for name, part in fitted.transformer_list:
            n_columns = 0 if part == "drop" else len(part.get_feature_names_out())
            yield name, slice(begin, begin + n_columns)
            begin += n_columns


def _keeps_columns(fitted: Any) -> bool:
    """Return whether a fitted step lets the columns pass as they are."""
    if type(fitted) is Pipeline:
        return all(_keeps_columns(part) for _, part in fitted.steps)
    return fitted in PASSED or (isinstance(fitted, Placeholder) and fitted.keeps_columns)


class Running(TransformerMixin, BaseEstimator):
    """Trains steps on their columns of the rows, each on what the steps before it return.

    Parameters
    ----------
    parts : list of tuple (step, start, stop, dtype, is_sparse)
        The steps in their order, which are trained in place; the first and the last column of each
        (exclusive); and the form in which it gets them, as in ``Placeholder``.
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
