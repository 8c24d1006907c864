"""Validation of rows, targets and weights, and the class codes of labels."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from itertools import chain
from math import isinf
from pathlib import Path
import re
from typing import Any
from typing import TypeGuard

import numpy as np
from scipy import sparse
from sklearn.utils import assert_all_finite
from sklearn.utils import check_array
from sklearn.utils import check_consistent_length
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

# The files with the memory limit of a container and with its current usage.
_LIMIT, _USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
_MACHINE = Path("/proc/meminfo")


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is a Python or NumPy integer, but not a bool or a timedelta."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def check_bytes(argument: str, value: Any) -> int:
    """Check an argument that is a number of bytes, and return it as an int."""
    if not is_integer(value) or value < 0:
        raise ValueError(f"{argument} must be a number of bytes of at least 0, got {value!r}.")
    return int(value)


def is_float64(value: Any) -> bool:
    """Return whether a Python or NumPy number is within the range of float64."""
    try:
        return isinstance(value, int | float | np.generic) and (
            not isinf(value) or value in (np.inf, -np.inf)
        )
    except (OverflowError, TypeError):  # an integer beyond float64; NumPy's durations are integers
        return False


def check_rows(X: Any) -> None:
    """Raise ValueError for rows that scikit-learn and SciPy would accept but misinterpret.

    The index arrays of sparse rows are checked completely, because SciPy and the kernels do not
    check them. This takes 1 to 3 % of the time in which rows are prepared.
    """
    check_array_kind("X", X)
    if isinstance(X, np.ndarray) and X.dtype.kind in "mM":
        raise ValueError(f"X must hold numbers, not dates or durations, got type {X.dtype}.")
    if sparse.issparse(X):
        _check_sparse(X)


def check_columns(X: Any) -> None:
    """Raise ValueError for dates or durations, which would be converted to nanoseconds."""
    if not hasattr(X, "columns") or not hasattr(X, "dtypes"):
        return
    for name, dtype in zip(X.columns, X.dtypes, strict=False):
        if getattr(dtype, "kind", "") in ("m", "M"):
            raise ValueError(
                f"X must hold numbers, not dates or durations, got type {dtype} in column "
                f"{name!r}."
            )


def check_array_kind(argument: str, values: Any) -> None:
    """Raise ValueError for complex numbers and for masked arrays, whose mask would be ignored."""
    if getattr(getattr(values, "dtype", None), "kind", "") == "c":
        raise ValueError(
            f"Complex data not supported: {argument} must hold real numbers, got type "
            f"{values.dtype}."
        )
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(
            f"{argument} must not be a masked array, because its mask would be ignored; use an "
            f"array such as {argument}.filled(0), or only rows without masked values, instead."
        )


def check_no_missing(argument: str, values: Any) -> None:
    """Raise ValueError if an entry is missing: None, NaN, NaT or pandas.NA."""
    entries = np.asarray(values)
    row = first_missing(entries)
    if row is not None:
        raise ValueError(
            f"{argument} must have an entry for each row, got {entries[row]} in row {row}."
        )


def which_are_missing(entries: np.ndarray) -> np.ndarray:
    """Return a boolean mask of the entries that are None, NaN, NaT or pandas.NA."""
    if entries.dtype.kind != "O":
        return entries != entries
    names = {"None", "nan", "NaN", "<NA>", "NaT"}
    return np.array([not isinstance(e, str) and str(e) in names for e in entries], bool)


def first_missing(entries: np.ndarray) -> int | None:
    """Return the index of the first row whose entry is missing, or None."""
    rows = np.flatnonzero(which_are_missing(entries))
    return int(rows[0]) if len(rows) else None


@contextmanager
def naming(argument: str) -> Iterator[None]:
    """Return a context that adds the name of an argument to errors of scikit-learn and NumPy."""
    try:
        yield
    except (OverflowError, TypeError, ValueError) as error:
        if re.search(rf"\b({argument.replace(' and ', '|')})\b", str(error)):
            raise
        kind = ValueError if isinstance(error, OverflowError | ValueError) else TypeError
        raise kind(f"{argument} cannot be used: {error}") from error


def check_weights(
    argument: str, values: Any, n_rows: int, may_be_zero: bool = False
) -> np.ndarray:
    """Check the weights of rows, and return them as a new array of float64.

    Parameters
    ----------
    argument : str
        The name of the argument, for error messages.
    values : array-like
    n_rows : int
    may_be_zero : bool
        Whether all weights may be 0.

    Raises
    ------
    ValueError
        If they are not one finite number of at least 0 for each row.
    """
    check_array_kind(argument, values)
    try:
        values = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{argument} must hold one weight per row: {error}.") from error
    if values.ndim != 1:
        raise ValueError(f"{argument} must have the shape (n_rows,), got shape {values.shape}.")
    if len(values) != n_rows:
        raise ValueError(
            f"{argument} must have one weight per row: X has {n_rows} rows, {argument} "
            f"{len(values)} entries."
        )
    try:
        if values.dtype.kind not in "biufO":
            raise TypeError(f"got type {values.dtype}")
        weights = values.astype(np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{argument} must hold numbers: {error}.") from error
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if np.any(wrong):
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{argument} must hold finite weights of at least 0, got {weights[row]} in row {row}."
        )
    if not (may_be_zero or np.any(weights)):
        raise ValueError(f"{argument} must hold a weight above 0, got zero in all rows.")
    with np.errstate(over="ignore"):
        if not np.isfinite(np.sum(weights)):
            raise ValueError(
                f"{argument} must have a finite sum, got weights up to {weights.max()}."
            )
    return weights


def why_read_at_once(X: Any) -> str:
    """Return a warning that remote rows will be read into memory; "" for local rows."""
    if not is_dask(X):
        return ""
    return (
        f"X is a Dask {type(X).__name__}, all rows of which are read into the memory of this "
        "process. Pass X.compute() to do so explicitly; with a distributed.Client, rows stay on "
        "its workers (optuna_treecv.dask.DaskRows)."
    )


def why_not_in_memory(X: Any) -> str:
    """Return a warning that memory-mapped rows may not fit into memory; "" if they do."""
    is_mapped = isinstance(X, np.ndarray) and memmap_behind(X) is not None
    if not is_mapped or X.nbytes <= (free := free_bytes()):
        return ""
    return (
        f"X is memory-mapped from a file of {X.nbytes / 2**30:.1f} GiB, but only "
        f"{free / 2**30:.1f} GiB of memory are free for a copy of its rows; use "
        f"max_memory='{max(2, free // 2e6):.0f}MB', for example, to keep the copy on disk."
    )


def is_dask(values: Any) -> bool:
    """Return whether values are a Dask collection."""
    return type(values).__module__.startswith("dask") and hasattr(values, "compute")


def memmap_behind(rows: Any) -> Any:
    """Return the memory-mapped array of which an array is a view, or None."""
    while rows is not None and getattr(rows, "_mmap", None) is None:
        rows = getattr(rows, "base", None)
    return rows


def free_bytes() -> float:
    """Return the number of bytes of free memory for this process; infinity if unknown."""
    free = np.inf
    if _MACHINE.exists():
        for line in _MACHINE.read_text().splitlines():
            name, value, *_ = line.split()
            if name == "MemAvailable:":
                free = 1024.0 * int(value)
    if _LIMIT.exists() and (limit := _LIMIT.read_text().strip()) != "max":
        free = min(free, float(limit) - float(_USED.read_text()))
    return free


def _check_sparse(X: Any) -> None:
    """Raise ValueError for a sparse matrix with invalid indices or inconsistent arrays."""
    wrong = None
    if X.dtype.kind not in "biuf":
        wrong = f"its values are of type {X.dtype}"
    elif X.format in ("csr", "csc", "bsr"):
        wrong = _wrong_compressed(X)
    elif X.format == "coo":
        wrong = _wrong_coordinates(X)
    elif X.format == "dia" and X.data.shape[:1] != X.offsets.shape:
        wrong = f"it has {len(X.offsets)} offsets for data of shape {X.data.shape}"
    elif X.format == "lil":
        if [len(row) for row in X.rows] != [len(row) for row in X.data]:
            wrong = "its rows and data differ in their lengths"
        else:
            wrong = _wrong_indices(np.fromiter(chain.from_iterable(X.rows), np.int64), X.shape[1])
    if wrong is not None:
        raise ValueError(f"X must be a valid {X.format.upper()} matrix, but {wrong}.")


def _wrong_compressed(X: Any) -> str | None:
    """Return a description of what is invalid in a CSR, CSC or BSR matrix, or None."""
    rows, columns = (
        n // size for n, size in zip(X.shape, getattr(X, "blocksize", (1, 1)), strict=True)
    )
    n_lines, length = (columns, rows) if X.format == "csc" else (rows, columns)
    for name in ("indices", "indptr"):
        array = getattr(X, name)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            return f"its {name} are of type {array.dtype} and shape {array.shape}"
    if len(X.indptr) != n_lines + 1:
        return f"its indptr has {len(X.indptr)} entries, not {n_lines + 1}"
    if len(X.indices) != len(X.data):
        return f"it has {len(X.indices)} indices for {len(X.data)} values"
    if X.indptr[0] != 0 or np.any(X.indptr[1:] < X.indptr[:-1]):
        return "its indptr does not increase from 0"
    if X.indptr[-1] > len(X.data):
        return f"its indptr ends at {X.indptr[-1]}, and there are {len(X.data)} values"
    return _wrong_indices(X.indices[: X.indptr[-1]], length)


def _wrong_coordinates(X: Any) -> str | None:
    """Return a description of what is invalid in a COO matrix, or None."""
    for indices, size in zip(X.coords, X.shape, strict=True):
        if indices.dtype.kind not in "iu" or indices.shape != X.data.shape:
            return (
                f"its coordinates are of type {indices.dtype} and shape {indices.shape} for data "
                f"of shape {X.data.shape}"
            )
        wrong = _wrong_indices(indices, size)
        if wrong is not None:
            return wrong
    return None


def _wrong_indices(indices: np.ndarray, size: int) -> str | None:
    """Return a description of the first index that is not from 0 to size - 1, or None."""
    if len(indices) and not 0 <= indices.min() <= indices.max() < size:
        wrong = indices.min() if indices.min() < 0 else indices.max()
        return f"its indices include {wrong}, outside of 0 to {size - 1}"
    return None


# The messages of scikit-learn and NumPy for rows with entries that are not finite numbers.
_NO_NUMBERS = re.compile(
    "contains (NaN|infinity)|could not convert string|must be a string or a real number|"
    "arrays of bytes/strings|Complex data|unsupported operand type"
)


@contextmanager
def naming_entries(
    X: Any, order: np.ndarray | None = None, names: Sequence[Any] | None = None
) -> Iterator[None]:
    """Return a context in which errors about non-finite entries contain the row and column.

    Parameters
    ----------
    X : array, sparse matrix or data frame
    order : ndarray, default=None
        Row i of X is row ``order[i]`` of the user's data.
    names : sequence, default=None
        The names of the columns. None: the column names of a data frame, or else column indices.

    Raises
    ------
    ValueError
        In place of the error of scikit-learn or NumPy. If all entries of X are finite, that error
        is raised unchanged, because a step of a Pipeline has produced the invalid entries.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        match = _NO_NUMBERS.search(str(error))
        sentence = None if match is None else _wrong_entry(X, order, names, match[1] is None)
        if sentence is None:
            raise
        raise ValueError(sentence) from error


