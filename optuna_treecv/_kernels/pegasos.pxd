"""PEGASOS (Shalev-Shwartz, Singer, Srebro & Cotter 2011), one subgradient step a row, without
shrinking the weights.

Figure 1 of the paper at step t, with w_1 = 0:  eta_t = 1 / (lambda t),
    w_{t+1} = (1 - eta_t lambda) w_t + [y w_t.x < 1] eta_t y x,
    then, optionally, w_{t+1} *= min(1, (1 / sqrt(lambda)) / |w_{t+1}|).
With u_t = lambda t w_{t+1} the shrinking factor cancels:
    u_t = u_{t-1} + [y u_{t-1}.x < lambda (t - 1)] y x,         the first row always,
so a row costs one dot product, one comparison, and only if the margin is violated one vector
addition.

Projection: u is kept as scale * z, |u|^2 follows from the margin and |x|^2, and the ball |w| <= 1
/ sqrt(lambda) is |u_t|^2 <= lambda t^2. Only a step that adds a row can leave it. A scale that
gets small is multiplied into z.

Averaging: the mean of w_1..w_T is (1 / (lambda T)) sum_{i<T} u_i / i. A row added at step j with
coefficient c_j is in all u_i of i >= j, so with H_i = sum_{l<=i} scale_l / l and v = sum_j c_j x_j
H_{j-1} the sum is H_{T-1} z_T - v: no pass over w a row. (Without projection every scale is 1 and
H_i is a harmonic number.) When a scale is multiplied into z, the sum so far goes into v and H
begins again at 0.

Several classes are as many independent models, class against the rest. Thresholds, scales, |u|^2,
H and v are float64 and rounded once, whatever the type of the rows.

Without projection u does not depend on lambda but through the outcomes of the comparisons: it is
the same for all lambdas between the largest ratio y u.x / (t - 1) of the rows added and the smallest
of those not added. A state can keep these two ends.

Here are the steps that one model (``pegasos.pyx``) and lanes (``pegasos_lanes.pyx``) share.
"""

from cython cimport floating
from libc.math cimport NAN
from libc.math cimport isfinite
from libc.math cimport sqrt

from optuna_treecv._kernels.vec8 cimport inlined


cdef inline floating coefficient(
    bint average,
    bint project,
    double alpha,
    double steps,               # t - 1
    floating sign,              # y
    floating *margin,           # INOUT: z.x, then y u.x
    double *scale,              # INOUT
    double *harmonic,           # INOUT: H_{t-2}, then H_{t-1}
    double *added_wide,         # OUT: what the row is added to v with, if it is added to z
) noexcept nogil:
    """What row t is added to z with; 0 where its margin is kept. A step of y x in u = scale z is one of
    (y / scale) x in z; without projection the scale is 1, or NaN for good.
    """
    if average and steps > 0:
        harmonic[0] += scale[0] / steps
    margin[0] *= sign
    if project:
        margin[0] = <floating> (scale[0] * margin[0])
    if not margin[0] == margin[0]:                      # no comparison may hide it
        scale[0] = harmonic[0] = NAN
    if not (margin[0] < <floating> (alpha * steps) or steps == 0):
        return 0
    if average:
        added_wide[0] = sign * harmonic[0] / scale[0]
    return <floating> (sign / scale[0])


cdef inline bint leaves_ball(
    double alpha,
    double steps,               # t - 1
    double margin,              # y u_{t-1}.x
    double norm2_of_row,
    double *scale,              # INOUT
    double *norm2,              # INOUT: |u_{t-1}|^2, then |u_t|^2
    double *harmonic,           # INOUT
) noexcept nogil:
    """Project u after row t was added, by the scale: |u_t|^2 <= lambda t^2. Whether the scale is now so
    small that H z - v is a difference of numbers 1 / scale too large, which costs digits.
    """
    cdef double limit = alpha * (steps + 1) * (steps + 1)
    norm2[0] += 2 * margin + norm2_of_row               # |u + y x|^2 = |u|^2 + 2 y u.x + |x|^2
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
    """Multiply the scale into z: it is 1 again, or NaN if a sum is not finite."""
    cdef double check = 0
    cdef Py_ssize_t j
    if average:
        for j in range(width):
            v[j * step] -= harmonic[0] * <double> z[j * step]
            check += 0 * v[j * step]
        harmonic[0] = 0
    for j in range(width):
        z[j * step] = z[j * step] * <floating> scale[0]
    scale[0] = 1 + check
