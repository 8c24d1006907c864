"""Placeholders for the transformers of a Pipeline that are not fitted once.

In preprocessing that is fitted once for all folds, each incremental transformer is replaced by a
placeholder, which passes rows through. In a fitted Pipeline, the placeholder is replaced by the
transformer of a model.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import nullcontext
from copy import copy
from copy import deepcopy
from itertools import count
from itertools import pairwise
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
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import check_array
from sklearn.utils.validation import _num_samples
from sklearn.utils.validation import validate_data

from optuna_treecv.numerics.spread import is_rounding
from optuna_treecv.preprocessing.parts import COMPOSED
from optuna_treecv.preprocessing.parts import fills_categories
from optuna_treecv.preprocessing.parts import is_running_imputer
from optuna_treecv.preprocessing.parts import Kind
from optuna_treecv.preprocessing.parts import leaves_of
from optuna_treecv.preprocessing.parts import NotAheadError
from optuna_treecv.preprocessing.parts import parts_of
from optuna_treecv.preprocessing.parts import path_to
from optuna_treecv.preprocessing.parts import unshared
from optuna_treecv.rows.checks import check_columns
from optuna_treecv.rows.checks import naming_entries
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import absent_columns
from optuna_treecv.rows.folds import Cut

#: The maximum number of training sets to which a step is fitted to check whether the fitted steps
#: agree.
MOST_FITS = 1000


class Placeholder(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Placeholder for an incremental transformer, which passes rows through as numbers.

    Parameters
    ----------
    step : transformer
        A StandardScaler, or one that runs in Python.
    in_python : bool
        Whether it runs in Python.

    Attributes
    ----------
    constant : int or None
        The number that replaces the rows while their output columns are determined.
    dtype : str
        The type of the rows, if it runs in Python.
    is_sparse : bool
        Whether the rows are sparse.
    """

    constant: int | None = None

    def __init__(self, step: Any, in_python: bool = False) -> None:
        self.step = step
        self.in_python = in_python
        self._is_from_sklearn = type(step).__module__.startswith("sklearn.")

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check rows as the replaced step does, and try a step that runs in Python on them."""
        if not self.in_python:
            if sparse.issparse(X) and self.step.with_mean:
                clone(self.step).fit(X)  # raises its own error
            self._checked(X, reset=True)
            return self
        # Other steps may accept strings, or need column names.
        is_named = hasattr(X, "columns") and self._is_from_sklearn
        try:
            with naming_entries(X) if is_named else nullcontext():
                self._try(self._checked(X, reset=True), y)
        except NotAheadError:
            raise
        except Exception as error:  # of foreign code
            if self._is_from_sklearn and isinstance(error, ValueError):
                raise
            name = type(self.step).__name__
            raise NotAheadError(f"{name} raises an error on an array: {error}") from error
        return self

    def _try(self, rows: Any, y: Any) -> None:
        """Check that the step accepts an array and keeps the number of columns."""
        tried = clone(self.step).partial_fit(rows, *(() if y is None else (y,)))
        # A copy, because a step with copy=False overwrites its rows.
        after = tried.transform(take_rows(rows, slice(0, 1)).copy())
        name = type(self.step).__name__
        if hasattr(after, "iloc"):
            raise NotAheadError(f"{name} returns a data frame")
        if sparse.issparse(after) != sparse.issparse(rows):
            raise NotAheadError(f"{name} converts sparse rows to dense rows, or vice versa")
        if np.shape(after) != (1, rows.shape[1]):
            raise NotAheadError(f"{name} changes the number of columns")
        self.dtype, self.is_sparse = rows.dtype.str, sparse.issparse(rows)
        # The next step must not get integers if this step returns fractions.
        self._returned = np.result_type(rows.dtype, getattr(after, "dtype", rows.dtype))

    def transform(self, X: Any) -> Any:
        """Return the rows unchanged, or an array filled with ``constant``."""
        rows = self._passed(X)
        if self.constant is None:
            return rows
        return _match_sparsity(rows, np.full(rows.shape, self.constant))

    def _passed(self, X: Any) -> Any:
        """Return the rows in a dtype that can also represent the output of the step."""
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
            ensure_all_finite=False,  # the step or the learner raises an error
            reset=reset,
        )

    def put_back(self, trained: Any) -> Any:
        """Return the replaced step with the statistics of a model.

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


def _match_sparsity(rows: Any, filled: np.ndarray) -> Any:
    """Convert an array to sparse if ``rows`` are, so that a ColumnTransformer can stack them."""
    return sparse.csr_array(filled) if sparse.issparse(rows) else filled


def _copy_names(fitted: Any, other: Any) -> None:
    """Copy the attributes with the number and names of columns from one transformer to another."""
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(fitted, name):
            setattr(other, name, getattr(fitted, name))


