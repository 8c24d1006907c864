"""SGD for a single model; the mathematics is in ``sgd.pxd``.

The vector registers of the CPU hold several columns of one row. In ``sgd_lanes.pyx``, they hold one column for
several models; with one model only, this would take 3 to 12 times as long.
"""

from optuna_treecv._kernels.rows cimport Dense
from optuna_treecv._kernels.vec8 cimport seldom
from optuna_treecv.engines.treecv.kernels.linear cimport extreme
from optuna_treecv.engines.treecv.kernels.linear cimport numbers_of
from optuna_treecv.engines.treecv.kernels.linear cimport output_of
from optuna_treecv.engines.treecv.kernels.losses cimport loss_named
from optuna_treecv.engines.treecv.kernels.losses cimport slope
from optuna_treecv.engines.treecv.kernels.sgd_lanes cimport set_up_lanes
from optuna_treecv.engines.treecv.kernels.steps cimport Step
from optuna_treecv.engines.treecv.kernels.steps cimport automatic_weight
from optuna_treecv.engines.treecv.kernels.steps cimport step_of
from optuna_treecv.engines.treecv.kernels.steps cimport typical_norm2

include "train_by_type.pxi"


# A state starts with ``Common`` and these scalars of each output, padded to whole cache lines. They are followed by up
# to three vectors per output: v (float64), if iterates are averaged; the sum of the gradients of the current mini-batch
# (float64), if there are mini-batches; and z, in the type of the rows.
cdef struct Numbers:
    double scale
    double norm2                # |z|^2; only with a finite radius
    double averaged             # A


