"""PEGASOS for a single model; the mathematics is in ``pegasos.pxd``.

The vector registers of the CPU hold several columns of one row. In ``pegasos_lanes.pyx``, they hold one column for
several models; with one model only, this would take 3 to 12 times as long.
"""

from libc.stdint cimport int64_t

from optuna_treecv._kernels.rows cimport Dense
from optuna_treecv._kernels.rows cimport fetch_row
from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.vec8 cimport if_below
from optuna_treecv._kernels.vec8 cimport stepped
from optuna_treecv._kernels.vec8 cimport two_dots
from optuna_treecv._kernels.vec8 cimport two_steps
from optuna_treecv.engines.treecv.kernels.linear cimport output_of
from optuna_treecv.engines.treecv.kernels.pegasos_lanes cimport set_up_lanes
from optuna_treecv.engines.treecv.kernels.row_weight cimport given_weight

include "train_by_type.pxi"


# A state starts with this head, padded to whole cache lines. It is followed by v of all outputs (float64), if iterates
# are averaged, and by z of all outputs, in the type of the rows.
cdef struct Scalars:
    double scale
    double norm2                # |u|^2
    double harmonic             # H_{t-1} during step t, H_{T-1} after T steps


cdef struct Head:
    int64_t n_seen
    Scalars outputs[1]          # n_outputs of them


cdef inline Weights weights_after(
    const Learner *learner, const unsigned char *state, double steps, Py_ssize_t c
) noexcept nogil:
    """Return the weights of output c after T steps: w_{T+1} = u_T / (lambda T), or the mean of w_1..w_T."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Head *head = <const Head *> state
    cdef double per_step = 1 / (settings.alpha[0] * steps) if steps > 0 else 0
    cdef double a = per_step * (head.outputs[c].harmonic if settings.average else head.outputs[c].scale)
    return weights_of(learner, state, c, a, settings.average, -per_step)


cdef inlined train_row(
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    double steps,               # t - 1
    Head *head,                 # INOUT
    floating *z,                # INOUT, (n_outputs, width)
    double *v,                  # INOUT, (n_outputs, width)
    unsigned char *state,
    Log *log,
    bint weighted,
    floating *out,              # OUT, (n_outputs,), or NULL
) noexcept nogil:
    """Make step t for each output; unless ``out`` is NULL, write the outputs before this step to it."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Scalars *scalars = head.outputs
    cdef Py_ssize_t width = learner.width
    cdef int32_t y = (<const int32_t *> learner.y)[row]
    cdef bint average = settings.average
    cdef floating weight = weight_of(weighted, learner, row, state, z)
    cdef Py_ssize_t c
    cdef floating margin, added
    cdef double added_wide, check
    cdef Weights weights_before
    for c in range(learner.n_outputs):
        margin = dot_row(rows, row, z + c * width, z)
        if out != NULL:
            weights_before = weights_after(learner, state, steps, c)
            out[c] = output_of(&weights_before, rows, row, margin, z)
        added = coefficient(
            average,
            settings.project,
            settings.alpha[0],
            steps,
            <floating> (1 if y == settings.linear.classes[0] + c else -1),
            weight,
            &margin,
            &scalars[c].scale,
            &scalars[c].harmonic,
            &added_wide,
        )
        if added == 0:
            continue
        check = add_row(rows, row, added, z + c * width, z, log)
        if average:
            check += add_row(rows, row, added_wide, v + c * width, z, log)
        if check != 0:
            scalars[c].scale = scalars[c].harmonic = NAN
        if settings.project and leaves_ball(
            settings.alpha[0],
            steps,
            <double> margin,
            <double> weight,
            <double> norm2_row(rows, row, z),
            &scalars[c].scale,
            &scalars[c].norm2,
            &scalars[c].harmonic,
        ):
            if log != NULL:
                remember_all(log, state, learner.state_bytes)
            absorb(average, width, 1, &scalars[c].scale, &scalars[c].harmonic, z + c * width, v + c * width)


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
    cdef Head *head = <Head *> state
    cdef double *v = sums_of(learner, state)
    cdef double steps = <double> head.n_seen
    cdef Py_ssize_t i
    head.n_seen += span.stop - span.start
    for i in range(span.start, span.stop):
        train_row(learner, rows, visit(rows, span, i, z), steps, head, z, v, state, log, weighted, out)
        steps += 1
        if out != NULL:
            out += learner.n_outputs


