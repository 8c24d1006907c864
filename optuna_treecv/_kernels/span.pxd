"""A range of rows, in the order in which a model is trained on them."""

from libc.stdint cimport uint32_t


# The rows start..stop-1 if ``order`` is NULL, otherwise the rows order[start], ..., order[stop-1].
cdef struct Span:
    Py_ssize_t start
    Py_ssize_t stop
    const uint32_t *order       # row indices; NULL: rows in stored order