class ImputerPlaceholder(Placeholder):
    """Placeholder for a SimpleImputer.

    For an imputer by means, missing values are passed through; for an imputer by a constant, they
    are filled in. An imputer drops a column without any known value in the rows on which it is
    fitted. Therefore it can be fitted once for all folds only if each training set has a known
    value in each column. The placeholder counts the known values for this check.

    Parameters
    ----------
    step : SimpleImputer
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the imputer only to find the columns that it keeps; its means are not used."""
        self.like = clone(self.step).fit(X)
        _copy_names(self.like, self)
        self._kept = np.ones(self.n_features_in_, bool)
        if not self.step.keep_empty_features:
            n_known = (~_missing(self.step, X)).sum(axis=0)
            self._kept = n_known > 0
            # The minimum number of known values over all columns that have any; others are dropped
            # in all folds.
            self.fewest_known = int(n_known[self._kept].min(initial=_num_samples(X)))
        return self

    def _passed(self, X: Any) -> Any:
        """Return the rows as an array."""
        if not is_running_imputer(self.step):
            return self.like.transform(X)
        check_columns(X)
        X = validate_data(
            self, X, dtype=[np.float64, np.float32], ensure_all_finite=False, reset=False
        )
        return X if self._kept.all() else X[:, self._kept]

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns that the imputer keeps."""
        return self.like.get_feature_names_out(input_features)

    def put_back(self, trained: tuple[int, np.ndarray]) -> SimpleImputer:
        """Return the imputer with the means of the known values in a model's training rows."""
        imputer = deepcopy(self.like)
        imputer.statistics_[self._kept] = trained[1][2]
        return imputer


