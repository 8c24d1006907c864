"""Scaled rows: any kernel on rows that are centred and scaled by the running moments of their columns.

Where rows are dense, a value x is seen as (x - mean) / sqrt(M2 / count) (``moments.pxd``). Sparse rows have two sorts
of columns. Those that are centred or filled in lie beside the sparse rows as dense ones, since centring leaves no
zeros. The others may be divided by their scales: a value x is seen as
    x / sqrt(M2 / count).
Their moments are summed over the nonzeros of a phase, in two readings: the mean of each column, and then the squared
deviations from it, to which each zero adds mean^2. They are merged like those of dense columns. Such a phase takes
time for all columns, as copying a state does; states are copied and not undone.

Rows are scaled a few at a time into memory that stays in the cache, and the kernel behind reads them there as its own
rows; of sparse ones it reads all dense columns first, and then the nonzeros of the others. So it does not depend on
scaling, and a row is scaled once for all lanes.
"""

import numpy as np

from cython cimport floating
from libc.math cimport NAN
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc
from libc.stdlib cimport free

from optuna_treecv._kernels.moments cimport Blocks
from optuna_treecv._kernels.moments cimport Columns
from optuna_treecv._kernels.moments cimport Moments
from optuna_treecv._kernels.moments cimport fill_with_ones
from optuna_treecv._kernels.moments cimport flags_of
from optuna_treecv._kernels.moments cimport merge
from optuna_treecv._kernels.moments cimport moments_at
from optuna_treecv._kernels.moments cimport moments_bytes
from optuna_treecv._kernels.moments cimport scale_factor
from optuna_treecv._kernels.moments cimport see_row
from optuna_treecv._kernels.moments cimport survey_dense
from optuna_treecv._kernels.rows cimport Sparse
from optuna_treecv._kernels.rows cimport fetch_row
from optuna_treecv._kernels.rows cimport n_nonzeros
from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.span cimport Span
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport prefetch_row
from optuna_treecv.engines.treecv.kernels.kernel cimport Kernel
from optuna_treecv.engines.treecv.kernels.tree cimport Learner


cdef enum:
    ROOM = 4096                 # numbers of scaled rows, which stay in the first-level cache
    DENSE_ROWS = 8              # scaled at a time: scaling waits for memory, training does not, and the CPU does both
    SPARSE_ROWS = 32            # likewise

#: The most numbers of a row, with those that are padding: two rows fit into the room for scaled rows.
MOST_NUMBERS: int = ROOM // 2


cdef struct Settings:
    const Learner *behind       # the kernel that reads the scaled rows
    Py_ssize_t y_bytes          # of an entry of y
    Columns dense               # the columns of dense rows, or those beside the sparse rows, if there are any
    Py_ssize_t n_dense          # without those that are padding
    const int32_t *numbers      # (n_dense,), which columns of the rows they are
    const double *scaled        # (width,), 1 if a column of the sparse rows is divided by its scale, else 0; or NULL


# Rows as the kernel behind reads them: scaled, with their targets and weights beside them.
cdef struct Room:
    double values[ROOM]
    int32_t columns[ROOM]       # of sparse rows only
    int64_t begins[SPARSE_ROWS + 1]
    double targets[SPARSE_ROWS]
    double weights[SPARSE_ROWS]


cdef inline const Settings *settings_of(const Learner *learner) noexcept nogil:
    return <const Settings *> learner.settings


cdef inline unsigned char *dense_part(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the moments of the dense columns are, which come first behind the state of the kernel."""
    return <unsigned char *> state + settings_of(learner).behind.state_bytes


cdef inline Moments sparse_part(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return where the moments of the columns of sparse rows are, if any is scaled or there are no others."""
    cdef unsigned char *at = dense_part(learner, state) + moments_bytes(&settings_of(learner).dense)
    cdef Moments moments
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
    Span span,
    double *mean,               # INOUT, (width,), of zeros at first
    double *M2,                 # INOUT, (width,), of zeros at first
    double *counts,             # INOUT, (width,), of zeros at first; of nonzeros
    const floating *of_type,
) noexcept nogil:
    """Compute the moments of the columns of some rows."""
    cdef const floating *x = <const floating *> rows.values
    cdef double m = <double> (span.stop - span.start)
    cdef double delta
    cdef Py_ssize_t i, row
    cdef int64_t j
    for i in range(span.start, span.stop):
        row = row_at(span, i)
        for j in range(rows.begins[row], rows.begins[row + 1]):
            mean[rows.columns[j]] += <double> x[j]
            counts[rows.columns[j]] += 1
    for i in range(width):
        mean[i] /= m
        M2[i] = (m - counts[i]) * mean[i] * mean[i]
    for i in range(span.start, span.stop):
        row = row_at(span, i)
        for j in range(rows.begins[row], rows.begins[row + 1]):
            delta = <double> x[j] - mean[rows.columns[j]]
            M2[rows.columns[j]] += delta * delta


