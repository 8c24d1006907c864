"""Keys of models and digests of data. Two models with equal keys are identical, bit for bit.

A key covers the class of the learner with the version of the package and the ``FORMAT`` of the
kernels, the hyper-parameters that have affected the model so far, the prepared rows, and the
prefix: the row ranges, and their orders, on which the model has been trained. Because these are
ranges of rows, not of folds, trees of k and 2k folds can share models if both numbers are powers
of two.
"""

from collections.abc import Callable
from collections.abc import Iterator
import copyreg
from datetime import date
from datetime import datetime
from datetime import time
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from itertools import groupby
import os
import struct
import sys
from threading import Lock
from typing import Any
from typing import NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

import numpy as np
from scipy import sparse
from sklearn import get_config
from xxhash import xxh3_128

from optuna_treecv._kernels import FORMAT
from optuna_treecv.caching.code import content_of_code
from optuna_treecv.caching.code import global_name
from optuna_treecv.caching.code import installed_version
from optuna_treecv.caching.code import is_code
from optuna_treecv.estimators.base import parameters_of
from optuna_treecv.rows.checks import memmap_behind
from optuna_treecv.rows.distributed import RemoteRows
from optuna_treecv.rows.layout import SparseRows
from optuna_treecv.rows.row_file import leave_pages

#: (value) -> bytes that identify it.
Encode = Callable[[Any], bytes]
#: (value, encode) -> bytes that identify an object that is neither plain data nor an estimator.
#: Its parts are passed to ``encode``.
Other = Callable[[Any, Encode], bytes]

_PACKAGE = "optuna_treecv"
_VERSION = version("optuna-treecv")
#: The version of stored models. ``FORMAT`` is included because the meaning of their bytes may
#: change between commits of the same version.
BUILD = f"{_VERSION} format {FORMAT} {sys.byteorder}"
#: The version of stored scores: losses are defined by this package, scorers by scikit-learn.
SCORED_BY = f"{BUILD} scikit-learn {version('scikit-learn')}".encode()

# The kinds of NumPy dtypes whose entries are identified by their bytes.
_PLAIN_KINDS = "biufcmM"

# The attribute for metadata requests, which scikit-learn's ``clone`` copies besides parameters.
_REQUESTS = "_metadata_request"
# Other attributes that ``clone`` copies: the settings of ``set_output``, and callbacks.
_CLONED_ATTRIBUTES = ("_sklearn_output_config", "_skl_callbacks")

# Code from outside this package may change without changing its name. Its classes are identified
# by random tokens, so their keys are valid only in this process.
_tokens: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()
_lock = Lock()


class Key(NamedTuple):
    """The key of an array in a cache or store.

    Attributes
    ----------
    data : bytes
        The key of the rows; for a model, the key of its training rows in their order. For sums,
        forests and preprocessing, it also covers everything that the other fields cover for
        models.
    folds : bytes
        The key of all folds or of a single fold; empty if ``data`` covers them.
    settings : bytes
        The key of the estimator and everything else that affects the result.
    unit : bytes
        The kind of the array: a model, outputs, scores, sums, ....
    n_bytes : int
        The length of the array in bytes, with which a store checks its entry; 0 for arrays that
        are never stored.
    """

    data: bytes
    folds: bytes
    settings: bytes
    unit: bytes
    n_bytes: int = 0


class NoKey(TypeError):
    """Raised for a value that has no key or digest."""


def digest(*parts: bytes) -> bytes:
    """Return a 16-byte digest of a sequence of bytes objects."""
    hashed = blake2b(digest_size=16)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.digest()


def stored_as(key: Key) -> bytes:
    """Return the bytes that represent a key in a store, a digest of its fields."""
    return digest(*key[:-1], encode(key.n_bytes))


def is_ours(kind: type) -> bool:
    """Return whether a class belongs to this package. Models of other classes are not stored."""
    return kind.__module__.partition(".")[0] == _PACKAGE


def encode(value: Any) -> bytes:
    """Return bytes that identify the value of a hyper-parameter within this process.

    Raises
    ------
    NoKey
        If the value is an object that has no such bytes.
    """
    return _encode(value, _in_this_process)


def lasting_key(value: Any) -> bytes:
    """Return bytes that identify an estimator or a hyper-parameter in all processes.

    Classes and functions from outside this package are identified by name and by the version of
    their distribution.

    Raises
    ------
    NoKey
        If the value, or a part of it, has no such bytes.
    """
    return _guarded(value, _lasting)


