"""Stochastic gradient descent with any loss, constant or decaying step sizes, and mini-batches.

Optionally, the norm of the weights is bounded, and the model is an average of all iterates or of the last ones.

Step t for a row x, with the penalty (alpha / 2) |w|^2 and w_1 = 0:
    w_{t+1} = P((1 - eta_t alpha) w_t - eta_t slope(w_t.x, y) x).
Here eta_t = step_size / t^power, and P is the projection onto the ball |w| <= radius. For a mini-batch, the gradient
slope(w_t.x, y) x is averaged over its rows. The weight of a row multiplies its slope (``row_weight.pxd``). The
automatic step size is defined in ``steps.pxd``; its rate is divided by t^power too.

The average is the mean of w_t over all steps t after the first ``average_start`` rows, with w_t the iterate before
step t (Polyak & Juditsky 1992; for the tail average Jain, Kakade, Kidambi, Netrapalli & Sidford 2018). A linear
average gives these iterates the weights 1, 2, 3, ... (Lacoste-Julien, Schmidt & Bach 2012). Least squares with a
constant step size, a ball and the mean of all iterates is robust stochastic approximation (Nemirovski, Juditsky, Lan &
Shapiro 2009, section 2.2).

w is stored as scale * z. Shrinking and projection change only the scale, and a row changes only the elements of z in
its nonzero columns. The average needs no pass over all weights either. Let A_t be the weighted sum of the scales of
the iterates averaged up to step t. Step t adds c_t x_t to z, and thereby to all later iterates. With v = sum_t c_t A_t
x_t, the weighted sum of the iterates is therefore A_T z_T - v. When the scale has become very small or large, it is
multiplied into z; the sum so far is then moved into v, and A restarts at 0. |z|^2 is updated from the margin and
|x|^2.

With more than two classes, one independent model per class separates it from all others.

This file contains the steps that a single model (``sgd.pyx``) and lanes (``sgd_lanes.pyx``) share.
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
from optuna_treecv.engines.treecv.kernels.linear cimport MAX_LANES
from optuna_treecv.engines.treecv.kernels.losses cimport Loss
from optuna_treecv.engines.treecv.kernels.steps cimport Norms


cdef struct Settings:
    LinearSettings linear
    Loss loss
    double power                # eta_t = eta / t^power
    bint average
    bint is_linear              # whether the averaged iterates have the weights 1, 2, 3, ...
    int64_t average_start       # the number of rows before averaging begins
    int64_t batch_size          # 1 in lanes
    bint any_auto               # whether some lane has the automatic step size
    # The settings of each lane; a single model uses the first element.
    double alpha[MAX_LANES]
    double step_size[MAX_LANES]     # eta_1; 0: automatic
    double radius[MAX_LANES]        # infinity: no projection


# The part of a state that all lanes share.
cdef struct Common:
    int64_t n_seen
    int64_t n_averaged          # the sum of the weights of the averaged iterates
    Norms norms                 # of the rows so far; used by the automatic step size only


cdef inline double decay(double power, int64_t t) noexcept nogil:
    """Return the divisor sqrt(t) of eta_t if ``power`` is 0.5, otherwise its factor t^-power."""
    return sqrt(<double> t) if power == 0.5 else exponential(-power * logarithm(<double> t))


cdef inline double step_at(double step_size, double power, double decay_of_t) noexcept nogil:
    """Return eta_t, given ``decay(power, t)``."""
    if power == 0:
        return step_size
    return step_size / decay_of_t if power == 0.5 else step_size * decay_of_t


cdef inline int64_t weight_in_average(const Settings *settings, int64_t n_seen, int64_t batch_size) noexcept nogil:
    """Return the weight of the iterate after ``n_seen`` rows in the average, or 0 if it is not averaged."""
    cdef int64_t n_rows = n_seen - settings.average_start
    if not settings.average or n_rows < 0:
        return 0
    if not settings.is_linear:
        return 1
    return (n_rows if batch_size == 1 else n_rows // batch_size) + 1


cdef inline floating coefficient(double eta, double g, double scale, const floating *type_tag) noexcept nogil:
    """Return the coefficient with which a row is added to z, given the slope g of its loss."""
    return <floating> (-eta * g / scale)


cdef inline double norm2_after_step(double norm2, double added, double margin, double norm2_of_row) noexcept nogil:
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
    if not isfinite(norm2):                         # a projection would hide that it is not finite
        scale[0] = NAN


cdef inline inlined absorb(
    bint average,
    Py_ssize_t width,
    Py_ssize_t n_lanes,
    const int *chosen,          # IN, (n_chosen,), lane indices
    Py_ssize_t n_chosen,
    double *scale,              # INOUT, (n_lanes,)
    double *norm2,              # INOUT, (n_lanes,)
    double *averaged,           # INOUT, (n_lanes,)
    double *check,              # OUT, (n_chosen,), a workspace
    floating *z,                # INOUT, (width, n_lanes)
    double *v,                  # INOUT, (width, n_lanes)
) noexcept nogil:
    """Multiply the scale into z in the chosen lanes, and reset it to 1.

    With a small scale, A z - v would lose digits, because its terms are larger than their difference by a factor of
    1 / scale. With a large scale, steps would lose digits. Elements of z must not become
    -0, because adding 0 times a row would turn -0 into 0.
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
        scale[lane] = 1 + check[i]                  # NaN if a weight is not finite
        averaged[lane] = check[i]
