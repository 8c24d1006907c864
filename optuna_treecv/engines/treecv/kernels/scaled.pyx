"""A wrapper that trains any other kernel, the inner kernel, on scaled rows.

Rows are centred and scaled by the running moments of their columns, as in scikit-learn's ``StandardScaler``.

The inner kernel gets a value x of a dense row as (x - mean) / sqrt(M2 / count), as described in ``moments.pxd``. Sparse
rows have two kinds of columns. Columns that are centred or whose missing values are imputed have few zeros, so they are
stored as dense columns in a separate array. The other columns may be divided by their scales: the inner kernel gets a
value x as
    x / sqrt(M2 / count).
Their moments are computed from the nonzeros of the rows of a phase, in two passes: first the mean of each column, then
the sum of squared deviations from it, to which each zero contributes mean^2. They are merged like the moments of dense
columns. This takes time proportional to the number of columns, as copying a state does. States are therefore copied,
not undone.

A few rows at a time are scaled into a buffer that stays in the cache. The inner kernel reads this buffer as if it were
its rows, and needs no code for scaling. For sparse rows, the buffer holds the dense columns of a row first, and then
the nonzeros of the other columns. Each row is scaled only once for all lanes.
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
    ROOM = 4096                 # the number of values in the buffer for scaled rows, which fit in the first-level cache
    # The number of dense rows that are scaled at a time. It is small, because scaling waits for memory and training
    # does not: the CPU overlaps the training on some rows with the scaling of the next.
    DENSE_ROWS = 8
    SPARSE_ROWS = 32            # the largest number of sparse rows that are scaled at a time

#: The largest number of values in a row, including padding: two rows fit in the buffer for scaled rows.
MOST_NUMBERS: int = ROOM // 2


cdef struct Settings:
    const Learner *behind       # the inner kernel
    Py_ssize_t y_bytes          # the itemsize of y
    Columns dense               # all columns of dense rows, or the separate dense columns of sparse rows, if any
    Py_ssize_t n_dense          # the number of dense columns without padding
    const int32_t *numbers      # (n_dense,), the column indices of the dense columns
    const double *scaled        # (width,), 1 if a sparse column is divided by its scale, else 0; NULL: none is


# The buffer from which the inner kernel reads scaled rows, with the targets and weights of these rows.
cdef struct Room:
    double values[ROOM]
    int32_t columns[ROOM]       # of sparse rows only
    int64_t begins[SPARSE_ROWS + 1]
    double targets[SPARSE_ROWS]
    double weights[SPARSE_ROWS]


cdef inline const Settings *settings_of(const Learner *learner) noexcept nogil:
    return <const Settings *> learner.settings


cdef inline unsigned char *dense_part(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return a pointer to the moments of the dense columns, which are stored after the state of the inner kernel."""
    return <unsigned char *> state + settings_of(learner).behind.state_bytes


