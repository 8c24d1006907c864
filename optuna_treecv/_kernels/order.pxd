"""Random orders that depend on nothing but their arguments."""

from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t


cdef void fill_random_order(
    uint64_t seed,
    Py_ssize_t start,
    Py_ssize_t stop,
    int64_t n_seen,
    uint32_t *order,            # OUT, stop - start row numbers
) noexcept nogil
