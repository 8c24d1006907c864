"""``train`` of a kernel for dense rows alone: its ``train_on``, for their type. Rows without weights and outputs have
a loop of their own.
"""

from libc.stdint cimport uint32_t

from optuna_treecv._kernels.row_weight cimport has_weights
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined


cdef inlined train_dense_by_type(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,
    bint weighted,
    void *tested,
) noexcept nogil:
    cdef void *vectors = vectors_of(learner, state)
    if learner.itemsize == 8:
        train_dense_on(learner, start, stop, order, state, <double *> vectors, weighted, <double *> tested)
    else:
        train_dense_on(learner, start, stop, order, state, <float *> vectors, weighted, <float *> tested)


cdef dispatched train_dense(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,
    Log *log,
    void *tested,
) noexcept nogil:
    cdef bint weighted = has_weights(learner)
    if not weighted and tested == NULL:
        train_dense_by_type(learner, start, stop, order, state, False, NULL)
    else:
        train_dense_by_type(learner, start, stop, order, state, weighted, tested)
