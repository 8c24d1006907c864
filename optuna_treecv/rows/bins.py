"""Binned tables: numerical and categorical features are mapped to bins of one byte per entry.

Bin edges depend only on X, never on y. A feature with at most ``max_bins`` distinct values has an
edge between any two consecutive values; the bins of other features have nearly equal numbers of
rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_array

from optuna_treecv._kernels.prepare import fill_bins
from optuna_treecv.rows.checks import check_columns
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.checks import naming
from optuna_treecv.rows.checks import which_are_missing

#: The maximum number of bins of a feature, without the bin of missing values.
MOST_BINS = 255


@dataclass(frozen=True)
class Binning:
    """The bin edges and categories of each feature.

    Attributes
    ----------
    edges : tuple of ndarray, float64
        The edges of each feature; bin b contains numbers above edge b - 1 and up to edge b. Empty
        for categorical features.
    categories : tuple of (ndarray or None)
        The sorted categories of each feature; None for numerical features.
    """

    edges: tuple[np.ndarray, ...]
    categories: tuple[np.ndarray | None, ...]

    @property
    def n_bins(self) -> np.ndarray:
        """The number of bins of each feature (int32), without the bin of missing values."""
        pairs = zip(self.edges, self.categories, strict=True)
        return np.array([len(a) + 1 if b is None else len(b) for a, b in pairs], np.int32)

    @property
    def is_categorical(self) -> np.ndarray:
        """Whether each feature is categorical, as uint8."""
        return np.array([c is not None for c in self.categories], np.uint8)

    def bins(self, table: "ColumnTable", order: np.ndarray | None = None) -> np.ndarray:
        """Return the bin of each entry of X, shape (n_rows, n_features).

        Parameters
        ----------
        table : ColumnTable
        order : ndarray of shape (n_rows,), uint32, or None
            The rows; None: all rows.

        Returns
        -------
        ndarray of shape (n_features, n_rows), uint8
            The bin after the last one of a feature is for missing values and unknown categories.
        """
        if order is None:
            order = np.arange(len(table.numbers), dtype=np.uint32)
        bins = np.empty((len(self.edges), len(order)), np.uint8)
        for feature, categories in enumerate(self.categories):
            if categories is not None:
                bins[feature] = _codes(table.columns[feature], categories)[order]
        begins = np.cumsum([0, *map(len, self.edges)], dtype=np.int64)
        edges = np.concatenate(self.edges) if begins[-1] else np.empty(0)
        fill_bins(table.numbers, order, edges, begins, 1 - self.is_categorical, bins)
        return bins


class ColumnTable:
    """A table with numerical and categorical columns.

    Parameters
    ----------
    X : array or data frame of shape (n_rows, n_features)
    is_categorical : ndarray of shape (n_features,), bool

    Attributes
    ----------
    numbers : ndarray of shape (n_rows, n_features), float64 or float32
        Zeros in categorical columns of a data frame.
    columns : dict of int to ndarray
        The categorical columns.

    Raises
    ------
    ValueError
        If an entry is infinite or not a number.
    """

    def __init__(self, X: Any, is_categorical: np.ndarray) -> None:
        self.columns = {i: _column(X, i) for i in np.flatnonzero(is_categorical).tolist()}
        if self.columns:
            X = _numbers_of(X, is_categorical)
        check_columns(X)
        with naming("X"):
            self.numbers = check_array(
                X,
                dtype=[np.float64, np.float32],
                ensure_all_finite="allow-nan",
                ensure_min_features=0,
                input_name="X",
            )


def which_are_categorical(X: Any, columns: Any) -> np.ndarray:
    """Return a boolean mask of the categorical columns, shape (n_features,).

    Parameters
    ----------
    X : array or data frame
    columns : {"from_dtype"}, array-like of bool, int or str, or None
        As the parameter ``categorical_features`` of trees.
    """
    n_features = np.shape(X)[1]
    is_categorical = np.zeros(n_features, bool)
    if columns is None:
        return is_categorical
    names = list(getattr(X, "columns", []))
    if isinstance(columns, str):
        if columns != "from_dtype":
            raise ValueError(
                "categorical_features must be 'from_dtype', None, or a list of columns, got "
                f"{columns!r}."
            )
        for i, dtype in enumerate(getattr(X, "dtypes", []) if names else []):
            is_categorical[i] = str(dtype).lower() in ("category", "categorical", "enum", "object")
            is_categorical[i] |= str(dtype).lower().startswith(("str", "enum("))
        return is_categorical
    entries = np.ravel(np.asarray(columns, dtype=object)).tolist()  # 1 stays 1 next to a name
    if entries and all(isinstance(entry, bool) for entry in entries):
        if len(entries) != n_features:
            raise ValueError(
                "categorical_features must have one entry per column if it is a mask, got "
                f"{len(entries)} entries for {n_features} columns."
            )
        return np.array(entries)
    for entry in entries:
        if isinstance(entry, str) and entry in names:
            is_categorical[names.index(entry)] = True
        elif is_integer(entry) and 0 <= entry < n_features:
            is_categorical[int(entry)] = True
        else:
            raise ValueError(
                "categorical_features must contain indices of columns of X, from 0 to "
                f"{n_features - 1}, or names of columns of a data frame, got {entry!r}."
            )
    return is_categorical


def find_binning(
    table: ColumnTable, is_categorical: np.ndarray, max_bins: int, rows: np.ndarray | None = None
) -> Binning:
    """Find the bin edges and categories of each feature of a table.

    Parameters
    ----------
    table : ColumnTable
    is_categorical : ndarray of shape (n_features,), bool
    max_bins : int
        The maximum number of bins of a numerical feature, at most 255.
    rows : ndarray of int or None
        The rows from which the bins are computed; None: all rows.

    Raises
    ------
    ValueError
        If a column has more than 255 categories.
    """
    part = slice(None) if rows is None else rows
    edges: list[np.ndarray] = []
    categories: list[np.ndarray | None] = []
    for feature in range(table.numbers.shape[1]):
        if is_categorical[feature]:
            edges.append(np.empty(0))
            categories.append(_categories(table.columns[feature][part], feature))
        else:
            edges.append(_edges(table.numbers[part, feature], max_bins))
            categories.append(None)
    return Binning(tuple(edges), tuple(categories))


def _edges(values: np.ndarray, max_bins: int) -> np.ndarray:
    """Return the bin edges of a feature in ascending order."""
    values = np.sort(values)
    values = values[: len(values) - int(np.count_nonzero(np.isnan(values)))]
    is_first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    begins = np.flatnonzero(is_first)
    distinct = values[begins].astype(np.float64)
    if len(distinct) <= max_bins:
        cuts = np.arange(1, len(distinct))
    else:
        # Choose the gaps between distinct values that divide the rows most evenly.
        shares = len(values) * np.arange(1, max_bins) / max_bins
        above = np.clip(np.searchsorted(begins, shares), 1, len(distinct) - 1)
        below = np.maximum(above - 1, 1)
        nearer = shares - begins[below] <= begins[above] - shares
        cuts = np.unique(np.where(nearer, below, above))
    low, high = distinct[cuts - 1], distinct[cuts]
    middle = low + (high - low) / 2
    # The lower value is the edge if there is no float between both, or their difference overflows.
    return np.where((middle > low) & (middle < high), middle, low)


def _column(X: Any, feature: int) -> np.ndarray:
    """Return a column of the table, in which missing values are NaN or None."""
    if hasattr(X, "iloc"):
        column = X.iloc[:, feature]
        dtype = getattr(column.dtype, "categories", None)
        values = np.asarray(column, dtype=object if dtype is not None else None)
    elif hasattr(X, "columns"):
        values = np.asarray(X[list(X.columns)[feature]].to_numpy(), dtype=object)
    else:
        values = np.asarray(X[:, feature])
    if values.dtype != object:
        return values
    values = values.copy()
    values[which_are_missing(values)] = None
    return values


def _numbers_of(X: Any, is_categorical: np.ndarray) -> Any:
    """Return the table as an array of floats, with zeros in categorical columns."""
    if hasattr(X, "columns"):
        numbers = np.zeros((len(X), len(is_categorical)))
        numerical = np.flatnonzero(~is_categorical)
        if len(numerical):
            names = [list(X.columns)[i] for i in numerical]
            part = X.iloc[:, numerical] if hasattr(X, "iloc") else X[names]
            check_columns(part)
            with naming("X"):
                numbers[:, numerical] = check_array(
                    part, dtype=np.float64, ensure_all_finite="allow-nan", input_name="X"
                )
        return numbers
    if getattr(X, "dtype", None) is not None and X.dtype.kind in "biuf":
        return X
    numbers = np.array(X, dtype=object)
    numbers[:, is_categorical] = 0
    return numbers.astype(np.float64)


def _categories(values: np.ndarray, feature: int) -> np.ndarray:
    present = values[~which_are_missing(values)]
    if present.dtype == object and len({isinstance(value, str) for value in present}) > 1:
        raise ValueError(
            f"X must have categories of a single type in column {feature}, got both strings and "
            "numbers."
        )
    categories = np.unique(present)
    if len(categories) > MOST_BINS:
        raise ValueError(
            f"X must have at most {MOST_BINS} categories in a categorical column, got "
            f"{len(categories)} in column {feature}; use a numerical column, or fewer "
            "categories, instead."
        )
    return categories


def _codes(values: np.ndarray, categories: np.ndarray) -> np.ndarray:
    """Return category codes; unknown and missing values get the code after the last one."""
    n = len(categories)
    codes = np.full(len(values), n, np.uint8)
    is_present = ~which_are_missing(values)
    if n == 0 or not np.any(is_present):
        return codes
    present, inverse = np.unique(values[is_present], return_inverse=True)
    if (present.dtype.kind in "OUS") != (categories.dtype.kind in "OUS"):
        return codes
    at = np.minimum(np.searchsorted(categories, present), n - 1)
    codes[is_present] = np.where(categories[at] == present, at, n).astype(np.uint8)[inverse]
    return codes
