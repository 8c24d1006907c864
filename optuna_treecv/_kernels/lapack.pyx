"""Routines of LAPACK that release the interpreter's lock.

SciPy's functions hold the lock, for seconds with thousands of columns, which would stop the heartbeats of a study.
NumPy releases it in ``eigh``, ``svd`` and ``qr``.
"""

import numpy as np

from scipy.linalg.cython_lapack cimport dormqr
from scipy.linalg.cython_lapack cimport dposv
from scipy.linalg.cython_lapack cimport dpotrf
from scipy.linalg.cython_lapack cimport dpstrf
from scipy.linalg.cython_lapack cimport dptsv
from scipy.linalg.cython_lapack cimport dsytrd
from scipy.linalg.cython_lapack cimport dtrtri


def tridiagonal(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reduce a symmetric matrix to a tridiagonal one, T = Q'AQ (dsytrd).

    Parameters
    ----------
    a : ndarray of shape (n, n)

    Returns
    -------
    reflectors : ndarray of shape (n, n)
        In Fortran order; the reflectors that define Q are below the first subdiagonal.
    diagonal : ndarray of shape (n,)
    beside, tau : ndarray of shape (n - 1,)
    """
    cdef int n = len(a), n_work = 64 * n, info = 0
    reflectors = np.array(a, np.float64, order="F")
    diagonal, beside, tau = np.empty(n), np.empty(n - 1), np.empty(n - 1)
    cdef double [::1, :] matrix = reflectors
    cdef double [::1] d = diagonal, e = beside, t = tau, work = np.empty(n_work)
    with nogil:
        dsytrd(b"L", &n, &matrix[0, 0], &n, &d[0], &e[0], &t[0], &work[0], &n_work, &info)
    return reflectors, diagonal, beside, tau


def rotate(reflectors: np.ndarray, tau: np.ndarray, b: np.ndarray, bint transposed) -> np.ndarray:
    """Return Q'b, or Qb, of ``tridiagonal`` (dormqr).

    Parameters
    ----------
    reflectors : ndarray of shape (n - 1, n - 1)
        The reflectors of ``tridiagonal`` without the first row and the last column. They are copied, because LAPACK
        writes to them temporarily.
    tau : ndarray of shape (n - 1,)
    b : ndarray of shape (n, n_columns)
    transposed : bool
    """
    cdef int m = len(tau), n = b.shape[1], n_work = 64 * n, ld = m + 1, info = 0
    cdef const char *which = b"T" if transposed else b"N"
    rotated = np.array(b, np.float64, order="F")
    cdef double [::1, :] matrix = np.array(reflectors, np.float64, order="F"), out = rotated
    cdef const double [::1] t = tau
    cdef double [::1] work = np.empty(n_work)
    with nogil:
        dormqr(
            b"L", <char *> which, &m, &n, &m, &matrix[0, 0], &m, <double *> &t[0], &out[1, 0], &ld, &work[0], &n_work,
            &info,
        )
    return rotated


def solve_tridiagonal(diagonal: np.ndarray, beside: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return T^-1 b and the pivots for a positive definite, tridiagonal T (dptsv); the pivots are 0 if it is not.

    Parameters
    ----------
    diagonal : ndarray of shape (n,)
    beside : ndarray of shape (n - 1,)
    b : ndarray of shape (n, n_columns)
    """
    cdef int n = len(b), n_columns = b.shape[1], info = 0
    pivots, solved = np.array(diagonal, np.float64), np.array(b, np.float64, order="F")
    cdef double [::1] d = pivots, e = np.array(beside, np.float64)
    cdef double [::1, :] out = solved
    with nogil:
        dptsv(&n, &n_columns, &d[0], &e[0], &out[0, 0], &n, &info)
    if info:
        pivots[:] = 0
    return solved, pivots


def cholesky(a: np.ndarray, double alpha=0.0) -> np.ndarray | None:
    """Return L of A + alpha I = LL' (dpotrf), or None if that is not positive definite.

    It is in Fortran order; entries above the diagonal are undefined.

    Parameters
    ----------
    a : ndarray of shape (n, n)
        Symmetric, in either order.
    alpha : float
    """
    cdef int n = len(a), info = 0
    factor = np.array(a, np.float64, order="C").T  # a copy in the other order is the same matrix
    factor[np.diag_indices(n)] += alpha
    cdef double [::1, :] matrix = factor
    with nogil:
        dpotrf(b"L", &n, &matrix[0, 0], &n, &info)
    return None if info else factor


def solve_positive(a: np.ndarray, double alpha, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (A + alpha I)^-1 b and the diagonal of the Cholesky factor (dposv).

    The diagonal is 0 where A + alpha I is not positive definite.

    Parameters
    ----------
    a : ndarray of shape (n, n)
        Symmetric.
    alpha : float
    b : ndarray of shape (n, n_columns)
    """
    cdef int n = len(b), n_columns = b.shape[1], info = 0
    factor, solved = np.array(a, np.float64, order="C"), np.array(b, np.float64, order="F")
    diagonal = factor.reshape(-1)[::n + 1]
    diagonal += alpha
    cdef double [:, ::1] matrix = factor
    cdef double [::1, :] out = solved
    with nogil:
        dposv(b"L", &n, &n_columns, &matrix[0, 0], &n, &out[0, 0], &n, &info)
    if info:
        diagonal[:] = 0
    return solved, diagonal


def inverse_of_triangle(factor: np.ndarray) -> np.ndarray:
    """Return L^-1 with zeros above the diagonal, in Fortran's order (dtrtri)."""
    cdef int n = len(factor), info = 0
    inverse = np.asfortranarray(np.tril(factor))
    cdef double [::1, :] matrix = inverse
    with nogil:
        dtrtri(b"L", b"N", &n, &matrix[0, 0], &n, &info)
    return inverse


def pivoted_cholesky(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return U, the permutation and the rank of P'AP = U'U for a semidefinite A (dpstrf).

    Parameters
    ----------
    a : ndarray of shape (n, n)

    Returns
    -------
    factor : ndarray of shape (n, n)
        U in its upper triangle; entries below it, and below row ``rank``, are undefined.
    pivots : ndarray of shape (n,), int
        Column i of U belongs to column ``pivots[i]`` of A.
    rank : int
    """
    cdef int n = len(a), rank = 0, info = 0
    cdef double tol = 0
    factor, pivots = np.array(a, np.float64, order="F"), np.empty(n, np.intc)
    cdef double [::1, :] matrix = factor
    cdef int [::1] p = pivots
    cdef double [::1] work = np.empty(2 * n)
    with nogil:
        dpstrf(b"U", &n, &matrix[0, 0], &n, &p[0], &rank, &tol, &work[0], &info)
    return factor, pivots.astype(np.intp) - 1, rank
