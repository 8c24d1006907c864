r"""The orthogonal reduction of a symmetric matrix A to a band matrix B = U'AU.

For each alpha, :math:`A + \alpha I = U (B + \alpha I) U^\top`, and the Cholesky factor of a band
matrix takes little time. The reduction consists of products of large matrices, and therefore takes
a fifth of the time of an eigendecomposition, which spends most time on products with vectors.
"""

from typing import NamedTuple

import numpy as np

from optuna_treecv._kernels import lapack

#: The number of subdiagonals of a band matrix, and of rows of its blocks.
BLOCK = 48

# The number of rows of a large matrix that are computed together: a multiple of BLOCK, so that
# blocks on the diagonal lie within them.
_STRIP = 10 * BLOCK

# The number of blocks of columns of Householder vectors that are multiplied together.
_MERGED = 3

_EPS = float(np.finfo(np.float64).eps)

#: Matrices V' and T of a transformation I - VTV' of the last rows.
Reflector = tuple[np.ndarray, np.ndarray]

#: The Cholesky factor of a band matrix: for each block the rows, the inverse of the entries on the
#: diagonal, and the entries to the left of these.
BandFactor = list[tuple[slice, np.ndarray, np.ndarray]]


class Band(NamedTuple):
    """A band matrix B = U'AU, in blocks of rows.

    Attributes
    ----------
    least_pivot : float
        See ``least_pivot`` of A.
    rows : list of slice
        The rows of each block.
    diagonal : list of ndarray
        The entries of each block on the diagonal of B; the lower triangle is valid.
    left : list of ndarray
        The entries to the left of these. The first block has none.
    reflectors : list of Reflector
        U is the product of these transformations.
    """

    least_pivot: float
    rows: list[slice]
    diagonal: list[np.ndarray]
    left: list[np.ndarray]
    reflectors: list[Reflector]


def reduce_to_band(a: np.ndarray) -> Band:
    """Reduce a symmetric matrix to a band matrix, by Householder transformations of blocks."""
    a, n = a.copy(), len(a)
    band = Band(least_pivot(a), [], [], [np.empty((min(n, BLOCK), 0))], [])
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        band.rows.append(slice(start, stop))
        band.diagonal.append(a[start:stop, start:stop].copy())
        below = a[stop:, start:stop]
        if stop < n <= stop + BLOCK:  # a last block of at most BLOCK rows is within the band
            band.left.append(below.copy())
        elif stop < n:
            vt, tau = np.linalg.qr(below, mode="raw")
            band.left.append(np.tril(vt[:, :BLOCK]).T)
            band.reflectors.append(_to_reflector(vt, tau))
            _transform(a, stop, *band.reflectors[-1])
    return band


def _to_reflector(vt: np.ndarray, tau: np.ndarray) -> Reflector:
    """Return the product of Householder transformations, from NumPy's raw result of ``qr``."""
    vt = np.triu(vt, 1)
    np.fill_diagonal(vt, 1)
    vt[tau == 0] = 0  # the identity
    inverse = np.tril(vt @ vt.T, -1)
    np.fill_diagonal(inverse, 1 / np.where(tau == 0, 1, tau))
    return vt, lapack.inverse_of_triangle(inverse).T


