"""Standardised rows: any kernel over dense rows, behind the running moments of their columns (``moments.pxd``).

Rows are scaled a few at a time into memory that stays in the cache, and the kernel behind reads them
there as its own rows. So it needs to know nothing of scaling, and a row is scaled once for all lanes.
"""

from cython cimport floating
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t

from optuna_treecv._kernels.around cimport Around
from optuna_treecv._kernels.around cimport Behind
from optuna_treecv._kernels.moments cimport Blocks
from optuna_treecv._kernels.moments cimport Columns
from optuna_treecv._kernels.moments cimport Moments
from optuna_treecv._kernels.moments cimport begin_moments
from optuna_treecv._kernels.moments cimport flags_of
from optuna_treecv._kernels.moments cimport moments_at
from optuna_treecv._kernels.moments cimport moments_bytes
from optuna_treecv._kernels.moments cimport see_row
from optuna_treecv._kernels.moments cimport survey_dense
from optuna_treecv._kernels.moments cimport write_moments
from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.tree cimport Kernel
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport prefetch_row


cdef enum:
    ROOM = 4096                 # numbers (float64) in the scaled rows, which stay in the first-level cache
    MOST_ROWS = 8               # scaled at a time
    AHEAD = 6

#: The most columns of padded rows: two of them fit into the room for scaled rows.
MOST_WIDTH = ROOM // 2


cdef struct Settings:
    Behind behind               # the kernel that reads the scaled rows
    Columns columns             # all columns of the rows


cdef inline unsigned char *own_part(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the moments in a state are."""
    return <unsigned char *> state + (<const Settings *> learner.settings).behind.learner.state_bytes


cdef dispatched survey(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state
) noexcept nogil:
    survey_dense(&(<const Settings *> learner.settings).columns, start, stop, order, own_part(learner, state))


cdef inlined scale_rows(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    Py_ssize_t end,             # the end of the phase: rows up to there are prefetched
    const unsigned char *state,
    floating *out,              # OUT, (stop - start, width)
) noexcept nogil:
    """Write the rows start..stop-1, or order[start], ..., order[stop-1], as the state sees them."""
    cdef Moments moments = moments_at(&(<const Settings *> learner.settings).columns, own_part(learner, state))
    cdef const floating *X = <const floating *> learner.dense.values
    cdef Py_ssize_t width = learner.width
    cdef Py_ssize_t ahead = learner.dense.ahead
    cdef Py_ssize_t i
    for i in range(start, stop):
        if order != NULL:
            if i + AHEAD < end:
                prefetch_row(X + order[i + AHEAD] * width, width)
        elif ahead != 0:                                # what lies behind the rows is not read
            prefetch_row(X + (i + ahead) * width, width)
        see_row(X + row_at(order, i) * width, width, &moments, out)
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
    cdef Learner behind = (<const Settings *> learner.settings).behind.learner[0]
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
    Py_ssize_t end,             # the end of the phase
    const unsigned char *state,
    Room *room,                 # OUT
    Py_ssize_t at,              # the first place for a row
) noexcept nogil:
    """Put rows into the room, as the state sees them."""
    cdef Py_ssize_t y_bytes = (<const Settings *> learner.settings).behind.y_bytes
    if learner.itemsize == 8:
        scale_rows(learner, start, stop, order, end, state, room.rows + at * learner.width)
    else:
        scale_rows(learner, start, stop, order, end, state, <float *> room.rows + at * learner.width)
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
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,
    Log *log,
    void *tested,
) noexcept nogil:
    cdef Room room
    cdef Learner behind = reader_of(learner, &room)
    cdef Py_ssize_t most = rows_at_a_time(learner)
    cdef Py_ssize_t end
    while start < stop:
        end = min(start + most, stop)
        fill(learner, start, end, order, stop, state, &room, 0)
        behind.train(&behind, 0, end - start, NULL, state, NULL, NULL)
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
        fill(learner, first_start, first_start + n, order, first_start + n_rows, first, &room, 0)
        fill(learner, second_start, second_start + n, order, second_start + n_rows, second, &room, n)
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
        fill(learner, start, end, NULL, stop, state, &room, 0)
        behind.test(&behind, state, model, 0, end - start, written)
        written += (end - start) * learner.n_outputs * learner.itemsize
        start = end


cdef class Scaled(Around):
    """A kernel over dense rows that sees them scaled; ``centred`` and ``scaled`` say which columns."""

    cdef Settings own
    cdef double [:, ::1] flags

    def __init__(
        self,
        Kernel behind not None,
        const unsigned char [::1] centred,           # IN, (n_features,), 0 or 1
        const unsigned char [::1] scaled,            # IN, (n_features,), 0 or 1
        Blocks blocks not None,                      # IN, of the rows of ``behind``
    ):
        cdef Py_ssize_t width = behind.learner.width
        if behind.learner.sparse.begins != NULL:
            raise ValueError("rows must be dense, since centring leaves no zeros.")
        if width > MOST_WIDTH:
            raise ValueError(f"rows must have at most {MOST_WIDTH} columns, got {width}.")
        self.flags = flags_of(centred, scaled, width)
        self.own.columns = blocks.columns(self.flags)
        if self.own.columns.values != behind.learner.dense.values:
            raise ValueError("blocks must be of the rows of the kernel behind.")
        self.stand_around(behind, &self.own.behind, moments_bytes(&self.own.columns))
        self.keep_alive.append(blocks)
        self.learner.survey = survey
        self.learner.train = train
        if behind.learner.train_both != NULL:
            self.learner.train_both = train_both
        self.learner.test = test

    def start(self, unsigned char [::1] state):
        """Write the state before the first row, in which rows are seen as they are."""
        self.check_state(state)
        self.behind.start(state[: self.behind.state_bytes])
        begin_moments(&self.own.columns, own_part(&self.learner, &state[0]))

    def moments(
        self,
        const unsigned char [::1] state,
        double [::1] mean,                           # OUT, (n_features,)
        double [::1] M2,                             # OUT, (n_features,)
        double [::1] known_mean,                     # OUT, (n_features,), of the values that are not missing
    ):
        """Write the moments of the columns that a state holds; return the number of rows in them."""
        self.check_state(state)
        return write_moments(&self.own.columns, own_part(&self.learner, &state[0]), mean, M2, known_mean)
