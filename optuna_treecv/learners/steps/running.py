"""Takes running steps out of steps that are done once, and puts them back fitted.

In the steps that are done once, a placeholder stands for each running step and lets the rows pass.
A compiled learner scales the rows and fills in missing values itself, by the moments of the rows
that a model has seen (``_kernels/moments.pxd``): the placeholders of StandardScaler and of
SimpleImputer by means are here. That of steps which run in Python is in ``by_partial_fit.py``.
"""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Iterator
from copy import copy
from copy import deepcopy
from typing import Any
from typing import NamedTuple
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
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Tags
from sklearn.utils.validation import _num_samples
from sklearn.utils.validation import validate_data

from optuna_treecv.rows.checks import check_columns

#: The steps that hold others, and the attribute in which they do.
COMPOSED = {
    Pipeline: "steps",
    ColumnTransformer: "transformers",
    FeatureUnion: "transformer_list",
}


#: In the place of a step of a Pipeline: the rows pass as they are.
PASSED = (None, "passthrough")


class Moments(NamedTuple):
    """The moments of the columns, for each column of the rows after the steps.

    Attributes
    ----------
    n_rows : int
    mean : ndarray of shape (n_columns,), float64
    M2 : ndarray of shape (n_columns,), float64
        The sums of squared deviations.
    known_mean : ndarray of shape (n_columns,), float64
        The mean of the values that are not missing; 0 if there are none.
    """

    n_rows: int
    mean: np.ndarray
    M2: np.ndarray
    known_mean: np.ndarray

    def of(self, columns: slice) -> Moments:
        """Return those of some columns."""
        vectors = (vector[columns] for vector in self[1:])
        return Moments(self.n_rows, *vectors)


