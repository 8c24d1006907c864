"""Copies rows once: permutes them, pads them with zeros, and checks for NaN and infinity."""

from cython cimport floating
from libc.stdint cimport uint32_t

from optuna_treecv._kernels.vec8 cimport prefetch_row


# Rows are prefetched this many ahead of the one that is copied, which covers about the latency of
# memory.
cdef enum:
    AHEAD = 8


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
):
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


def address(const unsigned char [::1] memory):
    """Return the address of an array's first byte."""
    return <size_t> &memory[0]
