"""PEGASOS for many lambdas at once. Each lane gives the same bits as ``pegasos.pyx``. The mathematics
is in ``pegasos.pxd``.
"""

from cython cimport floating
from libc.math cimport NAN
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.string cimport memset

from optuna_treecv._kernels.lanes cimport MOST_LANES
from optuna_treecv._kernels.lanes cimport LanesKernel
from optuna_treecv._kernels.lanes cimport LaneSettings
from optuna_treecv._kernels.lanes cimport LaneWeights
from optuna_treecv._kernels.lanes cimport Tested
from optuna_treecv._kernels.lanes cimport add_lanes
from optuna_treecv._kernels.lanes cimport dot_lanes
from optuna_treecv._kernels.lanes cimport numbers_of
from optuna_treecv._kernels.lanes cimport sums_of
from optuna_treecv._kernels.lanes cimport test_lanes
from optuna_treecv._kernels.lanes cimport vectors_of
from optuna_treecv._kernels.pegasos cimport absorb
from optuna_treecv._kernels.pegasos cimport coefficient
from optuna_treecv._kernels.pegasos cimport leaves_ball
from optuna_treecv._kernels.row_weight cimport weight_of
from optuna_treecv._kernels.rows cimport Rows
from optuna_treecv._kernels.rows cimport norm2_row
from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.rows cimport visit
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.undo cimport remember_all
from optuna_treecv._kernels.vec8 cimport inlined


cdef struct Settings:
    LaneSettings lanes
    bint average
    bint project
    double alpha[MOST_LANES]    # lambda


# A state holds the rows seen; scale, |u|^2 and H of each lane; v when averaging; and z.
cdef struct Numbers:
    double *scale
    double *norm2
    double *harmonic


cdef inline Numbers numbers_in(const Learner *learner, const unsigned char *state) noexcept nogil:
    cdef Py_ssize_t n_lanes = (<const LaneSettings *> learner.settings).n_lanes
    cdef Numbers numbers
    numbers.scale = numbers_of(learner, state)
    numbers.norm2 = numbers.scale + n_lanes
    numbers.harmonic = numbers.norm2 + n_lanes
    return numbers


