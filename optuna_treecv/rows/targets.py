"""Targets: class codes of labels, and numbers."""

from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite
from sklearn.utils import check_array
from sklearn.utils import check_consistent_length
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from optuna_treecv.rows.checks import check_array_kind
from optuna_treecv.rows.checks import first_missing
from optuna_treecv.rows.checks import naming

_LABELS_AT_ONCE = 2**20


def check_targets(X: Any, y: Any) -> np.ndarray:
    """Return the targets of rows as an array, checked as far as every learner needs."""
    check_array_kind("y", y)
    if isinstance(y, list | tuple) and any(isinstance(label, str) for label in y):
        if not all(isinstance(label, str) for label in y):
            # An array of strings would make labels of None and NaN.
            labels = np.array(y, dtype=object)
            raise ValueError(_why_no_labels(labels, TypeError("it mixes types")))
    with naming("X and y"):
        check_consistent_length(X, y)
    with naming("y"):
        y = _as_targets(y)
    if y.dtype.kind == "f":
        assert_all_finite(y, input_name="y")
    return y


def _as_targets(y: Any) -> np.ndarray:
    """Return y as an array with one dimension, or with two if it has several columns."""
    shape = np.shape(y)
    if len(shape) == 2 and shape[1] > 1:
        return check_array(y, dtype=None, order="C", ensure_all_finite=False, input_name="y")
    if 0 in shape[1:]:
        raise ValueError(
            f"y must have the shape (n_rows,) or (n_rows, n_targets), got shape {shape}."
        )
    if len(shape) > 2:
        return np.asarray(y)
    return column_or_1d(y, warn=True)


def count_targets(y: Any) -> int:
    """Return the number of columns of y, which is 1 for an array with one dimension."""
    shape = np.shape(y)
    return 1 if len(shape) < 2 else shape[1]


def without_single_column(y: Any) -> np.ndarray:
    """Return y or predictions as an array, with two dimensions only if it has several columns."""
    y = np.asarray(y)
    return y if count_targets(y) > 1 else y.ravel()


def find_classes(y: np.ndarray) -> np.ndarray:
    """Return the sorted classes of the labels ``y``, which must be two or more."""
    classes = distinct_labels(y)
    if len(classes) < 2:
        raise ValueError(f"y must hold at least 2 classes, got one class: {classes[0]}.")
    return classes


def distinct_labels(y: np.ndarray) -> np.ndarray:
    """Return the sorted distinct labels in ``y``.

    Raises
    ------
    ValueError
        If y is continuous, holds objects other than strings, or lacks labels.
    """
    if y.dtype.kind in "mM" and (row := first_missing(y)) is not None:
        raise ValueError(f"y must hold a label for each row, got NaT in row {row}.")
    if (span := _span_of(y)) is not None:  # integers, of which scikit-learn refuses none
        counts = np.bincount(y.ravel().astype(np.intp) - span.start, minlength=len(span))
        return (np.flatnonzero(counts) + span.start).astype(y.dtype)
    try:
        check_classification_targets(y)
        return np.unique(y)
    except (TypeError, ValueError) as error:
        raise ValueError(_why_no_labels(y, error)) from error


def _span_of(y: np.ndarray) -> range | None:
    """Return the integers from the least label to the largest one, if they are few."""
    if y.dtype.kind not in "iu" or y.size == 0:
        return None
    span = range(int(y.min()), int(y.max()) + 1)
    are_few = span.stop - span.start <= min(_LABELS_AT_ONCE, y.size // 2)
    return span if are_few and span.stop < 2**62 else None


def _why_no_labels(y: np.ndarray, error: Exception) -> str:
    """Return the message for labels in which scikit-learn or NumPy found an error."""
    if y.dtype != object:
        return f"y must hold class labels: {error}"
    row = first_missing(y)
    if row is not None:
        return f"y must hold a label for each row, got {y[row]!s} in row {row}."
    of_each_type = {type(label): repr(label) for label in reversed(y)}
    return (
        "Unknown label type: y must hold strings, or be an array of integers, got objects such as "
        f"{', '.join(reversed(of_each_type.values()))}; y.astype(int) or y.astype(str) would be "
        "right."
    )


def as_codes(y: Any, classes: np.ndarray) -> np.ndarray:
    """Return the class codes (int32) of labels."""
    codes = np.empty(np.shape(y), np.int32)
    if isinstance(y, np.ndarray) and (span := _span_of(y)) is not None:
        of_each = np.searchsorted(classes, span).astype(np.int32)
        return of_each[y.astype(np.intp) - span.start]
    for begin in range(0, len(codes), _LABELS_AT_ONCE):  # since searchsorted returns int64
        part = slice(begin, begin + _LABELS_AT_ONCE)
        codes[part] = np.searchsorted(classes, y[part])
    return codes


def predicted_codes(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the class codes of predicted labels, -1 for labels that are no class."""
    codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[codes] == labels, codes, -1)


def as_numbers(y: np.ndarray | None) -> np.ndarray:
    """Return the targets of a regressor as float64.

    Raises
    ------
    ValueError
        If they are not finite numbers.
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
    """Return targets or weights in the type of the rows, which may be too small for them."""
    with np.errstate(over="ignore"):  # assert_all_finite finds an overflow
        converted = numbers.astype(dtype, copy=False)
    assert_all_finite(converted, input_name=argument)
    return converted


def times_classes(
    weights: np.ndarray | None, of_classes: tuple[float, ...], codes: np.ndarray, dtype: Any
) -> np.ndarray:
    """Return the weights of rows times those of their classes, rounded once.

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
