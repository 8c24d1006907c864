"""Grows the trees of all folds and the tree of all rows jointly (Blockeel & Struyf 2001).

Rows are ordered by fold, and the rows of a node are partitioned in a stable way. The rows of each fold are therefore
contiguous in every node. The sums over the training rows of a tree are the difference between the table of all rows of
the node and the table of the fold that the tree holds out (``split_search.pxd``). Trees that choose the same split
share the children; if trees choose different splits, the node branches. The test rows of a tree are partitioned
together with the training rows of the other trees, so each row reaches its leaf in the tree that holds out its fold.

This file creates the nodes one after the other. The smaller child is grown first, so that for each branching at most
log2(n) nodes with tables are waiting. The other files:

* ``forest_nodes.pxd``: nodes and branches, and the data that all nodes share.
* ``forest_tables.pyx``: the tables of a node.
* ``forest_search.pyx``: the best split of each tree in a node.
"""

from cpython.mem cimport PyMem_RawFree
from cpython.mem cimport PyMem_RawRealloc
from libc.stdint cimport int16_t
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint64_t
from libc.string cimport memcpy
from libc.string cimport memset

import numpy as np

from optuna_treecv._kernels.order cimport chain
from optuna_treecv.engines.trees.kernels.forest_nodes cimport Branch
from optuna_treecv.engines.trees.kernels.forest_nodes cimport Forest
from optuna_treecv.engines.trees.kernels.forest_nodes cimport Node
from optuna_treecv.engines.trees.kernels.forest_nodes cimport Rows
from optuna_treecv.engines.trees.kernels.forest_nodes cimport allocate
from optuna_treecv.engines.trees.kernels.forest_nodes cimport drop_node
from optuna_treecv.engines.trees.kernels.forest_nodes cimport make_node
from optuna_treecv.engines.trees.kernels.forest_nodes cimport make_rows
from optuna_treecv.engines.trees.kernels.forest_nodes cimport make_single
from optuna_treecv.engines.trees.kernels.forest_nodes cimport part_of
from optuna_treecv.engines.trees.kernels.forest_search cimport decrease_of
from optuna_treecv.engines.trees.kernels.forest_search cimport find_splits
from optuna_treecv.engines.trees.kernels.forest_tables cimport add_row
from optuna_treecv.engines.trees.kernels.forest_tables cimport gather
from optuna_treecv.engines.trees.kernels.forest_tables cimport make_root_tables
from optuna_treecv.engines.trees.kernels.forest_tables cimport make_tables
from optuna_treecv.engines.trees.kernels.records cimport Record
from optuna_treecv.engines.trees.kernels.records cimport epsilon
from optuna_treecv.engines.trees.kernels.split_search cimport MAX_COUNTED_CLASSES
from optuna_treecv.engines.trees.kernels.split_search cimport Count
from optuna_treecv.engines.trees.kernels.split_search cimport MAX_BINS
from optuna_treecv.engines.trees.kernels.split_search cimport Search
from optuna_treecv.engines.trees.kernels.split_search cimport Split
from optuna_treecv.engines.trees.kernels.split_search cimport goes_left
from optuna_treecv.engines.trees.kernels.split_search cimport is_pure
from optuna_treecv.engines.trees.kernels.split_search cimport sum_mass
from optuna_treecv.engines.trees.kernels.split_search cimport count_rows


#: The structured dtype of ``Record``.
RECORD: np.dtype = np.dtype([
    ("decrease", np.float64), ("left", np.int32), ("right", np.int32), ("feature", np.int32), ("left_set", np.int32),
    ("n_rows", np.int32), ("depth", np.int32), ("tree", np.int16), ("bin", np.uint8), ("missing_left", np.uint8),
    ("parent", np.int32), ("node", np.int32),
])


# --- Records and the leaves of test rows; a record is a leaf until its node is split ---