cdef inlined train_row(
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t row,
    Py_ssize_t next_row,        # the row after it
    double steps,               # t - 1
    const Numbers *numbers,
    floating *z,                # INOUT, (width, n_lanes)
    double *v,                  # INOUT, likewise
    unsigned char *state,
    Log *log,
    bint weighted,
    Tested *tested,             # INOUT
) noexcept nogil:
    """Make step t of every lane."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const int32_t *classes = &settings.lanes.classes[0]
    cdef Py_ssize_t n_lanes = settings.lanes.n_lanes
    cdef Py_ssize_t width = learner.width
    cdef int32_t y = (<const int32_t *> learner.y)[row]
    cdef bint average = settings.average
    cdef floating weight = weight_of(weighted, learner, row, state, z)
    cdef double *scale = numbers.scale
    cdef double *harmonic = numbers.harmonic
    cdef int made = 0
    cdef floating room[8 * MOST_LANES]
    cdef floating margins[MOST_LANES]
    cdef floating added[MOST_LANES]
    cdef double added_wide[MOST_LANES]
    cdef double check[MOST_LANES]
    cdef floating sign
    cdef double norm2
    cdef Py_ssize_t lane
    dot_lanes(rows, row, next_row, z, width, n_lanes, room, margins, z)
    if tested.out != NULL:
        test_lanes(learner, rows, row, next_row, state, margins, tested)
    if not average and not settings.project:        # each scale is 1, or NaN for good: no branch, no division
        for lane in range(n_lanes):
            sign = 1 if y == classes[lane] else -1
            margins[lane] *= sign
            check[lane] = 0
            scale[lane] = scale[lane] if margins[lane] == margins[lane] else NAN
            added[lane] = sign if margins[lane] < <floating> (settings.alpha[lane] * steps) or steps == 0 else 0
            added[lane] *= weight
            made |= added[lane] != 0
    else:
        for lane in range(n_lanes):
            check[lane] = added_wide[lane] = 0
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
            made |= added[lane] != 0
    if not made:
        return
    add_lanes(rows, row, added, z, width, n_lanes, check, z)
    if average:
        add_lanes(rows, row, added_wide, v, width, n_lanes, check, z)
    if learner.sparse.begins != NULL:
        for lane in range(n_lanes):
            if added[lane] != 0 and check[lane] != 0:
                scale[lane] = harmonic[lane] = NAN
    if settings.project:
        norm2 = <double> norm2_row(rows, row, z)
        for lane in range(n_lanes):
            if added[lane] != 0 and leaves_ball(
                settings.alpha[lane],
                steps,
                <double> margins[lane],
                <double> weight,
                norm2,
                &scale[lane],
                &numbers.norm2[lane],
                &harmonic[lane],
            ):
                if log != NULL:
                    remember_all(log, state, learner.state_bytes)
                absorb(average, width, n_lanes, &scale[lane], &harmonic[lane], z + lane, v + lane)


cdef inlined train_on(
    const Learner *learner,
    const Rows *rows,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, where it lies in the state
    Log *log,
    bint weighted,
    floating *out,              # OUT, (n_models, stop - start, n_outputs): outputs before each row acts; or NULL
) noexcept nogil:
    cdef int64_t *n_seen = <int64_t *> state
    cdef double *v = sums_of(learner, state)
    cdef Numbers numbers = numbers_in(learner, state)
    cdef double steps = <double> n_seen[0]
    cdef Py_ssize_t i, row, next_row
    cdef Tested tested
    tested.n_rows, tested.row, tested.out = stop - start, 0, out
    for i in range(start, stop):
        row = visit(rows, order, i, stop, z)
        next_row = row_at(order, min(i + 1, stop - 1))
        train_row(learner, rows, row, next_row, steps, &numbers, z, v, state, log, weighted, &tested)
        n_seen[0] += 1
        steps += 1


cdef enum:
    HAS_PLAIN_LOOPS = 1                             # ``train_by_type.pxi``


include "train_by_type.pxi"


cdef void weights(const Learner *learner, const unsigned char *state, LaneWeights *of) noexcept nogil:
    """Write w_{T+1} = u_T / (lambda T), or the mean of w_1..w_T."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Numbers numbers = numbers_in(learner, state)
    cdef int64_t n_seen = (<const int64_t *> state)[0]
    cdef double per_step
    cdef Py_ssize_t lane
    of.p = vectors_of(learner, state)
    of.q = sums_of(learner, state) if settings.average else NULL
    for lane in range(settings.lanes.n_lanes):
        per_step = 1 / (settings.alpha[lane] * <double> n_seen) if n_seen else 0
        of.a[lane] = per_step * (numbers.harmonic[lane] if settings.average else numbers.scale[lane])
        of.b[lane] = -per_step


cdef class PegasosLanes(LanesKernel):
    """PEGASOS over prepared rows, for each lambda in ``alphas``."""

    cdef Settings own

    def __init__(self, X, y, n_classes, alphas, bint average, bint project):
        cdef Py_ssize_t n_lanes, lane
        self.bind_lanes(
            X, y, n_classes, len(alphas), &self.own.lanes, train, weights
        )
        n_lanes = self.own.lanes.n_lanes
        for lane in range(n_lanes):
            self.own.alpha[lane] = alphas[min(lane, self.own.lanes.n_used - 1) // self.n_outputs]
        self.own.average = average
        self.own.project = project
        self.learner.rewrites = project
        self.set_lane_sizes(&self.own.lanes, sizeof(int64_t), 3, average, 1)

    def start(self, unsigned char [::1] state):
        """Write the state before the first row: w_1 = 0."""
        cdef Numbers numbers
        cdef Py_ssize_t lane
        self.check_state(state)
        numbers = numbers_in(&self.learner, &state[0])
        memset(&state[0], 0, self.state_bytes)
        for lane in range(self.own.lanes.n_lanes):
            numbers.scale[lane] = 1