def content_key(value: Any) -> bytes:
    """Return bytes that identify a scorer in all processes.

    Classes and functions that are not in an installed distribution are identified by their
    content. Therefore, scorers that are defined in scripts and notebooks have keys, too.

    Raises
    ------
    NoKey
        If the value, or a part of it, has no such bytes.
    """
    met: dict[int, Any] = {}

    def other(part: Any, inner: Encode) -> bytes:
        if is_code(part):
            return b"t" + digest(*content_of_code(part, inner, met))
        return _encode_object(part, inner)

    return _guarded(value, other)


def _guarded(value: Any, other: Other) -> bytes:
    try:
        return _encode(value, other)
    except RecursionError:
        raise NoKey(f"{type(value).__name__} contains itself, so it cannot be hashed.") from None


def _encode(value: Any, other: Other) -> bytes:
    """Return bytes that identify plain data or an estimator, including its type.

    ``other`` encodes classes, functions and other objects.
    """

    def inner(part: Any) -> bytes:
        return _encode(part, other)

    kind = type(value)
    if value is None or kind is bool:
        return repr(value).encode()
    if kind is int:
        return b"i%d" % value
    if kind is float:
        return b"f" + struct.pack("<d", value if value == value else np.nan)
    if kind is str:
        return b"s" + value.encode(errors="surrogatepass")
    if kind is bytes:
        return b"b" + value
    if kind is tuple:
        return b"(" + digest(*map(inner, value))
    if kind is list:
        return b"[" + digest(*map(inner, value))
    if kind in (set, frozenset):
        return kind.__name__.encode() + digest(*sorted(map(inner, value)))
    if kind is dict:
        return b"{" + digest(*(inner(item) for pair in value.items() for item in pair))
    if isinstance(value, np.generic) and value.dtype.kind in _PLAIN_KINDS + "SU":
        return b"n" + value.dtype.str.encode() + value.tobytes()
    if kind is np.ndarray and value.dtype.kind in _PLAIN_KINDS:
        return b"a" + content_of_array(value)
    if isinstance(value, Enum):
        return b"m" + digest(inner(kind), value.name.encode())
    if isinstance(value, slice):
        return b":" + digest(*map(inner, (value.start, value.stop, value.step)))
    if hasattr(value, "get_params") and not isinstance(value, type):
        return b"e" + digest(inner(kind), *map(inner, _settings_of(value)))
    return other(value, inner)


def first_key(value: Any, *kinds: Callable[[Any], bytes]) -> bytes | None:
    """Return the first key that one of the functions returns without raising NoKey, or None."""
    for key_of in kinds:
        try:
            return key_of(value)
        except NoKey:
            continue
    return None


def content_of_array(array: np.ndarray) -> bytes:
    """Return a 16-byte digest of the type, shape and entries of an array of numbers.

    The memory layout of the array has no effect.
    """
    hashed = xxh3_128(head_of_array(array))
    hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hashed.digest()


def head_of_array(array: np.ndarray) -> bytes:
    """Return the dtype and the shape of an array as bytes, with which its digest begins."""
    return f"{array.dtype.str} {array.shape} ".encode()


def _settings_of(estimator: Any) -> list[Any]:
    """Return the parameters of an estimator, and the other settings that ``clone`` copies."""
    clone = getattr(estimator, "__sklearn_clone__", None)
    if getattr(clone, "__module__", "sklearn.base") != "sklearn.base":
        raise NoKey(
            f"{type(estimator).__name__} cannot be hashed, because its __sklearn_clone__ may copy "
            "more than its parameters."
        )
    attributes = getattr(estimator, "__dict__", {})
    # This raises NoKey if random_state is a generator. Otherwise, get_params of XGBoost would draw
    # a number from it and thus change the next fit.
    encode(attributes.get("random_state"))
    settings = [(name, attributes[name]) for name in _CLONED_ATTRIBUTES if name in attributes]
    if _REQUESTS in attributes:
        # The representation consists of names, strings and bools.
        settings.append((_REQUESTS, repr(attributes[_REQUESTS])))
    return [parameters_of(estimator), *settings]


