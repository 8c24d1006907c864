"""Memory for rows and model states, and the layout of rows for kernels."""

from contextlib import suppress
from math import prod
import mmap
from typing import Any
from typing import cast
from weakref import finalize

import numpy as np
from scipy import sparse
from sklearn.utils import assert_all_finite

from optuna_treecv._kernels.prepare import address
from optuna_treecv._kernels.prepare import copy_rows
from optuna_treecv.rows.layout import SparseRows

# The memory of prepared rows is cached and reused if its size is between these bounds. Preparing
# rows takes twice as long with new memory, because the system must fill it with zeros. NumPy
# requests less than 4 MiB from its own allocator rather than from the system.
_LEAST_KEPT, MOST_KEPT = 2**22, 2**28

#: The minimum size of a part. Most pages of a smaller part would be shared with other parts.
LEAST_PART = 4 * mmap.PAGESIZE

# The cached memory: at most one unused array.
_kept: list[np.ndarray] = []


class _Lent(np.ndarray):
    """An array whose memory is returned to the cache when its last view is deleted.

    It is a subclass of ndarray, so that ``base`` of a view is this array rather than the owner of
    the memory.
    """


def aligned_bytes(n_bytes: int) -> np.ndarray:
    """Return an uninitialized array of bytes, aligned to a cache line of 64 bytes."""
    return _aligned(np.empty(n_bytes + 64, np.uint8), n_bytes)


