"""A kernel around another one, which trains and tests it on rows that are not those stored."""

from optuna_treecv._kernels.tree cimport Kernel
from optuna_treecv._kernels.tree cimport Learner


# The first of the settings of a kernel around another.
cdef struct Behind:
    const Learner *learner      # the kernel behind
    Py_ssize_t y_bytes          # of an entry of y


cdef class Around(Kernel):
    cdef Kernel behind

    cdef int stand_around(self, Kernel behind, Behind *settings, Py_ssize_t own_bytes) except -1
