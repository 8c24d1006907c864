"""Standardised rows: any kernel over dense rows, behind the running means and scales of their columns.

A state holds, after that of the kernel behind, the count, the mean and the sum of squared deviations
M2 of each column over the rows it has seen. Before a training phase, those of the phase are merged in
(Chan, Golub & LeVeque 1983): for n rows and m new ones with the mean mu,
    delta = mu - mean,   mean += delta m / (n + m),   M2 += M2_of_new + delta^2 n m / (n + m).
Nothing is ever subtracted from a sum over more rows, so a row that a model has not seen leaves no
trace in it, whatever its size. During the phase, and until the next one, a row x is seen as
    (x - mean) / sqrt(M2 / count),
with scikit-learn's rule for columns that are constant up to rounding: their scale is 1.

Values may be missing (NaN) in columns that are imputed. Then a state also holds the count and the mean of the
values known in each column. They are merged first, and the missing values of the phase count as that mean in
the moments above. A row is seen with the mean of the known values in the place of a missing one.

Rows are scaled a few at a time into memory that stays in the cache, and the kernel behind reads them
there as its own rows. So it needs to know nothing of scaling, and a row is scaled once for all lanes.
"""

import numpy as np

from cython cimport floating
from libc.float cimport DBL_EPSILON
from libc.math cimport sqrt
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.string cimport memcpy
from libc.string cimport memset

from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.tree cimport Kernel
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport prefetch_row
from optuna_treecv._kernels.vec8 cimport scale


cdef extern from "moments8.h":
    void merge8_double(
        const double *X,
        Py_ssize_t width,
        Py_ssize_t start,
        Py_ssize_t stop,
        const uint32_t *order,
        double n_seen,
        double *mean,
        double *M2,
    ) noexcept nogil
    void merge8_float(
        const float *X,
        Py_ssize_t width,
        Py_ssize_t start,
        Py_ssize_t stop,
        const uint32_t *order,
        double n_seen,
        double *mean,
        double *M2,
    ) noexcept nogil


cdef enum:
    ROOM = 4096                 # numbers (float64) in the scaled rows, which stay in the first-level cache
    MOST_ROWS = 8              # scaled at a time
    BLOCK = 64                  # rows of the smallest blocks whose moments are kept
    AHEAD = 6

#: The most columns of padded rows: two of them fit into the room for scaled rows.
MOST_WIDTH = ROOM // 2


cdef struct Settings:
    const Learner *behind       # the kernel that reads the scaled rows
    Py_ssize_t y_bytes          # of an entry of y
    Py_ssize_t n_features
    const double *centred       # (width,), 1 if the mean of a column is subtracted, else 0
    const double *scaled        # (width,), 1 if it is divided by its scale, else 0
    bint imputes                # whether values may be missing
    const double *blocks        # the moments of blocks of rows, in ``n_levels`` levels
    const Py_ssize_t *levels
    Py_ssize_t n_levels


# Behind a state of the kernel: the count, and a vector of each kind, the last three if values may be missing.
cdef struct Moments:
    int64_t *count
    double *mean                # (width,)
    double *M2                  # (width,)
    void *shift                 # (width,), what is subtracted from a row, in the type of the rows
    void *factor                # (width,), what it is multiplied by then
    void *filling               # (width,), what takes the place of missing values
    double *n_known             # (width,), the number of values known
    double *known_mean          # (width,), their mean, 0 if there is none


cdef inline Moments moments_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the moments in a state are."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef unsigned char *at = <unsigned char *> state + settings.behind.state_bytes
    cdef Moments moments
    moments.count = <int64_t *> at
    moments.mean = <double *> (at + 64)
    moments.M2 = moments.mean + learner.width
    moments.shift = moments.M2 + learner.width
    moments.factor = <unsigned char *> moments.shift + learner.width * learner.itemsize
    moments.filling = moments.n_known = moments.known_mean = NULL
    if settings.imputes:
        moments.filling = <unsigned char *> moments.factor + learner.width * learner.itemsize
        moments.n_known = <double *> (<unsigned char *> moments.filling + learner.width * learner.itemsize)
        moments.known_mean = moments.n_known + learner.width
    return moments


