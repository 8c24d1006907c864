"""Exponential and logarithm functions that give the same bits on every machine.

The functions of C libraries may differ in the last bit from one machine to the next. The errors of both functions here
are at most two units in the last place. Their power series are evaluated by Estrin's scheme, in which most
multiplications are independent of each other and can run in parallel.
"""

from cython cimport floating
from libc.math cimport INFINITY
from libc.math cimport NAN
from libc.math cimport floor
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t
from libc.string cimport memcpy


cdef inline double power_of_two(int64_t k) noexcept nogil:
    """Return 2^k for -1022 <= k <= 1023."""
    cdef uint64_t bits = <uint64_t> (k + 1023) << 52
    cdef double result
    memcpy(&result, &bits, 8)
    return result


cdef inline double exponential(double x) noexcept nogil:
    """Return e^x, computed as 2^k e^r with |r| <= ln(2) / 2.

    The result is inf for x > 709. It is 0 for x < -708, because results near the subnormal range would lose digits.
    """
    cdef double k
    if not x >= -708:
        return 0 if x < 0 else NAN
    if x > 709:
        return INFINITY
    k = floor(x * 1.4426950408889634 + 0.5)
    return exponential_of_remainder(x, k) * power_of_two(<int64_t> k)


cdef inline double exponential_of_remainder(double x, double k) noexcept nogil:
    """Return e^r for r = x - k ln 2 with |r| <= ln(2) / 2."""
    cdef double r, r2, r4
    # ln 2 is split into two constants. The first one has few enough digits for its product with k to be exact.
    r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10
    r2 = r * r
    r4 = r2 * r2
    # 1 + r + r^2/2! + ... + r^13/13!
    return ((1 + r) + r2 * (1.0 / 2.0 + r * (1.0 / 6.0))) + r4 * (
        ((1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5040.0)))
        + r4 * (
            ((1.0 / 40320.0 + r * (1.0 / 362880.0)) + r2 * (1.0 / 3628800.0 + r * (1.0 / 39916800.0)))
            + r4 * (1.0 / 479001600.0 + r * (1.0 / 6227020800.0))
        )
    )


cdef inline floating exponential_in_vectors(floating x) noexcept nogil:
    """Return e^x for x clipped to [-708, 708], or to [-87, 87] in float32; NaN stays NaN.

    The function has no branches, which lets the compiler vectorise a loop that calls it.
    """
    cdef floating limit = 87 if floating is float else 708
    cdef double shifted, power
    cdef uint64_t bits
    cdef float shifted4, power4, k, r, r2
    cdef uint32_t bits4
    x = limit if x > limit else x                           # NaN stays NaN
    x = -limit if x < -limit else x
    # Near 1.5 * 2^52, float64 numbers are integers. Adding this constant therefore rounds to an integer, whose bits
    # are the last bits of the sum.
    if floating is double:
        shifted = x * 1.4426950408889634 + 6755399441055744.0
        memcpy(&bits, &shifted, 8)
        bits = (bits + 1023) << 52
        memcpy(&power, &bits, 8)                            # 2^k
        return exponential_of_remainder(x, shifted - 6755399441055744.0) * power
    else:
        shifted4 = x * <float> 1.4426950408889634 + <float> 12582912.0      # 1.5 * 2^23
        memcpy(&bits4, &shifted4, 4)
        bits4 = (bits4 + 127) << 23
        memcpy(&power4, &bits4, 4)
        k = shifted4 - <float> 12582912.0
        r = (x - k * <float> 0.693359375) + k * <float> 2.12194440e-4     # ln 2, split in two
        r2 = r * r
        # 1 + r + r^2/2! + ... + r^7/7!
        return (((<float> 1 + r) + r2 * (<float> (1.0 / 2.0) + r * <float> (1.0 / 6.0))) + (r2 * r2) * (
            (<float> (1.0 / 24.0) + r * <float> (1.0 / 120.0))
            + r2 * (<float> (1.0 / 720.0) + r * <float> (1.0 / 5040.0))
        )) * power4


cdef inline double logarithm(double x) noexcept nogil:
    """Return ln x, computed as k ln 2 + ln m with 1 / sqrt(2) < m <= sqrt(2).

    The second term is ln m = 2 artanh(s) with s = (m - 1) / (m + 1).
    """
    cdef uint64_t bits
    cdef int64_t k
    cdef double m, s, s2, s4, s8, series
    if not x > 0:
        return -INFINITY if x == 0 else NAN
    if x == INFINITY:
        return x
    if x < 2.2250738585072014e-308:                 # subnormal
        return logarithm(x * 4503599627370496.0) - 36.04365338911715        # 2^52, ln 2^52
    memcpy(&bits, &x, 8)
    k = <int64_t> (bits >> 52) - 1023
    bits = (bits & <uint64_t> 0x000FFFFFFFFFFFFF) | <uint64_t> 0x3FF0000000000000
    memcpy(&m, &bits, 8)
    if m > 1.4142135623730951:
        m = m / 2
        k += 1
    s = (m - 1) / (m + 1)
    s2 = s * s
    s4 = s2 * s2
    s8 = s4 * s4
    # s^2/3 + s^4/5 + ... + s^20/21
    series = s2 * (
        ((1.0 / 3.0 + s2 * (1.0 / 5.0)) + s4 * (1.0 / 7.0 + s2 * (1.0 / 9.0)))
        + s8 * (
            ((1.0 / 11.0 + s2 * (1.0 / 13.0)) + s4 * (1.0 / 15.0 + s2 * (1.0 / 17.0)))
            + s8 * (1.0 / 19.0 + s2 * (1.0 / 21.0))
        )
    )
    return <double> k * 0.693147180369123816490 + (2 * s + (2 * s * series + <double> k * 1.90821492927058770002e-10))
