"""Gram matrices of the radial basis function (RBF) kernel."""

import numpy as np

from scipy.linalg.cython_blas cimport ddot
from scipy.linalg.cython_blas cimport dgemm

from optuna_treecv._kernels.exp_log cimport exponential_in_vectors
from optuna_treecv._kernels.vec8 cimport dispatched


cdef extern from "gram_rows.h" nogil:
    void multiply_rows(
        int n_rows, const double **x, const double *packed, Py_ssize_t n, Py_ssize_t d, double **out
    ) noexcept


cdef dispatched compute_row(
    const double *products,     # IN, (n,), x.y for each row y
    double square,              # |x|^2
    const double *squares,      # IN, (n,), |y|^2
    double gamma,
    double *out,                # OUT, (n,), may be ``products``
    Py_ssize_t n,
) noexcept nogil:
    """Compute exp(-gamma |x - y|^2) for all rows y."""
    cdef Py_ssize_t j
    cdef double distance
    for j in range(n):
        distance = (square + squares[j]) - 2 * products[j]
        distance = 0 if distance < 0 else distance     # NaN stays NaN
        out[j] = exponential_in_vectors(-gamma * distance)


def rbf_gram(const double [:, ::1] X, double gamma, double [:, ::1] out) -> None:
    """Compute K_ij = exp(-gamma |x_i - x_j|^2), with |x - y|^2 = |x|^2 + |y|^2 - 2 x.y.

    Parameters
    ----------
    X : ndarray of shape (n, d), with at least one column
    gamma : float
    out : ndarray of shape (n, n)
        Receives K, which is symmetric.
    """
    cdef Py_ssize_t n = X.shape[0], i, j, first
    cdef int n_rows, n_block, d = X.shape[1], one = 1
    cdef double alpha = 1, beta = 0
    cdef double [::1] squares = np.empty(n), products = np.empty(32 * n)
    with nogil:
        for i in range(n):
            squares[i] = ddot(&d, <double *> &X[i, 0], &one, <double *> &X[i, 0], &one)
        for first in range(0, n, 32):
            n_block, n_rows = min(32, n - first), n - first
            dgemm(
                b"T", b"N", &n_rows, &n_block, &d, &alpha, <double *> &X[first, 0], &d, <double *> &X[first, 0], &d,
                &beta, &products[0], &n_rows,
            )
            for i in range(n_block):
                compute_row(
                    &products[i * n_rows], squares[first + i], &squares[first], gamma, &out[first + i, first], n_rows
                )
                out[first + i, first + i] = 1
            for j in range(first + 1, n):
                for i in range(min(n_block, j - first)):
                    out[j, first + i] = out[first + i, j]


cdef class Gram:
    """A symmetric, positive semi-definite Gram matrix, whose rows may be computed when they are first read.

    The solution of a dual problem reads only the rows of the support vectors and of variables that may become some.
    Each element is computed by the same operations, whichever rows are computed together.

    Parameters
    ----------
    values : ndarray of shape (n, n)
        All elements, or memory for them.
    X : ndarray of shape (n, d), optional
        If given, the elements are exp(-gamma |x_i - x_j|^2), and rows are computed when they are read.
    gamma : float
    """

    def __init__(self, values: np.ndarray, X: np.ndarray | None = None, gamma: float = 0.0) -> None:
        cdef Py_ssize_t n = len(values)
        self.K, self.X, self.gamma = values, X, gamma
        self.of_diagonal = np.ones(n) if X is not None else values.diagonal().copy()
        if X is not None:
            self.is_computed = np.zeros(n, np.uint8)
            padded = np.zeros(((n + 7) // 8, 8, X.shape[1]))
            padded.reshape(-1, X.shape[1])[:n] = X
            self.packed = np.ascontiguousarray(padded.transpose(0, 2, 1)).ravel()
            self.squares = np.cumsum(np.square(X), axis=1)[:, -1].copy()  # adds from the left, like products

    @property
    def values(self) -> np.ndarray:
        """The elements, of shape (n, n)."""
        return np.asarray(self.K)

    @property
    def diagonal(self) -> np.ndarray:
        """The diagonal elements, of shape (n,)."""
        return np.asarray(self.of_diagonal)

    cdef void compute_rows(self, const Py_ssize_t *rows, Py_ssize_t n_rows) noexcept nogil:
        """Compute those of some rows that have not been computed yet."""
        cdef const double *x[4]
        cdef double *out[4]
        cdef Py_ssize_t[4] chosen
        cdef Py_ssize_t i, j, m = 0, n = self.K.shape[0]
        for i in range(n_rows):
            if not self.is_computed[rows[i]]:
                self.is_computed[rows[i]] = True
                chosen[m], x[m], out[m] = rows[i], &self.X[rows[i], 0], &self.K[rows[i], 0]
                m += 1
            if m == 4 or (i == n_rows - 1 and m > 0):
                multiply_rows(m, x, &self.packed[0], n, self.X.shape[1], out)
                for j in range(m):
                    compute_row(out[j], self.squares[chosen[j]], &self.squares[0], self.gamma, out[j], n)
                    out[j][chosen[j]] = 1
                m = 0
