"""``train_both`` of a kernel: its ``train_both_on``, for the type of the rows, without and with weights."""

from libc.stdint cimport uint32_t

from optuna_treecv._kernels.row_weight cimport has_weights
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined


cdef inlined train_both_by_type(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t other_start,
    Py_ssize_t n_rows,
    const uint32_t *order,
    unsigned char *first,
    unsigned char *second,
    bint weighted,
) noexcept nogil:
    cdef void *z = vectors_of(learner, first)
    cdef void *other_z = vectors_of(learner, second)
    if learner.itemsize == 8:
        train_both_on(
            learner, start, other_start, n_rows, order, first, second, <double *> z, <double *> other_z, weighted
        )
    else:
        train_both_on(
            learner, start, other_start, n_rows, order, first, second, <float *> z, <float *> other_z, weighted
        )


cdef dispatched train_both(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t other_start,
    Py_ssize_t n_rows,
    const uint32_t *order,
    unsigned char *first,
    unsigned char *second,
) noexcept nogil:
    if has_weights(learner):
        train_both_by_type(learner, start, other_start, n_rows, order, first, second, True)
    else:
        train_both_by_type(learner, start, other_start, n_rows, order, first, second, False)