def _transform(a: np.ndarray, first: int, vt: np.ndarray, t: np.ndarray) -> None:
    """Replace A, the rows and columns from ``first`` on, by (I - VTV')'A(I - VTV').

    Entries above the diagonal are neither read nor valid, except for those of blocks on it.
    """
    lows = range(first // _STRIP * _STRIP, len(a), _STRIP)
    strips = [(max(low, first) - first, min(low + _STRIP, len(a)) - first) for low in lows]
    a = a[first:, first:]
    x, w = t.T @ vt, np.zeros_like(vt)
    for low, high in strips:
        w[:, low:high] += x[:, :high] @ a[low:high, :high].T
        w[:, :low] += x[:, low:high] @ a[low:high, :low]
    w -= 0.5 * (w @ vt.T @ t) @ vt
    left, right = np.vstack([vt, w]), np.vstack([w, vt])
    for low, high in strips:
        a[low:high, :high] -= left[:, low:high].T @ right[:, :high]


def rotate(band: Band, x: np.ndarray, transposed: bool) -> None:
    """Replace x by Ux or U'x."""
    for vt, t in band.reflectors if transposed else reversed(band.reflectors):
        _reflect(x[-vt.shape[1] :], vt, t.T if transposed else t)


def compute_rotation(band: Band) -> np.ndarray:
    """Return U."""
    n = band.rows[-1].stop
    u = np.identity(n)
    for first in reversed(range(0, len(band.reflectors), _MERGED)):
        vt, t = _merge(band.reflectors[first : first + _MERGED])
        start = n - vt.shape[1]
        _reflect(u[start:, start:], vt, t)
    return u


def _merge(reflectors: list[Reflector]) -> Reflector:
    """Return the product of consecutive transformations."""
    n_rows, n = len(reflectors) * BLOCK, reflectors[0][0].shape[1]
    merged_vt, merged_t = np.zeros((n_rows, n)), np.zeros((n_rows, n_rows))
    for i, (vt, t) in enumerate(reflectors):
        before, rows = slice(0, i * BLOCK), slice(i * BLOCK, (i + 1) * BLOCK)
        merged_vt[rows, n - vt.shape[1] :], merged_t[rows, rows] = vt, t
        products = merged_vt[before] @ merged_vt[rows].T
        merged_t[before, rows] = -merged_t[before, before] @ products @ t
    return merged_vt, merged_t


def _reflect(x: np.ndarray, vt: np.ndarray, t: np.ndarray) -> None:
    """Replace x by (I - VTV')x."""
    product = t @ (vt @ x)
    for low in range(0, len(x), _STRIP):
        x[low : low + _STRIP] -= vt[:, low : low + _STRIP].T @ product


def factor_band(band: Band, alpha: float) -> BandFactor:
    """Return the Cholesky factor of B + alpha I."""
    factor: BandFactor = []
    inverse = np.empty((0, 0))
    for rows, diagonal, left in zip(band.rows, band.diagonal, band.left, strict=True):
        left = left @ inverse.T
        inverse = invert_factor(diagonal - left @ left.T, alpha, band.least_pivot)
        factor.append((rows, inverse, left))
    return factor


def solve_forward(factor: BandFactor, x: np.ndarray) -> np.ndarray:
    """Return the inverse of the factor times x."""
    solved = np.empty_like(x)
    for rows, inverse, left in factor:
        above = solved[rows.start - left.shape[1] : rows.start]
        solved[rows] = inverse @ (x[rows] - left @ above)
    return solved


def solve_backward(factor: BandFactor, x: np.ndarray) -> np.ndarray:
    """Return the inverse of the transpose of the factor times x."""
    solved = x.copy()
    for rows, inverse, left in reversed(factor):
        solved[rows] = inverse.T @ solved[rows]
        solved[rows.start - left.shape[1] : rows.start] -= left.T @ solved[rows]
    return solved


def invert_factor(a: np.ndarray, alpha: float, least: float) -> np.ndarray:
    """Return the inverse of the Cholesky factor of A + alpha I.

    Raises
    ------
    ValueError
        If a pivot is at most ``least``.
    """
    factor = lapack.cholesky(a, alpha)
    if factor is None or not factor.diagonal().min() ** 2 > least:
        raise not_definite_error(alpha)
    return lapack.inverse_of_triangle(factor)


def least_pivot(a: np.ndarray) -> float:
    """Return the size of pivots that may be rounding errors."""
    return _EPS * len(a) * float(np.abs(a.diagonal()).max())


def not_definite_error(alpha: float) -> ValueError:
    """Return the error that is raised for a matrix that is not positive definite."""
    return ValueError(f"The kernel matrix plus alpha={alpha:g} is not positive definite.")
