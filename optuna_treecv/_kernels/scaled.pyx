"""Standardised rows: any kernel over dense rows, behind the running means and scales of their columns.

A state holds, after that of the kernel behind, the count, the mean and the sum of squared deviations
M2 of each column over the rows it has seen. Before a training phase, those of the phase are merged in
(Chan, Golub & LeVeque 1983): for n rows and m new ones with the mean mu,
    delta = mu - mean,   mean += delta m / (n + m),   M2 += M2_of_new + delta^2 n m / (n + m).
Nothing is ever subtracted from a sum over more rows, so a row that a model has not seen leaves no
trace in it, whatever its size. During the phase, and until the next one, a row x is seen as
    (x - mean) / sqrt(M2 / count),
with scikit-learn's rule for columns that are constant up to rounding: their scale is 1.

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
    const double *blocks        # the moments of blocks of rows, in ``n_levels`` levels
    const Py_ssize_t *levels
    Py_ssize_t n_levels


# Behind a state of the kernel: the count, and a vector of each kind, of which the first two are float64.
cdef struct Moments:
    int64_t *count
    double *mean                # (width,)
    double *M2                  # (width,)
    void *shift                 # (width,), what is subtracted from a row, in the type of the rows
    void *factor                # (width,), what it is multiplied by then


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
    return moments


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
    cdef Py_ssize_t end, level, j
    cdef const double *block
    cdef double n_seen, one_nth, mean, variance, small, factor_of
    while start < stop:
        n_seen = <double> moments.count[0]
        level = 0
        if order == NULL and start % BLOCK == 0 and stop - start >= BLOCK:
            # The largest block of the table that begins here and ends within the phase.
            while (
                level + 1 < settings.n_levels
                and start % (<Py_ssize_t> BLOCK << (level + 1)) == 0
                and stop - start >= <Py_ssize_t> BLOCK << (level + 1)
            ):
                level += 1
            end = start + (<Py_ssize_t> BLOCK << level)
            block = settings.blocks + 2 * width * (settings.levels[level] + start // (<Py_ssize_t> BLOCK << level))
            merge(n_seen, <double> (end - start), block, block + width, width, moments.mean, moments.M2)
        else:
            end = min(start + BLOCK if order != NULL else (start // BLOCK + 1) * BLOCK, stop)
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


cdef dispatched fill_blocks(
    const void *X, Py_ssize_t itemsize, Py_ssize_t n_rows, Py_ssize_t width, double *blocks
) noexcept nogil:
    """Compute the moments of all whole blocks of BLOCK rows, and then those of twice as many rows from two."""
    cdef Py_ssize_t n_blocks = n_rows // BLOCK
    cdef Py_ssize_t rows_of_block = BLOCK
    cdef Py_ssize_t i
    cdef double *below
    memset(blocks, 0, n_blocks * 2 * width * sizeof(double))
    for i in range(n_blocks):
        if itemsize == 8:
            merge_rows(<const double *> X, width, i * BLOCK, (i + 1) * BLOCK, NULL, 0, blocks, blocks + width)
        else:
            merge_rows(<const float *> X, width, i * BLOCK, (i + 1) * BLOCK, NULL, 0, blocks, blocks + width)
        blocks += 2 * width
    below = blocks - n_blocks * 2 * width
    while n_blocks > 1:
        n_blocks //= 2
        for _ in range(n_blocks):
            memcpy(blocks, below, 2 * width * sizeof(double))
            below += 2 * width
            merge(
                <double> rows_of_block, <double> rows_of_block, below, below + width, width, blocks, blocks + width
            )
            below += 2 * width
            blocks += 2 * width
        below = blocks - n_blocks * 2 * width
        rows_of_block *= 2


cdef class Blocks:
    """The moments of dense rows: of each block of BLOCK rows, of each pair of them, and so on. They take
    less than a tenth of the memory of the rows, and all models over these rows share them.
    """

    cdef double [::1] moments   # a block's means and then its M2, (width,) each; level by level
    cdef Py_ssize_t levels[64]  # the number of the first block of each level
    cdef Py_ssize_t n_levels
    cdef object X

    def __init__(self, X):
        cdef const unsigned char [::1] values = X.reshape(-1).view("u1")
        cdef Py_ssize_t n_rows = X.shape[0]
        cdef Py_ssize_t width = X.shape[1]
        cdef Py_ssize_t itemsize = X.dtype.itemsize
        cdef Py_ssize_t n_blocks = n_rows // BLOCK
        cdef Py_ssize_t total = 0
        self.X = X
        self.n_levels = 0
        while n_blocks > 0:
            self.levels[self.n_levels] = total
            total += n_blocks
            self.n_levels += 1
            n_blocks //= 2
        self.moments = np.empty(max(total, 1) * 2 * width)
        if total > 0:
            with nogil:
                fill_blocks(&values[0], itemsize, n_rows, width, &self.moments[0])


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
    cdef Py_ssize_t ahead = learner.dense.ahead
    cdef Py_ssize_t i
    for i in range(start, stop):
        if order != NULL:
            if i + AHEAD < stop:
                prefetch_row(X + order[i + AHEAD] * width, width)
        elif ahead != 0:                                # what lies behind the rows is not read
            prefetch_row(X + (i + ahead) * width, width)
        scale(X + row_at(order, i) * width, shift, factor, out, width)
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

    The kernel behind must have its weights (``weigh``). It keeps no rows apart from those of a phase, and is used
    through this one only.
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
            behind.state_bytes + 64 + 2 * (8 + behind.itemsize) * behind.learner.width,
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

    def moments(self, const unsigned char [::1] state, double [::1] mean, double [::1] M2):
        """Write the moments of the columns that a state holds, (n_features,) each; return the rows in them."""
        cdef Moments moments
        self.check_state(state)
        if mean.shape[0] != self.own.n_features or M2.shape[0] != self.own.n_features:
            raise ValueError("mean and M2 must have room for each feature.")
        moments = moments_of(&self.learner, &state[0])
        memcpy(&mean[0], moments.mean, 8 * self.own.n_features)
        memcpy(&M2[0], moments.M2, 8 * self.own.n_features)
        return moments.count[0]
