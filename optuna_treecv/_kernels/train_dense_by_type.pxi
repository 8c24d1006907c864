"""``train`` of a kernel for dense rows alone: its ``train_on``, for their type."""

from libc.stdint cimport uint32_t

from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.vec8 cimport dispatched


cdef dispatched train(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, Log *log
) noexcept nogil:
    cdef void *vectors = vectors_of(learner, state)
    if learner.itemsize == 8:
        train_on(learner, &learner.dense, start, stop, order, state, <double *> vectors)
    else:
        train_on(learner, &learner.dense, start, stop, order, state, <float *> vectors)
