"""The nearest training rows by Euclidean distance, which is bitwise equal to that of scikit-learn.

As in scikit-learn, d^2 = |x|^2 - 2 x.y + |y|^2 is summed in this order, and the products x.y of blocks of 256 rows are
computed by BLAS.
"""

import numpy as np

from scipy.linalg.cython_blas cimport ddot
from scipy.linalg.cython_blas cimport dgemm

from optuna_treecv._kernels.vec8 cimport dispatched


cdef dispatched insert(
    double x_square,            # |x|^2
    double *products,           # INOUT, (n_rows,), -2 x.y for each row y of a block; becomes d^2
    const double *y_squares,    # IN, (n_rows,), |y|^2
    Py_ssize_t n_rows,
    Py_ssize_t first,           # the index of the first row of the block
    Py_ssize_t k,
    double *distances,          # INOUT, (k,), d^2 in ascending order
    Py_ssize_t *indices,        # INOUT, (k,), the rows at these distances
) noexcept nogil:
    """Insert the rows of a block into the sorted list of the k nearest rows, if they are near enough."""
    cdef Py_ssize_t start, stop, i, position, n_near
    cdef double distance, limit
    for start in range(0, n_rows, 32):      # 32 rows are skipped if all of them are too far away
        stop = min(start + 32, n_rows)
        limit = distances[k - 1]
        n_near = 0
        for i in range(start, stop):
            products[i] = x_square + products[i] + y_squares[i]
            n_near += products[i] < limit
        for i in range(start, stop if n_near else start):
            distance = max(products[i], 0.0)
            if not distance < distances[k - 1]:
                continue
            position = k - 1
            while position > 0 and distances[position - 1] > distance:
                distances[position] = distances[position - 1]
                indices[position] = indices[position - 1]
                position -= 1
            distances[position] = distance
            indices[position] = first + i


def nearest(const double [:, ::1] X, const double [:, ::1] Y, Py_ssize_t k) -> tuple[np.ndarray, np.ndarray]:
    """Return the ascending distances of the k nearest rows of Y to each row of X, and the indices of these rows.

    If a row of X has fewer than k finite distances, the remaining distances are infinite and the indices are 0.
    """
    cdef int n_x = X.shape[0], n_y, width = X.shape[1], one = 1
    cdef double x_square, scale = -2, zero = 0
    cdef Py_ssize_t i, first, n_train = Y.shape[0], block = 256
    if Y.shape[1] != width or not 0 < n_x <= block or k < 1:
        raise ValueError(f"X must have 1 to {block} rows and the columns of Y, and k must be positive.")
    distances, indices = np.full((n_x, k), np.inf), np.zeros((n_x, k), np.intp)
    cdef double [:, ::1] distances_view = distances
    cdef Py_ssize_t [:, ::1] indices_view = indices
    cdef double [::1] y_squares = np.empty(block), products = np.empty(block * block)
    with nogil:
        for first in range(0, n_train, 256):
            n_y = min(block, n_train - first)
            dgemm(
                b"T", b"N", &n_y, &n_x, &width, &scale, <double *> &Y[first, 0], &width, <double *> &X[0, 0], &width,
                &zero, &products[0], &n_y,
            )
            for i in range(n_y):
                y_squares[i] = ddot(&width, <double *> &Y[first + i, 0], &one, <double *> &Y[first + i, 0], &one)
            for i in range(n_x):
                x_square = ddot(&width, <double *> &X[i, 0], &one, <double *> &X[i, 0], &one)
                insert(
                    x_square, &products[i * n_y], &y_squares[0], n_y, first, k, &distances_view[i, 0],
                    &indices_view[i, 0],
                )
    return np.sqrt(distances, out=distances), indices
