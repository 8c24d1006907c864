"""The running moments of dense columns, by which rows are centred and scaled during training.

A model's state holds the count of the rows it has been trained on, and of each column the mean and the sum of squared
deviations M2 over these rows. Before a training phase, the moments of the rows of this phase are merged into those of
the state (Chan, Golub & LeVeque 1983). For n rows so far, and m new rows with the mean mu and the sum of squared
deviations M2_new,
    delta = mu - mean,   mean += delta m / (n + m),   M2 += M2_new + delta^2 n m / (n + m).
Moments are only ever added, never subtracted. A row that a model has not been trained on therefore leaves no trace in
the model's moments, not even a rounding error. From the start of this phase until the next one, the model gets each
row x, for training and for prediction, as
    (x - mean) / sqrt(M2 / count).
As in scikit-learn's ``StandardScaler``, the scale of a column that is constant up to rounding errors is 1.

Values may be missing (NaN) in columns that are imputed. A state then also holds the number and the mean of the known
values of each column. These are updated first. In the moments above, each missing value of the phase then counts as
this mean, and the model also gets this mean in place of each missing value.
"""

from cython cimport floating
from libc.float cimport DBL_EPSILON
from libc.math cimport sqrt
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t

from optuna_treecv._kernels.span cimport Span
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport scale


# Both functions process 8 columns of an array (n_rows, width). In C they are macros that dispatch on the type of X.
cdef extern from "moments8.h" nogil:
    # Merge the moments of the rows start..stop-1, or order[start], ..., order[stop-1].
    void merge8(
        const void *X,
        Py_ssize_t width,
        Py_ssize_t start,
        Py_ssize_t stop,
        const uint32_t *order,
        double n_seen,
        double *mean,           # INOUT, (8,)
        double *M2,             # INOUT, (8,)
    ) noexcept

    # Compute the moments of the values that are not missing, over the same choice of rows.
    void known8(
        const void *X,
        Py_ssize_t width,
        Py_ssize_t start,
        Py_ssize_t stop,
        const uint32_t *order,
        double *n_known,        # OUT, (8,)
        double *mean,           # OUT, (8,), 0 for a column without known values
        double *M2,             # OUT, (8,)
    ) noexcept


cdef enum:
    MAX_COLUMNS = 2048          # the largest number of columns, including padding
    BLOCK = 64                  # the number of rows of the smallest blocks whose moments are stored


# Dense columns, and the transformation of each of them.
cdef struct Columns:
    const void *values          # (n_rows, width), float64 or float32
    Py_ssize_t itemsize
    Py_ssize_t width            # a multiple of 8; 0: there are no dense columns
    const double *centred       # (width,), 1 if the mean of the column is subtracted, else 0
    const double *scaled        # (width,), 1 if the column is divided by its scale, else 0
    bint imputes                # whether values may be missing
    const double *blocks        # the moments of blocks of rows: ``moments`` of ``Blocks``
    const Py_ssize_t *levels    # (n_levels,), the index of the first block of each level
    Py_ssize_t n_levels


# Pointers to the moments in a state. The last three vectors exist only if values may be missing. For columns of sparse
# rows, only count, mean, M2 and factor exist.
cdef struct Moments:
    int64_t *count
    double *mean                # (width,)
    double *M2                  # (width,), the sums of squared deviations from the mean
    void *shift                 # (width,), is subtracted from each row; of the type of the rows, as the next two
    void *factor                # (width,), is multiplied with the shifted row
    void *filling               # (width,), replaces missing values
    double *n_known             # (width,), the number of known values
    double *known_mean          # (width,), the mean of the known values; 0 if there are none


cdef class Blocks:
    cdef double [::1] moments   # of each block mean, M2 and, if values may be missing, n_known, (width,) each
    cdef Py_ssize_t levels[64]  # the index of the first block of each level
    cdef Py_ssize_t n_levels
    cdef object X
    cdef bint imputes

    cdef Columns columns(self, const double [:, ::1] flags)


cdef double [:, ::1] pad_flags(const unsigned char [::1] centred, const unsigned char [::1] scaled, Py_ssize_t width)
cdef void fill_with_ones(void *values, Py_ssize_t n, Py_ssize_t itemsize) noexcept nogil


cdef inline Py_ssize_t moments_bytes(const Columns *columns) noexcept nogil:
    """Return the number of bytes that the moments take in a state."""
    cdef Py_ssize_t itemsize = columns.itemsize
    if columns.width == 0:
        return 0
    return 64 + ((32 + 3 * itemsize) if columns.imputes else (16 + 2 * itemsize)) * columns.width


