"""SGD for a single model; the mathematics is in ``sgd.pxd``.

The vector registers of the CPU hold several columns of one row. In ``sgd_lanes.pyx``, they hold one column for
several models; with one model only, this would take 3 to 12 times as long.
"""

from optuna_treecv._kernels.rows cimport Dense
from optuna_treecv._kernels.vec8 cimport seldom
from optuna_treecv.engines.treecv.kernels.linear cimport extreme
from optuna_treecv.engines.treecv.kernels.linear cimport scalars_of
from optuna_treecv.engines.treecv.kernels.linear cimport output_of
from optuna_treecv.engines.treecv.kernels.losses cimport loss_from_name
from optuna_treecv.engines.treecv.kernels.losses cimport slope
from optuna_treecv.engines.treecv.kernels.sgd_lanes cimport set_up_lanes
from optuna_treecv.engines.treecv.kernels.steps cimport Step
from optuna_treecv.engines.treecv.kernels.steps cimport automatic_weight
from optuna_treecv.engines.treecv.kernels.steps cimport step_of
from optuna_treecv.engines.treecv.kernels.steps cimport typical_norm2

include "train_by_type.pxi"


# A state starts with ``Common`` and these scalars of each output, padded to whole cache lines. They are followed by up
# to three vectors per output: v (float64), if iterates are averaged; the sum of the gradients of the current
# mini-batch (float64), if there are mini-batches; and z, in the type of the rows.
cdef struct Scalars:
    double scale
    double norm2                # |z|^2; only with a finite radius
    double averaged             # A


