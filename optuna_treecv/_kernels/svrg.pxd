"""Streaming SVRG (Frostig, Ge, Kakade & Sidford 2015, Algorithm 1): variance-reduced gradient
descent that reads each row once.

Stage s, at the anchor w~:
    batch    g = mean over k_s rows of slope(w~.x, y) x                       (the anchor's gradient)
    inner    m~ uniform on 1..m, w_1 = w~, and for t = 1..m~, one row each,
             w_{t+1} = w_t - eta ((slope(w_t.x, y) - slope(w~.x, y)) x + alpha w_t + g)
    the next anchor is w_{m~+1}, and k_{s+1} = b k_s.
With the penalty (alpha / 2) |w|^2, the anchor's term alpha w~ is in both g and the correction, and
cancels. m~ is drawn from (seed, stage). Remark 7: the first stages may all have k_0 rows. Remark 8,
the factorial schedule: k_s = 4^s s! k_0, eta_s = eta / 2^s, m_s = 4^s m. By default, an inner phase has as
many rows as its batch, and nothing is drawn. With weights of rows (``row_weight.pxd``) and with the automatic step
(``steps.pxd``), slopes are weighted, in g too. k_s and m~ count rows, whatever their weights.

w is stored as scale * z + shift * G, with G the batch's sum of gradients. A row changes z only in its
nonzero columns; scale and shift account for alpha and g. A batch's row is added to G right after its
margin is computed, while it is in cache. A phase begins when its first row arrives, so only the loss
has acted before the first batch is complete.

One scale serves all outputs of a model. So if the weights of one class of several overflow, those of all
its classes become NaN, where a twin of one class may stay finite. The fold has diverged in either case.

This file has the steps that one model (``svrg.pyx``) and lanes (``svrg_lanes.pyx``) share. The stages
are in ``svrg_stages.pxd``.
"""

from cython cimport floating
from libc.stdint cimport int64_t

from optuna_treecv._kernels.losses cimport Loss
from optuna_treecv._kernels.steps cimport Step
from optuna_treecv._kernels.steps cimport step_of
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
    """Replace z by w in the chosen lanes. No z becomes -0, which adding 0 times a row would change."""
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
    """Compute z *= 1 - eta alpha in the chosen lanes, where the scale would put digits at risk."""
    cdef Py_ssize_t i, lane
    for _ in range(width):
        for i in range(n_chosen):
            lane = chosen[i]
            z[lane] = z[lane] * <floating> shrink[lane] + 0
            check[lane] += 0 * <double> z[lane]
        z += n_lanes


cdef inline Step row_step(
    const Loss *loss,
    const Schedule *schedule,
    const Stage *stage,
    double step_size,           # 0: auto
    double S,                   # for the automatic step
    double row_weight,          # likewise: `automatic_weight`
    double alpha,
    double weight,              # of the row
) noexcept nogil:
    """Return the step of a row in stage s."""
    cdef Step step = step_of(loss, step_size, S, row_weight, alpha, weight)
    step.rate = scheduled(schedule, stage, step.rate)
    return step


cdef inline double prediction(double scale, double z_x, double shift, double sums_x) noexcept nogil:
    """Return w.x for w = scale z + shift G."""
    return scale * z_x + shift * sums_x


cdef inline floating coefficient(double eta, double g, double scale, const floating *of_type) noexcept nogil:
    """Return the coefficient with which a row is added to z; g is slope(w.x, y) - slope(w~.x, y)."""
    return <floating> (-eta * g / scale)


cdef inline double next_shift(double shift, double shrink, double eta, double n_batch) noexcept nogil:
    """Return the multiple of G after w -= eta (alpha w + G / k); ``shrink`` is 1 - eta alpha."""
    return shrink * shift - eta / n_batch


cdef inline Part changed_part(
    const Stage *stage,
    int64_t n_rows,
    Py_ssize_t head_bytes,
    Py_ssize_t n_numbers,       # of one vector, for all models
    Py_ssize_t itemsize,
    Py_ssize_t state_bytes,
) noexcept nogil:
    """Return the part that ``n_rows`` more rows can change: G in a batch, z in an inner phase, else everything."""
    cdef Py_ssize_t vectors = head_bytes + n_numbers * <Py_ssize_t> sizeof(double)
    cdef Part part
    part.begin, part.end = head_bytes, state_bytes
    if n_rows <= stage.left:
        if stage.in_batch:
            part.end = vectors
        else:
            part.begin, part.end = vectors, vectors + n_numbers * itemsize
    return part