cdef inline Moments moments_at(const Columns *columns, const unsigned char *memory) noexcept nogil:
    """Return pointers to the moments in a state, which start at ``memory``."""
    cdef Py_ssize_t n_bytes = columns.width * columns.itemsize
    cdef Moments moments
    moments.count = <int64_t *> memory
    moments.mean = <double *> (memory + 64)
    moments.M2 = moments.mean + columns.width
    moments.shift = moments.M2 + columns.width
    moments.factor = <unsigned char *> moments.shift + n_bytes
    moments.filling = moments.n_known = moments.known_mean = NULL
    if columns.imputes:
        moments.filling = <unsigned char *> moments.factor + n_bytes
        moments.n_known = <double *> (<unsigned char *> moments.filling + n_bytes)
        moments.known_mean = moments.n_known + columns.width
    return moments


cdef inline double scale2(double n_seen, double mean, double variance, double is_scaled) noexcept nogil:
    """Return the square of a column's scale, by whose inverse its centred values are multiplied."""
    cdef double small = n_seen * mean * DBL_EPSILON
    # A column whose variance is within its own rounding error counts as constant. This is never so if it is NaN.
    small = n_seen * DBL_EPSILON * variance + small * small
    return 1 if (variance <= small) | (is_scaled == 0) else variance


cdef inline inlined merge(
    double n_seen,              # n, the number of rows in mean and M2
    double m,                   # the number of rows in new_mean and new_M2
    const double *new_mean,     # IN, (n_columns,)
    const double *new_M2,       # IN, (n_columns,)
    Py_ssize_t n_columns,
    double *mean,               # INOUT, (n_columns,)
    double *M2,                 # INOUT, (n_columns,)
) noexcept nogil:
    """Merge the moments of m new rows into ``mean`` and ``M2``."""
    cdef double share = m / (n_seen + m)
    cdef double product = n_seen * share
    cdef double delta
    cdef Py_ssize_t j
    for j in range(n_columns):
        delta = new_mean[j] - mean[j]
        mean[j] += delta * share
        M2[j] += new_M2[j] + delta * delta * product


cdef inline inlined merge_rows(
    const floating *X,          # IN, (n_rows, width)
    Py_ssize_t width,
    Span span,
    double n_seen,
    double *mean,               # INOUT, (width,)
    double *M2,                 # INOUT, (width,)
) noexcept nogil:
    """Merge the moments of the rows of ``span`` into ``mean`` and ``M2``."""
    cdef Py_ssize_t j
    for j in range(0, width, 8):
        merge8(X + j, width, span.start, span.stop, span.order, n_seen, mean + j, M2 + j)


cdef inline inlined merge_known(
    double new_n, double new_mean, double new_M2, double *n, double *mean, double *M2
) noexcept nogil:
    """Merge the moments of ``new_n`` further values of a column, where ``new_n`` may be 0, into n, mean and M2."""
    cdef double delta = new_mean - mean[0]
    if new_n > 0:
        n[0] += new_n
        mean[0] += delta * (new_n / n[0])
        M2[0] += new_M2 + delta * delta * ((n[0] - new_n) * (new_n / n[0]))


