"""The base of linear kernels: a model has one weight vector w per output, and predicts w.x for a row x.

A state holds such a vector as w = a p + b q. Here p is a vector of the same type as the rows, and q
is a float64 vector of sums, for averages and mean gradients. If a weight is no longer finite and
later rows may not show it, a or b is NaN.
"""

from cython cimport floating
from libc.math cimport fabs
from libc.stdint cimport int32_t

from optuna_treecv._kernels.rows cimport Rows
from optuna_treecv._kernels.rows cimport dot_row
from optuna_treecv.engines.treecv.kernels.kernel cimport Kernel
from optuna_treecv.engines.treecv.kernels.tree cimport Learner
from optuna_treecv.engines.treecv.kernels.tree cimport train_rows


cdef struct Weights:
    const void *p               # (width,), the type of the rows
    double a
    const double *q             # (width,), or NULL
    double b


# Return the weights that a state holds for output c.
ctypedef Weights (*find_weights)(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil


cdef inline double *sum_of(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil:
    """Return the first float64 vector of output c behind the head of a state."""
    return <double *> (state + learner.head_bytes) + c * learner.width


cdef inline floating output_of(
    const Weights *of, const Rows *rows, Py_ssize_t row, floating p_x, const floating *of_type
) noexcept nogil:
    """Return w.x = a p.x + b q.x for a row whose product with p is known, rounded once."""
    cdef double output = of.a * <double> p_x
    if of.q != NULL:
        output += of.b * dot_row(rows, row, of.q, of_type)
    return <floating> output


cdef inline bint extreme(double scale) noexcept nogil:
    """Return whether z in w = scale z is so much larger or smaller than w that digits are at risk; False for NaN."""
    return fabs(scale) < 1.0 / 64 or fabs(scale) > 64


# The first member of the settings of every linear learner.
cdef struct LinearSettings:
    find_weights weights
    int32_t first_class         # the class that output 0 separates from the rest


cdef class LinearKernel(Kernel):
    cdef int bind_linear(
        self,
        object X,
        object y,
        n_classes,
        LinearSettings *settings,
        train_rows train_on_dense,
        train_rows train_on_sparse,
        find_weights weights,
    ) except -1