cdef int32_t add_record(
    Forest *forest, int32_t parent, int32_t tree, int32_t depth, const int64_t *sums, Count of_type
) noexcept nogil:
    """Append the record of a leaf and return its index, or -1 if memory has run out."""
    cdef Py_ssize_t i, room
    cdef Py_ssize_t size = forest.search.size
    cdef void *more
    cdef Record *record
    if forest.n_records == forest.capacity:
        room = 2 * forest.capacity + 64
        more = PyMem_RawRealloc(forest.records, room * sizeof(Record))
        if more != NULL:
            forest.records = <Record *> more
            more = PyMem_RawRealloc(forest.sums, room * size * sizeof(Count))
        if more == NULL or room > 0x7FFFFFFF:
            forest.failed = True
            return -1
        forest.sums = more
        forest.capacity = room
    record = &forest.records[forest.n_records]
    record.decrease = 0
    record.left = record.right = record.feature = record.left_set = -1
    record.n_rows = <int32_t> count_rows(&forest.search, sums)
    record.depth = depth
    record.tree = <int16_t> tree
    record.bin = record.missing_left = 0
    record.parent = parent
    record.node = forest.n_nodes
    for i in range(size):
        (<Count *> forest.sums)[forest.n_records * size + i] = <Count> sums[i]
    forest.n_records += 1
    return <int32_t> (forest.n_records - 1)


cdef int32_t add_set(Forest *forest, const uint64_t *left_set) noexcept nogil:
    """Append a set of categories and return its index, or -1 if memory has run out."""
    cdef void *more
    if forest.n_sets == forest.capacity_sets:
        more = PyMem_RawRealloc(forest.sets, (2 * forest.capacity_sets + 16) * 32)
        if more == NULL:
            forest.failed = True
            return -1
        forest.sets = <uint64_t *> more
        forest.capacity_sets = 2 * forest.capacity_sets + 16
    memcpy(forest.sets + 4 * forest.n_sets, left_set, 32)
    forest.n_sets += 1
    return <int32_t> (forest.n_sets - 1)


cdef void write_split(Forest *forest, Node *node, Py_ssize_t member, double decrease) noexcept nogil:
    """Write the best split of a tree of a node to its record."""
    cdef const Split *split = &node.splits[member]
    cdef int32_t number = add_set(forest, split.left_set) if split.by_set else -1
    cdef Record *record = &forest.records[node.records[member]]
    record.decrease = decrease
    record.feature = split.feature
    record.left_set = number
    record.bin = <uint8_t> split.bin if not split.by_set else 0
    record.missing_left = split.missing_left


cdef void set_leaf(Forest *forest, Node *node, int32_t tree, int32_t record) noexcept nogil:
    """Write the leaf of the rows of a node that a tree tests."""
    cdef int32_t fold = forest.held_out[tree]
    cdef Py_ssize_t i, part
    if fold < 0:
        return
    part = part_of(node, fold)
    for i in range(node.bounds[part], node.bounds[part + 1]):
        forest.leaf[node.rows.indices[i]] = record


cdef void set_leaves_of_children(
    Forest *forest, const Node *node, const Branch *branch, const Node *left, const Node *right
) noexcept nogil:
    """Write the leaves of test rows for the trees of a branch of which a child is a leaf."""
    cdef Py_ssize_t i, j, part, n_left = 0, n_right = 0
    cdef int32_t member, tree, n_bins, row
    cdef bint ends_left, ends_right
    cdef const Record *record
    cdef const Split *split
    cdef const uint8_t *bins
    for i in range(branch.n_trees):
        member = branch.members[i]
        tree = node.trees[member]
        ends_left = n_left == left.n_trees or left.trees[n_left] != tree
        ends_right = n_right == right.n_trees or right.trees[n_right] != tree
        n_left += not ends_left
        n_right += not ends_right
        if forest.held_out[tree] < 0 or not (ends_left or ends_right):
            continue
        record = &forest.records[node.records[member]]
        split = &node.splits[member]
        bins = forest.bins + split.feature * forest.n_rows
        n_bins = forest.n_bins[split.feature]
        part = part_of(node, forest.held_out[tree])
        for j in range(node.bounds[part], node.bounds[part + 1]):
            row = node.rows.indices[j]
            if goes_left(split, n_bins, bins[row]):
                if ends_left:
                    forest.leaf[row] = record.left
            elif ends_right:
                forest.leaf[row] = record.right


# --- Nodes ---


cdef bint split_alike(Forest *forest, const Node *node, const Split *a, const Split *b) noexcept nogil:
    """Return whether two splits send all rows of a node to the same sides."""
    cdef Py_ssize_t i
    cdef const uint8_t *bins
    cdef int32_t n_bins
    cdef uint8_t differs[MAX_BINS]
    cdef bint any_differs = False
    if a.feature != b.feature:
        return False
    n_bins = forest.n_bins[a.feature]
    for i in range(n_bins + 1):
        differs[i] = goes_left(a, n_bins, <int32_t> i) != goes_left(b, n_bins, <int32_t> i)
        any_differs = any_differs or differs[i]
    if not any_differs:
        return True
    bins = forest.bins + a.feature * forest.n_rows
    for i in range(node.begin, node.end):
        if differs[bins[node.rows.indices[i]]]:
            return False
    return True


