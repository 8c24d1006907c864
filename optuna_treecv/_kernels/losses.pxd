"""The slope of each loss in its prediction p, one line of mathematics each."""

from cython cimport floating


cdef inline floating squared_slope(floating p, floating y) noexcept nogil:
    """Of (p - y)^2 / 2."""
    return p - y
