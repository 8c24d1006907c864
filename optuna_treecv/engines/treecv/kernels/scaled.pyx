"""A wrapper that trains any other kernel, the inner kernel, on scaled rows.

Rows are centred and scaled by the running moments of their columns, as in scikit-learn's ``StandardScaler``.

The inner kernel gets a value x of a dense row as (x - mean) / sqrt(M2 / count), as described in ``moments.pxd``.
Sparse rows have two kinds of columns. Columns that are centred or whose missing values are imputed have few zeros, so
they are stored as dense columns in a separate array. The other columns may be divided by their scales: the inner
kernel gets a value x as
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
from libc.math cimport sqrt
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc
from libc.stdlib cimport free

from optuna_treecv._kernels.moments cimport Blocks
from optuna_treecv._kernels.moments cimport Columns
from optuna_treecv._kernels.moments cimport MAX_COLUMNS
from optuna_treecv._kernels.moments cimport Moments
from optuna_treecv._kernels.moments cimport fill_with_ones
from optuna_treecv._kernels.moments cimport pad_flags
from optuna_treecv._kernels.moments cimport merge
from optuna_treecv._kernels.moments cimport moments_at
from optuna_treecv._kernels.moments cimport moments_bytes
from optuna_treecv._kernels.moments cimport scale2
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
from optuna_treecv.engines.treecv.kernels.lanes cimport has_many_zeros
from optuna_treecv.engines.treecv.kernels.tree cimport Learner


cdef enum:
    BUFFER_SIZE = 2 * MAX_COLUMNS  # the number of values in the buffer for scaled rows, which fits in the L1 cache
    # The number of dense rows that are scaled at a time. It is small, because scaling waits for memory and training
    # does not: the CPU overlaps the training on some rows with the scaling of the next.
    DENSE_ROWS = 8
    SPARSE_ROWS = 32            # the largest number of sparse rows that are scaled at a time

#: The largest number of values in a row, including padding: two rows fit in the buffer for scaled rows.
MOST_NUMBERS: int = MAX_COLUMNS


cdef struct Settings:
    const Learner *inner        # the inner kernel
    Py_ssize_t y_bytes          # the itemsize of y
    Columns dense               # all columns of dense rows, or the separate dense columns of sparse rows, if any
    Py_ssize_t n_dense          # the number of dense columns without padding
    const int32_t *column_indices  # (n_dense,), the column indices of the dense columns
    const double *scaled        # (width,), 1 if a sparse column is divided by its scale, else 0; NULL: none is


# The buffer from which the inner kernel reads scaled rows, with the targets and weights of these rows.
cdef struct Buffer:
    double values[BUFFER_SIZE]
    int32_t columns[BUFFER_SIZE]  # of sparse rows only
    int64_t indptr[SPARSE_ROWS + 1]
    double targets[SPARSE_ROWS]
    double weights[SPARSE_ROWS]


cdef inline const Settings *settings_of(const Learner *learner) noexcept nogil:
    return <const Settings *> learner.settings


cdef inline unsigned char *dense_moments_start(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return a pointer to the moments of the dense columns, which are stored after the state of the inner kernel."""
    return <unsigned char *> state + settings_of(learner).inner.state_bytes


