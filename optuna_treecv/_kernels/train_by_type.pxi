"""``train`` of a kernel for dense and sparse rows: its ``train_on``, for their layout and type.

Asking for each row whether it has a weight and an output takes 2 to 6 % more instructions for one model alone, so
there the constant ``HAS_PLAIN_LOOPS`` asks for further loops without outputs.
"""

from libc.stdint cimport uint32_t

from optuna_treecv._kernels.row_weight cimport has_weights
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
    void *tested,
) noexcept nogil:
    cdef void *z = vectors_of(learner, state)
    if learner.sparse.begins != NULL:
        if learner.itemsize == 8:
            train_on(
                learner, &learner.sparse, start, stop, order, state, <double *> z, log, weighted, <double *> tested
            )
        else:
            train_on(learner, &learner.sparse, start, stop, order, state, <float *> z, log, weighted, <float *> tested)
    elif learner.itemsize == 8:
        train_on(learner, &learner.dense, start, stop, order, state, <double *> z, log, weighted, <double *> tested)
    else:
        train_on(learner, &learner.dense, start, stop, order, state, <float *> z, log, weighted, <float *> tested)


cdef dispatched train(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,
    unsigned char *state,
    Log *log,
    void *tested,
) noexcept nogil:
    cdef bint weighted = has_weights(learner)
    if HAS_PLAIN_LOOPS and tested == NULL:
        if weighted:
            train_by_type(learner, start, stop, order, state, log, True, NULL)
        else:
            train_by_type(learner, start, stop, order, state, log, False, NULL)
    else:
        train_by_type(learner, start, stop, order, state, log, weighted, tested)
