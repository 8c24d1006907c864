"""Randomness that depends on nothing but its arguments.

The generator is SplitMix64 (Steele, Lea & Flood 2014), a counter through a mixing function, so it
needs no state that threads could share or a resumed run could lose. Draws below a bound are
Lemire's (2019): one multiplication, exact by rejection.
"""

from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t


cdef inline uint64_t mix(uint64_t z) noexcept nogil:
    """SplitMix64's finaliser: every bit of the input moves every bit of the output."""
    z = (z ^ (z >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <uint64_t> 0x94D049BB133111EB
    return z ^ (z >> 31)


cdef inline uint64_t chain(uint64_t key, uint64_t value) noexcept nogil:
    """Take one more number into a key; neither commutes nor forgets."""
    return mix(mix(key + <uint64_t> 0x9E3779B97F4A7C15) ^ value)


cdef inline uint32_t below(uint64_t *counter, uint32_t bound) noexcept nogil:
    """A uniform number in 0..bound-1; the counter moves on."""
    cdef uint64_t product
    cdef uint32_t refused
    counter[0] += <uint64_t> 0x9E3779B97F4A7C15
    product = (mix(counter[0]) >> 32) * bound
    if <uint32_t> product < bound:
        refused = (<uint32_t> 0 - bound) % bound      # 2^32 mod bound: the draws that would favour small numbers
        while <uint32_t> product < refused:
            counter[0] += <uint64_t> 0x9E3779B97F4A7C15
            product = (mix(counter[0]) >> 32) * bound
    return <uint32_t> (product >> 32)


cdef void fill_random_order(
    uint64_t seed,
    Py_ssize_t start,
    Py_ssize_t stop,
    int64_t n_seen,
    uint32_t *order,            # OUT, stop - start row numbers
) noexcept nogil