cdef inline Moments sparse_moments(const Learner *learner, const unsigned char *state) noexcept nogil:
    """Return pointers to the moments of the sparse columns, which are stored after those of the dense columns.

    They exist only if ``scaled`` of the settings is not NULL.
    """
    cdef unsigned char *start = dense_moments_start(learner, state) + moments_bytes(&settings_of(learner).dense)
    cdef Moments moments
    moments.count = <int64_t *> start
    moments.mean = <double *> (start + 64)
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
    const floating *type_tag,
) noexcept nogil:
    """Compute the mean and the sum of squared deviations of each column over the sparse rows of ``span``."""
    cdef const floating *x = <const floating *> rows.values
    cdef double m = <double> (span.stop - span.start)
    cdef double delta
    cdef Py_ssize_t i, row
    cdef int64_t j
    for i in range(span.start, span.stop):
        row = row_at(span, i)
        for j in range(rows.indptr[row], rows.indptr[row + 1]):
            mean[rows.columns[j]] += <double> x[j]
            counts[rows.columns[j]] += 1
    for i in range(width):
        mean[i] /= m
        M2[i] = (m - counts[i]) * mean[i] * mean[i]
    for i in range(span.start, span.stop):
        row = row_at(span, i)
        for j in range(rows.indptr[row], rows.indptr[row + 1]):
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
    cdef double *buffer = <double *> calloc(3 * width, sizeof(double))
    cdef double n_seen = <double> moments.count[0]
    cdef double m = <double> (span.stop - span.start)
    cdef Py_ssize_t j
    if buffer == NULL:                                  # out of memory: NaN is better than a wrong scale
        for j in range(width):
            factor[j] = NAN
        return
    sum_deviations(&learner.sparse, width, span, buffer, buffer + width, buffer + 2 * width, factor)
    merge(n_seen, m, buffer, buffer + width, width, moments.mean, moments.M2)
    moments.count[0] += span.stop - span.start
    n_seen += m
    for j in range(width):
        factor[j] = <floating> (1 / sqrt(scale2(n_seen, moments.mean[j], moments.M2[j] / n_seen, scaled[j])))
    free(buffer)


cdef dispatched survey(const Learner *learner, Span span, unsigned char *state) noexcept nogil:
    cdef const Settings *settings = settings_of(learner)
    cdef Moments moments
    if settings.n_dense > 0:
        survey_dense(&settings.dense, span, dense_moments_start(learner, state))
    if settings.scaled != NULL:
        moments = sparse_moments(learner, state)
        if learner.itemsize == 8:
            survey_sparse(learner, span, &moments, <double *> moments.factor)
        else:
            survey_sparse(learner, span, &moments, <float *> moments.factor)


cdef inline Learner inner_reader(const Learner *learner, Buffer *buffer) noexcept nogil:
    """Return a copy of the inner kernel that reads its rows from ``buffer``."""
    cdef Learner inner = settings_of(learner).inner[0]
    if inner.sparse.indptr != NULL:
        inner.sparse.values, inner.sparse.columns, inner.sparse.indptr = buffer.values, buffer.columns, buffer.indptr
    else:
        inner.dense.values, inner.dense.ahead = buffer.values, 0
    inner.y = NULL if learner.y == NULL else buffer.targets
    inner.weights = NULL if learner.weights == NULL else buffer.weights
    return inner


cdef inline void copy_entry(
    const void *entries, Py_ssize_t itemsize, Py_ssize_t row, double *memory, Py_ssize_t i
) noexcept nogil:
    """Copy ``entries[row]``, of 4 or 8 bytes, to ``memory[i]``, unless ``entries`` is NULL."""
    if entries == NULL:
        return
    if itemsize == 4:
        (<int32_t *> memory)[i] = (<const int32_t *> entries)[row]
    else:
        (<int64_t *> memory)[i] = (<const int64_t *> entries)[row]


cdef inlined fetch_ahead(const Learner *learner, Span span, const floating *type_tag) noexcept nogil:
    """Prefetch a row that comes some rows after the first row of ``span``; sparse rows only if in random order."""
    cdef const Columns *dense = &settings_of(learner).dense
    cdef const floating *X = <const floating *> dense.values
    cdef Py_ssize_t row, far
    if span.order == NULL and learner.sparse.indptr == NULL and learner.dense.ahead != 0:
        row = span.start + learner.dense.far            # may be after the last row, where a prefetch is harmless
        prefetch_row(X + row * dense.width, dense.width, True)
    far = learner.dense.far if learner.sparse.indptr == NULL else learner.sparse.far
    if span.order == NULL or span.start + far >= span.stop:
        return
    row = span.order[span.start + far]
    if learner.sparse.indptr != NULL:
        fetch_row(&learner.sparse, row, True, type_tag)
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
    cdef int64_t begin = rows.indptr[row]
    cdef int64_t j
    for j in range(begin, rows.indptr[row + 1]):
        values[j - begin] = x[j] if factor == NULL else x[j] * factor[rows.columns[j]]
        columns[j - begin] = rows.columns[j]


