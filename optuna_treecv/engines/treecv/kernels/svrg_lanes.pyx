"""Streaming SVRG for many step sizes and penalties at once: a vector of the CPU holds one column for several models.
Each lane gives the same bits as ``svrg.pyx``, which is faster for one model. The mathematics is in ``svrg.pxd``. All
lanes are in the same phase.
"""

from libc.string cimport memcpy
from libc.string cimport memset

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
from optuna_treecv.engines.treecv.kernels.svrg cimport begin_batch
from optuna_treecv.engines.treecv.kernels.svrg cimport begin_inner
from optuna_treecv.engines.treecv.kernels.svrg cimport next_shift
from optuna_treecv.engines.treecv.kernels.svrg cimport prediction
from optuna_treecv.engines.treecv.kernels.svrg cimport scheduled
from optuna_treecv.engines.treecv.kernels.svrg cimport settle
from optuna_treecv.engines.treecv.kernels.svrg cimport shrink_z

include "train_lanes_by_type.pxi"


cdef inline inlined spread(const Settings *settings, double *check) noexcept nogil:
    """Spread NaN from one lane of a model to all lanes of this model."""
    cdef Py_ssize_t n_outputs = settings.linear.n_outputs
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t lane
    cdef double total
    if n_outputs == 1:
        return
    while first < settings.linear.n_used:
        total = 0
        for lane in range(first, first + n_outputs):
            total += check[lane]
        for lane in range(first, first + n_outputs):
            check[lane] = total
        first += n_outputs


cdef inlined settle_chosen(
    const Learner *learner,
    const int *chosen,          # IN, (n_chosen,), whole models
    Py_ssize_t n_chosen,
    double *scale,              # INOUT, (n_lanes,)
    double *shift,              # INOUT, (n_lanes,)
    floating *z,                # INOUT, (width, n_lanes)
    const double *sums,         # IN, likewise
) noexcept nogil:
    """Replace z by w in the chosen lanes."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n_lanes = settings.linear.n_lanes
    cdef double check[MOST_LANES]
    cdef Py_ssize_t i, lane
    for lane in range(n_lanes):
        check[lane] = 0
    settle(learner.width, n_lanes, chosen, n_chosen, scale, shift, z, sums, check)
    spread(settings, check)
    for i in range(n_chosen):
        lane = chosen[i]
        scale[lane] = 1 + check[lane]
        shift[lane] = 0


cdef inlined next_phase(
    const Learner *learner,
    Common *common,             # INOUT
    double *scale,              # INOUT, (n_lanes,)
    double *shift,              # INOUT, (n_lanes,)
    floating *z,                # INOUT, (width, n_lanes)
    floating *anchors,          # INOUT, likewise
    double *sums,               # INOUT, likewise
    unsigned char *state,
    Log *log,
) noexcept nogil:
    """Go from a batch to the inner phase, or from there to the next stage's batch."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n_numbers = settings.linear.n_lanes * learner.width
    cdef int all_lanes[MOST_LANES]
    cdef Py_ssize_t lane
    if common.stage.in_batch:
        begin_inner(&settings.schedule, &common.stage)
        return
    if log != NULL:
        remember_all(log, state, learner.state_bytes)
    for lane in range(settings.linear.n_lanes):
        all_lanes[lane] = lane
    settle_chosen(learner, all_lanes, settings.linear.n_lanes, scale, shift, z, sums)
    memcpy(anchors, z, n_numbers * sizeof(floating))
    memset(sums, 0, n_numbers * sizeof(double))
    begin_batch(&settings.schedule, &common.stage)


