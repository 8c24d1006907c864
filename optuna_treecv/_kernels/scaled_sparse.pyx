"""Scaled sparse rows: any kernel over CSR rows, behind the running scales of their columns.

It is ``scaled.pyx`` without centring, which would leave no zeros: a value x of a column is seen as
    x / sqrt(M2 / count).
The moments of a phase are summed over its nonzeros, in two readings: the mean of each column, and then the squared
deviations from it, to which each zero adds mean^2. They are merged as in ``scaled.pyx``. Each phase therefore takes
time for all columns, as copying a state does; states are copied and not undone.
"""

import numpy as np

from cython cimport floating
from libc.float cimport DBL_EPSILON
from libc.math cimport NAN
from libc.math cimport sqrt
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc
from libc.stdlib cimport free
from libc.string cimport memcpy
from libc.string cimport memset

from optuna_treecv._kernels.rows cimport Sparse
from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.tree cimport Kernel
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined


cdef enum:
    ROOM = 4096                 # nonzeros of scaled rows, which stay in the first-level cache
    MOST_ROWS = 32              # scaled at a time

#: The most nonzeros of a row: two rows fit into the room for scaled rows.
MOST_NONZEROS = ROOM // 2


cdef struct Settings:
    const Learner *behind       # the kernel that reads the scaled rows
    Py_ssize_t y_bytes          # of an entry of y
    Py_ssize_t n_features
    const double *scaled        # (width,), 1 if a column is divided by its scale, else 0


# Behind a state of the kernel: the count, and a vector of each kind, of which the first two are float64.
cdef struct Moments:
    int64_t *count
    double *mean                # (width,)
    double *M2                  # (width,)
    void *factor                # (width,), what a value is multiplied by, in the type of the rows


