"""Finds the best split of one tree in one node by one feature.

An *entry* holds the sums over the rows of one bin as int32 or int64:
    classification  (n_1, ..., n_C), the number of rows of each class; with row weights (n, w_1, ..., w_C)
    regression      (n, S), where S is the sum of the targets; with row weights (n, W, S)
Here n is the number of rows with a positive weight. The entry of the training rows of a tree is the entry of all rows
of the node (total) minus the entry of the fold that the tree holds out (held). Splits maximise the quality of both
children:
    Gini            sum_c m_c^2 / m,                m_c = factor_c w_c (or n_c),  m = sum_c m_c
    entropy         sum_c m_c ln m_c - m ln m
    squared error   (S - a W)^2 / W,                a = S / W of the node, as an integer
Subtracting the integer a keeps squares small without any rounding. The gain of a split is the sum of the qualities of
both children. Sums are integers, so the gain does not depend on the order in which rows are added or subtracted.
Products are computed in float64, in a fixed order.
"""

from libc.math cimport INFINITY
from libc.stdint cimport int16_t
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint64_t

from optuna_treecv._kernels.exp_log cimport logarithm
from optuna_treecv._kernels.order cimport chain
from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv._kernels.vec8 cimport seldom


ctypedef fused Count:
    int32_t
    int64_t


cdef enum:
    MAX_BINS = 256                # the maximum number of bins of a feature, including the bin of missing values
    MAX_COUNTED_ROWS = 32767      # the maximum number of rows that an int16 can count; its square fits into an int32
    MAX_COUNTED_CLASSES = 128     # the maximum number of classes of ``scan_counts``; a multiple of 8
    MAX_ROWS_WITHOUT_TABLES = 256  # nodes with at most this number of rows have no tables


# A split, which sends some bins of a feature left.
cdef struct Split:
    double gain                 # -infinity if there is no split
    int32_t feature
    bint has_priority           # whether ``priority`` was computed, at the first tie between features
    uint64_t priority
    int32_t bin                 # for an ordered feature, bins up to this one go left
    bint missing_left           # whether missing values go left
    bint by_set                 # whether the feature is categorical
    uint64_t left_set[4]        # one bit per category; 1 if it goes left


# The search for the split of one tree in one node.
cdef struct Search:
    Py_ssize_t n_classes        # 0 in regression
    Py_ssize_t size             # the number of sums in an entry
    bint weighted
    bint entropy
    bint counts                 # whether ``scan_counts`` applies: many classes, Gini impurity and no weights
    const double *factors       # (n_classes,), the class weights of the tree
    int64_t min_leaf            # the minimum number of rows of a child
    double min_mass             # the minimum of m or W of a child
    uint64_t path               # a hash of the path to the node, which breaks ties between features
    const int64_t *node         # (size,), the sums over the training rows of the tree in the node
    int64_t centre              # a
    int64_t *left               # (size,), workspace
    int64_t *other              # (size,), workspace
    int64_t *best_left          # OUT, (size,), the sums of the left child
    Split *best                 # INOUT, the best split so far


cdef inline int64_t count_rows(const Search *search, const int64_t *sums) noexcept nogil:
    """Return the number of rows that were summed."""
    cdef int64_t n = 0
    cdef Py_ssize_t c
    if search.weighted or search.n_classes == 0:
        return sums[0]
    for c in range(search.n_classes):
        n += sums[c]
    return n


cdef inline double sum_mass(const Search *search, const int64_t *sums) noexcept nogil:
    """Return the total weight m or W of the rows that were summed."""
    cdef double m = 0
    cdef Py_ssize_t c
    if search.n_classes == 0:
        return <double> sums[search.weighted]
    for c in range(search.n_classes):
        m += search.factors[c] * <double> sums[search.weighted + c]
    return m


cdef inline bint is_pure(const Search *search, const int64_t *sums) noexcept nogil:
    """Return whether all rows are of one class. In regression return False, because sums do not show this."""
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


cdef inline double x_log_x(double x) noexcept nogil:
    return x * logarithm(x) if x > 0 else 0


cdef inline double quality_of(const Search *search, const int64_t *sums) noexcept nogil:
    """Return the quality of a node with these sums, whose mass must be positive."""
    cdef Py_ssize_t c
    cdef double q = 0, m = 0, x
    if search.n_classes == 0:
        m = <double> sums[search.weighted]
        x = <double> (sums[search.weighted + 1] - search.centre * sums[search.weighted])
        return x * x / m
    for c in range(search.n_classes):
        x = search.factors[c] * <double> sums[search.weighted + c]
        q += x_log_x(x) if search.entropy else x * x
        m += x
    return q - x_log_x(m) if search.entropy else q / m