cdef void push_branches(Forest *forest, Node *node, uint8_t *waits) noexcept nogil:
    """Push a branch onto the stack for each group of trees with the same split; ``waits`` marks trees with a split."""
    cdef Py_ssize_t member, other
    cdef Branch *branch
    for member in range(node.n_trees):
        if not waits[member]:
            continue
        branch = <Branch *> allocate(forest, sizeof(Branch) + node.n_trees * 4)
        if branch == NULL:
            return
        branch.node = node
        branch.n_trees = 0
        branch.members = <int32_t *> (<char *> branch + sizeof(Branch))
        for other in range(member, node.n_trees):
            if not waits[other]:
                continue
            if other == member or split_alike(forest, node, &node.splits[member], &node.splits[other]):
                branch.members[branch.n_trees] = <int32_t> other
                branch.n_trees += 1
                waits[other] = False
        branch.below = forest.stack
        forest.stack = branch
        node.n_branches += 1


cdef void open_node(Forest *forest, Node *node, Count of_type) noexcept nogil:
    """Find the splits of all trees of a node, and push its branches onto the stack. Free the node if none is split."""
    cdef Py_ssize_t member
    cdef double decrease
    cdef uint8_t *is_split = <uint8_t *> allocate(forest, node.n_trees)
    if is_split == NULL:
        drop_node(node)
        return
    find_splits(forest, node, of_type)
    for member in range(node.n_trees):
        decrease = decrease_of(forest, node, member)
        is_split[member] = decrease + epsilon() >= forest.min_decrease
        if is_split[member]:
            write_split(forest, node, member, decrease)
        else:
            set_leaf(forest, node, node.trees[member], node.records[member])
    push_branches(forest, node, is_split)
    PyMem_RawFree(is_split)
    if node.n_branches == 0:
        drop_node(node)


# --- Children ---


cdef bint may_split(Forest *forest, int32_t tree, int32_t depth, const int64_t *sums) noexcept nogil:
    """Return whether a node may be split, by its depth and its sums over the training rows of a tree."""
    cdef int64_t n = count_rows(&forest.search, sums)
    if depth >= forest.max_depth or n < forest.min_split[tree] or n < 2 * forest.min_leaf[tree]:
        return False
    forest.search.factors = forest.factors + tree * forest.search.n_classes
    forest.search.best = NULL
    return sum_mass(&forest.search, sums) > 0 and not is_pure(&forest.search, sums)


cdef Node *make_child(Forest *forest, Node *node, Branch *branch, bint is_left, Count of_type) noexcept nogil:
    """Append the records of a child, and return the child with the trees that may be split there.

    Return NULL if memory has run out.
    """
    cdef Py_ssize_t size = forest.search.size
    cdef Node *child = make_node(forest, branch.n_trees)
    cdef int64_t *sums
    cdef Py_ssize_t i, j, n_open = 0
    cdef int32_t member, tree, record
    if child == NULL:
        return NULL
    forest.n_nodes += 1
    child.depth = node.depth + 1
    child.is_single, child.n_parts = node.is_single, node.n_parts
    child.path = chain(node.path, 1 if is_left else 2)
    for i in range(branch.n_trees):
        member = branch.members[i]
        tree = node.trees[member]
        sums = child.sums + n_open * size
        for j in range(size):
            sums[j] = node.lefts[member * size + j]
            if not is_left:
                sums[j] = node.sums[member * size + j] - sums[j]
        record = add_record(forest, node.records[member], tree, child.depth, sums, of_type)
        if record < 0:
            drop_node(child)
            return NULL
        if is_left:
            forest.records[node.records[member]].left = record
        else:
            forest.records[node.records[member]].right = record
        if may_split(forest, tree, child.depth, sums):
            child.trees[n_open] = tree
            child.records[n_open] = record
            n_open += 1
    child.n_trees = n_open
    return child