cdef inline Moments sparse_part(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return pointers to the moments of the sparse columns, which are stored after those of the dense columns.

    They exist only if ``scaled`` of the settings is not NULL.
    """
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
    double *mean,               # INOUT, (width,), initially zeros
    double *M2,                 # INOUT, (width,), initially zeros
    double *counts,             # INOUT, (width,), initially zeros; the number of nonzeros
    const floating *of_type,
) noexcept nogil:
    """Compute the mean and the sum of squared deviations of each column over the sparse rows of ``span``."""
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
    """Merge the moments of new sparse rows, and compute from the result by what values are multiplied."""
    cdef const double *scaled = settings_of(learner).scaled
    cdef Py_ssize_t width = learner.width
    cdef double *room = <double *> calloc(3 * width, sizeof(double))
    cdef double n_seen = <double> moments.count[0]
    cdef double m = <double> (span.stop - span.start)
    cdef double factor_of
    cdef Py_ssize_t j
    if room == NULL:                                    # out of memory: NaN is better than a wrong scale
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
    """Return a copy of the inner kernel that reads its rows from the buffer ``room``."""
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
    """Copy ``entries[row]``, of 4 or 8 bytes, to ``memory[at]``, unless ``entries`` is NULL."""
    if entries == NULL:
        return
    if itemsize == 4:
        (<int32_t *> memory)[at] = (<const int32_t *> entries)[row]
    else:
        (<int64_t *> memory)[at] = (<const int64_t *> entries)[row]


cdef inlined fetch_ahead(const Learner *learner, Span span, const floating *of_type) noexcept nogil:
    """Prefetch a row that comes some rows after the first row of ``span``; sparse rows only if in random order."""
    cdef const Columns *dense = &settings_of(learner).dense
    cdef const floating *X = <const floating *> dense.values
    cdef Py_ssize_t row, far
    if span.order == NULL and learner.sparse.begins == NULL and learner.dense.ahead != 0:
        row = span.start + learner.dense.far            # may be after the last row, where a prefetch is harmless
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
    """Write the nonzeros of a row, multiplied by the factors of their columns."""
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
    floating *values,           # OUT, the values of the buffer
) noexcept nogil:
    """Do what ``fill`` does for one type of rows."""
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
            at += settings.n_dense                      # the padding after these columns is overwritten
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
    Py_ssize_t place,           # the position of the first row in the buffer
    Py_ssize_t last,            # the position after the last row in the buffer
) noexcept nogil:
    """Write scaled rows of ``span`` to the buffer until it is full.

    Return the position in ``span`` of the next row.
    """
    if learner.itemsize == 8:
        return fill_rows(learner, span, state, room, place, last, room.values)
    return fill_rows(learner, span, state, room, place, last, <float *> room.values)


cdef inline Py_ssize_t most_rows(const Learner *learner) noexcept nogil:
    """Return the largest number of rows in the buffer."""
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
    """A kernel that trains another kernel, the inner kernel ``behind``, on centred and scaled rows.

    ``centred`` and ``scaled`` select the columns that are centred and scaled. ``blocks`` holds the moments of the rows
    of the inner kernel if these are dense. If they are sparse, ``beside`` contains the indices of the columns that are
    stored separately, as the dense array over which ``blocks`` is defined. Only these columns may be centred.

    A state starts with the state of the inner kernel, and the models are its models. Row weights must be set on the
    inner kernel before (``weigh``). From then on, it must be used only through this kernel.
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
        Blocks blocks=None,                          # IN, the moments of the dense columns
        beside=(),                                   # IN, (n_dense,), indices of the dense columns of sparse rows
    ):
        cdef bint is_sparse = behind.learner.sparse.begins != NULL
        cdef Py_ssize_t n_features = centred.shape[0]
        if behind.state_bytes == 0:
            raise ValueError("the inner kernel was not initialised.")
        if not is_sparse and len(beside):
            raise ValueError("rows must be sparse if some columns are stored beside them.")
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
                raise ValueError("blocks must have as many rows as the inner kernel, and the same dtype.")
            self.flags = flags_of(np.take(centred, self.numbers), np.take(scaled, self.numbers), blocks.X.shape[1])
            self.own.dense = blocks.columns(self.flags)
            self.own.numbers = &self.numbers[0]
            if not is_sparse and self.own.dense.values != behind.learner.dense.values:
                raise ValueError("blocks must be of the rows of the inner kernel.")
        self.stand_around(behind)
        self.keep_alive = [behind, blocks]

    cdef int bind_sparse(
        self, Kernel behind, const unsigned char [::1] centred, const unsigned char [::1] scaled
    ) except -1:
        """Check the sparse rows, and set which of their columns are scaled."""
        cdef Py_ssize_t i
        self.flags_of_sparse = flags_of(centred, scaled, behind.learner.width)
        for i in range(self.own.n_dense):
            if not 0 <= self.numbers[i] < self.n_features:
                raise ValueError("beside must hold column indices.")
            self.flags_of_sparse[:, self.numbers[i]] = 0
        if np.any(self.flags_of_sparse[0]):
            raise ValueError("columns that are centred must be stored beside the sparse rows.")
        for i in range(behind.n_rows):
            if self.own.n_dense + n_nonzeros(&behind.learner.sparse, i) > MOST_NUMBERS:
                raise ValueError(f"a row must have at most {MOST_NUMBERS} values.")
        if self.own.n_dense == 0 or np.any(self.flags_of_sparse[1]):
            self.own.scaled = &self.flags_of_sparse[1, 0]
        return 0

    cdef int stand_around(self, Kernel behind) except -1:
        """Copy what describes the rows and the outputs from the inner kernel, and set this kernel's functions."""
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
        self.log_bytes = 0                              # states are copied, not undone
        return 0

    @property
    def model_type(self) -> str:
        """The dtype of a model, as a string for NumPy."""
        return self.behind.model_type

    def start(self, unsigned char [::1] state):
        """Write the initial state, in which rows are neither centred nor scaled."""
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
        double [::1] mean,                           # OUT, (n_features,), 0 for columns without moments
        double [::1] M2,                             # OUT, (n_features,), 0 for columns without moments
        double [::1] known_mean,                     # OUT, (n_features,), the means of the values that are not missing
    ) -> int:
        """Write the moments that a state holds; return the number of rows over which they are computed."""
        cdef Moments moments
        cdef const double *known
        cdef int64_t n_rows = 0
        cdef Py_ssize_t i, j
        self.check_state(state)
        if not mean.shape[0] == M2.shape[0] == known_mean.shape[0] == self.n_features:
            raise ValueError("mean, M2 and known_mean must have an entry for each feature.")
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