class TablePlaceholder(ImputerPlaceholder):
    """Placeholder for a transformer, fitted on all rows, if models are computed from sums.

    If the fitted step is the same in all folds, the placeholder transforms rows as the step does.
    Otherwise it passes the rows through, and they are imputed and scaled per fold.

    Parameters
    ----------
    step : OneHotEncoder, SimpleImputer, StandardScaler or MinMaxScaler
    passes : bool
        Whether the rows are passed through.

    Attributes
    ----------
    like : transformer
        The step, fitted on all rows.
    """

    in_python = False

    def __init__(self, step: Any, passes: bool) -> None:
        self.step = step
        self.passes = passes

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the step, and keep the rows for ``why_not``."""
        self.like = clone(self.step).fit(X)
        _copy_names(self.like, self)
        self._rows: Any = X
        self._kept = self._is_known = np.ones(self.n_features_in_, bool)
        if type(self.step) is SimpleImputer:
            self._is_missing: Any = _missing(self.step, X)
            self._is_known = np.logical_not(self._is_missing.all(axis=0))
            self._kept = self._is_known | self.step.keep_empty_features
        return self

    def transform(self, X: Any) -> Any:
        """Return transformed rows; if rows are passed through, the rows or ``constant``."""
        if not self.passes:
            return self.like.transform(X)
        rows = check_array(
            X, accept_sparse="csr", dtype=[np.float64, np.float32], ensure_all_finite=False
        )
        if type(self.step) is SimpleImputer:
            if sparse.issparse(rows):
                raise NotAheadError("the input of a SimpleImputer is sparse")
            is_missing = (np.isnan(rows) & self._is_known)[:, self._kept]
            rows = np.array(self.like.transform(X))  # with the columns of an indicator
            rows[:, : is_missing.shape[1]][is_missing] = np.nan
        if self.constant is not None:
            filled = rows.toarray() if sparse.issparse(rows) else np.array(rows)
            filled[:, : np.count_nonzero(self._kept)] = self.constant
            return _match_sparsity(rows, filled)
        return rows

    def why_not(self, cut: Cut) -> str:
        """Return the reason why the fitted step differs between folds; "" if it does not."""
        step, X = self.step, self._rows
        if type(step) is OneHotEncoder:
            encoder = OneHotEncoder(categories=self.like.categories_, handle_unknown="ignore")
            encoder.set_output(transform="default")
            if absent_columns(cut, sparse.csc_array(encoder.fit_transform(X))).count_nonzero():
                return "a training set lacks a category"
            if step.min_frequency is None and step.max_categories is None:
                return ""
            return self._why_varies(cut, "infrequent_categories_")
        if type(step) is not SimpleImputer:
            return ""
        columns = self._is_missing[:, self._is_missing.any(axis=0) & self._is_known]
        for is_missing in columns.T:
            if not cut.count(~is_missing)[0].all():
                return "a column has no value in a training set"
            if step.add_indicator and not cut.count(is_missing)[0].all():
                return "a training set has no missing value in a column of its add_indicator"
        if self.passes or step.strategy == "constant" or not columns.size:
            return ""
        return self._why_varies(cut, "statistics_")

    def _why_varies(self, cut: Cut, name: str) -> str:
        """Return the reason why a fitted attribute differs between training sets, or ""."""
        if cut.n_folds > MOST_FITS:
            return f"{name} would have to be compared for more than {MOST_FITS} training sets"
        for fitted in self._fitted_to_sets(cut):
            # Compared as strings, because the entries may be numbers, NaN, None and strings.
            of_all, of_set = (map(repr, getattr(step, name)) for step in (self.like, fitted))
            if list(of_all) != list(of_set):
                return f"{name} of a training set differs from that of all rows"
        return ""

    def _fitted_to_sets(self, cut: Cut) -> Iterator[Any]:
        """Yield a copy of the step fitted to each training set."""
        for chunk in range(cut.n_folds):
            yield clone(self.step).fit(take_rows(self._rows, cut.split(chunk).train_rows()))

    def forget(self) -> None:
        """Release the rows that ``fit`` kept."""
        self._rows = self._is_missing = None


class WordsPlaceholder(TablePlaceholder):
    """Placeholder for an imputer by the most frequent value and the encoder that follows it.

    If the most frequent value of a column is the same in each training set and in all rows, the
    placeholder transforms the column as both steps, fitted on all rows, would. Otherwise a row
    with a missing value gets NaN in the encoded columns of all values that are imputed in some
    fold. These are then imputed per fold by 1 or 0.

    Parameters
    ----------
    step : SimpleImputer
    encoder : OneHotEncoder
    needs_all : bool
        Whether each training set must have all categories.
    """

    def __init__(self, step: SimpleImputer, encoder: OneHotEncoder, needs_all: bool) -> None:
        super().__init__(step, passes=True)
        self.encoder = encoder
        self.needs_all = needs_all

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit both steps, and keep the rows for ``why_not``."""
        super().fit(X)
        self._encoder = clone(self.encoder).fit(self.like.transform(X))
        sizes = [len(names) for names in self._encoder.categories_]
        self._features = np.repeat(np.arange(len(sizes)), sizes)
        self.varying = np.array([], int)
        return self

    def transform(self, X: Any) -> Any:
        """Return the encoded columns, with NaN or ``constant`` if training sets differ."""
        rows = self._encoder.transform(self.like.transform(X))
        if self.constant is not None:
            filled = rows.toarray() if sparse.issparse(rows) else np.array(rows)
            filled[:, self.varying] = self.constant
            return _match_sparsity(rows, filled)
        row, at = np.nonzero(self._gaps(_missing(self.step, X))[:, self.varying])
        gaps = np.full(len(row), np.nan, np.float32), (row, self.varying[at])
        holes = sparse.csr_array(gaps, shape=rows.shape)
        return rows + (holes if sparse.issparse(rows) else holes.toarray())

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the encoded columns."""
        return self._encoder.get_feature_names_out(self.like.get_feature_names_out(input_features))

    def _gaps(self, is_missing: np.ndarray) -> np.ndarray:
        return is_missing[:, self._kept][:, self._features]

    def why_not(self, cut: Cut) -> str:
        """Return the reason why categories cannot be imputed per fold, or ""; set ``varying``."""
        is_gap, reason = self._gaps(self._is_missing), super().why_not(cut)
        if reason or (is_gap.any() and cut.n_folds > MOST_FITS):
            return reason or self._why_varies(cut, "statistics_")
        if is_gap.any():
            fitted, encoder = (self.like, *self._fitted_to_sets(cut)), copy(self._encoder)
            vars(encoder).pop("feature_names_in_", None)  # these rows have no names
            after = encoder.transform([step.statistics_[self._kept] for step in fitted])
            after = after.toarray() if sparse.issparse(after) else after
            differ = np.flatnonzero(np.ptp(after, axis=0) * is_gap.any(axis=0))
            self.varying = np.union1d(self.varying, differ)
        after = self._encoder.transform(self.like.transform(self._rows))
        observed = sparse.csc_array(sparse.csc_array(after).multiply(~is_gap))
        observed.eliminate_zeros()
        lacks = self.needs_all and absent_columns(cut, observed).count_nonzero()
        return "a training set lacks a category" if lacks else ""

    def fills(self, counts: np.ndarray) -> np.ndarray:
        """Return the imputed entries of encoded columns per training set, (n_sets, n_varying).

        An entry is 1 for the first of the most frequent values of a feature, and 0 for other
        values.
        """
        filled, features = np.zeros_like(counts), self._features[self.varying]
        for feature in np.unique(features):
            at = np.flatnonzero(features == feature)
            filled[np.arange(len(counts)), at[np.rint(counts[:, at]).argmax(axis=1)]] = 1
        return filled


def _missing(imputer: SimpleImputer, X: Any) -> np.ndarray:
    """Return a mask of the values that an imputer treats as missing, (n_rows, n_columns)."""
    indicator = MissingIndicator(
        missing_values=imputer.missing_values, features="all", sparse=False
    )
    return np.asarray(indicator.fit_transform(X))


def with_placeholders(path: str, step: Any, kinds: Mapping[str, Kind]) -> Any:
    """Return an unfitted copy of a step, with placeholders for incremental transformers.

    Parameters
    ----------
    path : str
    step : transformer
    kinds : mapping
        The kinds of the transformers by their paths.
    """
    if type(step) in COMPOSED:
        copied = copy(step)
        parts = [
            (name, with_placeholders(path_to(path, name), part, kinds), *columns)
            for name, part, *columns in parts_of(step)
        ]
        if type(step) is ColumnTransformer:
            *parts, (_, copied.remainder) = parts
        elif type(step) is Pipeline:
            parts = _with_words(parts)
        setattr(copied, COMPOSED[type(step)], parts)
        return copied
    kind = kinds.get(path)
    if kind in (Kind.ONCE_IF_EQUAL, Kind.FROM_SUMS):
        return TablePlaceholder(step, kind is Kind.FROM_SUMS)
    if type(step) is SimpleImputer and (kind is Kind.COMPILED or not step.keep_empty_features):
        return ImputerPlaceholder(step)
    if kind in (Kind.COMPILED, Kind.INCREMENTAL):
        return Placeholder(step, kind is Kind.INCREMENTAL)
    return step


def _with_words(parts: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the steps of a Pipeline; one placeholder replaces an imputer and its encoder."""
    for at, ((name, first), (of_encoder, second)) in enumerate(pairwise(parts[:])):
        encoder = second.step if isinstance(second, TablePlaceholder) else second
        if isinstance(first, TablePlaceholder) and fills_categories(first.step, encoder):
            words = WordsPlaceholder(first.step, encoder, needs_all=encoder is not second)
            parts[at : at + 2] = (name, words), (of_encoder, "passthrough")
    return parts