cdef inline seldom gain_in_entropy(const Search *search, const int64_t *left, double *gain) noexcept nogil:
    """Write the gain of a split by entropy.

    The function is not inlined, because its logarithms in each loop would double the compile time of this file.
    """
    cdef double q_left = 0, q_right = 0, m_left = 0, m_right = 0, x, y
    cdef Py_ssize_t c
    cdef Py_ssize_t first = search.weighted
    for c in range(search.n_classes):
        x = search.factors[c] * <double> left[first + c]
        y = search.factors[c] * <double> (search.node[first + c] - left[first + c])
        m_left += x
        m_right += y
        q_left += x_log_x(x)
        q_right += x_log_x(y)
    gain[0] = -INFINITY
    if m_left > 0 and m_right > 0 and m_left >= search.min_mass and m_right >= search.min_mass:
        gain[0] = (q_left - x_log_x(m_left)) + (q_right - x_log_x(m_right))


cdef inline double gain_of(const Search *search, const int64_t *left) noexcept nogil:
    """Return the gain of a split, or -infinity if a child has too few rows or too little weight."""
    cdef double q_left = 0, q_right = 0, m_left = 0, m_right = 0, x, y
    cdef int64_t n_left, n_right, w, s
    cdef Py_ssize_t c
    cdef Py_ssize_t first = search.weighted
    if search.n_classes == 0:
        n_left, n_right = left[0], search.node[0] - left[0]
        if n_left < search.min_leaf or n_right < search.min_leaf:
            return -INFINITY
        w = left[first]
        if <double> w < search.min_mass or <double> (search.node[first] - w) < search.min_mass:
            return -INFINITY
        s = left[first + 1]
        x = <double> (s - search.centre * w)
        y = <double> ((search.node[first + 1] - s) - search.centre * (search.node[first] - w))
        return x * x / <double> w + y * y / <double> (search.node[first] - w)
    if search.min_leaf > 1:
        n_left = count_rows(search, left)
        n_right = count_rows(search, search.node) - n_left
        if n_left < search.min_leaf or n_right < search.min_leaf:
            return -INFINITY
    if search.entropy:
        gain_in_entropy(search, left, &q_left)
        return q_left
    for c in range(search.n_classes):
        x = search.factors[c] * <double> left[first + c]
        y = search.factors[c] * <double> (search.node[first + c] - left[first + c])
        m_left += x
        m_right += y
        q_left += x * x
        q_right += y * y
    if not (m_left > 0 and m_right > 0) or m_left < search.min_mass or m_right < search.min_mass:
        return -INFINITY
    return q_left / m_left + q_right / m_right


cdef inline bint wins_tie(const Search *search, int32_t feature) noexcept nogil:
    """Return whether a feature has a higher random priority in this node than the feature of the best split."""
    cdef Split *best = search.best
    if feature == best.feature:
        return False
    if not best.has_priority:
        best.priority = chain(search.path, <uint64_t> best.feature)
        best.has_priority = True
    return chain(search.path, <uint64_t> feature) > best.priority


cdef inline bint wins(const Search *search, double gain, int32_t feature) noexcept nogil:
    """Return whether a gain is the largest so far, or equals it and wins the tie."""
    if gain == -INFINITY or gain < search.best.gain:
        return False
    return gain > search.best.gain or wins_tie(search, feature)


cdef inline void accept(Search *search, double gain, const int64_t *left, int32_t feature) noexcept nogil:
    """Make a split the best one so far."""
    cdef Py_ssize_t i
    search.best.gain = gain
    if feature != search.best.feature:
        search.best.feature = feature
        search.best.has_priority = False
    for i in range(search.size):
        search.best_left[i] = left[i]


cdef inline bint propose(Search *search, const int64_t *left, int32_t feature) noexcept nogil:
    """Accept a split if it is the best one so far, and return whether it was accepted."""
    cdef double gain = gain_of(search, left)
    if not wins(search, gain, feature):
        return False
    accept(search, gain, left, feature)
    return True


cdef inline void split_at(Search *search, int32_t bin, bint missing_left) noexcept nogil:
    """Set the threshold of the split that was just accepted: bins up to this one go left."""
    search.best.by_set = False
    search.best.bin = bin
    search.best.missing_left = missing_left