def _in_this_process(value: Any, inner: Encode) -> bytes:
    """Return the key of a class: a random token, and its content, which may change."""
    if not isinstance(value, type):
        raise NoKey(f"{value!r} cannot be hashed, because it is not a class.")
    if is_ours(value):
        return b"t" + f"{value.__module__}.{value.__qualname__} {BUILD}".encode()
    met: dict[int, Any] = {}

    def of_part(part: Any) -> bytes:
        """Return bytes that identify a part, or only its type, if it has no key."""
        try:
            return _encode(part, other)
        except (NoKey, RecursionError):
            return type(part).__qualname__.encode()

    def other(part: Any, _: Encode) -> bytes:
        if is_code(part):
            return digest(*content_of_code(part, of_part, met))
        raise NoKey

    with _lock:
        name = _tokens.setdefault(value, os.urandom(16))
    return b"t" + digest(name, *content_of_code(value, of_part, met))


def _lasting(value: Any, inner: Encode) -> bytes:
    if isinstance(value, type) or global_name(value) is not None:
        return b"t" + _versioned_name(value)
    return _encode_object(value, inner)


def _encode_object(value: Any, inner: Encode) -> bytes:
    """Return a key for an object that is not a number, a container, code or an estimator.

    The key covers what ``pickle`` would store: the name of a singleton, or the class and the
    attributes of a plain object. Objects with special pickling methods, such as random number
    generators and iterators, have no key.
    """
    if type(value) is np.ndarray and value.dtype.kind in "SUO":
        return b"l" + digest(*map(inner, (value.dtype.str, value.shape, value.tolist())))
    if isinstance(value, partial):
        return b"p" + digest(*map(inner, (value.func, value.args, value.keywords)))
    try:
        pickled = value.__reduce_ex__(2)
    except Exception as error:  # of foreign code
        raise NoKey(f"{value!r} cannot be hashed, because it cannot be pickled.") from error
    if isinstance(pickled, str):
        return b"t" + _versioned_name(value, pickled)
    plain = pickled[0] is copyreg.__newobj__  # type: ignore[attr-defined]
    if not plain or any(items is not None for items in pickled[3:]):
        raise NoKey(f"{value!r} cannot be hashed, because it has a special pickling method.")
    return b"o" + digest(inner(type(value)), *map(inner, pickled[1:3]))


def content_of(*data: Any) -> bytes | None:
    """Return a digest of prepared rows, targets or weights; None for Python objects."""
    parts = [_list_arrays(part) for part in data]
    if None in parts:
        return None
    return digest(*(digest(*map(content_of_array, arrays or ())) for arrays in parts))


def token() -> bytes:
    """Return a random key, which is different from all other keys."""
    return os.urandom(32)


def _versioned_name(value: Any, name: str | None = None) -> bytes:
    """Return the name of a class, function or singleton, with its versions."""
    module_and_name = global_name(value, name)
    if module_and_name is None:
        raise NoKey(f"{value!r} cannot be hashed, because it cannot be imported by a name.")
    modules, versions = {module_and_name[0]}, set()
    for base in value.__mro__ if isinstance(value, type) else ():
        if base.__module__.partition(".")[0] not in sys.stdlib_module_names:
            modules.add(base.__module__)
    for module in modules:
        ours = module.partition(".")[0] == _PACKAGE
        version_of_code = BUILD if ours else installed_version(module)
        if version_of_code is None:
            raise NoKey(
                f"{'.'.join(module_and_name)} cannot be hashed, because its code may change: "
                f"{module} belongs to an editable installation, or to no installed distribution."
            )
        versions.add(version_of_code)
    return f"{':'.join(module_and_name)} {', '.join(sorted(versions))}".encode()


def _list_arrays(data: Any) -> list[np.ndarray] | None:
    """Return the arrays that represent rows or targets; None if they contain Python objects."""
    if data is None:
        return []
    if isinstance(data, SparseRows):
        dense = [] if data.dense is None else [data.dense]
        return [np.asarray(data.shape), data.values, data.columns, data.begins, *dense]
    if hasattr(data, "tocsr"):
        data = data.tocsr()
        return [np.asarray(data.shape), data.data, data.indices, data.indptr]
    if isinstance(data, np.ndarray) and data.dtype.kind in "biufSU":
        return [data]
    return None


