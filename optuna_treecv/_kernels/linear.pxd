"""What linear learners share: a model is one weight vector an output, and says w.x of a row."""

from optuna_treecv._kernels.tree cimport Learner


cdef void test_linear_float64(
    const Learner *learner,
    const void *model,          # IN, (n_outputs, width)
    Py_ssize_t start,
    Py_ssize_t stop,
    void *out,                  # OUT, (stop - start, n_outputs)
) noexcept nogil

cdef void test_linear_float32(
    const Learner *learner,
    const void *model,
    Py_ssize_t start,
    Py_ssize_t stop,
    void *out,
) noexcept nogil
