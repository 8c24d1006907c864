"""Routines of LAPACK that let other threads run meanwhile.

SciPy's own functions keep the interpreter's lock, for seconds where there are thousands of
columns, so that the heartbeats of a study would stop. ctypes gives the lock back during a call.
NumPy does so too, in ``eigh``, ``svd`` and ``qr``.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_lapack

_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


@cache
def _routine(name: str) -> tuple[Any, Any]:
    """Return a routine and its type of integers."""
    capsule = cython_lapack.__pyx_capi__[name]
    signature = _get_name(capsule)
    integer = ctypes.c_int if b"int *" in signature else ctypes.c_int64
    kinds = [ctypes.c_void_p] * (signature.count(b",") + 1)
    return ctypes.CFUNCTYPE(None, *kinds)(_get_pointer(capsule, signature)), integer


def _call(name: str, *args: bytes | int | np.ndarray) -> int:
    """Call a routine, and return what it says about failure, its last argument."""
    routine, integer = _routine(name)
    info = integer(0)
    passed: list[Any] = []
    for arg in args:
        if isinstance(arg, bytes):
            passed.append(ctypes.c_char_p(arg))
        elif isinstance(arg, np.ndarray):
            passed.append(ctypes.c_void_p(arg.ctypes.data))
        else:
            passed.append(ctypes.byref(integer(arg)))
    routine(*passed, ctypes.byref(info))
    return int(info.value)


def tridiagonal(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reduce a symmetric matrix to a tridiagonal one, T = Q'AQ (dsytrd).

    Parameters
    ----------
    a : ndarray of shape (n, n)

    Returns
    -------
    reflectors : ndarray of shape (n, n)
        In Fortran's order; below the first subdiagonal are the reflectors that make Q.
    diagonal : ndarray of shape (n,)
    beside, tau : ndarray of shape (n - 1,)
    """
    n = len(a)
    reflectors = np.array(a, np.float64, order="F")
    diagonal, beside, tau, work = np.empty(n), np.empty(n - 1), np.empty(n - 1), np.empty(64 * n)
    _call("dsytrd", b"L", n, reflectors, n, diagonal, beside, tau, work, len(work))
    return reflectors, diagonal, beside, tau


def cholesky(a: np.ndarray, alpha: float = 0.0) -> np.ndarray | None:
    """Return L of A + alpha I = LL' (dpotrf), or None if that is not positive definite.

    It is in Fortran's order, and what is above the diagonal means nothing.

    Parameters
    ----------
    a : ndarray of shape (n, n)
        Symmetric, in either order.
    alpha : float
    """
    factor = np.array(a, np.float64, order="C").T  # a copy in the other order is the same matrix
    factor[np.diag_indices(len(a))] += alpha
    return None if _call("dpotrf", b"L", len(a), factor, len(a)) else factor


def solve_positive(a: np.ndarray, alpha: float, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (A + alpha I)^-1 b and the diagonal of the Cholesky factor (dposv).

    The diagonal is 0 where A + alpha I is not positive definite.

    Parameters
    ----------
    a : ndarray of shape (n, n)
        Symmetric.
    alpha : float
    b : ndarray of shape (n, n_columns)
    """
    n = len(b)
    factor = np.array(a, np.float64, order="C")
    diagonal = factor.reshape(-1)[:: n + 1]
    diagonal += alpha
    solved = np.array(b, np.float64, order="F")
    if _call("dposv", b"L", n, b.shape[1], factor, n, solved, n):
        diagonal[:] = 0
    return solved, diagonal


def cholesky_factors(matrices: np.ndarray) -> np.ndarray:
    """Return L of each LL', (n_matrices, n, n); zeros where one is not positive definite."""
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:  # NumPy does not say which
        if len(matrices) == 1:
            return np.zeros_like(matrices)
        return np.concatenate([cholesky_factors(one[None]) for one in matrices])


def inverse_of_triangle(factor: np.ndarray) -> np.ndarray:
    """Return L^-1 with zeros above the diagonal, in Fortran's order (dtrtri)."""
    inverse = np.asfortranarray(np.tril(factor))
    _call("dtrtri", b"L", b"N", len(factor), inverse, len(factor))
    return inverse


def pivoted_cholesky(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return U, the permutation and the rank of P'AP = U'U for a semidefinite A (dpstrf).

    Parameters
    ----------
    a : ndarray of shape (n, n)

    Returns
    -------
    factor : ndarray of shape (n, n)
        U in its upper triangle; what is below it, and below row ``rank``, means nothing.
    pivots : ndarray of shape (n,), int
        Column i of U belongs to column ``pivots[i]`` of A.
    rank : int
    """
    n = len(a)
    integer = _routine("dpstrf")[1]
    factor = np.array(a, np.float64, order="F")
    pivots, rank = np.empty(n, integer), np.zeros(1, integer)
    _call("dpstrf", b"U", n, factor, n, pivots, rank, np.zeros(1), np.empty(2 * n))
    return factor, pivots.astype(np.intp) - 1, int(rank[0])
