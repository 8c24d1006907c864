"""The interface between the kernels and the TreeCV walk, and the functions of the walk that ``kernel.pyx`` calls.

To the walk, a kernel is a ``Learner``: a few functions over rows, and the size of a state.
"""

from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t

from optuna_treecv._kernels.rows cimport Dense
from optuna_treecv._kernels.rows cimport Sparse
from optuna_treecv._kernels.span cimport Span
from optuna_treecv._kernels.undo cimport Log


cdef struct Learner


# A range of the bytes of a state, start..stop-1.
cdef struct ByteRange:
    Py_ssize_t start
    Py_ssize_t stop


# Update the statistics in a state, such as running means, with all rows of a training phase before training on them.
ctypedef void (*survey_rows)(
    const Learner *learner,
    Span span,
    unsigned char *state,       # INOUT
) noexcept nogil

# Train on the rows of a span. Unless `out` is NULL, also write the outputs for each row before training on it.
ctypedef void (*train_rows)(
    const Learner *learner,
    Span span,
    unsigned char *state,       # INOUT
    Log *log,                   # INOUT, for sparse rows only; NULL: training need not be undone
    void *out,                  # OUT, (n_models, rows of the span, n_outputs), or NULL
) noexcept nogil

# Train two states together, each on its own span, with the same result as `train`. Both spans have the same number of
# rows, which is at least 1.
ctypedef void (*train_both_rows)(
    const Learner *learner,
    Span span,
    Span other_span,
    unsigned char *first,       # INOUT
    unsigned char *second,      # INOUT
) noexcept nogil

# Test two folds that consist of the rows start and start + 1: write the outputs for each of these rows, of the model
# that results from training the state on the other one. The state itself does not change. It must have been trained on
# at least one row.
ctypedef void (*test_two_rows)(
    const Learner *learner,
    const unsigned char *state,
    Py_ssize_t start,
    void *out,                  # OUT, (2, n_outputs)
) noexcept nogil

# Write the outputs of the model in a state for the rows start..stop-1.
ctypedef void (*test_rows)(
    const Learner *learner,
    const unsigned char *state,
    void *model,                # OUT, a workspace of the size of a model
    Py_ssize_t start,
    Py_ssize_t stop,
    void *out,                  # OUT, (stop - start, n_outputs)
) noexcept nogil

# Write the model in a state in the form in which predictions are made, for a linear learner its weights.
ctypedef void (*read_state)(
    const Learner *learner,
    const unsigned char *state,
    void *model,                # OUT
) noexcept nogil

# Save the values of the given columns within `part`, the byte range of the state that training changes.
ctypedef void (*remember_columns_of)(
    const Learner *learner,
    unsigned char *state,
    const int32_t *columns,     # IN, (n_columns,)
    Py_ssize_t n_columns,
    ByteRange part,
    Log *log,                   # INOUT
) noexcept nogil

# Return the byte range of a state, besides its head, that training on n_rows more rows can change.
ctypedef ByteRange (*find_changes)(const Learner *learner, const unsigned char *state, int64_t n_rows) noexcept nogil


cdef struct Learner:
    # The rows, which are either dense or sparse; sparse.indptr is NULL for dense rows.
    Dense dense
    Sparse sparse
    Py_ssize_t itemsize         # 8 or 4: float64 or float32
    const void *y               # (n_rows,), class codes (int32) or targets (in the type of X); or NULL
    const void *weights         # (n_rows,), the weights of the rows (in the type of X); NULL: all weights are 1
    Py_ssize_t n_balanced       # the number of classes if they are balanced, else 0
    Py_ssize_t masses_begin     # the offset in the head of the masses of the classes and of their sum (float64)
    Py_ssize_t width            # elements per vector, a multiple of 8
    Py_ssize_t n_outputs
    const void *settings        # the settings struct of the kernel
    Py_ssize_t state_bytes      # a multiple of 64, so that all states of an array start at a cache line
    Py_ssize_t head_bytes       # the head of a state, which holds what changes with every row, comes first
    # For sparse rows: the largest number of log entries per column with `remember_columns`, otherwise per nonzero.
    Py_ssize_t n_saved
    bint skips_zeros            # for dense rows in lanes: whether only the nonzeros of a row are read
    bint rewrites               # for sparse rows: whether training may also rewrite the whole state
    survey_rows survey          # NULL: the state has no statistics of this kind
    train_rows train
    train_both_rows train_both  # NULL: states are trained one after the other
    bint tests_rows             # whether `train` can write outputs
    test_rows test
    test_two_rows test_two      # NULL: copies of the state are trained; not called if classes are balanced
    read_state read
    find_changes changes        # NULL: training may change the whole state
    # For sparse rows: saves columns before a training phase. NULL: `train` saves each word before changing it.
    remember_columns_of remember_columns


