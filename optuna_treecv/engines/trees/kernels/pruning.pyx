"""Prunes grown trees to stricter limits, without reading rows.

Every record has the depth, the number of rows and the decrease of impurity of its node. A grown forest therefore
contains the trees for any smaller max_depth and any larger min_samples_split, min_impurity_decrease and ccp_alpha.
Records are ordered by tree, with left subtrees before right ones. The descendants of a record are therefore the next
``size - 1`` records, which are skipped if the record becomes a leaf.

Cost-complexity pruning with a penalty alpha per leaf (Breiman et al. 1984) proceeds from the leaves to the root. If
d(t) is the decrease of impurity by the split of node t, the gain of the subtree at t over a leaf is
    g(t) = d(t) + max(0, g(left)) + max(0, g(right)) - alpha,
and t becomes a leaf if g(t) <= 0.
"""

from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint64_t

import numpy as np

from optuna_treecv.engines.trees.kernels.records cimport Record
from optuna_treecv.engines.trees.kernels.records cimport epsilon


cdef Py_ssize_t count(const uint8_t [::1] records) except -1:
    if records.shape[0] % <Py_ssize_t> sizeof(Record):
        raise ValueError("records must be the bytes of whole records.")
    return records.shape[0] // <Py_ssize_t> sizeof(Record)


def arrange(
    const uint8_t [::1] records,        # IN, the bytes of the records, parents before children
    const int64_t [::1] roots,          # IN, (n_trees,)
    int32_t [::1] order,                # OUT, (n_records,), the old index of each record in the new order
    int32_t [::1] sizes,                # OUT, (n_records,), the number of records of each subtree, in the new order
    int32_t [::1] place,                # OUT, (n_records + 1,), the new index of each record; the last entry is -1
    uint8_t [::1] arranged,             # OUT, the bytes of the records in the new order
):
    """Sort records by tree, with each node before its left subtree and the left subtree before the right one."""
    cdef Py_ssize_t n = count(records)
    cdef Py_ssize_t n_waiting, n_found = 0
    cdef Py_ssize_t i, root
    cdef int32_t index
    cdef const Record *record
    cdef int32_t [::1] waiting = np.empty(n + 1, np.int32)
    cdef int32_t [::1] of_record = np.empty(n, np.int32)
    cdef Record *moved = <Record *> &arranged[0]
    if order.shape[0] != n or sizes.shape[0] != n or place.shape[0] != n + 1:
        raise ValueError("order, sizes and place must have one entry per record.")
    if arranged.shape[0] != records.shape[0]:
        raise ValueError("arranged must have the bytes of all records.")
    with nogil:
        for i in range(n - 1, -1, -1):
            record = <const Record *> &records[i * <Py_ssize_t> sizeof(Record)]
            of_record[i] = 1
            if record.left >= 0:
                of_record[i] += of_record[record.left] + of_record[record.right]
        for root in range(roots.shape[0]):
            waiting[0] = <int32_t> roots[root]
            n_waiting = 1
            while n_waiting > 0:
                n_waiting -= 1
                index = waiting[n_waiting]
                record = <const Record *> &records[index * <Py_ssize_t> sizeof(Record)]
                order[n_found] = index
                place[index] = <int32_t> n_found
                sizes[n_found] = of_record[index]
                n_found += 1
                if record.left >= 0:
                    waiting[n_waiting] = record.right
                    waiting[n_waiting + 1] = record.left
                    n_waiting += 2
        place[n] = -1
        for i in range(n):
            moved[i] = (<const Record *> &records[0])[order[i]]
            if moved[i].left >= 0:
                moved[i].left = place[moved[i].left]
                moved[i].right = place[moved[i].right]
            if moved[i].parent >= 0:
                moved[i].parent = place[moved[i].parent]