cdef int32_t partition(
    Forest *forest,
    const Node *node,
    const Split *split,
    int32_t *to,                # OUT, may be the row indices of the node itself
    int32_t shift,              # the position in the node that is written to ``to[0]``
    int32_t *left_bounds,       # OUT, (n_parts + 1,)
    int32_t *right_bounds,      # OUT, (n_parts + 1,)
) noexcept nogil:
    """Write the rows that go left, then those that go right, in stable order; return the start of the latter."""
    cdef uint8_t left_of[MAX_BINS]
    cdef const uint8_t *bins = forest.bins + split.feature * forest.n_rows
    cdef const int32_t *rows = node.rows.indices
    cdef int32_t n_bins = forest.n_bins[split.feature]
    cdef Py_ssize_t i, part
    cdef Py_ssize_t n_left = node.begin - shift, n_right = 0
    cdef Py_ssize_t begin, end
    cdef int32_t row
    cdef uint8_t is_left
    for i in range(n_bins + 1):
        left_of[i] = goes_left(split, n_bins, <int32_t> i)
    for part in range(-1, node.n_parts + 1):
        begin = node.begin if part < 0 else node.bounds[part]
        end = node.end if part == node.n_parts else node.bounds[part + 1]
        if part >= 0:
            left_bounds[part] = <int32_t> n_left
            right_bounds[part] = <int32_t> n_right
        for i in range(begin, end):
            row = rows[i]
            is_left = left_of[bins[row]]
            to[n_left] = row
            forest.moved[n_right] = row
            n_left += is_left
            n_right += 1 - is_left
    memcpy(to + n_left, forest.moved, n_right * 4)
    for part in range(node.n_parts + 1):
        right_bounds[part] += <int32_t> n_left
    return <int32_t> n_left


cdef bint move_rows(Forest *forest, const Branch *branch, Node *left, Node *right) noexcept nogil:
    """Give two children their rows. The last branch of a node takes its memory, and others a copy."""
    cdef Node *node = branch.node
    cdef Rows *rows = node.rows
    cdef int32_t cut
    cdef int32_t shift = 0
    if node.n_branches > 1:
        shift = node.begin
        rows = make_rows(forest, node.end - node.begin)
        if rows == NULL:
            return False
    cut = partition(forest, node, &node.splits[branch.members[0]], rows.indices, shift, left.bounds, right.bounds)
    left.rows = right.rows = rows
    rows.n_users += 2
    left.begin, left.end = node.begin - shift, cut
    right.begin, right.end = cut, node.end - shift
    return True


cdef void grow_branch(Forest *forest, Branch *branch, Count of_type) noexcept nogil:
    """Create the children of a branch and find their splits."""
    cdef Node *node = branch.node
    cdef Node *left = make_child(forest, node, branch, True, of_type)
    cdef Node *right = make_child(forest, node, branch, False, of_type)
    cdef Node *small = left
    cdef Node *large = right
    if left != NULL and right != NULL:
        set_leaves_of_children(forest, node, branch, left, right)
    if not forest.failed and left.n_trees + right.n_trees > 0 and move_rows(forest, branch, left, right):
        if left.end - left.begin > right.end - right.begin:
            small, large = right, left
        make_tables(forest, node, branch, small, large, of_type)
        make_single(forest, left)
        make_single(forest, right)
        # The branches of the smaller child are grown first, because they are on top of the stack.
        if large.n_trees > 0 and not forest.failed:
            open_node(forest, large, of_type)
            large = NULL
        if small.n_trees > 0 and not forest.failed:
            open_node(forest, small, of_type)
            small = NULL
    drop_node(small)
    drop_node(large)


# --- Roots ---


cdef void sum_rows(const Forest *forest, Py_ssize_t begin, Py_ssize_t end, int64_t *sums) noexcept nogil:
    """Write the sums over a range of gathered rows."""
    cdef Py_ssize_t i
    memset(sums, 0, forest.search.size * sizeof(int64_t))
    for i in range(begin, end):
        add_row(forest, i, 1, sums)


