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
"""

from cython cimport floating
from libc.math cimport fabs
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t
from libc.string cimport memset

from optuna_treecv._kernels.linear cimport LinearKernel
from optuna_treecv._kernels.linear cimport LinearSettings
from optuna_treecv._kernels.linear cimport Weights
from optuna_treecv._kernels.losses cimport HUBER
from optuna_treecv._kernels.losses cimport LOGISTIC
from optuna_treecv._kernels.losses cimport LOSSES
from optuna_treecv._kernels.losses cimport SQUARED
from optuna_treecv._kernels.losses cimport Huber
from optuna_treecv._kernels.losses cimport Logistic
from optuna_treecv._kernels.losses cimport Loss
from optuna_treecv._kernels.losses cimport LossName
from optuna_treecv._kernels.losses cimport Squared
from optuna_treecv._kernels.losses cimport auto_step
from optuna_treecv._kernels.losses cimport slope
from optuna_treecv._kernels.losses cimport target
from optuna_treecv._kernels.rows cimport AHEAD
from optuna_treecv._kernels.rows cimport Rows
from optuna_treecv._kernels.rows cimport add_row
from optuna_treecv._kernels.rows cimport add_row_wide
from optuna_treecv._kernels.rows cimport dot_row
from optuna_treecv._kernels.rows cimport dot_row_wide
from optuna_treecv._kernels.rows cimport fetch_row
from optuna_treecv._kernels.rows cimport norm2_row
from optuna_treecv._kernels.stages cimport Schedule
from optuna_treecv._kernels.stages cimport Stage
from optuna_treecv._kernels.stages cimport begin_batch
from optuna_treecv._kernels.stages cimport begin_inner
from optuna_treecv._kernels.stages cimport capped
from optuna_treecv._kernels.stages cimport draw_length
from optuna_treecv._kernels.stages cimport n_acted
from optuna_treecv._kernels.stages cimport scheduled
from optuna_treecv._kernels.stages cimport start_stages
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.tree cimport Part
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.undo cimport remember_all
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined


cdef struct Settings:
    LinearSettings linear
    LossName loss
    double epsilon              # of the loss
    double alpha
    double step_size            # eta; 0: auto
    Schedule schedule


# A state: this head in two cache lines, then of all outputs G (float64), then z, then w~ in the type
# of the rows.
cdef struct Head:
    Stage stage
    double scale
    double shift
    double largest_norm2        # of a row so far; for the auto step only


cdef enum:
    HEAD_BYTES = 128


# The vectors of output c.

cdef inline double *sum_of(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    return <double *> (state + HEAD_BYTES) + c * learner.width


cdef inline void *vector_of(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    """z; behind those of all outputs lie the anchors."""
    return <void *> (
        <unsigned char *> sum_of(learner, state, learner.n_outputs) + c * learner.width * learner.itemsize
    )


cdef inlined settle(
    const Learner *learner,
    Head *head,                 # INOUT
    floating *z,                # INOUT, of all outputs
    const double *sums,         # IN, of all outputs
) noexcept nogil:
    """z becomes w."""
    cdef double check = 0
    cdef Py_ssize_t j
    for j in range(learner.n_outputs * learner.width):
        z[j] = <floating> (head.scale * <double> z[j] + head.shift * sums[j])
        check += 0 * <double> z[j]
    head.scale = 1 + check                          # NaN if a weight is not finite
    head.shift = 0


def inner_length(uint64_t seed, int64_t stage, int64_t inner_steps):
    """The rows of a stage's inner phase, with the geometric schedule."""
    return draw_length(seed, stage, capped(inner_steps))


