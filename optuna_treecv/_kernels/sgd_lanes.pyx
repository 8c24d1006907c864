"""SGD for many step sizes, penalties and radii at once: each lane is what ``sgd.pyx``, where the
mathematics is, makes of it alone, bit for bit. One row a step.
"""

from cython cimport floating
from libc.math cimport NAN
from libc.math cimport fabs
from libc.math cimport isfinite
from libc.math cimport sqrt
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.string cimport memset

from optuna_treecv._kernels.elementary cimport exponential
from optuna_treecv._kernels.elementary cimport logarithm
from optuna_treecv._kernels.lanes cimport MOST_LANES
from optuna_treecv._kernels.lanes cimport LanesKernel
from optuna_treecv._kernels.lanes cimport LaneSettings
from optuna_treecv._kernels.lanes cimport LaneWeights
from optuna_treecv._kernels.lanes cimport add_lanes
from optuna_treecv._kernels.lanes cimport dot_lanes
from optuna_treecv._kernels.lanes cimport numbers_of
from optuna_treecv._kernels.lanes cimport sums_of
from optuna_treecv._kernels.lanes cimport vectors_of
from optuna_treecv._kernels.losses cimport EPSILON_INSENSITIVE
from optuna_treecv._kernels.losses cimport HINGE
from optuna_treecv._kernels.losses cimport HUBER
from optuna_treecv._kernels.losses cimport LOGISTIC
from optuna_treecv._kernels.losses cimport LOSSES
from optuna_treecv._kernels.losses cimport SQUARED
from optuna_treecv._kernels.losses cimport EpsilonInsensitive
from optuna_treecv._kernels.losses cimport Hinge
from optuna_treecv._kernels.losses cimport Huber
from optuna_treecv._kernels.losses cimport Logistic
from optuna_treecv._kernels.losses cimport Loss
from optuna_treecv._kernels.losses cimport LossName
from optuna_treecv._kernels.losses cimport Squared
from optuna_treecv._kernels.losses cimport slope
from optuna_treecv._kernels.losses cimport target
from optuna_treecv._kernels.rows cimport AHEAD
from optuna_treecv._kernels.rows cimport Rows
from optuna_treecv._kernels.rows cimport fetch_row
from optuna_treecv._kernels.rows cimport norm2_row
from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.undo cimport remember_all
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined


cdef struct Settings:
    LaneSettings lanes
    LossName loss
    double epsilon              # of the loss
    double power                # eta_t = step_size / t^power
    bint average
    int64_t average_start
    double alpha[MOST_LANES]
    double step_size[MOST_LANES]
    double radius[MOST_LANES]


# A state: the rows seen and the steps averaged; of each lane scale, |z|^2 and A; when averaging v; z.
cdef struct Numbers:
    double *scale
    double *norm2
    double *averaged


cdef inline Numbers numbers_in(const Learner *learner, const unsigned char *state) noexcept nogil:
    cdef Py_ssize_t n_lanes = (<const LaneSettings *> learner.settings).n_lanes
    cdef Numbers numbers
    numbers.scale = numbers_of(learner, state)
    numbers.norm2 = numbers.scale + n_lanes
    numbers.averaged = numbers.norm2 + n_lanes
    return numbers


