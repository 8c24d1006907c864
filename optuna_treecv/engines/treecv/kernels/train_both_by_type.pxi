"""Defines ``train_both`` of a kernel that trains two states together; for single models.

The kernel must include ``train_by_type.pxi`` before this file, and define ``train_both_on``. Rows with and without
weights have separate loops.
"""


cdef inlined train_both_by_type(
    const Learner *learner,
    Span span,
    Span other_span,
    unsigned char *first,
    unsigned char *second,
    bint weighted,
) noexcept nogil:
    cdef void *z = vectors_of(learner, first)
    cdef void *other_z = vectors_of(learner, second)
    if learner.itemsize == 8:
        train_both_on(learner, span, other_span, first, second, <double *> z, <double *> other_z, weighted)
    else:
        train_both_on(learner, span, other_span, first, second, <float *> z, <float *> other_z, weighted)


cdef dispatched train_both(
    const Learner *learner,
    Span span,
    Span other_span,
    unsigned char *first,
    unsigned char *second,
) noexcept nogil:
    if has_weights(learner):
        train_both_by_type(learner, span, other_span, first, second, True)
    else:
        train_both_by_type(learner, span, other_span, first, second, False)