def without_placeholders(step: Any, fitted: Any, trained: Mapping[Placeholder, Any]) -> Any:
    """Return a fitted step in which a model's transformers replace the placeholders.

    Parameters
    ----------
    step : transformer
        The user's step.
    fitted : transformer
        From ``with_placeholders``, fitted.
    trained : mapping
        The trained transformers by their placeholders, except those without columns.
    """
    if isinstance(fitted, Placeholder):
        return trained.get(fitted, getattr(fitted, "like", fitted.step))
    if not all_placeholders(fitted):
        return fitted
    whole = copy(fitted)
    # The parameters of the fitted step contain placeholders, as does the remainder below.
    vars(whole).update(clone(step).get_params(deep=False))
    originals = {name: part for name, part, *_ in parts_of(step)}
    parts = [
        (name, without_placeholders(originals.get(name, part), part, trained), *columns)
        for name, part, *columns in parts_of(fitted, is_fitted=True)
    ]
    if type(step) is ColumnTransformer:
        whole.transformers_ = parts
        whole._remainder = ("remainder", whole.remainder, *fitted._remainder[2:])
    else:
        setattr(whole, COMPOSED[type(step)], parts)
    return whole


def all_placeholders(fitted: Any) -> list[Placeholder]:
    """Return all placeholders in a fitted step."""
    leaves = leaves_of("", fitted, is_fitted=True)
    return [leaf for _, leaf in leaves if isinstance(leaf, Placeholder)]


def columns_of_placeholders(
    fitted: Any, X: Any, after: Any
) -> list[tuple[Placeholder, np.ndarray]]:
    """Return the placeholders that pass rows through, and their columns in the transformed rows.

    To find its columns, a placeholder returns a number that does not occur in the rows. Steps
    after a placeholder that passes rows through do not change the rows, because none of them is
    fitted once.
    """
    row, first = take_rows(X, slice(0, 1)), _first_row(after)
    # An integer, because the rows may be of an integer type.
    unused = next(number for number in count() if not np.any(first == number))
    pairs = []
    for part in all_placeholders(fitted):
        if isinstance(part, TablePlaceholder) and not part.passes:
            continue
        part.constant = unused
        columns = np.flatnonzero(_first_row(fitted.transform(unshared(fitted, row))) == unused)
        part.constant = None
        if len(columns):
            pairs.append((part, columns))
    return pairs


def _first_row(rows: Any) -> np.ndarray:
    first = take_rows(rows, slice(0, 1))
    return np.asarray(first.toarray() if sparse.issparse(first) else first)[0]