cdef inlined next_phase(
    const Learner *learner,
    Head *head,                 # INOUT
    floating *z,                # INOUT, of all outputs
    floating *anchors,          # INOUT
    double *sums,               # INOUT
    unsigned char *state,
    Log *log,
) noexcept nogil:
    """From a batch to the inner phase, or to the next stage's batch."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n_numbers = learner.n_outputs * learner.width
    cdef Py_ssize_t j
    if head.stage.in_batch:
        begin_inner(&settings.schedule, &head.stage)
        return
    if log != NULL:
        remember_all(log, state, learner.state_bytes)
    settle(learner, head, z, sums)
    for j in range(n_numbers):
        anchors[j] = z[j]
    memset(sums, 0, n_numbers * sizeof(double))
    begin_batch(&settings.schedule, &head.stage)


cdef inline double step_of(const Loss *loss, const Settings *settings, const Head *head) noexcept nogil:
    """eta."""
    cdef double eta = settings.step_size
    if eta == 0:
        eta = auto_step(loss, head.largest_norm2, settings.alpha)
    return scheduled(&settings.schedule, &head.stage, eta)


cdef inlined inner_step(
    const Loss *loss,
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    double eta,
    Head *head,                 # INOUT
    floating *z,                # INOUT, of all outputs
    const floating *anchors,    # IN
    const double *sums,         # IN
    unsigned char *state,
    Log *log,
) noexcept nogil:
    """w -= eta ((slope(w.x, y) - slope(w~.x, y)) x + alpha w + G / k)."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t width = learner.width
    cdef double shrink = 1 - eta * settings.alpha
    cdef double next_scale = head.scale * shrink
    cdef bint extreme = fabs(next_scale) < 1.0 / 64 or fabs(next_scale) > 64    # digits would be at risk
    cdef double y, p
    cdef double check = 0
    cdef Py_ssize_t c, at, j
    if extreme:
        if log != NULL:
            remember_all(log, state, learner.state_bytes)
        settle(learner, head, z, sums)
        next_scale = 1
    for c in range(learner.n_outputs):
        at = c * width
        y = target(loss, learner.y, row, settings.linear.first_class + c, z)
        p = head.scale * dot_row(rows, row, z + at) + head.shift * dot_row_wide(rows, row, sums + at, z)
        p = slope(loss, p, y) - slope(loss, dot_row(rows, row, anchors + at), y)
        if extreme:
            for j in range(at, at + width):
                z[j] *= <floating> shrink
                check += 0 * <double> z[j]
        check += add_row(rows, row, <floating> (-eta * p / next_scale), z + at, log)
    head.scale = next_scale + check
    head.shift = shrink * head.shift - eta / head.stage.n_batch


cdef inlined train_on(
    const Loss *loss,
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, where the first one lies in the state
    Log *log,
) noexcept nogil:
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t width = learner.width
    cdef Head *head = <Head *> state
    cdef double *sums = sum_of(learner, state, 0)
    cdef floating *anchors = z + learner.n_outputs * width
    cdef Py_ssize_t i, row, c, at
    cdef double eta, y, g
    for i in range(start, stop):
        row = i
        if order != NULL:
            row = order[i]
            if i + AHEAD < stop:
                fetch_row(rows, order[i + AHEAD], z)
        if head.stage.left == 0:
            next_phase(learner, head, z, anchors, sums, state, log)
        head.stage.n_seen += 1
        head.stage.left -= 1
        # Always in the first batch, so that the state does not depend on the step size yet.
        if settings.step_size == 0 or (head.stage.number == 0 and head.stage.in_batch):
            head.largest_norm2 = max(head.largest_norm2, <double> norm2_row(rows, row, z))
        if head.stage.in_batch:
            for c in range(learner.n_outputs):
                at = c * width
                y = target(loss, learner.y, row, settings.linear.first_class + c, z)
                g = slope(loss, dot_row(rows, row, anchors + at), y)
                head.shift += add_row_wide(rows, row, g, sums + at, z, log)     # 0, or NaN: seen when the batch acts
            continue
        eta = step_of(loss, settings, head)
        inner_step(loss, learner, rows, row, eta, head, z, anchors, sums, state, log)


