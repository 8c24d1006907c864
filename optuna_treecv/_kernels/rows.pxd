"""Dense and sparse rows, and the operations of a training step on a row x.

These are the dot product w . x with a vector, the squared norm |x|^2, and the update w += c x.

Kernels are written once for the fused type ``Rows``, from which Cython generates a version for each layout. A dense
and a sparse copy (CSR, column indices ascending) of the same row give the same bits: the product for column j is added
to the partial sum j mod 8, as in ``vec8.h``, and only products with zeros are omitted.

The results would differ only for a model with a weight that is not finite. In dense rows, 0 * inf = NaN passes such a
weight on to every dot product, whereas a sparse row may have no nonzero in its column. The functions that add a row
therefore report weights that are not finite.
"""

from cython cimport floating
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t

from optuna_treecv._kernels.span cimport Span
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.undo cimport remember
from optuna_treecv._kernels.vec8 cimport Weight
from optuna_treecv._kernels.vec8 cimport axpy
from optuna_treecv._kernels.vec8 cimport dot
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport prefetch_bytes
from optuna_treecv._kernels.vec8 cimport prefetch_row
from optuna_treecv._kernels.vec8 cimport sum8


cdef struct Dense:
    const void *values          # (n_rows, width), float64 or float32
    Py_ssize_t width            # a multiple of 8
    Py_ssize_t ahead            # the prefetch distance in rows for stored order; 0: all rows fit in the cache
    Py_ssize_t far              # the prefetch distance in rows for random order


cdef struct Sparse:
    const void *values          # float64 or float32
    const int32_t *columns
    const int64_t *indptr       # the nonzeros of row i are values[indptr[i]:indptr[i + 1]]
    Py_ssize_t far              # as in ``Dense``


cdef enum:
    # Dense rows in stored order are prefetched this many rows ahead. The CPU prefetches them too, but not early
    # enough. With this prefetch, PEGASOS is 1.3 times as fast if the rows do not fit in the cache, and 10 % slower if
    # they do.
    AHEAD_IN_ORDER = 8
    # Rows of at most this size in total are assumed to fit in the cache.
    CACHE_BYTES = 1 << 22
    # In random order, the prefetch of a row starts this many bytes of rows before its turn. The first-level cache
    # cannot have that many requests in flight, but the second-level cache can.
    FAR_BYTES = 6 << 10


ctypedef fused Rows:
    Dense
    Sparse


cdef inline Py_ssize_t n_nonzeros(const Sparse *rows, Py_ssize_t row) noexcept nogil:
    return rows.indptr[row + 1] - rows.indptr[row]


cdef inline Weight dot_row(const Rows *rows, Py_ssize_t row, const Weight *w, const floating *type_tag) noexcept nogil:
    """Return x . w in the summation order of ``vec8.h``.

    ``type_tag`` is never read here or in the other functions: its type tells the compiler the type of the rows.
    """
    cdef const floating *x
    cdef Weight s[8]
    cdef int64_t j
    if Rows is Dense:
        return dot(w, (<const floating *> rows.values) + row * rows.width, rows.width)
    else:
        x = <const floating *> rows.values
        s[0] = s[1] = s[2] = s[3] = s[4] = s[5] = s[6] = s[7] = 0
        for j in range(rows.indptr[row], rows.indptr[row + 1]):
            s[rows.columns[j] & 7] += w[rows.columns[j]] * x[j]
        return <Weight> sum8(s)


cdef inline floating norm2_row(const Rows *rows, Py_ssize_t row, const floating *type_tag) noexcept nogil:
    """Return |x|^2 in the summation order of ``vec8.h``."""
    cdef const floating *x
    cdef floating s[8]
    cdef int64_t j
    if Rows is Dense:
        x = (<const floating *> rows.values) + row * rows.width
        return dot(x, x, rows.width)
    else:
        x = <const floating *> rows.values
        s[0] = s[1] = s[2] = s[3] = s[4] = s[5] = s[6] = s[7] = 0
        for j in range(rows.indptr[row], rows.indptr[row + 1]):
            s[rows.columns[j] & 7] += x[j] * x[j]
        return <floating> sum8(s)


cdef inline double add_row(
    const Rows *rows,
    Py_ssize_t row,
    Weight c,
    Weight *w,                  # INOUT, (width,)
    const floating *type_tag,
    Log *log,                   # INOUT, saves the weights of sparse rows before the update; NULL: no undo is needed
) noexcept nogil:
    """Compute w += c x; return NaN if the rows are sparse and c or an updated weight is not finite, else 0."""
    cdef const floating *x
    cdef double check = 0 * <double> c
    cdef int64_t j
    if Rows is Dense:
        if floating is float or Weight is double:
            axpy(c, (<const floating *> rows.values) + row * rows.width, w, rows.width)
        return 0
    else:
        x = <const floating *> rows.values
        if log != NULL:
            for j in range(rows.indptr[row], rows.indptr[row + 1]):
                remember(log, w + rows.columns[j])
        for j in range(rows.indptr[row], rows.indptr[row + 1]):
            w[rows.columns[j]] += c * x[j]
            check += 0 * <double> w[rows.columns[j]]
        return check


cdef inline Py_ssize_t row_at(Span span, Py_ssize_t i) noexcept nogil:
    """Return the row index at position i of a span, start <= i < stop."""
    return span.order[i] if span.order != NULL else i


cdef inline Py_ssize_t prefetch_distance(Py_ssize_t n_bytes, Py_ssize_t n_rows) noexcept nogil:
    """Return the prefetch distance for random order, in rows: about FAR_BYTES of rows, within 2 to 32."""
    return max(2, min(32, FAR_BYTES * n_rows // (n_bytes + 1)))


cdef inline inlined fetch_row(const Rows *rows, Py_ssize_t row, bint far, const floating *type_tag) noexcept nogil:
    """Prefetch a row; with ``far``, into the second-level cache only."""
    cdef int64_t begin, n_values
    if Rows is Dense:
        prefetch_row((<const floating *> rows.values) + row * rows.width, rows.width, far)
    else:
        begin = rows.indptr[row]
        n_values = rows.indptr[row + 1] - begin
        prefetch_row((<const floating *> rows.values) + begin, n_values, far)
        prefetch_bytes(rows.columns + begin, n_values * <Py_ssize_t> sizeof(int32_t), far)


cdef inline Py_ssize_t visit(const Rows *rows, Span span, Py_ssize_t i, const floating *type_tag) noexcept nogil:
    """Return the row index at position i of a span, and prefetch a row that a training loop needs later."""
    if span.order != NULL:
        if i + rows.far < span.stop:
            fetch_row(rows, span.order[i + rows.far], True, type_tag)
        if Rows is Sparse:
            if i + 2 * rows.far < span.stop:    # the offsets of that row are read when it is prefetched
                prefetch_bytes(rows.indptr + span.order[i + 2 * rows.far], 2 * <Py_ssize_t> sizeof(int64_t), True)
        return span.order[i]
    if Rows is Dense:
        if rows.ahead != 0 and i + rows.ahead < span.stop:
            fetch_row(rows, i + rows.ahead, False, type_tag)
    return i
