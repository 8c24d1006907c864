"""Loops that prepare rows for training: copying them in a given order, and binning their features for trees.

Copies are padded with zeros to a multiple of 8 columns and are checked for NaN and infinity in the same pass. Bins are
stored feature by feature, as bin indices of one byte.
"""

from cython cimport floating
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint8_t

import numpy as np

from optuna_treecv._kernels.rows cimport CACHE_BYTES
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport prefetch_row


cdef enum:
    AHEAD = 8                   # rows are prefetched this many rows before they are copied, to hide memory latency
    BLOCK_BYTES = 1 << 15       # if X is not in C order, rows are gathered in blocks of this size, column by column
    BLOCK = 512                 # rows are binned in blocks of this many, which stay in the cache for all columns


cdef extern from "row_copy.h" nogil:
    double copy_row(const void *x, Py_ssize_t n, double last, void *out, Py_ssize_t width, bint past_cache) noexcept
    void streams_end "STREAMS_END"() noexcept


cdef dispatched copy_all(
    const floating *X,
    Py_ssize_t row_step,        # in elements, like column_step
    Py_ssize_t column_step,
    Py_ssize_t n_features,
    const uint32_t *source,
    const uint32_t *target,
    Py_ssize_t n_rows,
    floating last,
    floating *block,            # workspace for block_rows rows, used if column_step is not 1
    Py_ssize_t block_rows,
    floating *out,
    Py_ssize_t width,
    bint past_cache,
    double *check,              # INOUT: becomes NaN if a value is not finite
) noexcept nogil:
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t stop, i, j, row
    cdef const floating *x
    while start < n_rows:
        stop = min(start + block_rows, n_rows)
        if column_step != 1:
            for j in range(n_features):
                if row_step == 1 and source == NULL:
                    prefetch_row(X + stop + j * column_step, min(block_rows, n_rows - stop))
                for i in range(start, stop):
                    row = source[i] if source != NULL else i
                    block[(i - start) * n_features + j] = X[row * row_step + j * column_step]
        for i in range(start, stop):
            if column_step != 1:
                x = block + (i - start) * n_features
            elif source == NULL:
                x = X + i * row_step
            else:
                x = X + source[i] * row_step
                if i + AHEAD < n_rows:
                    prefetch_row(X + source[i + AHEAD] * row_step, n_features)
            row = target[i] if target != NULL else i
            check[0] += <double> copy_row(x, n_features, last, out + row * width, width, past_cache)
        start = stop
    streams_end()


