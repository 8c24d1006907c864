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

Several classes are as many independent models, class against the rest. Thresholds, scales, |u|^2
and H are float64 and rounded once, whatever the type of the rows.
"""

from cython cimport floating
from libc.math cimport NAN
from libc.math cimport isfinite
from libc.math cimport sqrt
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.string cimport memset

from optuna_treecv._kernels.linear cimport test_linear_float32
from optuna_treecv._kernels.linear cimport test_linear_float64
from optuna_treecv._kernels.tree cimport CompiledLearner
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.vec8 cimport axpy
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport dot
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport prefetch_row


cdef struct Settings:
    double alpha                # lambda
    int32_t first_class         # the class that output 0 tells from the rest
    bint average
    bint project


# A state: the rows seen and the numbers of each output, to the end of a cache line; then z of all
# outputs and, when averaging, v of all outputs, in the type of the rows.
cdef struct Numbers:
    double scale
    double norm2                # |u|^2
    double harmonic             # H_{t-1} while row t is at work, H_{T-1} at rest


cdef struct Head:
    int64_t n_seen
    Numbers outputs[1]          # n_outputs of them


cdef inline Py_ssize_t head_bytes(Py_ssize_t n_outputs) noexcept nogil:
    return (sizeof(Head) + (n_outputs - 1) * sizeof(Numbers) + 63) // 64 * 64


cdef inline void *vectors(const Learner *learner, const unsigned char *state) noexcept nogil:
    return <void *> (state + head_bytes(learner.n_outputs))


# In random order rows are fetched this many ahead.
cdef enum:
    AHEAD = 6


cdef inlined project(
    const Settings *settings,
    Py_ssize_t width,
    int64_t t,
    Numbers *numbers,           # INOUT, of one output
    floating *z,                # INOUT, (width,)
    floating *v,                # INOUT, (width,)
) noexcept nogil:
    """|u_t|^2 <= lambda t^2, by the scale."""
    cdef double limit = settings.alpha * <double> t * <double> t
    cdef Py_ssize_t j
    if numbers.norm2 <= limit:
        return
    if not isfinite(numbers.norm2):                 # a projection onto the ball would hide it
        numbers.scale = numbers.harmonic = NAN
        return
    numbers.scale *= sqrt(limit / numbers.norm2)
    numbers.norm2 = limit
    if numbers.scale > 1.0 / 64:
        return
    # Make the scale 1 again: H z - v is a difference of numbers 1 / scale too large, which costs digits.
    if settings.average:
        axpy(<floating> -numbers.harmonic, z, v, width)
        numbers.harmonic = 0
    for j in range(width):
        z[j] *= <floating> numbers.scale
    numbers.scale = 1


cdef inlined train_row(
    const Settings *settings,
    Py_ssize_t width,
    Py_ssize_t n_outputs,
    const floating *x,
    int32_t y,
    int64_t t,
    Numbers *numbers,           # INOUT, (n_outputs,)
    floating *z,                # INOUT, (n_outputs, width)
    floating *v,                # INOUT, likewise
) noexcept nogil:
    """Step t of every output."""
    cdef Py_ssize_t c
    cdef floating sign, margin
    cdef floating threshold = <floating> (settings.alpha * <double> (t - 1))
    for c in range(n_outputs):
        if settings.average and t > 1:
            numbers[c].harmonic += numbers[c].scale / <double> (t - 1)
        sign = 1 if y == settings.first_class + c else -1
        margin = sign * dot(z + c * width, x, width)
        if settings.project:
            margin = <floating> (numbers[c].scale * margin)
        if margin < threshold or t == 1:
            # With u = scale z a step of y x in u is one of (y / scale) x in z; scale is 1 without projection.
            axpy(<floating> (sign / numbers[c].scale), x, z + c * width, width)
            if settings.average:
                axpy(<floating> (sign * numbers[c].harmonic / numbers[c].scale), x, v + c * width, width)
            if settings.project:
                # |u + y x|^2 = |u|^2 + 2 y u.x + |x|^2
                numbers[c].norm2 += 2 * <double> margin + <double> dot(x, x, width)
                project(settings, width, t, &numbers[c], z + c * width, v + c * width)


cdef inlined train(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, the vectors of the state
) noexcept nogil:
    cdef const floating *X = <const floating *> learner.X
    cdef const int32_t *y = <const int32_t *> learner.y
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t width = learner.width
    cdef Py_ssize_t n_outputs = learner.n_outputs
    cdef Head *head = <Head *> state
    cdef floating *v = z + n_outputs * width
    cdef int64_t t = head.n_seen
    cdef Py_ssize_t i, row
    head.n_seen += stop - start
    for i in range(start, stop):
        row = i
        if order != NULL:
            row = order[i]
            if i + AHEAD < stop:
                prefetch_row(X + order[i + AHEAD] * width, width)
        t += 1
        train_row(settings, width, n_outputs, X + row * width, y[row], t, head.outputs, z, v)


cdef inlined read(
    const Learner *learner,
    const unsigned char *state,
    const floating *z,
    floating *weights,          # OUT, (n_outputs, width)
) noexcept nogil:
    """w_{T+1} = u_T / (lambda T), or the mean of w_1..w_T."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Head *head = <const Head *> state
    cdef Py_ssize_t width = learner.width
    cdef const floating *v = z + learner.n_outputs * width
    cdef double per_step = 1 / (settings.alpha * <double> head.n_seen) if head.n_seen else 0
    cdef floating factor
    cdef Py_ssize_t c, j
    for c in range(learner.n_outputs):
        if settings.average:
            factor = <floating> head.outputs[c].harmonic
            for j in range(c * width, (c + 1) * width):
                weights[j] = <floating> per_step * (factor * z[j] - v[j])
        else:
            factor = <floating> (head.outputs[c].scale * per_step)
            for j in range(c * width, (c + 1) * width):
                weights[j] = factor * z[j]


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


cdef class Pegasos(CompiledLearner):
    """PEGASOS over prepared rows ``X`` (n_rows, width) float64 or float32 and class codes ``y``
    (n_rows,) int32.
    """

    cdef Settings own

    def __init__(self, X, y, Py_ssize_t n_classes, double alpha, bint average, bint project):
        cdef Py_ssize_t model_bytes
        if y.dtype != "int32":
            raise TypeError(f"y must hold int32 class codes, got {y.dtype}.")
        self.bind(X, y, 1 if n_classes == 2 else n_classes)
        self.own.alpha = alpha
        self.own.first_class = 1 if n_classes == 2 else 0
        self.own.average = average
        self.own.project = project
        self.learner.settings = &self.own
        model_bytes = self.n_outputs * self.learner.width * self.itemsize
        self.set_sizes(head_bytes(self.n_outputs) + model_bytes * (2 if average else 1), model_bytes)
        if X.dtype == "float64":
            self.learner.train, self.learner.read, self.learner.test = train_float64, read_float64, test_linear_float64
        elif X.dtype == "float32":
            self.learner.train, self.learner.read, self.learner.test = train_float32, read_float32, test_linear_float32
        else:
            raise TypeError(f"X must be float64 or float32, got {X.dtype}.")

    def start(self, unsigned char [::1] state):
        """Write the state before the first row: w_1 = 0."""
        cdef Head *head = <Head *> &state[0]
        cdef Py_ssize_t c
        self.check_state(state)
        memset(&state[0], 0, self.state_bytes)
        for c in range(self.n_outputs):
            head.outputs[c].scale = 1
