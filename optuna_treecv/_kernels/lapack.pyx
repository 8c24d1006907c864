"""LAPACK routines that release the global interpreter lock (GIL).

SciPy's wrappers of these routines hold the GIL while they run. With thousands of columns this takes seconds, during
which the thread that sends the heartbeats of an Optuna study could not run. NumPy's ``eigh``, ``svd`` and ``qr``
release the GIL, so they need no counterpart here.
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
    """Reduce a symmetric matrix A to a tridiagonal matrix T = Q'AQ (dsytrd).

    Parameters
    ----------
    a : ndarray of shape (n, n)
        The symmetric matrix A.

    Returns
    -------
    reflectors : ndarray of shape (n, n)
        The Householder vectors that define Q, below the first subdiagonal, in Fortran order.
    diagonal : ndarray of shape (n,)
        The diagonal of T.
    subdiagonal : ndarray of shape (n - 1,)
        The subdiagonal of T.
    tau : ndarray of shape (n - 1,)
        The scalar factors of the Householder reflectors.
    """
    cdef int n = len(a), n_work = 64 * n, info = 0
    reflectors = np.array(a, np.float64, order="F")
    diagonal, subdiagonal, tau = np.empty(n), np.empty(n - 1), np.empty(n - 1)
    cdef double [::1, :] matrix = reflectors
    cdef double [::1] d = diagonal, e = subdiagonal, t = tau, work = np.empty(n_work)
    with nogil:
        dsytrd(b"L", &n, &matrix[0, 0], &n, &d[0], &e[0], &t[0], &work[0], &n_work, &info)
    return reflectors, diagonal, subdiagonal, tau


def rotate(reflectors: np.ndarray, tau: np.ndarray, b: np.ndarray, bint transposed) -> np.ndarray:
    """Return Qb or Q'b, with Q from ``tridiagonal`` (dormqr).

    Parameters
    ----------
    reflectors : ndarray of shape (n - 1, n - 1)
        The array ``reflectors`` that ``tridiagonal`` returned, without its first row and its last column. It is
        copied, because LAPACK overwrites it temporarily.
    tau : ndarray of shape (n - 1,)
        The array ``tau`` that ``tridiagonal`` returned.
    b : ndarray of shape (n, n_columns)
    transposed : bool
        Whether to multiply by Q' instead of Q.
    """
    cdef int m = len(tau), n = b.shape[1], n_work = 64 * n, ld = m + 1, info = 0
    cdef const char *trans = b"T" if transposed else b"N"
    rotated = np.array(b, np.float64, order="F")
    cdef double [::1, :] matrix = np.array(reflectors, np.float64, order="F"), out = rotated
    cdef const double [::1] t = tau
    cdef double [::1] work = np.empty(n_work)
    with nogil:
        dormqr(
            b"L", <char *> trans, &m, &n, &m, &matrix[0, 0], &m, <double *> &t[0], &out[1, 0], &ld, &work[0], &n_work,
            &info,
        )
    return rotated


def solve_tridiagonal(diagonal: np.ndarray, subdiagonal: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solve T x = b for a symmetric, positive definite, tridiagonal matrix T (dptsv).

    Parameters
    ----------
    diagonal : ndarray of shape (n,)
        The diagonal of T.
    subdiagonal : ndarray of shape (n - 1,)
        The subdiagonal of T.
    b : ndarray of shape (n, n_columns)

    Returns
    -------
    solved : ndarray of shape (n, n_columns)
        The solution x.
    pivots : ndarray of shape (n,)
        The diagonal matrix D of the factorisation T = LDL'; all zeros if T is not positive definite.
    """
    cdef int n = len(b), n_columns = b.shape[1], info = 0
    pivots, solved = np.array(diagonal, np.float64), np.array(b, np.float64, order="F")
    cdef double [::1] d = pivots, e = np.array(subdiagonal, np.float64)
    cdef double [::1, :] out = solved
    with nogil:
        dptsv(&n, &n_columns, &d[0], &e[0], &out[0, 0], &n, &info)
    if info:
        pivots[:] = 0
    return solved, pivots


def cholesky(a: np.ndarray, double alpha=0.0) -> np.ndarray | None:
    """Return the Cholesky factor L of A + alpha I = LL' (dpotrf).

    Parameters
    ----------
    a : ndarray of shape (n, n)
        The symmetric matrix A, in C or Fortran order.
    alpha : float

    Returns
    -------
    factor : ndarray of shape (n, n) or None
        L in its lower triangle, in Fortran order; entries above the diagonal are undefined. None if A + alpha I is
        not positive definite.
    """
    cdef int n = len(a), info = 0
    factor = np.array(a, np.float64, order="C").T  # the same symmetric matrix, in Fortran order
    factor[np.diag_indices(n)] += alpha
    cdef double [::1, :] matrix = factor
    with nogil:
        dpotrf(b"L", &n, &matrix[0, 0], &n, &info)
    return None if info else factor


def solve_positive(a: np.ndarray, double alpha, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solve (A + alpha I) x = b for a symmetric matrix A, if A + alpha I is positive definite (dposv).

    Parameters
    ----------
    a : ndarray of shape (n, n)
        The symmetric matrix A.
    alpha : float
    b : ndarray of shape (n, n_columns)

    Returns
    -------
    solved : ndarray of shape (n, n_columns)
        The solution x.
    diagonal : ndarray of shape (n,)
        The diagonal of the Cholesky factor; all zeros if A + alpha I is not positive definite.
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
    """Return the inverse of the lower triangle of ``factor``, in Fortran order (dtrtri).

    Entries above the diagonal are ignored, and are zero in the result.
    """
    cdef int n = len(factor), info = 0
    inverse = np.asfortranarray(np.tril(factor))
    cdef double [::1, :] matrix = inverse
    with nogil:
        dtrtri(b"L", b"N", &n, &matrix[0, 0], &n, &info)
    return inverse


def pivoted_cholesky(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Compute the Cholesky factorisation P'AP = U'U of a positive semidefinite matrix A, with pivoting (dpstrf).

    Parameters
    ----------
    a : ndarray of shape (n, n)
        The symmetric matrix A.

    Returns
    -------
    factor : ndarray of shape (n, n)
        U in the first ``rank`` rows of its upper triangle; all other entries are undefined.
    pivots : ndarray of shape (n,), int
        The permutation P: column i of U belongs to column ``pivots[i]`` of A.
    rank : int
        The rank of A.
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
