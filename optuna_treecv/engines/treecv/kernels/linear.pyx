"""Reads and tests the models of linear kernels; the layout of their states is in ``linear.pxd``."""

from optuna_treecv._kernels.rows cimport Sparse
from optuna_treecv._kernels.vec8 cimport dot
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport sum8


cdef inline floating weight(const Weights *of, Py_ssize_t j, const floating *of_type) noexcept nogil:
    """Return w_j = a p_j + b q_j, rounded once."""
    cdef double w = of.a * <double> (<const floating *> of.p)[j]
    return <floating> (w + of.b * of.q[j] if of.q != NULL else w)


cdef inlined read(const Learner *learner, const unsigned char *state, floating *weights) noexcept nogil:
    """Write the weights w = a p + b q of all outputs, (n_outputs, width)."""
    cdef Weights of
    cdef const floating *p
    cdef Py_ssize_t c, j
    for c in range(learner.n_outputs):
        of = (<const LinearSettings *> learner.settings).weights(learner, state, c)
        p = <const floating *> of.p
        if of.q != NULL:
            for j in range(learner.width):
                weights[j] = <floating> (of.a * <double> p[j] + of.b * of.q[j])
        else:
            for j in range(learner.width):
                weights[j] = <floating> (of.a * <double> p[j])
        weights += learner.width


cdef inlined test_dense(
    const Learner *learner,
    const floating *weights,    # IN, (n_outputs, width)
    Py_ssize_t start,
    Py_ssize_t stop,
    floating *out,              # OUT, (stop - start, n_outputs)
) noexcept nogil:
    """Compute out = X w, row by row."""
    cdef Py_ssize_t width = learner.width
    cdef Py_ssize_t n_outputs = learner.n_outputs
    cdef const floating *x = (<const floating *> learner.dense.values) + start * width
    cdef Py_ssize_t i, c
    for i in range(stop - start):
        for c in range(n_outputs):
            out[i * n_outputs + c] = dot(weights + c * width, x + i * width, width)


cdef inlined test_sparse(
    const Learner *learner,
    const unsigned char *state,
    Py_ssize_t start,
    Py_ssize_t stop,
    floating *out,              # OUT, (stop - start, n_outputs)
) noexcept nogil:
    """Do the same for sparse rows, reading only the weights that a row needs; outputs are NaN if any weight is."""
    cdef const Sparse *rows = &learner.sparse
    cdef const floating *x = <const floating *> rows.values
    cdef Weights of
    cdef floating s[8]
    cdef Py_ssize_t i, c, j
    for c in range(learner.n_outputs):
        of = (<const LinearSettings *> learner.settings).weights(learner, state, c)
        for i in range(stop - start):
            s[1] = s[2] = s[3] = s[4] = s[5] = s[6] = s[7] = 0
            s[0] = <floating> (0 * of.a + (0 * of.b if of.q != NULL else 0))
            for j in range(rows.begins[start + i], rows.begins[start + i + 1]):
                s[rows.columns[j] & 7] += weight(&of, rows.columns[j], x) * x[j]
            out[i * learner.n_outputs + c] = <floating> sum8(s)


include "linear_by_type.pxi"


cdef class LinearKernel(Kernel):
    """A linear learner over prepared rows ``X``, dense (n_rows, width) or ``SparseRows``, float64
    or float32, and class codes (int32) or targets of the type of X.
    """

    cdef int bind_linear(
        self,
        object X,
        object y,
        n_classes,
        LinearSettings *settings,
        train_rows train_on_dense,
        train_rows train_on_sparse,
        find_weights weights,
    ) except -1:
        """Bind the rows and the settings."""
        settings.first_class = self.bind_targets(X, y, n_classes)
        settings.weights = weights
        self.learner.settings = settings
        self.learner.train = train_on_dense if self.learner.sparse.begins == NULL else train_on_sparse
        self.learner.tests_rows = True
        self.learner.read = read_linear
        self.learner.test = test_linear
        return 0
