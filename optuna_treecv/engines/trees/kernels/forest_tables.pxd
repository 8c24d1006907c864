"""The tables of a node: for each bin of each feature, the sums over its rows (an *entry*, see ``split_search.pxd``).

The first table is the *total*, over all rows of the node. A *held* table is over the rows of one fold. The tree that
holds out this fold subtracts it from the total. If a node has one tree only, no held table is needed, because the
total excludes the rows of the fold.

The tables of the smaller child are filled from its rows. The tables of the larger child are the difference between the
tables of the parent and those of the smaller child.
"""

from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t

from optuna_treecv.engines.trees.kernels.forest_nodes cimport Branch
from optuna_treecv.engines.trees.kernels.forest_nodes cimport Forest
from optuna_treecv.engines.trees.kernels.forest_nodes cimport Node
from optuna_treecv.engines.trees.kernels.split_search cimport Count


cdef inline Py_ssize_t number_tables(const Forest *forest, Node *node) noexcept nogil:
    """Assign a held table to each tree of a node that needs one; return the number of tables."""
    cdef int32_t n_tables = 1
    cdef Py_ssize_t i
    for i in range(node.n_trees):
        node.held[i] = 0
        if node.n_trees > 1 and forest.held_out[node.trees[i]] >= 0:
            node.held[i] = n_tables
            n_tables += 1
    return n_tables


cdef inline void gather(Forest *forest, const Node *node) noexcept nogil:
    """Copy targets, classes and weights of the rows of a node, because they are read once per feature."""
    cdef Py_ssize_t i
    cdef const int32_t *rows = node.rows.indices
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
    """Add one gathered row to an entry; subtract it if the sign is -1."""
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
    Count *first,               # INOUT, the entries of the feature in one table
    Count *second,              # INOUT, the same of a second table, or NULL
) noexcept nogil:
    """Add a range of the rows of a node to one table, or to two."""
    cdef const uint8_t *bins = forest.bins + feature * forest.n_rows
    cdef const int32_t *rows = node.rows.indices
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
