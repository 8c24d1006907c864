"""Loops over the rows of generalised linear models: products of columns, and the shares of classes."""

import numpy as np

from cython cimport floating
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t

from optuna_treecv._kernels.exp_log cimport exponential_in_vectors
from optuna_treecv._kernels.vec8 cimport dispatched


ctypedef fused Index:
    int32_t
    int64_t


def add_products(
    const floating [::1] values,        # IN, those of rows in CSR format
    const Index [::1] columns,          # IN, in ascending order within a row
    const Index [::1] begins,           # IN, (n_rows + 1,)
    const double [::1] weights,         # IN, (n_rows,)
    Py_ssize_t n_features,              # IN
    double [:, ::1] products,           # INOUT, (size, size), symmetric
):
    """Add X' diag(weights) X; where there is a further column, rows have a 1 in it."""
    cdef Py_ssize_t size = products.shape[0]
    cdef Py_ssize_t i
    cdef Index a, b
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
            for a in range(<Index> i):
                products[i, a] = products[a, i]


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
    """Write the products of each two columns, in the order of the upper triangle of a matrix."""
    cdef Py_ssize_t n = X.shape[1]
    if products.shape[0] != X.shape[0] or products.shape[1] != n * (n + 1) // 2:
        raise ValueError("products must have a row for each of X, and a column for each two.")
    with nogil:
        multiply_columns_of_rows(&X[0, 0], X.shape[0], n, &products[0, 0])


cdef inline floating logistic_slope(floating z, floating sign) noexcept nogil:
    """Return the derivative of log(1 + exp(-sign z)), which keeps its digits where it is small."""
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
    floating *most,             # room for a number per lane
    floating *others,           # the same
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
            if k == own:  # a share near 1, less 1, would lose its digits
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
