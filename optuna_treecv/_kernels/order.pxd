"""Random numbers that depend only on the arguments.

The generator is SplitMix64 (Steele, Lea & Flood 2014): a counter that is passed through a mixing
function. It has no state that threads would have to share or that a resumed run could lose. Numbers
below a bound are drawn by Lemire's (2019) method: one multiplication, made exact by rejection.
"""

from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t

from optuna_treecv._kernels.span cimport Span


cdef inline uint64_t mix(uint64_t z) noexcept nogil:
    """Return SplitMix64's finaliser of z: every bit of the input affects every bit of the output."""
    z = (z ^ (z >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <uint64_t> 0x94D049BB133111EB
    return z ^ (z >> 31)


cdef inline uint64_t chain(uint64_t key, uint64_t value) noexcept nogil:
    """Return a key with one more number mixed in; it depends on all these numbers and on their order."""
    return mix(mix(key + <uint64_t> 0x9E3779B97F4A7C15) ^ value)


cdef inline uint32_t below(uint64_t *counter, uint32_t bound) noexcept nogil:
    """Return a uniform number in 0..bound-1, and advance the counter."""
    cdef uint64_t product
    cdef uint32_t refused
    counter[0] += <uint64_t> 0x9E3779B97F4A7C15
    product = (mix(counter[0]) >> 32) * bound
    if <uint32_t> product < bound:
        refused = (<uint32_t> 0 - bound) % bound      # 2^32 mod bound: low halves below it would bias the draw
        while <uint32_t> product < refused:
            counter[0] += <uint64_t> 0x9E3779B97F4A7C15
            product = (mix(counter[0]) >> 32) * bound
    return <uint32_t> (product >> 32)


cdef void fill_random_order(
    uint64_t seed,
    Span span,                  # in stored order
    int64_t n_seen,
    uint32_t *order,            # OUT, stop - start row numbers
) noexcept nogil


cdef void fill_with_replays(
    uint64_t seed,
    Span span,
    int64_t n_seen,
    bint random,
    Span held,
    Py_ssize_t n_rows,
    Py_ssize_t n_epochs,
    uint32_t *order,            # OUT, n_epochs * (stop - start) row numbers
) noexcept nogil