cdef Node *make_root(Forest *forest, const int64_t *bounds, uint64_t seed, Count of_type) noexcept nogil:
    """Append the records of all roots, and return the root node with the trees that may be split.

    Return NULL if memory has run out.
    """
    cdef Search *search = &forest.search
    cdef Py_ssize_t size = search.size
    cdef Node *root = make_node(forest, forest.n_trees)
    cdef Py_ssize_t n_open = 0
    cdef Py_ssize_t i, j
    cdef int32_t fold, record
    cdef int64_t *sums
    if root == NULL:
        return NULL
    root.rows = make_rows(forest, forest.n_rows)
    if root.rows == NULL:
        drop_node(root)
        return NULL
    root.rows.n_users = 1
    for i in range(forest.n_rows):
        root.rows.indices[i] = <int32_t> i
    root.begin, root.end, root.depth, root.path = 0, <int32_t> forest.n_rows, 0, seed
    root.is_single, root.n_parts = False, forest.n_folds
    for i in range(forest.n_folds + 1):
        root.bounds[i] = <int32_t> bounds[i]
    gather(forest, root)
    sum_rows(forest, 0, forest.n_rows, forest.entry)
    for i in range(forest.n_trees):
        sums = root.sums + n_open * size
        memcpy(sums, forest.entry, size * sizeof(int64_t))
        fold = forest.held_out[i]
        if fold >= 0:
            sum_rows(forest, bounds[fold], bounds[fold + 1], forest.missing)
            for j in range(size):
                sums[j] -= forest.missing[j]
        record = add_record(forest, -1, <int32_t> i, 0, sums, of_type)
        search.factors = forest.factors + i * search.n_classes
        forest.masses[i] = sum_mass(search, sums)
        if record >= 0 and may_split(forest, <int32_t> i, 0, sums):
            root.trees[n_open] = <int32_t> i
            root.records[n_open] = record
            n_open += 1
        elif record >= 0:
            set_leaf(forest, root, <int32_t> i, record)
    root.n_trees = n_open
    make_single(forest, root)
    return root


cdef void grow_all(Forest *forest, const int64_t *bounds, uint64_t seed, Count of_type) noexcept nogil:
    """Grow all trees from their roots."""
    cdef Node *root = make_root(forest, bounds, seed, of_type)
    cdef Branch *branch
    if root == NULL:
        return
    if root.n_trees > 0 and not forest.failed:
        make_root_tables(forest, root, of_type)
    if root.n_trees == 0 or forest.failed:
        drop_node(root)
        return
    open_node(forest, root, of_type)
    while forest.stack != NULL:
        branch = forest.stack
        forest.stack = branch.below
        if not forest.failed:
            grow_branch(forest, branch, of_type)
        branch.node.n_branches -= 1
        if branch.node.n_branches == 0:
            drop_node(branch.node)
        PyMem_RawFree(branch)


