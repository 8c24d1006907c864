"""Lanes train many models on the same rows at once. Each model gets the same bits as if trained alone.

A lane is one output of one model. Weights lie lane-minor, (width, n_lanes), so that the weights of all
lanes for one column lie together. Lanes fill whole vectors; surplus
lanes repeat the settings of the last model.

The training of the lanes is in ``pegasos_lanes.pyx``, ``sgd_lanes.pyx`` and ``svrg_lanes.pyx``, and
the loops over one row are in ``lane_loops.c``.

A state begins with what all lanes share, which depends on the kernel, and with some float64 numbers
per lane, padded to a cache line. Some kernels then have a float64 vector of sums per lane. At the end
are one or more vectors per lane, of the same type as the rows.
"""

from cython cimport floating
from libc.stdint cimport int32_t

from optuna_treecv._kernels.rows cimport Sparse
from optuna_treecv._kernels.rows cimport n_nonzeros
from optuna_treecv._kernels.rows cimport norm2_row
from optuna_treecv._kernels.vec8 cimport Weight
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv.engines.treecv.kernels.kernel cimport Kernel
from optuna_treecv.engines.treecv.kernels.losses cimport Loss
from optuna_treecv.engines.treecv.kernels.tree cimport Learner
from optuna_treecv.engines.treecv.kernels.tree cimport train_rows


# Each chooses its function in C by the types of the row x and of the vectors w. Sums of float32 rows are float64.
cdef extern from "lane_loops.h" nogil:
    const Py_ssize_t LANE_BYTES
    const Py_ssize_t NONZEROS_AHEAD
    void lane_dots(const void *x, const void *w, Py_ssize_t width, Py_ssize_t n_lanes, void *out) noexcept
    void lane_two_dots(const void *x, const void *w, Py_ssize_t width, Py_ssize_t n_lanes, void *out) noexcept
    void lane_add(const void *x, const void *c, void *w, Py_ssize_t width, Py_ssize_t n_lanes) noexcept
    void lane_steps(
        const void *x, const void *c, void *w, const void *next, Py_ssize_t width, Py_ssize_t n_lanes, void *out
    ) noexcept
    void lane_dots_sparse(
        const void *x,
        const int32_t *columns,
        Py_ssize_t n,
        const int32_t *next_columns,
        Py_ssize_t n_next,
        const void *w,
        Py_ssize_t n_lanes,
        void *room,
        void *out,
    ) noexcept
    void lane_add_sparse(
        const void *x,
        const int32_t *columns,
        Py_ssize_t n,
        const void *c,
        void *w,
        Py_ssize_t n_lanes,
        const Py_ssize_t *blocks,
        Py_ssize_t n_blocks,
        double *check,
    ) noexcept


cdef enum:
    MOST_LANES = 128
    COLUMNS_AHEAD = 8           # columns are prefetched this many ahead of the one that is saved
    OUTPUTS_AHEAD = 16          # the places of outputs of tested rows are prefetched this many rows ahead


cdef inline inlined dot_lanes(
    const Learner *learner,
    Py_ssize_t row,
    Py_ssize_t next_row,        # its weights are prefetched
    const Weight *w,            # IN, (width, n_lanes): of the type of the rows, or sums
    Py_ssize_t n_lanes,
    Weight *room,               # OUT, (8, n_lanes)
    Weight *out,                # OUT, (n_lanes,)
    const floating *of_type,
) noexcept nogil:
    """Write x . w of every lane, in the summation order of ``vec8.h``."""
    cdef const Sparse *rows = &learner.sparse
    cdef const floating *x
    if floating is float or Weight is double:
        if rows.begins == NULL:
            x = (<const floating *> learner.dense.values) + row * learner.width
            lane_dots(x, w, learner.width, n_lanes, out)
        else:
            x = (<const floating *> rows.values) + rows.begins[row]
            lane_dots_sparse(
                x,
                rows.columns + rows.begins[row],
                n_nonzeros(rows, row),
                rows.columns + rows.begins[next_row],
                n_nonzeros(rows, next_row),
                w,
                n_lanes,
                room,
                out,
            )