cdef inline Weights weights(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    """Return the weights of output c: the average, or the last iterate if no iterate has been averaged yet."""
    cdef const Scalars *scalars = (<const Scalars *> scalars_of(learner, state)) + c
    cdef int64_t n_averaged = (<const Common *> state).n_averaged
    cdef double per_step = 1 / <double> n_averaged if n_averaged > 0 else 1
    cdef double a = per_step * (scalars.averaged if n_averaged > 0 else scalars.scale)
    return weights_of(learner, state, c, a, n_averaged > 0, -per_step)


cdef seldom absorb_scale(
    const Learner *learner,
    Scalars *scalars,           # INOUT, of one output
    floating *z,                # INOUT, (width,)
    double *v,                  # INOUT, (width,)
    unsigned char *state,
    Log *log,
) noexcept nogil:
    cdef bint average = (<const Settings *> learner.settings).average
    cdef Scalars absorbed = scalars[0]
    cdef int lane = 0
    cdef double check
    if log != NULL:
        remember_all(log, state, learner.state_bytes)
    absorb(average, learner.width, 1, &lane, 1, &absorbed.scale, &absorbed.norm2, &absorbed.averaged, &check, z, v)
    scalars[0] = absorbed


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
    const floating *type_tag,
    bint weighted,
    Step *step,                 # OUT
) noexcept nogil:
    """Write the rate, weight and penalty of the step for the next row, with a rate that does not decay yet."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Common *common = <Common *> state
    cdef double weight = <double> weight_of(weighted, learner, row, state, type_tag)
    cdef double norm2, S
    common.n_seen += 1
    if settings.any_auto:
        norm2 = <double> norm2_row(rows, row, type_tag)
        typical_norm2(&settings.loss, &common.norms, norm2, weight, settings.average, &S)
        step[0] = step_of(&settings.loss, 0, S, automatic_weight(S, norm2, weight), settings.alpha[0], weight)
    else:
        step.rate, step.weight, step.penalty = settings.step_size[0], weight, settings.alpha[0]


cdef inlined train_row(
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, z of all outputs in ``state``
    Log *log,
    bint branchless,            # whether to add 0 times the row if its slope is 0
    bint weighted,
    floating *out,              # OUT, (n_outputs,), or NULL
) noexcept nogil:
    """Make the step for a row in each output; unless ``out`` is NULL, write the outputs before this step to it.

    ``branchless`` does not change the result, because elements of z and v are never -0, and are infinite only if the
    model has diverged. With a finite radius it is ignored: if z.x overflows, 0 times 2 z.x would be NaN.
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Common *common = <Common *> state
    cdef Scalars *scalars = <Scalars *> scalars_of(learner, state)
    cdef double *v = sums_of(learner, state)
    cdef bint in_ball = isfinite(settings.radius[0])
    cdef int64_t averages = weight_in_average(settings, common.n_seen, 1)
    cdef Py_ssize_t c
    cdef int32_t own_class
    cdef double eta, shrink, margin, norm2_of_row, g, check
    cdef floating added
    cdef Step step
    cdef Weights weights_before
    next_step(learner, rows, row, state, z, weighted, &step)
    eta = step_size_at(settings, step.rate, common.n_seen)
    shrink = 1 - eta * step.penalty
    eta *= step.weight
    for c in range(learner.n_outputs):
        margin = <double> dot_row(rows, row, z, z)
        own_class = settings.linear.classes[0] + <int32_t> c
        g = slope(&settings.loss, learner.y, row, own_class, scalars.scale * margin, z)
        if out != NULL:
            weights_before = weights(learner, state, c)
            out[c] = output_of(&weights_before, rows, row, <floating> margin, z)
        if averages:
            scalars.averaged += <double> averages * scalars.scale
        scalars.scale *= shrink
        if extreme(scalars.scale):
            margin *= scalars.scale                 # z.x after absorb_scale
            absorb_scale(learner, scalars, z, v, state, log)
        if (branchless and not in_ball) or g != 0:
            added = coefficient(eta, g, scalars.scale, z)
            check = add_row(rows, row, added, z, z, log)
            if settings.average and scalars.averaged != 0:
                check += add_row(rows, row, <double> added * scalars.averaged, v, z, log)
            if check != 0:
                scalars.scale = scalars.averaged = NAN
            if in_ball:
                norm2_of_row = <double> norm2_row(rows, row, z)
                scalars.norm2 = norm2_after_step(scalars.norm2, <double> added, margin, norm2_of_row)
        if in_ball:
            project(settings.radius[0], scalars.norm2, &scalars.scale)
        scalars += 1
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
    floating *out,              # OUT, (rows of the span, n_outputs), outputs before training on each row; or NULL
) noexcept nogil:
    cdef Py_ssize_t out_step = learner.n_outputs if out != NULL else 0
    cdef Py_ssize_t i
    for i in range(span.start, span.stop):
        train_row(learner, rows, visit(rows, span, i, z), state, z, log, False, weighted, out)
        out += out_step


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
    Scalars *scalars,           # INOUT, of one output
    floating *z,                # INOUT, (width,)
    double *v,                  # INOUT, (width,)
    double *gradient,           # IN, (width,): the sum of the gradients of the mini-batch; OUT: zeros
    unsigned char *state,
) noexcept nogil:
    """Make the step at the end of a mini-batch in one output."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef double factor, added
    cdef Py_ssize_t j
    scalars.scale *= shrink
    if extreme(scalars.scale):
        absorb_scale(learner, scalars, z, v, state, NULL)
    factor = -eta / (<double> settings.batch_size * scalars.scale)
    scalars.norm2 = 0
    for j in range(learner.width):
        added = <double> <floating> (factor * gradient[j])
        gradient[j] = 0
        z[j] += <floating> added
        scalars.norm2 += <double> z[j] * <double> z[j]
        if settings.average:
            v[j] += added * scalars.averaged
    if isfinite(settings.radius[0]):
        project(settings.radius[0], scalars.norm2, &scalars.scale)


cdef inlined add_to_batch(
    const Learner *learner,
    Py_ssize_t row,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, z of all outputs in ``state``
    bint weighted,
    floating *out,              # OUT, (n_outputs,), or NULL
) noexcept nogil:
    """Add the gradients of a dense row to the sums of the mini-batch, and make the step if this row completes it.

    Unless ``out`` is NULL, write the outputs before training on the row to it.
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Dense *rows = &learner.dense
    cdef Py_ssize_t width = learner.width
    cdef Common *common = <Common *> state
    cdef Scalars *scalars = <Scalars *> scalars_of(learner, state)
    cdef double *v = sums_of(learner, state)
    cdef double *gradient = v + (learner.n_outputs * width if settings.average else 0)
    cdef Py_ssize_t c
    cdef double eta, shrink, p
    cdef Step step
    cdef floating dot
    cdef Weights weights_before
    cdef int64_t averages = 0
    if common.n_seen % settings.batch_size == 0:
        averages = weight_in_average(settings, common.n_seen, settings.batch_size)
    next_step(learner, rows, row, state, z, weighted, &step)
    for c in range(learner.n_outputs):
        dot = dot_row(rows, row, z + c * width, z)
        if out != NULL:
            weights_before = weights(learner, state, c)
            out[c] = output_of(&weights_before, rows, row, dot, z)
        if averages:
            scalars[c].averaged += <double> averages * scalars[c].scale
        p = scalars[c].scale * <double> dot
        p = slope(&settings.loss, learner.y, row, settings.linear.classes[0] + <int32_t> c, p, z)
        add_row(rows, row, step.weight * p, gradient + c * width, z, NULL)
    common.n_averaged += averages
    if common.n_seen % settings.batch_size == 0:
        eta = step_size_at(settings, step.rate, common.n_seen // settings.batch_size)
        shrink = 1 - eta * step.penalty
        for c in range(learner.n_outputs):
            batch_step(learner, eta, shrink, &scalars[c], z + c * width, v + c * width, gradient + c * width, state)


cdef inlined train_dense_on(
    const Learner *learner,
    Span span,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, z of all outputs in ``state``
    bint weighted,
    floating *out,              # OUT, (rows of the span, n_outputs), outputs before training on each row; or NULL
) noexcept nogil:
    cdef Py_ssize_t out_step = learner.n_outputs if out != NULL else 0
    cdef Py_ssize_t i
    for i in range(span.start, span.stop):
        add_to_batch(learner, visit(&learner.dense, span, i, z), state, z, weighted, out)
        out += out_step


include "train_dense_by_type.pxi"


cdef void train_both_batches(
    const Learner *learner, Span span, Span other_span, unsigned char *first, unsigned char *second
) noexcept nogil:
    """Train two states one after the other, because a row of a mini-batch need not wait for the previous row."""
    train_dense(learner, span, first, NULL, NULL)
    train_dense(learner, other_span, second, NULL, NULL)


cdef class SGD(LinearKernel):
    """SGD on prepared rows: a single model, or in lanes one model per (alpha, step_size, radius) in ``values``.

    ``loss`` is the name of a loss in ``losses.pxd``, which must be a loss for classification if ``n_classes`` is
    given. A ``step_size`` of 0 selects the automatic step size.
    """

    cdef Settings settings

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
        self.bind_linear(X, y, n_classes, len(values), &self.settings.linear, in_lanes)
        self.settings.loss = loss_from_name(loss, epsilon)
        self.settings.power = power
        self.settings.average = average
        self.settings.is_linear = is_linear
        self.settings.average_start = average_start
        self.settings.batch_size = batch_size
        for lane in range(MAX_LANES):
            alpha, step_size, radius = values[model_of(&self.settings.linear, lane)]
            self.settings.alpha[lane], self.settings.step_size[lane] = alpha, step_size
            self.settings.radius[lane] = radius
            self.settings.any_auto |= self.settings.step_size[lane] == 0
        if batch_size > 1 and (in_lanes or self.learner.sparse.indptr != NULL):
            raise ValueError("batch_size must be 1 for sparse rows and for models in lanes.")
        self.lay_out(sizeof(Common), 3, average + (batch_size > 1), 1)
        self.learner.rewrites = True
        if in_lanes:
            set_up_lanes(&self.learner, &self.settings.linear)
            return
        set_up_alone(&self.learner, &self.settings.linear)
        if batch_size > 1:
            self.learner.train = train_dense
            self.learner.train_both = train_both_batches
        elif self.learner.sparse.indptr == NULL:
            self.learner.train_both = train_both
