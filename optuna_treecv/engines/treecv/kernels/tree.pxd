"""The interface between kernels and the tree (a few functions over rows, and the size of a state), and the functions
that ``kernel.pyx`` calls.
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


# The bytes begin..end-1 of a state.
cdef struct Part:
    Py_ssize_t begin
    Py_ssize_t end


# Update the statistics of a whole phase, before training on it.
ctypedef void (*survey_rows)(
    const Learner *learner,
    Span span,
    unsigned char *state,       # INOUT
) noexcept nogil

# Train on the rows of a span. With `tested`, also write the outputs for each row before training on it.
ctypedef void (*train_rows)(
    const Learner *learner,
    Span span,
    unsigned char *state,       # INOUT
    Log *log,                   # INOUT, or NULL if nothing is undone; for sparse rows only
    void *tested,               # OUT, (n_models, rows of the span, n_outputs), or NULL
) noexcept nogil

# Train two states at once, each on its own span; both have as many rows, and at least one. Each state becomes what
# `train` would make of it.
ctypedef void (*train_both_rows)(
    const Learner *learner,
    Span span,
    Span other_span,
    unsigned char *first,       # INOUT
    unsigned char *second,      # INOUT
) noexcept nogil

# Write the outputs for the rows start and start + 1, of the models that a state becomes by training on the other one
# of them. The state has seen a row, and does not change.
ctypedef void (*test_two_rows)(
    const Learner *learner,
    const unsigned char *state,
    Py_ssize_t start,
    void *out,                  # OUT, (2, n_outputs)
) noexcept nogil

# Write the outputs of a state's model for the rows start..stop-1.
ctypedef void (*test_rows)(
    const Learner *learner,
    const unsigned char *state,
    void *model,                # OUT, room for a model
    Py_ssize_t start,
    Py_ssize_t stop,
    void *out,                  # OUT, (stop - start, n_outputs)
) noexcept nogil

# Write a state's model as a predictor uses it: for a linear learner, its weights.
ctypedef void (*read_state)(
    const Learner *learner,
    const unsigned char *state,
    void *model,                # OUT
) noexcept nogil

# Save what a state holds for the given columns in `part`, the part that training changes.
ctypedef void (*remember_columns_of)(
    const Learner *learner,
    unsigned char *state,
    const int32_t *columns,     # IN, (n_columns,)
    Py_ssize_t n_columns,
    Part part,
    Log *log,                   # INOUT
) noexcept nogil

# Return the part of a state, besides its head, that training on n_rows more rows can change.
ctypedef Part (*find_changes)(const Learner *learner, const unsigned char *state, int64_t n_rows) noexcept nogil


cdef struct Learner:
    Dense dense                 # the rows, in one of two forms;
    Sparse sparse               # sparse.begins is NULL for dense rows
    Py_ssize_t itemsize         # 8 or 4: float64 or float32
    const void *y               # (n_rows,), class codes (int32) or targets (the type of X); or NULL
    const void *weights         # (n_rows,), the weights of the rows (the type of X); NULL: all are 1
    Py_ssize_t n_balanced       # the number of classes if they are balanced, else 0
    Py_ssize_t masses_begin     # where in the head the mass of each class is, and then that of all (float64)
    Py_ssize_t width            # numbers per vector, a multiple of 8
    Py_ssize_t n_outputs
    const void *settings        # those of the kernel
    Py_ssize_t state_bytes      # a multiple of 64, so that each of several states begins on a cache line
    Py_ssize_t head_bytes       # the head holds what changes with every row
    Py_ssize_t n_saved          # sparse rows: most log entries per remembered column, or else per nonzero
    bint rewrites               # sparse rows: training may also rewrite the whole state
    survey_rows survey          # or NULL: a phase teaches no more than its rows one by one
    train_rows train
    train_both_rows train_both  # or NULL: train one after the other
    bint tests_rows             # whether `train` can write outputs; if not, those of whole blocks only are known
    test_rows test
    test_two_rows test_two      # or NULL: train copies; not called where classes are balanced
    read_state read
    find_changes changes        # or NULL: training may change everything
    remember_columns_of remember_columns    # sparse rows: called before a phase; NULL: `train` saves what it changes


cdef inline Py_ssize_t whole_lines(Py_ssize_t n_bytes) noexcept nogil:
    """Return a number of bytes, rounded up to whole cache lines."""
    return (n_bytes + 63) // 64 * 64


cdef struct Tree:
    Py_ssize_t n_rows
    Py_ssize_t n_folds
    const int64_t *bounds       # where chunks begin, n_folds + 1 row numbers; NULL: chunk i at i * n_rows // n_folds
    uint64_t seed
    bint random                 # whether each phase trains on its rows in random order
    Py_ssize_t n_epochs         # updates per row of a phase
    uint32_t *order             # room for the order of the longest phase; NULL: rows stay in stored order
    void *model                 # room for the model of one leaf
    unsigned char *out
    Py_ssize_t out_step         # bytes of outputs per row
    Log log                     # has room for 0 entries if rows are dense
    uint64_t *seen              # room to find the columns of a phase's rows
    int32_t *columns            # room for these columns, if a phase is undone by columns
    unsigned char *kept         # where states of nodes are copied to; NULL: none are kept
    Py_ssize_t least_folds      # states are kept for nodes that hold out at least this many folds
    Py_ssize_t n_nodes          # the number of such nodes met so far
    double *sum                 # of the models of the folds below the current node; NULL: not wanted
    Py_ssize_t n_numbers        # in a model


cdef inline Py_ssize_t begin(const Tree *tree, Py_ssize_t chunk) noexcept nogil:
    """Return the first row of a chunk."""
    if tree.bounds != NULL:
        return tree.bounds[chunk]
    return <Py_ssize_t> (<int64_t> chunk * tree.n_rows // tree.n_folds)


cdef inline Span part_of(Span span, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Return the positions begin..end-1 of a span."""
    return Span(span.start + begin, span.start + end, span.order)


cdef inline void train_pair(
    const Learner *learner,
    Span span,
    Span other_span,
    unsigned char *first,       # INOUT: trained on the rows of span
    unsigned char *second,      # INOUT: trained on those of other_span
) noexcept nogil:
    """Train two states together as long as both have rows, and then the one that has more."""
    cdef Py_ssize_t n_both = min(span.stop - span.start, other_span.stop - other_span.start)
    if n_both > 0:
        learner.train_both(learner, part_of(span, 0, n_both), part_of(other_span, 0, n_both), first, second)
    span.start += n_both
    other_span.start += n_both
    if span.start < span.stop:
        learner.train(learner, span, first, NULL, NULL)
    if other_span.start < other_span.stop:
        learner.train(learner, other_span, second, NULL, NULL)


cdef inline Py_ssize_t count_nodes(Py_ssize_t n_folds, Py_ssize_t least) noexcept nogil:
    """Return the number of nodes of a tree that hold out at least ``least`` folds, which is 1 or more."""
    if n_folds < least:
        return 0
    if n_folds == 1:
        return 1
    return 1 + count_nodes((n_folds + 1) // 2, least) + count_nodes(n_folds // 2, least)


cdef Py_ssize_t log_bytes_of(const Learner *learner) noexcept nogil
cdef void set_log(const Learner *learner, Tree *tree, unsigned char *memory, Py_ssize_t n_bytes) noexcept nogil
cdef int64_t walk(
    const Learner *learner,
    Tree *tree,
    Py_ssize_t first,
    Py_ssize_t last,
    unsigned char *state,
    bint keep,
    Part part,
) noexcept nogil
