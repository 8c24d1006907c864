"""What is written of the trees: a record for each tree in each of its nodes, and the leaf of each test row.

A record is a leaf until its tree is split there.
"""

from cpython.mem cimport PyMem_RawRealloc
from libc.stdint cimport int16_t
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from optuna_treecv._kernels.forest_nodes cimport Branch
from optuna_treecv._kernels.forest_nodes cimport Forest
from optuna_treecv._kernels.forest_nodes cimport Node
from optuna_treecv._kernels.forest_nodes cimport part_of
from optuna_treecv._kernels.records cimport Record
from optuna_treecv._kernels.split_search cimport Count
from optuna_treecv._kernels.split_search cimport goes_left
from optuna_treecv._kernels.split_search cimport rows_in
from optuna_treecv._kernels.split_search cimport Split


cdef inline int32_t add_record(
    Forest *forest, int32_t parent, int32_t tree, int32_t depth, const int64_t *sums, Count of_type
) noexcept nogil:
    """Add a leaf; return its number, or -1 where memory has run out."""
    cdef Py_ssize_t i, room
    cdef Py_ssize_t size = forest.search.size
    cdef void *more
    cdef Record *record
    if forest.n_records == forest.room:
        room = 2 * forest.room + 64
        more = PyMem_RawRealloc(forest.records, room * sizeof(Record))
        if more != NULL:
            forest.records = <Record *> more
            more = PyMem_RawRealloc(forest.sums, room * size * sizeof(Count))
        if more == NULL or room > 0x7FFFFFFF:
            forest.failed = True
            return -1
        forest.sums = more
        forest.room = room
    record = &forest.records[forest.n_records]
    record.decrease = 0
    record.left = record.right = record.feature = record.left_set = -1
    record.n_rows = <int32_t> rows_in(&forest.search, sums)
    record.depth = depth
    record.tree = <int16_t> tree
    record.bin = record.missing_left = 0
    record.parent = parent
    record.node = forest.n_nodes
    for i in range(size):
        (<Count *> forest.sums)[forest.n_records * size + i] = <Count> sums[i]
    forest.n_records += 1
    return <int32_t> (forest.n_records - 1)


cdef inline int32_t add_set(Forest *forest, const uint64_t *left_set) noexcept nogil:
    cdef void *more
    if forest.n_sets == forest.room_sets:
        more = PyMem_RawRealloc(forest.sets, (2 * forest.room_sets + 16) * 32)
        if more == NULL:
            forest.failed = True
            return -1
        forest.sets = <uint64_t *> more
        forest.room_sets = 2 * forest.room_sets + 16
    memcpy(forest.sets + 4 * forest.n_sets, left_set, 32)
    forest.n_sets += 1
    return <int32_t> (forest.n_sets - 1)


cdef inline void note_split(Forest *forest, Node *node, Py_ssize_t member, double decrease) noexcept nogil:
    """Write a split to the record of a tree."""
    cdef const Split *split = &node.splits[member]
    cdef int32_t number = add_set(forest, split.left_set) if split.by_set else -1
    cdef Record *record = &forest.records[node.records[member]]
    record.decrease = decrease
    record.feature = split.feature
    record.left_set = number
    record.bin = <uint8_t> split.bin if not split.by_set else 0
    record.missing_left = split.missing_left


cdef inline void end_at(Forest *forest, Node *node, int32_t tree, int32_t record) noexcept nogil:
    """Note where the test rows of a tree end."""
    cdef int32_t fold = forest.own[tree]
    cdef Py_ssize_t i, part
    if fold < 0:
        return
    part = part_of(node, fold)
    for i in range(node.bounds[part], node.bounds[part + 1]):
        forest.leaf[node.rows.of[i]] = record


cdef inline void end_closed(
    Forest *forest, const Node *node, const Branch *branch, Node *child, bint is_left
) noexcept nogil:
    """Note where the test rows of those trees end that have a leaf in a child. It has its rows."""
    cdef Py_ssize_t i, j = 0
    cdef int32_t member
    cdef const Record *record
    for i in range(branch.n_trees):
        member = branch.members[i]
        if j < child.n_trees and child.trees[j] == node.trees[member]:
            j += 1
            continue
        record = &forest.records[node.records[member]]
        end_at(forest, child, node.trees[member], record.left if is_left else record.right)


cdef inline void end_all(Forest *forest, const Node *node, const Branch *branch) noexcept nogil:
    """Note where test rows end if both children are leaves of all trees of a branch."""
    cdef Py_ssize_t i, j, part
    cdef int32_t member, fold, n_bins
    cdef const Record *record
    cdef const Split *split
    cdef const uint8_t *bins
    for i in range(branch.n_trees):
        member = branch.members[i]
        fold = forest.own[node.trees[member]]
        if fold < 0:
            continue
        record = &forest.records[node.records[member]]
        split = &node.splits[member]
        bins = forest.bins + split.feature * forest.n_rows
        n_bins = forest.n_bins[split.feature]
        part = part_of(node, fold)
        for j in range(node.bounds[part], node.bounds[part + 1]):
            forest.leaf[node.rows.of[j]] = (
                record.left if goes_left(split, n_bins, bins[node.rows.of[j]]) else record.right
            )