cdef inline Span pop_first_row(Span *span) noexcept nogil:
    """Remove the first row from ``span``, and return this row as a span."""
    cdef Span first = Span(span.start, span.start + 1, span.order)
    span.start += 1
    return first


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
    """Train two states on dense rows without averaging or projection, with the same bits as ``train_row``.

    The dot product with a row cannot start before the previous row has been added to z. Training two states
    alternately hides the latency of these dependent operations. In addition, the addition of a row and the dot product
    with the next row share one pass over z. There is no branch: if the margin is not violated, 0 times the row is
    added. This would turn -0 into 0, but no element of z is -0.
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Dense *rows = &learner.dense
    cdef const floating *X = <const floating *> rows.values
    cdef const int32_t *y = <const int32_t *> learner.y
    cdef Py_ssize_t width = learner.width
    cdef Py_ssize_t ahead, n_rows, i, row, other, next_row, next_other, c, offset
    cdef bint is_far
    cdef Head *heads[2]
    cdef int32_t own_class
    cdef floating signs[2]
    cdef floating margins[MAX_LANES]
    cdef floating other_margins[MAX_LANES]
    cdef floating margin, other_margin, sign, other_sign, added, other_added, weight, other_weight
    cdef floating threshold, other_threshold
    cdef double steps, other_steps
    heads[0] = <Head *> first
    heads[1] = <Head *> second
    signs[0], signs[1] = -1, 1
    if heads[0].n_seen == 0 or heads[1].n_seen == 0:    # the first row of a model is always added
        learner.train(learner, pop_first_row(&span), first, NULL, NULL)
        learner.train(learner, pop_first_row(&other_span), second, NULL, NULL)
    n_rows = span.stop - span.start
    if n_rows == 0:
        return
    steps = <double> (heads[0].n_seen - 1)
    other_steps = <double> (heads[1].n_seen - 1)
    heads[0].n_seen += n_rows
    heads[1].n_seen += n_rows
    is_far = span.order != NULL
    ahead = rows.far if is_far else rows.ahead
    row, other = row_at(span, span.start), row_at(other_span, other_span.start)
    for c in range(learner.n_outputs):
        offset = c * width
        two_dots(
            z_first + offset,
            X + row * width,
            z_second + offset,
            X + other * width,
            width,
            &margins[c],
            &other_margins[c],
        )
    for i in range(n_rows):
        next_row, next_other = row, other               # after the last row, the next dot products are not used
        if i + 1 < n_rows:
            next_row, next_other = row_at(span, span.start + i + 1), row_at(other_span, other_span.start + i + 1)
        if i + ahead < n_rows and ahead != 0:
            fetch_row(rows, row_at(span, span.start + i + ahead), is_far, z_first)
            fetch_row(rows, row_at(other_span, other_span.start + i + ahead), is_far, z_first)
        steps += 1
        other_steps += 1
        threshold = <floating> (settings.alpha[0] * steps)
        other_threshold = <floating> (settings.alpha[0] * other_steps)
        weight = weight_of(weighted, learner, row, first, z_first)
        other_weight = weight_of(weighted, learner, other, second, z_first)
        for c in range(learner.n_outputs):
            offset = c * width
            own_class = settings.linear.classes[0] + c
            sign, other_sign = signs[y[row] == own_class], signs[y[other] == own_class]
            margin = margins[c] * sign
            other_margin = other_margins[c] * other_sign
            added = if_below(weight * sign, margin, threshold)
            other_added = if_below(other_weight * other_sign, other_margin, other_threshold)
            two_steps(
                added,
                X + row * width,
                z_first + offset,
                X + next_row * width,
                other_added,
                X + other * width,
                z_second + offset,
                X + next_other * width,
                width,
                &margins[c],
                &other_margins[c],
            )
            if margin != margin:                        # mark NaN, because comparisons with it are false
                heads[0].outputs[c].scale = heads[0].outputs[c].harmonic = NAN
            if other_margin != other_margin:
                heads[1].outputs[c].scale = heads[1].outputs[c].harmonic = NAN
        row, other = next_row, next_other


include "train_both_by_type.pxi"


cdef inlined test_two_on(
    const Learner *learner,
    const unsigned char *state,
    const floating *z,          # IN, z of all outputs in ``state``
    Py_ssize_t start,
    floating *out,              # OUT, (2, n_outputs)
    bint weighted,
) noexcept nogil:
    """Write the outputs for two dense rows, each of the model that is trained on the other row.

    This gives the same bits as ``train_row`` and ``weights_after`` without averaging or projection, but it does not
    build the two states.
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Head *head = <const Head *> state
    cdef Py_ssize_t width = learner.width
    cdef const floating *x = (<const floating *> learner.dense.values) + start * width
    cdef const int32_t *y = (<const int32_t *> learner.y) + start
    cdef double steps = <double> head.n_seen
    cdef double per_step = 1 / (settings.alpha[0] * (steps + 1))
    cdef floating margins[2]
    cdef floating sign, added
    cdef double factor
    cdef Py_ssize_t c, i
    for c in range(learner.n_outputs):
        two_dots(z, x, z, x + width, width, &margins[0], &margins[1])
        for i in range(2):                              # row i is added, and the other row is tested
            sign = 1 if y[i] == settings.linear.classes[0] + c else -1
            margins[i] *= sign
            added = if_below(
                given_weight(weighted, learner, start + i, z) * sign,
                margins[i],
                <floating> (settings.alpha[0] * steps),
            )
            factor = per_step * (head.outputs[c].scale if margins[i] == margins[i] else NAN)
            out[(1 - i) * learner.n_outputs + c] = stepped(added, x + i * width, z, factor, x + (1 - i) * width, width)
        z += width


