"""``read_linear`` and ``test_linear``, of one model and of lanes: ``read``, ``test_dense`` and ``test_sparse``
for the layout and the type of the rows.
"""

from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv.engines.treecv.kernels.tree cimport Learner


cdef dispatched read_linear(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    if learner.itemsize == 8:
        read(learner, state, <double *> model)
    else:
        read(learner, state, <float *> model)


cdef dispatched test_linear(
    const Learner *learner, const unsigned char *state, void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    if learner.sparse.begins != NULL:
        if learner.itemsize == 8:
            test_sparse(learner, state, start, stop, <double *> out)
        else:
            test_sparse(learner, state, start, stop, <float *> out)
    elif learner.itemsize == 8:
        read(learner, state, <double *> model)
        test_dense(learner, <const double *> model, start, stop, <double *> out)
    else:
        read(learner, state, <float *> model)
        test_dense(learner, <const float *> model, start, stop, <float *> out)
