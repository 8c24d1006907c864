"""Operations on one row for all lanes, which training and testing in lanes share; ``linear.pxd`` defines lanes.

The loops over columns are in ``lane_loops.c``.
"""

from cython cimport floating
from libc.stdint cimport int32_t
from libc.stdint cimport uint64_t

from optuna_treecv._kernels.rows cimport Sparse
from optuna_treecv._kernels.rows cimport n_nonzeros
from optuna_treecv._kernels.rows cimport norm2_row
from optuna_treecv._kernels.vec8 cimport Weight
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport inlined_bint
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
    void lane_dots_nonzeros(
        const void *x, const uint64_t *nonzeros, Py_ssize_t width, const void *w, Py_ssize_t n_lanes, void *out
    ) noexcept
    bint lane_add_nonzeros(
        const void *x,
        const uint64_t *nonzeros,
        Py_ssize_t width,
        const void *c,
        void *w,
        Py_ssize_t n_lanes,
        double *check,
    ) noexcept
    void find_nonzeros(const void *x, Py_ssize_t width, uint64_t *nonzeros) noexcept


cdef enum:
    COLUMNS_AHEAD = 8           # the prefetch distance, in columns, when columns are saved in the undo log
    MAX_WORDS = 32              # zeros are skipped in rows of up to this many times 64 columns
    ROWS_TO_COUNT = 1024        # the number of rows whose nonzeros are counted
    ROWS_OF_RUN = 64            # as many of them follow each other
    NONZEROS_COST = 4           # reading a nonzero alone takes as long as reading this many values of a whole row
    OUTPUTS_AHEAD = 16          # the prefetch distance, in rows, of the memory that outputs are written to


# A row as lanes read it.
cdef struct LaneRow:
    Py_ssize_t index
    const void *values          # of all columns, or the nonzeros of a sparse row
    const int32_t *columns      # of the nonzeros of a sparse row; NULL: the row is dense
    Py_ssize_t n_values
    bint skips_zeros            # whether only the nonzeros of a dense row are read
    uint64_t nonzeros[MAX_WORDS]  # a bit per column of a dense row, if ``skips_zeros``


cdef inline Py_ssize_t lanes_of(const Learner *learner) noexcept nogil:
    return (<const LinearSettings *> learner.settings).n_lanes


cdef inline void read_row(
    const Learner *learner,
    Py_ssize_t index,
    LaneRow *row,               # OUT
    const floating *type_tag,
) noexcept nogil:
    cdef const Sparse *rows = &learner.sparse
    row.index = index
    row.skips_zeros = learner.skips_zeros
    if rows.indptr != NULL:
        row.values = (<const floating *> rows.values) + rows.indptr[index]
        row.columns = rows.columns + rows.indptr[index]
        row.n_values = n_nonzeros(rows, index)
        return
    row.values = (<const floating *> learner.dense.values) + index * learner.width
    row.columns = NULL
    row.n_values = learner.width
    if row.skips_zeros:
        find_nonzeros(<const floating *> row.values, learner.width, row.nonzeros)


cdef inline bint reads_all(const LaneRow *row) noexcept nogil:
    """Return whether weights that are not finite show in each product with the row, because it is read as a whole."""
    return row.columns == NULL and not row.skips_zeros


cdef inline Py_ssize_t count_nonzeros(
    const floating *x,
    Py_ssize_t width,
    const double *is_filled,    # IN, (width,), not 0 for columns that count as without zeros; or NULL
) noexcept nogil:
    cdef Py_ssize_t n = 0
    cdef Py_ssize_t j
    for j in range(width):
        n += x[j] != 0 or (is_filled != NULL and is_filled[j] != 0)
    return n