cdef inlined survey_sparse(
    const Learner *learner,
    Span span,
    const Moments *moments,     # INOUT
    floating *factor,           # OUT, (width,)
) noexcept nogil:
    """Merge the moments of new sparse rows, and compute the factors of values."""
    cdef const double *scaled = settings_of(learner).scaled
    cdef Py_ssize_t width = learner.width
    cdef double *room = <double *> calloc(3 * width, sizeof(double))
    cdef double n_seen = <double> moments.count[0]
    cdef double m = <double> (span.stop - span.start)
    cdef double factor_of
    cdef Py_ssize_t j
    if room == NULL:                                    # no number is better than a wrong one
        for j in range(width):
            factor[j] = NAN
        return
    sum_deviations(&learner.sparse, width, span, room, room + width, room + 2 * width, factor)
    merge(n_seen, m, room, room + width, width, moments.mean, moments.M2)
    moments.count[0] += span.stop - span.start
    n_seen += m
    for j in range(width):
        factor_of = scale_factor(n_seen, moments.mean[j], moments.M2[j] / n_seen)
        factor[j] = <floating> (factor_of if scaled[j] > 0 else 1)
    free(room)


cdef dispatched survey(const Learner *learner, Span span, unsigned char *state) noexcept nogil:
    cdef const Settings *settings = settings_of(learner)
    cdef Moments moments
    if settings.n_dense > 0:
        survey_dense(&settings.dense, span, dense_part(learner, state))
    if settings.scaled != NULL:
        moments = sparse_part(learner, state)
        if learner.itemsize == 8:
            survey_sparse(learner, span, &moments, <double *> moments.factor)
        else:
            survey_sparse(learner, span, &moments, <float *> moments.factor)


cdef inline Learner reader_of(const Learner *learner, Room *room) noexcept nogil:
    """Return the kernel behind, reading its rows in ``room``."""
    cdef Learner behind = settings_of(learner).behind[0]
    if behind.sparse.begins != NULL:
        behind.sparse.values, behind.sparse.columns, behind.sparse.begins = room.values, room.columns, room.begins
    else:
        behind.dense.values, behind.dense.ahead = room.values, 0
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


cdef inlined fetch_ahead(const Learner *learner, Span span, const floating *of_type) noexcept nogil:
    """Prefetch a row ahead of the first one; sparse ones in random order only."""
    cdef const Columns *dense = &settings_of(learner).dense
    cdef const floating *X = <const floating *> dense.values
    cdef Py_ssize_t row, far
    if span.order == NULL and learner.sparse.begins == NULL and learner.dense.ahead != 0:
        row = span.start + learner.dense.far            # what lies behind the last row is not read
        prefetch_row(X + row * dense.width, dense.width, True)
    far = learner.dense.far if learner.sparse.begins == NULL else learner.sparse.far
    if span.order == NULL or span.start + far >= span.stop:
        return
    row = span.order[span.start + far]
    if learner.sparse.begins != NULL:
        fetch_row(&learner.sparse, row, True, of_type)
    if dense.width > 0:
        prefetch_row(X + row * dense.width, dense.width, True)


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
    Span span,
    const unsigned char *state,
    Room *room,                 # OUT
    Py_ssize_t place,
    Py_ssize_t last,
    floating *values,           # OUT, those of the room
) noexcept nogil:
    cdef const Settings *settings = settings_of(learner)
    cdef const Columns *dense = &settings.dense
    cdef const Sparse *rows = &learner.sparse
    cdef Moments of_dense = moments_at(dense, dense_part(learner, state))
    cdef const floating *factor = NULL
    cdef bint is_sparse = rows.begins != NULL
    cdef Py_ssize_t at = 0 if is_sparse else place * dense.width
    cdef Py_ssize_t n = 0
    cdef Py_ssize_t j, row
    if settings.scaled != NULL:
        factor = <const floating *> sparse_part(learner, state).factor
    room.begins[0] = 0
    while span.start < span.stop and place < last:
        row = row_at(span, span.start)
        if is_sparse:
            n = n_nonzeros(rows, row)
        if at + dense.width + n > ROOM:
            break
        fetch_ahead(learner, span, values)
        if dense.width > 0:
            see_row(<const floating *> dense.values + row * dense.width, dense.width, &of_dense, values + at)
        if is_sparse:
            for j in range(settings.n_dense):
                room.columns[at + j] = settings.numbers[j]
            at += settings.n_dense                      # the padding behind these columns is overwritten
            see_sparse(rows, row, factor, values + at, room.columns + at)
            at += n
            room.begins[place + 1] = at
        else:
            at += dense.width
        copy_entry(learner.y, settings.y_bytes, row, room.targets, place)
        copy_entry(learner.weights, learner.itemsize, row, room.weights, place)
        place += 1
        span.start += 1
    return span.start


