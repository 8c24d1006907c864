"""Needs ``train_both_on`` of the kernel that includes this, and ``train_by_type.pxi`` before: ``train_both`` of one
model, without and with weights.
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
