"""The base of linear kernels: a model has one weight vector w per output, and predicts w.x for a row x.

A state holds such a vector as w = a p + b q: p a vector of the type of the rows, often scaled, q
one of the sums behind averages and mean gradients, which are float64. A model that has left the
finite numbers where no row shows it has NaN for a or b.
"""

from libc.math cimport fabs
from libc.stdint cimport int32_t

from optuna_treecv._kernels.tree cimport Kernel
from optuna_treecv._kernels.tree cimport Learner
from optuna_treecv._kernels.tree cimport train_rows


cdef struct Weights:
    const void *p               # (width,), the type of the rows; or NULL
    double a
    const double *q             # (width,), or NULL
    double b


# The weights of output c that a state stands for.
ctypedef Weights (*find_weights)(const Learner *learner, const unsigned char *state, Py_ssize_t c) noexcept nogil


cdef inline bint extreme(double scale) noexcept nogil:
    """Whether z in w = scale z is so much larger or smaller than w that digits are at risk; NaN stays as it is."""
    return fabs(scale) < 1.0 / 64 or fabs(scale) > 64


# What the settings of every linear learner begin with.
cdef struct LinearSettings:
    find_weights weights
    int32_t first_class         # the class that output 0 tells from the rest


cdef class LinearKernel(Kernel):
    cdef int bind_linear(
        self, object X, object y, n_classes, LinearSettings *settings, train_rows train, find_weights weights
    ) except -1
