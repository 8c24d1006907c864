"""The walk: Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015) over kernels, without the Python
interpreter.

A learner's state is one flat block of memory, so a model is saved by copying that block. The models
of a branch lie in consecutive blocks: the left child uses the block after its parent's, and the right
child takes over the parent's own block. If a phase changes only a small part of a wide model (sparse
rows), the model is trained in place and the changes are undone later (section 4.1 of the paper). Each
phase below must then be undone too, or train a copy.
"""

from libc.math cimport INFINITY
from libc.stdint cimport uint64_t
from libc.string cimport memcpy
from libc.string cimport memset

from optuna_treecv._kernels.order cimport fill_random_order
from optuna_treecv._kernels.order cimport fill_with_replays
from optuna_treecv._kernels.rows cimport AHEAD_IN_ORDER
from optuna_treecv._kernels.rows cimport CACHE_BYTES
from optuna_treecv._kernels.rows cimport n_nonzeros
from optuna_treecv._kernels.rows cimport row_at
from optuna_treecv._kernels.undo cimport Entry
from optuna_treecv._kernels.undo cimport remember_part
from optuna_treecv._kernels.undo cimport undo


cdef enum:
    LOG_COST = 4                # saving and restoring a word costs as much as copying this many words
    COLUMNS_COST = 2            # saving all numbers of a column costs as much as copying those of this many

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