def aligned_empty(shape: tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    """Return an uninitialized array that is aligned to a cache line."""
    return aligned_bytes(prod(shape) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)


def empty_rows(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialized array for rows or a Gram matrix, in cached memory if possible.

    The memory of the array that was deleted last is cached, at most 256 MiB.
    """
    n_bytes = prod(shape) * np.dtype(dtype).itemsize
    if not _LEAST_KEPT <= n_bytes <= MOST_KEPT:
        return aligned_empty(shape, dtype)
    try:
        memory = _kept.pop()
    except IndexError:
        memory = np.empty(0, np.uint8)
    if not n_bytes + 64 <= len(memory) <= 2 * n_bytes:
        memory = np.empty(n_bytes + 64, np.uint8)
    lent = memory.view(_Lent)
    finalize(lent, _keep, memory).atexit = False
    return _aligned(lent, n_bytes).view(np.ndarray).view(dtype).reshape(shape)


def empty_parts(n_parts: int, n_bytes: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return uninitialized bytes, and equal parts of them that can be freed separately.

    When the last array in a part is deleted, the memory of this part, except for at most two
    pages, is returned to the system if no array of the whole exists. On Windows, all memory is
    freed with the last part.

    Returns
    -------
    whole : ndarray of shape (n_parts * n_bytes,), uint8
    parts : list of n_parts ndarray of shape (n_bytes,), uint8
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        whole = np.empty(n_parts * n_bytes, np.uint8)
        return whole, list(whole.reshape(n_parts, n_bytes))
    pages = mmap.mmap(-1, n_parts * n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Request huge pages, as NumPy does, because filling small pages takes three times as long. Not
    # all systems support them.
    with suppress(AttributeError, OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(pages, np.uint8)
    parts = []
    for begin in range(0, len(whole), n_bytes):
        lent = whole[begin : begin + n_bytes].view(_Lent)
        first, end = -(-begin // mmap.PAGESIZE), (begin + n_bytes) // mmap.PAGESIZE
        if first < end:
            within = first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE
            finalize(lent, pages.madvise, mmap.MADV_DONTNEED, *within).atexit = False
        parts.append(lent[:].view(np.ndarray))  # refers to the slice, and that to ``lent``
    return whole, parts


def free_cached_memory() -> None:
    """Return the cached memory to the system."""
    _kept.clear()


def _keep(memory: np.ndarray) -> None:
    _kept[:] = [memory]


def _aligned(memory: np.ndarray, n_bytes: int) -> np.ndarray:
    begin = -address(memory) % 64
    return memory[begin : begin + n_bytes]


# Rows for kernels: padded with zeros, dense or sparse.


def padded_width(n_columns: int) -> int:
    """Round up to a multiple of 8."""
    return -(-n_columns // 8) * 8


def pad_rows(
    X: Any, order: np.ndarray, intercept: bool, missing: bytes = b"", beside: bytes = b""
) -> np.ndarray | SparseRows:
    """Copy ``X[order]`` with an optional intercept column of ones, and pad it with zero columns.

    Parameters
    ----------
    X : ndarray or sparse matrix of shape (n, n_features), float64 or float32
    order : ndarray of shape (n_rows,), uint32
    intercept : bool
    missing, beside : bytes
        As in ``RowLayout``.

    Returns
    -------
    ndarray of shape (n_rows, multiple of 8), of the type of X, aligned; or SparseRows

    Raises
    ------
    ValueError
        If a number is not finite.
    """
    width = padded_width(X.shape[1] + intercept)
    if sparse.issparse(X):
        return _sparse_rows(X, order, intercept, width, missing, beside)
    rows = empty_rows((len(order), width), X.dtype)
    write_rows(X, intercept, missing, rows, source=order)
    return rows


def write_rows(
    X: np.ndarray, intercept: bool, missing: bytes, rows: np.ndarray, **places: np.ndarray
) -> None:
    """Write padded rows by ``copy_rows``, and check that all values are finite."""
    if any(stride % X.itemsize for stride in X.strides):
        X = X.copy()  # the strides of a field of packed records are not multiples of the item size
    if not copy_rows(X, float(intercept), rows, **places):
        may_miss = np.frombuffer(missing, bool) if missing else np.zeros(X.shape[1], bool)
        # This raises an error that contains the value.
        assert_all_finite(X[:, ~may_miss], input_name="X")
        assert_all_finite(X[:, may_miss], input_name="X", allow_nan=True)


def _sparse_rows(
    X: Any, order: np.ndarray, intercept: bool, width: int, missing: bytes, beside: bytes
) -> SparseRows:
    if width >= 2**31:
        raise ValueError(f"X must have fewer than 2**31 - 8 columns, got {X.shape[1]}.")
    rows = X.tocsr()[order]
    with np.errstate(over="ignore"):  # assert_all_finite finds an overflow
        rows.sum_duplicates()  # also sorts the columns
    dense = None
    if beside:
        is_beside = np.frombuffer(beside, bool)
        rows, columns = split_columns(rows, is_beside)
        may_miss = np.frombuffer(missing, bool)[is_beside].tobytes() if missing else b""
        in_order = np.arange(len(order), dtype=np.uint32)
        dense = cast(np.ndarray, pad_rows(columns, in_order, False, may_miss))
    assert_all_finite(rows.data, input_name="X")
    rows.eliminate_zeros()
    values, columns, begins = rows.data, rows.indices, rows.indptr.astype(np.int64)
    if intercept:
        values = np.insert(values, begins[1:], 1)
        columns = np.insert(columns, begins[1:], X.shape[1])
        begins += np.arange(len(begins))
    columns = columns.astype(np.int32, copy=False)
    return SparseRows(values, columns, begins, (len(order), width), dense)


def split_columns(
    X: sparse.csr_array, is_beside: np.ndarray
) -> tuple[sparse.csr_array, np.ndarray]:
    """Move the dense columns of sparse rows to a separate dense array.

    For example, a StandardScaler leaves no zeros in the columns that it centers, whereas most
    entries in the columns of a OneHotEncoder are zero.

    Parameters
    ----------
    X : sparse matrix of shape (n_rows, n_features), CSR without duplicates
    is_beside : ndarray of shape (n_features,), bool

    Returns
    -------
    sparse_rows : sparse array of shape (n_rows, n_features)
        Without entries in the dense columns.
    dense_rows : ndarray of shape (n_rows, n_beside)
        The dense columns.
    """
    stays = ~is_beside[X.indices]
    begins = np.append(0, np.cumsum(stays))[X.indptr]
    others = sparse.csr_array((X.data[stays], X.indices[stays], begins), shape=X.shape)
    return others, X[:, is_beside].toarray()


def largest_norm2(X: Any, n_features: int) -> float:
    """Return the largest squared norm of a row, without the intercept, computed in float64.

    The result is the same for dense and sparse rows.

    Parameters
    ----------
    X : ndarray, sparse matrix or SparseRows
        Original or prepared rows.
    n_features : int

    Returns
    -------
    float
    """
    largest = 0.0
    if sparse.issparse(X):
        X = pad_rows(X, np.arange(X.shape[0], dtype=np.uint32), False)
    if isinstance(X, SparseRows):
        for begin in range(0, len(X), 4096):
            rows = X[begin : begin + 4096]
            of_row = np.repeat(np.arange(len(rows)), np.diff(rows.begins))
            squares = np.square(rows.values, dtype=np.float64) * (rows.columns < n_features)
            largest = max(largest, float(np.bincount(of_row, squares, len(rows)).max()))
        return largest
    for begin in range(0, len(X), 4096):  # cumsum adds from the left, as bincount does
        squares = np.square(X[begin : begin + 4096, :n_features], dtype=np.float64)
        largest = max(largest, float(np.cumsum(squares, axis=1)[:, -1].max()))
    return largest