cdef dispatched test_two(
    const Learner *learner, const unsigned char *state, Py_ssize_t start, void *out
) noexcept nogil:
    cdef const void *z = vectors_of(learner, state)
    cdef bint weighted = learner.weights != NULL
    if learner.itemsize == 8:
        test_two_on(learner, state, <const double *> z, start, <double *> out, weighted)
    else:
        test_two_on(learner, state, <const float *> z, start, <float *> out, weighted)


cdef Weights weights(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    return weights_after(learner, state, <double> (<const Head *> state).n_seen, c)


cdef class Pegasos(LinearKernel):
    """PEGASOS on prepared rows: a single model, or in lanes one model per value of lambda in ``alphas``."""

    cdef Settings settings

    def __init__(
        self, X, y, n_classes: int | None, alphas: list[float], bint average, bint project, bint in_lanes=False
    ):
        cdef Py_ssize_t lane
        self.bind_linear(X, y, n_classes, len(alphas), &self.settings.linear, in_lanes)
        for lane in range(MAX_LANES):
            self.settings.alpha[lane] = alphas[model_of(&self.settings.linear, lane)]
        self.settings.average = average
        self.settings.project = project
        self.lay_out(sizeof(int64_t), 3, average, 1)
        self.learner.rewrites = project
        if in_lanes:
            set_up_lanes(&self.learner, &self.settings.linear)
        else:
            set_up_alone(&self.learner, &self.settings.linear)
            if self.learner.sparse.indptr == NULL and not average and not project and self.n_outputs <= MAX_LANES:
                self.learner.train_both = train_both
                self.learner.test_two = test_two
