"""Loops over the rows of generalised linear models: products of columns, and class probabilities.

Sparse rows are in CSR format, as ``SparseRows`` has them.
"""

import numpy as np

from cython cimport floating
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t

from optuna_treecv._kernels.exp_log cimport exponential_in_vectors
from optuna_treecv._kernels.vec8 cimport axpy
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined


def add_products(
    const floating [::1] values,        # IN, the values of sparse rows
    const int32_t [::1] columns,        # IN, in ascending order within a row
    const int64_t [::1] begins,         # IN, (n_rows + 1,)
    const double [::1] weights,         # IN, (n_rows,)
    Py_ssize_t n_features,              # IN
    double [:, ::1] products,           # INOUT, (size, size), symmetric
):
    """Add X' diag(weights) X; in a further column of ``products``, rows have a 1."""
    cdef Py_ssize_t size = products.shape[0]
    cdef Py_ssize_t i, a, b
    cdef double number
    cdef double *of_column
    if begins.shape[0] != weights.shape[0] + 1 or columns.shape[0] != values.shape[0]:
        raise ValueError("weights must have one entry for each row, and columns one for each value.")
    if products.shape[1] != size or not n_features <= size <= n_features + 1:
        raise ValueError("products must be square, with a row for each feature and at most one more.")
    with nogil:
        for i in range(weights.shape[0]):
            if weights[i] == 0:
                continue
            for a in range(begins[i], begins[i + 1]):
                number = weights[i] * values[a]
                of_column = &products[columns[a], 0]
                for b in range(a, begins[i + 1]):
                    of_column[columns[b]] += number * values[b]
                if size > n_features:
                    of_column[n_features] += number
            if size > n_features:
                products[n_features, n_features] += weights[i]
        for i in range(size):
            for a in range(i):
                products[i, a] = products[a, i]


cdef inlined multiply_strip(
    const floating *values,
    const int32_t *columns,
    const int64_t *begins,
    Py_ssize_t n_rows,
    floating *of_columns,
    floating *of_rows,
    Py_ssize_t n_lanes,
    bint are_summed,
    Py_ssize_t n_done,          # the first lanes of the strip that are already summed
    Py_ssize_t width,           # a constant in each call, so that the row stays in registers
) noexcept nogil:
    cdef floating[40] row
    cdef floating *column
    cdef Py_ssize_t i, at, lane
    for i in range(n_rows):
        for lane in range(width):
            row[lane] = of_rows[lane] if are_summed and lane >= n_done else 0
        for at in range(begins[i], begins[i + 1]):
            column = of_columns + columns[at] * n_lanes
            if width >= 8 and are_summed:
                axpy(values[at], row, column, width)
            elif width >= 8:
                axpy(values[at], column, row, width)
            else:
                for lane in range(width):
                    if are_summed:
                        column[lane] += values[at] * row[lane]
                    else:
                        row[lane] += values[at] * column[lane]
        if not are_summed:
            for lane in range(width):
                of_rows[lane] = row[lane]
        of_rows += n_lanes


cdef dispatched multiply_strips(
    const floating *values,
    const int32_t *columns,
    const int64_t *begins,
    Py_ssize_t n_rows,
    floating *W,
    floating *Z,
    Py_ssize_t n,
    bint are_summed,
) noexcept nogil:
    cdef Py_ssize_t lane = 0, n_done, width
    while lane < n:
        width = 40 if n - lane >= 40 else 16 if n >= 16 else 8 if n >= 8 else 2 if n >= 2 else 1
        n_done = max(lane + width - n, 0)
        lane -= n_done
        if width == 40:
            multiply_strip(values, columns, begins, n_rows, W + lane, Z + lane, n, are_summed, n_done, 40)
        elif width == 16:
            multiply_strip(values, columns, begins, n_rows, W + lane, Z + lane, n, are_summed, n_done, 16)
        elif width == 8:
            multiply_strip(values, columns, begins, n_rows, W + lane, Z + lane, n, are_summed, n_done, 8)
        elif width == 2:
            multiply_strip(values, columns, begins, n_rows, W + lane, Z + lane, n, are_summed, n_done, 2)
        else:
            multiply_strip(values, columns, begins, n_rows, W + lane, Z + lane, n, are_summed, n_done, 1)
        lane += width


def multiply_sparse(
    const floating [::1] values,        # IN, the values of sparse rows
    const int32_t [::1] columns,        # IN, below of_columns.shape[0]
    const int64_t [::1] begins,         # IN, (n_rows + 1,)
    floating [:, ::1] of_columns,       # IN, (n_columns, n_lanes); INOUT if sums are added to it
    floating [:, ::1] of_rows,          # OUT, (n_rows, n_lanes); IN if they are summed
    bint are_summed,
):
    """Write the product X W of sparse rows to ``of_rows``, or add X' Z of these to ``of_columns``."""
    cdef Py_ssize_t n_rows = of_rows.shape[0], n_lanes = of_rows.shape[1]
    if n_rows != begins.shape[0] - 1 or columns.shape[0] != values.shape[0] or begins[n_rows] > values.shape[0]:
        raise ValueError("of_rows must have one row for each sparse one, and columns one entry for each value.")
    if of_columns.shape[1] != n_lanes:
        raise ValueError("of_columns and of_rows must have the same number of lanes.")
    with nogil:
        multiply_strips(
            &values[0], &columns[0], &begins[0], n_rows, &of_columns[0, 0], &of_rows[0, 0], n_lanes, are_summed
        )