cdef inline Span next_block(
    const Columns *columns,
    Span span,
    const double **block,       # OUT, the stored moments of the returned rows, or NULL if they are not stored
) noexcept nogil:
    """Return the first rows of ``span`` that are to be merged together.

    These are the rows of the largest block with stored moments that starts at the first row of ``span`` and does not
    exceed it. If there is none, they are the rows up to the start of the next block; if the rows are not in
    stored order, they are the first BLOCK rows.
    """
    cdef Py_ssize_t n_vectors = 3 if columns.imputes else 2
    cdef Py_ssize_t n_rows = BLOCK
    cdef Py_ssize_t level = 0
    block[0] = NULL
    if span.order != NULL:
        return Span(span.start, min(span.start + n_rows, span.stop), span.order)
    if span.start % n_rows != 0 or span.stop - span.start < n_rows:
        return Span(span.start, min((span.start // n_rows + 1) * n_rows, span.stop), NULL)
    while level + 1 < columns.n_levels and span.start % (2 * n_rows) == 0 and span.stop - span.start >= 2 * n_rows:
        level += 1
        n_rows *= 2
    block[0] = columns.blocks + n_vectors * columns.width * (columns.levels[level] + span.start // n_rows)
    return Span(span.start, span.start + n_rows, NULL)


cdef inline inlined survey_missing(
    const Columns *columns,
    Span span,
    const Moments *moments,     # INOUT
    floating *filling,          # OUT, (width,)
) noexcept nogil:
    """Merge the moments of new rows, in which each missing value counts as the mean of the known values so far."""
    cdef const floating *X = <const floating *> columns.values
    cdef Py_ssize_t width = columns.width
    # The moments of all values of the phase: first of the known ones, then also of those that were filled in.
    cdef double n_new[8]
    cdef double mean_new[8]
    cdef double M2_new[8]
    cdef double n_piece[8]
    cdef double mean_piece[8]
    cdef double M2_piece[8]
    cdef double n_seen
    cdef double unused = 0                              # M2 of the known values is not needed
    cdef const double *block
    cdef const double *n_next
    cdef const double *mean_next
    cdef const double *M2_next
    cdef Span rest, piece
    cdef Py_ssize_t i, j
    for j in range(0, width, 8):
        for i in range(8):
            n_new[i] = mean_new[i] = M2_new[i] = 0
        rest = span
        while rest.start < rest.stop:
            piece = next_block(columns, rest, &block)
            if block == NULL:
                known8(X + j, width, piece.start, piece.stop, piece.order, n_piece, mean_piece, M2_piece)
                n_next, mean_next, M2_next = n_piece, mean_piece, M2_piece
            else:
                n_next, mean_next, M2_next = block + 2 * width + j, block + j, block + width + j
            for i in range(8):
                merge_known(n_next[i], mean_next[i], M2_next[i], n_new + i, mean_new + i, M2_new + i)
            rest.start = piece.stop
        for i in range(8):
            merge_known(n_new[i], mean_new[i], M2_new[i], moments.n_known + j + i, moments.known_mean + j + i, &unused)
            filling[j + i] = <floating> moments.known_mean[j + i]
            merge_known(
                <double> (span.stop - span.start) - n_new[i],
                moments.known_mean[j + i],
                0,
                n_new + i,
                mean_new + i,
                M2_new + i,
            )
            n_seen = <double> moments.count[0]
            merge_known(n_new[i], mean_new[i], M2_new[i], &n_seen, moments.mean + j + i, moments.M2 + j + i)
    moments.count[0] += span.stop - span.start


cdef inline inlined write_factors(
    double n_seen,
    const double *mean,         # IN, (width,), as the next three
    const double *M2,
    const double *centred,
    const double *scaled,
    Py_ssize_t width,
    floating *shift,            # OUT, (width,)
    floating *factor,           # OUT, (width,)
) noexcept nogil:
    """Write by what rows are shifted and multiplied."""
    cdef double one_nth = 1 / n_seen
    cdef double scales2[MAX_COLUMNS]
    cdef Py_ssize_t j
    # In one loop, GCC would divide only after a choice, and so take one column after the other.
    for j in range(width):
        shift[j] = <floating> (mean[j] * centred[j])
        scales2[j] = scale2(n_seen, mean[j], M2[j] * one_nth, scaled[j])
    for j in range(width):
        factor[j] = <floating> (1 / sqrt(scales2[j]))


cdef inline inlined survey_columns(
    const Columns *columns,
    Span span,
    const Moments *moments,     # INOUT
    floating *shift,            # OUT, (width,)
    floating *factor,           # OUT, (width,)
) noexcept nogil:
    """Merge the moments of new rows, and compute from the result by what rows are shifted and multiplied."""
    cdef const floating *X = <const floating *> columns.values
    cdef Py_ssize_t width = columns.width
    cdef Span piece
    cdef const double *block
    cdef double n_seen
    if columns.imputes:
        survey_missing(columns, span, moments, <floating *> moments.filling)
        span.start = span.stop
    while span.start < span.stop:
        n_seen = <double> moments.count[0]
        piece = next_block(columns, span, &block)
        if block != NULL:
            merge(n_seen, <double> (piece.stop - piece.start), block, block + width, width, moments.mean, moments.M2)
        else:
            merge_rows(X, width, piece, n_seen, moments.mean, moments.M2)
        moments.count[0] += piece.stop - piece.start
        span.start = piece.stop
    write_factors(
        <double> moments.count[0], moments.mean, moments.M2, columns.centred, columns.scaled, width, shift, factor
    )


cdef inline inlined survey_dense(const Columns *columns, Span span, unsigned char *memory) noexcept nogil:
    """Merge the moments of new rows into the moments of a state, which start at ``memory``."""
    cdef Moments moments = moments_at(columns, memory)
    if columns.itemsize == 8:
        survey_columns(columns, span, &moments, <double *> moments.shift, <double *> moments.factor)
    else:
        survey_columns(columns, span, &moments, <float *> moments.shift, <float *> moments.factor)


cdef inline inlined see_row(
    const floating *x,          # IN, (width,)
    Py_ssize_t width,
    const Moments *moments,
    floating *out,              # OUT, (width,)
) noexcept nogil:
    """Write a row with its missing values filled in, centred and scaled by the moments of a state."""
    cdef const floating *shift = <const floating *> moments.shift
    cdef const floating *factor = <const floating *> moments.factor
    cdef const floating *filling = <const floating *> moments.filling
    cdef Py_ssize_t j
    if filling == NULL:
        scale(x, shift, factor, out, width)
    else:
        for j in range(width):
            out[j] = ((x[j] if x[j] == x[j] else filling[j]) - shift[j]) * factor[j]
