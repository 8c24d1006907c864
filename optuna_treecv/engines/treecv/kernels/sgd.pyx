"""SGD for one model: a vector of the CPU holds several columns of a row. In ``sgd_lanes.pyx`` it holds one
column for several models, and one model alone would take 3 to 12 times as long. The mathematics is in ``sgd.pxd``.
"""

from optuna_treecv._kernels.rows cimport Dense
from optuna_treecv._kernels.vec8 cimport seldom
from optuna_treecv.engines.treecv.kernels.linear cimport extreme
from optuna_treecv.engines.treecv.kernels.linear cimport output_of
from optuna_treecv.engines.treecv.kernels.linear cimport sum_of
from optuna_treecv.engines.treecv.kernels.losses cimport Loss
from optuna_treecv.engines.treecv.kernels.losses cimport loss_named
from optuna_treecv.engines.treecv.kernels.losses cimport slope
from optuna_treecv.engines.treecv.kernels.steps cimport Norms
from optuna_treecv.engines.treecv.kernels.steps cimport Step
from optuna_treecv.engines.treecv.kernels.steps cimport automatic_weight
from optuna_treecv.engines.treecv.kernels.steps cimport step_of
from optuna_treecv.engines.treecv.kernels.steps cimport typical_norm2

include "train_by_type.pxi"


cdef struct Settings:
    LinearSettings linear
    Loss loss
    double alpha
    double step_size            # eta
    bint automatic              # whether the step size is 0
    double power                # eta_t = eta / t^power
    double radius
    int64_t batch_size
    bint average
    bint is_linear              # whether the iterates are weighted by their numbers in the average
    int64_t average_start       # the number of rows before averaging begins


# A state begins with this head, with the numbers of each output, padded to a cache line. Then come,
# each for all outputs, v (float64) when averaging, the batch's sum of gradients (float64) when there are
# mini-batches, and z in the type of the rows.
cdef struct Numbers:
    double scale
    double norm2                # |z|^2; only with a finite radius
    double averaged             # A


cdef struct Head:
    int64_t n_seen
    int64_t n_averaged          # the sum of the weights of the iterates averaged
    Norms norms                 # of the rows so far; for the automatic step only
    Numbers outputs[1]          # n_outputs of them


