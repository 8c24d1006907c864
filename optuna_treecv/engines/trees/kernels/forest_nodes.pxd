"""The nodes of the trees of all folds, and what all nodes share.

A *node* has rows, and the trees that have chosen the same splits for them so far; each tree has its own sums. The
rows lie in the order of their folds, so those of one fold are a range, a *part* of the node. A *branch* has the trees
of a node that choose the same split and go on together.
"""

from cpython.mem cimport PyMem_RawFree
from cpython.mem cimport PyMem_RawMalloc
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint64_t

from optuna_treecv.engines.trees.kernels.records cimport Record
from optuna_treecv.engines.trees.kernels.split_search cimport MOST_BINS
from optuna_treecv.engines.trees.kernels.split_search cimport Search
from optuna_treecv.engines.trees.kernels.split_search cimport Split


# Row numbers that several nodes share parts of.
cdef struct Rows:
    int32_t *of
    Py_ssize_t n_users


cdef struct Node:
    Rows *rows
    int32_t begin               # of the rows of this node
    int32_t end
    int32_t depth
    uint64_t path               # the position in the tree
    Py_ssize_t n_trees
    int32_t *trees              # (n_trees,) that may be split, ascending
    int32_t *records            # (n_trees,)
    int64_t *sums               # (n_trees, size), of the training rows
    int64_t *lefts              # (n_trees, size), of those that go left
    Split *splits               # (n_trees,)
    bint is_single              # one tree is left, and the only part is its own fold:
    Py_ssize_t n_parts          # folds whose rows are distinguished
    int32_t *bounds             # (n_parts + 1,), where the rows of each begin
    void *tables                # (1 + held tables, n_slots, size) entries; NULL where the node is small
    int32_t *held               # (n_trees,), the number of the tree's held table; 0: the total leaves its fold out
    Py_ssize_t n_branches       # that are not done


# Trees of a node that have chosen the same split.
cdef struct Branch:
    Branch *below               # the next one on the stack
    Node *node
    Py_ssize_t n_trees
    int32_t *members            # (n_trees,), their places in the node


# What is the same for all nodes, and what is written.
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
    int64_t *slots              # (n_features + 1,), where the entries of a feature begin
    # Trees.
    Py_ssize_t n_folds
    Py_ssize_t n_trees
    const int32_t *own          # (n_trees,), the fold that a tree leaves out; -1: none
    const double *factors       # (n_trees, n_classes)
    const int64_t *min_leaf     # (n_trees,)
    const int64_t *min_split    # (n_trees,)
    double min_share            # of a tree's masses that each child must have
    double *masses              # (n_trees,), of all training rows
    int32_t max_depth
    double min_decrease
    double unit                 # of a decrease
    Search search
    # Room.
    uint8_t all_bins[MOST_BINS]
    int32_t *moved              # (n_rows,)
    int32_t *class_of           # (n_rows,), of the rows of a node
    int64_t *target_of
    int64_t *weight_of
    int64_t *entry              # (size,)
    int64_t *missing            # (size,)
    void *scratch               # (1 + n_folds, MOST_BINS, size) entries
    # Output.
    int32_t *leaf               # (n_rows,)
    Record *records
    void *sums                  # (n_records, size) of Count
    Py_ssize_t n_records
    Py_ssize_t room
    uint64_t *sets              # (n_sets, 4)
    Py_ssize_t n_sets
    Py_ssize_t room_sets
    Branch *stack
    int32_t n_nodes
    int64_t n_visits            # rows of the nodes that were searched
    int64_t n_visits_alone      # by trees that are grown one by one
    bint failed                 # memory has run out


cdef inline void *allocate(Forest *forest, Py_ssize_t n_bytes) noexcept nogil:
    cdef void *memory = PyMem_RawMalloc(n_bytes if n_bytes > 0 else 1)
    if memory == NULL:
        forest.failed = True
    return memory


cdef inline Rows *make_rows(Forest *forest, Py_ssize_t n_rows) noexcept nogil:
    """Return room for row numbers, which follow it in one block of memory; nodes are to be its users."""
    cdef Rows *rows = <Rows *> allocate(forest, sizeof(Rows) + n_rows * 4)
    if rows != NULL:
        rows.of = <int32_t *> (rows + 1)
        rows.n_users = 0
    return rows


cdef inline Node *make_node(Forest *forest, Py_ssize_t n_trees) noexcept nogil:
    """Return a node with room for ``n_trees`` trees; its arrays follow it in one block of memory."""
    cdef Py_ssize_t size = forest.search.size
    cdef Py_ssize_t n_bytes = sizeof(Node) + n_trees * (2 * size * 8 + sizeof(Split) + 3 * 4)
    cdef char *at = <char *> allocate(forest, n_bytes + (forest.n_folds + 1) * 4)
    cdef Node *node = <Node *> at
    if at == NULL:
        return NULL
    at += sizeof(Node)
    node.sums = <int64_t *> at
    at += n_trees * size * 8
    node.lefts = <int64_t *> at
    at += n_trees * size * 8
    node.splits = <Split *> at
    at += n_trees * sizeof(Split)
    node.trees = <int32_t *> at
    at += n_trees * 4
    node.records = <int32_t *> at
    at += n_trees * 4
    node.held = <int32_t *> at
    at += n_trees * 4
    node.bounds = <int32_t *> at
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
    """Return the place of a tree's own fold among the parts of a node."""
    return 0 if node.is_single else fold


cdef inline void make_single(Forest *forest, Node *node) noexcept nogil:
    """Forget the folds of other trees if there is one tree."""
    cdef int32_t fold
    if node.n_trees != 1 or node.is_single:
        return
    fold = forest.own[node.trees[0]]
    node.is_single = True
    node.n_parts = fold >= 0
    if fold >= 0:
        node.bounds[0], node.bounds[1] = node.bounds[fold], node.bounds[fold + 1]
