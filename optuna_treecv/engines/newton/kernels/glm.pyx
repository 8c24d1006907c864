"""Loops over the rows of generalised linear models: products of columns, and derivatives of losses.

Sparse rows are three arrays in CSR format: ``values``, ``columns`` and ``starts``. A lane is one of several models
whose predictors are adjacent in memory and computed together.
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
    const int64_t [::1] starts,         # IN, (n_rows + 1,)
    const double [::1] weights,         # IN, (n_rows,)
    Py_ssize_t n_features,              # IN
    double [:, ::1] products,           # INOUT, (size, size), symmetric
):
    """Add X' diag(weights) X to ``products``.

    If ``products`` has a row and column more than X has features, X is extended by a column of ones.
    """
    cdef Py_ssize_t size = products.shape[0]
    cdef Py_ssize_t i, a, b
    cdef double weighted
    cdef double *row
    if starts.shape[0] != weights.shape[0] + 1 or columns.shape[0] != values.shape[0]:
        raise ValueError("weights must have one entry for each row, and columns one entry for each value.")
    if products.shape[1] != size or not n_features <= size <= n_features + 1:
        raise ValueError("products must be square, with one row for each feature and at most one more.")
    with nogil:
        for i in range(weights.shape[0]):
            if weights[i] == 0:
                continue
            for a in range(starts[i], starts[i + 1]):
                weighted = weights[i] * values[a]
                row = &products[columns[a], 0]
                for b in range(a, starts[i + 1]):
                    row[columns[b]] += weighted * values[b]
                if size > n_features:
                    row[n_features] += weighted
            if size > n_features:
                products[n_features, n_features] += weights[i]
        for i in range(size):
            for a in range(i):
                products[i, a] = products[a, i]


cdef inlined multiply_strip(
    const floating *values,
    const int32_t *columns,
    const int64_t *starts,
    Py_ssize_t n_rows,
    floating *W,
    floating *Z,
    Py_ssize_t n_lanes,
    bint transpose,
    Py_ssize_t n_done,          # the number of lanes at the start of the strip that have already been summed
    Py_ssize_t width,           # a constant in each call, which keeps the row in registers
) noexcept nogil:
    """Multiply as ``multiply_sparse``, for a strip of ``width`` of the ``n_lanes`` lanes."""
    cdef floating[40] row
    cdef floating *column
    cdef Py_ssize_t i, position, lane
    for i in range(n_rows):
        for lane in range(width):
            row[lane] = Z[lane] if transpose and lane >= n_done else 0
        for position in range(starts[i], starts[i + 1]):
            column = W + columns[position] * n_lanes
            if width >= 8 and transpose:
                axpy(values[position], row, column, width)
            elif width >= 8:
                axpy(values[position], column, row, width)
            else:
                for lane in range(width):
                    if transpose:
                        column[lane] += values[position] * row[lane]
                    else:
                        row[lane] += values[position] * column[lane]
        if not transpose:
            for lane in range(width):
                Z[lane] = row[lane]
        Z += n_lanes


cdef dispatched multiply_strips(
    const floating *values,
    const int32_t *columns,
    const int64_t *starts,
    Py_ssize_t n_rows,
    floating *W,
    floating *Z,
    Py_ssize_t n,
    bint transpose,
) noexcept nogil:
    cdef Py_ssize_t lane = 0, n_done, width
    while lane < n:
        width = 40 if n - lane >= 40 else 16 if n >= 16 else 8 if n >= 8 else 2 if n >= 2 else 1
        n_done = max(lane + width - n, 0)
        lane -= n_done
        if width == 40:
            multiply_strip(values, columns, starts, n_rows, W + lane, Z + lane, n, transpose, n_done, 40)
        elif width == 16:
            multiply_strip(values, columns, starts, n_rows, W + lane, Z + lane, n, transpose, n_done, 16)
        elif width == 8:
            multiply_strip(values, columns, starts, n_rows, W + lane, Z + lane, n, transpose, n_done, 8)
        elif width == 2:
            multiply_strip(values, columns, starts, n_rows, W + lane, Z + lane, n, transpose, n_done, 2)
        else:
            multiply_strip(values, columns, starts, n_rows, W + lane, Z + lane, n, transpose, n_done, 1)
        lane += width


def multiply_sparse(
    const floating [::1] values,        # IN, the values of the sparse rows X
    const int32_t [::1] columns,        # IN, less than W.shape[0]
    const int64_t [::1] starts,         # IN, (n_rows + 1,)
    floating [:, ::1] W,                # IN, (n_columns, n_lanes); INOUT if transpose
    floating [:, ::1] Z,                # OUT, (n_rows, n_lanes); IN if transpose
    bint transpose,                     # IN
):
    """Write X W to ``Z``, or add X' Z to ``W`` if ``transpose`` is True."""
    cdef Py_ssize_t n_rows = Z.shape[0], n_lanes = Z.shape[1]
    if n_rows != starts.shape[0] - 1 or columns.shape[0] != values.shape[0] or starts[n_rows] > values.shape[0]:
        raise ValueError("Z must have one row for each sparse row, and columns one entry for each value.")
    if W.shape[1] != n_lanes:
        raise ValueError("W and Z must have the same number of columns.")
    with nogil:
        multiply_strips(&values[0], &columns[0], &starts[0], n_rows, &W[0, 0], &Z[0, 0], n_lanes, transpose)


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
    """Write the product of each pair of columns, in the row-major order of the upper triangle of a matrix."""
    cdef Py_ssize_t n = X.shape[1]
    if products.shape[0] != X.shape[0] or products.shape[1] != n * (n + 1) // 2:
        raise ValueError("products must have one row for each row of X, and one column for each pair of columns.")
    with nogil:
        multiply_columns_of_rows(&X[0, 0], X.shape[0], n, &products[0, 0])