def under_configuration(name: bytes) -> bytes:
    """Return a key for results that depend on the configuration of scikit-learn.

    If ``transform_output`` is set, steps of a Pipeline may get data frames instead of arrays.
    """
    output = get_config()["transform_output"]
    return name if output == "default" else digest(name, encode(output))


# Digests of the user's data, which are the same for the same content in all processes.

# Rows are copied in blocks of about this size, which fit into a CPU cache.
_BLOCK_BYTES = 2**19

# Types whose ``repr`` shows their full content.
_DATES = {date, datetime, time, timedelta}
_REPR = {bool, int, float, complex, bytes, Decimal, Fraction, UUID} | _DATES


def data_digest(*values: Any) -> bytes | None:
    """Return a 16-byte digest of data such as X and y, in this order; None if they have no digest.

    The digest changes with any entry, dtype or column name, with the order of columns or
    categories, and with the index, which an estimator may use. It does not depend on the memory
    layout of an array.

    Parameters
    ----------
    *values : ndarray, sparse matrix, list, pandas.DataFrame, pandas.Series or None

    Returns
    -------
    bytes or None
        None if some data have no reliable digest: objects other than strings, numbers, dates and
        missing values, and data frames from libraries other than pandas and polars.
    """
    try:
        return digest(*map(_digest_data, values))
    except NoKey:
        return None


def _digest_data(data: Any) -> bytes:
    # None unless pandas is imported, which it is if there are data from it.
    pandas = sys.modules.get("pandas")
    polars = sys.modules.get("polars")
    if data is None:
        return b"none"
    if isinstance(data, RemoteRows) and data.content is not None:
        return b"placed" + data.content
    if sparse.issparse(data):
        rows = data.tocsr()
        arrays = map(_digest_array, (rows.data, rows.indices, rows.indptr))
        return b"sparse" + digest(encode(data.format), encode(data.shape), *arrays)
    if isinstance(data, np.ndarray):
        return b"array" + _digest_array(data)
    if isinstance(data, list | tuple):
        return b"array" + _digest_list(data)
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return b"frame" + _digest_frame(data)
    if pandas is not None and isinstance(data, pandas.Series):
        return b"series" + digest(
            encode(data.name), _digest_index(data.index), _digest_column(data.array)
        )
    if polars is not None and isinstance(data, polars.DataFrame):
        return b"polars" + digest(encode(data.height), *map(_digest_polars, data.get_columns()))
    if polars is not None and isinstance(data, polars.Series):
        return b"polars series" + _digest_polars(data)
    raise NoKey(f"Data of type {type(data).__name__} cannot be hashed.")


def _digest_list(values: list[Any] | tuple[Any, ...]) -> bytes:
    try:
        array = np.asarray(values)
        # In a list of strings and numbers, NumPy would convert the numbers to strings.
        return _digest_array(
            array if array.dtype.kind in "biufc" else np.asarray(values, dtype=object)
        )
    except ValueError as error:
        raise NoKey("A list of rows of unequal lengths cannot be hashed.") from error


def _digest_array(array: np.ndarray) -> bytes:
    _check_type(array)
    if array.dtype.kind == "O":
        hashed = xxh3_128(f"objects {array.shape} ".encode())
        hashed.update(_encode_objects(array))
        return hashed.digest()
    is_mapped = memmap_behind(array) is not None
    if array.ndim < 2 or (array.flags.c_contiguous and not is_mapped):
        return content_of_array(array)
    hashed = xxh3_128(head_of_array(array))
    for rows in _blocks(len(array), array.nbytes):
        hashed.update(array[rows].tobytes())
        leave_pages(array[rows])
    return hashed.digest()


def _digest_columns(columns: list[np.ndarray]) -> bytes:
    """Return a digest of columns of the same dtype, which may be stored in row-major order."""
    n_rows = len(columns[0])
    _check_type(columns[0])
    hashed = xxh3_128(f"{columns[0].dtype.str} {n_rows} {len(columns)}".encode())
    for rows in _blocks(n_rows, sum(column.nbytes for column in columns)):
        for column in columns:
            hashed.update(np.ascontiguousarray(column[rows]).view(np.uint8).data)
    return hashed.digest()


def _check_type(array: np.ndarray) -> None:
    # A long double has padding bytes, whose content is undefined.
    is_known = array.dtype.kind in "biufcmMSUO" and array.dtype.char not in "gG"
    if isinstance(array, np.ma.MaskedArray) or not is_known:
        raise NoKey(f"A {type(array).__name__} of dtype {array.dtype} cannot be hashed.")