cdef inline Py_ssize_t vectors_bytes(Py_ssize_t width, Py_ssize_t itemsize, bint imputes) noexcept nogil:
    """Return the bytes of the vectors above."""
    return ((32 + 3 * itemsize) if imputes else (16 + 2 * itemsize)) * width


cdef inlined merge(
    double n_seen,              # the rows in mean and M2
    double m,                   # the rows in new_mean and new_M2
    const double *new_mean,     # IN, (n_columns,)
    const double *new_M2,       # IN, (n_columns,)
    Py_ssize_t n_columns,
    double *mean,               # INOUT, (n_columns,)
    double *M2,                 # INOUT, (n_columns,)
) noexcept nogil:
    """Merge the moments of m rows into those of n rows."""
    cdef double share = m / (n_seen + m)
    cdef double product = n_seen * share
    cdef double delta
    cdef Py_ssize_t j
    for j in range(n_columns):
        delta = new_mean[j] - mean[j]
        mean[j] += delta * share
        M2[j] += new_M2[j] + delta * delta * product


cdef inlined merge_rows(
    const floating *X,          # IN, (n_rows, width)
    Py_ssize_t width,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    double n_seen,
    double *mean,               # INOUT, (width,)
    double *M2,                 # INOUT, (width,)
) noexcept nogil:
    """Merge the moments of the rows start..stop-1, or order[start], ..., order[stop-1]."""
    cdef Py_ssize_t j
    for j in range(0, width, 8):
        if floating is double:
            merge8_double(X + j, width, start, stop, order, n_seen, mean + j, M2 + j)
        else:
            merge8_float(X + j, width, start, stop, order, n_seen, mean + j, M2 + j)