cdef dispatched multiply_columns_of_rows(
    const floating *X, Py_ssize_t n_rows, Py_ssize_t n, floating *products
) noexcept nogil:
    cdef const floating *x
    cdef Py_ssize_t i, a, b
    for i in range(n_rows):
        x = X + i * n
        for a in range(n):
            for b in range(n - a):
                products[b] = x[a] * x[a + b]
            products += n - a


def multiply_columns(
    const floating [:, ::1] X,          # IN, (n_rows, n)
    floating [:, ::1] products,         # OUT, (n_rows, n (n + 1) / 2)
):
    """Write the products of all pairs of columns, in the order of the upper triangle of a matrix."""
    cdef Py_ssize_t n = X.shape[1]
    if products.shape[0] != X.shape[0] or products.shape[1] != n * (n + 1) // 2:
        raise ValueError("products must have a row for each of X, and a column for each two.")
    with nogil:
        multiply_columns_of_rows(&X[0, 0], X.shape[0], n, &products[0, 0])


cdef inline floating logistic_slope(floating z, floating sign) noexcept nogil:
    """Return the derivative of log(1 + exp(-sign z)), which keeps its digits if it is small."""
    return -sign / (<floating> 1 + exponential_in_vectors(sign * z))


cdef dispatched logistic_slopes_of_rows(
    floating *z, const int32_t *y, Py_ssize_t n_rows, Py_ssize_t n_lanes
) noexcept nogil:
    cdef Py_ssize_t i, lane
    cdef floating sign
    if n_lanes == 1:
        for i in range(n_rows):
            z[i] = logistic_slope(z[i], <floating> (2 * y[i] - 1))
        return
    for i in range(n_rows):
        sign = 2 * y[i] - 1
        for lane in range(n_lanes):
            z[lane] = logistic_slope(z[lane], sign)
        z += n_lanes


def logistic_slopes(
    floating [:, ::1] z,                # INOUT, (n_rows, n_lanes)
    const int32_t [::1] y,              # IN, (n_rows,), 0 or 1
):
    """Replace predictors by the derivatives of log(1 + exp(z)) - y z."""
    if y.shape[0] != z.shape[0]:
        raise ValueError("y must have one entry for each row.")
    with nogil:
        logistic_slopes_of_rows(&z[0, 0], &y[0], z.shape[0], z.shape[1])


cdef dispatched softmax_of_rows(
    floating *z,                # INOUT, (n_rows, n_outputs, n_lanes)
    const int32_t *y,
    Py_ssize_t n_rows,
    Py_ssize_t n_outputs,
    Py_ssize_t n_lanes,
    floating *most,             # buffer, (n_lanes,)
    floating *others,           # buffer, (n_lanes,)
) noexcept nogil:
    cdef Py_ssize_t i, k, lane, own
    for i in range(n_rows):
        own = -1 if y == NULL else y[i]
        for lane in range(n_lanes):
            most[lane], others[lane] = z[lane], 0
        for k in range(1, n_outputs):
            for lane in range(n_lanes):
                most[lane] = z[k * n_lanes + lane] if z[k * n_lanes + lane] > most[lane] else most[lane]
        for k in range(n_outputs):
            for lane in range(n_lanes):
                z[k * n_lanes + lane] -= most[lane]
                z[k * n_lanes + lane] = exponential_in_vectors(z[k * n_lanes + lane])
            if k != own:
                for lane in range(n_lanes):
                    others[lane] += z[k * n_lanes + lane]
        for lane in range(n_lanes):
            most[lane] = others[lane] if own < 0 else others[lane] + z[own * n_lanes + lane]  # the sum of all
        for k in range(n_outputs):
            if k == own:  # a probability near 1, less 1, would lose its digits
                for lane in range(n_lanes):
                    z[k * n_lanes + lane] = -others[lane]
            for lane in range(n_lanes):
                z[k * n_lanes + lane] /= most[lane]
        z += n_outputs * n_lanes


def softmax(
    floating [:, :, ::1] z,             # INOUT, (n_rows, n_outputs, n_lanes)
    const int32_t [::1] y=None,         # IN, (n_rows,)
):
    """Replace predictors by exp(z_k) / sum_j exp(z_j), less 1 for the class k = y."""
    cdef floating [:, ::1] room = np.empty_like(z, shape=(2, z.shape[2]))
    if y is not None and y.shape[0] != z.shape[0]:
        raise ValueError("y must have one entry for each row.")
    with nogil:
        softmax_of_rows(
            &z[0, 0, 0], NULL if y is None else &y[0], z.shape[0], z.shape[1], z.shape[2], &room[0, 0], &room[1, 0]
        )
