"""Scaled sparse rows: any kernel over CSR rows, behind the running moments of their columns.

There are two sorts of columns. Those that are centred or filled in lie beside the sparse rows as dense ones, since
centring leaves no zeros (``moments.pxd``). The others may be divided by their scales: a value x is seen as
    x / sqrt(M2 / count).
Their moments are summed over the nonzeros of a phase, in two readings: the mean of each column, and then the squared
deviations from it, to which each zero adds mean^2. They are merged like those of dense columns. Such a phase takes
time for all columns, as copying a state does; states are copied and not undone.

The kernel behind reads a row as the dense columns, all of them, and then the nonzeros of the others.
"""

import numpy as np

from cython cimport floating
from libc.math cimport NAN
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc
from libc.stdlib cimport free
from libc.string cimport memset

from optuna_treecv._kernels.around cimport Around
from optuna_treecv._kernels.around cimport Behind
from optuna_treecv._kernels.moments cimport Blocks
from optuna_treecv._kernels.moments cimport Columns
from optuna_treecv._kernels.moments cimport Moments
from optuna_treecv._kernels.moments cimport begin_moments
from optuna_treecv._kernels.moments cimport flags_of
from optuna_treecv._kernels.moments cimport merge
from optuna_treecv._kernels.moments cimport moments_at
from optuna_treecv._kernels.moments cimport moments_bytes
from optuna_treecv._kernels.moments cimport scale_factor
from optuna_treecv._kernels.moments cimport see_row
from optuna_treecv._kernels.moments cimport survey_dense
from optuna_treecv._kernels.moments cimport write_moments
from optuna_treecv._kernels.rows cimport Sparse
from optuna_treecv._kernels.rows cimport fetch_row
from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.tree cimport Kernel
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport prefetch_row


cdef enum:
    ROOM = 4096                 # numbers of scaled rows, which stay in the first-level cache
    MOST_ROWS = 32              # scaled at a time
    AHEAD = 6

#: The most numbers of a row, nonzeros and those of dense columns: two rows fit into the room for scaled rows.
MOST_NUMBERS = ROOM // 2


cdef struct Settings:
    Behind behind               # the kernel that reads the scaled rows
    Columns dense               # the columns beside the sparse rows, if there are any
    Py_ssize_t n_dense          # without those that are padding
    const int32_t *numbers      # (n_dense,), which columns of the rows they are
    const double *scaled        # (width,), 1 if a column of the sparse rows is divided by its scale, else 0; or NULL


# Of the columns of the sparse rows, if any is scaled or there are no others: the count, and a vector of each kind.
cdef struct SparseMoments:
    int64_t *count
    double *mean                # (width,)
    double *M2                  # (width,)
    void *factor                # (width,), what a value is multiplied by, in the type of the rows


cdef inline const Settings *settings_of(const Learner *learner) noexcept nogil:
    return <const Settings *> learner.settings