cdef inline bint is_larger(const Search *search, const int64_t *left) noexcept nogil:
    """Return whether the left child has more than half of the rows."""
    cdef int64_t n_left = count_rows(search, left)
    return n_left > count_rows(search, search.node) - n_left


cdef inline int64_t read_entry(
    const Search *search,
    const Count *total,         # the entries of the bins of a feature
    const Count *held,          # the entries of the held-out fold, or NULL
    Py_ssize_t bin,
    int64_t *out,               # OUT, (size,)
) noexcept nogil:
    """Write the entry of a bin over the training rows of the tree, and return the number of these rows."""
    cdef Py_ssize_t at = bin * search.size
    cdef Py_ssize_t i
    for i in range(search.size):
        out[i] = total[at + i] - (held[at + i] if held != NULL else 0)
    return count_rows(search, out)


cdef inline void try_threshold(
    Search *search, int32_t feature, int32_t low, int32_t high, int64_t n_missing, const int64_t *missing
) noexcept nogil:
    """Try the splits between two bins with rows; ``search.left`` holds the sums up to the lower bin.

    Bins between these two have no rows; the threshold is in the middle of them.
    """
    cdef Py_ssize_t i
    if propose(search, search.left, feature):
        split_at(search, (low + high - 1) // 2, n_missing == 0 and is_larger(search, search.left))
    if n_missing == 0:
        return
    for i in range(search.size):
        search.other[i] = search.left[i] + missing[i]
    if propose(search, search.other, feature):
        split_at(search, (low + high - 1) // 2, True)


cdef inline inlined scan_ordered(
    Search *search,
    int32_t feature,
    int32_t n_bins,             # this is also the bin of missing values
    bint has_missing,
    const uint8_t *bins,        # the bins that may have rows, ascending
    Py_ssize_t n_occurring,
    const Count *total,         # the entries of the bins of the feature
    const Count *held,          # the entries of the held-out fold, or NULL
    int64_t *entry,             # (size,), workspace
    int64_t *missing,           # (size,), workspace
) noexcept nogil:
    """Try all thresholds of an ordered feature; inlined, so that a constant size unrolls the loops."""
    cdef int64_t n_missing = 0
    cdef int32_t last = -1
    cdef Py_ssize_t i, j
    if has_missing:
        n_missing = read_entry(search, total, held, n_bins, missing)
    for i in range(search.size):
        search.left[i] = 0
    for j in range(n_occurring):
        if bins[j] == n_bins:
            continue
        if read_entry(search, total, held, bins[j], entry) == 0:
            continue
        if last >= 0:
            try_threshold(search, feature, last, bins[j], n_missing, missing)
        for i in range(search.size):
            search.left[i] += entry[i]
        last = bins[j]
    if n_missing > 0 and last >= 0 and propose(search, search.left, feature):
        split_at(search, n_bins - 1, False)


cdef inline void scan_counts(
    Search *search,             # with at most MAX_COUNTED_ROWS rows and MAX_COUNTED_CLASSES classes
    int32_t feature,
    const uint8_t *bins,        # the bins that may have rows, ascending; no missing values
    Py_ssize_t n_occurring,
    const Count *total,
    const Count *held,
) noexcept nogil:
    """Try all thresholds of a feature as ``scan_ordered`` does, if sums are counts of many classes.

    Counts of 16 bits are multiplied and added eight at a time on every CPU. The sums of their squares are integers
    below 2^31, so the gains are bitwise equal to those of ``gain_of``.
    """
    cdef int16_t node[MAX_COUNTED_CLASSES]
    cdef int16_t left[MAX_COUNTED_CLASSES]
    cdef int16_t entry[MAX_COUNTED_CLASSES]
    cdef Py_ssize_t width = (search.n_classes + 7) & ~<Py_ssize_t> 7
    cdef int32_t n_right = <int32_t> count_rows(search, search.node)
    cdef int32_t n_left = 0
    cdef int32_t last = -1
    cdef int32_t n, squares_left, squares_right
    cdef int16_t right
    cdef double gain
    cdef Py_ssize_t c, j
    cdef const Count *of_total
    cdef const Count *of_held
    for c in range(width):
        node[c] = <int16_t> search.node[c] if c < search.n_classes else 0
        left[c] = entry[c] = 0
    for j in range(n_occurring):
        of_total = total + bins[j] * search.n_classes
        n = 0
        if held != NULL:
            of_held = held + bins[j] * search.n_classes
            for c in range(search.n_classes):
                entry[c] = <int16_t> (of_total[c] - of_held[c])
        else:
            for c in range(search.n_classes):
                entry[c] = <int16_t> of_total[c]
        for c in range(width):
            n += entry[c]
        if n == 0:
            continue
        if last >= 0 and min(n_left, n_right) >= search.min_leaf and min(n_left, n_right) >= search.min_mass:
            squares_left = squares_right = 0
            for c in range(width):
                right = node[c] - left[c]
                squares_left += <int32_t> left[c] * left[c]
                squares_right += <int32_t> right * right
            gain = <double> squares_left / n_left + <double> squares_right / n_right
            if wins(search, gain, feature):
                for c in range(search.n_classes):
                    search.left[c] = left[c]
                accept(search, gain, search.left, feature)
                split_at(search, (last + bins[j] - 1) // 2, n_left > n_right)
        for c in range(width):
            left[c] = left[c] + entry[c]
        n_left += n
        n_right -= n
        last = bins[j]


cdef inline double target_of(const Search *search, const int64_t *sums) noexcept nogil:
    """Return the mean target of a category, by which categories are ordered."""
    cdef Py_ssize_t first = search.weighted
    cdef double a, b
    if search.n_classes == 0:
        return <double> (sums[first + 1] - search.centre * sums[first]) / <double> sums[first]
    a = search.factors[0] * <double> sums[first]
    b = search.factors[1] * <double> sums[first + 1]
    return b / (a + b) if a + b > 0 else 0


cdef inline void propose_set(
    Search *search,
    const int64_t *left,
    int32_t feature,
    const uint8_t *codes,       # the categories with rows
    Py_ssize_t n_codes,
    Py_ssize_t first,           # ``codes[first:last]`` go left
    Py_ssize_t last,
    int32_t n_bins,
    int64_t n_missing,
) noexcept nogil:
    """Try a split of categories. Categories without rows go the way of missing values."""
    cdef Py_ssize_t i
    cdef bint missing_left
    if not propose(search, left, feature):
        return
    missing_left = is_larger(search, left)
    if n_missing > 0:
        missing_left = False
        for i in range(first, last):
            missing_left = missing_left or codes[i] == n_bins
    search.best.by_set = True
    search.best.bin = -1
    search.best.missing_left = missing_left
    for i in range(4):
        search.best.left_set[i] = ~<uint64_t> 0 if missing_left else 0
    for i in range(n_codes):
        search.best.left_set[codes[i] >> 6] &= ~(<uint64_t> 1 << (codes[i] & 63))
    for i in range(first, last):
        search.best.left_set[codes[i] >> 6] |= <uint64_t> 1 << (codes[i] & 63)


cdef inline void search_categories(
    Search *search,
    int32_t feature,
    int32_t n_bins,
    const uint8_t *bins,        # the codes that may have rows, ascending; missing values are a separate category
    Py_ssize_t n_occurring,
    const Count *total,
    const Count *held,
    int64_t *entry,             # (size,), workspace
) noexcept nogil:
    """Try splits of a categorical feature.

    Categories are ordered by their mean target. With more than two classes, each category is tried against all others.
    """
    cdef uint8_t codes[MAX_BINS]
    cdef double means[MAX_BINS]
    cdef Py_ssize_t n_codes = 0
    cdef int64_t n_missing = 0, n
    cdef Py_ssize_t i, j
    cdef double mean
    cdef bint is_ordered = search.n_classes <= 2
    for j in range(n_occurring):
        n = read_entry(search, total, held, bins[j], entry)
        if n == 0:
            continue
        if bins[j] == n_bins:
            n_missing = n
        mean = target_of(search, entry) if is_ordered else 0
        i = n_codes
        while i > 0 and means[i - 1] > mean:
            means[i] = means[i - 1]
            codes[i] = codes[i - 1]
            i -= 1
        means[i] = mean
        codes[i] = bins[j]
        n_codes += 1
    if n_codes < 2:
        return
    for i in range(search.size):
        search.left[i] = 0
    for j in range(n_codes if not is_ordered else n_codes - 1):
        read_entry(search, total, held, codes[j], entry)
        if not is_ordered:
            propose_set(search, entry, feature, codes, n_codes, j, j + 1, n_bins, n_missing)
            continue
        for i in range(search.size):
            search.left[i] += entry[i]
        propose_set(search, search.left, feature, codes, n_codes, 0, j + 1, n_bins, n_missing)
