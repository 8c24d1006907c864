"""Finds the columns in which given sparse rows have nonzeros: training on these rows changes no other weight."""

from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint64_t
from libc.string cimport memset

from optuna_treecv._kernels.rows cimport Sparse
from optuna_treecv._kernels.span cimport Span


cdef inline Py_ssize_t words_of(Py_ssize_t width) noexcept nogil:
    """Return the number of words that hold one bit per column."""
    return (width + 63) // 64


cdef inline Py_ssize_t find_columns(
    const Sparse *rows,
    Span span,
    Py_ssize_t width,
    Py_ssize_t most,
    uint64_t *seen,             # OUT, (words_of(width),)
    int32_t *columns,           # OUT, (most + 1,)
) noexcept nogil:
    """Write the columns of the rows of a span, each once; return their
    number, or most + 1 if there are more.
    """
    cdef Py_ssize_t n_columns = 0
    cdef Py_ssize_t i, row
    memset(seen, 0, words_of(width) * sizeof(uint64_t))
    if span.order == NULL:
        return add_columns(rows, rows.begins[span.start], rows.begins[span.stop], n_columns, most, seen, columns)
    for i in range(span.start, span.stop):
        row = span.order[i]
        n_columns = add_columns(rows, rows.begins[row], rows.begins[row + 1], n_columns, most, seen, columns)
        if n_columns > most:
            break
    return n_columns


cdef inline Py_ssize_t add_columns(
    const Sparse *rows,
    int64_t begin,
    int64_t end,
    Py_ssize_t n_columns,
    Py_ssize_t most,
    uint64_t *seen,             # INOUT
    int32_t *columns,           # INOUT
) noexcept nogil:
    """Add the columns of the nonzeros begin..end-1 to the first n_columns; return their number now."""
    cdef uint64_t bit
    cdef uint64_t *word
    cdef int64_t j
    for j in range(begin, end):
        word = seen + (rows.columns[j] >> 6)
        bit = <uint64_t> 1 << (rows.columns[j] & 63)
        columns[n_columns] = rows.columns[j]        # overwritten by the next one unless it is new
        n_columns += (word[0] & bit) == 0
        word[0] |= bit
        if n_columns > most:
            break
    return n_columns
