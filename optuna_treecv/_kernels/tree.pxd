"""What a kernel must give to the tree: a few functions over rows, and the size of its state."""

from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t

from optuna_treecv._kernels.rows cimport Dense
from optuna_treecv._kernels.rows cimport Sparse
from optuna_treecv._kernels.undo cimport Log


cdef struct Learner


# The bytes begin..end-1 of a state.
cdef struct Part:
    Py_ssize_t begin
    Py_ssize_t end


# Train on the rows start..stop-1, or if `order` is given on rows order[start], ..., order[stop-1].
ctypedef void (*train_rows)(
    const Learner *learner,
    Py_ssize_t start,
    Py_ssize_t stop,
    const uint32_t *order,      # IN, or NULL: as they lie
    unsigned char *state,       # INOUT
    Log *log,                   # INOUT, or NULL: nothing is undone. Sparse rows only
) noexcept nogil

# Train two states at once that have seen as many rows, on n_rows rows each from where they start, or if
# `order` is given on the rows it names there. Each becomes what `train` makes of it.
ctypedef void (*train_both_rows)(
    const Learner *learner,
    Py_ssize_t first_start,
    Py_ssize_t second_start,
    Py_ssize_t n_rows,
    const uint32_t *order,      # IN, or NULL
    unsigned char *first,       # INOUT
    unsigned char *second,      # INOUT
) noexcept nogil

# What the model of a state says of the rows start..stop-1.
ctypedef void (*test_rows)(
    const Learner *learner,
    const unsigned char *state,
    void *model,                # OUT, room for a model
    Py_ssize_t start,
    Py_ssize_t stop,
    void *out,                  # OUT, (stop - start, n_outputs)
) noexcept nogil

# The numbers a state stands for, as a predictor uses them: a linear learner's weights.
ctypedef void (*read_state)(
    const Learner *learner,
    const unsigned char *state,
    void *model,                # OUT
) noexcept nogil

# Save what a state holds for some columns, in the part that training changes.
ctypedef void (*remember_columns_of)(
    const Learner *learner,
    unsigned char *state,
    const int32_t *columns,     # IN, (n_columns,)
    Py_ssize_t n_columns,
    Part part,
    Log *log,                   # INOUT
) noexcept nogil

# The part of a state, beside its head, that training on n_rows more rows can change.
ctypedef Part (*find_changes)(
    const Learner *learner,
    const unsigned char *state,
    int64_t n_rows,
) noexcept nogil


cdef struct Learner:
    Dense dense                 # rows of one of two forms;
    Sparse sparse               # sparse.begins is NULL for dense ones
    Py_ssize_t itemsize         # 8 or 4: float64 or float32
    const void *y               # (n_rows,), class codes (int32) or targets (the type of X); or NULL
    Py_ssize_t width            # numbers a vector, a multiple of 8
    Py_ssize_t n_outputs
    const void *settings        # the learner's own
    Py_ssize_t state_bytes      # a multiple of 64: states stand on cache lines, one behind the other
    Py_ssize_t head_bytes       # what changes with every row stands in front
    Py_ssize_t n_saved          # sparse rows: log entries a column that is remembered, or else a nonzero, at most
    bint rewrites               # sparse rows: training may also rewrite the whole state
    train_rows train
    train_both_rows train_both  # or NULL: one after the other
    test_rows test
    read_state read
    find_changes changes        # or NULL: everything
    remember_columns_of remember_columns    # sparse rows: before a phase; or NULL, training saves what it changes


cdef class Kernel:
    cdef Learner learner
    cdef object keep_alive
    cdef readonly Py_ssize_t n_rows
    cdef readonly Py_ssize_t n_models       # 1, or several side by side
    cdef readonly Py_ssize_t n_outputs
    cdef readonly Py_ssize_t itemsize
    cdef readonly Py_ssize_t state_bytes
    cdef readonly Py_ssize_t model_bytes
    cdef readonly Py_ssize_t log_bytes

    cdef int bind(self, object X, object y, Py_ssize_t n_outputs) except -1
    cdef int bind_targets(self, object X, object y, object n_classes) except -1
    cdef int set_sizes(self, Py_ssize_t head_bytes, Py_ssize_t state_bytes, Py_ssize_t model_bytes) except -1
    cdef int check_state(self, const unsigned char [::1] state) except -1
