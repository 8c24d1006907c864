"""The running moments of dense columns, which follow the state of a kernel.

They are the count, the mean and the sum of squared deviations M2 of each column over the rows that the state has seen.
Before a training phase, those of the phase are merged in (Chan, Golub & LeVeque 1983): for n rows and m new ones with
the mean mu,
    delta = mu - mean,   mean += delta m / (n + m),   M2 += M2_of_new + delta^2 n m / (n + m).
Nothing is ever subtracted from a sum over more rows, so a row that a model has not seen leaves no
trace in it, whatever its size. During the phase, and until the next one, a row x is seen as
    (x - mean) / sqrt(M2 / count),
with scikit-learn's rule for columns that are constant up to rounding: their scale is 1.

Values may be missing (NaN) in columns that are imputed. Then a state also holds the count and the mean of the
values known in each column. They are merged first, and the missing values of the phase count as that mean in
the moments above. A row is seen with the mean of the known values in the place of a missing one.
"""

from cython cimport floating
from libc.float cimport DBL_EPSILON
from libc.math cimport sqrt
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t

from optuna_treecv._kernels.span cimport Span
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport scale


# Each chooses its function in C by the type of X. Both take 8 columns of (n_rows, width).
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

    # Find the moments of the known values.
    void known8(
        const void *X,
        Py_ssize_t width,
        Py_ssize_t start,
        Py_ssize_t stop,
        const uint32_t *order,
        double *n_known,        # OUT, (8,)
        double *mean,           # OUT, (8,), 0 where no value is known
        double *M2,             # OUT, (8,)
    ) noexcept


cdef enum:
    BLOCK = 64                  # rows of the smallest blocks whose moments are kept


# Dense columns, and how each is transformed.
cdef struct Columns:
    const void *values          # (n_rows, width), float64 or float32
    Py_ssize_t itemsize
    Py_ssize_t width            # a multiple of 8; 0: there are none
    const double *centred       # (width,), 1 if the mean of a column is subtracted, else 0
    const double *scaled        # (width,), 1 if it is divided by its scale, else 0
    bint imputes                # whether values may be missing
    const double *blocks        # the moments of blocks of rows (``Blocks``), in ``n_levels`` levels
    const Py_ssize_t *levels
    Py_ssize_t n_levels


# In a state: the count, and a vector of each kind, the last three if values may be missing. Columns of sparse rows
# have the count, mean, M2 and factor only.
cdef struct Moments:
    int64_t *count
    double *mean                # (width,)
    double *M2                  # (width,)
    void *shift                 # (width,), what is subtracted from a row, in the type of the rows
    void *factor                # (width,), what it is multiplied by then
    void *filling               # (width,), what takes the place of missing values
    double *n_known             # (width,), the number of values known
    double *known_mean          # (width,), their mean, 0 if there is none


cdef class Blocks:
    cdef double [::1] moments   # a block's means, M2 and perhaps counts, (width,) each; level by level
    cdef Py_ssize_t levels[64]  # the number of the first block of each level
    cdef Py_ssize_t n_levels
    cdef object X
    cdef bint imputes

    cdef Columns columns(self, const double [:, ::1] flags)


cdef double [:, ::1] flags_of(const unsigned char [::1] centred, const unsigned char [::1] scaled, Py_ssize_t width)
cdef void fill_with_ones(void *numbers, Py_ssize_t n, Py_ssize_t itemsize) noexcept nogil


cdef inline Py_ssize_t moments_bytes(const Columns *columns) noexcept nogil:
    """Return the bytes of the moments in a state."""
    cdef Py_ssize_t itemsize = columns.itemsize
    if columns.width == 0:
        return 0
    return 64 + ((32 + 3 * itemsize) if columns.imputes else (16 + 2 * itemsize)) * columns.width


cdef inline Moments moments_at(const Columns *columns, const unsigned char *at) noexcept nogil:
    """Return pointers to the parts of the moments."""
    cdef Py_ssize_t n_bytes = columns.width * columns.itemsize
    cdef Moments moments
    moments.count = <int64_t *> at
    moments.mean = <double *> (at + 64)
    moments.M2 = moments.mean + columns.width
    moments.shift = moments.M2 + columns.width
    moments.factor = <unsigned char *> moments.shift + n_bytes
    moments.filling = moments.n_known = moments.known_mean = NULL
    if columns.imputes:
        moments.filling = <unsigned char *> moments.factor + n_bytes
        moments.n_known = <double *> (<unsigned char *> moments.filling + n_bytes)
        moments.known_mean = moments.n_known + columns.width
    return moments


cdef inline double scale_factor(double n_seen, double mean, double variance) noexcept nogil:
    """Return the factor of a centred value, the inverse of its scale."""
    cdef double small = n_seen * mean * DBL_EPSILON
    cdef double factor = 1 / sqrt(variance)
    # A variance below its own rounding error is that of a constant column; NaN is not.
    small = n_seen * DBL_EPSILON * variance + small * small
    return 1 if variance <= small else factor