cdef inlined absorb(
    const Learner *learner,
    const int *chosen,          # IN, (n_chosen,)
    Py_ssize_t n_chosen,
    const Numbers *numbers,
    floating *z,                # INOUT, (width, n_lanes)
    double *v,                  # INOUT, (width, n_lanes)
    unsigned char *state,
    Log *log,
) noexcept nogil:
    """Make the scale of chosen lanes 1 again."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n_lanes = settings.lanes.n_lanes
    cdef double *scale = numbers.scale
    cdef double check[MOST_LANES]
    cdef Py_ssize_t i, _j, lane
    if log != NULL:
        remember_all(log, state, learner.state_bytes)
    for i in range(n_chosen):
        check[i] = 0
    for _j in range(learner.width):
        for i in range(n_chosen):
            lane = chosen[i]
            if settings.average:
                v[lane] -= numbers.averaged[lane] * <double> z[lane]
                check[i] += 0 * v[lane]
            z[lane] = <floating> (scale[lane] * <double> z[lane])
            check[i] += 0 * <double> z[lane]
        z += n_lanes
        v += n_lanes
    for i in range(n_chosen):
        lane = chosen[i]
        numbers.averaged[lane] = check[i]
        numbers.norm2[lane] *= scale[lane] * scale[lane]
        scale[lane] = 1 + check[i]


cdef inlined steps(
    const Loss *loss,
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    Py_ssize_t next_row,        # that comes behind it
    int64_t t,
    const Numbers *numbers,
    floating *z,                # INOUT, (width, n_lanes)
    double *v,                  # INOUT, likewise
    unsigned char *state,
    Log *log,
) noexcept nogil:
    """Step t of every lane."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n_lanes = settings.lanes.n_lanes
    cdef Py_ssize_t width = learner.width
    cdef double *scale = numbers.scale
    cdef double *averaged = numbers.averaged
    cdef int made = 0
    cdef Py_ssize_t n_extreme = 0
    cdef int extreme[MOST_LANES]
    cdef floating room[8 * MOST_LANES]
    cdef floating dots[MOST_LANES]
    cdef floating added[MOST_LANES]
    cdef double margins[MOST_LANES]
    cdef double added_wide[MOST_LANES]
    cdef double check[MOST_LANES]
    cdef double slopes[MOST_LANES]
    cdef double eta[MOST_LANES]
    cdef double divisor = 1
    cdef double norm2, root
    cdef Py_ssize_t lane
    if settings.power == 0.5:
        divisor = sqrt(<double> t)
    dot_lanes(rows, row, next_row, z, width, n_lanes, room, dots, z)
    for lane in range(n_lanes):
        margins[lane] = <double> dots[lane]
        slopes[lane] = slope(
            loss, scale[lane] * margins[lane], target(loss, learner.y, row, settings.lanes.classes[lane], z)
        )
    for lane in range(n_lanes):
        eta[lane] = settings.step_size[lane] / divisor
        if settings.power != 0 and settings.power != 0.5:
            eta[lane] = settings.step_size[lane] * exponential(-settings.power * logarithm(<double> t))
        scale[lane] *= 1 - eta[lane] * settings.alpha[lane]
        if fabs(scale[lane]) < 1.0 / 64 or fabs(scale[lane]) > 64:
            margins[lane] *= scale[lane]            # z.x with the z to come
            extreme[n_extreme] = lane
            n_extreme += 1
    if n_extreme:
        absorb(learner, extreme, n_extreme, numbers, z, v, state, log)
    for lane in range(n_lanes):
        check[lane] = added[lane] = added_wide[lane] = 0
        if slopes[lane] != 0:
            made = 1
            added[lane] = <floating> (-eta[lane] * slopes[lane] / scale[lane])
            if settings.average and averaged[lane] != 0:
                added_wide[lane] = <double> added[lane] * averaged[lane]
    if made:
        add_lanes(rows, row, added, z, width, n_lanes, check, z)
        if settings.average:
            add_lanes(rows, row, added_wide, v, width, n_lanes, check, z)
    norm2 = 0
    for lane in range(n_lanes):
        if slopes[lane] != 0 and check[lane] != 0:
            scale[lane] = averaged[lane] = NAN
        if not isfinite(settings.radius[lane]):
            continue
        if slopes[lane] != 0:
            if norm2 == 0:
                norm2 = <double> norm2_row(rows, row, z)
            numbers.norm2[lane] += <double> added[lane] * (2 * margins[lane] + <double> added[lane] * norm2)
        root = scale[lane] * scale[lane] * numbers.norm2[lane]
        if root > settings.radius[lane] * settings.radius[lane]:
            scale[lane] *= settings.radius[lane] / sqrt(root)
        if not isfinite(root):                      # a projection onto the ball would hide it
            scale[lane] = NAN


