"""Defines the training functions of a kernel for single models, on dense and on sparse rows.

The kernel includes this file at its top, and defines ``train_on`` and ``weights``. The imports here are those that all
of these kernels need.

Checking for each row whether it has a weight and whether outputs are written would take 2 to 6 % more instructions.
There are therefore three loops: with outputs, without outputs but with weights, and without both.
"""

from libc.stdint cimport int32_t

from optuna_treecv._kernels.rows cimport Rows
from optuna_treecv._kernels.rows cimport add_row
from optuna_treecv._kernels.rows cimport dot_row
from optuna_treecv._kernels.rows cimport norm2_row
from optuna_treecv._kernels.rows cimport visit
from optuna_treecv._kernels.span cimport Span
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.undo cimport remember_all
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport dispatched_sparse
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv.engines.treecv.kernels.kernel cimport Kernel
from optuna_treecv.engines.treecv.kernels.linear cimport LinearKernel
from optuna_treecv.engines.treecv.kernels.linear cimport LinearSettings
from optuna_treecv.engines.treecv.kernels.linear cimport Weights
from optuna_treecv.engines.treecv.kernels.linear cimport model_of
from optuna_treecv.engines.treecv.kernels.linear cimport sums_of
from optuna_treecv.engines.treecv.kernels.linear cimport vectors_of
from optuna_treecv.engines.treecv.kernels.linear cimport weights_of
from optuna_treecv.engines.treecv.kernels.row_weight cimport has_weights
from optuna_treecv.engines.treecv.kernels.row_weight cimport weight_of
from optuna_treecv.engines.treecv.kernels.tree cimport Learner


cdef inlined train_by_type(
    const Learner *learner,
    const Rows *rows,
    Span span,
    unsigned char *state,
    Log *log,
    bint weighted,
    void *out,
) noexcept nogil:
    cdef void *z = vectors_of(learner, state)
    if learner.itemsize == 8:
        train_on(learner, rows, span, state, <double *> z, log, weighted, <double *> out)
    else:
        train_on(learner, rows, span, state, <float *> z, log, weighted, <float *> out)


cdef inlined train_in_loops(
    const Learner *learner,
    const Rows *rows,
    Span span,
    unsigned char *state,
    Log *log,
    void *out,
) noexcept nogil:
    cdef bint weighted = has_weights(learner)
    if out != NULL:
        train_by_type(learner, rows, span, state, log, weighted, out)
    elif weighted:
        train_by_type(learner, rows, span, state, log, True, NULL)
    else:
        train_by_type(learner, rows, span, state, log, False, NULL)


cdef dispatched train_on_dense(
    const Learner *learner,
    Span span,
    unsigned char *state,
    Log *log,
    void *out,
) noexcept nogil:
    train_in_loops(learner, &learner.dense, span, state, log, out)


cdef dispatched_sparse train_on_sparse(
    const Learner *learner,
    Span span,
    unsigned char *state,
    Log *log,
    void *out,
) noexcept nogil:
    train_in_loops(learner, &learner.sparse, span, state, log, out)


cdef void set_up_alone(Learner *learner, LinearSettings *settings) noexcept:
    """Set the functions of a learner that trains a single model."""
    learner.train = train_on_dense if learner.sparse.indptr == NULL else train_on_sparse
    settings.weights = weights
