"""``train`` and ``train_weighted`` of a kernel for dense rows alone: its ``train_on``, for their type, without and
with weights.
"""

from libc.stdint cimport uint32_t

from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined


cdef inlined train_by_type(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,
    bint weighted,
) noexcept nogil:
    cdef void *vectors = vectors_of(learner, state)
    if learner.itemsize == 8:
        train_on(learner, &learner.dense, start, stop, order, state, <double *> vectors, weighted)
    else:
        train_on(learner, &learner.dense, start, stop, order, state, <float *> vectors, weighted)


cdef dispatched train(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, Log *log
) noexcept nogil:
    train_by_type(learner, start, stop, order, state, False)


cdef dispatched train_weighted(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, Log *log
) noexcept nogil:
    train_by_type(learner, start, stop, order, state, True)
