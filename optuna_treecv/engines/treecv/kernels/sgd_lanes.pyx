"""SGD for many step sizes, penalties and radii in lanes, with one row per step; the mathematics is in ``sgd.pxd``.

The vector registers of the CPU hold one column for several models. Each lane gives the same bits as ``sgd.pyx``, which
is faster for a single model and also supports mini-batches.
"""

from libc.math cimport NAN
from libc.math cimport isfinite

from optuna_treecv.engines.treecv.kernels.linear cimport extreme
from optuna_treecv.engines.treecv.kernels.linear cimport lane_slopes
from optuna_treecv.engines.treecv.kernels.sgd cimport Common
from optuna_treecv.engines.treecv.kernels.sgd cimport Settings
from optuna_treecv.engines.treecv.kernels.sgd cimport absorb
from optuna_treecv.engines.treecv.kernels.sgd cimport coefficient
from optuna_treecv.engines.treecv.kernels.sgd cimport decay
from optuna_treecv.engines.treecv.kernels.sgd cimport project
from optuna_treecv.engines.treecv.kernels.sgd cimport step_at
from optuna_treecv.engines.treecv.kernels.sgd cimport weight_in_average
from optuna_treecv.engines.treecv.kernels.sgd cimport norm2_after_step
from optuna_treecv.engines.treecv.kernels.steps cimport Step
from optuna_treecv.engines.treecv.kernels.steps cimport automatic_weight
from optuna_treecv.engines.treecv.kernels.steps cimport step_of
from optuna_treecv.engines.treecv.kernels.steps cimport typical_norm2

include "train_lanes_by_type.pxi"


# A state holds, in this order, ``Common``; scale, |z|^2 and A of all lanes; v, if iterates are averaged; and z.

cdef inlined train_row(
    const Learner *learner,
    const LaneRow *row,
    const LaneRow *next_row,    # the row of the next step
    bint has_dots,              # whether ``dots`` holds the dot products z.x with this row
    floating *dots,             # INOUT, (n_lanes,); OUT: z.x for the next row, if rows are dense
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, (width, n_lanes), z in ``state``
    Log *log,
    Py_ssize_t out_rows,        # rows per model in the array of outputs
    floating *out,              # OUT, the place of the row in the array (n_models, out_rows, n_outputs), or NULL
) noexcept nogil:
    """Make the step for a row in each lane; unless ``out`` is NULL, write the outputs before this step to it."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n_lanes = settings.linear.n_lanes
    cdef Common *common = <Common *> state
    cdef double *v = sums_of(learner, state)
    cdef double *scale = scalars_of(learner, state)
    cdef double *norm2 = scale + n_lanes
    cdef double *averaged = norm2 + n_lanes
    cdef int any_added = 0
    cdef Py_ssize_t n_extreme = 0
    cdef int extreme_lanes[MAX_LANES]
    cdef floating added[MAX_LANES]
    cdef double margins[MAX_LANES]
    cdef double predictions[MAX_LANES]
    cdef double added_wide[MAX_LANES]
    cdef double check[MAX_LANES]
    cdef double g[MAX_LANES]
    cdef double eta[MAX_LANES]
    cdef double shrink[MAX_LANES]
    cdef double weight = <double> weight_of(has_weights(learner), learner, row.index, state, z)
    cdef double decay_of_t, S, row_weight
    cdef double norm2_of_row = 0
    cdef int64_t averages = weight_in_average(settings, common.n_seen, 1)
    cdef Step step
    cdef Py_ssize_t lane
    if not has_dots:
        dot_lanes(learner, row, next_row, z, dots, z)
    if out != NULL:
        test_lanes(learner, row, next_row, state, dots, out_rows, out)
    if averages:
        common.n_averaged += averages
        for lane in range(n_lanes):
            averaged[lane] += <double> averages * scale[lane]
    common.n_seen += 1
    decay_of_t = decay(settings.power, common.n_seen) if settings.power != 0 else 1
    for lane in range(n_lanes):
        margins[lane] = <double> dots[lane]
        predictions[lane] = scale[lane] * margins[lane]
    lane_slopes(learner, &settings.loss, row.index, predictions, g)
    for lane in range(n_lanes):
        eta[lane] = step_at(settings.step_size[lane], settings.power, decay_of_t)
        shrink[lane] = 1 - eta[lane] * settings.alpha[lane]
        eta[lane] *= weight
    if settings.any_auto:
        norm2_of_row = norm2_of(learner, row.index, z)
        typical_norm2(&settings.loss, &common.norms, norm2_of_row, weight, settings.average, &S)
        row_weight = automatic_weight(S, norm2_of_row, weight)
        for lane in range(n_lanes):
            if settings.step_size[lane] == 0:
                step = step_of(&settings.loss, 0, S, row_weight, settings.alpha[lane], weight)
                step.rate = step_at(step.rate, settings.power, decay_of_t)
                eta[lane] = step.rate * step.weight
                shrink[lane] = 1 - step.rate * step.penalty
    for lane in range(n_lanes):
        scale[lane] *= shrink[lane]
        if extreme(scale[lane]):
            margins[lane] *= scale[lane]            # z.x after absorb
            extreme_lanes[n_extreme] = lane
            n_extreme += 1
    if n_extreme:
        if log != NULL:
            remember_all(log, state, learner.state_bytes)
        absorb(settings.average, learner.width, n_lanes, extreme_lanes, n_extreme, scale, norm2, averaged, check, z, v)
    for lane in range(n_lanes):
        check[lane] = added[lane] = added_wide[lane] = 0
        if g[lane] != 0:
            any_added = 1
            added[lane] = coefficient(eta[lane], g[lane], scale[lane], z)
            if settings.average and averaged[lane] != 0:
                added_wide[lane] = <double> added[lane] * averaged[lane]
    step_lanes(learner, row, next_row, any_added, added, z, check, dots)
    if any_added and settings.average:
        add_lanes(learner, row, added_wide, v, check, z)
    for lane in range(n_lanes):
        if g[lane] != 0 and check[lane] != 0:
            scale[lane] = averaged[lane] = NAN
        if not isfinite(settings.radius[lane]):
            continue
        if g[lane] != 0:
            if norm2_of_row == 0:
                norm2_of_row = norm2_of(learner, row.index, z)
            norm2[lane] = norm2_after_step(norm2[lane], <double> added[lane], margins[lane], norm2_of_row)
        project(settings.radius[lane], norm2[lane], &scale[lane])


cdef void weights(const Learner *learner, const unsigned char *state, LaneWeights *w) noexcept nogil:
    """Write the weights of all lanes: the averages, or the last iterates if no iterate has been averaged yet."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n_lanes = settings.linear.n_lanes
    cdef const double *scale = scalars_of(learner, state)
    cdef const double *averaged = scale + 2 * n_lanes
    cdef int64_t n_averaged = (<const Common *> state).n_averaged
    cdef double per_step = 1 / <double> n_averaged if n_averaged > 0 else 1
    cdef Py_ssize_t lane
    w.p = vectors_of(learner, state)
    w.q = sums_of(learner, state) if n_averaged > 0 else NULL
    for lane in range(n_lanes):
        w.a[lane] = per_step * (averaged[lane] if n_averaged > 0 else scale[lane])
        w.b[lane] = -per_step
