"""Trees with milder settings than those that were grown: where the rows end, without the rows.

Every record knows its depth, its rows and its decrease of impurity, so a grown forest answers any smaller max_depth
and any larger min_samples_split, min_impurity_decrease and ccp_alpha. Parents come before their children.

The tree of least cost under a penalty alpha per leaf (Breiman et al. 1984) follows from the leaves up. With d(t) the
decrease at t, the gain of what is below t over a leaf is
    g(t) = d(t) + max(0, g(left)) + max(0, g(right)) - alpha,
and t becomes a leaf where g(t) <= 0.
"""

from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint64_t

import numpy as np

from optuna_treecv._kernels.records cimport RECORD_BYTES
from optuna_treecv._kernels.records cimport Record
from optuna_treecv._kernels.records cimport epsilon


cdef Py_ssize_t count(const uint8_t [::1] records) except -1:
    if records.shape[0] % RECORD_BYTES:
        raise ValueError("records must be the bytes of whole records.")
    return records.shape[0] // RECORD_BYTES


cdef void find_stops(
    const Record *records,
    Py_ssize_t n,
    int32_t max_depth,
    const int64_t *min_split,
    double min_decrease,
    double alpha,
    double *gains,              # (n,), room; NULL where alpha is 0
    int32_t *stop,              # OUT
) noexcept nogil:
    cdef const Record *record
    cdef Py_ssize_t i
    cdef double gain
    cdef bint goes_on
    # stop[i] = 0 for leaves, for a moment, and 1 for nodes that are split.
    for i in range(n):
        record = &records[i]
        stop[i] = (
            record.left >= 0
            and record.depth < max_depth
            and record.n_rows >= min_split[record.tree]
            and record.decrease + epsilon() >= min_decrease
        )
    if gains != NULL:
        for i in range(n - 1, -1, -1):
            gains[i] = 0
            if stop[i]:
                record = &records[i]
                gain = record.decrease + gains[record.left] + gains[record.right] - alpha
                if gain > 0:
                    gains[i] = gain
                else:
                    stop[i] = 0
    for i in range(n):
        record = &records[i]
        goes_on = stop[i]
        # A parent has its final number already: its own if it was reached and is split, or is where paths end.
        if record.parent < 0:
            stop[i] = <int32_t> i
        elif stop[record.parent] < 0:
            stop[i] = <int32_t> i
        else:
            stop[i] = stop[record.parent]
            continue
        if goes_on:
            stop[i] = -1
    for i in range(n):
        if stop[i] < 0:
            stop[i] = <int32_t> i


def prune(
    const uint8_t [::1] records,        # IN, the bytes of the records
    int32_t max_depth,
    const int64_t [::1] min_split,      # IN, (n_trees,), rows that a node must have to be split
    double min_decrease,
    double alpha,
    int32_t [::1] stop,                 # OUT, (n_records,)
):
    """Write for each record the one where its path from the root ends, itself if the path leads further.

    Parameters
    ----------
    As above. Trees that are grown with these settings end there too.
    """
    cdef Py_ssize_t n = count(records)
    cdef double [::1] gains = np.empty(n if alpha > 0 else 0)
    if stop.shape[0] != n:
        raise ValueError("stop must have one entry per record.")
    with nogil:
        find_stops(
            <const Record *> &records[0], n, max_depth, &min_split[0], min_decrease, alpha,
            &gains[0] if alpha > 0 else NULL, &stop[0],
        )


def preorder(
    const uint8_t [::1] records,        # IN, the bytes of the records
    Py_ssize_t root,                    # a record
    const int32_t [::1] stop,           # IN, (n_records,), from ``prune``
    int32_t [::1] order,                # OUT, (n_records,), the records of one tree, left subtrees first
):
    """Return how many nodes the tree has that ``prune`` leaves."""
    cdef Py_ssize_t n = count(records)
    cdef Py_ssize_t n_waiting = 1, n_found = 0
    cdef const Record *record
    cdef int32_t [::1] waiting = np.empty(n + 1, np.int32)
    cdef int32_t i
    if stop.shape[0] != n or order.shape[0] != n or not 0 <= root < n:
        raise ValueError("stop and order must have one entry per record, and root must be one of them.")
    with nogil:
        waiting[0] = <int32_t> root
        while n_waiting > 0:
            n_waiting -= 1
            i = waiting[n_waiting]
            record = <const Record *> &records[i * RECORD_BYTES]
            order[n_found] = i
            n_found += 1
            if record.left >= 0 and stop[record.left] == record.left:
                waiting[n_waiting] = record.right
                waiting[n_waiting + 1] = record.left
                n_waiting += 2
    return n_found


def find_leaves(
    const uint8_t [:, ::1] bins,        # IN, (n_features, n_rows)
    const uint8_t [::1] nodes,          # IN, the bytes of the records of one tree, the root first
    const uint64_t [:, ::1] sets,       # IN, (n_sets, 4)
    const int32_t [::1] n_bins,         # IN, (n_features,), without the one of missing values
    int32_t [::1] leaf,                 # OUT, (n_rows,)
):
    """Write the record where each row ends."""
    cdef Py_ssize_t i
    cdef int32_t at
    cdef const Record *records = <const Record *> &nodes[0]
    cdef const Record *record
    cdef uint8_t b
    cdef bint is_left
    if leaf.shape[0] != bins.shape[1] or n_bins.shape[0] != bins.shape[0]:
        raise ValueError("leaf must have one entry per row, n_bins one per feature.")
    with nogil:
        for i in range(leaf.shape[0]):
            at = 0
            while records[at].left >= 0:
                record = &records[at]
                b = bins[record.feature, i]
                if record.left_set >= 0:
                    is_left = (sets[record.left_set, b >> 6] >> (b & 63)) & 1
                elif b >= n_bins[record.feature]:
                    is_left = record.missing_left
                else:
                    is_left = b <= record.bin
                at = record.left if is_left else record.right
            leaf[i] = at
