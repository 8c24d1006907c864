"""Reads rows once, in a given order: copies them, padded with zeros, and checks for NaN and infinity; or turns their
numbers into bin numbers of one byte, feature after feature, for trees.
"""

from cython cimport floating
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint8_t

from optuna_treecv._kernels.vec8 cimport prefetch_row


cdef enum:
    AHEAD = 8                   # rows are prefetched this many ahead of the one that is copied: the latency of memory
    BLOCK = 512                 # rows are binned in blocks of so many, which stay in the cache for all their columns


cdef floating gather(
    const floating *X,
    Py_ssize_t row_step,        # in numbers, like column_step
    Py_ssize_t column_step,
    Py_ssize_t n_features,
    const uint32_t *order,
    Py_ssize_t n_rows,
    floating last,
    floating *out,
    Py_ssize_t width,
) noexcept nogil:
    """Copy rows; return 0 if every number is finite, else NaN: 0 * x is 0 only for finite x."""
    cdef Py_ssize_t i, j
    cdef const floating *x
    cdef floating checks[8]
    cdef floating check = 0
    for j in range(8):
        checks[j] = 0
    for i in range(n_rows):
        if i + AHEAD < n_rows:
            prefetch_row(X + order[i + AHEAD] * row_step, n_features)
        x = X + order[i] * row_step
        if column_step == 1:
            for j in range(n_features):
                out[j] = x[j]
        else:
            for j in range(n_features):
                out[j] = x[j * column_step]
        out[n_features] = last if n_features < width else out[n_features]
        for j in range(n_features + 1, width):
            out[j] = 0
        for j in range(0, width, 8):
            checks[0] += 0 * out[j]
            checks[1] += 0 * out[j + 1]
            checks[2] += 0 * out[j + 2]
            checks[3] += 0 * out[j + 3]
            checks[4] += 0 * out[j + 4]
            checks[5] += 0 * out[j + 5]
            checks[6] += 0 * out[j + 6]
            checks[7] += 0 * out[j + 7]
        out += width
    for j in range(8):
        check += checks[j]
    return check


def gather_rows(
    const floating [:, :] X,            # IN, any strides
    const uint32_t [::1] order,         # IN, row numbers
    floating last,                      # IN, the value of the column behind the features: 1 for an intercept, or 0
    floating [:, ::1] out,              # OUT, (order's length, multiple of 8)
) -> bool:
    """Copy ``X[order]`` into ``out``; return whether every number is finite."""
    cdef floating check
    cdef Py_ssize_t i
    cdef Py_ssize_t n_features = X.shape[1]
    cdef Py_ssize_t row_step = X.strides[0] // <Py_ssize_t> sizeof(floating)
    cdef Py_ssize_t column_step = X.strides[1] // <Py_ssize_t> sizeof(floating)
    if out.shape[0] != order.shape[0] or out.shape[1] % 8 or out.shape[1] < n_features:
        raise ValueError("out must have one row for each entry of order, and a multiple of 8 columns.")
    if X.strides[0] % <Py_ssize_t> sizeof(floating) or X.strides[1] % <Py_ssize_t> sizeof(floating):
        raise ValueError("X must have strides of whole numbers: copy what comes from packed records.")
    for i in range(order.shape[0]):
        if order[i] >= X.shape[0]:
            raise IndexError(f"order names row {order[i]}, but X has {X.shape[0]} rows.")
    if order.shape[0] == 0 or n_features == 0:
        return True
    with nogil:
        check = gather(
            &X[0, 0], row_step, column_step, n_features, &order[0], order.shape[0], last, &out[0, 0], out.shape[1]
        )
    return check == 0


def address(const unsigned char [::1] memory) -> int:
    """Return the address of an array's first byte."""
    return <size_t> &memory[0]


cdef inline uint8_t bin_of(double x, const double *edges, Py_ssize_t n_edges) noexcept nogil:
    """Return the number of edges below x, which is 0 for NaN; the search has no branch to mispredict."""
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
    const uint32_t [::1] order,         # IN, row numbers
    const double [::1] edges,           # IN, those of all features, ascending within a feature
    const int64_t [::1] begins,         # IN, (n_features + 1,), where each feature's edges begin
    const uint8_t [::1] is_number,      # IN, (n_features,): 0 for features that are left alone
    uint8_t [:, ::1] bins,              # OUT, (n_features, order's length)
):
    """Write the bins of the rows ``X[order]``.

    Bin b of a feature holds the numbers x with edges[b - 1] < x <= edges[b]. NaN has the number of a further bin
    behind the last one. Numbers are compared as float64, which holds any float32.
    """
    cdef Py_ssize_t n_rows = order.shape[0]
    cdef Py_ssize_t n_features = X.shape[1]
    cdef Py_ssize_t begin, end, i, j, n_edges
    cdef const double *own
    cdef double x
    if bins.shape[0] != n_features or bins.shape[1] != n_rows:
        raise ValueError("bins must have one row per feature and one column for each entry of order.")
    if begins.shape[0] != n_features + 1 or is_number.shape[0] != n_features:
        raise ValueError("begins must have one entry more than there are features, is_number one for each.")
    if begins[n_features] != edges.shape[0]:
        raise ValueError("begins must end with the number of edges.")
    with nogil:
        begin = 0
        while begin < n_rows:
            end = min(begin + BLOCK, n_rows)
            for j in range(n_features):
                if not is_number[j]:
                    continue
                own = &edges[0] + begins[j] if edges.shape[0] > 0 else NULL
                n_edges = begins[j + 1] - begins[j]
                for i in range(begin, end):
                    x = <double> X[order[i], j]
                    bins[j, i] = bin_of(x, own, n_edges) if x == x else <uint8_t> (n_edges + 1)
            begin = end