def grow(
    const uint8_t [:, ::1] bins,                # IN, (n_features, n_rows)
    const int32_t [::1] classes or None,        # IN, (n_rows,)
    const int64_t [::1] targets or None,        # IN, (n_rows,)
    const int64_t [::1] weights or None,        # IN, (n_rows,); None: all weights are 1
    const int32_t [::1] n_bins,                 # IN, (n_features,), not counting the bin of missing values
    const uint8_t [::1] has_missing,            # IN, (n_features,)
    const uint8_t [::1] is_categorical,         # IN, (n_features,)
    const int64_t [::1] bounds,                 # IN, (n_folds + 1,), the first row of each fold
    const int32_t [::1] held_out,               # IN, (n_trees,), the fold that each tree holds out; -1: none
    const double [:, ::1] factors,              # IN, (n_trees, n_classes), the class weights
    const int64_t [::1] min_leaf,               # IN, (n_trees,)
    const int64_t [::1] min_split,              # IN, (n_trees,)
    double min_share,                           # the minimum mass of a leaf, as a fraction of the mass of the tree
    int max_depth,
    double min_decrease,
    bint entropy,
    double unit,                                # the factor of a decrease of impurity
    uint64_t seed,                              # for ties between features
    int32_t [::1] leaf,                         # OUT, (n_rows,), the record of the leaf of each row of a fold
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
    """Grow the trees of all folds jointly.

    Returns
    -------
    records : ndarray of shape (n_records,), RECORD
        Record t is the root of tree t.
    sums : ndarray of shape (n_records, size), int32 or int64
        The sums over the training rows in each node; see ``split_search.pxd``.
    sets : ndarray of shape (n_sets, 4), uint64
    n_visits, n_visits_alone : int
        The number of rows of all searched nodes, and the number that trees grown one by one would read.
    """
    cdef Forest forest
    cdef Py_ssize_t i
    cdef Py_ssize_t n_rows = bins.shape[1], n_features = bins.shape[0]
    cdef Py_ssize_t n_folds = bounds.shape[0] - 1, n_trees = held_out.shape[0], n_classes = factors.shape[1]
    cdef bint wide = targets is not None or weights is not None
    cdef int32_t narrow_type = 0
    cdef int64_t wide_type = 0
    if (classes is None) == (targets is None) or (classes is None) != (n_classes == 0):
        raise ValueError("either classes with factors, or targets without factors must be given.")
    if leaf.shape[0] != n_rows or (
        (classes is not None and classes.shape[0] != n_rows)
        or (targets is not None and targets.shape[0] != n_rows)
        or (weights is not None and weights.shape[0] != n_rows)
    ):
        raise ValueError("classes, targets, weights and leaf must have one entry per row.")
    if not (n_bins.shape[0] == has_missing.shape[0] == is_categorical.shape[0] == n_features):
        raise ValueError("n_bins, has_missing and is_categorical must have one entry per feature.")
    if not (factors.shape[0] == min_leaf.shape[0] == min_split.shape[0] == n_trees):
        raise ValueError("factors, min_leaf and min_split must have one entry per tree.")
    if n_rows >= 2**31 or n_trees >= 2**15 or n_trees < 1 or n_folds > n_rows:
        raise ValueError("there must be fewer than 2**31 rows, 1 to 2**15 - 1 trees, and at most one fold per row.")
    memset(&forest, 0, sizeof(forest))
    forest.bins = &bins[0, 0]
    forest.n_rows, forest.n_features = n_rows, n_features
    forest.classes = &classes[0] if classes is not None else NULL
    forest.targets = &targets[0] if targets is not None else NULL
    forest.weights = &weights[0] if weights is not None else NULL
    forest.n_bins, forest.has_missing, forest.is_categorical = &n_bins[0], &has_missing[0], &is_categorical[0]
    forest.n_folds, forest.n_trees = n_folds, n_trees
    forest.held_out = &held_out[0]
    forest.factors = &factors[0, 0] if n_classes else NULL
    forest.min_leaf, forest.min_split = &min_leaf[0], &min_split[0]
    forest.min_share = min_share
    forest.max_depth = max_depth
    forest.min_decrease = min_decrease
    forest.unit = unit
    forest.leaf = &leaf[0]
    forest.search.n_classes = n_classes
    forest.search.weighted = weights is not None
    forest.search.entropy = entropy
    forest.search.counts = (
        2 < n_classes <= MAX_COUNTED_CLASSES and not entropy and weights is None and np.all(np.equal(factors, 1))
    )
    forest.search.size = forest.search.weighted + (n_classes if n_classes else 2)
    size = forest.search.size
    for i in range(MAX_BINS):
        forest.all_bins[i] = <uint8_t> i
    cdef int64_t [::1] slots_view = np.append(0, np.cumsum(np.add(n_bins, has_missing), dtype=np.int64))
    forest.slots = &slots_view[0]
    forest.any_categorical = np.any(is_categorical)
    # The workspace of one node.
    cdef int32_t [:, ::1] row_view = np.empty((2, n_rows), np.int32)
    forest.moved, forest.class_of = &row_view[0, 0], &row_view[1, 0]
    cdef int64_t [:, ::1] number_view = np.empty((2, n_rows), np.int64)
    forest.target_of, forest.weight_of = &number_view[0, 0], &number_view[1, 0]
    cdef int64_t [:, ::1] sum_view = np.empty((4, size), np.int64)
    forest.search.left, forest.search.other = &sum_view[0, 0], &sum_view[1, 0]
    forest.entry, forest.missing = &sum_view[2, 0], &sum_view[3, 0]
    cdef double [::1] mass_view = np.empty(n_trees)
    forest.masses = &mass_view[0]
    cdef int64_t [:, ::1] scratch_view = np.empty((1 + n_folds, MAX_BINS * size), np.int64)
    forest.scratch = &scratch_view[0, 0]
    leaf[:] = -1
    try:
        with nogil:
            if wide:
                grow_all(&forest, &bounds[0], seed, wide_type)
            else:
                grow_all(&forest, &bounds[0], seed, narrow_type)
        if forest.failed:
            raise MemoryError("the trees of all folds need more memory than is available.")
        records = np.empty(forest.n_records, RECORD)
        sums = np.empty((forest.n_records, size), np.int64 if wide else np.int32)
        sets = np.empty((forest.n_sets, 4), np.uint64)
        copy_bytes(forest.records, records.view(np.uint8))
        copy_bytes(forest.sums, sums.reshape(-1).view(np.uint8))
        if forest.n_sets:
            copy_bytes(forest.sets, sets.reshape(-1).view(np.uint8))
    finally:
        PyMem_RawFree(forest.records)
        PyMem_RawFree(forest.sums)
        PyMem_RawFree(forest.sets)
    return records, sums, sets, forest.n_visits, forest.n_visits_alone


cdef copy_bytes(const void *source, uint8_t [::1] to):
    memcpy(&to[0], source, to.shape[0])
