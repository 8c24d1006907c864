"""Stochastic gradient descent: any slope, constant or decaying steps, mini-batches, a ball to stay
in, and the mean of all iterates or of the last ones.

Step t, of a row x or the mean over a mini-batch, with the penalty (alpha / 2) |w|^2:
    w_{t+1} = P((1 - eta_t alpha) w_t - eta_t slope(w_t.x, y) x),        w_1 = 0,
with eta_t = step_size / t^power and P the projection onto |w| <= radius. The averaged hypothesis is
the mean of w_t over the steps t after the first ``average_start`` rows, the iterates before each
step (Polyak & Juditsky 1992; over the tail: Jain, Kakade, Kidambi, Netrapalli & Sidford 2018).
Least squares with a constant step, a ball and the mean of all is robust stochastic approximation
(Nemirovski, Juditsky, Lan & Shapiro 2009, section 2.2).

w is kept as scale * z: shrinking and projection move the scale, and a row touches z only where it
is not 0. The mean needs no pass over w either: with A_t = sum of the scales averaged up to step t, a
step that adds c x to z is in all later iterates, so their sum is A_T z_T - v with v = sum of c_t A_t
x_t. A scale that gets small is multiplied into z, the sum so far goes into v and A begins again at
0. |z|^2 follows from the margin and |x|^2.

Several classes are as many independent models, class against the rest.
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
from optuna_treecv._kernels.linear cimport LinearKernel
from optuna_treecv._kernels.linear cimport LinearSettings
from optuna_treecv._kernels.linear cimport Weights
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
from optuna_treecv._kernels.losses cimport sure_slope
from optuna_treecv._kernels.losses cimport sure_target
from optuna_treecv._kernels.rows cimport AHEAD
from optuna_treecv._kernels.rows cimport Dense
from optuna_treecv._kernels.rows cimport Rows
from optuna_treecv._kernels.rows cimport add_row
from optuna_treecv._kernels.rows cimport add_row_wide
from optuna_treecv._kernels.rows cimport dot_row
from optuna_treecv._kernels.rows cimport fetch_row
from optuna_treecv._kernels.rows cimport norm2_row
from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.undo cimport remember_all
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined


cdef struct Settings:
    LinearSettings linear
    LossName loss
    double epsilon              # of the loss
    double alpha
    double step_size
    double power                # eta_t = step_size / t^power
    double radius
    int64_t batch_size
    bint average
    int64_t average_start       # rows before averaging begins


# A state: the rows seen and the numbers of each output, to the end of a cache line; then of all
# outputs v (float64) when averaging, then the batch's sum of gradients (float64) when there are
# batches, then z in the type of the rows.
cdef struct Numbers:
    double scale
    double norm2                # |z|^2; with a finite radius only
    double averaged             # A


cdef struct Head:
    int64_t n_seen
    int64_t n_averaged          # steps
    Numbers outputs[1]          # n_outputs of them


cdef inline Py_ssize_t head_bytes(Py_ssize_t n_outputs) noexcept nogil:
    return (sizeof(Head) + (n_outputs - 1) * sizeof(Numbers) + 63) // 64 * 64


# The vectors of output c.

cdef inline double *sum_of(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    return <double *> (state + learner.head_bytes) + c * learner.width


cdef inline double *gradient_of(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    cdef bint average = (<const Settings *> learner.settings).average
    return sum_of(learner, state, c + (learner.n_outputs if average else 0))


cdef inline void *vector_of(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    cdef bint batches = (<const Settings *> learner.settings).batch_size > 1
    cdef unsigned char *first = <unsigned char *> gradient_of(learner, state, learner.n_outputs if batches else 0)
    return first + c * learner.width * learner.itemsize


# What is seldom done stays out of the loops over rows, which are faster without it.

cdef double decayed(const Settings *settings, int64_t t) noexcept nogil:
    if settings.power == 0.5:
        return settings.step_size / sqrt(<double> t)
    return settings.step_size * exponential(-settings.power * logarithm(<double> t))


cdef inline double step_at(const Settings *settings, int64_t t) noexcept nogil:
    """eta_t."""
    return settings.step_size if settings.power == 0 else decayed(settings, t)


cdef inline bint extreme(double scale) noexcept nogil:
    """Whether z is so much larger or smaller than w that digits are at risk; NaN stays as it is."""
    return fabs(scale) < 1.0 / 64 or fabs(scale) > 64


cdef void absorb(
    const Learner *learner,
    Numbers *numbers,           # INOUT, of one output
    floating *z,                # INOUT, (width,)
    double *v,                  # INOUT, (width,)
    unsigned char *state,
    Log *log,
) noexcept nogil:
    """Make the scale 1 again: A z - v would be a difference of numbers 1 / scale too large, and a
    large scale would leave steps no digits.
    """
    cdef double check = 0
    cdef Py_ssize_t j
    if log != NULL:
        remember_all(log, state, learner.state_bytes)
    if (<const Settings *> learner.settings).average:
        for j in range(learner.width):
            v[j] -= numbers.averaged * <double> z[j]
            check += 0 * v[j]
    for j in range(learner.width):
        z[j] = <floating> (numbers.scale * <double> z[j]) + 0       # no -0, which adding 0 times a row would change
        check += 0 * <double> z[j]
    numbers.norm2 *= numbers.scale * numbers.scale
    numbers.scale = 1 + check                       # NaN if something is not finite
    numbers.averaged = check


cdef inline void project(const Settings *settings, Numbers *numbers) noexcept nogil:
    """|w| <= radius, by the scale."""
    cdef double norm2 = numbers.scale * numbers.scale * numbers.norm2
    if norm2 > settings.radius * settings.radius:
        numbers.scale *= settings.radius / sqrt(norm2)
    if not isfinite(norm2):                         # a projection onto the ball would hide it
        numbers.scale = NAN


cdef inlined step(
    const Loss *loss,
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    double eta,
    Py_ssize_t c,
    Numbers *numbers,           # INOUT, of output c
    floating *z,                # INOUT, (width,)
    double *v,                  # INOUT, (width,)
    unsigned char *state,
    Log *log,
    bint guesses,
) noexcept nogil:
    """One row's step of output c. Unless the CPU is to guess whether there is something to add, 0 times the
    row is added where there is not, which changes no bit: no z or v is ever -0 (nor infinite, unless the
    model has diverged). In a ball it is guessed: 2 z.x, times 0, would be NaN where z.x overflows.
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef double margin = <double> dot_row(rows, row, z)
    cdef double g = sure_slope(
        loss, numbers.scale * margin, sure_target(loss, learner.y, row, settings.linear.first_class + c, z)
    )
    cdef floating added
    cdef double check
    numbers.scale *= 1 - eta * settings.alpha
    if extreme(numbers.scale):
        margin *= numbers.scale                     # z.x with the z to come
        absorb(learner, numbers, z, v, state, log)
    if not (guesses or isfinite(settings.radius)) or g != 0:
        added = <floating> (-eta * g / numbers.scale)
        check = add_row(rows, row, added, z, log)
        if settings.average and numbers.averaged != 0:
            check += add_row_wide(rows, row, <double> added * numbers.averaged, v, z, log)
        if check != 0:
            numbers.scale = numbers.averaged = NAN
        if isfinite(settings.radius):
            # |z + c x|^2 = |z|^2 + 2 c z.x + c^2 |x|^2
            numbers.norm2 += <double> added * (2 * margin + <double> added * <double> norm2_row(rows, row, z))
    if isfinite(settings.radius):
        project(settings, numbers)


