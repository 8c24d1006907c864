"""The tables of a node: for each feature and bin, the sums of its rows (an *entry* of ``split_search.pxd``).

The first table is the *total*, of all rows. A *held* table has the rows of one fold, and the tree that leaves out this
fold subtracts it from the total. One tree alone needs no held table: its total leaves out the rows of the fold.

The tables of the smaller child are filled from rows, those of the larger child are the parent's minus these.
"""

from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t

from optuna_treecv.engines.trees.kernels.forest_nodes cimport Branch
from optuna_treecv.engines.trees.kernels.forest_nodes cimport Forest
from optuna_treecv.engines.trees.kernels.forest_nodes cimport Node
from optuna_treecv.engines.trees.kernels.split_search cimport Count


cdef inline Py_ssize_t number_tables(const Forest *forest, Node *node) noexcept nogil:
    """Number the tables that the trees of a node need; return how many there are."""
    cdef int32_t n_tables = 1
    cdef Py_ssize_t i
    for i in range(node.n_trees):
        node.held[i] = 0
        if node.n_trees > 1 and forest.own[node.trees[i]] >= 0:
            node.held[i] = n_tables
            n_tables += 1
    return n_tables


cdef inline void gather(Forest *forest, const Node *node) noexcept nogil:
    """Copy the summands of the rows of a node, which are read once per feature."""
    cdef Py_ssize_t i
    cdef const int32_t *rows = node.rows.of
    if forest.classes != NULL:
        for i in range(node.begin, node.end):
            forest.class_of[i] = forest.classes[rows[i]]
    else:
        for i in range(node.begin, node.end):
            forest.target_of[i] = forest.targets[rows[i]]
    if forest.weights != NULL:
        for i in range(node.begin, node.end):
            forest.weight_of[i] = forest.weights[rows[i]]


cdef inline void add_row(const Forest *forest, Py_ssize_t i, int64_t sign, Count *entry) noexcept nogil:
    """Add one gathered row to an entry, or subtract it."""
    cdef int64_t w
    if forest.weights != NULL:
        w = forest.weight_of[i]
        if w == 0:
            return
        entry[0] += <Count> sign
        if forest.classes != NULL:
            entry[1 + forest.class_of[i]] += <Count> (sign * w)
        else:
            entry[1] += <Count> (sign * w)
            entry[2] += <Count> (sign * w * forest.target_of[i])
    elif forest.classes != NULL:
        entry[forest.class_of[i]] += <Count> sign
    else:
        entry[0] += <Count> sign
        entry[1] += <Count> (sign * forest.target_of[i])


cdef inline void add_rows(
    Forest *forest,
    const Node *node,
    Py_ssize_t feature,
    Py_ssize_t begin,
    Py_ssize_t end,
    int64_t sign,
    Count *first,               # INOUT, the feature's entries
    Count *second,              # INOUT, likewise, or NULL
) noexcept nogil:
    """Add some rows of a node to one table, or to two."""
    cdef const uint8_t *bins = forest.bins + feature * forest.n_rows
    cdef const int32_t *rows = node.rows.of
    cdef Py_ssize_t size = forest.search.size
    cdef Py_ssize_t i
    cdef int64_t t
    if second == NULL and forest.weights == NULL:
        if forest.classes != NULL:
            for i in range(begin, end):
                first[bins[rows[i]] * size + forest.class_of[i]] += <Count> sign
        else:
            for i in range(begin, end):
                t = forest.target_of[i]
                first[bins[rows[i]] * 2] += <Count> sign
                first[bins[rows[i]] * 2 + 1] += <Count> (sign * t)
        return
    for i in range(begin, end):
        add_row(forest, i, sign, first + bins[rows[i]] * size)
        if second != NULL:
            add_row(forest, i, sign, second + bins[rows[i]] * size)


cdef void make_tables(
    Forest *forest, Node *node, const Branch *branch, Node *small, Node *large, Count of_type
) noexcept nogil


cdef void make_root_tables(Forest *forest, Node *root, Count of_type) noexcept nogil