cdef inline Py_ssize_t next_piece(
    const Settings *settings,
    Py_ssize_t width,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    const double **block,       # OUT, the moments of the piece; NULL: they are not in the table
) noexcept nogil:
    """Return where the next piece of a phase ends: the largest block of the table that begins at ``start``, or
    the rows up to the next block.
    """
    cdef Py_ssize_t n_vectors = 3 if settings.imputes else 2
    cdef Py_ssize_t n_rows = BLOCK
    cdef Py_ssize_t level = 0
    block[0] = NULL
    if order != NULL:
        return min(start + n_rows, stop)
    if start % n_rows != 0 or stop - start < n_rows:
        return min((start // n_rows + 1) * n_rows, stop)
    while level + 1 < settings.n_levels and start % (2 * n_rows) == 0 and stop - start >= 2 * n_rows:
        level += 1
        n_rows *= 2
    block[0] = settings.blocks + n_vectors * width * (settings.levels[level] + start // n_rows)
    return start + n_rows


cdef inlined known_of_rows(
    const floating *x,          # IN, a column of X
    Py_ssize_t width,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    double *n_known,            # OUT
    double *mean,               # OUT, 0 if no value is known
    double *M2,                 # OUT
) noexcept nogil:
    """Find the moments of the known values of a column."""
    cdef double total = 0
    cdef double delta
    cdef floating value
    cdef Py_ssize_t i
    n_known[0] = M2[0] = mean[0] = 0
    for i in range(start, stop):
        value = x[row_at(order, i) * width]
        if value == value:
            total += <double> value
            n_known[0] += 1
    if n_known[0] == 0:
        return
    mean[0] = total / n_known[0]
    for i in range(start, stop):
        value = x[row_at(order, i) * width]
        if value == value:
            delta = <double> value - mean[0]
            M2[0] += delta * delta


cdef inlined merge_known(
    double new_n, double new_mean, double new_M2, double *n, double *mean, double *M2
) noexcept nogil:
    """Merge the moments of the values of a column into others, if there are any."""
    cdef double delta = new_mean - mean[0]
    if new_n > 0:
        n[0] += new_n
        mean[0] += delta * (new_n / n[0])
        M2[0] += new_M2 + delta * delta * ((n[0] - new_n) * (new_n / n[0]))


cdef inlined survey_missing(
    const floating *X,
    const Settings *settings,
    Py_ssize_t width,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    const Moments *moments,     # INOUT
) noexcept nogil:
    """Merge the moments of new rows with missing values, which count as the mean of those known so far."""
    cdef floating *filling = <floating *> moments.filling
    cdef double n_new, mean_new, M2_new         # of the known values of the phase
    cdef double n_piece, mean_piece, M2_piece
    cdef double n_seen
    cdef double nowhere = 0
    cdef const double *block
    cdef Py_ssize_t begin, end, j
    for j in range(width):
        n_new = mean_new = M2_new = 0
        begin = start
        while begin < stop:
            end = next_piece(settings, width, begin, stop, order, &block)
            if block != NULL:
                n_piece, mean_piece, M2_piece = block[2 * width + j], block[j], block[width + j]
            else:
                known_of_rows(X + j, width, begin, end, order, &n_piece, &mean_piece, &M2_piece)
            merge_known(n_piece, mean_piece, M2_piece, &n_new, &mean_new, &M2_new)
            begin = end
        merge_known(n_new, mean_new, M2_new, moments.n_known + j, moments.known_mean + j, &nowhere)
        filling[j] = <floating> moments.known_mean[j]
        merge_known(<double> (stop - start) - n_new, moments.known_mean[j], 0, &n_new, &mean_new, &M2_new)
        n_seen = <double> moments.count[0]
        merge_known(n_new, mean_new, M2_new, &n_seen, moments.mean + j, moments.M2 + j)
    moments.count[0] += stop - start


cdef inlined survey_columns(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    const Moments *moments,     # INOUT
    floating *shift,            # OUT, (width,)
    floating *factor,           # OUT, (width,)
) noexcept nogil:
    """Merge the moments of new rows, and find what rows are shifted and multiplied by."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef const floating *X = <const floating *> learner.dense.values
    cdef Py_ssize_t width = learner.width
    cdef Py_ssize_t end, j
    cdef const double *block
    cdef double n_seen, one_nth, mean, variance, small, factor_of
    if settings.imputes:
        survey_missing(X, settings, width, start, stop, order, moments)
        start = stop
    while start < stop:
        n_seen = <double> moments.count[0]
        end = next_piece(settings, width, start, stop, order, &block)
        if block != NULL:
            merge(n_seen, <double> (end - start), block, block + width, width, moments.mean, moments.M2)
        else:
            merge_rows(X, width, start, end, order, n_seen, moments.mean, moments.M2)
        moments.count[0] += end - start
        start = end
    n_seen = <double> moments.count[0]
    one_nth = 1 / n_seen
    for j in range(width):
        mean, variance = moments.mean[j], moments.M2[j] * one_nth
        small = n_seen * mean * DBL_EPSILON
        # A variance below its own rounding error is that of a constant column; NaN is not.
        small = n_seen * DBL_EPSILON * variance + small * small
        factor_of = 1 / sqrt(variance)
        factor_of = 1 if variance <= small else factor_of
        shift[j] = <floating> (mean * settings.centred[j])
        factor[j] = <floating> (factor_of if settings.scaled[j] > 0 else 1)


cdef dispatched survey(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state
) noexcept nogil:
    cdef Moments moments = moments_of(learner, state)
    if learner.itemsize == 8:
        survey_columns(learner, start, stop, order, &moments, <double *> moments.shift, <double *> moments.factor)
    else:
        survey_columns(learner, start, stop, order, &moments, <float *> moments.shift, <float *> moments.factor)


cdef inlined block_of_rows(
    const floating *X,
    Py_ssize_t width,
    Py_ssize_t start,
    bint imputes,
    double *block,              # OUT: means, M2 and, if values may be missing, counts, (width,) each
) noexcept nogil:
    """Find the moments of a smallest block."""
    cdef Py_ssize_t j
    for j in range(width):
        block[j] = block[width + j] = 0
    if not imputes:
        merge_rows(X, width, start, start + BLOCK, NULL, 0, block, block + width)
        return
    for j in range(width):
        known_of_rows(
            X + j, width, start, start + BLOCK, NULL, block + 2 * width + j, block + j, block + width + j
        )


cdef dispatched fill_blocks(
    const void *X, Py_ssize_t itemsize, Py_ssize_t n_rows, Py_ssize_t width, bint imputes, double *blocks
) noexcept nogil:
    """Find the moments of all whole blocks of BLOCK rows, and then those of twice as many rows from two."""
    cdef Py_ssize_t n_numbers = (3 if imputes else 2) * width
    cdef Py_ssize_t n_blocks = n_rows // BLOCK
    cdef Py_ssize_t rows_of_block = BLOCK
    cdef Py_ssize_t i, j
    cdef double *below
    for i in range(n_blocks):
        if itemsize == 8:
            block_of_rows(<const double *> X, width, i * BLOCK, imputes, blocks)
        else:
            block_of_rows(<const float *> X, width, i * BLOCK, imputes, blocks)
        blocks += n_numbers
    below = blocks - n_blocks * n_numbers
    while n_blocks > 1:
        n_blocks //= 2
        for _ in range(n_blocks):
            memcpy(blocks, below, n_numbers * sizeof(double))
            below += n_numbers
            if imputes:
                for j in range(width):
                    merge_known(
                        below[2 * width + j],
                        below[j],
                        below[width + j],
                        blocks + 2 * width + j,
                        blocks + j,
                        blocks + width + j,
                    )
            else:
                merge(
                    <double> rows_of_block, <double> rows_of_block, below, below + width, width, blocks, blocks + width
                )
            below += n_numbers
            blocks += n_numbers
        below = blocks - n_blocks * n_numbers
        rows_of_block *= 2


cdef class Blocks:
    """The moments of dense rows: of each block of BLOCK rows, of each pair of them, and so on. They take
    less than a tenth of the memory of the rows, and all models over these rows share them.
    """

    cdef double [::1] moments   # a block's means, M2 and perhaps counts, (width,) each; level by level
    cdef Py_ssize_t levels[64]  # the number of the first block of each level
    cdef Py_ssize_t n_levels
    cdef object X
    cdef bint imputes

    def __init__(
        self,
        X,                                           # IN, (n_rows, multiple of 8)
        bint imputes=False,                          # whether values may be missing: then counts are kept too
    ):
        cdef const unsigned char [::1] values = X.reshape(-1).view("u1")
        cdef Py_ssize_t n_rows = X.shape[0]
        cdef Py_ssize_t width = X.shape[1]
        cdef Py_ssize_t itemsize = X.dtype.itemsize
        cdef Py_ssize_t n_blocks = n_rows // BLOCK
        cdef Py_ssize_t total = 0
        self.X = X
        self.imputes = imputes
        self.n_levels = 0
        while n_blocks > 0:
            self.levels[self.n_levels] = total
            total += n_blocks
            self.n_levels += 1
            n_blocks //= 2
        self.moments = np.empty(max(total, 1) * (3 if imputes else 2) * width)
        if total > 0:
            with nogil:
                fill_blocks(&values[0], itemsize, n_rows, width, imputes, &self.moments[0])


cdef inlined scale_rows(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    const unsigned char *state,
    floating *out,              # OUT, (stop - start, width)
) noexcept nogil:
    """Write the rows start..stop-1, or order[start], ..., order[stop-1], as the state sees them."""
    cdef Moments moments = moments_of(learner, state)
    cdef const floating *shift = <const floating *> moments.shift
    cdef const floating *factor = <const floating *> moments.factor
    cdef const floating *X = <const floating *> learner.dense.values
    cdef Py_ssize_t width = learner.width
    cdef const floating *filling = <const floating *> moments.filling
    cdef const floating *x
    cdef Py_ssize_t ahead = learner.dense.ahead
    cdef Py_ssize_t i, j
    for i in range(start, stop):
        if order != NULL:
            if i + AHEAD < stop:
                prefetch_row(X + order[i + AHEAD] * width, width)
        elif ahead != 0:                                # what lies behind the rows is not read
            prefetch_row(X + (i + ahead) * width, width)
        if filling == NULL:
            scale(X + row_at(order, i) * width, shift, factor, out, width)
        else:
            x = X + row_at(order, i) * width
            for j in range(width):
                out[j] = ((x[j] if x[j] == x[j] else filling[j]) - shift[j]) * factor[j]
        out += width


# Rows as the kernel behind reads them: scaled, with their targets and weights beside them.
cdef struct Room:
    double rows[ROOM]
    double targets[MOST_ROWS]
    double weights[MOST_ROWS]


cdef inline void gather(
    const void *entries,        # IN, (n_rows,), or NULL
    Py_ssize_t itemsize,        # 4 or 8
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    double *memory,             # OUT, room for stop - start entries
) noexcept nogil:
    """Copy the entries of rows."""
    cdef Py_ssize_t i
    if entries == NULL:
        return
    for i in range(start, stop):
        if itemsize == 4:
            (<int32_t *> memory)[i - start] = (<const int32_t *> entries)[row_at(order, i)]
        else:
            (<int64_t *> memory)[i - start] = (<const int64_t *> entries)[row_at(order, i)]


cdef inline Learner reader_of(const Learner *learner, Room *room) noexcept nogil:
    """Return the kernel behind, reading its rows in ``room``."""
    cdef Learner behind = (<const Settings *> learner.settings).behind[0]
    behind.dense.values = room.rows
    behind.dense.ahead = 0
    behind.y = NULL if learner.y == NULL else room.targets
    behind.weights = NULL if learner.weights == NULL else room.weights
    return behind


cdef inlined fill(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    const unsigned char *state,
    Room *room,                 # OUT
    Py_ssize_t at,              # the first place for a row
) noexcept nogil:
    """Put rows into the room, as the state sees them."""
    cdef Py_ssize_t y_bytes = (<const Settings *> learner.settings).y_bytes
    if learner.itemsize == 8:
        scale_rows(learner, start, stop, order, state, room.rows + at * learner.width)
    else:
        scale_rows(learner, start, stop, order, state, <float *> room.rows + at * learner.width)
    gather(learner.y, y_bytes, start, stop, order, <double *> (<char *> room.targets + at * y_bytes))
    gather(
        learner.weights,
        learner.itemsize,
        start,
        stop,
        order,
        <double *> (<char *> room.weights + at * learner.itemsize),
    )


cdef inline Py_ssize_t rows_at_a_time(const Learner *learner) noexcept nogil:
    """Return how many rows fit into the room."""
    return min(<Py_ssize_t> MOST_ROWS, 8 * ROOM // (learner.width * learner.itemsize))


cdef dispatched train(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, Log *log
) noexcept nogil:
    cdef Room room
    cdef Learner behind = reader_of(learner, &room)
    cdef Py_ssize_t most = rows_at_a_time(learner)
    cdef Py_ssize_t end
    while start < stop:
        end = min(start + most, stop)
        fill(learner, start, end, order, state, &room, 0)
        behind.train(&behind, 0, end - start, NULL, state, NULL)
        start = end


cdef dispatched train_both(
    const Learner *learner,
    Py_ssize_t first_start,
    Py_ssize_t second_start,
    Py_ssize_t n_rows,
    const uint32_t *order,
    unsigned char *first,
    unsigned char *second,
) noexcept nogil:
    cdef Room room
    cdef Learner behind = reader_of(learner, &room)
    cdef Py_ssize_t most = rows_at_a_time(learner) // 2
    cdef Py_ssize_t n
    while n_rows > 0:
        n = min(most, n_rows)
        fill(learner, first_start, first_start + n, order, first, &room, 0)
        fill(learner, second_start, second_start + n, order, second, &room, n)
        behind.train_both(&behind, 0, n, n, NULL, first, second)
        first_start, second_start, n_rows = first_start + n, second_start + n, n_rows - n


cdef dispatched test(
    const Learner *learner, const unsigned char *state, void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    cdef Room room
    cdef Learner behind = reader_of(learner, &room)
    cdef Py_ssize_t most = rows_at_a_time(learner)
    cdef Py_ssize_t end
    cdef unsigned char *written = <unsigned char *> out
    while start < stop:
        end = min(start + most, stop)
        fill(learner, start, end, NULL, state, &room, 0)
        behind.test(&behind, state, model, 0, end - start, written)
        written += (end - start) * learner.n_outputs * learner.itemsize
        start = end


cdef void read(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    cdef const Learner *behind = (<const Settings *> learner.settings).behind
    behind.read(behind, state, model)


cdef class Scaled(Kernel):
    """A kernel over dense rows that sees them scaled; ``centred`` and ``scaled`` say which columns.

    The kernel behind must have its weights (``weigh``), and is used through this one only.
    """

    cdef Settings own
    cdef Kernel behind
    cdef double [:, ::1] flags

    def __init__(
        self,
        Kernel behind not None,
        const unsigned char [::1] centred,           # IN, (n_features,), 0 or 1
        const unsigned char [::1] scaled,            # IN, (n_features,), 0 or 1
        Blocks blocks not None,                      # IN, of the rows of ``behind``
    ):
        cdef Py_ssize_t j
        cdef Py_ssize_t n_features = centred.shape[0]
        if behind.state_bytes == 0:
            raise ValueError("the kernel behind was not initialised.")
        if behind.learner.sparse.begins != NULL:
            raise ValueError("rows must be dense, since centring leaves no zeros.")
        if behind.learner.width > MOST_WIDTH:
            raise ValueError(f"rows must have at most {MOST_WIDTH} columns, got {behind.learner.width}.")
        if scaled.shape[0] != n_features or not 0 < n_features <= behind.learner.width:
            raise ValueError("centred and scaled must have an entry for each feature.")
        self.behind = behind
        if blocks.X.ctypes.data != <size_t> behind.learner.dense.values:
            raise ValueError("blocks must be of the rows of the kernel behind.")
        self.flags = np.zeros((2, behind.learner.width))
        for j in range(n_features):
            self.flags[0, j], self.flags[1, j] = centred[j], scaled[j]
        self.keep_alive = [behind, blocks]
        self.own.behind = &behind.learner
        self.own.y_bytes = 4 if behind.n_classes > 0 else behind.itemsize
        self.own.n_features = n_features
        self.own.centred = &self.flags[0, 0]
        self.own.scaled = &self.flags[1, 0]
        self.own.blocks = &blocks.moments[0]
        self.own.imputes = blocks.imputes
        self.own.levels = &blocks.levels[0]
        self.own.n_levels = blocks.n_levels
        self.n_rows, self.n_classes, self.n_models = behind.n_rows, behind.n_classes, behind.n_models
        self.n_outputs, self.itemsize = behind.n_outputs, behind.itemsize
        self.is_weighed = True
        self.learner = behind.learner
        self.learner.settings = &self.own
        self.learner.survey = survey
        self.learner.train = train
        if behind.learner.train_both != NULL:
            self.learner.train_both = train_both
        self.learner.test_then_train = NULL
        self.learner.test = test
        self.learner.read = read
        self.learner.changes = NULL
        self.set_sizes(
            behind.learner.head_bytes,
            behind.state_bytes + 64 + vectors_bytes(behind.learner.width, behind.itemsize, blocks.imputes),
            behind.model_bytes,
        )

    @property
    def model_type(self):
        """The type of the numbers in a model."""
        return self.behind.model_type

    def start(self, unsigned char [::1] state):
        """Write the state before the first row, in which rows are seen as they are."""
        cdef Moments moments
        cdef Py_ssize_t j
        self.check_state(state)
        self.behind.start(state[: self.behind.state_bytes])
        memset(&state[self.behind.state_bytes], 0, self.state_bytes - self.behind.state_bytes)
        moments = moments_of(&self.learner, &state[0])
        for j in range(self.learner.width):
            if self.itemsize == 8:
                (<double *> moments.factor)[j] = 1
            else:
                (<float *> moments.factor)[j] = 1

    def moments(
        self,
        const unsigned char [::1] state,
        double [::1] mean,                           # OUT, (n_features,)
        double [::1] M2,                             # OUT, (n_features,)
        double [::1] known_mean,                     # OUT, (n_features,), of the values that are not missing
    ):
        """Write the moments of the columns that a state holds; return the number of rows in them."""
        cdef Py_ssize_t n_features = self.own.n_features
        cdef Moments moments
        self.check_state(state)
        if not mean.shape[0] == M2.shape[0] == known_mean.shape[0] == n_features:
            raise ValueError("mean, M2 and known_mean must have room for each feature.")
        moments = moments_of(&self.learner, &state[0])
        memcpy(&mean[0], moments.mean, 8 * n_features)
        memcpy(&M2[0], moments.M2, 8 * n_features)
        memcpy(&known_mean[0], moments.known_mean if self.own.imputes else moments.mean, 8 * n_features)
        return moments.count[0]