cdef void batch_step(
    const Learner *learner,
    double eta,
    Numbers *numbers,           # INOUT, of one output
    floating *z,                # INOUT, (width,)
    double *v,                  # INOUT, (width,)
    double *gradient,           # INOUT, (width,): of the batch, 0 afterwards
    unsigned char *state,
) noexcept nogil:
    """The step at the end of a mini-batch."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef double factor, added
    cdef Py_ssize_t j
    numbers.scale *= 1 - eta * settings.alpha
    if extreme(numbers.scale):
        absorb(learner, numbers, z, v, state, NULL)
    factor = -eta / (<double> settings.batch_size * numbers.scale)
    numbers.norm2 = 0
    for j in range(learner.width):
        added = <double> <floating> (factor * gradient[j])
        gradient[j] = 0
        z[j] += <floating> added
        numbers.norm2 += <double> z[j] * <double> z[j]
        if settings.average:
            v[j] += added * numbers.averaged
    if isfinite(settings.radius):
        project(settings, numbers)


cdef inlined train_row(
    const Loss *loss,
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, where the first one lies in the state
    Log *log,
    bint guesses,
) noexcept nogil:
    """One row: a step of every output, or a part of one."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t width = learner.width
    cdef Head *head = <Head *> state
    cdef double *v = sum_of(learner, state, 0)
    cdef double *gradient = gradient_of(learner, state, 0)
    cdef Numbers *numbers = head.outputs
    cdef Py_ssize_t c
    cdef double eta, p
    cdef bint begins_step = settings.batch_size == 1 or head.n_seen % settings.batch_size == 0
    if settings.average and head.n_seen >= settings.average_start and begins_step:
        head.n_averaged += 1
        for c in range(learner.n_outputs):
            numbers[c].averaged += numbers[c].scale
    head.n_seen += 1
    if settings.batch_size == 1:
        eta = step_at(settings, head.n_seen)
        for c in range(learner.n_outputs):
            step(loss, learner, rows, row, eta, c, &numbers[c], z + c * width, v + c * width, state, log, guesses)
        return
    for c in range(learner.n_outputs):
        p = numbers[c].scale * <double> dot_row(rows, row, z + c * width)
        p = sure_slope(loss, p, sure_target(loss, learner.y, row, settings.linear.first_class + c, z))
        add_row_wide(rows, row, p, gradient + c * width, z, NULL)
    if head.n_seen % settings.batch_size == 0:
        eta = step_at(settings, head.n_seen // settings.batch_size)
        for c in range(learner.n_outputs):
            batch_step(learner, eta, &numbers[c], z + c * width, v + c * width, gradient + c * width, state)


cdef inlined train_on(
    const Loss *loss,
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT
    Log *log,
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(start, stop):
        if order != NULL and i + AHEAD < stop:
            fetch_row(rows, order[i + AHEAD], z)
        train_row(loss, learner, rows, row_at(order, i), state, z, log, True)


cdef inlined train_both_on(
    const Loss *loss,
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t start,
    Py_ssize_t other_start,
    Py_ssize_t n_rows,
    const uint32_t *order,
    unsigned char *first,       # INOUT
    unsigned char *second,      # INOUT
    floating *z_first,          # INOUT, where they lie in the states
    floating *z_second,         # INOUT
) noexcept nogil:
    """Dense rows. A row's dot product waits for what the row before has added; while one state waits, the
    CPU is at the other's row. It looks that far ahead, as long as it guesses right.
    """
    cdef Py_ssize_t i
    for i in range(n_rows):
        if order != NULL and i + AHEAD < n_rows:
            fetch_row(rows, order[start + i + AHEAD], z_first)
            fetch_row(rows, order[other_start + i + AHEAD], z_first)
        train_row(loss, learner, rows, row_at(order, start + i), first, z_first, NULL, False)
        train_row(loss, learner, rows, row_at(order, other_start + i), second, z_second, NULL, False)


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


cdef inlined train_both_loss(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t other_start,
    Py_ssize_t n_rows,
    const uint32_t *order,
    unsigned char *first,
    unsigned char *second,
    floating *z,
    floating *other_z,
) noexcept nogil:
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const double *epsilon = &settings.epsilon
    cdef const Dense *rows = &learner.dense
    if settings.loss == HINGE:
        train_both_on(
            <const Hinge *> epsilon, learner, rows, start, other_start, n_rows, order, first, second, z, other_z
        )
    elif settings.loss == LOGISTIC:
        train_both_on(
            <const Logistic *> epsilon, learner, rows, start, other_start, n_rows, order, first, second, z, other_z
        )
    elif settings.loss == SQUARED:
        train_both_on(
            <const Squared *> epsilon, learner, rows, start, other_start, n_rows, order, first, second, z, other_z
        )
    elif settings.loss == HUBER:
        train_both_on(
            <const Huber *> epsilon, learner, rows, start, other_start, n_rows, order, first, second, z, other_z
        )
    elif settings.loss == EPSILON_INSENSITIVE:
        train_both_on(
            <const EpsilonInsensitive *> epsilon,
            learner,
            rows,
            start,
            other_start,
            n_rows,
            order,
            first,
            second,
            z,
            other_z,
        )


cdef dispatched train_both(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t other_start,
    Py_ssize_t n_rows,
    const uint32_t *order,
    unsigned char *first,
    unsigned char *second,
) noexcept nogil:
    cdef void *z = vector_of(learner, first, 0)
    cdef void *other_z = vector_of(learner, second, 0)
    if learner.itemsize == 8:
        train_both_loss(learner, start, other_start, n_rows, order, first, second, <double *> z, <double *> other_z)
    else:
        train_both_loss(learner, start, other_start, n_rows, order, first, second, <float *> z, <float *> other_z)


cdef Weights weights(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    """The last iterate, or the mean of those averaged, once there are some."""
    cdef const Head *head = <const Head *> state
    cdef bint average = head.n_averaged > 0
    cdef double per_step = 1 / <double> head.n_averaged if average else 1
    cdef Weights of
    of.p = vector_of(learner, state, c)
    of.a = per_step * (head.outputs[c].averaged if average else head.outputs[c].scale)
    of.q = sum_of(learner, state, c) if average else NULL
    of.b = -per_step
    return of


cdef class SGD(LinearKernel):
    """SGD over prepared rows; ``loss`` is one of ``losses.LOSSES``, of a classifier if ``n_classes``
    is given.
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
        double power,
        double radius,
        int64_t batch_size,
        bint average,
        int64_t average_start,
    ):
        cdef Py_ssize_t n_numbers
        self.bind_linear(X, y, n_classes, &self.own.linear, train, weights)
        self.own.loss = LOSSES[loss]
        self.own.epsilon = epsilon
        self.own.alpha = alpha
        self.own.step_size = step_size
        self.own.power = power
        self.own.radius = radius
        self.own.batch_size = batch_size
        self.own.average = average
        self.own.average_start = average_start
        if batch_size > 1 and self.learner.sparse.begins != NULL:
            raise ValueError("there are no mini-batches of sparse rows.")
        n_numbers = self.n_outputs * self.learner.width
        if self.learner.sparse.begins == NULL:
            self.learner.train_both = train_both
        self.learner.n_saved = self.n_outputs * (2 if average else 1)
        self.learner.rewrites = True
        self.set_sizes(
            head_bytes(self.n_outputs),
            head_bytes(self.n_outputs) + n_numbers * (
                self.itemsize + (8 if average else 0) + (8 if batch_size > 1 else 0)
            ),
            n_numbers * self.itemsize,
        )

    def start(self, unsigned char [::1] state):
        """Write the state before the first row: w_1 = 0."""
        cdef Head *head = <Head *> &state[0]
        cdef Py_ssize_t c
        self.check_state(state)
        memset(&state[0], 0, self.state_bytes)
        for c in range(self.n_outputs):
            head.outputs[c].scale = 1
