"""Streaming SVRG for a single model; the mathematics is in ``svrg.pxd``.

The vector registers of the CPU hold several columns of one row. In ``svrg_lanes.pyx``, they hold one column for
several models; with one model only, this would take 3 to 12 times as long.
"""

from optuna_treecv.engines.treecv.kernels.linear cimport extreme
from optuna_treecv.engines.treecv.kernels.losses cimport loss_from_name
from optuna_treecv.engines.treecv.kernels.losses cimport slope
from optuna_treecv.engines.treecv.kernels.losses cimport slopes
from optuna_treecv.engines.treecv.kernels.sgd cimport coefficient
from optuna_treecv.engines.treecv.kernels.steps cimport Step
from optuna_treecv.engines.treecv.kernels.steps cimport automatic_weight
from optuna_treecv.engines.treecv.kernels.steps cimport step_of
from optuna_treecv.engines.treecv.kernels.steps cimport typical_norm2
from optuna_treecv.engines.treecv.kernels.svrg_lanes cimport set_up_lanes

include "train_by_type.pxi"


# A state starts with this head, in two cache lines. It is followed by three vectors per output: G (float64), and z and
# w~ in the type of the rows.
cdef struct Head:
    Stage stage
    double scale
    double shift
    Norms norms                 # of the rows so far; used by the automatic step size only


def inner_length(uint64_t seed, int64_t stage, int64_t inner_steps) -> int:
    """Return the number of rows m~ in the inner phase of a stage, for a schedule that is not factorial."""
    return draw_length(seed, stage, cap_inner_steps(inner_steps))