cdef inline Py_ssize_t whole_lines(Py_ssize_t n_bytes) noexcept nogil:
    """Return a number of bytes, rounded up to whole cache lines."""
    return (n_bytes + 63) // 64 * 64


cdef struct Tree:
    Py_ssize_t n_rows
    Py_ssize_t n_folds
    # (n_folds + 1,), the first row of each chunk, and then n_rows. NULL: chunk i starts at i * n_rows // n_folds.
    const int64_t *bounds
    uint64_t seed
    bint random                 # whether each phase trains on its rows in random order
    Py_ssize_t n_epochs         # updates per row of a phase
    uint32_t *order             # a workspace for the order of the longest phase; NULL: rows are in stored order
    void *model                 # a workspace for the model of one fold
    unsigned char *out          # the outputs for all rows
    Py_ssize_t out_step         # the bytes of outputs per row
    Log log                     # for sparse rows only
    uint64_t *seen              # a bit per column, a workspace of ``find_columns``
    int32_t *columns            # the columns that ``find_columns`` finds
    unsigned char *kept         # the array of copies of the states of nodes; NULL: they are not copied
    Py_ssize_t least_folds      # states are copied for nodes that hold out at least this many folds
    Py_ssize_t n_nodes          # the number of states copied so far
    double *sum                 # the sum of the models of the folds below the current node; NULL: it is not computed
    bint is_sum                 # whether the models are added; otherwise `sum` is the model of the next fold
    Py_ssize_t model_size       # the number of values in a model


cdef inline Py_ssize_t chunk_start(const Tree *tree, Py_ssize_t chunk) noexcept nogil:
    """Return the first row of a chunk, the rows that a fold tests."""
    if tree.bounds != NULL:
        return tree.bounds[chunk]
    return <Py_ssize_t> (<int64_t> chunk * tree.n_rows // tree.n_folds)


cdef inline Span subspan(Span span, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Return the positions begin..end-1 of ``span`` as a span."""
    return Span(span.start + begin, span.start + end, span.order)


cdef inline void train_pair(
    const Learner *learner,
    Span span,
    Span other_span,
    unsigned char *first,       # INOUT, trained on the rows of ``span``
    unsigned char *second,      # INOUT, trained on the rows of ``other_span``
) noexcept nogil:
    """Train two states together, and then the state with the longer span alone on its remaining rows."""
    cdef Py_ssize_t n_both = min(span.stop - span.start, other_span.stop - other_span.start)
    if n_both > 0:
        learner.train_both(learner, subspan(span, 0, n_both), subspan(other_span, 0, n_both), first, second)
    span.start += n_both
    other_span.start += n_both
    if span.start < span.stop:
        learner.train(learner, span, first, NULL, NULL)
    if other_span.start < other_span.stop:
        learner.train(learner, other_span, second, NULL, NULL)


cdef inline Py_ssize_t count_nodes(Py_ssize_t n_folds, Py_ssize_t min_folds) noexcept nogil:
    """Return the number of nodes of a tree over ``n_folds`` folds that hold out at least ``min_folds`` >= 1 folds."""
    if n_folds < min_folds:
        return 0
    if n_folds == 1:
        return 1
    return 1 + count_nodes((n_folds + 1) // 2, min_folds) + count_nodes(n_folds // 2, min_folds)


cdef Py_ssize_t log_bytes_of(const Learner *learner) noexcept nogil
cdef void set_log(const Learner *learner, Tree *tree, unsigned char *memory, Py_ssize_t n_bytes) noexcept nogil
cdef int64_t walk(
    const Learner *learner,
    Tree *tree,
    Py_ssize_t first,
    Py_ssize_t last,
    unsigned char *state,
    bint preserve,
    ByteRange part,
) noexcept nogil