cdef Py_ssize_t find_reached(
    const Record *records,
    const int32_t *sizes,
    Py_ssize_t n,
    int32_t max_depth,
    const int64_t *min_split,
    double min_decrease,
    double alpha,
    double *gains,              # (n,), workspace; NULL if alpha is 0
    int32_t *reached,           # OUT
    uint8_t *is_end,            # OUT
) noexcept nogil:
    """Do the work of ``prune`` and return the number of remaining records."""
    cdef const Record *record
    cdef Py_ssize_t i = 0, j, n_reached = 0, n_left = 0
    cdef Py_ssize_t skipped = 0
    cdef double gain
    while i < n:
        record = &records[i]
        reached[n_reached] = <int32_t> i
        is_end[n_reached] = not (
            record.left >= 0
            and record.depth < max_depth
            and record.n_rows >= min_split[record.tree]
            and record.decrease + epsilon() >= min_decrease
        )
        i += sizes[i] if is_end[n_reached] else 1
        n_reached += 1
    if gains == NULL:
        return n_reached
    for j in range(n_reached - 1, -1, -1):
        i = reached[j]
        gains[i] = 0
        if not is_end[j]:
            record = &records[i]
            gain = record.decrease + gains[record.left] + gains[record.right] - alpha
            if gain > 0:
                gains[i] = gain
            else:
                is_end[j] = True
    for j in range(n_reached):
        i = reached[j]
        if i < skipped:
            continue
        reached[n_left] = <int32_t> i
        is_end[n_left] = is_end[j]
        if is_end[j]:
            skipped = i + sizes[i]
        n_left += 1
    return n_left


def prune(
    const uint8_t [::1] records,        # IN, the bytes of the records
    const int32_t [::1] sizes,          # IN, (n_records,), from ``arrange``
    int32_t max_depth,
    const int64_t [::1] min_split,      # IN, (n_trees,), the minimum number of rows of a node that is split
    double min_decrease,
    double alpha,
    int32_t [::1] reached,              # OUT, (n_records,), the remaining records, ascending
    uint8_t [::1] is_end,               # OUT, (n_records,), whether each of them is a leaf
) -> int:
    """Write the records that remain under these limits, and return their number."""
    cdef Py_ssize_t n = count(records)
    cdef Py_ssize_t n_reached
    cdef double [::1] gains = np.empty(n if alpha > 0 else 0)
    if sizes.shape[0] != n or reached.shape[0] != n or is_end.shape[0] != n:
        raise ValueError("sizes, reached and is_end must have one entry per record.")
    with nogil:
        n_reached = find_reached(
            <const Record *> &records[0], &sizes[0], n, max_depth, &min_split[0], min_decrease, alpha,
            &gains[0] if alpha > 0 else NULL, &reached[0], &is_end[0],
        )
    return n_reached


def find_leaves(
    const uint8_t [:, ::1] bins,        # IN, (n_features, n_rows)
    const uint8_t [::1] nodes,          # IN, the bytes of the records of one tree, the root first
    const uint64_t [:, ::1] sets,       # IN, (n_sets, 4)
    const int32_t [::1] n_bins,         # IN, (n_features,), not counting the bin of missing values
    int32_t [::1] leaf,                 # OUT, (n_rows,)
):
    """Write the record of the leaf that each row reaches."""
    cdef Py_ssize_t i
    cdef int32_t index
    cdef const Record *records = <const Record *> &nodes[0]
    cdef const Record *record
    cdef uint8_t b
    cdef bint is_left
    if leaf.shape[0] != bins.shape[1] or n_bins.shape[0] != bins.shape[0]:
        raise ValueError("leaf must have one entry per row, n_bins one per feature.")
    with nogil:
        for i in range(leaf.shape[0]):
            index = 0
            while records[index].left >= 0:
                record = &records[index]
                b = bins[record.feature, i]
                if record.left_set >= 0:
                    is_left = (sets[record.left_set, b >> 6] >> (b & 63)) & 1
                elif b >= n_bins[record.feature]:
                    is_left = record.missing_left
                else:
                    is_left = b <= record.bin
                index = record.left if is_left else record.right
            leaf[i] = index