cdef inline Weights weights(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    """Return the weights of output c: the average, or the last iterate if no iterate has been averaged yet."""
    cdef const Numbers *numbers = (<const Numbers *> numbers_of(learner, state)) + c
    cdef int64_t n_averaged = (<const Common *> state).n_averaged
    cdef double per_step = 1 / <double> n_averaged if n_averaged > 0 else 1
    cdef double a = per_step * (numbers.averaged if n_averaged > 0 else numbers.scale)
    return weights_of(learner, state, c, a, n_averaged > 0, -per_step)


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


cdef double decayed_step(const Settings *settings, double eta, int64_t t) noexcept nogil:
    return step_at(eta, settings.power, decay(settings.power, t))


cdef inline double step_size_at(const Settings *settings, double eta, int64_t t) noexcept nogil:
    """Return eta_t for eta_1 = ``eta``."""
    return eta if settings.power == 0 else decayed_step(settings, eta, t)


cdef inlined next_step(
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    unsigned char *state,       # INOUT: the row is counted
    const floating *of_type,
    bint weighted,
    Step *by,                   # OUT
) noexcept nogil:
    """Write the rate, weight and penalty of the step for the next row, with a rate that does not decay yet."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Common *common = <Common *> state
    cdef double weight = <double> weight_of(weighted, learner, row, state, of_type)
    cdef double norm2, S
    common.n_seen += 1
    if settings.any_auto:
        norm2 = <double> norm2_row(rows, row, of_type)
        typical_norm2(&settings.loss, &common.norms, norm2, weight, settings.average, &S)
        by[0] = step_of(&settings.loss, 0, S, automatic_weight(S, norm2, weight), settings.alpha[0], weight)
    else:
        by.rate, by.weight, by.penalty = settings.step_size[0], weight, settings.alpha[0]


cdef inlined train_row(
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, z of all outputs in ``state``
    Log *log,
    bint branchless,            # whether to add 0 times the row if its slope is 0
    bint weighted,
    floating *tested,           # OUT, (n_outputs,), or NULL
) noexcept nogil:
    """Make the step for a row in each output; unless ``tested`` is NULL, write the outputs before this step to it.

    ``branchless`` does not change the result, because elements of z and v are never -0, and are infinite only if the
    model has diverged. With a finite radius it is ignored: if z.x overflows, 0 times 2 z.x would be NaN.
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Common *common = <Common *> state
    cdef Numbers *numbers = <Numbers *> numbers_of(learner, state)
    cdef double *v = sums_of(learner, state)
    cdef bint in_ball = isfinite(settings.radius[0])
    cdef int64_t averages = weight_in_average(settings, common.n_seen, 1)
    cdef Py_ssize_t c
    cdef int32_t own_class
    cdef double eta, shrink, margin, g, check
    cdef floating added
    cdef Step by
    cdef Weights before
    next_step(learner, rows, row, state, z, weighted, &by)
    eta = step_size_at(settings, by.rate, common.n_seen)
    shrink = 1 - eta * by.penalty
    eta *= by.weight
    for c in range(learner.n_outputs):
        margin = <double> dot_row(rows, row, z, z)
        own_class = settings.linear.classes[0] + <int32_t> c
        g = slope(&settings.loss, learner.y, row, own_class, numbers.scale * margin, z)
        if tested != NULL:
            before = weights(learner, state, c)
            tested[c] = output_of(&before, rows, row, <floating> margin, z)
        if averages:
            numbers.averaged += <double> averages * numbers.scale
        numbers.scale *= shrink
        if extreme(numbers.scale):
            margin *= numbers.scale                 # z.x after absorb_scale
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
            project(settings.radius[0], numbers.norm2, &numbers.scale)
        numbers += 1
        z += learner.width
        v += learner.width
    common.n_averaged += averages


cdef inlined train_on(
    const Learner *learner,
    const Rows *rows,
    Span span,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, z of all outputs in ``state``
    Log *log,
    bint weighted,
    floating *tested,           # OUT, (rows of the span, n_outputs), outputs before training on each row; or NULL
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
    floating *z_first,          # INOUT, z of all outputs in ``first``
    floating *z_second,         # INOUT, z of all outputs in ``second``
    bint weighted,
) noexcept nogil:
    """Train two states alternately on dense rows.

    The dot product with a row cannot start before the previous row has been added to z. While one state waits for
    this, the CPU can already work on the row of the other state, unless it mispredicts a branch in between.
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
    double *gradient,           # IN, (width,): the sum of the gradients of the mini-batch; OUT: zeros
    unsigned char *state,
) noexcept nogil:
    """Make the step at the end of a mini-batch in one output."""
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
    if isfinite(settings.radius[0]):
        project(settings.radius[0], numbers.norm2, &numbers.scale)


cdef inlined add_to_batch(
    const Learner *learner,
    Py_ssize_t row,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, z of all outputs in ``state``
    bint weighted,
    floating *tested,           # OUT, (n_outputs,), or NULL
) noexcept nogil:
    """Add the gradients of a dense row to the sums of the mini-batch, and make the step if this row completes it.

    Unless ``tested`` is NULL, write the outputs before training on the row to it.
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Dense *rows = &learner.dense
    cdef Py_ssize_t width = learner.width
    cdef Common *common = <Common *> state
    cdef Numbers *numbers = <Numbers *> numbers_of(learner, state)
    cdef double *v = sums_of(learner, state)
    cdef double *gradient = v + (learner.n_outputs * width if settings.average else 0)
    cdef Py_ssize_t c
    cdef double eta, shrink, p
    cdef Step by
    cdef floating dot
    cdef Weights before
    cdef int64_t averages = 0
    if common.n_seen % settings.batch_size == 0:
        averages = weight_in_average(settings, common.n_seen, settings.batch_size)
    next_step(learner, rows, row, state, z, weighted, &by)
    for c in range(learner.n_outputs):
        dot = dot_row(rows, row, z + c * width, z)
        if tested != NULL:
            before = weights(learner, state, c)
            tested[c] = output_of(&before, rows, row, dot, z)
        if averages:
            numbers[c].averaged += <double> averages * numbers[c].scale
        p = numbers[c].scale * <double> dot
        p = slope(&settings.loss, learner.y, row, settings.linear.classes[0] + <int32_t> c, p, z)
        add_row(rows, row, by.weight * p, gradient + c * width, z, NULL)
    common.n_averaged += averages
    if common.n_seen % settings.batch_size == 0:
        eta = step_size_at(settings, by.rate, common.n_seen // settings.batch_size)
        shrink = 1 - eta * by.penalty
        for c in range(learner.n_outputs):
            batch_step(learner, eta, shrink, &numbers[c], z + c * width, v + c * width, gradient + c * width, state)


cdef inlined train_dense_on(
    const Learner *learner,
    Span span,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, z of all outputs in ``state``
    bint weighted,
    floating *tested,           # OUT, (rows of the span, n_outputs), outputs before training on each row; or NULL
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
    """Train two states one after the other, because a row of a mini-batch need not wait for the previous row."""
    train_dense(learner, span, first, NULL, NULL)
    train_dense(learner, other_span, second, NULL, NULL)


cdef class SGD(LinearKernel):
    """SGD on prepared rows: a single model, or in lanes one model per (alpha, step_size, radius) in ``values``.

    ``loss`` is the name of a loss in ``losses.pxd``, which must be a loss for classification if ``n_classes`` is given.
    A ``step_size`` of 0 selects the automatic step size.
    """

    cdef Settings own

    def __init__(
        self,
        X,
        y,
        n_classes: int | None,
        loss: str,
        double epsilon,
        double power,
        bint average,
        int64_t average_start,
        values: list[tuple[float, float, float]],
        bint is_linear=False,
        int64_t batch_size=1,
        bint in_lanes=False,
    ):
        cdef Py_ssize_t lane
        self.bind_linear(X, y, n_classes, len(values), &self.own.linear, in_lanes)
        self.own.loss = loss_named(loss, epsilon)
        self.own.power = power
        self.own.average = average
        self.own.is_linear = is_linear
        self.own.average_start = average_start
        self.own.batch_size = batch_size
        for lane in range(MOST_LANES):
            alpha, step_size, radius = values[model_of(&self.own.linear, lane)]
            self.own.alpha[lane], self.own.step_size[lane], self.own.radius[lane] = alpha, step_size, radius
            self.own.any_auto |= self.own.step_size[lane] == 0
        if batch_size > 1 and (in_lanes or self.learner.sparse.begins != NULL):
            raise ValueError("batch_size must be 1 for sparse rows and for models in lanes.")
        self.lay_out(sizeof(Common), 3, average + (batch_size > 1), 1)
        self.learner.rewrites = True
        if in_lanes:
            set_up_lanes(&self.learner, &self.own.linear)
            return
        set_up_alone(&self.learner, &self.own.linear)
        if batch_size > 1:
            self.learner.train = train_dense
            self.learner.train_both = train_both_batches
        elif self.learner.sparse.begins == NULL:
            self.learner.train_both = train_both
