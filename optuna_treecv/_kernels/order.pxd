"""Random numbers that depend only on the arguments of the function that draws them.

The generator is SplitMix64 (Steele, Lea & Flood 2014), which passes a counter through a mixing function. It has no
global state: threads share nothing, and a resumed run draws the same numbers. Integers below a bound are drawn by the
method of Lemire (2019), which needs one multiplication per draw and rejects some draws to be exactly uniform.
"""

from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t

from optuna_treecv._kernels.span cimport Span


cdef inline uint64_t mix(uint64_t z) noexcept nogil:
    """Return z after SplitMix64's finaliser, in which every input bit affects every output bit."""
    z = (z ^ (z >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <uint64_t> 0x94D049BB133111EB
    return z ^ (z >> 31)


cdef inline uint64_t chain(uint64_t key, uint64_t value) noexcept nogil:
    """Return ``key`` with ``value`` mixed in; the result depends on all values mixed in so far and on their order."""
    return mix(mix(key + <uint64_t> 0x9E3779B97F4A7C15) ^ value)


cdef inline uint32_t below(uint64_t *counter, uint32_t bound) noexcept nogil:
    """Return a uniformly distributed integer in 0..bound-1, and advance ``counter``."""
    cdef uint64_t product
    cdef uint32_t threshold
    counter[0] += <uint64_t> 0x9E3779B97F4A7C15
    product = (mix(counter[0]) >> 32) * bound
    if <uint32_t> product < bound:
        threshold = (<uint32_t> 0 - bound) % bound    # 2^32 mod bound; lower halves below this would bias the draw
        while <uint32_t> product < threshold:
            counter[0] += <uint64_t> 0x9E3779B97F4A7C15
            product = (mix(counter[0]) >> 32) * bound
    return <uint32_t> (product >> 32)


cdef void fill_random_order(
    uint64_t seed,
    Span span,                  # in stored order
    int64_t n_seen,             # the number of rows that the model has been trained on
    uint32_t *order,            # OUT, stop - start row indices
) noexcept nogil


cdef void fill_with_replays(
    uint64_t seed,
    Span span,
    int64_t n_seen,
    bint random,                # whether the rows of the span are in random order, not in stored order
    Span held_out,              # the rows that are held out
    Py_ssize_t n_rows,          # of the whole data set
    Py_ssize_t n_epochs,
    uint32_t *order,            # OUT, n_epochs * (stop - start) row indices
) noexcept nogil
