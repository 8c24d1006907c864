"""``train``, ``train_weighted`` and ``test_then_train`` of a kernel for dense and sparse rows: its ``train_on``, for
their layout and type, without and with weights, and with outputs.
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
    void *said,
) noexcept nogil:
    cdef void *vectors = vectors_of(learner, state)
    if learner.sparse.begins != NULL:
        if learner.itemsize == 8:
            train_on(
                learner, &learner.sparse, start, stop, order, state, <double *> vectors, log, weighted, <double *> said
            )
        else:
            train_on(
                learner, &learner.sparse, start, stop, order, state, <float *> vectors, log, weighted, <float *> said
            )
    elif learner.itemsize == 8:
        train_on(
            learner, &learner.dense, start, stop, order, state, <double *> vectors, log, weighted, <double *> said
        )
    else:
        train_on(
            learner, &learner.dense, start, stop, order, state, <float *> vectors, log, weighted, <float *> said
        )


cdef dispatched train(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, Log *log
) noexcept nogil:
    train_by_type(learner, start, stop, order, state, log, False, NULL)


cdef dispatched train_weighted(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, Log *log
) noexcept nogil:
    train_by_type(learner, start, stop, order, state, log, True, NULL)


cdef dispatched test_then_train(
    const Learner *learner, Py_ssize_t start, Py_ssize_t stop, const uint32_t *order, unsigned char *state, void *said
) noexcept nogil:
    cdef bint weighted = learner.weights != NULL or learner.n_balanced != 0
    train_by_type(learner, start, stop, order, state, NULL, weighted, said)
