"""Uniformly random orders of a range of rows, derived from (seed, row range, rows seen) and
nothing else. The shuffle is the inside-out variant of Fisher-Yates: the order is written while it is
drawn.
"""

from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t


cdef void fill_random_order(
    uint64_t seed,
    Py_ssize_t start,
    Py_ssize_t stop,
    int64_t n_seen,
    uint32_t *order,            # OUT, stop - start row numbers
) noexcept nogil:
    cdef uint64_t counter = chain(chain(chain(seed, start), stop), n_seen)
    cdef Py_ssize_t i, j
    for i in range(stop - start):
        j = below(&counter, <uint32_t> (i + 1))
        order[i] = order[j]
        order[j] = <uint32_t> (start + i)


def random_order(
    uint64_t seed,
    Py_ssize_t start,
    Py_ssize_t stop,
    int64_t n_seen,
    uint32_t [::1] order,       # OUT, stop - start row numbers
):
    """Fill ``order`` with rows start..stop-1 in the random order that belongs to (seed, start,
    stop, n_seen).
    """
    if order.shape[0] != stop - start:
        raise ValueError(f"order must have {stop - start} places, got {order.shape[0]}.")
    if stop > start:
        with nogil:
            fill_random_order(seed, start, stop, n_seen, &order[0])


def derive_seed(uint64_t seed, uint64_t label):
    """Return a 64-bit seed for another purpose, derived from (seed, label)."""
    return chain(seed, label)
