"""What the tree needs of a compiled learner: three functions over rows, and the size of its state."""

from libc.stdint cimport uint32_t


cdef struct Learner

# Train on the rows start..stop-1, or if `order` is given on rows order[start], ..., order[stop-1].
ctypedef void (*train_rows)(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,      # IN, or NULL: as they lie
    unsigned char *state,       # INOUT
) noexcept nogil

# The numbers a state stands for, as a predictor uses them: a linear learner's weights.
ctypedef void (*read_state)(
    const Learner *learner,
    const unsigned char *state,
    void *model,                # OUT
) noexcept nogil

# What a model says of the rows start..stop-1.
ctypedef void (*test_rows)(
    const Learner *learner,
    const void *model,
    Py_ssize_t start,
    Py_ssize_t stop,
    void *out,                  # OUT, (stop - start, n_outputs)
) noexcept nogil


cdef struct Learner:
    const void *X               # (n_rows, width), float64 or float32
    const void *y               # (n_rows,), class codes (int32) or targets (the type of X)
    Py_ssize_t width            # a multiple of 8
    Py_ssize_t n_outputs
    const void *settings        # the learner's own
    Py_ssize_t state_bytes      # a multiple of 64: states stand on cache lines, one behind the other
    train_rows train
    read_state read
    test_rows test


cdef class CompiledLearner:
    cdef Learner learner
    cdef object keep_alive
    cdef readonly Py_ssize_t n_rows
    cdef readonly Py_ssize_t n_outputs
    cdef readonly Py_ssize_t itemsize
    cdef readonly Py_ssize_t state_bytes
    cdef readonly Py_ssize_t model_bytes

    cdef int bind(self, object X, object y, Py_ssize_t n_outputs) except -1
    cdef int set_sizes(self, Py_ssize_t state_bytes, Py_ssize_t model_bytes) except -1
    cdef int check_state(self, const unsigned char [::1] state) except -1
