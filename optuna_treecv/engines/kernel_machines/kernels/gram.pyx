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
    """Compute exp(-gamma |x - y|^2) for all rows y."""
    cdef Py_ssize_t j
    cdef double distance
    for j in range(n):
        distance = (square + squares[j]) - 2 * products[j]
        distance = distance if distance > 0 else 0
        out[j] = exponential_in_vectors(-gamma * distance)


def rbf_gram(const double [:, ::1] X, double gamma, double [:, ::1] out) -> None:
    """Compute K_ij = exp(-gamma |x_i - x_j|^2), with |x - y|^2 = |x|^2 + |y|^2 - 2 x.y.

    Parameters
    ----------
    X : ndarray of shape (n, d), with at least one column
    gamma : float
    out : ndarray of shape (n, n)
        Receives K, which is symmetric except for rounding.
    """
    cdef Py_ssize_t n = X.shape[0], i, first
    cdef int n_rows = n, n_block, d = X.shape[1], one = 1
    cdef double alpha = 1, beta = 0
    cdef double [::1] squares = np.empty(n), products = np.empty(32 * n)
    with nogil:
        for i in range(n):
            squares[i] = ddot(&d, <double *> &X[i, 0], &one, <double *> &X[i, 0], &one)
        for first in range(0, n, 32):
            n_block = min(32, n - first)
            dgemm(
                b"T", b"N", &n_rows, &n_block, &d, &alpha, <double *> &X[0, 0], &d, <double *> &X[first, 0], &d, &beta,
                &products[0], &n_rows,
            )
            for i in range(n_block):
                compute_row(&products[i * n], squares[first + i], &squares[0], gamma, &out[first + i, 0], n)
                out[first + i, first + i] = 1
