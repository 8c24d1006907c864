"""Streaming SVRG (Frostig, Ge, Kakade & Sidford 2015, Algorithm 1): variance-reduced SGD that reads each row once.

Stage s consists of two phases, a batch and an inner phase, and starts from the anchor w~:
    batch    g = mean of slope(w~.x, y) x over k_s rows                        (the gradient at the anchor)
    inner    m~ uniformly distributed on 1..m, w_1 = w~, and for one row in each of the steps t = 1..m~
             w_{t+1} = w_t - eta ((slope(w_t.x, y) - slope(w~.x, y)) x + alpha w_t + g)
The next anchor is w_{m~+1}, and k_{s+1} = b k_s.

The penalty is (alpha / 2) |w|^2. Its gradient at the anchor, alpha w~, would be in g as well as in the correction, and
cancels. m~ is drawn from (seed, stage). By remark 7 of the paper, the first stages may all have k_0 rows. Remark 8 is
the factorial schedule: k_s = 4^s s! k_0, eta_s = eta / 2^s, m_s = 4^s m. By default, an inner phase has as many rows
as its batch, and nothing is drawn. Row weights (``row_weight.pxd``) and the weights of the automatic step size
(``steps.pxd``) multiply the slopes, also in g. k_s and m~ are numbers of rows, whatever their weights.

w is stored as scale * z + shift * G, with G the sum of the gradients of the batch. A row changes z only in its nonzero
columns, and the changes by alpha and g are made by scale and shift. A row of a batch is added to G right after its
margin has been computed, while it is in the cache. A phase starts when its first row arrives. Until the first batch is
complete, the anchor is 0.

All outputs of a model share one scale. If the weights of one class overflow, the weights of all classes therefore
become NaN, whereas separate models per class could stay finite. In either case, the fold has diverged.

This file contains the steps that a single model (``svrg.pyx``) and lanes (``svrg_lanes.pyx``) share. The number of
rows of each phase depends only on the schedule and on the number of rows so far, so all lanes are always in the same
phase.
"""

from cython cimport floating
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t
from libc.string cimport memcpy
from libc.string cimport memset

from optuna_treecv._kernels.order cimport below
from optuna_treecv._kernels.order cimport chain
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.undo cimport remember_all
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport seldom
from optuna_treecv.engines.treecv.kernels.linear cimport LinearSettings
from optuna_treecv.engines.treecv.kernels.linear cimport MAX_LANES
from optuna_treecv.engines.treecv.kernels.linear cimport scalars_of
from optuna_treecv.engines.treecv.kernels.linear cimport sums_of
from optuna_treecv.engines.treecv.kernels.losses cimport Loss
from optuna_treecv.engines.treecv.kernels.steps cimport Norms
from optuna_treecv.engines.treecv.kernels.tree cimport Learner
from optuna_treecv.engines.treecv.kernels.tree cimport ByteRange


cdef struct Schedule:
    int64_t initial_batch_size  # k_0
    double batch_growth         # b
    int64_t inner_steps         # m; 0: m~ is the number of rows of the batch
    int64_t warm_stages         # the number of stages after the first whose batches have k_0 rows too
    bint factorial              # whether to use the schedule of remark 8
    uint64_t seed


# The first member of a state.
cdef struct Stage:
    int64_t n_seen
    int64_t number              # the index of the stage, from 0
    int64_t in_batch            # 1 in the batch, 0 in the inner phase
    int64_t left                # the number of rows until this phase is complete
    double batch_size           # k_s before rounding
    double n_batch              # k_s, the number of rows in G at the end of the batch


cdef struct Settings:
    LinearSettings linear
    Loss loss
    bint any_auto               # whether some lane has the automatic step size
    Schedule schedule
    # The settings of each lane; a single model uses the first element.
    double alpha[MAX_LANES]
    double step_size[MAX_LANES]     # eta; 0: automatic


# The part of a state that all lanes share. It is followed by scale and shift of all lanes, G, z, and w~.
cdef struct Common:
    Stage stage
    Norms norms                 # of the rows so far; used by the automatic step size only


cdef inline int64_t cap_inner_steps(int64_t steps) noexcept nogil:
    """Return a number of inner steps, limited to 2^31, the largest range from which m~ can be drawn."""
    return min(steps, <int64_t> 1 << 31)


