"""The Gram matrix of the radial basis function (RBF) kernel."""

import numpy as np

from scipy.linalg.cython_blas cimport ddot
from scipy.linalg.cython_blas cimport dgemm

from optuna_treecv._kernels.exp_log cimport exponential_in_vectors
from optuna_treecv._kernels.vec8 cimport dispatched


cdef dispatched compute_row(
    const double *products,     # IN, (n,), x.y for each row y
    double square,              # |x|^2
    const double *squares,      # IN, (n,), |y|^2
    double gamma,
    double *out,                # OUT, (n,)
    Py_ssize_t n,
) noexcept nogil:
    """Compute exp(-gamma |x - y|^2) for the rows y of a block."""
    cdef Py_ssize_t j
    cdef double distance
    for j in range(n):
        distance = square - 2 * products[j] + squares[j]
        distance = distance if distance > 0 else 0
        out[j] = exponential_in_vectors(-gamma * distance)


cdef dispatched copy_transposed(
    const double *a,            # IN, (m, n) with rows at a distance of ``stride``
    double *b,                  # OUT, (n, m) with rows at a distance of ``stride``
    Py_ssize_t stride,
    Py_ssize_t m,
    Py_ssize_t n,
) noexcept nogil:
    cdef Py_ssize_t i, j, start
    for start in range(0, m, 8):
        for j in range(n):
            for i in range(start, min(start + 8, m)):
                b[j * stride + i] = a[i * stride + j]


def rbf_gram(const double [:, ::1] X, double gamma, double [:, ::1] out) -> None:
    """Compute K_ij = exp(-gamma |x_i - x_j|^2), with |x - y|^2 = |x|^2 - 2 x.y + |y|^2.

    Parameters
    ----------
    X : ndarray of shape (n, d), with at least one column
    gamma : float
    out : ndarray of shape (n, n)
        Receives the symmetric matrix K.
    """
    cdef Py_ssize_t n = X.shape[0], i, j, first, second
    cdef int d = X.shape[1], n_first, n_second, one = 1
    cdef double alpha = 1, beta = 0
    cdef double [::1] squares = np.empty(n), products = np.empty(128 * 128)
    with nogil:
        for i in range(n):
            squares[i] = ddot(&d, <double *> &X[i, 0], &one, <double *> &X[i, 0], &one)
        for first in range(0, n, 128):
            n_first = min(128, n - first)
            for second in range(0, first + 1, 128):
                n_second = min(128, n - second)
                dgemm(
                    b"T", b"N", &n_second, &n_first, &d, &alpha, <double *> &X[second, 0], &d,
                    <double *> &X[first, 0], &d, &beta, &products[0], &n_second,
                )
                for i in range(n_first):
                    compute_row(
                        &products[i * n_second], squares[first + i], &squares[second], gamma, &out[first + i, second],
                        n_second,
                    )
                if second < first:
                    copy_transposed(&out[first, second], &out[second, first], n, n_first, n_second)
                else:
                    for i in range(n_first):
                        out[first + i, first + i] = 1
                        for j in range(i):
                            out[first + j, first + i] = out[first + i, first + j]
