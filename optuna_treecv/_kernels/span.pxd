"""Rows in the order in which a state is trained on them."""

from libc.stdint cimport uint32_t


# The rows start..stop-1, or with an order, order[start], ..., order[stop-1].
cdef struct Span:
    Py_ssize_t start
    Py_ssize_t stop
    const uint32_t *order       # or NULL: rows in stored order