cdef inline Py_ssize_t fill_rows(
    const Learner *learner,
    Span span,
    const unsigned char *state,
    Buffer *buffer,             # OUT
    Py_ssize_t position,
    Py_ssize_t last,
    floating *values,           # OUT, the values of the buffer
) noexcept nogil:
    """Do what ``fill`` does for one type of rows."""
    cdef const Settings *settings = settings_of(learner)
    cdef const Columns *dense = &settings.dense
    cdef const Sparse *rows = &learner.sparse
    cdef Moments moments = moments_at(dense, dense_moments_start(learner, state))
    cdef const floating *factor = NULL
    cdef bint is_sparse = rows.indptr != NULL
    cdef Py_ssize_t offset = 0 if is_sparse else position * dense.width
    cdef Py_ssize_t n = 0
    cdef Py_ssize_t j, row
    if settings.scaled != NULL:
        factor = <const floating *> sparse_moments(learner, state).factor
    buffer.indptr[0] = 0
    while span.start < span.stop and position < last:
        row = row_at(span, span.start)
        if is_sparse:
            n = n_nonzeros(rows, row)
        if offset + dense.width + n > BUFFER_SIZE:
            break
        fetch_ahead(learner, span, values)
        if dense.width > 0:
            see_row(<const floating *> dense.values + row * dense.width, dense.width, &moments, values + offset)
        if is_sparse:
            for j in range(settings.n_dense):
                buffer.columns[offset + j] = settings.column_indices[j]
            offset += settings.n_dense                  # the padding after these columns is overwritten
            see_sparse(rows, row, factor, values + offset, buffer.columns + offset)
            offset += n
            buffer.indptr[position + 1] = offset
        else:
            offset += dense.width
        copy_entry(learner.y, settings.y_bytes, row, buffer.targets, position)
        copy_entry(learner.weights, learner.itemsize, row, buffer.weights, position)
        position += 1
        span.start += 1
    return span.start


cdef inline Py_ssize_t fill(
    const Learner *learner,
    Span span,
    const unsigned char *state,
    Buffer *buffer,             # OUT
    Py_ssize_t position,        # the position of the first row in the buffer
    Py_ssize_t last,            # the position after the last row in the buffer
) noexcept nogil:
    """Write scaled rows of ``span`` to the buffer until it is full.

    Return the position in ``span`` of the next row.
    """
    if learner.itemsize == 8:
        return fill_rows(learner, span, state, buffer, position, last, buffer.values)
    return fill_rows(learner, span, state, buffer, position, last, <float *> buffer.values)