def _wrong_entry(
    X: Any, order: np.ndarray | None, names: Sequence[Any] | None, of_type: bool
) -> str | None:
    """Return a message about the first column with an invalid entry, or None.

    If the error is ``of_type``, entries that are not numbers take precedence, because missing
    values may be valid for an imputer.
    """
    if len(getattr(X, "shape", ())) != 2:
        return None
    if not hasattr(X, "tocoo") and hasattr(X, "dtype") and X.dtype.kind not in "biufO":
        return f"X must hold numbers, got type {X.dtype}."
    entry = _find_entry(X, True, order) if of_type else None
    entry = entry or _find_entry(X, False, order)
    if entry is None:
        return None
    value, column, row = entry
    called = getattr(X, "columns", range(X.shape[1])) if names is None else names
    where = f"in column {_plain(called[column])!r}, row {row}"
    if not isinstance(value, float):
        return f"X must hold numbers, got {value!r} {where}."
    what = "NaN" if np.isnan(value) else "infinity"
    return f"Input X contains {what} {where}, but must hold finite numbers."


def _find_entry(
    X: Any, may_be_missing: bool, order: np.ndarray | None
) -> tuple[Any, int, int] | None:
    """Return the first invalid entry as (value, column index, user's row index), or None.

    The first column with invalid entries is searched. NaN and infinity are invalid unless
    ``may_be_missing`` is True.
    """
    columns: Iterable[int] = range(X.shape[1])
    is_sparse = hasattr(X, "tocsc")
    if is_sparse:
        X = X.tocsc()
        columns = np.flatnonzero(np.diff(X.indptr)).tolist()
    for column in columns:
        if is_sparse:
            part = slice(X.indptr[column], X.indptr[column + 1])
            values, rows = X.data[part], X.indices[part]
        else:
            has_names = hasattr(X, "iloc")
            values = X.iloc[:, column].to_numpy() if has_names else np.asarray(X[:, column])
            rows = np.arange(len(values))
        floats = map(_as_float, values.tolist())
        wrong = np.flatnonzero(
            [x is None or not (may_be_missing or np.isfinite(x)) for x in floats]
        )
        if len(wrong):
            data_rows = rows[wrong] if order is None else order[rows[wrong]]
            return _plain(values[wrong[np.argmin(data_rows)]]), column, int(data_rows.min())
    return None


