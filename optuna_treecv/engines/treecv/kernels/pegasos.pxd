"""PEGASOS (Shalev-Shwartz, Singer, Srebro & Cotter 2011), one subgradient step per row, without
shrinking the weights.

Figure 1 of the paper, step t, with w_1 = 0:  eta_t = 1 / (lambda t),
    w_{t+1} = (1 - eta_t lambda) w_t + [y w_t.x < 1] eta_t y x,
    then, optionally, w_{t+1} *= min(1, (1 / sqrt(lambda)) / |w_{t+1}|).
With u_t = lambda t w_{t+1} the shrinking factor cancels:
    u_t = u_{t-1} + [y u_{t-1}.x < lambda (t - 1)] y x,         the first row always.
So a row costs one dot product and one comparison, and only if the margin is violated one vector
addition. A row of weight omega (``row_weight.pxd``) adds omega y x.

Projection: u is stored as scale * z, and |u + omega y x|^2 = |u|^2 + 2 omega y u.x + omega^2 |x|^2. The ball
|w| <= 1 / sqrt(lambda) is |u_t|^2 <= lambda t^2. Only a step that adds a row can leave the ball. A scale that
gets small is multiplied into z.

Averaging: the mean of w_1..w_T is (1 / (lambda T)) sum_{i<T} u_i / i. A row added at step j with
coefficient c_j is part of all u_i with i >= j. So with H_i = sum_{l<=i} scale_l / l and v = sum_j c_j
x_j H_{j-1} the sum is H_{T-1} z_T - v, and no row needs a pass over w. (Without projection every
scale is 1 and H_i is a harmonic number.) When a scale is multiplied into z, the sum so far moves into
v and H starts again at 0.

Several classes have one independent model per class, class against the rest. Thresholds, scales,
|u|^2, H and v are float64 for either type of rows, and rounded once.

This file has the steps that one model (``pegasos.pyx``) and lanes (``pegasos_lanes.pyx``) share.
"""

from cython cimport floating
from libc.math cimport NAN
from libc.math cimport isfinite
from libc.math cimport sqrt

from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv.engines.treecv.kernels.linear cimport LinearSettings
from optuna_treecv.engines.treecv.kernels.linear cimport MOST_LANES


cdef struct Settings:
    LinearSettings linear
    bint average
    bint project
    double alpha[MOST_LANES]    # lambda of each lane; that of one model is the first


cdef inline floating coefficient(
    bint average,
    bint project,
    double alpha,
    double steps,               # t - 1
    floating sign,              # y
    floating weight,            # of the row
    floating *margin,           # INOUT: z.x, then y u.x
    double *scale,              # INOUT
    double *harmonic,           # INOUT: H_{t-2}, then H_{t-1}
    double *added_wide,         # OUT: the row's coefficient in v, if it is added to z
) noexcept nogil:
    """Return the coefficient with which row t is added to z; 0 if its margin is not violated. A step of
    omega y x in u = scale z is (omega y / scale) x in z. Without projection the scale is 1, or NaN for good.
    """
    cdef floating step = weight * sign
    if average and steps > 0:
        harmonic[0] += scale[0] / steps
    margin[0] *= sign
    if project:
        margin[0] = <floating> (scale[0] * margin[0])
    if not margin[0] == margin[0]:                      # no comparison may hide NaN
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
    double weight,              # of the row
    double norm2_of_row,
    double *scale,              # INOUT
    double *norm2,              # INOUT: |u_{t-1}|^2, then |u_t|^2
    double *harmonic,           # INOUT
) noexcept nogil:
    """Project u onto |u_t|^2 <= lambda t^2 after row t was added, by changing the scale. Return whether
    the scale is now so small that H z - v loses digits: H z and v are larger than it by a factor of 1 / scale.
    """
    cdef double limit = alpha * (steps + 1) * (steps + 1)
    norm2[0] += weight * (2 * margin + weight * norm2_of_row)
    if norm2[0] <= limit:
        return False
    if not isfinite(norm2[0]):                          # a projection onto the ball would hide it
        scale[0] = harmonic[0] = NAN
        return False
    scale[0] *= sqrt(limit / norm2[0])
    norm2[0] = limit
    return not scale[0] > 1.0 / 64


cdef inline inlined absorb(
    bint average,
    Py_ssize_t width,
    Py_ssize_t step,            # from one number of a vector to the next
    double *scale,              # INOUT
    double *harmonic,           # INOUT
    floating *z,                # INOUT, (width,)
    double *v,                  # INOUT, (width,)
) noexcept nogil:
    """Multiply the scale into z, so that it is 1 again, or NaN if a number of v is not finite."""
    cdef double check = 0
    cdef Py_ssize_t j
    if average:
        for j in range(width):
            v[j * step] -= harmonic[0] * <double> z[j * step]
            check += 0 * v[j * step]
        harmonic[0] = 0
    for j in range(width):
        z[j * step] = z[j * step] * <floating> scale[0] + 0     # never -0, which adding 0 times a row would change
    scale[0] = 1 + check