cdef inline Py_ssize_t max_rows(const Learner *learner) noexcept nogil:
    """Return the largest number of rows in the buffer."""
    if learner.sparse.indptr != NULL:
        return SPARSE_ROWS
    return min(<Py_ssize_t> DENSE_ROWS, BUFFER_SIZE // learner.width)


cdef dispatched train(const Learner *learner, Span span, unsigned char *state, Log *log, void *out) noexcept nogil:
    cdef Buffer buffer
    cdef Learner inner = inner_reader(learner, &buffer)
    cdef Py_ssize_t end
    while span.start < span.stop:
        end = fill(learner, span, state, &buffer, 0, max_rows(learner))
        inner.train(&inner, Span(0, end - span.start, NULL), state, NULL, NULL)
        span.start = end


cdef dispatched train_both(
    const Learner *learner, Span span, Span other_span, unsigned char *first, unsigned char *second
) noexcept nogil:
    """Train two states on dense rows."""
    cdef Buffer buffer
    cdef Learner inner = inner_reader(learner, &buffer)
    cdef Py_ssize_t n
    while span.start < span.stop:
        n = min(max_rows(learner) // 2, span.stop - span.start)
        fill(learner, span, first, &buffer, 0, n)
        fill(learner, other_span, second, &buffer, n, 2 * n)
        inner.train_both(&inner, Span(0, n, NULL), Span(n, 2 * n, NULL), first, second)
        span.start, other_span.start = span.start + n, other_span.start + n


cdef dispatched test(
    const Learner *learner, const unsigned char *state, void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    cdef Buffer buffer
    cdef Learner inner = inner_reader(learner, &buffer)
    cdef unsigned char *written = <unsigned char *> out
    cdef Py_ssize_t end
    while start < stop:
        end = fill(learner, Span(start, stop, NULL), state, &buffer, 0, max_rows(learner))
        inner.test(&inner, state, model, 0, end - start, written)
        written += (end - start) * learner.n_outputs * learner.itemsize
        start = end


cdef void read(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    cdef const Learner *inner = settings_of(learner).inner
    inner.read(inner, state, model)


cdef class Scaled(Kernel):
    """A kernel that trains another kernel, the inner kernel ``inner``, on centred and scaled rows.

    ``centred`` and ``scaled`` select the columns that are centred and scaled. ``blocks`` holds the moments of the rows
    of the inner kernel if these are dense. If they are sparse, ``beside`` contains the indices of the columns that are
    stored separately, as the dense array over which ``blocks`` is defined. Only these columns may be centred.

    A state starts with the state of the inner kernel, and the models are its models. Row weights must be set on the
    inner kernel before (``weigh``). From then on, it must be used only through this kernel.
    """

    cdef Kernel inner
    cdef Settings settings
    cdef double [:, ::1] flags
    cdef double [:, ::1] flags_of_sparse
    cdef int32_t [::1] column_indices
    cdef Py_ssize_t n_features

    def __init__(
        self,
        Kernel inner not None,
        const unsigned char [::1] centred,           # IN, (n_features,), 0 or 1
        const unsigned char [::1] scaled,            # IN, (n_features,), 0 or 1
        Blocks blocks=None,                          # IN, the moments of the dense columns
        beside=(),                                   # IN, (n_dense,), indices of the dense columns of sparse rows
    ):
        cdef bint is_sparse = inner.learner.sparse.indptr != NULL
        cdef Py_ssize_t n_features = centred.shape[0]
        if inner.state_bytes == 0:
            raise ValueError("the inner kernel was not initialised.")
        if not is_sparse and len(beside):
            raise ValueError("rows must be sparse if some columns are stored beside them.")
        if scaled.shape[0] != n_features:
            raise ValueError("centred and scaled must have an entry for each column.")
        self.n_features = n_features
        self.column_indices = np.array(beside, np.int32) if is_sparse else np.arange(n_features, dtype=np.int32)
        self.settings.n_dense = self.column_indices.shape[0]
        if is_sparse:
            self.bind_sparse(inner, centred, scaled)
        elif inner.learner.width > MOST_NUMBERS:
            raise ValueError(f"rows must have at most {MOST_NUMBERS} columns, got {inner.learner.width}.")
        if self.settings.n_dense > 0:
            if blocks is None or blocks.X.shape[0] != inner.n_rows or blocks.X.dtype.itemsize != inner.itemsize:
                raise ValueError("blocks must have as many rows as the inner kernel, and the same dtype.")
            self.flags = pad_flags(
                np.take(centred, self.column_indices), np.take(scaled, self.column_indices), blocks.X.shape[1]
            )
            self.settings.dense = blocks.columns(self.flags)
            self.settings.column_indices = &self.column_indices[0]
            if not is_sparse and self.settings.dense.values != inner.learner.dense.values:
                raise ValueError("blocks must be of the rows of the inner kernel.")
        self.wrap(inner)
        self.keep_alive = [inner, blocks]

    cdef int bind_sparse(
        self, Kernel inner, const unsigned char [::1] centred, const unsigned char [::1] scaled
    ) except -1:
        """Check the sparse rows, and set which of their columns are scaled."""
        cdef Py_ssize_t i
        self.flags_of_sparse = pad_flags(centred, scaled, inner.learner.width)
        for i in range(self.settings.n_dense):
            if not 0 <= self.column_indices[i] < self.n_features:
                raise ValueError("beside must hold column indices.")
            self.flags_of_sparse[:, self.column_indices[i]] = 0
        if np.any(self.flags_of_sparse[0]):
            raise ValueError("columns that are centred must be stored beside the sparse rows.")
        for i in range(inner.n_rows):
            if self.settings.n_dense + n_nonzeros(&inner.learner.sparse, i) > MOST_NUMBERS:
                raise ValueError(f"a row must have at most {MOST_NUMBERS} values.")
        if self.settings.n_dense == 0 or np.any(self.flags_of_sparse[1]):
            self.settings.scaled = &self.flags_of_sparse[1, 0]
        return 0

    cdef int wrap(self, Kernel inner) except -1:
        """Copy what describes the rows and the outputs from the inner kernel, and set this kernel's functions."""
        cdef Py_ssize_t own_bytes = moments_bytes(&self.settings.dense)
        if self.settings.scaled != NULL:
            own_bytes += sparse_bytes(&inner.learner)
        self.inner = inner
        self.settings.inner = &inner.learner
        if inner.learner.skips_zeros:                   # scaled columns keep their zeros, unless they are centred
            inner.learner.skips_zeros = has_many_zeros(&inner.learner, inner.n_rows, &self.flags[0, 0])
        self.settings.y_bytes = 4 if inner.n_classes > 0 else inner.itemsize
        self.n_rows, self.n_classes, self.n_models = inner.n_rows, inner.n_classes, inner.n_models
        self.out_rows = inner.out_rows
        self.n_outputs, self.itemsize = inner.n_outputs, inner.itemsize
        self.is_weighed = True
        self.learner = inner.learner
        self.learner.settings = &self.settings
        self.learner.survey = survey
        self.learner.train = train
        if inner.learner.train_both != NULL:
            self.learner.train_both = train_both
        self.learner.test_two = NULL
        self.learner.test = test
        self.learner.read = read
        self.learner.tests_rows = False
        self.learner.changes = NULL
        self.learner.remember_columns = NULL
        self.set_sizes(
            inner.learner.head_bytes, inner.state_bytes + own_bytes - inner.learner.head_bytes, inner.model_bytes
        )
        self.log_bytes = 0                              # states are copied, not undone
        return 0

    @property
    def model_type(self) -> str:
        """The dtype of a model, as a string for NumPy."""
        return self.inner.model_type

    def start(self, unsigned char [::1] state):
        """Write the initial state, in which rows are neither centred nor scaled."""
        cdef Moments moments
        Kernel.start(self, state)
        self.inner.start(state[: self.inner.state_bytes])
        if self.settings.n_dense > 0:
            moments = moments_at(&self.settings.dense, dense_moments_start(&self.learner, &state[0]))
            fill_with_ones(moments.factor, self.settings.dense.width, self.itemsize)
        if self.settings.scaled != NULL:
            fill_with_ones(sparse_moments(&self.learner, &state[0]).factor, self.learner.width, self.itemsize)

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
        if self.settings.scaled != NULL:
            moments = sparse_moments(&self.learner, &state[0])
            n_rows = moments.count[0]
            for j in range(self.n_features):
                mean[j], M2[j], known_mean[j] = moments.mean[j], moments.M2[j], moments.mean[j]
        if self.settings.n_dense > 0:
            moments = moments_at(&self.settings.dense, dense_moments_start(&self.learner, &state[0]))
            n_rows = moments.count[0]
            known = moments.known_mean if self.settings.dense.imputes else moments.mean
            for i in range(self.settings.n_dense):
                j = self.column_indices[i]
                mean[j], M2[j], known_mean[j] = moments.mean[i], moments.M2[i], known[i]
        return n_rows