def _as_float(value: Any) -> float | None:
    """Convert a value to a float, and None to NaN; return None if it is not a number."""
    try:
        return float(value)
    except OverflowError:
        return np.inf
    except (TypeError, ValueError):
        return np.nan if value is None else None


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python scalar; return other values unchanged."""
    return value.item() if isinstance(value, np.generic) else value


_LABELS_AT_ONCE = 2**20


def check_targets(X: Any, y: Any) -> np.ndarray:
    """Check targets as required by all learners, and return them as an array."""
    check_array_kind("y", y)
    if isinstance(y, list | tuple) and len({isinstance(label, str) for label in y}) > 1:
        # In an array of strings, None and NaN would become labels.
        labels = np.array(y, dtype=object)
        raise ValueError(_message_for_labels(labels, TypeError("it mixes types")))
    with naming("X and y"):
        check_consistent_length(X, y)
    with naming("y"):
        y = _as_targets(y)
    if y.dtype.kind == "f":
        assert_all_finite(y, input_name="y")
    return y


def _as_targets(y: Any) -> np.ndarray:
    """Return y as an array, which is one-dimensional unless y has several columns."""
    shape = np.shape(y)
    if len(shape) == 2 and shape[1] > 1:
        return check_array(y, dtype=None, order="C", ensure_all_finite=False, input_name="y")
    if 0 in shape[1:]:
        raise ValueError(
            f"y must have the shape (n_rows,) or (n_rows, n_targets), got shape {shape}."
        )
    return np.asarray(y) if len(shape) > 2 else column_or_1d(y, warn=True)


def count_targets(y: Any) -> int:
    """Return the number of columns of y, 1 for a one-dimensional array."""
    shape = np.shape(y)
    return 1 if len(shape) < 2 else shape[1]


def without_single_column(y: Any) -> np.ndarray:
    """Return y or predictions as an array; a single column becomes one-dimensional."""
    y = np.asarray(y)
    return y if count_targets(y) > 1 else y.ravel()


def find_classes(y: np.ndarray) -> np.ndarray:
    """Return the sorted classes in ``y``; raise ValueError if there is only one."""
    classes = distinct_labels(y)
    if len(classes) < 2:
        raise ValueError(f"y must hold at least 2 classes, got one class: {classes[0]}.")
    return classes


def distinct_labels(y: np.ndarray) -> np.ndarray:
    """Return the sorted distinct labels in ``y``.

    Raises
    ------
    ValueError
        If y is continuous, contains objects other than strings, or has missing labels.
    """
    if y.dtype.kind in "mM" and (row := first_missing(y)) is not None:
        raise ValueError(f"y must hold a label for each row, got NaT in row {row}.")
    if (span := _range_of_labels(y)) is not None:  # integers, which scikit-learn always accepts
        counts = np.bincount(y.ravel().astype(np.intp) - span.start, minlength=len(span))
        return (np.flatnonzero(counts) + span.start).astype(y.dtype)
    try:
        check_classification_targets(y)
        return np.unique(y)
    except (TypeError, ValueError) as error:
        raise ValueError(_message_for_labels(y, error)) from error


def _range_of_labels(y: np.ndarray) -> range | None:
    """Return the range from the smallest to the largest integer label; None if it is large."""
    if y.dtype.kind not in "iu" or y.size == 0:
        return None
    span = range(int(y.min()), int(y.max()) + 1)
    are_few = span.stop - span.start <= min(_LABELS_AT_ONCE, y.size // 2)
    return span if are_few and span.stop < 2**62 else None


def _message_for_labels(y: np.ndarray, error: Exception) -> str:
    """Return the error message for labels that scikit-learn or NumPy did not accept."""
    if y.dtype != object:
        return f"y must hold class labels: {error}"
    row = first_missing(y)
    if row is not None:
        return f"y must hold a label for each row, got {y[row]!s} in row {row}."
    examples = {type(label): repr(label) for label in reversed(y)}
    return (
        "Unknown label type: y must hold strings, or be an array of integers, got objects such as "
        f"{', '.join(reversed(examples.values()))}; use y.astype(int) or y.astype(str) "
        "instead."
    )


def as_codes(y: Any, classes: np.ndarray) -> np.ndarray:
    """Convert labels to class codes (int32): indices of the sorted classes."""
    codes = np.empty(np.shape(y), np.int32)
    if isinstance(y, np.ndarray) and (span := _range_of_labels(y)) is not None:
        codes_of_span = np.searchsorted(classes, span).astype(np.int32)
        return codes_of_span[y.astype(np.intp) - span.start]
    for begin in range(0, len(codes), _LABELS_AT_ONCE):  # because searchsorted returns int64
        part = slice(begin, begin + _LABELS_AT_ONCE)
        codes[part] = np.searchsorted(classes, y[part])
    return codes


def predicted_codes(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Convert predicted labels to class codes; unknown labels get -1."""
    codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[codes] == labels, codes, -1)


