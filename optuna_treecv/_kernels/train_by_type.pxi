"""``train`` and ``train_weighted`` of a kernel for dense and sparse rows: its ``train_on``, for their layout and
type, without and with weights.
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
    Log *log,
    bint weighted,
) noexcept nogil:
    cdef void *vectors = vectors_of(learner, state)
    if learner.sparse.begins != NULL:
        if learner.itemsize == 8:
            train_on(learner, &learner.sparse, start, stop, order, state, <double *> vectors, log, weighted)
        else:
            train_on(learner, &learner.sparse, start, stop, order, state, <float *> vectors, log, weighted)
    elif learner.itemsize == 8:
        train_on(learner, &learner.dense, start, stop, order, state, <double *> vectors, log, weighted)
    else:
        train_on(learner, &learner.dense, start, stop, order, state, <float *> vectors, log, weighted)


cdef dispatched train(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, Log *log
) noexcept nogil:
    train_by_type(learner, start, stop, order, state, log, False)


cdef dispatched train_weighted(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, Log *log
) noexcept nogil:
    train_by_type(learner, start, stop, order, state, log, True)