cdef inline int64_t n_growth_stages(const Schedule *schedule, const Stage *stage) noexcept nogil:
    """Return the number of stages since the batches started to grow, the s in the factorial schedule."""
    return stage.number - schedule.warm_stages if stage.number > schedule.warm_stages else 0


cdef inline double stage_step_size(const Schedule *schedule, const Stage *stage, double eta) noexcept nogil:
    """Return eta_s, the step size in the current stage."""
    return eta / (<double> (<int64_t> 1 << min(n_growth_stages(schedule, stage), 60))) if schedule.factorial else eta


cdef inline int64_t draw_length(uint64_t seed, int64_t stage, int64_t max_length) noexcept nogil:
    """Draw m~ of a stage from 1..max_length."""
    cdef uint64_t counter = chain(seed, stage)
    return 1 + <int64_t> below(&counter, <uint32_t> max_length)


cdef inline void start_stages(const Schedule *schedule, Stage *stage) noexcept nogil:
    """Set ``stage`` to the beginning of the first batch."""
    stage.n_seen = stage.number = 0
    stage.in_batch = True
    stage.left = schedule.initial_batch_size
    stage.batch_size = stage.n_batch = <double> schedule.initial_batch_size


cdef inline void begin_inner(const Schedule *schedule, Stage *stage) noexcept nogil:
    """Go from a batch to the inner phase."""
    cdef int64_t max_length = schedule.inner_steps
    if schedule.factorial:
        max_length = cap_inner_steps(max_length << min(2 * n_growth_stages(schedule, stage), 31))
    if max_length == 0:
        stage.left = <int64_t> stage.n_batch
    else:
        stage.left = draw_length(schedule.seed, stage.number, max_length)
    stage.in_batch = False


cdef inline void begin_batch(const Schedule *schedule, Stage *stage) noexcept nogil:
    """Go from an inner phase to the batch of the next stage."""
    cdef int64_t s
    stage.number += 1
    s = n_growth_stages(schedule, stage)
    if s > 0:
        stage.batch_size *= 4 * <double> s if schedule.factorial else schedule.batch_growth
    stage.n_batch = <double> <int64_t> min(stage.batch_size + 0.5, <double> (<int64_t> 1 << 60))
    stage.left = <int64_t> stage.n_batch
    stage.in_batch = True


cdef inline int64_t n_used_rows(const Stage *stage) noexcept nogil:
    """Return the number of rows that have influenced the model: all but the rows of an incomplete batch."""
    if not stage.in_batch or stage.left == 0:
        return stage.n_seen
    return stage.n_seen - (<int64_t> stage.n_batch - stage.left)


cdef inline inlined settle(
    Py_ssize_t width,
    Py_ssize_t n_lanes,
    const int *chosen,          # IN, (n_chosen,), lane indices
    Py_ssize_t n_chosen,
    const double *scale,        # IN, (n_lanes,)
    const double *shift,        # IN, (n_lanes,)
    floating *z,                # INOUT, (width, n_lanes)
    const double *sums,         # IN, (width, n_lanes), G
    double *check,              # INOUT, (n_lanes,), becomes NaN if a weight is not finite
) noexcept nogil:
    """Replace z by w = scale z + shift G in the chosen lanes.

    Elements of z must not become -0, because adding 0 times a row would
    turn -0 into 0.
    """
    cdef Py_ssize_t i, lane
    for _ in range(width):
        for i in range(n_chosen):
            lane = chosen[i]
            z[lane] = <floating> (scale[lane] * <double> z[lane] + shift[lane] * sums[lane]) + 0
            check[lane] += 0 * <double> z[lane]
        z += n_lanes
        sums += n_lanes


cdef inline inlined propagate_nan(const LinearSettings *settings, double *check) noexcept nogil:
    """Set ``check``, (n_lanes,), to NaN in all lanes of a model if it is NaN in one of them."""
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t lane
    cdef double total
    if settings.n_outputs == 1:
        return
    while first < settings.n_used:
        total = 0
        for lane in range(first, first + settings.n_outputs):
            total += check[lane]
        for lane in range(first, first + settings.n_outputs):
            check[lane] = total
        first += settings.n_outputs