cdef inline inlined add_lanes(
    const Learner *learner,
    Py_ssize_t row,
    const Weight *c,            # IN, (n_lanes,), 0 where there is nothing to add
    Weight *w,                  # INOUT, (width, n_lanes): of the type of the rows, or sums
    Py_ssize_t n_lanes,
    double *check,              # INOUT, (n_lanes,): becomes NaN if rows are sparse and c or w is not finite
    const floating *of_type,
) noexcept nogil:
    """Compute w += c x in every lane."""
    cdef const Sparse *rows = &learner.sparse
    cdef const floating *x
    cdef Py_ssize_t a_block = LANE_BYTES // sizeof(Weight)
    cdef Py_ssize_t blocks[MOST_LANES]
    cdef Py_ssize_t n_blocks = 0
    cdef Py_ssize_t b, lane
    cdef bint is_zero
    if floating is float or Weight is double:
        if rows.begins == NULL:
            x = (<const floating *> learner.dense.values) + row * learner.width
            lane_add(x, c, w, learner.width, n_lanes)
            return
        for b in range(n_lanes // a_block):             # weights are far apart: skip the blocks where c is 0
            is_zero = True
            for lane in range(b * a_block, (b + 1) * a_block):
                is_zero = is_zero and c[lane] == 0
                check[lane] += 0 * <double> c[lane]     # needed if the row is empty
            if not is_zero:
                blocks[n_blocks] = b * a_block
                n_blocks += 1
        x = (<const floating *> rows.values) + rows.begins[row]
        lane_add_sparse(
            x, rows.columns + rows.begins[row], n_nonzeros(rows, row), c, w, n_lanes, blocks, n_blocks, check
        )


cdef inline inlined step_lanes(
    const Learner *learner,
    Py_ssize_t row,
    Py_ssize_t next_row,
    bint made,                  # whether any c is not 0
    const floating *c,          # IN, (n_lanes,)
    floating *w,                # INOUT, (width, n_lanes)
    Py_ssize_t n_lanes,
    double *check,              # INOUT, (n_lanes,): as in ``add_lanes``
    floating *dots,             # OUT, (n_lanes,): w . x of the next row, if rows are dense
) noexcept nogil:
    """Compute w += c x in every lane, and then the products with the next row."""
    cdef const floating *X = <const floating *> learner.dense.values
    if learner.sparse.begins != NULL:
        if made:
            add_lanes(learner, row, c, w, n_lanes, check, w)
    elif made:
        lane_steps(
            X + row * learner.width, c, w, X + next_row * learner.width, learner.width, n_lanes, dots
        )
    else:
        lane_dots(X + next_row * learner.width, w, learner.width, n_lanes, dots)


cdef inline double norm2_of(const Learner *learner, Py_ssize_t row, const floating *of_type) noexcept nogil:
    """Return |x|^2."""
    if learner.sparse.begins != NULL:
        return <double> norm2_row(&learner.sparse, row, of_type)
    return <double> norm2_row(&learner.dense, row, of_type)


cdef void lane_slopes(
    const Learner *learner,
    const Loss *loss,
    Py_ssize_t row,
    const double *p,            # IN, (n_lanes,): predictions
    double *out,                # OUT, (n_lanes,)
) noexcept nogil


# The weights of every lane, w = a p + b q; p and q are (width, n_lanes).
cdef struct LaneWeights:
    const void *p               # the type of the rows
    double a[MOST_LANES]
    const double *q             # or NULL
    double b[MOST_LANES]


ctypedef void (*find_lane_weights)(const Learner *learner, const unsigned char *state, LaneWeights *of) noexcept nogil


# The first member of the settings of every learner with lanes.
cdef struct LaneSettings:
    find_lane_weights weights
    Py_ssize_t n_lanes          # they fill whole vectors
    Py_ssize_t n_used           # lanes that belong to a model: n_models * n_outputs
    Py_ssize_t n_outputs        # per model
    Py_ssize_t out_rows         # per model in the array of outputs
    int32_t classes[MOST_LANES]  # the class that a lane separates from the rest
    Py_ssize_t common_bytes     # bytes of a state that all lanes share
    Py_ssize_t n_numbers        # per lane
    bint has_sums
    Py_ssize_t n_vectors        # per lane


cdef inline Py_ssize_t model_of(const LaneSettings *settings, Py_ssize_t lane) noexcept nogil:
    """Return the model that a lane belongs to; surplus lanes repeat the last one."""
    return min(lane, settings.n_used - 1) // settings.n_outputs


cdef inline void write_outputs(
    const LaneSettings *settings,
    Py_ssize_t n_rows,
    const floating *outputs,    # IN, (n_lanes,)
    floating *out,              # OUT, at a row of (n_models, n_rows, n_outputs)
) noexcept nogil:
    """Write the outputs of all models for one row."""
    cdef Py_ssize_t n_outputs = settings.n_outputs
    cdef Py_ssize_t g, c
    if n_outputs == 1:      # GCC makes a call of memcpy of the inner loop below
        for g in range(settings.n_used):
            out[g * n_rows] = outputs[g]
        return
    for g in range(settings.n_used // n_outputs):
        for c in range(n_outputs):
            out[g * n_rows * n_outputs + c] = outputs[g * n_outputs + c]


cdef inline double *numbers_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the numbers of the lanes begin, (n_numbers, n_lanes)."""
    return <double *> (state + (<const LaneSettings *> learner.settings).common_bytes)


cdef inline double *sums_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the sums begin, if there are any, (width, n_lanes)."""
    return <double *> (state + learner.head_bytes)


cdef inline void *vectors_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the vectors begin, each (width, n_lanes)."""
    cdef const LaneSettings *settings = <const LaneSettings *> learner.settings
    return <void *> (sums_of(learner, state) + (settings.n_lanes * learner.width if settings.has_sums else 0))


cdef inline inlined test_lanes(
    const Learner *learner,
    Py_ssize_t row,
    Py_ssize_t next_row,
    const unsigned char *state,
    const floating *p_x,        # IN, (n_lanes,): the row's product with p
    Py_ssize_t n_rows,
    floating *out,              # OUT, at a row of (n_models, n_rows, n_outputs)
) noexcept nogil:
    """Write w.x = a p.x + b q.x of every lane for a row, rounded once as in ``linear.pxd``."""
    cdef const LaneSettings *settings = <const LaneSettings *> learner.settings
    cdef Py_ssize_t n_lanes = settings.n_lanes
    cdef LaneWeights of
    cdef floating outputs[MOST_LANES]
    cdef double q_x[MOST_LANES]
    cdef double room[8 * MOST_LANES]
    cdef double output
    cdef Py_ssize_t lane
    settings.weights(learner, state, &of)
    if of.q != NULL:
        dot_lanes(learner, row, next_row, of.q, n_lanes, room, q_x, p_x)
    for lane in range(n_lanes):
        output = of.a[lane] * <double> p_x[lane]
        if of.q != NULL:
            output += of.b[lane] * q_x[lane]
        outputs[lane] = <floating> output
    write_outputs(settings, n_rows, outputs, out)


cdef class LanesKernel(Kernel):
    cdef int bind_lanes(
        self,
        object X,
        object y,
        object n_classes,
        Py_ssize_t n_models,
        LaneSettings *settings,
        train_rows train,
        find_lane_weights weights,
    ) except -1
    cdef int set_lane_sizes(
        self, Py_ssize_t common_bytes, Py_ssize_t n_numbers, bint has_sums, Py_ssize_t n_vectors
    ) except -1