cdef inline inlined merge(
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


cdef inline inlined merge_rows(
    const floating *X,          # IN, (n_rows, width)
    Py_ssize_t width,
    Span span,
    double n_seen,
    double *mean,               # INOUT, (width,)
    double *M2,                 # INOUT, (width,)
) noexcept nogil:
    """Merge the moments of the rows of a span."""
    cdef Py_ssize_t j
    for j in range(0, width, 8):
        merge8(X + j, width, span.start, span.stop, span.order, n_seen, mean + j, M2 + j)


cdef inline inlined merge_known(
    double new_n, double new_mean, double new_M2, double *n, double *mean, double *M2
) noexcept nogil:
    """Merge the moments of the values of a column into others, if there are any."""
    cdef double delta = new_mean - mean[0]
    if new_n > 0:
        n[0] += new_n
        mean[0] += delta * (new_n / n[0])
        M2[0] += new_M2 + delta * delta * ((n[0] - new_n) * (new_n / n[0]))


cdef inline Span next_piece(
    const Columns *columns,
    Span span,
    const double **block,       # OUT, the moments of the piece; NULL: they are not in the table
) noexcept nogil:
    """Return the next piece of a phase: the largest block of the table that begins at the same row as the phase, or
    the rows up to the next block.
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
    """Merge the moments of new rows with missing values, which count as the mean of those known so far."""
    cdef const floating *X = <const floating *> columns.values
    cdef Py_ssize_t width = columns.width
    cdef double n_new[8]                                # of the known values of the phase
    cdef double mean_new[8]
    cdef double M2_new[8]
    cdef double n_piece[8]
    cdef double mean_piece[8]
    cdef double M2_piece[8]
    cdef double n_seen
    cdef double nowhere = 0
    cdef const double *block
    cdef const double *n_of
    cdef const double *mean_of
    cdef const double *M2_of
    cdef Span rest, piece
    cdef Py_ssize_t i, j
    for j in range(0, width, 8):
        for i in range(8):
            n_new[i] = mean_new[i] = M2_new[i] = 0
        rest = span
        while rest.start < rest.stop:
            piece = next_piece(columns, rest, &block)
            if block == NULL:
                known8(X + j, width, piece.start, piece.stop, piece.order, n_piece, mean_piece, M2_piece)
                n_of, mean_of, M2_of = n_piece, mean_piece, M2_piece
            else:
                n_of, mean_of, M2_of = block + 2 * width + j, block + j, block + width + j
            for i in range(8):
                merge_known(n_of[i], mean_of[i], M2_of[i], n_new + i, mean_new + i, M2_new + i)
            rest.start = piece.stop
        for i in range(8):
            merge_known(
                n_new[i], mean_new[i], M2_new[i], moments.n_known + j + i, moments.known_mean + j + i, &nowhere
            )
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


cdef inline inlined survey_columns(
    const Columns *columns,
    Span span,
    const Moments *moments,     # INOUT
    floating *shift,            # OUT, (width,)
    floating *factor,           # OUT, (width,)
) noexcept nogil:
    """Merge the moments of new rows, and compute the shifts and factors of rows."""
    cdef const floating *X = <const floating *> columns.values
    cdef Py_ssize_t width = columns.width
    cdef Span piece
    cdef Py_ssize_t j
    cdef const double *block
    cdef double n_seen, one_nth, factor_of
    if columns.imputes:
        survey_missing(columns, span, moments, <floating *> moments.filling)
        span.start = span.stop
    while span.start < span.stop:
        n_seen = <double> moments.count[0]
        piece = next_piece(columns, span, &block)
        if block != NULL:
            merge(
                n_seen, <double> (piece.stop - piece.start), block, block + width, width, moments.mean, moments.M2
            )
        else:
            merge_rows(X, width, piece, n_seen, moments.mean, moments.M2)
        moments.count[0] += piece.stop - piece.start
        span.start = piece.stop
    n_seen = <double> moments.count[0]
    one_nth = 1 / n_seen
    for j in range(width):
        factor_of = scale_factor(n_seen, moments.mean[j], moments.M2[j] * one_nth)
        shift[j] = <floating> (moments.mean[j] * columns.centred[j])
        factor[j] = <floating> (factor_of if columns.scaled[j] > 0 else 1)


cdef inline inlined survey_dense(const Columns *columns, Span span, unsigned char *at) noexcept nogil:
    """Merge the moments of new rows into those in a state."""
    cdef Moments moments = moments_at(columns, at)
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
    """Write a row as the state sees it."""
    cdef const floating *shift = <const floating *> moments.shift
    cdef const floating *factor = <const floating *> moments.factor
    cdef const floating *filling = <const floating *> moments.filling
    cdef Py_ssize_t j
    if filling == NULL:
        scale(x, shift, factor, out, width)
    else:
        for j in range(width):
            out[j] = ((x[j] if x[j] == x[j] else filling[j]) - shift[j]) * factor[j]