cdef inline double *gradient_of(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    """Return the batch's sum of output c."""
    cdef bint average = (<const Settings *> learner.settings).average
    return sum_of(learner, state, c + (learner.n_outputs if average else 0))


cdef inline void *vectors_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return z of the first output."""
    cdef bint batches = (<const Settings *> learner.settings).batch_size > 1
    return gradient_of(learner, state, learner.n_outputs if batches else 0)


cdef inline Weights weights(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    """Return the last iterate, or the mean of the averaged iterates once there are some."""
    cdef const Head *head = <const Head *> state
    cdef bint average = head.n_averaged > 0
    cdef double per_step = 1 / <double> head.n_averaged if average else 1
    cdef Weights of
    of.p = <const char *> vectors_of(learner, state) + c * learner.width * learner.itemsize
    of.a = per_step * (head.outputs[c].averaged if average else head.outputs[c].scale)
    of.q = sum_of(learner, state, c) if average else NULL
    of.b = -per_step
    return of


cdef seldom absorb_scale(
    const Learner *learner,
    Numbers *numbers,           # INOUT, of one output
    floating *z,                # INOUT, (width,)
    double *v,                  # INOUT, (width,)
    unsigned char *state,
    Log *log,
) noexcept nogil:
    cdef bint average = (<const Settings *> learner.settings).average
    cdef Numbers of = numbers[0]
    cdef int lane = 0
    cdef double check
    if log != NULL:
        remember_all(log, state, learner.state_bytes)
    absorb(average, learner.width, 1, &lane, 1, &of.scale, &of.norm2, &of.averaged, &check, z, v)
    numbers[0] = of


cdef inlined step(
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    double eta,                 # the coefficient of the row
    double shrink,              # the factor of w
    Py_ssize_t c,
    Numbers *numbers,           # INOUT, of output c
    floating *z,                # INOUT, (width,)
    double *v,                  # INOUT, (width,)
    unsigned char *state,
    Log *log,
    bint branchless,
    double averages,            # the weight of the iterate before this step in the average
    floating *tested,           # OUT, the output before this step, or NULL
) noexcept nogil:
    """Make one row's step of output c. If ``branchless``, 0 times the row is added if there is nothing to
    add. This changes no bit, because no z or v is ever -0 (nor infinite, unless the model has diverged).
    With a finite radius there is always a branch: 2 z.x times 0 would be NaN if z.x overflows.
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef double margin = <double> dot_row(rows, row, z, z)
    cdef int32_t own_class = settings.linear.first_class + <int32_t> c
    cdef double g = slope(&settings.loss, learner.y, row, own_class, numbers.scale * margin, z)
    cdef bint in_ball = isfinite(settings.radius)
    cdef floating added
    cdef double check
    cdef Weights before
    if tested != NULL:
        before = weights(learner, state, c)
        tested[0] = output_of(&before, rows, row, <floating> margin, z)
    if averages:
        numbers.averaged += averages * numbers.scale
    numbers.scale *= shrink
    if extreme(numbers.scale):
        margin *= numbers.scale                     # z.x for the new z
        absorb_scale(learner, numbers, z, v, state, log)
    if (branchless and not in_ball) or g != 0:
        added = coefficient(eta, g, numbers.scale, z)
        check = add_row(rows, row, added, z, z, log)
        if settings.average and numbers.averaged != 0:
            check += add_row(rows, row, <double> added * numbers.averaged, v, z, log)
        if check != 0:
            numbers.scale = numbers.averaged = NAN
        if in_ball:
            numbers.norm2 = with_row(numbers.norm2, <double> added, margin, <double> norm2_row(rows, row, z))
    if in_ball:
        project(settings.radius, numbers.norm2, &numbers.scale)


cdef double decayed_step(const Settings *settings, double eta, int64_t t) noexcept nogil:
    return step_at(eta, settings.power, decay(settings.power, t))


cdef inline double step_size_at(const Settings *settings, double eta, int64_t t) noexcept nogil:
    """Return eta_t."""
    return eta if settings.power == 0 else decayed_step(settings, eta, t)


cdef inlined next_step(
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    unsigned char *state,       # INOUT: the row is seen
    const floating *of_type,    # only selects the type
    bint weighted,
    Step *by,                   # OUT
) noexcept nogil:
    """Write the step of the next row, before it decays."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Head *head = <Head *> state
    cdef double weight = <double> weight_of(weighted, learner, row, state, of_type)
    cdef double norm2, S
    head.n_seen += 1
    if settings.automatic:
        norm2 = <double> norm2_row(rows, row, of_type)
        typical_norm2(&settings.loss, &head.norms, norm2, weight, settings.average, &S)
        by[0] = step_of(&settings.loss, 0, S, automatic_weight(S, norm2, weight), settings.alpha, weight)
    else:
        by.rate, by.weight, by.penalty = settings.step_size, weight, settings.alpha


cdef inlined train_row(
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, where the first one lies in the state
    Log *log,
    bint branchless,
    bint weighted,
    floating *tested,           # OUT, (n_outputs,), or NULL
) noexcept nogil:
    """Make a row's step of every output; with ``tested`` write the outputs before it."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t width = learner.width
    cdef Head *head = <Head *> state
    cdef double *v = sum_of(learner, state, 0)
    cdef Py_ssize_t c
    cdef double eta, shrink
    cdef Step by
    cdef int64_t averages = 0
    if settings.average and head.n_seen >= settings.average_start:
        averages = weight_in_average(settings.is_linear, head.n_seen - settings.average_start, 1)
    next_step(learner, rows, row, state, z, weighted, &by)
    eta = step_size_at(settings, by.rate, head.n_seen)
    shrink = 1 - eta * by.penalty
    eta *= by.weight
    for c in range(learner.n_outputs):
        step(
            learner,
            rows,
            row,
            eta,
            shrink,
            c,
            &head.outputs[c],
            z + c * width,
            v + c * width,
            state,
            log,
            branchless,
            <double> averages,
            tested + c if tested != NULL else NULL,
        )
    head.n_averaged += averages


cdef inlined train_on(
    const Learner *learner,
    const Rows *rows,
    Span span,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, where the first one lies in the state
    Log *log,
    bint weighted,
    floating *tested,           # OUT, (rows of the span, n_outputs): outputs before each row acts; or NULL
) noexcept nogil:
    cdef Py_ssize_t n_tested = learner.n_outputs if tested != NULL else 0
    cdef Py_ssize_t i
    for i in range(span.start, span.stop):
        train_row(learner, rows, visit(rows, span, i, z), state, z, log, False, weighted, tested)
        tested += n_tested


cdef inlined train_both_on(
    const Learner *learner,
    Span span,
    Span other_span,
    unsigned char *first,       # INOUT
    unsigned char *second,      # INOUT
    floating *z_first,          # INOUT, where they lie in the states
    floating *z_second,         # INOUT
    bint weighted,
) noexcept nogil:
    """Train two states on dense rows. A row's dot product must wait until the row before was added. While
    one state waits, the CPU works on the other's row: it looks that far ahead if it predicts branches right.
    """
    cdef const Dense *rows = &learner.dense
    cdef Py_ssize_t i, row, other
    for i in range(span.stop - span.start):
        row = visit(rows, span, span.start + i, z_first)
        other = visit(rows, other_span, other_span.start + i, z_first)
        train_row(learner, rows, row, first, z_first, NULL, True, weighted, <floating *> NULL)
        train_row(learner, rows, other, second, z_second, NULL, True, weighted, <floating *> NULL)


include "train_both_by_type.pxi"


cdef seldom batch_step(
    const Learner *learner,
    double eta,
    double shrink,              # the factor of w
    Numbers *numbers,           # INOUT, of one output
    floating *z,                # INOUT, (width,)
    double *v,                  # INOUT, (width,)
    double *gradient,           # INOUT, (width,): the batch's sum, 0 afterwards
    unsigned char *state,
) noexcept nogil:
    """Make the step at the end of a mini-batch."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef double factor, added
    cdef Py_ssize_t j
    numbers.scale *= shrink
    if extreme(numbers.scale):
        absorb_scale(learner, numbers, z, v, state, NULL)
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
        project(settings.radius, numbers.norm2, &numbers.scale)


cdef inlined add_to_batch(
    const Learner *learner,
    Py_ssize_t row,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, where the first one lies in the state
    bint weighted,
    floating *tested,           # OUT, (n_outputs,), or NULL
) noexcept nogil:
    """Add a dense row to the sums of a mini-batch, and make the step at its end; with ``tested`` write the outputs
    before it.
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Dense *rows = &learner.dense
    cdef Py_ssize_t width = learner.width
    cdef Head *head = <Head *> state
    cdef double *v = sum_of(learner, state, 0)
    cdef double *gradient = gradient_of(learner, state, 0)
    cdef Numbers *numbers = head.outputs
    cdef Py_ssize_t c
    cdef double eta, shrink, p
    cdef Step by
    cdef floating dot
    cdef Weights before
    cdef int64_t averages = 0
    if settings.average and head.n_seen >= settings.average_start and head.n_seen % settings.batch_size == 0:
        averages = weight_in_average(settings.is_linear, head.n_seen - settings.average_start, settings.batch_size)
    next_step(learner, rows, row, state, z, weighted, &by)
    for c in range(learner.n_outputs):
        dot = dot_row(rows, row, z + c * width, z)
        if tested != NULL:
            before = weights(learner, state, c)
            tested[c] = output_of(&before, rows, row, dot, z)
        if averages:
            numbers[c].averaged += <double> averages * numbers[c].scale
        p = numbers[c].scale * <double> dot
        p = slope(&settings.loss, learner.y, row, settings.linear.first_class + <int32_t> c, p, z)
        add_row(rows, row, by.weight * p, gradient + c * width, z, NULL)
    head.n_averaged += averages
    if head.n_seen % settings.batch_size == 0:
        eta = step_size_at(settings, by.rate, head.n_seen // settings.batch_size)
        shrink = 1 - eta * by.penalty
        for c in range(learner.n_outputs):
            batch_step(learner, eta, shrink, &numbers[c], z + c * width, v + c * width, gradient + c * width, state)


cdef inlined train_dense_on(
    const Learner *learner,
    Span span,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, where the first one lies in the state
    bint weighted,
    floating *tested,           # OUT, (rows of the span, n_outputs): outputs before each row acts; or NULL
) noexcept nogil:
    cdef Py_ssize_t n_tested = learner.n_outputs if tested != NULL else 0
    cdef Py_ssize_t i
    for i in range(span.start, span.stop):
        add_to_batch(learner, visit(&learner.dense, span, i, z), state, z, weighted, tested)
        tested += n_tested


include "train_dense_by_type.pxi"


cdef void train_both_batches(
    const Learner *learner,
    Span span,
    Span other_span,
    unsigned char *first,
    unsigned char *second,
) noexcept nogil:
    """Train one state after the other: a row of a mini-batch does not wait for the row before it."""
    train_dense(learner, span, first, NULL, NULL)
    train_dense(learner, other_span, second, NULL, NULL)


cdef class SGD(LinearKernel):
    """SGD over prepared rows; ``loss`` is one of ``losses.pxd``, and a classifier's loss if
    ``n_classes`` is given. ``step_size`` 0 selects the automatic step.
    """

    cdef Settings own

    def __init__(
        self,
        X,
        y,
        n_classes: int | None,
        loss: str,
        double epsilon,
        double alpha,
        double step_size,
        double power,
        double radius,
        int64_t batch_size,
        bint average,
        int64_t average_start,
        bint is_linear=False,
    ):
        cdef Py_ssize_t n_numbers
        self.bind_linear(X, y, n_classes, &self.own.linear, train_on_dense, train_on_sparse, weights)
        self.own.loss = loss_named(loss, epsilon)
        self.own.alpha = alpha
        self.own.step_size = step_size
        self.own.automatic = step_size == 0
        self.own.power = power
        self.own.radius = radius
        self.own.batch_size = batch_size
        self.own.average = average
        self.own.is_linear = is_linear
        self.own.average_start = average_start
        if batch_size > 1 and self.learner.sparse.begins != NULL:
            raise ValueError("there are no mini-batches of sparse rows.")
        n_numbers = self.n_outputs * self.learner.width
        if batch_size > 1:
            self.learner.train = train_dense
            self.learner.train_both = train_both_batches
        elif self.learner.sparse.begins == NULL:
            self.learner.train_both = train_both
        self.learner.n_saved = self.n_outputs * (2 if average else 1)
        self.learner.rewrites = True
        self.set_sizes(
            sizeof(Head) + (self.n_outputs - 1) * sizeof(Numbers),
            n_numbers * (
                self.itemsize + (8 if average else 0) + (8 if batch_size > 1 else 0)
            ),
            n_numbers * self.itemsize,
        )

    def start(self, unsigned char [::1] state):
        """Write the state before the first row: w_1 = 0."""
        cdef Head *head = <Head *> &state[0]
        cdef Py_ssize_t c
        Kernel.start(self, state)
        for c in range(self.n_outputs):
            head.outputs[c].scale = 1