cdef inline Py_ssize_t scales_of(const LinearSettings *settings) noexcept nogil:
    """Return the number of scales in a state: one per lane, or only one for a single model."""
    return settings.n_lanes if settings.in_lanes else 1


cdef inline seldom settle_chosen(
    const Learner *learner,
    const int *chosen,          # IN, (n_chosen,), indices of scales
    Py_ssize_t n_chosen,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, z in ``state``
) noexcept nogil:
    """Replace z by w in the outputs that use the chosen scales, and reset scale and shift there to 1 and 0."""
    cdef const LinearSettings *settings = <const LinearSettings *> learner.settings
    cdef Py_ssize_t n_scales = scales_of(settings)
    cdef double *scale = scalars_of(learner, state)
    cdef double *shift = scale + n_scales
    cdef double check[MAX_LANES]
    cdef Py_ssize_t i
    for i in range(n_scales):
        check[i] = 0
    settle(
        settings.n_lanes * learner.width // n_scales, n_scales, chosen, n_chosen, scale, shift, z,
        sums_of(learner, state), check
    )
    if settings.in_lanes:
        propagate_nan(settings, check)
    for i in range(n_chosen):
        scale[chosen[i]] = 1 + check[chosen[i]]
        shift[chosen[i]] = 0


cdef inline seldom next_phase(
    const Learner *learner,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, z in ``state``
    Log *log,
) noexcept nogil:
    """Go from a batch to the inner phase, or from an inner phase to the batch of the next stage."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Stage *stage = <Stage *> state
    cdef Py_ssize_t n_weights = settings.linear.n_lanes * learner.width
    cdef int chosen[MAX_LANES]
    cdef Py_ssize_t i
    if stage.in_batch:
        begin_inner(&settings.schedule, stage)
        return
    if log != NULL:
        remember_all(log, state, learner.state_bytes)
    for i in range(scales_of(&settings.linear)):
        chosen[i] = i
    settle_chosen(learner, chosen, scales_of(&settings.linear), state, z)
    memcpy(z + n_weights, z, n_weights * sizeof(floating))          # the anchors
    memset(sums_of(learner, state), 0, n_weights * sizeof(double))
    begin_batch(&settings.schedule, stage)


cdef inline inlined shrink_z(
    Py_ssize_t width,
    Py_ssize_t n_lanes,
    const int *chosen,          # IN, (n_chosen,), lane indices
    Py_ssize_t n_chosen,
    const double *shrink,       # IN, (n_lanes,), 1 - eta alpha
    floating *z,                # INOUT, (width, n_lanes)
    double *check,              # INOUT, (n_lanes,), becomes NaN if a weight is not finite
) noexcept nogil:
    """Compute z *= 1 - eta alpha in the chosen lanes, in which the scale would otherwise become extreme."""
    cdef Py_ssize_t i, lane
    for _ in range(width):
        for i in range(n_chosen):
            lane = chosen[i]
            z[lane] = z[lane] * <floating> shrink[lane] + 0
            check[lane] += 0 * <double> z[lane]
        z += n_lanes


cdef inline double prediction(double scale, double z_x, double shift, double sums_x) noexcept nogil:
    """Return w.x for w = scale z + shift G."""
    return scale * z_x + shift * sums_x


cdef inline double next_shift(double shift, double shrink, double eta, double n_batch) noexcept nogil:
    """Return the shift after w -= eta (alpha w + G / k), with ``shrink`` = 1 - eta alpha and ``n_batch`` = k."""
    return shrink * shift - eta / n_batch


cdef inline ByteRange changes(const Learner *learner, const unsigned char *state, int64_t n_rows) noexcept nogil:
    """Return the byte range, besides the head, that training on ``n_rows`` more rows can change.

    This is G within a batch, z within an inner phase, and everything if the phase ends before.
    """
    cdef const Stage *stage = <const Stage *> state
    cdef Py_ssize_t n_weights = (<const LinearSettings *> learner.settings).n_lanes * learner.width
    cdef Py_ssize_t vectors = learner.head_bytes + n_weights * <Py_ssize_t> sizeof(double)
    if n_rows > stage.left:
        return ByteRange(learner.head_bytes, learner.state_bytes)
    if stage.in_batch:
        return ByteRange(learner.head_bytes, vectors)
    return ByteRange(vectors, vectors + n_weights * learner.itemsize)
