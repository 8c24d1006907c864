"""Stochastic gradient descent with a constant step, a ball to stay in, and the mean of the
iterates.

Robust stochastic approximation (Nemirovski, Juditsky, Lan & Shapiro 2009, section 2.2): step t is
    w_{t+1} = P(w_t - step_size * slope(w_t.x, y) x),        w_1 = 0,
with P the projection onto |w| <= radius; the averaged hypothesis is the mean of w_1..w_T, the
iterates before each step. The sum behind that mean is float64 whatever the type of the rows: T
numbers of one size lose what float32 has no place for.
"""

from cython cimport floating
from libc.math cimport NAN
from libc.math cimport isfinite
from libc.math cimport sqrt
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.string cimport memset

from optuna_treecv._kernels.linear cimport test_linear_float32
from optuna_treecv._kernels.linear cimport test_linear_float64
from optuna_treecv._kernels.losses cimport squared_slope
from optuna_treecv._kernels.tree cimport CompiledLearner
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.vec8 cimport axpy
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport dot
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport prefetch_row


cdef struct Settings:
    double step_size
    double radius
    bint average


# A state: this head in 64 bytes, then when averaging the sum of the iterates (float64), then w.
cdef struct Head:
    int64_t n_seen
    double norm2                # |w|^2


cdef enum:
    HEAD_BYTES = 64
    AHEAD = 6                   # in random order rows are fetched this many ahead


cdef inline Py_ssize_t weights_at(Py_ssize_t width, bint average) noexcept nogil:
    """Where in a state w begins, in bytes."""
    return HEAD_BYTES + (width * <Py_ssize_t> sizeof(double) if average else 0)


cdef inline void *vectors(const Learner *learner, const unsigned char *state) noexcept nogil:
    return <void *> (state + weights_at(learner.width, (<const Settings *> learner.settings).average))


cdef inlined train_row(
    const Settings *settings,
    Py_ssize_t width,
    const floating *x,
    floating y,
    Head *head,                 # INOUT
    double *total,              # INOUT, (width,)
    floating *w,                # INOUT, (width,)
) noexcept nogil:
    cdef Py_ssize_t j
    cdef floating slope = squared_slope(dot(w, x, width), y)
    cdef floating factor
    if settings.average:
        for j in range(width):
            total[j] += w[j]
    axpy(<floating> (-settings.step_size * slope), x, w, width)
    head.norm2 = dot(w, w, width)
    if head.norm2 > settings.radius * settings.radius:
        # A projection onto the ball would hide a step off the finite numbers.
        factor = <floating> (settings.radius / sqrt(head.norm2)) if isfinite(head.norm2) else <floating> NAN
        for j in range(width):
            w[j] *= factor


cdef inlined train(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,       # INOUT
    floating *w,                # INOUT, where it lies in the state
) noexcept nogil:
    cdef const floating *X = <const floating *> learner.X
    cdef const floating *y = <const floating *> learner.y
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t width = learner.width
    cdef Head *head = <Head *> state
    cdef double *total = <double *> (state + HEAD_BYTES)
    cdef Py_ssize_t i, row
    head.n_seen += stop - start
    for i in range(start, stop):
        row = i
        if order != NULL:
            row = order[i]
            if i + AHEAD < stop:
                prefetch_row(X + order[i + AHEAD] * width, width)
        train_row(settings, width, X + row * width, y[row], head, total, w)


cdef inlined read(
    const Learner *learner,
    const unsigned char *state,
    const floating *w,
    floating *weights,          # OUT, (width,)
) noexcept nogil:
    """w_{T+1}, or the mean of w_1..w_T; NaN if the last step left the finite numbers, which no
    mean would show yet.
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Head *head = <const Head *> state
    cdef const double *total = <const double *> (state + HEAD_BYTES)
    cdef double per_row = 1 / <double> head.n_seen if head.n_seen else 0
    cdef Py_ssize_t j
    for j in range(learner.width):
        weights[j] = <floating> (total[j] * per_row) if settings.average else w[j]
    if not isfinite(head.norm2):
        for j in range(learner.width):
            weights[j] = NAN


# The doors for the tree, one for each type of number.

cdef dispatched train_float64(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state
) noexcept nogil:
    train(learner, start, stop, order, state, <double *> vectors(learner, state))


cdef dispatched train_float32(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state
) noexcept nogil:
    train(learner, start, stop, order, state, <float *> vectors(learner, state))


cdef dispatched read_float64(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    read(learner, state, <const double *> vectors(learner, state), <double *> model)


cdef dispatched read_float32(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    read(learner, state, <const float *> vectors(learner, state), <float *> model)


cdef class LeastSquares(CompiledLearner):
    """SGD on the squared loss over prepared rows ``X`` (n_rows, width) and targets ``y``
    (n_rows,) of one float type.
    """

    cdef Settings own

    def __init__(self, X, y, double step_size, double radius, bint average):
        cdef Py_ssize_t model_bytes
        if y.dtype != X.dtype:
            raise TypeError(f"y must be of the type of X, {X.dtype}, got {y.dtype}.")
        self.bind(X, y, 1)
        self.own.step_size = step_size
        self.own.radius = radius
        self.own.average = average
        self.learner.settings = &self.own
        model_bytes = self.learner.width * self.itemsize
        self.set_sizes(weights_at(self.learner.width, average) + model_bytes, model_bytes)
        if X.dtype == "float64":
            self.learner.train, self.learner.read, self.learner.test = train_float64, read_float64, test_linear_float64
        elif X.dtype == "float32":
            self.learner.train, self.learner.read, self.learner.test = train_float32, read_float32, test_linear_float32
        else:
            raise TypeError(f"X must be float64 or float32, got {X.dtype}.")

    def start(self, unsigned char [::1] state):
        """Write the state before the first row: w_1 = 0."""
        self.check_state(state)
        memset(&state[0], 0, self.state_bytes)