cdef inline Moments moments_of(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the moments in a state are."""
    cdef unsigned char *at = <unsigned char *> state + (<const Settings *> learner.settings).behind.state_bytes
    cdef Moments moments
    moments.count = <int64_t *> at
    moments.mean = <double *> (at + 64)
    moments.M2 = moments.mean + learner.width
    moments.factor = moments.M2 + learner.width
    return moments


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


cdef inlined survey_columns(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    const Moments *moments,     # INOUT
    floating *factor,           # OUT, (width,)
) noexcept nogil:
    """Merge the moments of new rows, and find what values are multiplied by."""
    cdef const Settings *settings = <const Settings *> learner.settings
    cdef Py_ssize_t width = learner.width
    cdef double *room = <double *> calloc(3 * width, sizeof(double))
    cdef double n_seen = <double> moments.count[0]
    cdef double m = <double> (stop - start)
    cdef double share = m / (n_seen + m)
    cdef double delta, mean, variance, small, factor_of
    cdef Py_ssize_t j
    if room == NULL:                                    # no number is better than a wrong one
        for j in range(width):
            factor[j] = NAN
        return
    sum_deviations(&learner.sparse, width, start, stop, order, room, room + width, room + 2 * width, factor)
    moments.count[0] += stop - start
    n_seen += m
    for j in range(width):
        delta = room[j] - moments.mean[j]
        moments.mean[j] += delta * share
        moments.M2[j] += room[width + j] + delta * delta * ((n_seen - m) * share)
        mean, variance = moments.mean[j], moments.M2[j] / n_seen
        small = n_seen * mean * DBL_EPSILON
        small = n_seen * DBL_EPSILON * variance + small * small
        factor_of = 1 / sqrt(variance)
        factor_of = 1 if variance <= small else factor_of
        factor[j] = <floating> (factor_of if settings.scaled[j] > 0 else 1)
    free(room)


cdef dispatched survey(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state
) noexcept nogil:
    cdef Moments moments = moments_of(learner, state)
    if learner.itemsize == 8:
        survey_columns(learner, start, stop, order, &moments, <double *> moments.factor)
    else:
        survey_columns(learner, start, stop, order, &moments, <float *> moments.factor)


# Rows as the kernel behind reads them: scaled, with their targets and weights beside them.
cdef struct Room:
    double values[ROOM]
    int32_t columns[ROOM]
    int64_t begins[MOST_ROWS + 1]
    double targets[MOST_ROWS]
    double weights[MOST_ROWS]


cdef inline Learner reader_of(const Learner *learner, Room *room) noexcept nogil:
    """Return the kernel behind, reading its rows in ``room``."""
    cdef Learner behind = (<const Settings *> learner.settings).behind[0]
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


cdef inline void scale_row(
    const Sparse *rows,
    Py_ssize_t row,
    const floating *factor,
    floating *values,           # OUT
    int32_t *columns,           # OUT
) noexcept nogil:
    cdef const floating *x = <const floating *> rows.values
    cdef int64_t begin = rows.begins[row]
    cdef int64_t j
    for j in range(begin, rows.begins[row + 1]):
        values[j - begin] = x[j] * factor[rows.columns[j]]
        columns[j - begin] = rows.columns[j]


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
    cdef Moments moments = moments_of(learner, state)
    cdef const Sparse *rows = &learner.sparse
    cdef Py_ssize_t y_bytes = (<const Settings *> learner.settings).y_bytes
    cdef Py_ssize_t n_rows = 0
    cdef int64_t at = 0
    cdef Py_ssize_t row
    room.begins[0] = 0
    while start < stop and n_rows < MOST_ROWS:
        row = row_at(order, start)
        if at + rows.begins[row + 1] - rows.begins[row] > ROOM:
            break
        if learner.itemsize == 8:
            scale_row(rows, row, <const double *> moments.factor, room.values + at, room.columns + at)
        else:
            scale_row(
                rows, row, <const float *> moments.factor, <float *> room.values + at, room.columns + at
            )
        copy_entry(learner.y, y_bytes, row, room.targets, n_rows)
        copy_entry(learner.weights, learner.itemsize, row, room.weights, n_rows)
        at += rows.begins[row + 1] - rows.begins[row]
        n_rows += 1
        room.begins[n_rows] = at
        start += 1
    return start


cdef void train(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, Log *log
) noexcept nogil:
    cdef Room room
    cdef Learner behind = reader_of(learner, &room)
    cdef Py_ssize_t end
    while start < stop:
        end = fill(learner, start, stop, order, state, &room)
        behind.train(&behind, 0, end - start, NULL, state, NULL)
        start = end


cdef void test(
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


cdef void read(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    cdef const Learner *behind = (<const Settings *> learner.settings).behind
    behind.read(behind, state, model)


cdef class ScaledSparse(Kernel):
    """A kernel over sparse rows that sees them scaled; ``scaled`` says which columns.

    The kernel behind must have its weights (``weigh``), and is used through this one only.
    """

    cdef Settings own
    cdef Kernel behind
    cdef double [::1] flags

    def __init__(
        self,
        Kernel behind not None,
        const unsigned char [::1] scaled,            # IN, (n_features,), 0 or 1
    ):
        cdef const Sparse *rows = &behind.learner.sparse
        cdef Py_ssize_t n_features = scaled.shape[0]
        cdef Py_ssize_t i
        if behind.state_bytes == 0:
            raise ValueError("the kernel behind was not initialised.")
        if rows.begins == NULL:
            raise ValueError("rows must be sparse.")
        if not 0 < n_features <= behind.learner.width:
            raise ValueError("scaled must have an entry for each feature.")
        for i in range(behind.n_rows):
            if rows.begins[i + 1] - rows.begins[i] > MOST_NONZEROS:
                raise ValueError(f"a row must have at most {MOST_NONZEROS} nonzeros.")
        self.behind = behind
        self.flags = np.zeros(behind.learner.width)
        for i in range(n_features):
            self.flags[i] = scaled[i]
        self.keep_alive = [behind]
        self.own.behind = &behind.learner
        self.own.y_bytes = 4 if behind.n_classes > 0 else behind.itemsize
        self.own.n_features = n_features
        self.own.scaled = &self.flags[0]
        self.n_rows, self.n_classes, self.n_models = behind.n_rows, behind.n_classes, behind.n_models
        self.n_outputs, self.itemsize = behind.n_outputs, behind.itemsize
        self.is_weighed = True
        self.learner = behind.learner
        self.learner.settings = &self.own
        self.learner.survey = survey
        self.learner.train = train
        self.learner.train_both = NULL
        self.learner.test_then_train = NULL
        self.learner.test = test
        self.learner.read = read
        self.learner.changes = NULL
        self.learner.remember_columns = NULL
        self.set_sizes(
            behind.learner.head_bytes,
            behind.state_bytes + 64 + (16 + behind.itemsize) * behind.learner.width,
            behind.model_bytes,
        )
        self.log_bytes = 0                              # a phase changes the moments of all columns

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
        double [::1] known_mean,                     # OUT, (n_features,): the mean, since no value is missing
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
        memcpy(&known_mean[0], moments.mean, 8 * n_features)
        return moments.count[0]
