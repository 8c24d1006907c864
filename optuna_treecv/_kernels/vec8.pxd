"""Cython declarations for ``vec8.h`` and ``dispatch.h``, of which every kernel is made."""

from cython cimport floating


cdef extern from "dispatch.h":
    ctypedef void dispatched "DISPATCHED void"
    ctypedef void inlined "INLINED void"
    ctypedef void seldom "SELDOM void"
    void prefetch "PREFETCH"(const void *address) noexcept nogil

cdef extern from "vec8.h":
    double dot8_double(const double *a, const double *b, Py_ssize_t width) noexcept nogil
    float dot8_float(const float *a, const float *b, Py_ssize_t width) noexcept nogil
    void axpy8_double(double c, const double *x, double *y, Py_ssize_t width) noexcept nogil
    void axpy8_float(float c, const float *x, float *y, Py_ssize_t width) noexcept nogil
    void dots8_double(
        const double *a, const double *b, const double *c, const double *d, Py_ssize_t width, double *ab, double *cd
    ) noexcept nogil
    void dots8_float(
        const float *a, const float *b, const float *c, const float *d, Py_ssize_t width, float *ab, float *cd
    ) noexcept nogil
    void axpys8_double(
        double c, const double *x, double *y, double d, const double *u, double *v, Py_ssize_t width
    ) noexcept nogil
    void axpys8_float(
        float c, const float *x, float *y, float d, const float *u, float *v, Py_ssize_t width
    ) noexcept nogil
    void scale8_double(
        const double *x, const double *shift, const double *factor, double *out, Py_ssize_t width
    ) noexcept nogil
    void scale8_float(
        const float *x, const float *shift, const float *factor, float *out, Py_ssize_t width
    ) noexcept nogil
    double if_below_double(double c, double x, double limit) noexcept nogil
    float if_below_float(float c, float x, float limit) noexcept nogil
    double distance8_double(const double *a, const double *b, Py_ssize_t width) noexcept nogil
    float distance8_float(const float *a, const float *b, Py_ssize_t width) noexcept nogil
    double dot8_wide(const double *q, const float *x, Py_ssize_t width) noexcept nogil
    void axpy8_wide(double c, const float *x, double *q, Py_ssize_t width) noexcept nogil


cdef inline floating dot(const floating *a, const floating *b, Py_ssize_t width) noexcept nogil:
    """Return a . b in the summation order of ``vec8.h``; ``width`` is a multiple of 8."""
    if floating is double:
        return dot8_double(a, b, width)
    else:
        return dot8_float(a, b, width)


cdef inline double dot_wide(const double *q, const floating *x, Py_ssize_t width) noexcept nogil:
    """Return q . x, in float64 for either type of x."""
    if floating is double:
        return dot8_double(q, x, width)
    else:
        return dot8_wide(q, x, width)


cdef inline void axpy(floating c, const floating *x, floating *y, Py_ssize_t width) noexcept nogil:
    """Compute y += c x."""
    if floating is double:
        axpy8_double(c, x, y, width)
    else:
        axpy8_float(c, x, y, width)


cdef inline void two_dots(
    const floating *a,
    const floating *b,
    const floating *c,
    const floating *d,
    Py_ssize_t width,
    floating *ab,               # OUT
    floating *cd,               # OUT
) noexcept nogil:
    """Compute a . b and c . d; neither waits for the other."""
    if floating is double:
        dots8_double(a, b, c, d, width, ab, cd)
    else:
        dots8_float(a, b, c, d, width, ab, cd)


cdef inline void two_axpys(
    floating c, const floating *x, floating *y, floating d, const floating *u, floating *v, Py_ssize_t width
) noexcept nogil:
    """Compute y += c x and v += d u."""
    if floating is double:
        axpys8_double(c, x, y, d, u, v, width)
    else:
        axpys8_float(c, x, y, d, u, v, width)


cdef inline void scale(
    const floating *x, const floating *shift, const floating *factor, floating *out, Py_ssize_t width
) noexcept nogil:
    """Write (x - shift) factor, number by number."""
    if floating is double:
        scale8_double(x, shift, factor, out, width)
    else:
        scale8_float(x, shift, factor, out, width)


cdef inline floating if_below(floating c, floating x, floating limit) noexcept nogil:
    """Return c where x < limit, else 0, without a branch that the CPU must predict."""
    if floating is double:
        return if_below_double(c, x, limit)
    else:
        return if_below_float(c, x, limit)


cdef inline void axpy_wide(double c, const floating *x, double *y, Py_ssize_t width) noexcept nogil:
    """Compute y += c x, in float64 for either type of x."""
    if floating is double:
        axpy8_double(c, x, y, width)
    else:
        axpy8_wide(c, x, y, width)


cdef inline floating distance2(const floating *a, const floating *b, Py_ssize_t width) noexcept nogil:
    """Return |a - b|^2 in the summation order of ``vec8.h``."""
    if floating is double:
        return distance8_double(a, b, width)
    else:
        return distance8_float(a, b, width)


cdef inline void prefetch_bytes(const void *begin, Py_ssize_t n_bytes) noexcept nogil:
    """Prefetch memory that is needed soon, one cache line at a time."""
    cdef Py_ssize_t i
    for i in range(0, n_bytes, 64):
        prefetch(<const unsigned char *> begin + i)


cdef inline void prefetch_row(const floating *x, Py_ssize_t n_numbers) noexcept nogil:
    prefetch_bytes(x, n_numbers * <Py_ssize_t> sizeof(floating))
