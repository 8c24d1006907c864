"""Defines ``train``, the training function of a kernel for models in lanes.

The kernel includes this file at its top, and defines ``train_row`` and ``weights``. The imports here are those that
all of these kernels need.

Whether rows are sparse, have weights, and need outputs is checked for each row. The cost of these checks is not
measurable, because a row trains all lanes.
"""

from cython cimport floating
from libc.stdint cimport int64_t

from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.rows cimport visit
from optuna_treecv._kernels.span cimport Span
from optuna_treecv._kernels.undo cimport Log
from optuna_treecv._kernels.undo cimport remember_all
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv.engines.treecv.kernels.lanes cimport LaneRow
from optuna_treecv.engines.treecv.kernels.lanes cimport add_lanes
from optuna_treecv.engines.treecv.kernels.lanes cimport dot_lanes
from optuna_treecv.engines.treecv.kernels.lanes cimport norm2_of
from optuna_treecv.engines.treecv.kernels.lanes cimport read_row
from optuna_treecv.engines.treecv.kernels.lanes cimport step_lanes
from optuna_treecv.engines.treecv.kernels.lanes cimport test_lanes
from optuna_treecv.engines.treecv.kernels.linear cimport LaneWeights
from optuna_treecv.engines.treecv.kernels.linear cimport LinearSettings
from optuna_treecv.engines.treecv.kernels.linear cimport MAX_LANES
from optuna_treecv.engines.treecv.kernels.linear cimport scalars_of
from optuna_treecv.engines.treecv.kernels.linear cimport sums_of
from optuna_treecv.engines.treecv.kernels.linear cimport vectors_of
from optuna_treecv.engines.treecv.kernels.row_weight cimport has_weights
from optuna_treecv.engines.treecv.kernels.row_weight cimport weight_of
from optuna_treecv.engines.treecv.kernels.tree cimport Learner


cdef inlined train_on(
    const Learner *learner,
    Span span,
    unsigned char *state,       # INOUT
    floating *z,                # INOUT, the vectors in ``state``
    Log *log,
    floating *out,              # OUT, (n_models, rows of the span, n_outputs), outputs before each row; or NULL
) noexcept nogil:
    cdef bint is_sparse = learner.sparse.indptr != NULL
    cdef bint has_dots
    cdef floating dots[MAX_LANES]
    cdef LaneRow rows[2]
    cdef LaneRow *row
    cdef LaneRow *next_row = &rows[0]
    cdef Py_ssize_t i
    read_row(learner, row_at(span, span.start), next_row, z)
    for i in range(span.start, span.stop):
        row = next_row
        visit(&learner.sparse, span, i, z) if is_sparse else visit(&learner.dense, span, i, z)
        if i + 1 < span.stop:
            next_row = &rows[(i + 1 - span.start) % 2]
            read_row(learner, row_at(span, i + 1), next_row, z)
        # With dense rows, the step of the previous row has also computed the dot products with this row.
        has_dots = i > span.start and not is_sparse
        train_row(learner, row, next_row, has_dots, dots, state, z, log, span.stop - span.start, out)
        if out != NULL:
            out += learner.n_outputs


cdef dispatched train(const Learner *learner, Span span, unsigned char *state, Log *log, void *out) noexcept nogil:
    cdef void *vectors = vectors_of(learner, state)
    if learner.itemsize == 8:
        train_on(learner, span, state, <double *> vectors, log, <double *> out)
    else:
        train_on(learner, span, state, <float *> vectors, log, <float *> out)


cdef void set_up_lanes(Learner *learner, LinearSettings *settings) noexcept:
    """Set the functions of a learner that trains models in lanes."""
    learner.train = train
    settings.lane_weights = weights
