"""Streaming SVRG (Frostig, Ge, Kakade & Sidford 2015, Algorithm 1): variance-reduced gradient
descent that reads each row once.

Stage s, at the anchor w~:
    batch    g = mean over k_s rows of slope(w~.x, y) x                       (the anchor's gradient)
    inner    m~ uniform on 1..m, w_1 = w~, and for t = 1..m~, a row each,
             w_{t+1} = w_t - eta ((slope(w_t.x, y) - slope(w~.x, y)) x + alpha w_t + g)
    the next anchor is w_{m~+1}, and k_{s+1} = b k_s.
With the penalty (alpha / 2) |w|^2 the anchor's part of it, alpha w~, is in g and in the correction
and cancels. m~ is drawn from (seed, stage). Remark 7: the first stages may all have k_0 rows; Remark
8, the factorial schedule: k_s = 4^s s! k_0, eta_s = eta / 2^s, m_s = 4^s m.

w is kept as scale * z + shift * G, with G the batch's sum of gradients: z moves only where a row is
not 0, the two numbers take care of alpha and g. The margin and the accumulation of a batch's row are
one loop while the row is in cache. A phase begins when its first row arrives; so before the first
batch is complete nothing but the loss has acted.

Here are the steps that one model (``svrg.pyx``) and lanes (``svrg_lanes.pyx``) share; the stages are in
``svrg_stages.pxd``.
"""

from cython cimport floating
from libc.stdint cimport int64_t

from optuna_treecv._kernels.losses cimport Loss
from optuna_treecv._kernels.losses cimport auto_step
from optuna_treecv._kernels.svrg_stages cimport Schedule
from optuna_treecv._kernels.svrg_stages cimport Stage
from optuna_treecv._kernels.svrg_stages cimport scheduled
from optuna_treecv._kernels.tree cimport Part
from optuna_treecv._kernels.vec8 cimport inlined


cdef inline inlined settle(
    Py_ssize_t width,
    Py_ssize_t n_lanes,
    const int *chosen,          # IN, (n_chosen,), lanes
    Py_ssize_t n_chosen,
    const double *scale,        # IN, (n_lanes,)
    const double *shift,        # IN, likewise
    floating *z,                # INOUT, (width, n_lanes)
    const double *sums,         # IN, likewise
    double *check,              # INOUT, (n_lanes,): NaN if a weight is not finite
) noexcept nogil:
    """z becomes w in the lanes chosen, and none becomes -0, which adding 0 times a row would change."""
    cdef Py_ssize_t i, lane
    for _ in range(width):
        for i in range(n_chosen):
            lane = chosen[i]
            z[lane] = <floating> (scale[lane] * <double> z[lane] + shift[lane] * sums[lane]) + 0
            check[lane] += 0 * <double> z[lane]
        z += n_lanes
        sums += n_lanes


cdef inline inlined shrink_z(
    Py_ssize_t width,
    Py_ssize_t n_lanes,
    const int *chosen,          # IN, (n_chosen,), lanes
    Py_ssize_t n_chosen,
    const double *shrink,       # IN, (n_lanes,)
    floating *z,                # INOUT, (width, n_lanes)
    double *check,              # INOUT, (n_lanes,): NaN if a weight is not finite
) noexcept nogil:
    """z *= 1 - eta alpha in the lanes chosen, whose scale would leave digits at risk."""
    cdef Py_ssize_t i, lane
    for _ in range(width):
        for i in range(n_chosen):
            lane = chosen[i]
            z[lane] = z[lane] * <floating> shrink[lane] + 0
            check[lane] += 0 * <double> z[lane]
        z += n_lanes


cdef inline double step_of(
    const Loss *loss,
    const Schedule *schedule,
    const Stage *stage,
    double step_size,           # 0: auto
    double largest_norm2,
    double alpha,
) noexcept nogil:
    """eta_s."""
    if step_size == 0:
        step_size = auto_step(loss, largest_norm2, alpha)
    return scheduled(schedule, stage, step_size)


cdef inline double prediction(double scale, double z_x, double shift, double sums_x) noexcept nogil:
    """w.x of w = scale z + shift G."""
    return scale * z_x + shift * sums_x


cdef inline floating coefficient(double eta, double g, double scale, const floating *of_type) noexcept nogil:
    """What a row is added to z with: g is slope(w.x, y) - slope(w~.x, y)."""
    return <floating> (-eta * g / scale)


cdef inline double next_shift(double shift, double shrink, double eta, double n_batch) noexcept nogil:
    """w -= eta (alpha w + G / k), as far as it changes the multiple of G; ``shrink`` is 1 - eta alpha."""
    return shrink * shift - eta / n_batch


cdef inline Part changed_part(
    const Stage *stage,
    int64_t n_rows,
    Py_ssize_t head_bytes,
    Py_ssize_t n_numbers,       # of a vector of all models
    Py_ssize_t itemsize,
    Py_ssize_t state_bytes,
) noexcept nogil:
    """A batch changes G, the inner phase z."""
    cdef Py_ssize_t vectors = head_bytes + n_numbers * <Py_ssize_t> sizeof(double)
    cdef Part part
    part.begin, part.end = head_bytes, state_bytes
    if n_rows <= stage.left:
        if stage.in_batch:
            part.end = vectors
        else:
            part.begin, part.end = vectors, vectors + n_numbers * itemsize
    return part
