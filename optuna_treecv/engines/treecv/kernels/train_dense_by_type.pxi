"""Defines ``train_dense``, the training function of a kernel that takes dense rows only.

The kernel defines ``train_dense_on`` and ``vectors_of``. The imports here are those that all of these kernels need.
There is a separate loop for training without row weights and without writing outputs.
"""

from cython cimport floating
from libc.stdint cimport int64_t

from optuna_treecv._kernels.rows cimport Dense
from optuna_treecv._kernels.rows cimport visit
from optuna_treecv._kernels.span cimport Span
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv.engines.treecv.kernels.row_weight cimport has_weights
from optuna_treecv.engines.treecv.kernels.tree cimport Learner


cdef inlined train_dense_by_type(
    const Learner *learner,
    Span span,
    unsigned char *state,
    bint weighted,
    void *out,
) noexcept nogil:
    cdef void *vectors = vectors_of(learner, state)
    if learner.itemsize == 8:
        train_dense_on(learner, span, state, <double *> vectors, weighted, <double *> out)
    else:
        train_dense_on(learner, span, state, <float *> vectors, weighted, <float *> out)


cdef dispatched train_dense(
    const Learner *learner,
    Span span,
    unsigned char *state,
    Log *log,
    void *out,
) noexcept nogil:
    cdef bint weighted = has_weights(learner)
    if not weighted and out == NULL:
        train_dense_by_type(learner, span, state, False, NULL)
    else:
        train_dense_by_type(learner, span, state, weighted, out)
