"""Operations on one row for all lanes, which training and testing in lanes share; ``linear.pxd`` defines lanes.

The loops over columns are in ``lane_loops.c``.
"""

from cython cimport floating
from libc.stdint cimport int32_t

from optuna_treecv._kernels.rows cimport Sparse
from optuna_treecv._kernels.rows cimport n_nonzeros
from optuna_treecv._kernels.rows cimport norm2_row
from optuna_treecv._kernels.vec8 cimport Weight
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv.engines.treecv.kernels.linear cimport LaneWeights
from optuna_treecv.engines.treecv.kernels.linear cimport LinearSettings
from optuna_treecv.engines.treecv.kernels.linear cimport MAX_LANES
from optuna_treecv.engines.treecv.kernels.tree cimport Learner


# Each of these is a macro in C, which dispatches on the types of the row x and of the vectors w. The types differ if
# float32 rows are added to sums, which are float64.
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
        void *workspace,
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
    COLUMNS_AHEAD = 8           # the prefetch distance, in columns, when columns are saved in the undo log
    OUTPUTS_AHEAD = 16          # the prefetch distance, in rows, of the memory that outputs are written to


cdef inline Py_ssize_t lanes_of(const Learner *learner) noexcept nogil:
    return (<const LinearSettings *> learner.settings).n_lanes


cdef inline inlined dot_lanes(
    const Learner *learner,
    Py_ssize_t row,
    Py_ssize_t next_row,        # the row for which weights are prefetched
    const Weight *w,            # IN, (width, n_lanes), of the type of the rows, or float64 sums
    Weight *out,                # OUT, (n_lanes,)
    const floating *type_tag,
) noexcept nogil:
    """Write the dot product x . w of each lane, in the summation order of ``vec8.h``."""
    cdef const Sparse *rows = &learner.sparse
    cdef Py_ssize_t n_lanes = lanes_of(learner)
    cdef Weight workspace[8 * MAX_LANES]
    cdef const floating *x
    if floating is float or Weight is double:
        if rows.indptr == NULL:
            x = (<const floating *> learner.dense.values) + row * learner.width
            lane_dots(x, w, learner.width, n_lanes, out)
        else:
            x = (<const floating *> rows.values) + rows.indptr[row]
            lane_dots_sparse(
                x,
                rows.columns + rows.indptr[row],
                n_nonzeros(rows, row),
                rows.columns + rows.indptr[next_row],
                n_nonzeros(rows, next_row),
                w,
                n_lanes,
                workspace,
                out,
            )


cdef inline inlined add_lanes(
    const Learner *learner,
    Py_ssize_t row,
    const Weight *c,            # IN, (n_lanes,), 0 for lanes that do not change
    Weight *w,                  # INOUT, (width, n_lanes), of the type of the rows, or float64 sums
    double *check,              # INOUT, (n_lanes,): becomes NaN if rows are sparse and c or w is not finite
    const floating *type_tag,
) noexcept nogil:
    """Compute w += c x in each lane."""
    cdef const Sparse *rows = &learner.sparse
    cdef const floating *x
    cdef Py_ssize_t n_lanes = lanes_of(learner)
    cdef Py_ssize_t block_lanes = LANE_BYTES // sizeof(Weight)
    cdef Py_ssize_t blocks[MAX_LANES]
    cdef Py_ssize_t n_blocks = 0
    cdef Py_ssize_t b, lane
    cdef bint is_zero
    if floating is float or Weight is double:
        if rows.indptr == NULL:
            x = (<const floating *> learner.dense.values) + row * learner.width
            lane_add(x, c, w, learner.width, n_lanes)
            return
        for b in range(n_lanes // block_lanes):         # a block of lanes with c = 0 is skipped, to avoid cache misses
            is_zero = True
            for lane in range(b * block_lanes, (b + 1) * block_lanes):
                is_zero = is_zero and c[lane] == 0
                check[lane] += 0 * <double> c[lane]     # finds a c that is not finite even if the row is empty
            if not is_zero:
                blocks[n_blocks] = b * block_lanes
                n_blocks += 1
        x = (<const floating *> rows.values) + rows.indptr[row]
        lane_add_sparse(
            x, rows.columns + rows.indptr[row], n_nonzeros(rows, row), c, w, n_lanes, blocks, n_blocks, check
        )


cdef inline inlined step_lanes(
    const Learner *learner,
    Py_ssize_t row,
    Py_ssize_t next_row,
    bint any_added,             # whether c is not 0 in some lane
    const floating *c,          # IN, (n_lanes,)
    floating *w,                # INOUT, (width, n_lanes)
    double *check,              # INOUT, (n_lanes,), as in ``add_lanes``
    floating *dots,             # OUT, (n_lanes,), the dot products w . x with the next row, if rows are dense
) noexcept nogil:
    """Compute w += c x in each lane, and then, if rows are dense, the dot products with the next row."""
    cdef const floating *X = <const floating *> learner.dense.values
    if learner.sparse.indptr != NULL:
        if any_added:
            add_lanes(learner, row, c, w, check, w)
    elif any_added:
        lane_steps(
            X + row * learner.width, c, w, X + next_row * learner.width, learner.width, lanes_of(learner), dots
        )
    else:
        lane_dots(X + next_row * learner.width, w, learner.width, lanes_of(learner), dots)


cdef inline double norm2_of(const Learner *learner, Py_ssize_t row, const floating *type_tag) noexcept nogil:
    """Return |x|^2."""
    if learner.sparse.indptr != NULL:
        return <double> norm2_row(&learner.sparse, row, type_tag)
    return <double> norm2_row(&learner.dense, row, type_tag)


cdef inline void write_outputs(
    const LinearSettings *settings,
    Py_ssize_t n_rows,
    const floating *outputs,    # IN, (n_lanes,)
    floating *out,              # OUT, the place of the row in the array (n_models, n_rows, n_outputs)
) noexcept nogil:
    """Write the outputs of all models for one row."""
    cdef Py_ssize_t n_outputs = settings.n_outputs
    cdef Py_ssize_t model, c
    if n_outputs == 1:      # GCC would replace the inner loop below by a slower call of memcpy
        for model in range(settings.n_used):
            out[model * n_rows] = outputs[model]
        return
    for model in range(settings.n_used // n_outputs):
        for c in range(n_outputs):
            out[model * n_rows * n_outputs + c] = outputs[model * n_outputs + c]


cdef inline inlined test_lanes(
    const Learner *learner,
    Py_ssize_t row,
    Py_ssize_t next_row,
    const unsigned char *state,
    const floating *p_x,        # IN, (n_lanes,), the dot products p . x with the row
    Py_ssize_t n_rows,
    floating *out,              # OUT, the place of the row in the array (n_models, n_rows, n_outputs)
) noexcept nogil:
    """Write the outputs w.x = a p.x + b q.x of all lanes for a row, computed in float64 and then rounded."""
    cdef const LinearSettings *settings = <const LinearSettings *> learner.settings
    cdef Py_ssize_t n_lanes = settings.n_lanes
    cdef LaneWeights w
    cdef floating outputs[MAX_LANES]
    cdef double q_x[MAX_LANES]
    cdef double output
    cdef Py_ssize_t lane
    settings.lane_weights(learner, state, &w)
    if w.q != NULL:
        dot_lanes(learner, row, next_row, w.q, q_x, p_x)
    for lane in range(n_lanes):
        output = w.a[lane] * <double> p_x[lane]
        if w.q != NULL:
            output += w.b[lane] * q_x[lane]
        outputs[lane] = <floating> output
    write_outputs(settings, n_rows, outputs, out)
