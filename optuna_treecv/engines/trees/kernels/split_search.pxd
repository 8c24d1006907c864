"""What the search for the best split of one tree in one node reads and writes (``forest_search.pyx``).

An *entry* has the sums over the rows of one bin, int32 or int64:
    classes         (n_1, ..., n_C), the rows of each class; with weights of rows (n, w_1, ..., w_C)
    numbers         (n, S) with S the sum of the targets; with weights (n, W, S)
where n counts rows of a weight above 0. The entries of a tree's training rows are those of all rows of a node (total)
minus those of the tree's own fold (held). The quality of a child, which is to be large:
    Gini            sum_c m_c^2 / m,                m_c = factor_c w_c (or n_c),  m = sum_c m_c
    entropy         sum_c m_c ln m_c - m ln m
    squared error   (S - a W)^2 / W,                a = S / W of the node, as an integer
The integer a makes squares small without any rounding. The gain of a split is the sum over both children, and the
largest gain wins. Sums are integers, so that the gain does not depend on the order in which rows were added or
subtracted; products are taken in float64, in one order.
"""

from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint64_t


ctypedef fused Count:
    int32_t
    int64_t


cdef enum:
    MOST_BINS = 256             # of a feature, with the one of missing values
    MOST_COUNTED = 32767        # rows that an int16 counts; their square is an int32
    COUNTED_CLASSES = 128       # a multiple of 8
    SMALL = 256                 # nodes of at most so many rows have no tables


# A split: which bins go left.
cdef struct Split:
    double gain                 # -infinity: there is none
    int32_t feature
    bint has_priority           # drawn at the first tie of features
    uint64_t priority
    int32_t bin                 # of an ordered feature: bins up to this one go left
    bint missing_left           # so does the bin of missing values
    bint by_set                 # of a categorical feature:
    uint64_t left_set[4]        # a bit for each code that goes left


# The search for the split of one tree in one node.
cdef struct Search:
    Py_ssize_t n_classes        # 0: numbers
    Py_ssize_t size             # numbers in an entry
    bint weighted
    bint entropy
    bint counts                 # sums are counts of many classes, whose squares are summed: no weights, Gini's index
    const double *factors       # (n_classes,), the tree's weights of classes
    int64_t min_leaf            # rows that each child must have
    double min_mass             # likewise m or W
    uint64_t path               # the position of the node, which decides ties between features
    const int64_t *node         # (size,), the sums of the tree's training rows in the node
    int64_t centre              # a
    int64_t *left               # (size,), room
    int64_t *other              # (size,), room
    int64_t *best_left          # OUT, (size,), the sums of the left child
    Split *best                 # INOUT, the best split so far


cdef inline int64_t rows_in(const Search *search, const int64_t *sums) noexcept nogil:
    """Return the number of rows behind sums."""
    cdef int64_t n = 0
    cdef Py_ssize_t c
    if search.weighted or search.n_classes == 0:
        return sums[0]
    for c in range(search.n_classes):
        n += sums[c]
    return n


cdef inline double mass_in(const Search *search, const int64_t *sums) noexcept nogil:
    """Return m or W."""
    cdef double m = 0
    cdef Py_ssize_t c
    if search.n_classes == 0:
        return <double> sums[search.weighted]
    for c in range(search.n_classes):
        m += search.factors[c] * <double> sums[search.weighted + c]
    return m


cdef inline bint is_pure(const Search *search, const int64_t *sums) noexcept nogil:
    """Return whether all rows are of one class; of numbers this is not seen from sums."""
    cdef Py_ssize_t c, n = 0
    if search.n_classes == 0:
        return False
    for c in range(search.n_classes):
        n += sums[search.weighted + c] > 0 and search.factors[c] > 0
    return n <= 1


cdef inline bint goes_left(const Split *split, int32_t n_bins, int32_t bin) noexcept nogil:
    """Return whether the rows of a bin go left."""
    if split.by_set:
        return (split.left_set[bin >> 6] >> (bin & 63)) & 1
    return split.missing_left if bin == n_bins else bin <= split.bin