cdef inlined train_loss(
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,
    floating *z,
    Log *log,
) noexcept nogil:
    """The loop of a loss: chosen once a phase, not once a row."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const double *epsilon = &settings.epsilon
    if settings.loss == LOGISTIC:
        train_on(<const Logistic *> epsilon, learner, rows, start, stop, order, state, z, log)
    elif settings.loss == SQUARED:
        train_on(<const Squared *> epsilon, learner, rows, start, stop, order, state, z, log)
    elif settings.loss == HUBER:
        train_on(<const Huber *> epsilon, learner, rows, start, stop, order, state, z, log)


cdef dispatched train(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, Log *log
) noexcept nogil:
    cdef void *z = vector_of(learner, state, 0)
    if learner.sparse.begins != NULL:
        if learner.itemsize == 8:
            train_loss(learner, &learner.sparse, start, stop, order, state, <double *> z, log)
        else:
            train_loss(learner, &learner.sparse, start, stop, order, state, <float *> z, log)
    elif learner.itemsize == 8:
        train_loss(learner, &learner.dense, start, stop, order, state, <double *> z, log)
    else:
        train_loss(learner, &learner.dense, start, stop, order, state, <float *> z, log)


cdef Weights weights(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    """The iterate in an inner phase, the anchor in a batch."""
    cdef const Head *head = <const Head *> state
    cdef Weights of
    of.p = vector_of(learner, state, c)
    of.a = head.scale
    of.q = NULL if head.stage.in_batch else sum_of(learner, state, c)
    of.b = head.shift
    return of


cdef Part changes(const Learner *learner, const unsigned char *state, int64_t n_rows) noexcept nogil:
    """A batch changes G, the inner phase z."""
    cdef const Head *head = <const Head *> state
    cdef Py_ssize_t sums = HEAD_BYTES + learner.n_outputs * learner.width * <Py_ssize_t> sizeof(double)
    cdef Part part
    part.begin, part.end = HEAD_BYTES, learner.state_bytes
    if n_rows <= head.stage.left:
        if head.stage.in_batch:
            part.end = sums
        else:
            part.begin, part.end = sums, sums + learner.n_outputs * learner.width * learner.itemsize
    return part


cdef class StreamingSVRG(LinearKernel):
    """Streaming SVRG over prepared rows; ``loss`` is one of ``losses.LOSSES`` that are smooth,
    ``step_size`` 0 the auto step.
    """

    cdef Settings own

    def __init__(
        self,
        X,
        y,
        n_classes,
        loss,
        double epsilon,
        double alpha,
        double step_size,
        int64_t initial_batch_size,
        double batch_growth,
        int64_t inner_steps,
        int64_t warm_stages,
        bint factorial,
        uint64_t seed,
    ):
        cdef Py_ssize_t n_numbers
        self.bind_linear(X, y, n_classes, &self.own.linear, train, weights)
        self.own.loss = LOSSES[loss]
        self.own.epsilon = epsilon
        self.own.alpha = alpha
        self.own.step_size = step_size
        self.own.schedule.initial_batch_size = initial_batch_size
        self.own.schedule.batch_growth = batch_growth
        self.own.schedule.inner_steps = capped(inner_steps)
        self.own.schedule.warm_stages = warm_stages
        self.own.schedule.factorial = factorial
        self.own.schedule.seed = seed
        n_numbers = self.n_outputs * self.learner.width
        self.learner.changes = changes
        self.learner.n_saved = self.n_outputs
        self.learner.rewrites = True
        self.set_sizes(HEAD_BYTES, HEAD_BYTES + n_numbers * (8 + 2 * self.itemsize), n_numbers * self.itemsize)

    def start(self, unsigned char [::1] state):
        """Write the state before the first row: w~ = 0, at the head of the first batch."""
        cdef Head *head = <Head *> &state[0]
        self.check_state(state)
        memset(&state[0], 0, self.state_bytes)
        start_stages(&self.own.schedule, &head.stage)
        head.scale = 1

    def n_used(self, const unsigned char [::1] state):
        """Rows that have acted: all but those of an unfinished batch."""
        self.check_state(state)
        return n_acted(<const Stage *> &state[0])