cdef inlined train_on(
    const Loss *loss,
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, where it lies in the state
    Log *log,
) noexcept nogil:
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef int64_t *n_seen = <int64_t *> state
    cdef double *v = sums_of(learner, state)
    cdef Numbers numbers = numbers_in(learner, state)
    cdef Py_ssize_t i, row, next_row, lane
    for i in range(start, stop):
        row = row_at(order, i)
        next_row = row_at(order, min(i + 1, stop - 1))
        if order != NULL and i + AHEAD < stop:
            fetch_row(rows, order[i + AHEAD], z)
        if settings.average and n_seen[0] >= settings.average_start:
            n_seen[1] += 1
            for lane in range(settings.lanes.n_lanes):
                numbers.averaged[lane] += numbers.scale[lane]
        n_seen[0] += 1
        steps(loss, learner, rows, row, next_row, n_seen[0], &numbers, z, v, state, log)


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
    if settings.loss == HINGE:
        train_on(<const Hinge *> epsilon, learner, rows, start, stop, order, state, z, log)
    elif settings.loss == LOGISTIC:
        train_on(<const Logistic *> epsilon, learner, rows, start, stop, order, state, z, log)
    elif settings.loss == SQUARED:
        train_on(<const Squared *> epsilon, learner, rows, start, stop, order, state, z, log)
    elif settings.loss == HUBER:
        train_on(<const Huber *> epsilon, learner, rows, start, stop, order, state, z, log)
    elif settings.loss == EPSILON_INSENSITIVE:
        train_on(<const EpsilonInsensitive *> epsilon, learner, rows, start, stop, order, state, z, log)


cdef dispatched train(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, Log *log
) noexcept nogil:
    cdef void *z = vectors_of(learner, state)
    if learner.sparse.begins != NULL:
        if learner.itemsize == 8:
            train_loss(learner, &learner.sparse, start, stop, order, state, <double *> z, log)
        else:
            train_loss(learner, &learner.sparse, start, stop, order, state, <float *> z, log)
    elif learner.itemsize == 8:
        train_loss(learner, &learner.dense, start, stop, order, state, <double *> z, log)
    else:
        train_loss(learner, &learner.dense, start, stop, order, state, <float *> z, log)


cdef void weights(const Learner *learner, const unsigned char *state, LaneWeights *of) noexcept nogil:
    """The last iterates, or the means of those averaged, once there are some."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Numbers numbers = numbers_in(learner, state)
    cdef int64_t n_averaged = (<const int64_t *> state)[1]
    cdef double per_step = 1 / <double> n_averaged if n_averaged > 0 else 1
    cdef Py_ssize_t lane
    of.p = vectors_of(learner, state)
    of.q = sums_of(learner, state) if n_averaged > 0 else NULL
    for lane in range(settings.lanes.n_lanes):
        of.a[lane] = per_step * (numbers.averaged[lane] if n_averaged > 0 else numbers.scale[lane])
        of.b[lane] = -per_step


cdef class SGDLanes(LanesKernel):
    """SGD over prepared rows, for each of (alpha, step_size, radius) in ``values``."""

    cdef Settings own

    def __init__(
        self,
        X,
        y,
        n_classes,
        loss,
        double epsilon,
        double power,
        bint average,
        int64_t average_start,
        values,
    ):
        cdef Py_ssize_t n_lanes, lane
        self.bind_lanes(X, y, n_classes, len(values), &self.own.lanes, train, weights)
        self.own.loss = LOSSES[loss]
        self.own.epsilon = epsilon
        self.own.power = power
        self.own.average = average
        self.own.average_start = average_start
        n_lanes = self.own.lanes.n_lanes
        for lane in range(n_lanes):
            (
                self.own.alpha[lane],
                self.own.step_size[lane],
                self.own.radius[lane],
            ) = values[min(lane, self.own.lanes.n_used - 1) // self.n_outputs]
        self.learner.rewrites = True
        self.set_lane_sizes(&self.own.lanes, 2 * sizeof(int64_t), 3, average, 1)

    def start(self, unsigned char [::1] state):
        """Write the state before the first row: w_1 = 0."""
        cdef Numbers numbers
        cdef Py_ssize_t lane
        self.check_state(state)
        numbers = numbers_in(&self.learner, &state[0])
        memset(&state[0], 0, self.state_bytes)
        for lane in range(self.own.lanes.n_lanes):
            numbers.scale[lane] = 1
