"""A digest of data as they were given, the same for the same content in every process."""

from collections.abc import Iterator
from datetime import date
from datetime import datetime
from datetime import time
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
import sys
from typing import Any
from uuid import UUID

import numpy as np
from scipy import sparse
from xxhash import xxh3_128

from optuna_treecv.caching.keys import content_of_array
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import head_of_array
from optuna_treecv.caching.keys import NoKey
from optuna_treecv.rows.checks import memmap_behind
from optuna_treecv.rows.distributed import RemoteRows
from optuna_treecv.rows.row_file import leave_pages

# Rows are copied in blocks of about this size, which stay in a CPU's cache.
_BLOCK_BYTES = 2**19

# Objects whose ``repr`` has all of their content.
_DATES = {date, datetime, time, timedelta}
_REPR = {bool, int, float, complex, bytes, Decimal, Fraction, UUID} | _DATES
_REPR_OF_PANDAS = ("Timestamp", "Timedelta")


def data_digest(*values: Any) -> bytes | None:
    """Return a digest of 16 bytes of X, y and other data, and of the order of these arguments.

    Any change of an entry, of a type, of a column's name or of the order of columns or categories
    gives another digest, and so does another index, which an estimator may use. The layout of an
    array in memory does not.

    Parameters
    ----------
    *values : ndarray, sparse matrix, list, pandas.DataFrame, pandas.Series or None

    Returns
    -------
    bytes or None
        None if some data have no reliable digest: objects other than strings, numbers, dates and
        missing values, and data frames of other libraries than pandas and polars.
    """
    try:
        return digest(*map(_data, values))
    except NoKey:
        return None


def _data(data: Any) -> bytes:
    pandas = sys.modules.get("pandas")  # which is loaded if data are from it
    polars = sys.modules.get("polars")
    if data is None:
        return b"none"
    if isinstance(data, RemoteRows) and data.content is not None:
        return b"placed" + data.content
    if sparse.issparse(data):
        rows = data.tocsr()
        arrays = map(_array, (rows.data, rows.indices, rows.indptr))
        return b"sparse" + digest(encode(data.format), encode(data.shape), *arrays)
    if isinstance(data, np.ndarray):
        return b"array" + _array(data)
    if isinstance(data, list | tuple):
        return b"array" + _list(data)
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return b"frame" + _frame(data)
    if pandas is not None and isinstance(data, pandas.Series):
        return b"series" + digest(encode(data.name), _index(data.index), _column(data.array))
    if polars is not None and isinstance(data, polars.DataFrame):
        return b"polars" + digest(encode(data.height), *map(_polars, data.get_columns()))
    if polars is not None and isinstance(data, polars.Series):
        return b"polars series" + _polars(data)
    raise NoKey(f"Data of type {type(data).__name__} have no digest.")


def _list(values: list[Any] | tuple[Any, ...]) -> bytes:
    try:
        array = np.asarray(values)
        # NumPy makes strings of numbers among strings.
        return _array(array if array.dtype.kind in "biufc" else np.asarray(values, dtype=object))
    except ValueError as error:
        raise NoKey("A list of rows of unequal lengths has no digest.") from error


def _array(array: np.ndarray) -> bytes:
    _check_type(array)
    if array.dtype.kind == "O":
        hashed = xxh3_128(f"objects {array.shape} ".encode())
        hashed.update(_objects(array))
        return hashed.digest()
    is_mapped = memmap_behind(array) is not None
    if array.ndim < 2 or (array.flags.c_contiguous and not is_mapped):
        return content_of_array(array)
    hashed = xxh3_128(head_of_array(array))
    for rows in _blocks(len(array), array.nbytes):
        hashed.update(array[rows].tobytes())
        leave_pages(array[rows])
    return hashed.digest()


def _numbers(columns: list[np.ndarray]) -> bytes:
    """Return a digest of columns of the same type, which may lie in memory row by row."""
    n_rows = len(columns[0])
    _check_type(columns[0])
    hashed = xxh3_128(f"{columns[0].dtype.str} {n_rows} {len(columns)}".encode())
    for rows in _blocks(n_rows, sum(column.nbytes for column in columns)):
        for column in columns:
            hashed.update(np.ascontiguousarray(column[rows]).view(np.uint8).data)
    return hashed.digest()


