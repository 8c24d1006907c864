"""What linear learners share: a model is one weight vector an output, and says w.x of a row."""

from cython cimport floating

from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport dot
from optuna_treecv._kernels.vec8 cimport inlined


cdef inlined test_linear(
    const Learner *learner,
    const floating *weights,    # IN, (n_outputs, width)
    Py_ssize_t start,
    Py_ssize_t stop,
    floating *out,              # OUT, (stop - start, n_outputs)
) noexcept nogil:
    """out = X w, row by row."""
    cdef Py_ssize_t width = learner.width
    cdef Py_ssize_t n_outputs = learner.n_outputs
    cdef const floating *x = (<const floating *> learner.X) + start * width
    cdef Py_ssize_t i, c
    for i in range(stop - start):
        for c in range(n_outputs):
            out[i * n_outputs + c] = dot(weights + c * width, x + i * width, width)


# The clones, one function for each type of number; and their doors for other modules.

cdef dispatched test_float64(
    const Learner *learner, const void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    test_linear(learner, <const double *> model, start, stop, <double *> out)


cdef dispatched test_float32(
    const Learner *learner, const void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    test_linear(learner, <const float *> model, start, stop, <float *> out)


cdef void test_linear_float64(
    const Learner *learner, const void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    test_float64(learner, model, start, stop, out)


cdef void test_linear_float32(
    const Learner *learner, const void *model, Py_ssize_t start, Py_ssize_t stop, void *out
) noexcept nogil:
    test_float32(learner, model, start, stop, out)