def as_numbers(y: np.ndarray | None) -> np.ndarray:
    """Convert the targets of a regressor to float64.

    Raises
    ------
    ValueError
        If a target is not a finite number.
    """
    if y is None:
        raise ValueError("y must be given for a regressor, got None.")
    if y.dtype.kind not in "biufO":
        raise ValueError(f"y must hold numbers for a regressor, got type {y.dtype}.")
    try:
        numbers = y.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"y must hold numbers for a regressor: {error}.") from error
    assert_all_finite(numbers, input_name="y")
    return numbers


def in_type(numbers: np.ndarray, dtype: Any, argument: str = "y") -> np.ndarray:
    """Convert targets or weights to the dtype of the rows; raise ValueError if one overflows."""
    with np.errstate(over="ignore"):  # assert_all_finite finds an overflow
        converted = numbers.astype(dtype, copy=False)
    assert_all_finite(converted, input_name=argument)
    return converted


def times_classes(
    weights: np.ndarray | None, of_classes: tuple[float, ...], codes: np.ndarray, dtype: Any
) -> np.ndarray:
    """Multiply the weights of rows by the weights of their classes, and round only the product.

    Parameters
    ----------
    weights : ndarray of shape (n_rows,), of type ``dtype``, or None
        None: all are 1.
    of_classes : tuple of float
        The weight of each class code.
    codes : ndarray of shape (n_rows,), int32
        The class of each row.
    dtype : float64 or float32
        The type of the rows.
    """
    with np.errstate(over="ignore"):  # assert_all_finite finds an overflow
        product = np.array(of_classes)[codes] * (1.0 if weights is None else weights)
    return in_type(product, dtype, "class_weight times sample_weight")