cdef inlined inner_step(
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    const Step *step,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, z of all outputs in ``state``
    Log *log,
    floating *out,              # OUT, (n_outputs,), the outputs before this step; or NULL
) noexcept nogil:
    """Make the step w -= rate (weight (slope(w.x, y) - slope(w~.x, y)) x + penalty w + G / k) in each output."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Loss *loss = &settings.loss
    cdef Py_ssize_t width = learner.width
    cdef Head *head = <Head *> state
    cdef const double *sums = sums_of(learner, state)
    cdef const floating *anchors = z + learner.n_outputs * width
    cdef double rate_of_row = step.rate * step.weight
    cdef double shrink = 1 - step.rate * step.penalty
    cdef double next_scale = head.scale * shrink
    cdef bint is_extreme = extreme(next_scale)
    cdef int lane = 0
    cdef int32_t classes[2]
    cdef double p[2]
    cdef double g[2]
    cdef double check = 0
    cdef Py_ssize_t c, offset
    if is_extreme:
        if log != NULL:
            remember_all(log, state, learner.state_bytes)
        settle_chosen(learner, &lane, 1, state, z)
        next_scale = 1
    for c in range(learner.n_outputs):
        offset = c * width
        p[0] = prediction(
            head.scale, dot_row(rows, row, z + offset, z), head.shift, dot_row(rows, row, sums + offset, z)
        )
        if out != NULL:
            out[c] = <floating> p[0]
        p[1] = dot_row(rows, row, anchors + offset, z)
        classes[0] = classes[1] = settings.linear.classes[0] + <int32_t> c
        slopes(loss, learner.y, row, 2, True, classes, p, g, z)
        if is_extreme:
            shrink_z(width, 1, &lane, 1, &shrink, z + offset, &check)
        check += add_row(rows, row, coefficient(rate_of_row, g[0] - g[1], next_scale, z), z + offset, z, log)
    head.scale = next_scale + check
    head.shift = next_shift(head.shift, shrink, step.rate, head.stage.n_batch)


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
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Loss *loss = &settings.loss
    cdef Py_ssize_t width = learner.width
    cdef Head *head = <Head *> state
    cdef double *sums = sums_of(learner, state)
    cdef floating *anchors = z + learner.n_outputs * width
    cdef Py_ssize_t i, row, c, offset
    cdef int32_t own_class
    cdef floating dot
    cdef double g, weight
    cdef double S = 0
    cdef double norm2 = 0
    cdef double row_weight = 0
    cdef Step step
    for i in range(span.start, span.stop):
        row = visit(rows, span, i, z)
        if head.stage.left == 0:
            next_phase(learner, state, z, log)
        head.stage.n_seen += 1
        head.stage.left -= 1
        weight = <double> weight_of(weighted, learner, row, state, z)
        if settings.any_auto:
            norm2 = <double> norm2_row(rows, row, z)
            typical_norm2(loss, &head.norms, norm2, weight, False, &S)
            row_weight = automatic_weight(S, norm2, weight)
        step = step_of(loss, settings.step_size[0], S, row_weight, settings.alpha[0], weight)
        step.rate = stage_step_size(&settings.schedule, &head.stage, step.rate)
        if head.stage.in_batch:
            for c in range(learner.n_outputs):
                offset = c * width
                own_class = settings.linear.classes[0] + <int32_t> c
                dot = dot_row(rows, row, anchors + offset, z)
                if out != NULL:                     # the model is the anchor; the scale is 1, or NaN
                    out[c] = <floating> (head.scale * <double> dot)
                g = step.weight * slope(loss, learner.y, row, own_class, dot, z)
                head.shift += add_row(rows, row, g, sums + offset, z, log)  # adds 0; NaN shows in the inner phase
        else:
            inner_step(learner, rows, row, &step, state, z, log, out)
        if out != NULL:
            out += learner.n_outputs


cdef Weights weights(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    """Return the weights of output c: the current iterate in an inner phase, or the anchor in a batch."""
    cdef const Head *head = <const Head *> state
    return weights_of(learner, state, c, head.scale, not head.stage.in_batch, head.shift)


cdef class StreamingSVRG(LinearKernel):
    """Streaming SVRG on prepared rows: a single model, or in lanes one model per (alpha, step_size) in ``values``.

    ``loss`` is the name of a smooth loss in ``losses.pxd``. A ``step_size`` of 0 selects the automatic step size. With
    ``inner_steps`` = 0, an inner phase has as many rows as its batch.
    """

    cdef Settings settings

    def __init__(
        self,
        X,
        y,
        n_classes: int | None,
        loss: str,
        double epsilon,
        int64_t initial_batch_size,
        double batch_growth,
        int64_t inner_steps,
        int64_t warm_stages,
        bint factorial,
        uint64_t seed,
        values: list[tuple[float, float]],
        bint in_lanes=False,
    ):
        cdef Py_ssize_t lane
        self.bind_linear(X, y, n_classes, len(values), &self.settings.linear, in_lanes)
        self.settings.loss = loss_from_name(loss, epsilon)
        self.settings.schedule = Schedule(
            initial_batch_size, batch_growth, cap_inner_steps(inner_steps), warm_stages, factorial, seed
        )
        for lane in range(MAX_LANES):
            self.settings.alpha[lane], self.settings.step_size[lane] = values[model_of(&self.settings.linear, lane)]
            self.settings.any_auto |= self.settings.step_size[lane] == 0
        if in_lanes:
            self.lay_out(sizeof(Common), 2, 1, 2)
            set_up_lanes(&self.learner, &self.settings.linear)
        else:
            self.lay_out(sizeof(Head), 0, 1, 2)
            self.settings.linear.common_bytes = sizeof(Stage)  # scale and shift come right after it
            self.learner.n_saved = self.n_outputs
            set_up_alone(&self.learner, &self.settings.linear)
        self.learner.changes = changes
        self.learner.rewrites = True

    def start(self, unsigned char [::1] state):
        """Write the initial state: the anchor w~ = 0, at the beginning of the first batch."""
        LinearKernel.start(self, state)
        start_stages(&self.settings.schedule, <Stage *> &state[0])

    def n_used(self, const unsigned char [::1] state) -> int:
        """Return the number of rows that have influenced the model: all but the rows of an incomplete batch."""
        self.check_state(state)
        return n_used_rows(<const Stage *> &state[0])
