"""The search for the split of one tree in a node of few rows.

Here tables cost more than the rows: most bins are empty, and most classes have no row. So rows are sorted by their
bin, anew for each feature, and classes are numbered anew: those without rows would add zeros to every quality. The
sums are the same integers as those of ``split_search.pxd``, and so the split is the same.
"""

from libc.stdint cimport int16_t
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint16_t

from optuna_treecv._kernels.split_search cimport end_ordered
from optuna_treecv._kernels.split_search cimport propose
from optuna_treecv._kernels.split_search cimport Search
from optuna_treecv._kernels.vec8 cimport inlined


cdef enum:
    FEW = 32                    # rows; a power of 2, and 256 FEW is an int16
    FEW_SUMS = FEW + 2


# The rows of a node, and the sums of those classes that they have.
cdef struct FewRows:
    Py_ssize_t n
    int32_t rows[FEW]           # their numbers
    int32_t classes[FEW]        # numbered anew
    int64_t targets[FEW]
    int64_t weights[FEW]
    uint16_t order[FEW]          # FEW bin + place, ascending
    int32_t sum_of[FEW_SUMS]    # where each sum is among those of all classes
    double factors[FEW]
    int64_t node[FEW_SUMS]
    int64_t left[FEW_SUMS]
    int64_t other[FEW_SUMS]
    int64_t missing[FEW_SUMS]
    int64_t best_left[FEW_SUMS]


cdef inline void read_few(
    const Search *search,
    FewRows *few,               # INOUT, has its rows
    Search *own,                # OUT, the same search over the sums of these rows
    const int32_t *classes,     # (n_rows,), or NULL
    const int64_t *targets,     # (n_rows,), or NULL
    const int64_t *weights,     # (n_rows,), or NULL
) noexcept nogil:
    """Read what is summed of rows, and number their classes anew, in their order."""
    cdef Py_ssize_t first = search.weighted
    cdef Py_ssize_t n_sums = first + (2 if classes == NULL else 0)
    cdef Py_ssize_t i, j, k
    cdef int32_t place
    for i in range(n_sums):
        few.sum_of[i] = <int32_t> i
    for i in range(few.n):
        if weights != NULL:
            few.weights[i] = weights[few.rows[i]]
        if classes == NULL:
            few.targets[i] = targets[few.rows[i]]
            continue
        place = <int32_t> first + classes[few.rows[i]]
        j = first
        while j < n_sums and few.sum_of[j] < place:
            j += 1
        if j == n_sums or few.sum_of[j] != place:
            k = n_sums
            while k > j:
                few.sum_of[k] = few.sum_of[k - 1]
                k -= 1
            few.sum_of[j] = place
            n_sums += 1
    own[0] = search[0]
    own.size = n_sums
    own.node, own.left, own.other, own.best_left = few.node, few.left, few.other, few.best_left
    for i in range(n_sums):
        few.node[i] = search.node[few.sum_of[i]]
    if classes == NULL:
        return
    own.n_classes = n_sums - first
    own.factors = few.factors
    for i in range(own.n_classes):
        few.factors[i] = search.factors[few.sum_of[first + i] - first]
    for i in range(few.n):
        j = first
        while few.sum_of[j] - first != classes[few.rows[i]]:
            j += 1
        few.classes[i] = <int32_t> (j - first)


cdef inline void sort_by_bin(FewRows *few, const uint8_t *bins) noexcept nogil:
    """Sort by counting how many keys are smaller, eight at a time; no jump depends on the bins."""
    cdef Py_ssize_t i, j, begin
    cdef int16_t keys[FEW]
    cdef int16_t n_smaller[8]
    cdef int16_t key
    for i in range(few.n):
        keys[i] = <int16_t> (bins[few.rows[i]] * FEW + i)
    for i in range(few.n, (few.n + 7) & ~<Py_ssize_t> 7):
        keys[i] = 0
    begin = 0
    while begin < few.n:
        for i in range(8):
            n_smaller[i] = 0
        for j in range(few.n):
            key = keys[j]
            for i in range(8):
                n_smaller[i] += key < keys[begin + i]
        for i in range(min(8, few.n - begin)):
            few.order[n_smaller[i]] = <uint16_t> keys[begin + i]
        begin += 8


cdef inline void add_few(const Search *search, const FewRows *few, int32_t place, int64_t *sums) noexcept nogil:
    """Add a row to sums."""
    cdef int64_t w = 1
    if search.weighted:
        w = few.weights[place]
        sums[0] += 1
    if search.n_classes > 0:
        sums[search.weighted + few.classes[place]] += w
    else:
        sums[search.weighted] += w
        sums[search.weighted + 1] += w * few.targets[place]


cdef inline inlined scan_few(
    Search *search, FewRows *few, int32_t feature, const uint8_t *bins, int32_t n_bins
) noexcept nogil:
    """Try all thresholds of an ordered feature; inlined, so that a constant size unrolls the loops."""
    cdef Py_ssize_t i
    cdef Py_ssize_t n = few.n
    cdef int32_t bin
    cdef int32_t last = -1
    sort_by_bin(few, bins)
    if few.order[0] // FEW == few.order[n - 1] // FEW:
        return
    if few.order[n - 1] // FEW == n_bins:
        for i in range(search.size):
            few.missing[i] = 0
        while few.order[n - 1] // FEW == n_bins:
            n -= 1
            add_few(search, few, few.order[n] % FEW, few.missing)
    for i in range(search.size):
        search.left[i] = 0
    for i in range(n):
        bin = few.order[i] // FEW
        if bin != last and i > 0:
            end_ordered(search, feature, last, bin, few.n - n, few.missing)
        add_few(search, few, few.order[i] % FEW, search.left)
        last = bin
    if n < few.n and propose(search, search.left, feature):
        search.best.by_set = False
        search.best.bin = n_bins - 1
        search.best.missing_left = False


cdef inline void search_few(
    Search *search,
    FewRows *few,
    int32_t feature,
    const uint8_t *bins,        # (n_rows,)
    int32_t n_bins,             # the bin of missing values is behind them
) noexcept nogil:
    """Try all thresholds of an ordered feature, with code of their own for the commonest kinds of sums."""
    if search.weighted or search.entropy or search.n_classes > 2:
        scan_few(search, few, feature, bins, n_bins)
    elif search.n_classes == 2:
        search.n_classes = search.size = 2
        search.weighted = search.entropy = False
        scan_few(search, few, feature, bins, n_bins)
    else:
        search.n_classes, search.size = 0, 2
        search.weighted = search.entropy = False
        scan_few(search, few, feature, bins, n_bins)
