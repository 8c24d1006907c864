"""The nodes of the trees of all folds, and the data that all nodes share.

A *node* has rows, and the trees that have chosen the same splits on the path to them. Each tree has its own sums. The
rows are ordered by fold, so the rows of one fold are a contiguous range, called a *part* of the node. A *branch* is
the group of trees of a node that choose the same split, and therefore share the children.
"""

from cpython.mem cimport PyMem_RawFree
from cpython.mem cimport PyMem_RawMalloc
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint64_t

from optuna_treecv.engines.trees.kernels.records cimport Record
from optuna_treecv.engines.trees.kernels.split_search cimport MAX_BINS
from optuna_treecv.engines.trees.kernels.split_search cimport Search
from optuna_treecv.engines.trees.kernels.split_search cimport Split


# An array of row indices. Several nodes may own ranges of it.
cdef struct Rows:
    int32_t *indices
    Py_ssize_t n_users


cdef struct Node:
    Rows *rows
    int32_t begin               # the rows of this node are ``rows.indices[begin:end]``
    int32_t end
    int32_t depth
    uint64_t path               # a hash of the path from the root
    Py_ssize_t n_trees
    int32_t *trees              # (n_trees,), the trees that may be split here, ascending
    int32_t *records            # (n_trees,), the record of this node in each tree
    int64_t *sums               # (n_trees, size), the sums over the training rows of each tree
    int64_t *lefts              # (n_trees, size), the sums over those that go left at the best split
    Split *splits               # (n_trees,), the best split of each tree
    bint is_single              # only one tree is left, and the only part is the fold that it holds out
    Py_ssize_t n_parts          # the folds whose rows are distinguished
    int32_t *bounds             # (n_parts + 1,), the start of each part in ``rows.indices``
    void *tables                # (1 + n_held, n_slots) entries; NULL if the node has few rows
    int32_t *held               # (n_trees,), the index of the tree's held table; 0: the total excludes its fold
    Py_ssize_t n_branches       # the branches that are not yet grown


# The trees of a node that choose the same split.
cdef struct Branch:
    Branch *below               # the next branch on the stack
    Node *node
    Py_ssize_t n_trees
    int32_t *members            # (n_trees,), their indices among the trees of the node


# The data and settings that all nodes share, and the output.
cdef struct Forest:
    # Rows.
    const uint8_t *bins         # (n_features, n_rows)
    Py_ssize_t n_rows
    Py_ssize_t n_features
    const int32_t *classes      # (n_rows,), or NULL
    const int64_t *targets      # (n_rows,), or NULL
    const int64_t *weights      # (n_rows,), or NULL: all 1
    # Features.
    const int32_t *n_bins
    const uint8_t *has_missing
    const uint8_t *is_categorical
    bint any_categorical
    int64_t *slots              # (n_features + 1,), the first entry of each feature in a table
    # Trees.
    Py_ssize_t n_folds
    Py_ssize_t n_trees
    const int32_t *held_out     # (n_trees,), the fold that each tree holds out; -1: none
    const double *factors       # (n_trees, n_classes), the class weights
    const int64_t *min_leaf     # (n_trees,)
    const int64_t *min_split    # (n_trees,)
    double min_share            # the minimum mass of a child, as a fraction of the tree's mass
    double *masses              # (n_trees,), the total mass of the training rows
    int32_t max_depth
    double min_decrease
    double unit                 # the factor of a decrease of impurity
    Search search
    # Workspace.
    uint8_t all_bins[MAX_BINS]
    int32_t *moved              # (n_rows,)
    int32_t *class_of           # (n_rows,), the classes of the rows of a node
    int64_t *target_of
    int64_t *weight_of
    int64_t *entry              # (size,)
    int64_t *missing            # (size,)
    void *scratch               # (1 + n_folds, MAX_BINS) entries
    # Output.
    int32_t *leaf               # (n_rows,)
    Record *records
    void *sums                  # (n_records, size), of type Count
    Py_ssize_t n_records
    Py_ssize_t capacity
    uint64_t *sets              # (n_sets, 4)
    Py_ssize_t n_sets
    Py_ssize_t capacity_sets
    Branch *stack
    int32_t n_nodes
    int64_t n_visits            # the rows of all searched nodes, each node counted once
    int64_t n_visits_alone      # the same if each tree were grown alone
    bint failed                 # whether an allocation has failed


cdef inline void *allocate(Forest *forest, Py_ssize_t n_bytes) noexcept nogil:
    cdef void *memory = PyMem_RawMalloc(n_bytes if n_bytes > 0 else 1)
    if memory == NULL:
        forest.failed = True
    return memory


cdef inline Rows *make_rows(Forest *forest, Py_ssize_t n_rows) noexcept nogil:
    """Return an array of row indices in one block of memory; the caller counts the nodes that use it."""
    cdef Rows *rows = <Rows *> allocate(forest, sizeof(Rows) + n_rows * 4)
    if rows != NULL:
        rows.indices = <int32_t *> (rows + 1)
        rows.n_users = 0
    return rows


cdef inline Node *make_node(Forest *forest, Py_ssize_t n_trees) noexcept nogil:
    """Allocate a node for ``n_trees`` trees. Its arrays follow it in the same block of memory."""
    cdef Py_ssize_t size = forest.search.size
    cdef Py_ssize_t n_bytes = sizeof(Node) + n_trees * (2 * size * 8 + sizeof(Split) + 3 * 4)
    cdef char *memory = <char *> allocate(forest, n_bytes + (forest.n_folds + 1) * 4)
    cdef Node *node = <Node *> memory
    if memory == NULL:
        return NULL
    memory += sizeof(Node)
    node.sums = <int64_t *> memory
    memory += n_trees * size * 8
    node.lefts = <int64_t *> memory
    memory += n_trees * size * 8
    node.splits = <Split *> memory
    memory += n_trees * sizeof(Split)
    node.trees = <int32_t *> memory
    memory += n_trees * 4
    node.records = <int32_t *> memory
    memory += n_trees * 4
    node.held = <int32_t *> memory
    memory += n_trees * 4
    node.bounds = <int32_t *> memory
    node.rows = NULL
    node.tables = NULL
    node.n_trees = n_trees
    node.is_single = False
    node.n_parts = 0
    node.n_branches = 0
    return node


cdef inline void drop_node(Node *node) noexcept nogil:
    if node == NULL:
        return
    if node.rows != NULL:
        node.rows.n_users -= 1
        if node.rows.n_users == 0:
            PyMem_RawFree(node.rows)
    PyMem_RawFree(node.tables)
    PyMem_RawFree(node)


cdef inline Py_ssize_t part_of(const Node *node, int32_t fold) noexcept nogil:
    """Return the part of a node that holds the rows of the fold that a tree holds out."""
    return 0 if node.is_single else fold


cdef inline void make_single(Forest *forest, Node *node) noexcept nogil:
    """If only one tree is left in a node, keep only the part of the fold that it holds out."""
    cdef int32_t fold
    if node.n_trees != 1 or node.is_single:
        return
    fold = forest.held_out[node.trees[0]]
    node.is_single = True
    node.n_parts = fold >= 0
    if fold >= 0:
        node.bounds[0], node.bounds[1] = node.bounds[fold], node.bounds[fold + 1]
