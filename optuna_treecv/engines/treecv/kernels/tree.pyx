"""The TreeCV walk, Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015), over compiled kernels and without the GIL.

The state of a learner is one contiguous block of memory, so a model is saved by copying this block. The states on the
path from the root to the current node are stored in consecutive blocks: the left child uses the block after that of
its parent, and the right child takes over the block of its parent.

With sparse rows, a phase may change only a small part of a wide model. The model is then trained in place, and the
changes are undone later (section 4.1 of the paper). Each phase further down must then be undone as well, or train a
copy.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy
from libc.string cimport memset

from optuna_treecv._kernels.order cimport fill_random_order
from optuna_treecv._kernels.order cimport fill_with_replays
from optuna_treecv._kernels.rows cimport n_nonzeros
from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.undo cimport Entry
from optuna_treecv._kernels.undo cimport remember_part
from optuna_treecv._kernels.undo cimport undo


cdef enum:
    LOG_COST = 4                # saving and restoring one word takes as long as copying this many words
    COLUMNS_COST = 2            # saving and restoring one column takes as long as copying this many columns


cdef inline Span draw_order(
    const Tree *tree,
    Span span,
    Span held_out,
    uint32_t *order,            # OUT, n_epochs entries per row of ``span``
) noexcept nogil:
    """Write the order in which a phase trains on the rows of ``span``; return the span of this order.

    ``held_out`` are the rows that the models below are tested on. Before this phase, the model has been trained on all
    rows that are in neither of the two spans.
    """
    cdef Py_ssize_t n_rows = span.stop - span.start
    cdef int64_t n_seen = tree.n_rows - n_rows - (held_out.stop - held_out.start)
    if tree.n_epochs == 1:
        fill_random_order(tree.seed, span, n_seen, order)
    else:
        fill_with_replays(tree.seed, span, n_seen, tree.random, held_out, tree.n_rows, tree.n_epochs, order)
    return Span(0, tree.n_epochs * n_rows, order)


cdef inline void train_phase(
    const Learner *learner, Tree *tree, Span span, Span held_out, unsigned char *state, Log *log
) noexcept nogil:
    """Run the training phase on the rows of ``span``, which leads to the node that holds out the rows ``held_out``."""
    if learner.survey != NULL:
        learner.survey(learner, span, state)
    if tree.order != NULL and (span.stop - span.start > 1 or tree.n_epochs > 1):
        span = draw_order(tree, span, held_out, tree.order)
    learner.train(learner, span, state, log, NULL)


cdef inline void train_both_phases(
    const Learner *learner,
    Tree *tree,
    Span span,
    Span other_span,
    unsigned char *first,       # INOUT, trained on the rows of ``span``
    unsigned char *second,      # INOUT, trained on the rows of ``other_span``
) noexcept nogil:
    """Run the training phases that lead to the two children of a node together."""
    cdef Span held_out = other_span
    if learner.survey != NULL:
        learner.survey(learner, span, first)
        learner.survey(learner, other_span, second)
    if tree.order != NULL:
        other_span = draw_order(tree, other_span, span, tree.order + tree.n_epochs * (span.stop - span.start))
        span = draw_order(tree, span, held_out, tree.order)
    train_pair(learner, span, other_span, first, second)


cdef inline Py_ssize_t words_of(Py_ssize_t width) noexcept nogil:
    """Return the number of 64-bit words that hold one bit for each of ``width`` columns."""
    return (width + 63) // 64


cdef inline Py_ssize_t add_columns(
    const Sparse *rows,
    int64_t begin,
    int64_t end,
    Py_ssize_t n_columns,
    Py_ssize_t max_columns,
    uint64_t *seen,             # INOUT, a bit per column
    int32_t *columns,           # INOUT
) noexcept nogil:
    """Append to ``columns`` the new columns among those of the nonzeros begin..end-1; return the number of columns.

    Stop as soon as this number exceeds ``max_columns``.
    """
    cdef uint64_t bit
    cdef uint64_t *word
    cdef int64_t j
    for j in range(begin, end):
        word = seen + (rows.columns[j] >> 6)
        bit = <uint64_t> 1 << (rows.columns[j] & 63)
        columns[n_columns] = rows.columns[j]        # the next column overwrites this one unless it is new
        n_columns += (word[0] & bit) == 0
        word[0] |= bit
        if n_columns > max_columns:
            break
    return n_columns


cdef inline Py_ssize_t find_columns(
    const Sparse *rows,
    Span span,
    Py_ssize_t width,
    Py_ssize_t max_columns,
    uint64_t *seen,             # OUT, (words_of(width),)
    int32_t *columns,           # OUT, (most + 1,)
) noexcept nogil:
    """Write the columns in which rows of ``span`` have nonzeros, each only once, and return their number.

    Training on these rows changes weights of these columns only. If there are more than ``max_columns`` columns,
    return max_columns + 1.
    """
    cdef Py_ssize_t n_columns = 0
    cdef Py_ssize_t i, row
    memset(seen, 0, words_of(width) * sizeof(uint64_t))
    if span.order == NULL:
        return add_columns(
            rows, rows.indptr[span.start], rows.indptr[span.stop], n_columns, max_columns, seen, columns
        )
    for i in range(span.start, span.stop):
        row = span.order[i]
        n_columns = add_columns(rows, rows.indptr[row], rows.indptr[row + 1], n_columns, max_columns, seen, columns)
        if n_columns > max_columns:
            break
    return n_columns


cdef inline bint prepare_undo(
    const Learner *learner, Tree *tree, Span span, Span held_out, unsigned char *state, ByteRange part
) noexcept nogil:
    """Prepare to undo the training phase on the rows of ``span``, if this is cheaper than training a copy.

    It is cheaper if only a small part of the state would be saved in the log. Return whether the phase is to be
    undone, which requires that the log has enough room.
    """
    cdef Py_ssize_t i
    cdef Py_ssize_t n_words = learner.state_bytes // 8
    cdef Py_ssize_t n_changed, limit
    if tree.log.capacity == 0:
        return False
    if tree.n_epochs > 1:                           # replays also change columns of other rows
        if tree.n_epochs * (span.stop - span.start) > n_words:
            return False
        span = draw_order(tree, span, held_out, tree.order)
    if learner.remember_columns != NULL:
        limit = learner.width // COLUMNS_COST
        n_changed = find_columns(&learner.sparse, span, learner.width, limit, tree.seen, tree.columns)
        if n_changed > limit:
            return False
    else:
        n_changed = 0
        for i in range(span.start, span.stop):
            n_changed += n_nonzeros(&learner.sparse, row_at(span, i))
        if LOG_COST * learner.n_saved * n_changed > n_words:
            return False
    limit = learner.n_saved * n_changed + learner.head_bytes // 8 + (n_words if learner.rewrites else 0)
    if tree.log.n_entries + limit > tree.log.capacity:
        return False
    tree.log.whole = False
    remember_part(&tree.log, state, learner.head_bytes)
    if learner.remember_columns != NULL:
        learner.remember_columns(learner, state, tree.columns, n_changed, part, &tree.log)
    return True


cdef inline Py_ssize_t column_search_bytes(Py_ssize_t width) noexcept nogil:
    """Return the number of bytes that ``find_columns`` needs for its workspace and its result."""
    return whole_lines(8 * words_of(width) + 4 * (width // COLUMNS_COST + 1))


cdef Py_ssize_t log_bytes_of(const Learner *learner) noexcept nogil:
    """Return the number of bytes that a walk needs to undo training phases."""
    # The log has room for two whole states, and for 64 heads, because each phase saves a head.
    cdef Py_ssize_t n_entries = 2 * learner.state_bytes // 8 + 8 * learner.head_bytes
    return n_entries * <Py_ssize_t> sizeof(Entry) + column_search_bytes(learner.width)


cdef void set_log(const Learner *learner, Tree *tree, unsigned char *memory, Py_ssize_t n_bytes) noexcept nogil:
    """Set the log and the workspace of ``find_columns`` in ``tree``.

    ``memory`` has ``log_bytes_of`` bytes. With 0 bytes, no phase is undone.
    """
    cdef Py_ssize_t search_bytes = column_search_bytes(learner.width)
    tree.log.capacity = tree.log.n_entries = 0
    tree.log.whole = False
    if n_bytes > 0:
        tree.seen = <uint64_t *> memory
        tree.columns = <int32_t *> (tree.seen + words_of(learner.width))
        tree.log.entries = <Entry *> (memory + search_bytes)
        tree.log.capacity = (n_bytes - search_bytes) // <Py_ssize_t> sizeof(Entry)


cdef inline void copy_part(
    const Learner *learner,
    const unsigned char *state,
    ByteRange part,
    unsigned char *copy,        # OUT
) noexcept nogil:
    """Copy the head and the byte range ``part`` of a state to a block that already holds the other bytes."""
    memcpy(copy, state, learner.head_bytes)
    memcpy(copy + part.start, state + part.start, part.stop - part.start)


cdef ByteRange narrow(
    const Learner *learner, unsigned char *state, Py_ssize_t n_folds, Py_ssize_t n_rows, ByteRange part
) noexcept nogil:
    """Return the byte range in which the states of a subtree differ, with ``n_folds`` folds and ``n_rows`` updates.

    If this is not all of ``part``, copy the state to the blocks of all levels of the subtree, so that only this byte
    range and the head need to be copied from then on.
    """
    cdef ByteRange changes = learner.changes(learner, state, n_rows)
    cdef unsigned char *block = state
    if changes.stop - changes.start == part.stop - part.start:
        return part
    while n_folds > 1:
        block += learner.state_bytes
        memcpy(block, state, learner.state_bytes)
        n_folds = (n_folds + 1) // 2
    return changes


cdef void read_sum(const Learner *learner, Tree *tree, const unsigned char *state) noexcept nogil:
    """Set the current sum to the model of a fold."""
    cdef Py_ssize_t i
    learner.read(learner, state, tree.model)
    for i in range(tree.model_size):
        if learner.itemsize == 8:
            tree.sum[i] = (<const double *> tree.model)[i]
        else:
            tree.sum[i] = (<const float *> tree.model)[i]


cdef void join_sums(Tree *tree) noexcept nogil:
    """Add the sum of the right child to the sum of the left child.

    Sums along the tree are the same however the walk is divided into subtrees, and their rounding errors grow only
    with the depth of the tree.
    """
    cdef Py_ssize_t i
    for i in range(tree.model_size):
        tree.sum[i] += tree.sum[tree.model_size + i]


cdef int64_t branch(
    const Learner *learner,
    Tree *tree,
    Span span,
    Py_ssize_t first,
    Py_ssize_t last,
    unsigned char *state,
    bint preserve,
    ByteRange part,
) noexcept nogil:
    """Train on the rows of ``span``, then walk the subtree of the chunks first..last-1; return the number of updates.

    With ``preserve``, the state is the same afterwards as before.
    """
    cdef int64_t n_updates = tree.n_epochs * (span.stop - span.start)
    cdef unsigned char *child = state + learner.state_bytes
    cdef Py_ssize_t mark = tree.log.n_entries
    cdef Span held_out = Span(chunk_start(tree, first), chunk_start(tree, last), NULL)
    if not preserve:
        train_phase(learner, tree, span, held_out, state, NULL)
        return n_updates + walk(learner, tree, first, last, state, False, part)
    if prepare_undo(learner, tree, span, held_out, state, part):
        train_phase(learner, tree, span, held_out, state, &tree.log)
        n_updates += walk(learner, tree, first, last, state, True, part)
        undo(&tree.log, mark)
        return n_updates
    copy_part(learner, state, part, child)
    train_phase(learner, tree, span, held_out, child, NULL)
    return n_updates + walk(learner, tree, first, last, child, False, part)


cdef inline bint tests_two(const Learner *learner, const Tree *tree) noexcept nogil:
    """Return whether ``test_two`` may be used, because nothing but the outputs of two folds of one row is needed."""
    cdef bint is_kept = tree.kept != NULL and tree.least_folds == 1
    return tree.sum == NULL and not is_kept and tree.n_epochs == 1 and learner.n_balanced == 0


cdef int64_t walk(
    const Learner *learner,
    Tree *tree,
    Py_ssize_t first,
    Py_ssize_t last,
    unsigned char *state,
    bint preserve,
    ByteRange part,
) noexcept nogil:
    """Run TREECV(s, e, f) of Algorithm 1, with s = first + 1, e = last and f the model in ``state``.

    Return the number of updates. With ``preserve``, the state is the same afterwards as before.
    """
    cdef Py_ssize_t start = chunk_start(tree, first)
    cdef Py_ssize_t stop = chunk_start(tree, last)
    cdef Py_ssize_t middle, boundary
    cdef unsigned char *child
    cdef int64_t n_updates
    if tree.kept != NULL and last - first >= tree.least_folds:
        memcpy(tree.kept + tree.n_nodes * learner.state_bytes, state, learner.state_bytes)
        tree.n_nodes += 1
    if last - first == 1:                                       # s = e: test f on its own chunk
        learner.test(learner, state, tree.model, start, stop, tree.out + start * tree.out_step)
        if tree.sum != NULL:
            read_sum(learner, tree, state)
            if not tree.is_sum:
                tree.sum += tree.model_size
        return 0
    if learner.test_two != NULL and stop - start == 2 < tree.n_rows and tests_two(learner, tree):
        learner.test_two(learner, state, start, tree.out + start * tree.out_step)
        return 2
    middle = (first + last + 1) // 2                            # m = floor((s + e) / 2)
    boundary = chunk_start(tree, middle)
    if learner.changes != NULL and part.stop - part.start == learner.state_bytes - learner.head_bytes:
        part = narrow(learner, state, last - first, tree.n_epochs * (stop - start), part)
    if learner.train_both != NULL and not preserve:
        child = state + learner.state_bytes
        copy_part(learner, state, part, child)
        train_both_phases(learner, tree, Span(start, boundary, NULL), Span(boundary, stop, NULL), state, child)
        n_updates = tree.n_epochs * (stop - start) + walk(learner, tree, first, middle, child, False, part)
        if tree.is_sum:
            tree.sum += tree.model_size
        n_updates += walk(learner, tree, middle, last, state, False, part)
    else:
        # Train f on the chunks m+1..e, for the folds s..m, and then restore f.
        n_updates = branch(learner, tree, Span(boundary, stop, NULL), first, middle, state, True, part)
        if tree.is_sum:
            tree.sum += tree.model_size
        # Train f on the chunks s..m, for the folds m+1..e.
        n_updates += branch(learner, tree, Span(start, boundary, NULL), middle, last, state, preserve, part)
    if tree.is_sum:
        tree.sum -= tree.model_size
        join_sums(tree)
    return n_updates