def _blocks(n_rows: int, n_bytes: int) -> Iterator[slice]:
    """Yield slices of rows that fit into a CPU cache."""
    step = max(1, n_rows * _BLOCK_BYTES // max(1, n_bytes))
    return (slice(start, start + step) for start in range(0, n_rows, step))


def _encode_objects(cells: np.ndarray) -> bytes:
    """Return bytes that identify an array of strings, numbers, dates and missing values."""
    flat = cells.ravel().tolist()
    texts = ["s" + cell if type(cell) is str else "o" + _encode_cell(cell) for cell in flat]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return lengths.tobytes() + "".join(texts).encode(errors="surrogatepass")


def _encode_cell(cell: Any) -> str:
    pandas, kind = sys.modules.get("pandas"), type(cell)
    if cell is None:
        return "None"
    if isinstance(cell, float) and cell != cell:
        return "nan"
    if pandas is not None and (cell is pandas.NA or cell is pandas.NaT):
        return repr(cell)
    is_of_pandas = pandas is not None and kind in (pandas.Timestamp, pandas.Timedelta)
    if kind in _REPR or isinstance(cell, np.generic) or is_of_pandas:
        return f"{kind.__name__} {cell!r}"
    raise NoKey(f"Objects of type {kind.__name__} cannot be hashed.")


def _digest_polars(series: Any) -> bytes:
    """Return a digest of a polars Series."""
    kind = str(series.dtype)
    if series.dtype.is_temporal():  # as integers, because Python objects have no nanoseconds
        series = series.to_physical()
    is_plain = series.dtype.is_numeric() and not series.null_count()
    values = series.to_numpy() if is_plain else np.array([*series.to_list(), None], dtype=object)
    return digest(encode(series.name), encode(kind), _digest_array(values))


def _digest_frame(frame: Any) -> bytes:
    columns = [*frame.columns.names, *frame.columns]
    parts = [encode(len(frame)), encode(columns), _digest_index(frame.index)]
    names = [  # of NumPy dtypes; "" for objects and for dtypes of pandas
        dtype.str if isinstance(dtype, np.dtype) and dtype.kind != "O" else ""
        for dtype in frame.dtypes
    ]
    start = 0
    for of_numbers, alike in groupby(names):
        stop = start + len(list(alike))
        columns = [frame.iloc[:, column] for column in range(start, stop)]
        if of_numbers:
            parts.append(_digest_columns([column.to_numpy() for column in columns]))
        else:
            parts += [_digest_column(column.array) for column in columns]
        start = stop
    return digest(*parts)


def _digest_index(index: Any) -> bytes:
    """Return a digest of the index of a data frame."""
    if hasattr(index, "step"):  # a RangeIndex, which is not converted to an array
        return digest(encode((index.name, index.start, index.stop, index.step)))
    levels = [index.get_level_values(level) for level in range(index.nlevels)]
    return digest(encode(list(index.names)), *(_digest_column(level.array) for level in levels))


def _digest_column(values: Any) -> bytes:
    """Return a digest of a pandas array."""
    dtype, arrays = values.dtype, sys.modules["pandas"].arrays
    if hasattr(values, "categories") and hasattr(values, "codes"):
        categories = _digest_column(values.categories.array)
        parts = [encode(values.ordered), categories, _digest_array(np.asarray(values.codes))]
    elif hasattr(dtype, "closed"):  # intervals
        parts = [_digest_column(values.left.array), _digest_column(values.right.array)]
    elif hasattr(values, "asi8"):  # datetimes, durations and periods are stored as integers
        parts = [_digest_array(values.asi8)]
    elif hasattr(values, "sp_values"):
        parts = [encode(values.fill_value), _digest_array(values.to_dense())]
    elif isinstance(values, arrays.NumpyExtensionArray):
        parts = [_digest_array(values.to_numpy())]
    elif isinstance(values, (arrays.IntegerArray, arrays.FloatingArray, arrays.BooleanArray)):
        numbers = values.to_numpy(dtype=dtype.numpy_dtype, na_value=0)
        parts = [_digest_array(numbers), _digest_array(values.isna())]
    else:  # strings, for example
        parts = [_digest_array(values.to_numpy(dtype=object))]
    return digest(encode(str(dtype)), *parts)