class Placeholder(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Stands in the place of a step that is put back when the rows of a model are known."""

    keeps_columns = True  # whether it has a column of output for each column of input

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_in_")


class InKernel(Placeholder, ABC):
    """Stands in the place of a step that a kernel does."""

    @abstractmethod
    def fitted(self, moments: Moments) -> Any:
        """Return the step as the rows of these moments leave it."""


def copy_names(fitted: Any, other: Any) -> None:
    """Set what a fitted transformer knows of the columns it has got."""
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(fitted, name):
            setattr(other, name, getattr(fitted, name))


class Unfilled(InKernel):
    """Stands in the place of a SimpleImputer by means and lets the missing values pass.

    Columns without any value are left out, as the imputer does.

    Parameters
    ----------
    imputer : SimpleImputer
    """

    keeps_columns = False

    def __init__(self, imputer: SimpleImputer) -> None:
        self.imputer = imputer

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the imputer, whose means are not used, and see which columns it keeps."""
        self._like = clone(self.imputer).fit(X)
        copy_names(self._like, self)
        self._kept = np.ones(self.n_features_in_, bool)
        if not self.imputer.keep_empty_features:
            self._kept = ~np.isnan(self._like.statistics_)
            self.fewest_known = _fewest_known(self.imputer, X)
        return self

    def transform(self, X: Any) -> Any:
        """Return the rows, as an array."""
        check_columns(X)
        X = validate_data(
            self, X, dtype=[np.float64, np.float32], ensure_all_finite=False, reset=False
        )
        return X if self._kept.all() else X[:, self._kept]

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns that are kept."""
        return super().get_feature_names_out(input_features)[self._kept]

    def fitted(self, moments: Moments) -> SimpleImputer:
        """Return the imputer with the means of the values known in these rows."""
        imputer = deepcopy(self._like)
        imputer.statistics_[self._kept] = moments.known_mean
        return imputer


class Filled(Placeholder):
    """Stands for a SimpleImputer by a constant, which it is, and counts the values that are known.

    The imputer leaves out a column that has no value in the rows that it is fitted on. It can
    be done once for all folds only where each fold has a value of each column.

    Parameters
    ----------
    imputer : SimpleImputer
    """

    keeps_columns = False

    def __init__(self, imputer: SimpleImputer) -> None:
        self.imputer = imputer

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the imputer, and count."""
        self._imputer = clone(self.imputer).fit(X)
        copy_names(self._imputer, self)
        self.fewest_known = _fewest_known(self.imputer, X)
        return self

    def transform(self, X: Any) -> Any:
        """Fill in the constant."""
        return self._imputer.transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns that are kept."""
        return self._imputer.get_feature_names_out(input_features)

    def fitted(self) -> SimpleImputer:
        """Return the imputer, which is not fitted where it gets no columns."""
        return getattr(self, "_imputer", self.imputer)


def _fewest_known(imputer: SimpleImputer, X: Any) -> int:
    """Return in how few rows a column has values; those without any are left out in all folds."""
    missing = MissingIndicator(missing_values=imputer.missing_values, features="all", sparse=False)
    n_known = (~missing.fit_transform(X)).sum(axis=0)
    return int(n_known[n_known > 0].min(initial=_num_samples(X)))


class Unscaled(InKernel):
    """Stands in the place of a StandardScaler and lets the rows pass.

    Parameters
    ----------
    scaler : StandardScaler
    """

    def __init__(self, scaler: StandardScaler) -> None:
        self.scaler = scaler

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the rows as a StandardScaler does."""
        self._checked(X, reset=True)
        return self

    def transform(self, X: Any) -> Any:
        """Return the rows."""
        return self._checked(X, reset=False)

    def _checked(self, X: Any, reset: bool) -> Any:
        if sparse.issparse(X) and self.scaler.with_mean:
            clone(self.scaler).fit(X)  # raises its own error
        check_columns(X)
        accepted = "csr" if not self.scaler.with_mean else False
        return validate_data(
            self,
            X,
            accept_sparse=accepted,
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,  # the learner says what is wrong
            reset=reset,
        )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = not self.scaler.with_mean
        return tags

    def fitted(self, moments: Moments) -> StandardScaler:
        """Return the scaler as ``partial_fit`` on the rows of these moments leaves it."""
        scaler = clone(self.scaler)
        copy_names(self, scaler)
        scaler.n_samples_seen_ = moments.n_rows
        scaler.mean_ = moments.mean.copy() if scaler.with_mean or scaler.with_std else None
        scaler.var_ = scaler.scale_ = None
        if scaler.with_std:
            scaler.var_ = moments.M2 / moments.n_rows
            scaler.scale_ = scales_of(moments)
        return scaler


def scales_of(moments: Moments) -> np.ndarray:
    """Return the scale of each column: its standard deviation, or 1 if it is constant.

    Constant is a column whose variance is below its own rounding error (scikit-learn's rule).
    """
    n, eps = moments.n_rows, np.finfo(np.float64).eps
    variance = moments.M2 / n
    is_constant = variance <= n * eps * variance + (n * moments.mean * eps) ** 2
    return np.where(is_constant, 1.0, np.sqrt(variance))


def compiled_placeholder(step: Any) -> Any:
    """Return the placeholder of a step that a kernel does, or the step itself."""
    if type(step) is StandardScaler:
        return Unscaled(step)
    if is_running_imputer(step):
        return Unfilled(step)
    return counting_placeholder(step)


def counting_placeholder(step: Any) -> Any:
    """Return the placeholder of an imputer by a constant, or the step itself."""
    is_imputer = type(step) is SimpleImputer and step.strategy == "constant"
    return Filled(step) if is_imputer and not step.keep_empty_features else step


def without_running(step: Any, placeholder: Callable[[Any], Any]) -> Any:
    """Return a step, not fitted, with a placeholder for each running step.

    Parameters
    ----------
    step : transformer
    placeholder : callable
        Returns the placeholder of a step that holds no others, or that step itself.
    """
    if type(step) not in COMPOSED:
        return placeholder(step)
    copied = copy(step)
    listed = getattr(step, COMPOSED[type(step)])
    replaced = [(name, without_running(part, placeholder), *rest) for name, part, *rest in listed]
    setattr(copied, COMPOSED[type(step)], replaced)
    if type(step) is ColumnTransformer:
        copied.remainder = without_running(step.remainder, placeholder)
    return copied


def is_running_imputer(step: Any) -> bool:
    """Return whether a step is an imputer by means."""
    return type(step) is SimpleImputer and step.strategy == "mean"


class RunningColumns(NamedTuple):
    """What is done to which columns: (n_columns,) each, uint8.

    Attributes
    ----------
    centred, scaled : ndarray
        Whether the mean is subtracted, and whether a column is divided by its scale.
    imputed : ndarray
        Whether the mean takes the place of missing values.
    """

    centred: np.ndarray
    scaled: np.ndarray
    imputed: np.ndarray


def running_columns(fitted: Any, n_columns: int) -> RunningColumns:
    """Return what is done to which columns after the steps.

    Parameters
    ----------
    fitted : transformer
        From ``without_running``, fitted.
    n_columns : int
        Of the rows after it.
    """
    found = RunningColumns(*np.zeros((3, n_columns), np.uint8))
    for part, columns in running_parts(fitted, n_columns):
        if isinstance(part, Unfilled):
            found.imputed[columns] = 1
        elif isinstance(part, Unscaled):
            found.centred[columns] = part.scaler.with_mean
            found.scaled[columns] = part.scaler.with_std
    return found


def with_running(
    step: Any, fitted: Any, columns: slice, put_back: Callable[[Any, slice], Any]
) -> Any:
    """Return a fitted step with its running steps as they are for some model.

    Parameters
    ----------
    step : transformer
        As given.
    fitted : transformer
        ``without_running(step, ...)``, fitted.
    columns : slice
        Its output columns.
    put_back : callable
        (placeholder, its output columns) -> the running step in its place, fitted.
    """
    if isinstance(fitted, Filled):
        return fitted.fitted()
    if isinstance(fitted, Placeholder):
        return put_back(fitted, columns)
    if not _has_placeholder(fitted):
        return fitted
    places = dict(_branches(fitted, columns))
    whole = clone(step)
    parameters = whole.get_params(deep=False)
    whole.__dict__.update({n: v for n, v in vars(fitted).items() if n not in parameters})
    given = {name: part for name, part, *_ in parts_of(step)}
    found = []
    for name, part, *rest in _fitted_parts(fitted):
        of_part = places.get(name, slice(0, 0))
        found.append((name, with_running(given.get(name, part), part, of_part, put_back), *rest))
    if type(step) is ColumnTransformer:
        whole.transformers_ = found
        whole._remainder = ("remainder", whole.remainder, *fitted._remainder[2:])
    else:
        setattr(whole, COMPOSED[type(step)], found)
    return whole


def has_running(step: Any) -> bool:
    """Return whether a running step is among the parts of a step."""
    if type(step) in COMPOSED:
        return any(has_running(part) for _, part, *_ in parts_of(step))
    return type(step) is StandardScaler or is_running_imputer(step)


def _has_placeholder(fitted: Any) -> bool:
    """Return whether a placeholder is among the fitted parts of a step."""
    if type(fitted) in COMPOSED:
        return any(_has_placeholder(part) for _, part, *_ in _fitted_parts(fitted))
    return isinstance(fitted, Placeholder)


def fewest_known(fitted: Any, is_linear: bool) -> int | None:
    """Return in how few rows a column that is filled has values; None: it makes no difference.

    A linear learner gives no weight to a column whose mean is not known, as if it was left out.
    """
    if isinstance(fitted, Filled) or (isinstance(fitted, Unfilled) and not is_linear):
        return getattr(fitted, "fewest_known", None)  # it is not fitted where it gets no columns
    if type(fitted) not in COMPOSED:
        return None
    of_parts = (fewest_known(part, is_linear) for _, part, *_ in _fitted_parts(fitted))
    return min((found for found in of_parts if found is not None), default=None)


def leaves_of(name: str, step: Any) -> Iterator[tuple[str, Any]]:
    """Yield the transformers in a step that hold no others, each with its path."""
    if type(step) in COMPOSED:
        for inner, part, *_ in parts_of(step):
            yield from leaves_of(f"{name}__{inner}", part)
    elif not any(step is passed or step == passed for passed in (*PASSED, "drop")):
        yield name, step


def unshared(step: Any, X: Any) -> Any:
    """Return rows for a step: a copy where ``copy=False``, of it or a part, may overwrite them."""
    for _, leaf in leaves_of("", step):
        params = leaf.get_params() if hasattr(leaf, "get_params") else {}
        if any(name.rpartition("__")[2] == "copy" and not params[name] for name in params):
            return X.copy()
    return X


def parts_of(step: Any) -> list[tuple[Any, ...]]:
    """Return the parts of a composed step: (name, transformer), columns behind them if any."""
    parts: list[tuple[Any, ...]] = list(getattr(step, COMPOSED[type(step)]))
    if type(step) is ColumnTransformer:
        parts.append(("remainder", step.remainder))
    return parts


def _fitted_parts(fitted: Any) -> list[tuple[Any, ...]]:
    """Return the fitted parts of a composed step."""
    if type(fitted) is ColumnTransformer:
        parts: list[tuple[Any, ...]] = fitted.transformers_
        return parts
    return parts_of(fitted)


def _branches(fitted: Any, columns: slice) -> Iterator[tuple[str, slice]]:
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


def running_parts(fitted: Any, n_columns: int) -> list[tuple[Placeholder, slice]]:
    """Return each placeholder in fitted steps, and which of the output columns it writes.

    They are in the order in which the rows pass them.
    """
    return list(_running_parts(fitted, slice(0, n_columns)))[::-1]


def _running_parts(fitted: Any, columns: slice) -> Iterator[tuple[Placeholder, slice]]:
    if isinstance(fitted, Placeholder):
        yield fitted, columns
    elif _has_placeholder(fitted):
        by_name = {name: part for name, part, *_ in _fitted_parts(fitted)}
        for name, written in _branches(fitted, columns):
            if name in by_name:
                yield from _running_parts(by_name[name], written)