cdef inlined batch_row(
    const Learner *learner,
    Py_ssize_t row,
    Py_ssize_t next_row,        # the row after it
    double row_weight,          # for the automatic step: `automatic_weight`
    double weight,
    double *shift,              # INOUT, (n_lanes,)
    const floating *anchors,    # IN, (width, n_lanes)
    double *sums,               # INOUT, likewise
    const unsigned char *state,
    Py_ssize_t n_tested,
    floating *tested,           # OUT, at a row of (n_models, n_tested, n_outputs), or NULL
) noexcept nogil:
    """Compute G += weight slope(w~.x, y) x in every lane."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n_lanes = settings.linear.n_lanes
    cdef floating dots[MOST_LANES]
    cdef double predictions[MOST_LANES]
    cdef double g[MOST_LANES]
    cdef double check[MOST_LANES]
    cdef Py_ssize_t lane
    dot_lanes(learner, row, next_row, anchors, dots, anchors)
    if tested != NULL:                              # z is the anchor
        test_lanes(learner, row, next_row, state, dots, n_tested, tested)
    for lane in range(n_lanes):
        check[lane] = 0
        predictions[lane] = <double> dots[lane]
    lane_slopes(learner, &settings.loss, row, predictions, g)
    if settings.any_auto or has_weights(learner):
        for lane in range(n_lanes):
            g[lane] *= row_weight if settings.step_size[lane] == 0 else weight
    add_lanes(learner, row, g, sums, check, anchors)
    spread(settings, check)
    for lane in range(n_lanes):
        shift[lane] += check[lane]                  # 0; NaN shows when the batch acts


cdef inlined inner_step(
    const Learner *learner,
    Py_ssize_t row,
    Py_ssize_t next_row,        # the row after it
    double S,                   # for the automatic step
    double row_weight,          # likewise: `automatic_weight`
    double weight,
    const Common *common,
    double *scale,              # INOUT, (n_lanes,)
    double *shift,              # INOUT, (n_lanes,)
    floating *z,                # INOUT, (width, n_lanes)
    const floating *anchors,    # IN, likewise
    const double *sums,         # IN, likewise
    unsigned char *state,
    Log *log,
    Py_ssize_t n_tested,
    floating *tested,           # OUT, at a row of (n_models, n_tested, n_outputs), or NULL
) noexcept nogil:
    """Compute w -= rate (weight (slope(w.x, y) - slope(w~.x, y)) x + penalty w + G / k) in every lane."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const Loss *loss = &settings.loss
    cdef Py_ssize_t n_lanes = settings.linear.n_lanes
    cdef Py_ssize_t n_extreme = 0
    cdef int is_extreme[MOST_LANES]
    cdef floating dots[MOST_LANES]
    cdef floating anchor_dots[MOST_LANES]
    cdef floating added[MOST_LANES]
    cdef double sum_dots[MOST_LANES]
    cdef double predictions[MOST_LANES]
    cdef double g[MOST_LANES]
    cdef double anchor_g[MOST_LANES]
    cdef double check[MOST_LANES]
    cdef double rate[MOST_LANES]
    cdef double rate_of_row[MOST_LANES]
    cdef double shrink[MOST_LANES]
    cdef double next_scale[MOST_LANES]
    cdef Step by
    cdef Py_ssize_t lane
    for lane in range(n_lanes):
        by = step_of(loss, settings.step_size[lane], S, row_weight, settings.alpha[lane], weight)
        rate[lane] = scheduled(&settings.schedule, &common.stage, by.rate)
        rate_of_row[lane] = rate[lane] * by.weight
        shrink[lane] = 1 - rate[lane] * by.penalty
        next_scale[lane] = scale[lane] * shrink[lane]
        if extreme(next_scale[lane]):
            next_scale[lane] = 1
            is_extreme[n_extreme] = lane
            n_extreme += 1
        check[lane] = 0
    if n_extreme:
        if log != NULL:
            remember_all(log, state, learner.state_bytes)
        settle_chosen(learner, is_extreme, n_extreme, scale, shift, z, sums)
    dot_lanes(learner, row, next_row, z, dots, z)
    if tested != NULL:
        test_lanes(learner, row, next_row, state, dots, n_tested, tested)
    dot_lanes(learner, row, next_row, anchors, anchor_dots, z)
    dot_lanes(learner, row, next_row, sums, sum_dots, z)
    for lane in range(n_lanes):
        predictions[lane] = prediction(scale[lane], <double> dots[lane], shift[lane], sum_dots[lane])
    lane_slopes(learner, loss, row, predictions, g)
    for lane in range(n_lanes):
        predictions[lane] = <double> anchor_dots[lane]
    lane_slopes(learner, loss, row, predictions, anchor_g)
    for lane in range(n_lanes):
        added[lane] = coefficient(rate_of_row[lane], g[lane] - anchor_g[lane], next_scale[lane], z)
    if n_extreme:
        shrink_z(learner.width, n_lanes, is_extreme, n_extreme, shrink, z, check)
    add_lanes(learner, row, added, z, check, z)
    spread(settings, check)
    for lane in range(n_lanes):
        scale[lane] = next_scale[lane] + check[lane]
        shift[lane] = next_shift(shift[lane], shrink[lane], rate[lane], common.stage.n_batch)


cdef inlined train_row(
    const Learner *learner,
    Py_ssize_t row,
    Py_ssize_t next_row,        # the row after it
    bint has_dots,
    floating *dots,             # not used: a row has products with three vectors
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, where it lies in the state, (width, n_lanes)
    Log *log,
    Py_ssize_t n_tested,
    floating *tested,           # OUT, at a row of (n_models, n_tested, n_outputs), or NULL
) noexcept nogil:
    """Take a row into the batch, or make the inner step of every lane."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n_lanes = settings.linear.n_lanes
    cdef Common *common = <Common *> state
    cdef double *scale = numbers_of(learner, state)
    cdef double *shift = scale + n_lanes
    cdef double *sums = sums_of(learner, state)
    cdef floating *anchors = z + n_lanes * learner.width
    cdef double S = 0
    cdef double row_weight = 0
    cdef double norm2, weight
    if common.stage.left == 0:
        next_phase(learner, common, scale, shift, z, anchors, sums, state, log)
    common.stage.n_seen += 1
    common.stage.left -= 1
    weight = <double> weight_of(has_weights(learner), learner, row, state, z)
    if settings.any_auto:
        norm2 = norm2_of(learner, row, z)
        typical_norm2(&settings.loss, &common.norms, norm2, weight, False, &S)
        row_weight = automatic_weight(S, norm2, weight)
    if common.stage.in_batch:
        batch_row(learner, row, next_row, row_weight, weight, shift, anchors, sums, state, n_tested, tested)
    else:
        inner_step(
            learner,
            row,
            next_row,
            S,
            row_weight,
            weight,
            common,
            scale,
            shift,
            z,
            anchors,
            sums,
            state,
            log,
            n_tested,
            tested,
        )


cdef void weights(const Learner *learner, const unsigned char *state, LaneWeights *of) noexcept nogil:
    """Write the iterates in an inner phase, the anchors in a batch."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const double *scale = numbers_of(learner, state)
    cdef Py_ssize_t n_lanes = settings.linear.n_lanes
    cdef Py_ssize_t lane
    of.p = vectors_of(learner, state)
    of.q = NULL if (<const Common *> state).stage.in_batch else sums_of(learner, state)
    for lane in range(n_lanes):
        of.a[lane] = scale[lane]
        of.b[lane] = scale[n_lanes + lane]
