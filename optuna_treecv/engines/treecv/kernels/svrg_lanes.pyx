"""Streaming SVRG for many step sizes and penalties in lanes; the mathematics is in ``svrg.pxd``.

The vector registers of the CPU hold one column for several models. Each lane gives the same bits as ``svrg.pyx``,
which is faster for a single model. All lanes are always in the same phase.
"""

from optuna_treecv.engines.treecv.kernels.linear cimport extreme
from optuna_treecv.engines.treecv.kernels.linear cimport lane_slopes
from optuna_treecv.engines.treecv.kernels.losses cimport Loss
from optuna_treecv.engines.treecv.kernels.sgd cimport coefficient
from optuna_treecv.engines.treecv.kernels.steps cimport Step
from optuna_treecv.engines.treecv.kernels.steps cimport automatic_weight
from optuna_treecv.engines.treecv.kernels.steps cimport step_of
from optuna_treecv.engines.treecv.kernels.steps cimport typical_norm2
from optuna_treecv.engines.treecv.kernels.svrg cimport Common
from optuna_treecv.engines.treecv.kernels.svrg cimport Settings
from optuna_treecv.engines.treecv.kernels.svrg cimport next_phase
from optuna_treecv.engines.treecv.kernels.svrg cimport next_shift
from optuna_treecv.engines.treecv.kernels.svrg cimport prediction
from optuna_treecv.engines.treecv.kernels.svrg cimport stage_step_size
from optuna_treecv.engines.treecv.kernels.svrg cimport settle_chosen
from optuna_treecv.engines.treecv.kernels.svrg cimport shrink_z
from optuna_treecv.engines.treecv.kernels.svrg cimport propagate_nan

include "train_lanes_by_type.pxi"


cdef inlined train_row(
    const Learner *learner,
    const LaneRow *row,
    const LaneRow *next_row,    # the row of the next step
    bint has_dots,              # not used, because the start of a phase may change z before this row
    floating *dots,             # OUT, (n_lanes,), a workspace
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, (width, n_lanes), z in ``state``
    Log *log,
    Py_ssize_t out_rows,        # rows per model in the array of outputs
    floating *out,              # OUT, the place of the row in the array (n_models, out_rows, n_outputs), or NULL
) noexcept nogil:
    """Train all lanes on a row; unless ``out`` is NULL, write the outputs before training on it.

    In a batch, in which z is the anchor w~, this is G += weight slope(w~.x, y) x. In an inner phase, it is
    w -= rate (weight (slope(w.x, y) - slope(w~.x, y)) x + penalty w + G / k).
    """
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Loss *loss = &settings.loss
    cdef Py_ssize_t n_lanes = settings.linear.n_lanes
    cdef Common *common = <Common *> state
    cdef double *scale = scalars_of(learner, state)
    cdef double *shift = scale + n_lanes
    cdef double *sums = sums_of(learner, state)
    cdef const floating *anchors = z + n_lanes * learner.width
    cdef Py_ssize_t n_extreme = 0
    cdef int extreme_lanes[MAX_LANES]
    cdef floating anchor_dots[MAX_LANES]
    cdef floating added[MAX_LANES]
    cdef double sum_dots[MAX_LANES]
    cdef double predictions[MAX_LANES]
    cdef double g[MAX_LANES]
    cdef double anchor_g[MAX_LANES]
    cdef double check[MAX_LANES]
    cdef double rate[MAX_LANES]
    cdef double rate_of_row[MAX_LANES]
    cdef double shrink[MAX_LANES]
    cdef double next_scale[MAX_LANES]
    cdef double S = 0
    cdef double row_weight = 0
    cdef double norm2, weight
    cdef Step step
    cdef Py_ssize_t lane
    if common.stage.left == 0:
        next_phase(learner, state, z, log)
    common.stage.n_seen += 1
    common.stage.left -= 1
    weight = <double> weight_of(has_weights(learner), learner, row.index, state, z)
    if settings.any_auto:
        norm2 = norm2_of(learner, row.index, z)
        typical_norm2(loss, &common.norms, norm2, weight, False, &S)
        row_weight = automatic_weight(S, norm2, weight)
    for lane in range(n_lanes):
        check[lane] = 0
    if not common.stage.in_batch:
        for lane in range(n_lanes):
            step = step_of(loss, settings.step_size[lane], S, row_weight, settings.alpha[lane], weight)
            rate[lane] = stage_step_size(&settings.schedule, &common.stage, step.rate)
            rate_of_row[lane] = rate[lane] * step.weight
            shrink[lane] = 1 - rate[lane] * step.penalty
            next_scale[lane] = scale[lane] * shrink[lane]
            if extreme(next_scale[lane]):
                next_scale[lane] = 1
                extreme_lanes[n_extreme] = lane
                n_extreme += 1
        if n_extreme:
            if log != NULL:
                remember_all(log, state, learner.state_bytes)
            settle_chosen(learner, extreme_lanes, n_extreme, state, z)
    dot_lanes(learner, row, next_row, z, dots, z)
    if out != NULL:
        test_lanes(learner, row, next_row, state, dots, out_rows, out)
    if common.stage.in_batch:
        for lane in range(n_lanes):
            predictions[lane] = <double> dots[lane]
        lane_slopes(learner, loss, row.index, predictions, g)
        if settings.any_auto or has_weights(learner):
            for lane in range(n_lanes):
                g[lane] *= row_weight if settings.step_size[lane] == 0 else weight
        add_lanes(learner, row, g, sums, check, z)
        propagate_nan(&settings.linear, check)
        for lane in range(n_lanes):
            shift[lane] += check[lane]              # adds 0; NaN shows in the inner phase
        return
    dot_lanes(learner, row, next_row, anchors, anchor_dots, z)
    dot_lanes(learner, row, next_row, sums, sum_dots, z)
    for lane in range(n_lanes):
        predictions[lane] = prediction(scale[lane], <double> dots[lane], shift[lane], sum_dots[lane])
    lane_slopes(learner, loss, row.index, predictions, g)
    for lane in range(n_lanes):
        predictions[lane] = <double> anchor_dots[lane]
    lane_slopes(learner, loss, row.index, predictions, anchor_g)
    for lane in range(n_lanes):
        added[lane] = coefficient(rate_of_row[lane], g[lane] - anchor_g[lane], next_scale[lane], z)
    if n_extreme:
        shrink_z(learner.width, n_lanes, extreme_lanes, n_extreme, shrink, z, check)
    add_lanes(learner, row, added, z, check, z)
    propagate_nan(&settings.linear, check)
    for lane in range(n_lanes):
        scale[lane] = next_scale[lane] + check[lane]
        shift[lane] = next_shift(shift[lane], shrink[lane], rate[lane], common.stage.n_batch)


cdef void weights(const Learner *learner, const unsigned char *state, LaneWeights *w) noexcept nogil:
    """Write the weights of all lanes: the current iterates in an inner phase, or the anchors in a batch."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const double *scale = scalars_of(learner, state)
    cdef Py_ssize_t n_lanes = settings.linear.n_lanes
    cdef Py_ssize_t lane
    w.p = vectors_of(learner, state)
    w.q = NULL if (<const Common *> state).stage.in_batch else sums_of(learner, state)
    for lane in range(n_lanes):
        w.a[lane] = scale[lane]
        w.b[lane] = scale[n_lanes + lane]