cdef inline floating logistic_slope(floating z, floating sign) noexcept nogil:
    """Return the derivative of log(1 + exp(-sign z)), with all digits even if it is small."""
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
    """Replace each predictor z by the derivative of log(1 + exp(z)) - y z."""
    if y.shape[0] != z.shape[0]:
        raise ValueError("y must have one entry for each row.")
    with nogil:
        logistic_slopes_of_rows(&z[0, 0], &y[0], z.shape[0], z.shape[1])


cdef inlined softmax_of_block(
    floating *block, const int32_t *y, Py_ssize_t n_rows, Py_ssize_t n_outputs, Py_ssize_t n_lanes, floating *buffer
) noexcept nogil:
    cdef floating *z
    cdef floating *largest = buffer
    cdef floating *others = buffer + n_lanes
    cdef Py_ssize_t i, k, lane, position, target, size = n_outputs * n_lanes
    for i in range(n_rows):
        z = block + i * size
        for lane in range(n_lanes):
            largest[lane] = z[lane]
        for k in range(1, n_outputs):
            for lane in range(n_lanes):
                largest[lane] = z[k * n_lanes + lane] if z[k * n_lanes + lane] > largest[lane] else largest[lane]
        for k in range(n_outputs):
            for lane in range(n_lanes):
                z[k * n_lanes + lane] -= largest[lane]
    for position in range(n_rows * size):
        block[position] = exponential_in_vectors(block[position])
    for i in range(n_rows):
        z, target = block + i * size, -1 if y == NULL else y[i]
        for lane in range(n_lanes):
            others[lane] = 0
        for k in range(n_outputs):
            if k != target:
                for lane in range(n_lanes):
                    others[lane] += z[k * n_lanes + lane]
        for lane in range(n_lanes):
            largest[lane] = others[lane] if target < 0 else others[lane] + z[target * n_lanes + lane]  # the sum
        if target >= 0:  # the probability minus 1 would lose digits if it is close to 1
            for lane in range(n_lanes):
                z[target * n_lanes + lane] = -others[lane]
        for k in range(n_outputs):
            for lane in range(n_lanes):
                z[k * n_lanes + lane] /= largest[lane]


cdef dispatched softmax_of_rows(
    floating *z,                # INOUT, (n_rows, n_outputs, n_lanes)
    const int32_t *y,
    Py_ssize_t n_rows,
    Py_ssize_t n_outputs,
    Py_ssize_t n_lanes,
    floating *buffer,           # (2 n_lanes,)
) noexcept nogil:
    cdef Py_ssize_t size = max(1, 1024 // (n_outputs * n_lanes)), start = 0, n
    cdef const int32_t *targets = NULL
    while start < n_rows:
        n = min(size, n_rows - start)
        if y != NULL:
            targets = y + start
        if n_lanes == 1:  # a constant, so that loops over outputs become vectors
            softmax_of_block(z + start * n_outputs, targets, n, n_outputs, 1, buffer)
        else:
            softmax_of_block(z + start * n_outputs * n_lanes, targets, n, n_outputs, n_lanes, buffer)
        start += n


def softmax(
    floating [:, :, ::1] z,             # INOUT, (n_rows, n_outputs, n_lanes)
    const int32_t [::1] y=None,         # IN, (n_rows,)
):
    """Replace each predictor z_k by exp(z_k) / sum_j exp(z_j), minus 1 if y is given and k = y."""
    cdef floating [::1] buffer = np.empty_like(z, shape=2 * z.shape[2])
    if y is not None and y.shape[0] != z.shape[0]:
        raise ValueError("y must have one entry for each row.")
    with nogil:
        softmax_of_rows(&z[0, 0, 0], NULL if y is None else &y[0], z.shape[0], z.shape[1], z.shape[2], &buffer[0])