cdef inline bint has_many_zeros(
    const Learner *learner,
    Py_ssize_t n_rows,
    const double *is_filled,    # as in ``count_nonzeros``
) noexcept nogil:
    """Return whether it is faster to read only the nonzeros of dense rows, as far as some of the rows tell."""
    cdef Py_ssize_t n_runs = ROWS_TO_COUNT // ROWS_OF_RUN
    cdef Py_ssize_t n_seen = min(n_rows, ROWS_TO_COUNT)
    cdef Py_ssize_t n = 0
    cdef Py_ssize_t i, begin
    if learner.sparse.indptr != NULL or learner.width > 64 * MAX_WORDS:
        return False
    for i in range(n_seen):
        begin = i * learner.width
        if n_rows > ROWS_TO_COUNT:          # runs of rows, because rows in files are read in pages
            begin = (i // ROWS_OF_RUN * (n_rows // n_runs) + i % ROWS_OF_RUN) * learner.width
        if learner.itemsize == 8:
            n += count_nonzeros(<const double *> learner.dense.values + begin, learner.width, is_filled)
        else:
            n += count_nonzeros(<const float *> learner.dense.values + begin, learner.width, is_filled)
    return NONZEROS_COST * n < n_seen * learner.width


cdef inline inlined dot_lanes(
    const Learner *learner,
    const LaneRow *row,
    const LaneRow *next_row,    # the row for which weights are prefetched
    const Weight *w,            # IN, (width, n_lanes), of the type of the rows, or float64 sums
    Weight *out,                # OUT, (n_lanes,)
    const floating *type_tag,
) noexcept nogil:
    """Write the dot product x . w of each lane, in the summation order of ``vec8.h``."""
    cdef Py_ssize_t n_lanes = lanes_of(learner)
    cdef Weight workspace[8 * MAX_LANES]
    cdef const floating *x = <const floating *> row.values
    if floating is float or Weight is double:
        if row.columns != NULL:
            lane_dots_sparse(
                x, row.columns, row.n_values, next_row.columns, next_row.n_values, w, n_lanes, workspace, out
            )
        elif row.skips_zeros:
            lane_dots_nonzeros(x, row.nonzeros, row.n_values, w, n_lanes, out)
        else:
            lane_dots(x, w, row.n_values, n_lanes, out)


cdef inline inlined_bint add_lanes(
    const Learner *learner,
    const LaneRow *row,
    const Weight *c,            # IN, (n_lanes,), 0 for lanes that do not change
    Weight *w,                  # INOUT, (width, n_lanes), of the type of the rows, or float64 sums
    double *check,              # INOUT, (n_lanes,): becomes NaN if c or w is not finite, unless ``reads_all(row)``
    const floating *type_tag,
) noexcept nogil:
    """Compute w += c x in each lane; return False if ``check`` stays as it is."""
    cdef const floating *x = <const floating *> row.values
    cdef Py_ssize_t n_lanes = lanes_of(learner)
    cdef Py_ssize_t block_lanes = LANE_BYTES // sizeof(Weight)
    cdef Py_ssize_t blocks[MAX_LANES]
    cdef Py_ssize_t n_blocks = 0
    cdef Py_ssize_t b, lane
    cdef bint is_zero
    if floating is float or Weight is double:
        if reads_all(row):
            lane_add(x, c, w, row.n_values, n_lanes)
            return False
        if row.columns == NULL:
            return lane_add_nonzeros(x, row.nonzeros, row.n_values, c, w, n_lanes, check)
        for b in range(n_lanes // block_lanes):         # a block of lanes with c = 0 is skipped, to avoid cache misses
            is_zero = True
            for lane in range(b * block_lanes, (b + 1) * block_lanes):
                is_zero = is_zero and c[lane] == 0
                check[lane] += 0 * <double> c[lane]     # finds a c that is not finite even if the row is empty
            if not is_zero:
                blocks[n_blocks] = b * block_lanes
                n_blocks += 1
        lane_add_sparse(x, row.columns, row.n_values, c, w, n_lanes, blocks, n_blocks, check)
    return True


cdef inline inlined_bint step_lanes(
    const Learner *learner,
    const LaneRow *row,
    const LaneRow *next_row,
    bint any_added,             # whether c is not 0 in some lane
    const floating *c,          # IN, (n_lanes,)
    floating *w,                # INOUT, (width, n_lanes)
    double *check,              # INOUT, (n_lanes,), as in ``add_lanes``
    floating *dots,             # OUT, (n_lanes,), the dot products w . x with the next row, if rows are dense
) noexcept nogil:
    """Compute w += c x in each lane, and then, if rows are dense, the dot products with the next row.

    Return False if ``check`` stays as it is.
    """
    cdef bint is_changed = False
    if any_added and reads_all(row):
        lane_steps(
            <const floating *> row.values,
            c,
            w,
            <const floating *> next_row.values,
            row.n_values,
            lanes_of(learner),
            dots,
        )
        return False
    if any_added:
        is_changed = add_lanes(learner, row, c, w, check, w)
    if row.columns == NULL:
        dot_lanes(learner, next_row, next_row, w, dots, w)
    return is_changed


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
    const LaneRow *row,
    const LaneRow *next_row,
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
