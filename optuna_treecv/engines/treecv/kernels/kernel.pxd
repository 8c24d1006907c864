"""The base class of the kernels, the compiled learners that the TreeCV walk trains."""

from libc.stdint cimport uint32_t

from optuna_treecv._kernels.span cimport Span
from optuna_treecv.engines.treecv.kernels.tree cimport Learner


cdef class Kernel:
    cdef Learner learner
    cdef object keep_alive                  # the objects whose memory ``learner`` points to
    cdef readonly Py_ssize_t n_rows
    cdef Py_ssize_t n_classes               # 0: y does not hold class codes
    cdef bint is_weighed                    # whether ``weigh`` was called
    cdef readonly Py_ssize_t n_models       # 1, or the number of models in lanes
    cdef readonly Py_ssize_t out_rows       # rows per model in the array of outputs, at least n_rows
    cdef readonly Py_ssize_t n_outputs      # outputs of a model per row
    cdef readonly Py_ssize_t itemsize
    cdef readonly Py_ssize_t state_bytes
    cdef readonly Py_ssize_t model_bytes
    cdef readonly Py_ssize_t log_bytes

    cdef int bind(self, object X, object y, Py_ssize_t n_outputs) except -1
    cdef int bind_targets(self, object X, object y, object n_classes) except -1
    cdef int set_sizes(self, Py_ssize_t head_bytes, Py_ssize_t rest_bytes, Py_ssize_t model_bytes) except -1
    cdef Span check_rows(self, Py_ssize_t start, Py_ssize_t stop, const uint32_t [::1] order) except *
    cdef int check_state(self, const unsigned char [::1] state) except -1
    cdef int check_buffers(
        self, const unsigned char [::1] model, const unsigned char [:, ::1] out, Py_ssize_t n_rows
    ) except -1
