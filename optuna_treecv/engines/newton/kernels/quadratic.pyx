"""Quadratic functions with an L1 penalty, minimised by coordinate descent."""

import numpy as np

from optuna_treecv._kernels.vec8 cimport dispatched


# The largest number of sweeps, over all coefficients or over those that are not 0.
cdef int MAX_SWEEPS = 20_000

# Sweeps end when none of their steps decreases the function by more than this share of the total decrease.
cdef double TOLERANCE = 1e-8


cdef dispatched add_multiple(double factor, const double *x, double *y, Py_ssize_t n) noexcept nogil:
    """Compute y += factor x."""
    cdef Py_ssize_t i
    for i in range(n):
        y[i] += factor * x[i]


cdef void descend(
    const double *H, const double *g, const double *w, const double *l1, const unsigned char *is_free, Py_ssize_t d,
    double *step, double *slopes,
) noexcept nogil:
    """Find the step of one model."""
    cdef Py_ssize_t j, _sweep
    cdef bint is_whole = True
    cdef double v, z, h, change, largest, total = 0
    for j in range(d):
        step[j], slopes[j] = 0, g[j]
    for _sweep in range(MAX_SWEEPS):
        largest = 0
        for j in range(d):
            h, v = H[j * d + j], w[j] + step[j]
            if not is_free[j] or h <= 0 or not (is_whole or v != 0):
                continue
            z = v - slopes[j] / h
            z = z - l1[j] / h if z > l1[j] / h else (z + l1[j] / h if z < -l1[j] / h else 0)
            change = z - v
            if change != 0:
                step[j] = z - w[j]
                add_multiple(change, H + j * d, slopes, d)
                largest = max(largest, change * change * h)
                total += change * change * h
        if largest <= TOLERANCE * total:
            if is_whole:
                break
            is_whole = True
        else:
            is_whole = False


def find_steps(
    const double [:, :, ::1] hessians,          # IN, (n_models, d, d)
    const double [:, ::1] gradients,            # IN, (n_models, d)
    const double [:, ::1] models,               # IN, (n_models, d)
    const double [:, ::1] strengths,            # IN, (n_models, d)
    const unsigned char [:, ::1] is_free,       # IN, (n_models, d)
) -> np.ndarray:
    """Minimise g's + s'Hs / 2 + sum_j l_j |w_j + s_j| over the steps s, which are 0 where ``is_free`` is 0.

    Returns
    -------
    ndarray of shape (n_models, d)
    """
    cdef Py_ssize_t i, m = gradients.shape[0], d = gradients.shape[1]
    cdef double [:, ::1] steps = np.empty((m, d))
    cdef double [::1] slopes = np.empty(d)
    with nogil:
        for i in range(m):
            descend(
                &hessians[i, 0, 0], &gradients[i, 0], &models[i, 0], &strengths[i, 0], &is_free[i, 0], d, &steps[i, 0],
                &slopes[0],
            )
    return np.asarray(steps)
