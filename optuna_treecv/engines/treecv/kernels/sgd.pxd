"""Stochastic gradient descent with any loss, constant or decaying steps, mini-batches, an optional
bound on the norm of the weights, and averages of all iterates or of the last ones.

Step t, for a row x or the mean over a mini-batch, with the penalty (alpha / 2) |w|^2:
    w_{t+1} = P((1 - eta_t alpha) w_t - eta_t slope(w_t.x, y) x),        w_1 = 0,
with eta_t = step_size / t^power and P the projection onto |w| <= radius. The weight of a row multiplies its slope
(``row_weight.pxd``). The automatic step is in ``steps.pxd``; its rate is divided by t^power too. The averaged
hypothesis is the mean of w_t over the steps t after the first ``average_start`` rows, that is of the iterates
before each step (Polyak & Juditsky 1992; over the tail: Jain, Kakade, Kidambi, Netrapalli & Sidford 2018). A
linear average gives them the weights 1, 2, 3 ... (Lacoste-Julien, Schmidt & Bach 2012).
Least squares with a constant step, a ball and the mean of all iterates is robust stochastic
approximation (Nemirovski, Juditsky, Lan & Shapiro 2009, section 2.2).

w is stored as scale * z: shrinking and projection change the scale, and a row changes z only in its
nonzero columns. The mean needs no pass over w either. Let A_t be the weighted sum of the scales averaged up to
step t. A step that adds c x to z is part of all later iterates, so their sum is A_T z_T - v with v =
sum of c_t A_t x_t. A scale that gets extreme is multiplied into z; the sum so far then moves into v
and A starts again at 0. |z|^2 follows from the margin and |x|^2.

Several classes have one independent model per class, class against the rest.

This file has the steps that one model (``sgd.pyx``) and lanes (``sgd_lanes.pyx``) share.
"""

from cython cimport floating
from libc.math cimport NAN
from libc.math cimport isfinite
from libc.math cimport sqrt
from libc.stdint cimport int64_t

from optuna_treecv._kernels.exp_log cimport exponential
from optuna_treecv._kernels.exp_log cimport logarithm
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv.engines.treecv.kernels.linear cimport LinearSettings
from optuna_treecv.engines.treecv.kernels.linear cimport MOST_LANES
from optuna_treecv.engines.treecv.kernels.losses cimport Loss
from optuna_treecv.engines.treecv.kernels.steps cimport Norms


cdef struct Settings:
    LinearSettings linear
    Loss loss
    double power                # eta_t = eta / t^power
    bint average
    bint is_linear              # whether the iterates are weighted by their numbers in the average
    int64_t average_start       # the number of rows before averaging begins
    int64_t batch_size          # 1 in lanes
    bint any_auto               # whether a lane has the automatic step
    double alpha[MOST_LANES]    # of each lane; that of one model is the first, as of the next two
    double step_size[MOST_LANES]    # eta; 0: auto
    double radius[MOST_LANES]


# What all lanes share in a state.
cdef struct Common:
    int64_t n_seen
    int64_t n_averaged          # the sum of the weights of the iterates averaged
    Norms norms                 # of the rows so far; for the automatic step only


cdef inline double decay(double power, int64_t t) noexcept nogil:
    """Return the factor or divisor of ``step_at`` that depends on t."""
    return sqrt(<double> t) if power == 0.5 else exponential(-power * logarithm(<double> t))


cdef inline double step_at(double step_size, double power, double decay_of_t) noexcept nogil:
    """Return eta_t."""
    if power == 0:
        return step_size
    return step_size / decay_of_t if power == 0.5 else step_size * decay_of_t


cdef inline int64_t weight_in_average(const Settings *settings, int64_t n_seen, int64_t batch_size) noexcept nogil:
    """Return the weight of an iterate after ``n_seen`` rows; 0 if it is not averaged."""
    cdef int64_t n_rows = n_seen - settings.average_start
    if not settings.average or n_rows < 0:
        return 0
    if not settings.is_linear:
        return 1
    return (n_rows if batch_size == 1 else n_rows // batch_size) + 1


cdef inline floating coefficient(double eta, double g, double scale, const floating *of_type) noexcept nogil:
    """Return the coefficient with which a row of slope g is added to z."""
    return <floating> (-eta * g / scale)


cdef inline double with_row(double norm2, double added, double margin, double norm2_of_row) noexcept nogil:
    """Return |z + c x|^2 = |z|^2 + 2 c z.x + c^2 |x|^2."""
    return norm2 + added * (2 * margin + added * norm2_of_row)


cdef inline void project(
    double radius,
    double norm2,               # |z|^2
    double *scale,              # INOUT
) noexcept nogil:
    """Project w onto |w| <= radius, by changing the scale."""
    norm2 *= scale[0] * scale[0]
    if norm2 > radius * radius:
        scale[0] *= radius / sqrt(norm2)
    if not isfinite(norm2):                         # a projection onto the ball would hide it
        scale[0] = NAN


cdef inline inlined absorb(
    bint average,
    Py_ssize_t width,
    Py_ssize_t n_lanes,
    const int *chosen,          # IN, (n_chosen,), lanes
    Py_ssize_t n_chosen,
    double *scale,              # INOUT, (n_lanes,)
    double *norm2,              # INOUT, likewise
    double *averaged,           # INOUT, likewise
    double *check,              # OUT, (n_chosen,), room
    floating *z,                # INOUT, (width, n_lanes)
    double *v,                  # INOUT, likewise
) noexcept nogil:
    """Multiply the scale into z in the chosen lanes, so that it is 1 again. If it is small, A z - v loses
    digits: A z and v are larger than it by a factor of 1 / scale. If it is large, steps lose digits. No z
    becomes -0, which adding 0 times a row would change.
    """
    cdef Py_ssize_t i, j, lane
    for i in range(n_chosen):
        check[i] = 0
    if average:
        for j in range(width):
            for i in range(n_chosen):
                lane = chosen[i]
                v[j * n_lanes + lane] -= averaged[lane] * <double> z[j * n_lanes + lane]
                check[i] += 0 * v[j * n_lanes + lane]
    for j in range(width):
        for i in range(n_chosen):
            lane = chosen[i]
            z[j * n_lanes + lane] = <floating> (scale[lane] * <double> z[j * n_lanes + lane]) + 0
            check[i] += 0 * <double> z[j * n_lanes + lane]
    for i in range(n_chosen):
        lane = chosen[i]
        norm2[lane] *= scale[lane] * scale[lane]
        scale[lane] = 1 + check[i]                  # NaN if something is not finite
        averaged[lane] = check[i]
