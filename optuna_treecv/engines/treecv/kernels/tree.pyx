"""The walk: Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015) over kernels, without the Python
interpreter.

A learner's state is one flat block of memory, so a model is saved by copying that block. The models
of a branch lie in consecutive blocks: the left child uses the block after its parent's, and the right
child takes over the parent's own block. If a phase changes only a small part of a wide model (sparse
rows), the model is trained in place and the changes are undone later (section 4.1 of the paper). Each
phase below must then be undone too, or train a copy.
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
    LOG_COST = 4                # saving and restoring a word costs as much as copying this many words
    COLUMNS_COST = 2            # saving all numbers of a column costs as much as copying those of this many


cdef inline Span ordered(
    const Tree *tree,
    Span span,
    Span held,
    uint32_t *order,            # OUT, n_epochs times the rows of the span
) noexcept nogil:
    """Write the order of a phase on the rows of a span, whose model is tested on no row but those held out; return
    the span in that order.
    """
    cdef Py_ssize_t n_rows = span.stop - span.start
    cdef int64_t n_seen = tree.n_rows - n_rows - (held.stop - held.start)
    if tree.n_epochs == 1:
        fill_random_order(tree.seed, span, n_seen, order)
    else:
        fill_with_replays(tree.seed, span, n_seen, tree.random, held, tree.n_rows, tree.n_epochs, order)
    return Span(0, tree.n_epochs * n_rows, order)


cdef inline void feed(
    const Learner *learner,
    Tree *tree,
    Span span,
    Span held,
    unsigned char *state,
    Log *log,
) noexcept nogil:
    """Run the training phase on the rows of a span, which leads to the next node."""
    if learner.survey != NULL:
        learner.survey(learner, span, state)
    if tree.order != NULL and (span.stop - span.start > 1 or tree.n_epochs > 1):
        span = ordered(tree, span, held, tree.order)
    learner.train(learner, span, state, log, NULL)


cdef inline void feed_both(
    const Learner *learner,
    Tree *tree,
    Span span,
    Span other_span,
    unsigned char *first,       # INOUT: trained on the rows of span
    unsigned char *second,      # INOUT: trained on those of other_span
) noexcept nogil:
    """Run the phases of two siblings together: their models do not wait for each other."""
    cdef Span held = other_span
    if learner.survey != NULL:
        learner.survey(learner, span, first)
        learner.survey(learner, other_span, second)
    if tree.order != NULL:
        other_span = ordered(tree, other_span, span, tree.order + tree.n_epochs * (span.stop - span.start))
        span = ordered(tree, span, held, tree.order)
    train_pair(learner, span, other_span, first, second)


cdef inline Py_ssize_t words_of(Py_ssize_t width) noexcept nogil:
    """Return the number of words that hold one bit per column."""
    return (width + 63) // 64


cdef inline Py_ssize_t add_columns(
    const Sparse *rows,
    int64_t begin,
    int64_t end,
    Py_ssize_t n_columns,
    Py_ssize_t most,
    uint64_t *seen,             # INOUT
    int32_t *columns,           # INOUT
) noexcept nogil:
    """Add the columns of the nonzeros begin..end-1 to the first n_columns; return their number now."""
    cdef uint64_t bit
    cdef uint64_t *word
    cdef int64_t j
    for j in range(begin, end):
        word = seen + (rows.columns[j] >> 6)
        bit = <uint64_t> 1 << (rows.columns[j] & 63)
        columns[n_columns] = rows.columns[j]        # overwritten by the next one unless it is new
        n_columns += (word[0] & bit) == 0
        word[0] |= bit
        if n_columns > most:
            break
    return n_columns


cdef inline Py_ssize_t find_columns(
    const Sparse *rows,
    Span span,
    Py_ssize_t width,
    Py_ssize_t most,
    uint64_t *seen,             # OUT, (words_of(width),)
    int32_t *columns,           # OUT, (most + 1,)
) noexcept nogil:
    """Write the columns in which the rows of a span have nonzeros, each once, since training on these rows changes
    no other weight; return their number, or most + 1 if there are more.
    """
    cdef Py_ssize_t n_columns = 0
    cdef Py_ssize_t i, row
    memset(seen, 0, words_of(width) * sizeof(uint64_t))
    if span.order == NULL:
        return add_columns(rows, rows.begins[span.start], rows.begins[span.stop], n_columns, most, seen, columns)
    for i in range(span.start, span.stop):
        row = span.order[i]
        n_columns = add_columns(rows, rows.begins[row], rows.begins[row + 1], n_columns, most, seen, columns)
        if n_columns > most:
            break
    return n_columns


cdef inline bint made_undoable(
    const Learner *learner,
    Tree *tree,
    Span span,
    Span held,
    unsigned char *state,
    Part part,
) noexcept nogil:
    """Prepare to undo the phase on the rows of a span, if this is cheaper than training a copy; return whether it
    is. It is cheaper if the log would save only a small part of the state, and has room for it.
    """
    cdef Py_ssize_t i
    cdef Py_ssize_t n_words = learner.state_bytes // 8
    cdef Py_ssize_t n_places, n_most
    if tree.log.room == 0:
        return False
    if tree.n_epochs > 1:                           # replays touch columns of other rows
        if tree.n_epochs * (span.stop - span.start) > n_words:
            return False
        span = ordered(tree, span, held, tree.order)
    if learner.remember_columns != NULL:
        n_most = learner.width // COLUMNS_COST
        n_places = find_columns(&learner.sparse, span, learner.width, n_most, tree.seen, tree.columns)
        if n_places > n_most:
            return False
    else:
        n_places = 0
        for i in range(span.start, span.stop):
            n_places += n_nonzeros(&learner.sparse, row_at(span, i))
        if LOG_COST * learner.n_saved * n_places > n_words:
            return False
    n_most = learner.n_saved * n_places + learner.head_bytes // 8 + (n_words if learner.rewrites else 0)
    if tree.log.n_entries + n_most > tree.log.room:
        return False
    tree.log.whole = False
    remember_part(&tree.log, state, learner.head_bytes)
    if learner.remember_columns != NULL:
        learner.remember_columns(learner, state, tree.columns, n_places, part, &tree.log)
    return True


cdef inline Py_ssize_t finding_bytes(Py_ssize_t width) noexcept nogil:
    """Return the bytes needed to find columns."""
    return whole_lines(8 * words_of(width) + 4 * (width // COLUMNS_COST + 1))


cdef Py_ssize_t log_bytes_of(const Learner *learner) noexcept nogil:
    """Return the bytes that a walk needs to undo phases."""
    # Room for two whole states, and for 64 heads: each phase saves one.
    cdef Py_ssize_t n_entries = 2 * learner.state_bytes // 8 + 8 * learner.head_bytes
    return n_entries * <Py_ssize_t> sizeof(Entry) + finding_bytes(learner.width)


cdef void set_log(const Learner *learner, Tree *tree, unsigned char *memory, Py_ssize_t n_bytes) noexcept nogil:
    """Divide the memory with which phases are undone: ``log_bytes_of`` bytes, or none."""
    cdef Py_ssize_t finding = finding_bytes(learner.width)
    tree.log.room = tree.log.n_entries = 0
    tree.log.whole = False
    if n_bytes > 0:
        tree.seen = <uint64_t *> memory
        tree.columns = <int32_t *> (tree.seen + words_of(learner.width))
        tree.log.entries = <Entry *> (memory + finding)
        tree.log.room = (n_bytes - finding) // <Py_ssize_t> sizeof(Entry)


cdef inline void copy_part(
    const Learner *learner,
    const unsigned char *state,
    Part part,
    unsigned char *copy,        # OUT
) noexcept nogil:
    """Copy the head and ``part`` of a state to a block that already holds the rest."""
    memcpy(copy, state, learner.head_bytes)
    memcpy(copy + part.begin, state + part.begin, part.end - part.begin)


cdef Part narrow(
    const Learner *learner, unsigned char *state, Py_ssize_t n_folds, Py_ssize_t n_rows, Part part
) noexcept nogil:
    """Return the part in which the states of a subtree differ, of ``n_folds`` folds and at most ``n_rows``
    updates. The rest is copied once, to all levels below.
    """
    cdef Part changes = learner.changes(learner, state, n_rows)
    cdef unsigned char *below = state
    if changes.end - changes.begin == part.end - part.begin:
        return part
    while n_folds > 1:
        below += learner.state_bytes
        memcpy(below, state, learner.state_bytes)
        n_folds = (n_folds + 1) // 2
    return changes


cdef void read_sum(const Learner *learner, Tree *tree, const unsigned char *state) noexcept nogil:
    """Write the model of a fold to the current sum."""
    cdef Py_ssize_t i
    learner.read(learner, state, tree.model)
    for i in range(tree.n_numbers):
        if learner.itemsize == 8:
            tree.sum[i] = (<const double *> tree.model)[i]
        else:
            tree.sum[i] = (<const float *> tree.model)[i]


cdef void join_sums(Tree *tree) noexcept nogil:
    """Add the sum of the right child to that of the left. Sums along the tree do not depend on the subtrees
    in which it is walked, and their rounding errors grow with its depth alone.
    """
    cdef Py_ssize_t i
    for i in range(tree.n_numbers):
        tree.sum[i] += tree.sum[tree.n_numbers + i]


cdef int64_t branch(
    const Learner *learner,
    Tree *tree,
    Span span,
    Py_ssize_t first,
    Py_ssize_t last,
    unsigned char *state,
    bint keep,
    Part part,
) noexcept nogil:
    """Train on the rows of a span, then walk the chunks first..last-1; return the row updates
    done. With ``keep`` the state is unchanged afterwards.
    """
    cdef int64_t n_updates = tree.n_epochs * (span.stop - span.start)
    cdef unsigned char *child = state + learner.state_bytes
    cdef Py_ssize_t mark = tree.log.n_entries
    cdef Span held = Span(begin(tree, first), begin(tree, last), NULL)
    if not keep:
        feed(learner, tree, span, held, state, NULL)
        return n_updates + walk(learner, tree, first, last, state, False, part)
    if made_undoable(learner, tree, span, held, state, part):
        feed(learner, tree, span, held, state, &tree.log)
        n_updates += walk(learner, tree, first, last, state, True, part)
        undo(&tree.log, mark)
        return n_updates
    copy_part(learner, state, part, child)
    feed(learner, tree, span, held, child, NULL)
    return n_updates + walk(learner, tree, first, last, child, False, part)


cdef inline bint tests_two(const Learner *learner, const Tree *tree) noexcept nogil:
    """Return whether the models of two folds of a row each are needed for their outputs only."""
    cdef bint is_kept = tree.kept != NULL and tree.least_folds == 1
    return tree.sum == NULL and not is_kept and tree.n_epochs == 1 and learner.n_balanced == 0


cdef int64_t walk(
    const Learner *learner,
    Tree *tree,
    Py_ssize_t first,
    Py_ssize_t last,
    unsigned char *state,
    bint keep,
    Part part,
) noexcept nogil:
    """Run TREECV(s, e, f) of Algorithm 1, with s = first + 1, e = last and ``state`` for f; return the
    row updates done.
    """
    cdef Py_ssize_t start = begin(tree, first)
    cdef Py_ssize_t stop = begin(tree, last)
    cdef Py_ssize_t middle, cut
    cdef unsigned char *child
    cdef int64_t n_updates
    if tree.kept != NULL and last - first >= tree.least_folds:
        memcpy(tree.kept + tree.n_nodes * learner.state_bytes, state, learner.state_bytes)
        tree.n_nodes += 1
    if last - first == 1:                                       # s = e: test f on its own chunk
        learner.test(learner, state, tree.model, start, stop, tree.out + start * tree.out_step)
        if tree.sum != NULL:
            read_sum(learner, tree, state)
        return 0
    if learner.test_two != NULL and stop - start == 2 < tree.n_rows and tests_two(learner, tree):
        learner.test_two(learner, state, start, tree.out + start * tree.out_step)
        return 2
    middle = (first + last + 1) // 2                            # m = floor((s + e) / 2)
    cut = begin(tree, middle)
    if learner.changes != NULL and part.end - part.begin == learner.state_bytes - learner.head_bytes:
        part = narrow(learner, state, last - first, tree.n_epochs * (stop - start), part)
    if learner.train_both != NULL and not keep:
        child = state + learner.state_bytes
        copy_part(learner, state, part, child)
        feed_both(learner, tree, Span(start, cut, NULL), Span(cut, stop, NULL), state, child)
        n_updates = tree.n_epochs * (stop - start) + walk(learner, tree, first, middle, child, False, part)
        if tree.sum != NULL:
            tree.sum += tree.n_numbers
        n_updates += walk(learner, tree, middle, last, state, False, part)
    else:
        # Trained on chunks m+1..e, f tests s..m. Afterwards f is needed as it was before:
        n_updates = branch(learner, tree, Span(cut, stop, NULL), first, middle, state, True, part)
        if tree.sum != NULL:
            tree.sum += tree.n_numbers
        # trained on s..m, it tests m+1..e.
        n_updates += branch(learner, tree, Span(start, cut, NULL), middle, last, state, keep, part)
    if tree.sum != NULL:
        tree.sum -= tree.n_numbers
        join_sums(tree)
    return n_updates