def _check_type(array: np.ndarray) -> None:
    # The bytes of a long double are partly undefined.
    is_known = array.dtype.kind in "biufcmMSUO" and array.dtype.char not in "gG"
    if isinstance(array, np.ma.MaskedArray) or not is_known:
        raise NoKey(f"Arrays of type {array.dtype} have no digest.")


def _blocks(n_rows: int, n_bytes: int) -> Iterator[slice]:
    """Yield parts of rows that stay in a CPU's cache."""
    step = max(1, n_rows * _BLOCK_BYTES // max(1, n_bytes))
    return (slice(start, start + step) for start in range(0, n_rows, step))


def _objects(cells: np.ndarray) -> bytes:
    """Return strings, numbers, dates and missing values as bytes that tell them apart."""
    each = cells.ravel().tolist()
    texts = ["s" + cell if type(cell) is str else "o" + _text_of(cell) for cell in each]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return lengths.tobytes() + "".join(texts).encode(errors="surrogatepass")


def _text_of(cell: Any) -> str:
    pandas, kind = sys.modules.get("pandas"), type(cell)
    if cell is None:
        return "None"
    if isinstance(cell, float) and cell != cell:
        return "nan"
    if pandas is not None and (cell is pandas.NA or cell is pandas.NaT):
        return repr(cell)
    is_of_pandas = pandas is not None and kind in [getattr(pandas, n) for n in _REPR_OF_PANDAS]
    if kind in _REPR or isinstance(cell, np.generic) or is_of_pandas:
        return f"{kind.__name__} {cell!r}"
    raise NoKey(f"Objects of type {kind.__name__} have no digest.")


def _polars(series: Any) -> bytes:
    """Return a digest of a column of polars."""
    kind = str(series.dtype)
    if series.dtype.is_temporal():  # as integers: objects of Python have no nanoseconds
        series = series.to_physical()
    is_plain = series.dtype.is_numeric() and not series.null_count()
    values = series.to_numpy() if is_plain else np.array([*series.to_list(), None], dtype=object)
    return digest(encode(series.name), encode(kind), _array(values))


def _frame(frame: Any) -> bytes:
    columns = [*frame.columns.names, *frame.columns]
    parts = [encode(len(frame)), encode(columns), _index(frame.index)]
    names = [  # of NumPy types; "" for objects and for the types of pandas
        dtype.str if isinstance(dtype, np.dtype) and dtype.kind != "O" else ""
        for dtype in frame.dtypes
    ]
    start = 0
    for of_numbers, alike in groupby(names):
        stop = start + len(list(alike))
        columns = [frame.iloc[:, column] for column in range(start, stop)]
        if of_numbers:
            parts.append(_numbers([column.to_numpy() for column in columns]))
        else:
            parts += [_column(column.array) for column in columns]
        start = stop
    return digest(*parts)


def _index(index: Any) -> bytes:
    """Return a digest of the index of a data frame."""
    if hasattr(index, "step"):  # a range, which no array needs to be made of
        return digest(encode((index.name, index.start, index.stop, index.step)))
    levels = [index.get_level_values(level) for level in range(index.nlevels)]
    return digest(encode(list(index.names)), *(_column(level.array) for level in levels))


def _column(values: Any) -> bytes:
    """Return a digest of an array of pandas."""
    dtype, arrays = values.dtype, sys.modules["pandas"].arrays
    if hasattr(values, "categories") and hasattr(values, "codes"):
        categories, codes = _column(values.categories.array), _array(np.asarray(values.codes))
        parts = [encode(values.ordered), categories, codes]
    elif hasattr(dtype, "closed"):  # intervals
        parts = [_column(values.left.array), _column(values.right.array)]
    elif hasattr(values, "asi8"):  # datetimes, durations and periods count ticks
        parts = [_array(values.asi8)]
    elif hasattr(values, "sp_values"):
        parts = [encode(values.fill_value), _array(values.to_dense())]
    elif isinstance(values, arrays.NumpyExtensionArray):
        parts = [_array(values.to_numpy())]
    elif isinstance(values, (arrays.IntegerArray, arrays.FloatingArray, arrays.BooleanArray)):
        numbers = values.to_numpy(dtype=dtype.numpy_dtype, na_value=0)
        parts = [_array(numbers), _array(values.isna())]
    else:  # strings, for example
        parts = [_array(values.to_numpy(dtype=object))]
    return digest(encode(str(dtype)), *parts)