cdef inline Py_ssize_t fill(
    const Learner *learner,
    Span span,
    const unsigned char *state,
    Room *room,                 # OUT
    Py_ssize_t place,           # of the first row in the room
    Py_ssize_t last,            # the place behind the last row
) noexcept nogil:
    """Write scaled rows of a span to the room until it is full; return the position of the next row.
    """
    if learner.itemsize == 8:
        return fill_rows(learner, span, state, room, place, last, room.values)
    return fill_rows(learner, span, state, room, place, last, <float *> room.values)


cdef inline Py_ssize_t most_rows(const Learner *learner) noexcept nogil:
    """Return how many rows the room holds, at most."""
    if learner.sparse.begins != NULL:
        return SPARSE_ROWS
    return min(<Py_ssize_t> DENSE_ROWS, ROOM // learner.width)


cdef dispatched train(const Learner *learner, Span span, unsigned char *state, Log *log, void *tested) noexcept nogil:
    cdef Room room
    cdef Learner behind = reader_of(learner, &room)
    cdef Py_ssize_t end
    while span.start < span.stop:
        end = fill(learner, span, state, &room, 0, most_rows(learner))
        behind.train(&behind, Span(0, end - span.start, NULL), state, NULL, NULL)
        span.start = end


cdef dispatched train_both(
    const Learner *learner,
    Span span,
    Span other_span,
    unsigned char *first,
    unsigned char *second,
) noexcept nogil:
    """Train two states on dense rows."""
    cdef Room room
    cdef Learner behind = reader_of(learner, &room)
    cdef Py_ssize_t n
    while span.start < span.stop:
        n = min(most_rows(learner) // 2, span.stop - span.start)
        fill(learner, span, first, &room, 0, n)
        fill(learner, other_span, second, &room, n, 2 * n)
        behind.train_both(&behind, Span(0, n, NULL), Span(n, 2 * n, NULL), first, second)
        span.start, other_span.start = span.start + n, other_span.start + n


cdef dispatched test(
    const Learner *learner, const unsigned char *state, void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    cdef Room room
    cdef Learner behind = reader_of(learner, &room)
    cdef unsigned char *written = <unsigned char *> out
    cdef Py_ssize_t end
    while start < stop:
        end = fill(learner, Span(start, stop, NULL), state, &room, 0, most_rows(learner))
        behind.test(&behind, state, model, 0, end - start, written)
        written += (end - start) * learner.n_outputs * learner.itemsize
        start = end


cdef void read(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    cdef const Learner *behind = settings_of(learner).behind
    behind.read(behind, state, model)


cdef class Scaled(Kernel):
    """A kernel around another one, whose rows it sees scaled; ``centred`` and ``scaled`` say which columns.

    ``blocks`` are of the rows of the kernel behind if they are dense. Beside sparse rows, they are of the columns of
    ``beside``, which the rows themselves do not hold; only these may be centred.

    The state of the kernel behind comes first in a state, and its model is the model. It must have its weights
    (``weigh``), and is used through this one only.
    """

    cdef Kernel behind
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
        Blocks blocks=None,                          # IN, of dense columns
        beside=(),                                   # IN, (n_dense,), the columns that lie beside sparse rows
    ):
        cdef bint is_sparse = behind.learner.sparse.begins != NULL
        cdef Py_ssize_t n_features = centred.shape[0]
        if behind.state_bytes == 0:
            raise ValueError("the kernel behind was not initialised.")
        if not is_sparse and len(beside):
            raise ValueError("rows must be sparse where columns lie beside them.")
        if scaled.shape[0] != n_features:
            raise ValueError("centred and scaled must have an entry for each column.")
        self.n_features = n_features
        self.numbers = np.array(beside, np.int32) if is_sparse else np.arange(n_features, dtype=np.int32)
        self.own.n_dense = self.numbers.shape[0]
        if is_sparse:
            self.bind_sparse(behind, centred, scaled)
        elif behind.learner.width > MOST_NUMBERS:
            raise ValueError(f"rows must have at most {MOST_NUMBERS} columns, got {behind.learner.width}.")
        if self.own.n_dense > 0:
            if blocks is None or blocks.X.shape[0] != behind.n_rows or blocks.X.dtype.itemsize != behind.itemsize:
                raise ValueError("blocks must be of as many rows, of the same type, as the kernel behind has.")
            self.flags = flags_of(np.take(centred, self.numbers), np.take(scaled, self.numbers), blocks.X.shape[1])
            self.own.dense = blocks.columns(self.flags)
            self.own.numbers = &self.numbers[0]
            if not is_sparse and self.own.dense.values != behind.learner.dense.values:
                raise ValueError("blocks must be of the rows of the kernel behind.")
        self.stand_around(behind)
        self.keep_alive = [behind, blocks]

    cdef int bind_sparse(
        self, Kernel behind, const unsigned char [::1] centred, const unsigned char [::1] scaled
    ) except -1:
        """Check sparse rows, and find the columns that are scaled."""
        cdef Py_ssize_t i
        self.flags_of_sparse = flags_of(centred, scaled, behind.learner.width)
        for i in range(self.own.n_dense):
            if not 0 <= self.numbers[i] < self.n_features:
                raise ValueError("beside must hold numbers of columns.")
            self.flags_of_sparse[:, self.numbers[i]] = 0
        if np.any(self.flags_of_sparse[0]):
            raise ValueError("columns that are centred must lie beside the sparse rows.")
        for i in range(behind.n_rows):
            if self.own.n_dense + n_nonzeros(&behind.learner.sparse, i) > MOST_NUMBERS:
                raise ValueError(f"a row must have at most {MOST_NUMBERS} numbers.")
        if self.own.n_dense == 0 or np.any(self.flags_of_sparse[1]):
            self.own.scaled = &self.flags_of_sparse[1, 0]
        return 0

    cdef int stand_around(self, Kernel behind) except -1:
        """Take over the rows and the outputs of the kernel behind."""
        cdef Py_ssize_t own_bytes = moments_bytes(&self.own.dense)
        if self.own.scaled != NULL:
            own_bytes += sparse_bytes(&behind.learner)
        self.behind = behind
        self.own.behind = &behind.learner
        self.own.y_bytes = 4 if behind.n_classes > 0 else behind.itemsize
        self.n_rows, self.n_classes, self.n_models = behind.n_rows, behind.n_classes, behind.n_models
        self.out_rows = behind.out_rows
        self.n_outputs, self.itemsize = behind.n_outputs, behind.itemsize
        self.is_weighed = True
        self.learner = behind.learner
        self.learner.settings = &self.own
        self.learner.survey = survey
        self.learner.train = train
        if behind.learner.train_both != NULL:
            self.learner.train_both = train_both
        self.learner.test_two = NULL
        self.learner.test = test
        self.learner.read = read
        self.learner.tests_rows = False
        self.learner.changes = NULL
        self.learner.remember_columns = NULL
        self.set_sizes(
            behind.learner.head_bytes,
            behind.state_bytes + own_bytes - behind.learner.head_bytes,
            behind.model_bytes,
        )
        self.log_bytes = 0                              # states are copied
        return 0

    @property
    def model_type(self) -> str:
        """The type of the numbers in a model."""
        return self.behind.model_type

    def start(self, unsigned char [::1] state):
        """Write the state before the first row, in which rows are seen as they are."""
        cdef Moments moments
        Kernel.start(self, state)
        self.behind.start(state[: self.behind.state_bytes])
        if self.own.n_dense > 0:
            moments = moments_at(&self.own.dense, dense_part(&self.learner, &state[0]))
            fill_with_ones(moments.factor, self.own.dense.width, self.itemsize)
        if self.own.scaled != NULL:
            fill_with_ones(sparse_part(&self.learner, &state[0]).factor, self.learner.width, self.itemsize)

    def moments(
        self,
        const unsigned char [::1] state,
        double [::1] mean,                           # OUT, (n_features,), 0 if a column needs no moments
        double [::1] M2,                             # OUT, (n_features,), likewise
        double [::1] known_mean,                     # OUT, (n_features,), of the values that are not missing
    ) -> int:
        """Write the moments of the columns that a state holds; return the number of rows in them."""
        cdef Moments moments
        cdef const double *known
        cdef int64_t n_rows = 0
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
            moments = moments_at(&self.own.dense, dense_part(&self.learner, &state[0]))
            n_rows = moments.count[0]
            known = moments.known_mean if self.own.dense.imputes else moments.mean
            for i in range(self.own.n_dense):
                j = self.numbers[i]
                mean[j], M2[j], known_mean[j] = moments.mean[i], moments.M2[i], known[i]
        return n_rows
