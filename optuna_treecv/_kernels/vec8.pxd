"""Cython declarations of the vector loops in ``vec8.h`` and of the compiler macros in ``dispatch.h``."""

from cython cimport floating


cdef extern from "dispatch.h":
    ctypedef void dispatched "DISPATCHED void"
    ctypedef void dispatched_sparse "DISPATCHED_SPARSE void"
    ctypedef void inlined "INLINED void"
    ctypedef bint inlined_bint "INLINED int"
    ctypedef void seldom "SELDOM void"
    void prefetch "PREFETCH"(const void *address) noexcept nogil
    void prefetch_far "PREFETCH_FAR"(const void *address) noexcept nogil

# Each of these is a macro in C, which dispatches on the type of its pointers, float64 or float32.
cdef extern from "vec8.h" nogil:
    double dot8(const void *w, const void *x, Py_ssize_t width) noexcept
    double distance8(const void *a, const void *b, Py_ssize_t width) noexcept
    double if_below8(double c, double x, double limit) noexcept

    # Compute a . b and c . d in one loop, so that the CPU works on both at the same time.
    void two_dots "dots8"(
        const void *a, const void *b, const void *c, const void *d, Py_ssize_t width, void *ab, void *cd
    ) noexcept

    # Compute y += c x and v += d u, then y . a and v . b, in one loop that keeps y and v in registers.
    void two_steps "steps8"(
        double c,
        const void *x,
        void *y,                # INOUT
        const void *a,
        double d,
        const void *u,
        void *v,                # INOUT
        const void *b,
        Py_ssize_t width,
        void *ya,               # OUT
        void *vb,               # OUT
    ) noexcept

    double stepped8(double c, const void *x, const void *y, double f, const void *a, Py_ssize_t width) noexcept

    # Compute w += c x.
    void axpy "axpy8"(double c, const void *x, void *w, Py_ssize_t width) noexcept

    # Return the sum of eight partial sums.
    double sum8 "SUM8"(const void *s) noexcept

    # Compute out = (x - shift) * factor element by element.
    void scale "scale8"(const void *x, const void *shift, const void *factor, void *out, Py_ssize_t width) noexcept


# The type of a vector: that of the rows, or float64 for sums. float32 vectors with float64 rows do not occur.
ctypedef fused Weight:
    double
    float


cdef inline Weight dot(const Weight *w, const floating *x, Py_ssize_t width) noexcept nogil:
    """Return w . x in the summation order of ``vec8.h``; ``width`` is a multiple of 8."""
    if floating is float or Weight is double:
        return <Weight> dot8(w, x, width)


cdef inline floating stepped(
    floating c, const floating *x, const floating *y, double f, const floating *a, Py_ssize_t width
) noexcept nogil:
    """Return f (y + c x) . a, with each element of f (y + c x) rounded to the type of the vectors."""
    return <floating> stepped8(c, x, y, f, a, width)


cdef inline floating distance2(const floating *a, const floating *b, Py_ssize_t width) noexcept nogil:
    """Return |a - b|^2 in the summation order of ``vec8.h``."""
    return <floating> distance8(a, b, width)


cdef inline floating if_below(floating c, floating x, floating limit) noexcept nogil:
    """Return c if x < limit, else 0, without a branch that the CPU could mispredict."""
    return <floating> if_below8(c, x, limit)


# These functions must be inlined. GCC sees no side effect in a function that only prefetches, and removes calls of it.

cdef inline inlined prefetch_bytes(const void *begin, Py_ssize_t n_bytes, bint far=False) noexcept nogil:
    """Prefetch a range of memory; with ``far``, only into the second-level cache, where it stays longer."""
    cdef Py_ssize_t i
    for i in range(0, n_bytes, 64):
        if far:
            prefetch_far(<const unsigned char *> begin + i)
        else:
            prefetch(<const unsigned char *> begin + i)


cdef inline inlined prefetch_row(const floating *x, Py_ssize_t n_values, bint far=False) noexcept nogil:
    prefetch_bytes(x, n_values * <Py_ssize_t> sizeof(floating), far)