def copy_rows(
    const floating [:, :] X,            # IN, any strides
    floating last,                      # IN, the value of the column after the features: 1 for an intercept, or 0
    floating [:, ::1] out,              # OUT, (n_rows, multiple of 8)
    const uint32_t [::1] source=None,   # IN, (n_copied,), row indices of X; None: all rows in order
    const uint32_t [::1] target=None,   # IN, (n_copied,), row indices of out; None: all rows in order
) -> bool:
    """Compute ``out[target] = X[source]``, with ``last`` and then zeros after the features of a row.

    Return whether all copied values are finite.
    """
    cdef Py_ssize_t n_features = X.shape[1]
    cdef Py_ssize_t n_rows = X.shape[0] if source is None else source.shape[0]
    cdef Py_ssize_t row_step = X.strides[0] // <Py_ssize_t> sizeof(floating)
    cdef Py_ssize_t column_step = X.strides[1] // <Py_ssize_t> sizeof(floating)
    cdef Py_ssize_t block_rows = max(1, BLOCK_BYTES // (max(1, n_features) * <Py_ssize_t> sizeof(floating)))
    cdef floating [::1] block
    cdef bint is_large = out.shape[0] * out.shape[1] * <Py_ssize_t> sizeof(floating) > CACHE_BYTES
    cdef double check = 0
    if out.shape[1] % 8 or out.shape[1] < n_features:
        raise ValueError("out must have a multiple of 8 columns, and at least as many columns as X.")
    if X.strides[0] % <Py_ssize_t> sizeof(floating) or X.strides[1] % <Py_ssize_t> sizeof(floating):
        raise ValueError("X must have strides that are multiples of its itemsize; pass a copy of X instead.")
    if n_rows != (out.shape[0] if target is None else target.shape[0]):
        raise ValueError(f"{n_rows} rows of X must go to as many rows of out.")
    check_indices(source, X.shape[0], "source")
    check_indices(target, out.shape[0], "target")
    if n_rows == 0 or n_features == 0:
        return True
    block = np.empty(1 if column_step == 1 else block_rows * n_features, f"f{sizeof(floating)}")
    with nogil:
        copy_all(
            &X[0, 0],
            row_step,
            column_step,
            n_features,
            NULL if source is None else &source[0],
            NULL if target is None else &target[0],
            n_rows,
            last,
            &block[0],
            block_rows,
            &out[0, 0],
            out.shape[1],
            is_large and <size_t> &out[0, 0] % 16 == 0,
            &check,
        )
    return check == 0


cdef int check_indices(const uint32_t [::1] indices, Py_ssize_t n_rows, name) except -1:
    cdef Py_ssize_t i = 0
    if indices is None:
        return 0
    with nogil:
        while i < indices.shape[0] and indices[i] < n_rows:
            i += 1
    if i < indices.shape[0]:
        raise IndexError(f"{name} contains row {indices[i]}, but there are only {n_rows} rows.")
    return 0


def inverse(const uint32_t [::1] order, uint32_t [::1] out) -> bool:
    """Write the inverse of the permutation ``order``, (n,); return whether ``order`` is a permutation of 0..n-1."""
    cdef Py_ssize_t n = order.shape[0]
    cdef Py_ssize_t i
    if out.shape[0] != n:
        raise ValueError("out must be as long as order.")
    with nogil:
        for i in range(n):
            out[i] = <uint32_t> n
        i = 0
        while i < n and order[i] < n and out[order[i]] == n:
            out[order[i]] = <uint32_t> i
            i += 1
    return i == n


def address(const unsigned char [::1] memory) -> int:
    """Return the memory address of the first byte of an array."""
    return <size_t> &memory[0]


cdef inline uint8_t find_bin(double x, const double *edges, Py_ssize_t n_edges) noexcept nogil:
    """Return the number of edges below x, or 0 for NaN, by a binary search without branches in its loop."""
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t half
    if n_edges == 0:
        return 0
    while n_edges > 1:
        half = n_edges >> 1
        first += half * (edges[first + half - 1] < x)
        n_edges -= half
    return <uint8_t> (first + (edges[first] < x))


def fill_bins(
    const floating [:, :] X,            # IN, any strides
    const uint32_t [::1] order,         # IN, row indices
    const double [::1] edges,           # IN, the bin edges of all features, ascending within a feature
    const int64_t [::1] offsets,        # IN, (n_features + 1,): feature j has edges[offsets[j]:offsets[j + 1]]
    const uint8_t [::1] is_binned,      # IN, (n_features,): 0 for features whose bins are not written
    uint8_t [:, ::1] bins,              # OUT, (n_features, len(order))
):
    """Write the bin indices of the rows ``X[order]``, feature by feature.

    Bin b of a feature holds the values x with edges[b - 1] < x <= edges[b]. NaN gets an additional bin after the last
    one. Values are compared as float64, which represents each float32 exactly.
    """
    cdef Py_ssize_t n_rows = order.shape[0]
    cdef Py_ssize_t n_features = X.shape[1]
    cdef Py_ssize_t start, stop, i, j, n_edges
    cdef const double *feature_edges
    cdef double x
    if bins.shape[0] != n_features or bins.shape[1] != n_rows:
        raise ValueError("bins must have one row per feature and one column per entry of order.")
    if offsets.shape[0] != n_features + 1 or is_binned.shape[0] != n_features:
        raise ValueError("offsets must have one more entry than X has features, and is_binned one entry per feature.")
    if offsets[n_features] != edges.shape[0]:
        raise ValueError("offsets must end with the number of edges.")
    with nogil:
        start = 0
        while start < n_rows:
            stop = min(start + BLOCK, n_rows)
            for j in range(n_features):
                if not is_binned[j]:
                    continue
                feature_edges = &edges[0] + offsets[j] if edges.shape[0] > 0 else NULL
                n_edges = offsets[j + 1] - offsets[j]
                for i in range(start, stop):
                    x = <double> X[order[i], j]
                    bins[j, i] = find_bin(x, feature_edges, n_edges) if x == x else <uint8_t> (n_edges + 1)
            start = stop
