"""PEGASOS for many values of lambda in lanes; the mathematics is in ``pegasos.pxd``.

The vector registers of the CPU hold one column for several models. Each lane gives the same bits as ``pegasos.pyx``,
which is faster for a single model.
"""

from libc.math cimport NAN
from libc.stdint cimport int32_t

from optuna_treecv.engines.treecv.kernels.pegasos cimport Settings
from optuna_treecv.engines.treecv.kernels.pegasos cimport absorb
from optuna_treecv.engines.treecv.kernels.pegasos cimport coefficient
from optuna_treecv.engines.treecv.kernels.pegasos cimport leaves_ball

include "train_lanes_by_type.pxi"


# A state holds, in this order, the number of rows so far; scale, |u|^2 and H of all lanes; v, if iterates are
# averaged; and z.

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
    """Make step t in each lane; unless ``out`` is NULL, write the outputs before this step to it."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const int32_t *classes = &settings.linear.classes[0]
    cdef Py_ssize_t n_lanes = settings.linear.n_lanes
    cdef Py_ssize_t width = learner.width
    cdef int32_t y = (<const int32_t *> learner.y)[row.index]
    cdef bint average = settings.average
    cdef floating weight = weight_of(has_weights(learner), learner, row.index, state, z)
    cdef int64_t *n_seen = <int64_t *> state
    cdef double steps = <double> n_seen[0]          # t - 1
    cdef double *v = sums_of(learner, state)
    cdef double *scale = scalars_of(learner, state)
    cdef double *norm2 = scale + n_lanes
    cdef double *harmonic = norm2 + n_lanes
    cdef int any_added = 0
    cdef bint is_checked
    cdef floating margins[MAX_LANES]
    cdef bint absorbed = False
    cdef floating added[MAX_LANES]
    cdef double added_wide[MAX_LANES]
    cdef double check[MAX_LANES]
    cdef bint is_one_vs_rest = settings.linear.n_outputs > 1
    cdef floating sign, margin
    cdef double norm2_of_row
    cdef Py_ssize_t lane
    if not has_dots:
        dot_lanes(learner, row, next_row, z, dots, z)
    if out != NULL:
        test_lanes(learner, row, next_row, state, dots, out_rows, out)
    n_seen[0] += 1
    if not average and not settings.project:        # scales stay 1 or NaN: no branches, no divisions
        sign = 1 if y == classes[0] else -1
        for lane in range(n_lanes):
            if is_one_vs_rest:
                sign = 1 if y == classes[lane] else -1
            margin = dots[lane] * sign
            check[lane] = 0
            scale[lane] = scale[lane] if margin == margin else NAN
            added[lane] = sign if margin < <floating> (settings.alpha[lane] * steps) or steps == 0 else 0
            any_added |= added[lane] != 0
        if weight != 1:                             # in the loop above, this would add 2 % to the instructions per row
            for lane in range(n_lanes):
                added[lane] *= weight
    else:
        for lane in range(n_lanes):
            check[lane] = added_wide[lane] = 0
            margins[lane] = dots[lane]
            added[lane] = coefficient(
                average,
                settings.project,
                settings.alpha[lane],
                steps,
                <floating> (1 if y == classes[lane] else -1),
                weight,
                &margins[lane],
                &scale[lane],
                &harmonic[lane],
                &added_wide[lane],
            )
            any_added |= added[lane] != 0
    is_checked = step_lanes(learner, row, next_row, any_added, added, z, check, dots)
    if not any_added:
        return
    if average:
        is_checked |= add_lanes(learner, row, added_wide, v, check, z)
    if is_checked:
        for lane in range(n_lanes):
            if added[lane] != 0 and check[lane] != 0:
                scale[lane] = harmonic[lane] = NAN
    if settings.project:
        norm2_of_row = norm2_of(learner, row.index, z)
        for lane in range(n_lanes):
            if added[lane] != 0 and leaves_ball(
                settings.alpha[lane],
                steps,
                <double> margins[lane],
                <double> weight,
                norm2_of_row,
                &scale[lane],
                &norm2[lane],
                &harmonic[lane],
            ):
                if log != NULL:
                    remember_all(log, state, learner.state_bytes)
                absorb(average, width, n_lanes, &scale[lane], &harmonic[lane], z + lane, v + lane)
                absorbed = True
    if absorbed and learner.sparse.indptr == NULL:
        dot_lanes(learner, next_row, next_row, z, dots, z)


cdef void weights(const Learner *learner, const unsigned char *state, LaneWeights *w) noexcept nogil:
    """Write the weights of all lanes after T steps: w_{T+1} = u_T / (lambda T), or the mean of w_1..w_T."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t n_lanes = settings.linear.n_lanes
    cdef const double *scale = scalars_of(learner, state)
    cdef const double *harmonic = scale + 2 * n_lanes
    cdef int64_t n_seen = (<const int64_t *> state)[0]
    cdef double per_step
    cdef Py_ssize_t lane
    w.p = vectors_of(learner, state)
    w.q = sums_of(learner, state) if settings.average else NULL
    for lane in range(n_lanes):
        per_step = 1 / (settings.alpha[lane] * <double> n_seen) if n_seen else 0
        w.a[lane] = per_step * (harmonic[lane] if settings.average else scale[lane])
        w.b[lane] = -per_step
