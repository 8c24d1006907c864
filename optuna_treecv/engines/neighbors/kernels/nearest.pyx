"""The nearest of some rows by Euclidean distance, bitwise equal to scikit-learn's distances.

As there, d^2 = |x|^2 - 2 xy + |y|^2 is summed in this order, from products of blocks of 256 rows (BLAS).
"""

import numpy as np

from scipy.linalg.cython_blas cimport ddot
from scipy.linalg.cython_blas cimport dgemm

from optuna_treecv._kernels.vec8 cimport dispatched


cdef dispatched insert(
    double own,                 # |x|^2
    double *products,           # INOUT, -2 xy of a block; becomes d^2
    const double *squares,      # IN, |y|^2
    Py_ssize_t n_rows,
    Py_ssize_t first,           # the number of the first row
    Py_ssize_t k,
    double *distances,          # INOUT, (k,), d^2 in ascending order
    Py_ssize_t *numbers,        # INOUT, (k,)
) noexcept nogil:
    """Insert the rows of a block that are near enough into the list of the k nearest."""
    cdef Py_ssize_t begin, end, i, at, n_near
    cdef double distance, limit
    for begin in range(0, n_rows, 32):      # blocks of 32 are skipped if all are too far away
        end = min(begin + 32, n_rows)
        limit = distances[k - 1]
        n_near = 0
        for i in range(begin, end):
            products[i] = own + products[i] + squares[i]
            n_near += products[i] < limit
        for i in range(begin, end if n_near else begin):
            distance = max(products[i], 0.0)
            if not distance < distances[k - 1]:
                continue
            at = k - 1
            while at > 0 and distances[at - 1] > distance:
                distances[at] = distances[at - 1]
                numbers[at] = numbers[at - 1]
                at -= 1
            distances[at] = distance
            numbers[at] = first + i


def nearest(const double [:, ::1] X, const double [:, ::1] Y, Py_ssize_t k) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances of the k nearest rows of Y to each row of a block, in ascending order, and their numbers.

    They are infinite, and 0, where no further distance is finite.
    """
    cdef int n_x = X.shape[0], n_y, width = X.shape[1], one = 1
    cdef double own, scale = -2, zero = 0
    cdef Py_ssize_t i, first, n_others = Y.shape[0], block = 256
    if Y.shape[1] != width or not 0 < n_x <= block or k < 1:
        raise ValueError(f"X must have 1 to {block} rows and the columns of Y, and k must be positive.")
    found, numbers = np.full((n_x, k), np.inf), np.zeros((n_x, k), np.intp)
    cdef double [:, ::1] distances = found
    cdef Py_ssize_t [:, ::1] of_near = numbers
    cdef double [::1] squares = np.empty(block), products = np.empty(block * block)
    with nogil:
        for first in range(0, n_others, 256):
            n_y = min(block, n_others - first)
            dgemm(
                b"T", b"N", &n_y, &n_x, &width, &scale, <double *> &Y[first, 0], &width, <double *> &X[0, 0], &width,
                &zero, &products[0], &n_y,
            )
            for i in range(n_y):
                squares[i] = ddot(&width, <double *> &Y[first + i, 0], &one, <double *> &Y[first + i, 0], &one)
            for i in range(n_x):
                own = ddot(&width, <double *> &X[i, 0], &one, <double *> &X[i, 0], &one)
                insert(own, &products[i * n_y], &squares[0], n_y, first, k, &distances[i, 0], &of_near[i, 0])
    return np.sqrt(found, out=found), numbers