cdef inline Span rows_of(const Tree *tree, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Return the rows of the chunks first..last-1."""
    return Span(begin(tree, first), begin(tree, last), NULL)


cdef inline Span ordered(
    const Tree *tree,
    Span span,
    int64_t n_seen,
    Span held,
    uint32_t *order,            # OUT, n_epochs times the rows of the span
) noexcept nogil:
    """Write the order of a phase on the rows of a span, whose model is tested on no row but those held out; return
    the span in that order.
    """
    cdef Py_ssize_t n_rows = span.stop - span.start
    if tree.n_epochs == 1:
        fill_random_order(tree.seed, span, n_seen, order)
    else:
        fill_with_replays(tree.seed, span, n_seen, tree.random, held, tree.n_rows, tree.n_epochs, order)
    return Span(0, tree.n_epochs * n_rows, order)


cdef inline void feed(
    const Learner *learner,
    Tree *tree,
    Span span,
    int64_t n_seen,
    Py_ssize_t first,
    Py_ssize_t last,
    unsigned char *state,
    Log *log,
) noexcept nogil:
    """Run the training phase that leads to the next node, which holds out the chunks first..last-1."""
    if learner.survey != NULL:
        learner.survey(learner, span, state)
    if tree.order != NULL and (span.stop - span.start > 1 or tree.n_epochs > 1):
        span = ordered(tree, span, n_seen, rows_of(tree, first, last), tree.order)
    learner.train(learner, span, state, log, NULL)


cdef inline Span part_of(Span span, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Return the positions begin..end-1 of a span."""
    return Span(span.start + begin, span.start + end, span.order)


cdef void train_pair(
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
    learner.train(learner, span, first, NULL, NULL)
    learner.train(learner, other_span, second, NULL, NULL)


cdef void feed_both(
    const Learner *learner,
    Tree *tree,
    Span span,
    Span other_span,
    int64_t n_seen,
    unsigned char *first,       # INOUT: trained on the rows of span
    unsigned char *second,      # INOUT: trained on those of other_span
) noexcept nogil:
    """Run the phases of two siblings together: their models do not wait for each other."""
    cdef Span held = other_span
    if learner.survey != NULL:
        learner.survey(learner, span, first)
        learner.survey(learner, other_span, second)
    if tree.order != NULL:
        other_span = ordered(
            tree, other_span, n_seen, span, tree.order + tree.n_epochs * (span.stop - span.start)
        )
        span = ordered(tree, span, n_seen, held, tree.order)
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
    int64_t n_seen,
    Py_ssize_t first,
    Py_ssize_t last,
    unsigned char *state,
    Part part,
) noexcept nogil:
    """Prepare to undo the phase on the rows of a span, whose model holds out the chunks first..last-1, if this
    is cheaper than training a copy; return whether it is. It is cheaper if the log would save only a small part of
    the state, and has room for it.
    """
    cdef Py_ssize_t i
    cdef Py_ssize_t n_words = learner.state_bytes // 8
    cdef Py_ssize_t n_places, n_most
    if tree.log.room == 0:
        return False
    if tree.n_epochs > 1:                           # replays touch columns of other rows
        if tree.n_epochs * (span.stop - span.start) > n_words:
            return False
        span = ordered(tree, span, n_seen, rows_of(tree, first, last), tree.order)
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


cdef Py_ssize_t count_nodes(Py_ssize_t n_folds, Py_ssize_t least) noexcept nogil:
    """Return the number of nodes of a tree that hold out at least ``least`` folds, which is 1 or more."""
    if n_folds < least:
        return 0
    if n_folds == 1:
        return 1
    return 1 + count_nodes((n_folds + 1) // 2, least) + count_nodes(n_folds // 2, least)


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
    int64_t n_seen,
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
    if not keep:
        feed(learner, tree, span, n_seen, first, last, state, NULL)
        return n_updates + walk(learner, tree, first, last, state, False, part)
    if made_undoable(learner, tree, span, n_seen, first, last, state, part):
        feed(learner, tree, span, n_seen, first, last, state, &tree.log)
        n_updates += walk(learner, tree, first, last, state, True, part)
        undo(&tree.log, mark)
        return n_updates
    copy_part(learner, state, part, child)
    feed(learner, tree, span, n_seen, first, last, child, NULL)
    return n_updates + walk(learner, tree, first, last, child, False, part)


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
    cdef int64_t n_seen = tree.n_rows - (stop - start)
    cdef int64_t n_updates
    if tree.kept != NULL and last - first >= tree.least_folds:
        memcpy(tree.kept + tree.n_nodes * learner.state_bytes, state, learner.state_bytes)
        tree.n_nodes += 1
    if last - first == 1:                                       # s = e: test f on its own chunk
        learner.test(learner, state, tree.model, start, stop, tree.out + start * tree.out_step)
        if tree.sum != NULL:
            read_sum(learner, tree, state)
        return 0
    middle = (first + last + 1) // 2                            # m = floor((s + e) / 2)
    cut = begin(tree, middle)
    if learner.changes != NULL and part.end - part.begin == learner.state_bytes - learner.head_bytes:
        part = narrow(learner, state, last - first, tree.n_epochs * (stop - start), part)
    if learner.train_both != NULL and not keep:
        child = state + learner.state_bytes
        copy_part(learner, state, part, child)
        feed_both(learner, tree, Span(start, cut, NULL), Span(cut, stop, NULL), n_seen, state, child)
        n_updates = tree.n_epochs * (stop - start) + walk(learner, tree, first, middle, child, False, part)
        if tree.sum != NULL:
            tree.sum += tree.n_numbers
        n_updates += walk(learner, tree, middle, last, state, False, part)
    else:
        # Trained on chunks m+1..e, f tests s..m. Afterwards f is needed as it was before:
        n_updates = branch(learner, tree, Span(cut, stop, NULL), n_seen, first, middle, state, True, part)
        if tree.sum != NULL:
            tree.sum += tree.n_numbers
        # trained on s..m, it tests m+1..e.
        n_updates += branch(learner, tree, Span(start, cut, NULL), n_seen, middle, last, state, keep, part)
    if tree.sum != NULL:
        tree.sum -= tree.n_numbers
        join_sums(tree)
    return n_updates


cdef class Memory:
    """The working memory of a walk. The first of ``states`` holds the state of the subtree's node."""

    cdef unsigned char [:, ::1] states
    cdef unsigned char [::1] model
    cdef unsigned char [::1] log
    cdef uint32_t [::1] order
    cdef double [:, ::1] sums

    def __init__(
        self,
        unsigned char [:, ::1] states,               # INOUT, one row per level of the subtree
        unsigned char [::1] model,                   # OUT, room for one model
        unsigned char [::1] log=None,                # OUT, log_bytes of room; None if that is 0
        uint32_t [::1] order=None,                   # OUT, room for n_epochs times the rows of the node; None:
                                                     # one epoch in stored order
        double [:, ::1] sums=None,                   # OUT, a row of numbers of a model per level; the first gets the
                                                     # sum of the models of all folds. None: it is not wanted
    ):
        self.states = states
        self.model = model
        self.log = log
        self.order = order
        self.sums = sums


cdef int set_tree(
    Kernel learner,
    Tree *tree,                 # OUT
    plan,
    node,
    unsigned char [::1] model,
    unsigned char [:, ::1] out,
) except -1:
    """Check a node of a plan, and the arrays for models and outputs, and set them in ``tree``."""
    cdef Py_ssize_t first = node.first, last = node.last, n_folds = plan.n_folds
    cdef const int64_t [::1] bounds = plan.bounds
    cdef Py_ssize_t i
    tree.n_rows = learner.n_rows
    tree.n_folds = n_folds
    tree.random = plan.random
    tree.seed = plan.seed
    tree.n_epochs = plan.n_epochs
    if tree.n_epochs < 1:
        raise ValueError(f"n_epochs must be 1 or more, got {tree.n_epochs}.")
    if not 0 <= first < last <= n_folds <= learner.n_rows:
        raise ValueError(f"there is no node [{first}, {last}) in a tree of {n_folds} folds.")
    if bounds is not None and (bounds.shape[0] != n_folds + 1 or bounds[n_folds] != learner.n_rows):
        raise ValueError("bounds must hold n_folds + 1 row numbers, the number of rows last.")
    if bounds is not None:
        for i in range(n_folds):
            if bounds[i] >= bounds[i + 1] or bounds[0] < 0:
                raise ValueError("bounds must rise, from 0 or more.")
    if out.shape[0] != learner.n_models * learner.n_rows or out.shape[1] != learner.n_outputs * learner.itemsize:
        raise ValueError("out must have room for the outputs of all rows.")
    if model.shape[0] != learner.model_bytes:
        raise ValueError(f"a model has {learner.model_bytes} bytes, got {model.shape[0]}.")
    tree.bounds = NULL if bounds is None else &bounds[0]
    tree.model = &model[0]
    tree.out = &out[0, 0]
    tree.out_step = out.shape[1]
    return 0


cdef int set_memory(Kernel learner, Tree *tree, node, Memory memory) except -1:
    """Check the working memory, and set it in ``tree``."""
    cdef Py_ssize_t n_folds = node.last - node.first
    cdef Py_ssize_t n_rows = begin(tree, node.last) - begin(tree, node.first)
    cdef bint is_ordered = tree.random or tree.n_epochs > 1
    cdef Py_ssize_t finding
    if memory.states.shape[1] != learner.state_bytes:
        raise ValueError(f"a state has {learner.state_bytes} bytes, got {memory.states.shape[1]}.")
    if (0 if memory.log is None else memory.log.shape[0]) != learner.log_bytes:
        raise ValueError(f"log must have {learner.log_bytes} bytes.")
    if (<int64_t> 1 << (memory.states.shape[0] - 1)) < n_folds:
        raise ValueError("states must have a row for each level of the subtree.")
    if is_ordered and (memory.order is None or memory.order.shape[0] < tree.n_epochs * n_rows):
        raise ValueError("order must have room for the rows of the node, in all epochs.")
    tree.sum = NULL
    if memory.sums is not None:
        tree.n_numbers = learner.model_bytes // learner.itemsize
        if memory.sums.shape[0] < memory.states.shape[0] or memory.sums.shape[1] != tree.n_numbers:
            raise ValueError("sums must have a row for each level of the subtree, with room for a model.")
        tree.sum = &memory.sums[0, 0]
    tree.order = &memory.order[0] if is_ordered else NULL
    tree.log.room = tree.log.n_entries = 0
    tree.log.whole = False
    if memory.log is not None:
        finding = finding_bytes(learner.learner.width)
        tree.seen = <uint64_t *> &memory.log[0]
        tree.columns = <int32_t *> (tree.seen + words_of(learner.learner.width))
        tree.log.entries = <Entry *> (&memory.log[0] + finding)
        tree.log.room = (learner.log_bytes - finding) // <Py_ssize_t> sizeof(Entry)
    return 0


cdef class Kernel:
    """A learner over prepared rows; subclasses fill in its functions and sizes.

    Methods take states as buffers of ``state_bytes`` bytes, writable if the method changes them, and
    keep no reference to them. A state begins with the number of rows seen (int64).
    """

    cdef int bind(self, object X, object y, Py_ssize_t n_outputs) except -1:
        """Use the memory of the rows X, dense (n_rows, width) or ``SparseRows``, and of the array y
        (n_rows,) or None, and keep it alive.
        """
        cdef const unsigned char [::1] values, y_bytes
        cdef const int32_t [::1] columns
        cdef const int64_t [::1] begins
        sparse = hasattr(X, "begins")
        self.n_rows = X.shape[0]
        if self.n_rows == 0 or X.shape[1] == 0 or X.shape[1] % 8:
            raise ValueError("X must have rows and a multiple of 8 columns.")
        if X.dtype != "float64" and X.dtype != "float32":
            raise TypeError(f"X must be float64 or float32, got {X.dtype}.")
        values = (X.values if sparse else X).reshape(-1).view("u1")
        self.keep_alive = [values]
        if sparse:
            columns, begins = X.columns, X.begins
            self.learner.sparse.values = &values[0] if values.shape[0] else NULL
            self.learner.sparse.columns = &columns[0] if columns.shape[0] else NULL
            self.learner.sparse.begins = &begins[0]
            self.keep_alive += [columns, begins]
        else:
            self.learner.dense.values = &values[0]
            self.learner.dense.width = X.shape[1]
            self.learner.dense.ahead = AHEAD_IN_ORDER if values.shape[0] > CACHE_BYTES else 0
        if y is not None:
            y_bytes = y.view("u1")
            if y.shape[0] != self.n_rows:
                raise ValueError("y must have as many entries as X has rows.")
            self.learner.y = &y_bytes[0]
            self.keep_alive.append(y_bytes)
        self.n_models = 1
        self.learner.width = X.shape[1]
        self.learner.n_outputs = n_outputs
        self.learner.itemsize = X.dtype.itemsize
        self.n_outputs = n_outputs
        self.itemsize = X.dtype.itemsize
        return 0

    cdef int bind_targets(self, object X, object y, object n_classes) except -1:
        """Bind the rows X and class codes y, or numbers if ``n_classes`` is None; return the class that
        the first output separates from the rest. Two classes have one output, the second class against
        the first; more classes have one output per class, class against the rest.
        """
        if n_classes is not None and y.dtype != "int32":
            raise TypeError(f"y must hold int32 class codes, got {y.dtype}.")
        if n_classes is None and y.dtype != X.dtype:
            raise TypeError(f"y must be of the type of X, {X.dtype}, got {y.dtype}.")
        self.bind(X, y, 1 if n_classes is None or n_classes == 2 else n_classes)
        self.n_classes = 0 if n_classes is None else n_classes
        return 1 if n_classes == 2 else 0

    cdef int set_sizes(self, Py_ssize_t head_bytes, Py_ssize_t rest_bytes, Py_ssize_t model_bytes) except -1:
        """Set the sizes of a state's head, of its rest, each rounded up to whole cache lines, and of a model."""
        self.learner.head_bytes = whole_lines(head_bytes)
        self.state_bytes = self.learner.state_bytes = self.learner.head_bytes + whole_lines(rest_bytes)
        self.model_bytes = model_bytes
        if self.learner.sparse.begins != NULL:
            # Room for two whole states, and for 64 heads: each phase saves one.
            self.log_bytes = (2 * self.state_bytes // 8 + 8 * self.learner.head_bytes) * <Py_ssize_t> sizeof(Entry)
            self.log_bytes += finding_bytes(self.learner.width)
        return 0

    def weigh(self, weights, bint balanced=False):
        """Give rows weights, which multiply their losses. Call this at most once, before there is a state.

        ``weights`` is an array (n_rows,) of the type of X, or None: all weights are 1. With ``balanced``, the
        weights of each class are also divided by its share of the rows seen so far (``row_weight.pxd``), and
        states get longer by the masses that this needs.
        """
        cdef const unsigned char [::1] bytes_of_weights
        cdef const int32_t *y = <const int32_t *> self.learner.y
        cdef Py_ssize_t i
        if self.state_bytes == 0 or self.is_weighed:
            raise ValueError("weigh is called once, after the learner was initialised.")
        if weights is not None:
            if weights.dtype != f"f{self.itemsize}" or weights.shape != (self.n_rows,):
                raise ValueError(
                    f"weights must be float{8 * self.itemsize} of shape ({self.n_rows},), one per row of X, "
                    f"got {weights.dtype} of shape {weights.shape}."
                )
            if not weights.flags.c_contiguous:
                raise ValueError("weights must be contiguous.")
            if not ((weights >= 0) & (weights < INFINITY)).all():
                raise ValueError("weights must be finite and at least 0.")
        if balanced:
            if self.n_classes < 2:
                raise ValueError("balanced weights need class codes of two or more classes.")
            for i in range(self.n_rows):
                if not 0 <= y[i] < self.n_classes:
                    raise ValueError(f"y must hold class codes below {self.n_classes}, got {y[i]}.")
        self.is_weighed = True
        if weights is not None:
            bytes_of_weights = weights.view("u1")
            self.learner.weights = &bytes_of_weights[0]
            self.keep_alive.append(bytes_of_weights)
        if balanced:
            self.learner.n_balanced = self.n_classes
            self.learner.masses_begin = self.learner.head_bytes
            self.set_sizes(
                self.learner.head_bytes + masses_bytes(self.n_classes),
                self.state_bytes - self.learner.head_bytes,
                self.model_bytes,
            )

    cdef int check_state(self, const unsigned char [::1] state) except -1:
        if self.state_bytes == 0:
            raise ValueError("the learner was not initialised.")
        if state.shape[0] != self.state_bytes:
            raise ValueError(f"a state has {self.state_bytes} bytes, got {state.shape[0]}.")
        return 0

    def start(self, unsigned char [::1] state):
        """Write the state before the first row. It is 0 but for what subclasses write."""
        self.check_state(state)
        memset(&state[0], 0, self.state_bytes)

    @property
    def model_type(self) -> str:
        """The type of the numbers in a model."""
        return f"f{self.itemsize}"

    def n_seen(self, const unsigned char [::1] state) -> int:
        """Return the number of rows that a state has been trained on, which is the first number in
        every state.
        """
        self.check_state(state)
        return (<const int64_t *> &state[0])[0]

    cdef Span check_rows(self, Py_ssize_t start, Py_ssize_t stop, const uint32_t [::1] order) except *:
        """Check the rows start..stop-1, or order[start], ..., order[stop-1], and return them."""
        cdef Py_ssize_t n_rows = self.n_rows if order is None else order.shape[0]
        cdef Py_ssize_t i
        if not 0 <= start <= stop <= n_rows:
            raise IndexError(f"rows {start}..{stop} are outside the {n_rows} prepared rows.")
        if order is None or start == stop:
            return Span(start, stop, NULL)
        for i in range(start, stop):
            if order[i] >= self.n_rows:
                raise IndexError(f"order names row {order[i]}, but there are {self.n_rows} prepared rows.")
        return Span(start, stop, &order[0])

    @property
    def surveys(self) -> bool:
        """Whether a state learns from a phase as a whole, before its rows act one by one."""
        return self.learner.survey != NULL

    def survey(
        self,
        unsigned char [::1] state,                   # INOUT
        Py_ssize_t start,
        Py_ssize_t stop,
        const uint32_t [::1] order or None,          # IN; None: the rows start..stop-1
    ):
        """Learn from the rows of the next phase as a whole, those that ``order`` names if it is given."""
        cdef Span span = self.check_rows(start, stop, order)
        self.check_state(state)
        if self.learner.survey != NULL and stop > start:
            with nogil:
                self.learner.survey(&self.learner, span, &state[0])

    def update(
        self,
        unsigned char [::1] state,                   # INOUT
        Py_ssize_t start,
        Py_ssize_t stop,
        const uint32_t [::1] order=None,             # IN; None: rows in stored order
    ):
        """Train on the rows start..stop-1, or on order[start], ..., order[stop-1]."""
        cdef Span span = self.check_rows(start, stop, order)
        self.check_state(state)
        if stop > start:
            with nogil:
                self.learner.train(&self.learner, span, &state[0], NULL, NULL)

    @property
    def tests_rows(self) -> bool:
        """Whether ``test_then_train`` is available."""
        return self.learner.tests_rows

    def test_then_train(
        self,
        unsigned char [::1] state,
        Py_ssize_t start,
        Py_ssize_t stop,
        const uint32_t [::1] order or None,          # IN; None: rows in stored order
        unsigned char [:, ::1] out,                  # OUT, (n_models * (stop - start), output bytes)
    ):
        """Train on the rows start..stop-1, or on order[start], ..., order[stop-1]. Before a row acts, write what
        the model says of it: its outputs from the numbers of the state, which are those of ``test`` up to rounding.
        """
        cdef Span span = self.check_rows(start, stop, order)
        self.check_state(state)
        if start == stop:
            raise IndexError(f"rows {start}..{stop} are none, and there must be one to test.")
        if not self.learner.tests_rows:
            raise TypeError("this kernel tests whole blocks of rows only.")
        if out.shape[0] != self.n_models * (stop - start) or out.shape[1] != self.n_outputs * self.itemsize:
            raise ValueError("out must have room for the outputs of the rows.")
        with nogil:
            self.learner.train(&self.learner, span, &state[0], NULL, &out[0, 0])

    @property
    def trains_pairs(self) -> bool:
        """Whether two states are trained faster together than one after the other."""
        return self.learner.train_both != NULL

    def update_both(
        self,
        unsigned char [::1] first,                   # INOUT
        Py_ssize_t start,
        Py_ssize_t stop,
        unsigned char [::1] second,                  # INOUT
        Py_ssize_t second_start,
        Py_ssize_t second_stop,
        const uint32_t [::1] order or None,          # IN; None: rows in stored order
    ):
        """Train two states: the first on the rows start..stop-1, the second on second_start..second_stop-1. If
        ``order`` is given, these are positions in it.
        """
        cdef Span span = self.check_rows(start, stop, order)
        cdef Span other_span = self.check_rows(second_start, second_stop, order)
        self.check_state(first)
        self.check_state(second)
        if self.learner.train_both == NULL:
            raise ValueError("this learner trains one state after the other.")
        with nogil:
            train_pair(&self.learner, span, other_span, &first[0], &second[0])

    def read_out(self, const unsigned char [::1] state, unsigned char [::1] model):
        """Write the model of ``state``."""
        self.check_state(state)
        if model.shape[0] != self.model_bytes:
            raise ValueError(f"a model has {self.model_bytes} bytes, got {model.shape[0]}.")
        with nogil:
            self.learner.read(&self.learner, &state[0], &model[0])

    def test(
        self,
        const unsigned char [::1] state,
        unsigned char [::1] model,                   # OUT, room for one model
        Py_ssize_t start,
        Py_ssize_t stop,
        unsigned char [:, ::1] out,                  # OUT, (n_rows, output bytes)
    ):
        """Write the outputs of the model of ``state`` for the rows start..stop-1 to the same rows of
        ``out``.
        """
        self.check_state(state)
        if not 0 <= start < stop <= self.n_rows:
            raise IndexError(f"rows {start}..{stop} are outside the {self.n_rows} prepared rows.")
        if model.shape[0] != self.model_bytes:
            raise ValueError(f"a model has {self.model_bytes} bytes, got {model.shape[0]}.")
        if out.shape[0] != self.n_models * self.n_rows or out.shape[1] != self.n_outputs * self.itemsize:
            raise ValueError("out must have room for the outputs of all rows.")
        with nogil:
            self.learner.test(&self.learner, &state[0], &model[0], start, stop, &out[start, 0])

    def walk_subtree(
        self,
        plan,
        node,
        Memory memory not None,
        unsigned char [:, ::1] out,                  # OUT, (n_rows, output bytes)
        unsigned char [:, ::1] kept=None,            # OUT, (n_nodes, state_bytes), the states of the nodes that hold
                                                     # out at least least_folds chunks, parents first; None: no states
        Py_ssize_t least_folds=1,
    ) -> int:
        """Train the models below a plan's node and test them on its chunks; return the row updates done."""
        cdef Py_ssize_t first = node.first, last = node.last
        cdef Tree tree
        cdef int64_t n_updates
        cdef Part whole
        set_tree(self, &tree, plan, node, memory.model, out)
        set_memory(self, &tree, node, memory)
        tree.kept = NULL
        tree.least_folds = least_folds
        tree.n_nodes = 0
        if kept is not None:
            if (
                least_folds < 1
                or kept.shape[1] != self.state_bytes
                or kept.shape[0] != count_nodes(last - first, least_folds)
            ):
                raise ValueError("kept must have room for a state per node.")
            tree.kept = &kept[0, 0]
        whole.begin, whole.end = self.learner.head_bytes, self.state_bytes
        with nogil:
            n_updates = walk(&self.learner, &tree, first, last, &memory.states[0, 0], False, whole)
        return n_updates
