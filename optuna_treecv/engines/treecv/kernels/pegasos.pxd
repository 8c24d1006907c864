"""PEGASOS (Shalev-Shwartz, Singer, Srebro & Cotter 2011) with one row per subgradient step.

Step t of figure 1 of the paper, with w_1 = 0 and eta_t = 1 / (lambda t):
    w_{t+1} = (1 - eta_t lambda) w_t + [y w_t.x < 1] eta_t y x,
    and then, optionally, w_{t+1} *= min(1, (1 / sqrt(lambda)) / |w_{t+1}|).
For u_t = lambda t w_{t+1} the factor (1 - eta_t lambda) cancels, so that the weights are never shrunk:
    u_t = u_{t-1} + [y u_{t-1}.x < lambda (t - 1)] y x,         with the bracket always 1 for the first row.
A step therefore costs one dot product and one comparison, and one vector addition if the margin is violated. A row of
weight omega (``row_weight.pxd``) adds omega y x instead of y x.

Projection: u is stored as scale * z, and |u + omega y x|^2 = |u|^2 + 2 omega y u.x + omega^2 |x|^2. The ball
|w| <= 1 / sqrt(lambda) is |u_t|^2 <= lambda t^2, which only a step that adds a row can leave. When the scale has
become small, it is multiplied into z.

Averaging: the mean of w_1..w_T is (1 / (lambda T)) sum_{i<T} u_i / i. A row that step j adds to z with coefficient c_j
is contained in all u_i with i >= j. Let H_i = sum_{l<=i} scale_l / l and v = sum_j c_j x_j H_{j-1}. The sum is then
H_{T-1} z_T - v, and no step needs a pass over all weights. (Without projection, each scale is 1 and H_i is a harmonic
number.) When the scale is multiplied into z, the sum so far is moved into v, and H restarts at 0.

With more than two classes, one independent model per class separates it from all others. Thresholds, scales, |u|^2, H
and v are float64 even if rows are float32; results are rounded at the end.

This file contains the steps that a single model (``pegasos.pyx``) and lanes (``pegasos_lanes.pyx``) share.
"""

from cython cimport floating
from libc.math cimport NAN
from libc.math cimport isfinite
from libc.math cimport sqrt

from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv.engines.treecv.kernels.linear cimport LinearSettings
from optuna_treecv.engines.treecv.kernels.linear cimport MAX_LANES


cdef struct Settings:
    LinearSettings linear
    bint average
    bint project
    double alpha[MAX_LANES]     # lambda of each lane; a single model uses alpha[0]


cdef inline floating coefficient(
    bint average,
    bint project,
    double alpha,
    double steps,               # t - 1
    floating sign,              # y
    floating weight,            # omega
    floating *margin,           # IN: z.x; OUT: y u.x
    double *scale,              # INOUT
    double *harmonic,           # IN: H_{t-2}; OUT: H_{t-1}
    double *added_wide,         # OUT: the coefficient with which the row is added to v, if it is added to z
) noexcept nogil:
    """Return the coefficient with which the row of step t is added to z, or 0 if its margin is not violated.

    Adding omega y x to u = scale z means adding (omega y / scale) x to z. Without projection, the scale stays 1, or
    stays NaN after an overflow.
    """
    cdef floating step = weight * sign
    if average and steps > 0:
        harmonic[0] += scale[0] / steps
    margin[0] *= sign
    if project:
        margin[0] = <floating> (scale[0] * margin[0])
    if not margin[0] == margin[0]:                      # mark NaN, because the comparison below is false
        scale[0] = harmonic[0] = NAN
    if not (margin[0] < <floating> (alpha * steps) or steps == 0):
        return 0
    if average:
        added_wide[0] = step * harmonic[0] / scale[0]
    return <floating> (step / scale[0])


cdef inline bint leaves_ball(
    double alpha,
    double steps,               # t - 1
    double margin,              # y u_{t-1}.x
    double weight,              # omega
    double norm2_of_row,        # |x|^2
    double *scale,              # INOUT
    double *norm2,              # IN: |u_{t-1}|^2; OUT: |u_t|^2
    double *harmonic,           # INOUT
) noexcept nogil:
    """Project u onto the ball |u_t|^2 <= lambda t^2 by changing the scale, after step t has added its row.

    Return whether the scale is now so small that it must be multiplied into z. The terms of H z - v are larger than
    their difference by a factor of 1 / scale, so the difference would lose digits.
    """
    cdef double limit = alpha * (steps + 1) * (steps + 1)
    norm2[0] += weight * (2 * margin + weight * norm2_of_row)
    if norm2[0] <= limit:
        return False
    if not isfinite(norm2[0]):                          # a projection would turn an infinite norm into a finite one
        scale[0] = harmonic[0] = NAN
        return False
    scale[0] *= sqrt(limit / norm2[0])
    norm2[0] = limit
    return not scale[0] > 1.0 / 64


cdef inline inlined absorb(
    bint average,
    Py_ssize_t width,
    Py_ssize_t step,            # the stride of z and v, in elements
    double *scale,              # INOUT
    double *harmonic,           # INOUT
    floating *z,                # INOUT, (width,)
    double *v,                  # INOUT, (width,)
) noexcept nogil:
    """Multiply the scale into z, and reset it to 1, or to NaN if an element of v is not finite."""
    cdef double check = 0
    cdef Py_ssize_t j
    if average:
        for j in range(width):
            v[j * step] -= harmonic[0] * <double> z[j * step]
            check += 0 * v[j * step]
        harmonic[0] = 0
    for j in range(width):
        z[j * step] = z[j * step] * <floating> scale[0] + 0     # + 0 turns -0 into 0: adding 0 * x would change -0
    scale[0] = 1 + check