cdef inline unsigned char *dense_part(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the moments of the dense columns are, which come first behind the state of the kernel."""
    return <unsigned char *> state + settings_of(learner).behind.learner.state_bytes


cdef inline SparseMoments sparse_part(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the moments of the columns of the sparse rows are."""
    cdef unsigned char *at = dense_part(learner, state) + moments_bytes(&settings_of(learner).dense)
    cdef SparseMoments moments
    moments.count = <int64_t *> at
    moments.mean = <double *> (at + 64)
    moments.M2 = moments.mean + learner.width
    moments.factor = moments.M2 + learner.width
    return moments


cdef inline Py_ssize_t sparse_bytes(const Learner *learner) noexcept nogil:
    return 64 + (16 + learner.itemsize) * learner.width


cdef inlined sum_deviations(
    const Sparse *rows,
    Py_ssize_t width,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    double *mean,               # INOUT, (width,), of zeros at first
    double *M2,                 # INOUT, (width,), of zeros at first
    double *n_nonzeros,         # INOUT, (width,), of zeros at first
    const floating *of_type,
) noexcept nogil:
    """Find the moments of the columns of some rows."""
    cdef const floating *x = <const floating *> rows.values
    cdef double m = <double> (stop - start)
    cdef double delta
    cdef Py_ssize_t i, row
    cdef int64_t j
    for i in range(start, stop):
        row = row_at(order, i)
        for j in range(rows.begins[row], rows.begins[row + 1]):
            mean[rows.columns[j]] += <double> x[j]
            n_nonzeros[rows.columns[j]] += 1
    for i in range(width):
        mean[i] /= m
        M2[i] = (m - n_nonzeros[i]) * mean[i] * mean[i]
    for i in range(start, stop):
        row = row_at(order, i)
        for j in range(rows.begins[row], rows.begins[row + 1]):
            delta = <double> x[j] - mean[rows.columns[j]]
            M2[rows.columns[j]] += delta * delta


cdef inlined survey_sparse(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    const SparseMoments *moments,       # INOUT
    floating *factor,           # OUT, (width,)
) noexcept nogil:
    """Merge the moments of new rows, and find what values are multiplied by."""
    cdef const double *scaled = settings_of(learner).scaled
    cdef Py_ssize_t width = learner.width
    cdef double *room = <double *> calloc(3 * width, sizeof(double))
    cdef double n_seen = <double> moments.count[0]
    cdef double m = <double> (stop - start)
    cdef double factor_of
    cdef Py_ssize_t j
    if room == NULL:                                    # no number is better than a wrong one
        for j in range(width):
            factor[j] = NAN
        return
    sum_deviations(&learner.sparse, width, start, stop, order, room, room + width, room + 2 * width, factor)
    merge(n_seen, m, room, room + width, width, moments.mean, moments.M2)
    moments.count[0] += stop - start
    n_seen += m
    for j in range(width):
        factor_of = scale_factor(n_seen, moments.mean[j], moments.M2[j] / n_seen)
        factor[j] = <floating> (factor_of if scaled[j] > 0 else 1)
    free(room)


cdef dispatched survey(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state
) noexcept nogil:
    cdef const Settings *settings = settings_of(learner)
    cdef SparseMoments moments
    if settings.n_dense > 0:
        survey_dense(&settings.dense, start, stop, order, dense_part(learner, state))
    if settings.scaled != NULL:
        moments = sparse_part(learner, state)
        if learner.itemsize == 8:
            survey_sparse(learner, start, stop, order, &moments, <double *> moments.factor)
        else:
            survey_sparse(learner, start, stop, order, &moments, <float *> moments.factor)


# Rows as the kernel behind reads them: scaled, with their targets and weights beside them.
cdef struct Room:
    double values[ROOM]
    int32_t columns[ROOM]
    int64_t begins[MOST_ROWS + 1]
    double targets[MOST_ROWS]
    double weights[MOST_ROWS]
    double dense[ROOM]          # the dense columns of one row


cdef inline Learner reader_of(const Learner *learner, Room *room) noexcept nogil:
    """Return the kernel behind, reading its rows in ``room``."""
    cdef Learner behind = settings_of(learner).behind.learner[0]
    behind.sparse.values = room.values
    behind.sparse.columns = room.columns
    behind.sparse.begins = room.begins
    behind.y = NULL if learner.y == NULL else room.targets
    behind.weights = NULL if learner.weights == NULL else room.weights
    return behind


cdef inline void copy_entry(
    const void *entries, Py_ssize_t itemsize, Py_ssize_t row, double *memory, Py_ssize_t at
) noexcept nogil:
    """Copy the entry of a row, of 4 or 8 bytes, if there are entries."""
    if entries == NULL:
        return
    if itemsize == 4:
        (<int32_t *> memory)[at] = (<const int32_t *> entries)[row]
    else:
        (<int64_t *> memory)[at] = (<const int64_t *> entries)[row]


cdef inlined fetch(
    const Learner *learner, const uint32_t *order, Py_ssize_t i, Py_ssize_t stop, const floating *of_type
) noexcept nogil:
    """Prefetch a row ahead, in random order."""
    cdef const Columns *dense = &settings_of(learner).dense
    if order != NULL and i + AHEAD < stop:
        fetch_row(&learner.sparse, order[i + AHEAD], of_type)
        if dense.width > 0:
            prefetch_row(<const floating *> dense.values + order[i + AHEAD] * dense.width, dense.width)


cdef inlined see_sparse(
    const Sparse *rows,
    Py_ssize_t row,
    const floating *factor,     # IN, or NULL
    floating *values,           # OUT
    int32_t *columns,           # OUT
) noexcept nogil:
    """Write the nonzeros of a row as the state sees them."""
    cdef const floating *x = <const floating *> rows.values
    cdef int64_t begin = rows.begins[row]
    cdef int64_t j
    for j in range(begin, rows.begins[row + 1]):
        values[j - begin] = x[j] if factor == NULL else x[j] * factor[rows.columns[j]]
        columns[j - begin] = rows.columns[j]


cdef inline Py_ssize_t fill_rows(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    const unsigned char *state,
    Room *room,                 # OUT
    floating *values,           # OUT, those of the room
    floating *dense,            # OUT, those of the room
) noexcept nogil:
    """Put as many rows from ``start`` on into the room as it holds; return where the rest begins."""
    cdef const Settings *settings = settings_of(learner)
    cdef const Columns *columns = &settings.dense
    cdef const Sparse *rows = &learner.sparse
    cdef Moments of_dense = moments_at(columns, dense_part(learner, state))
    cdef const floating *factor = NULL
    cdef Py_ssize_t n_dense = settings.n_dense
    cdef Py_ssize_t n_rows = 0
    cdef int64_t at = 0
    cdef int64_t n
    cdef Py_ssize_t j, row
    if settings.scaled != NULL:
        factor = <const floating *> sparse_part(learner, state).factor
    room.begins[0] = 0
    while start < stop and n_rows < MOST_ROWS:
        row = row_at(order, start)
        n = rows.begins[row + 1] - rows.begins[row]
        if at + n_dense + n > ROOM:
            break
        fetch(learner, order, start, stop, values)
        if n_dense > 0:
            see_row(<const floating *> columns.values + row * columns.width, columns.width, &of_dense, dense)
            for j in range(n_dense):
                values[at + j] = dense[j]
                room.columns[at + j] = settings.numbers[j]
        see_sparse(rows, row, factor, values + at + n_dense, room.columns + at + n_dense)
        copy_entry(learner.y, settings.behind.y_bytes, row, room.targets, n_rows)
        copy_entry(learner.weights, learner.itemsize, row, room.weights, n_rows)
        at += n_dense + n
        n_rows += 1
        room.begins[n_rows] = at
        start += 1
    return start


cdef inline Py_ssize_t fill(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    const unsigned char *state,
    Room *room,                 # OUT
) noexcept nogil:
    """Put as many rows from ``start`` on into the room as it holds, as the state sees them; return where the rest
    begins.
    """
    if learner.itemsize == 8:
        return fill_rows(learner, start, stop, order, state, room, room.values, room.dense)
    return fill_rows(learner, start, stop, order, state, room, <float *> room.values, <float *> room.dense)


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
    cdef Py_ssize_t end
    while start < stop:
        end = fill(learner, start, stop, order, state, &room)
        behind.train(&behind, 0, end - start, NULL, state, NULL, NULL)
        start = end


cdef dispatched test(
    const Learner *learner, const unsigned char *state, void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    cdef Room room
    cdef Learner behind = reader_of(learner, &room)
    cdef unsigned char *written = <unsigned char *> out
    cdef Py_ssize_t end
    while start < stop:
        end = fill(learner, start, stop, NULL, state, &room)
        behind.test(&behind, state, model, 0, end - start, written)
        written += (end - start) * learner.n_outputs * learner.itemsize
        start = end


cdef class ScaledSparse(Around):
    """A kernel over sparse rows that sees them scaled; ``centred`` and ``scaled`` say which columns.

    The columns of ``beside`` lie in the rows of ``blocks`` and not in those of the kernel behind. Only they may be
    centred.
    """

    cdef Settings own
    cdef double [:, ::1] flags
    cdef double [:, ::1] flags_of_sparse
    cdef int32_t [::1] numbers
    cdef Py_ssize_t n_features

    def __init__(
        self,
        Kernel behind not None,
        const unsigned char [::1] centred,           # IN, (n_features,), 0 or 1
        const unsigned char [::1] scaled,            # IN, (n_features,), 0 or 1
        beside=(),                                   # IN, (n_dense,), the columns that lie beside the sparse rows
        Blocks blocks=None,                          # IN, of these columns
    ):
        cdef const Sparse *rows = &behind.learner.sparse
        cdef Py_ssize_t n_features = centred.shape[0]
        cdef Py_ssize_t own_bytes, i
        if rows.begins == NULL:
            raise ValueError("rows must be sparse.")
        self.n_features = n_features
        self.numbers = np.array(beside, np.int32)
        self.own.n_dense = self.numbers.shape[0]
        self.flags_of_sparse = flags_of(centred, scaled, behind.learner.width)
        for i in range(self.own.n_dense):
            if not 0 <= self.numbers[i] < n_features:
                raise ValueError("beside must hold numbers of columns.")
            self.flags_of_sparse[:, self.numbers[i]] = 0
        if np.any(self.flags_of_sparse[0]):
            raise ValueError("columns that are centred must lie beside the sparse rows.")
        for i in range(behind.n_rows):
            if self.own.n_dense + rows.begins[i + 1] - rows.begins[i] > MOST_NUMBERS:
                raise ValueError(f"a row must have at most {MOST_NUMBERS} numbers.")
        if self.own.n_dense > 0:
            if blocks is None or blocks.X.shape[0] != behind.n_rows or blocks.X.dtype.itemsize != behind.itemsize:
                raise ValueError("blocks must be of as many rows, of the same type, as the kernel behind has.")
            self.flags = flags_of(
                np.take(centred, self.numbers), np.take(scaled, self.numbers), blocks.X.shape[1]
            )
            self.own.dense = blocks.columns(self.flags)
            self.own.numbers = &self.numbers[0]
        own_bytes = moments_bytes(&self.own.dense)
        if self.own.n_dense == 0 or np.any(self.flags_of_sparse[1]):
            self.own.scaled = &self.flags_of_sparse[1, 0]
            own_bytes += sparse_bytes(&behind.learner)
        self.stand_around(behind, &self.own.behind, own_bytes)
        self.keep_alive.append(blocks)
        self.learner.survey = survey
        self.learner.train = train
        self.learner.test = test

    def start(self, unsigned char [::1] state):
        """Write the state before the first row, in which rows are seen as they are."""
        cdef SparseMoments moments
        cdef Py_ssize_t j
        self.check_state(state)
        self.behind.start(state[: self.behind.state_bytes])
        begin_moments(&self.own.dense, dense_part(&self.learner, &state[0]))
        if self.own.scaled == NULL:
            return
        moments = sparse_part(&self.learner, &state[0])
        memset(moments.count, 0, sparse_bytes(&self.learner))
        for j in range(self.learner.width):
            if self.itemsize == 8:
                (<double *> moments.factor)[j] = 1
            else:
                (<float *> moments.factor)[j] = 1

    def moments(
        self,
        const unsigned char [::1] state,
        double [::1] mean,                           # OUT, (n_features,), 0 if a column needs no moments
        double [::1] M2,                             # OUT, (n_features,), likewise
        double [::1] known_mean,                     # OUT, (n_features,), of the values that are not missing
    ):
        """Write the moments of the columns that a state holds; return the number of rows in them."""
        cdef SparseMoments moments
        cdef int64_t n_rows = 0
        cdef double [:, ::1] of_dense = np.empty((3, self.own.n_dense))
        cdef Py_ssize_t i, j
        self.check_state(state)
        if not mean.shape[0] == M2.shape[0] == known_mean.shape[0] == self.n_features:
            raise ValueError("mean, M2 and known_mean must have room for each feature.")
        for j in range(self.n_features):
            mean[j] = M2[j] = known_mean[j] = 0
        if self.own.scaled != NULL:
            moments = sparse_part(&self.learner, &state[0])
            n_rows = moments.count[0]
            for j in range(self.n_features):
                mean[j], M2[j], known_mean[j] = moments.mean[j], moments.M2[j], moments.mean[j]
        if self.own.n_dense > 0:
            n_rows = write_moments(
                &self.own.dense, dense_part(&self.learner, &state[0]), of_dense[0], of_dense[1], of_dense[2]
            )
            for i in range(self.own.n_dense):
                j = self.numbers[i]
                mean[j], M2[j], known_mean[j] = of_dense[0, i], of_dense[1, i], of_dense[2, i]
        return n_rows
