"""Computes the tables of a node from its rows, or by subtraction from the tables of its parent."""

from cpython.mem cimport PyMem_RawFree
from libc.string cimport memcpy
from libc.string cimport memset

from optuna_treecv.engines.trees.kernels.forest_nodes cimport allocate
from optuna_treecv.engines.trees.kernels.forest_nodes cimport make_node
from optuna_treecv.engines.trees.kernels.forest_nodes cimport part_of
from optuna_treecv.engines.trees.kernels.split_search cimport MAX_ROWS_WITHOUT_TABLES


cdef void assign_parts(const Forest *forest, const Node *node, const Node *of_rows, int32_t *held_of) noexcept nogil:
    """Write, for each part of the rows of a node, the held table to which it is added."""
    cdef Py_ssize_t i
    cdef int32_t fold
    for i in range(of_rows.n_parts):
        held_of[i] = 0
    for i in range(node.n_trees):
        fold = forest.held_out[node.trees[i]]
        if fold >= 0:
            held_of[part_of(of_rows, fold)] = node.held[i] if node.held[i] > 0 else -1


cdef void fill(
    Forest *forest,
    Node *node,
    const int32_t *held_of,     # (n_parts,), the held table of each part; 0: none, -1: the part is excluded
    int64_t sign,
    Count *tables,              # INOUT
) noexcept nogil:
    """Add the rows of a node to its tables; subtract them if the sign is -1."""
    cdef Py_ssize_t size = forest.search.size
    cdef Py_ssize_t width = forest.slots[forest.n_features] * size
    cdef Py_ssize_t feature, part, i, n_slots
    cdef Count *total
    cdef Count *held
    gather(forest, node)
    for feature in range(forest.n_features):
        total = tables + forest.slots[feature] * size
        n_slots = forest.slots[feature + 1] - forest.slots[feature]
        add_rows(forest, node, feature, node.begin, node.bounds[0], sign, total, <Count *> NULL)
        for part in range(node.n_parts):
            if held_of[part] < 0:
                continue
            if held_of[part] == 0:
                add_rows(forest, node, feature, node.bounds[part], node.bounds[part + 1], sign, total, <Count *> NULL)
                continue
            held = total + held_of[part] * width
            if sign < 0 or node.bounds[part + 1] - node.bounds[part] < n_slots:
                add_rows(forest, node, feature, node.bounds[part], node.bounds[part + 1], sign, total, held)
                continue
            add_rows(forest, node, feature, node.bounds[part], node.bounds[part + 1], sign, held, <Count *> NULL)
            for i in range(n_slots * size):
                total[i] += held[i]
        add_rows(forest, node, feature, node.bounds[node.n_parts], node.end, sign, total, <Count *> NULL)


cdef void subtract(Count *a, const Count *b, const Count *c, Py_ssize_t n) noexcept nogil:
    """Write a = b - c; the arrays may be identical."""
    cdef Py_ssize_t i
    for i in range(n):
        a[i] = b[i] - c[i]


cdef bint has_tree(const Node *node, int32_t tree) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(node.n_trees):
        if node.trees[i] == tree:
            return True
    return False


cdef void copy_held(const Node *both, Node *child) noexcept nogil:
    """Copy the indices of the held tables to the trees of a child."""
    cdef Py_ssize_t i, j = 0
    for i in range(both.n_trees):
        if j < child.n_trees and child.trees[j] == both.trees[i]:
            child.held[j] = both.held[i]
            j += 1


cdef void make_tables(
    Forest *forest, Node *node, const Branch *branch, Node *small, Node *large, Count of_type
) noexcept nogil:
    """Make the tables of the children with many rows, for all trees that may be split in either child."""
    cdef Py_ssize_t width = forest.slots[forest.n_features] * forest.search.size
    cdef Py_ssize_t n_bytes = width * sizeof(Count)
    cdef Node *both
    cdef Py_ssize_t i, n_tables
    cdef int32_t *held_of
    cdef int32_t *parent_held
    cdef Count *of_small = NULL
    cdef Count *of_large
    cdef Count *parent = <Count *> node.tables
    if parent == NULL or large.end - large.begin <= MAX_ROWS_WITHOUT_TABLES:
        return
    if large.n_trees == 0 and small.end - small.begin <= MAX_ROWS_WITHOUT_TABLES:
        return
    both = make_node(forest, branch.n_trees)
    held_of = <int32_t *> allocate(forest, (forest.n_folds + branch.n_trees) * 4)
    if both == NULL or held_of == NULL:
        PyMem_RawFree(both)
        PyMem_RawFree(held_of)
        return
    parent_held = held_of + forest.n_folds
    n_tables = 0
    for i in range(branch.n_trees):
        both.trees[n_tables] = node.trees[branch.members[i]]
        parent_held[n_tables] = node.held[branch.members[i]]
        if has_tree(small, both.trees[n_tables]) or has_tree(large, both.trees[n_tables]):
            n_tables += 1
    both.n_trees = n_tables
    n_tables = number_tables(forest, both)
    assign_parts(forest, both, small, held_of)
    if large.n_trees == 0 or small.end - small.begin > MAX_ROWS_WITHOUT_TABLES:
        of_small = <Count *> allocate(forest, n_tables * n_bytes)
        if of_small != NULL:
            memset(of_small, 0, n_tables * n_bytes)
            fill(forest, small, held_of, 1, of_small)
    if large.n_trees > 0 and not forest.failed:
        # The tables of the larger child are the parent's minus those of the smaller one.
        of_large = <Count *> allocate(forest, n_tables * n_bytes)
        if of_large != NULL:
            memcpy(of_large, parent, n_bytes)
            if both.n_trees == 1 and parent_held[0] > 0:
                subtract(of_large, of_large, parent + parent_held[0] * width, width)
            for i in range(both.n_trees):
                if both.held[i] > 0:
                    memcpy(of_large + both.held[i] * width, parent + parent_held[i] * width, n_bytes)
            if of_small != NULL:
                subtract(of_large, of_large, of_small, n_tables * width)
            else:
                fill(forest, small, held_of, -1, of_large)
            large.tables = of_large
            copy_held(both, large)
    if of_small != NULL and small.n_trees > 0 and small.end - small.begin > MAX_ROWS_WITHOUT_TABLES:
        small.tables = of_small
        copy_held(both, small)
    else:
        PyMem_RawFree(of_small)
    PyMem_RawFree(both)
    PyMem_RawFree(held_of)


cdef void make_root_tables(Forest *forest, Node *root, Count of_type) noexcept nogil:
    """Make the tables of the root, unless it has few rows."""
    cdef Py_ssize_t n_bytes = forest.slots[forest.n_features] * forest.search.size * sizeof(Count)
    cdef int32_t *held_of
    if root.end - root.begin <= MAX_ROWS_WITHOUT_TABLES:
        return
    n_bytes *= number_tables(forest, root)
    root.tables = allocate(forest, n_bytes)
    held_of = <int32_t *> allocate(forest, forest.n_folds * 4)
    if not forest.failed:
        memset(root.tables, 0, n_bytes)
        assign_parts(forest, root, root, held_of)
        fill(forest, root, held_of, 1, <Count *> root.tables)
    PyMem_RawFree(held_of)
