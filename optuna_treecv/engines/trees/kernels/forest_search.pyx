"""Finds the best split of each tree in one node.

If the node has tables, all sums are known. Otherwise, the node has few rows: one small table per feature and held-out
fold is filled, and only the bins that occur are visited.

If only one tree is left and it has at most 32 training rows in the node, tables would take longer than the rows,
because most bins are empty and most classes have no row. Rows are then sorted by bin for each feature, and only
classes with rows are summed; the others would add zeros to every quality. The sums are the same integers, so the split
is the same.
"""

from libc.math cimport INFINITY
from libc.stdint cimport int16_t
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint16_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint64_t
from libc.string cimport memset

from optuna_treecv._kernels.vec8 cimport inlined
from optuna_treecv.engines.trees.kernels.forest_nodes cimport part_of
from optuna_treecv.engines.trees.kernels.forest_tables cimport add_rows
from optuna_treecv.engines.trees.kernels.forest_tables cimport gather
from optuna_treecv.engines.trees.kernels.forest_tables cimport number_tables
from optuna_treecv.engines.trees.kernels.split_search cimport MAX_BINS
from optuna_treecv.engines.trees.kernels.split_search cimport MAX_COUNTED_ROWS
from optuna_treecv.engines.trees.kernels.split_search cimport MAX_ROWS_WITHOUT_TABLES
from optuna_treecv.engines.trees.kernels.split_search cimport Search
from optuna_treecv.engines.trees.kernels.split_search cimport try_threshold
from optuna_treecv.engines.trees.kernels.split_search cimport propose
from optuna_treecv.engines.trees.kernels.split_search cimport quality_of
from optuna_treecv.engines.trees.kernels.split_search cimport count_rows
from optuna_treecv.engines.trees.kernels.split_search cimport scan_counts
from optuna_treecv.engines.trees.kernels.split_search cimport scan_ordered
from optuna_treecv.engines.trees.kernels.split_search cimport search_categories
from optuna_treecv.engines.trees.kernels.split_search cimport split_at


cdef enum:
    NO_SPLIT = -2               # in place of a feature: the tree is not split in this node
    MAX_FEW_ROWS = 32           # the maximum number of sorted rows; a power of 2; 256 times it fits into an int16
    MAX_FEW_SUMS = MAX_FEW_ROWS + 2


cdef inline void prepare_search(Forest *forest, Node *node, Py_ssize_t member) noexcept nogil:
    """Set up the search for the best split of one tree of a node."""
    cdef Search *search = &forest.search
    cdef int32_t tree = node.trees[member]
    cdef const int64_t *sums = node.sums + member * search.size
    if search.best == &node.splits[member]:
        return
    search.best = &node.splits[member]
    search.factors = forest.factors + tree * search.n_classes
    search.min_leaf = forest.min_leaf[tree]
    search.min_mass = forest.min_share * forest.masses[tree]
    search.path = node.path
    search.node = sums
    search.centre = 0
    if search.n_classes == 0 and sums[search.weighted] > 0:
        search.centre = sums[search.weighted + 1] / sums[search.weighted]
    search.best_left = node.lefts + member * search.size


cdef inline void search_feature(
    Forest *forest,
    Node *node,
    Py_ssize_t member,
    Py_ssize_t feature,
    const uint8_t *bins,
    Py_ssize_t n_occurring,
    const Count *total,
    const Count *held,
) noexcept nogil:
    """Try all splits of a tree by one feature. The most common kinds of sums have specialised code."""
    cdef Search *search = &forest.search
    cdef Search own
    cdef int64_t room[8]
    cdef int32_t f = <int32_t> feature
    cdef int32_t n_bins = forest.n_bins[feature]
    cdef bint has_missing = forest.has_missing[feature]
    if node.splits[member].feature == NO_SPLIT:
        return
    prepare_search(forest, node, member)
    if forest.is_categorical[feature]:
        search_categories(search, f, n_bins, bins, n_occurring, total, held, forest.entry)
        return
    if search.counts and not has_missing and count_rows(search, search.node) <= MAX_COUNTED_ROWS:
        scan_counts(search, f, bins, n_occurring, total, held)
        return
    if search.weighted or search.entropy or (search.n_classes != 2 and search.n_classes != 0):
        scan_ordered(search, f, n_bins, has_missing, bins, n_occurring, total, held, forest.entry, forest.missing)
        return
    own = search[0]
    own.weighted = own.entropy = False
    own.size = 2
    own.left, own.other = &room[0], &room[2]
    if search.n_classes == 2:
        own.n_classes = 2
        scan_ordered(&own, f, n_bins, has_missing, bins, n_occurring, total, held, &room[4], &room[6])
    else:
        own.n_classes = 0
        scan_ordered(&own, f, n_bins, has_missing, bins, n_occurring, total, held, &room[4], &room[6])


cdef void search_tables(Forest *forest, Node *node, Count of_type) noexcept nogil:
    """Find the best split of each tree from the tables of a node."""
    cdef Search *search = &forest.search
    cdef Py_ssize_t width = forest.slots[forest.n_features] * search.size
    cdef Py_ssize_t feature, member
    cdef Count *total
    cdef Count *held
    cdef Py_ssize_t n_slots
    for feature in range(forest.n_features):
        total = <Count *> node.tables + forest.slots[feature] * search.size
        n_slots = forest.slots[feature + 1] - forest.slots[feature]
        if n_slots < 2:
            continue
        for member in range(node.n_trees):
            held = total + node.held[member] * width if node.held[member] > 0 else NULL
            search_feature(forest, node, member, feature, forest.all_bins, n_slots, total, held)


cdef extern from "dispatch.h":
    int count_zeros "COUNT_ZEROS"(uint64_t x) noexcept nogil


cdef Py_ssize_t find_bins(
    const Node *node,
    const uint8_t *bins,        # (n_rows,), the bins of a feature
    uint8_t *occurring,             # OUT, the bins with rows in the node, ascending
) noexcept nogil:
    """Find the bins that occur in a node, and return their number."""
    cdef const int32_t *rows = node.rows.indices
    cdef uint64_t present[4]        # a bit for each bin
    cdef uint64_t left
    cdef Py_ssize_t n_occurring = 0
    cdef Py_ssize_t i
    memset(present, 0, sizeof(present))
    for i in range(node.begin, node.end):
        present[bins[rows[i]] >> 6] |= <uint64_t> 1 << (bins[rows[i]] & 63)
    for i in range(4):
        left = present[i]
        while left:
            occurring[n_occurring] = <uint8_t> (64 * i + count_zeros(left))
            n_occurring += 1
            left &= left - 1
    return n_occurring


cdef void search_rows(Forest *forest, Node *node, bint only_categorical, Count of_type) noexcept nogil:
    """Find the best split of each tree of a node without tables."""
    cdef Search *search = &forest.search
    cdef Py_ssize_t size = search.size
    cdef Py_ssize_t stride = MAX_BINS * size
    cdef Py_ssize_t n_tables = number_tables(forest, node)
    cdef Py_ssize_t feature, member, fold, i, j, k, n_occurring, begin, end
    cdef Count *tables = <Count *> forest.scratch
    cdef Count *held
    cdef const uint8_t *bins
    cdef uint8_t occurring[MAX_BINS]
    cdef int32_t held_of[1 + MAX_ROWS_WITHOUT_TABLES]         # for each part, the index of its held table
    cdef int32_t begins[2 + MAX_ROWS_WITHOUT_TABLES]
    cdef Py_ssize_t n_parts = 0
    gather(forest, node)
    # The parts of the node's rows: the rows outside of all folds, and the rows of each fold, if any.
    for fold in range(-1, node.n_parts + 1):
        begin = node.begin if fold < 0 else node.bounds[fold]
        end = node.end if fold == node.n_parts else node.bounds[fold + 1]
        if begin == end:
            continue
        begins[n_parts] = <int32_t> begin
        held_of[n_parts] = 0
        if 0 <= fold < node.n_parts:
            for member in range(node.n_trees):
                if node.is_single or forest.held_out[node.trees[member]] == fold:
                    held_of[n_parts] = node.held[member] if node.held[member] > 0 else -1
        n_parts += 1
    begins[n_parts] = node.end
    for feature in range(forest.n_features):
        if forest.slots[feature + 1] - forest.slots[feature] < 2:
            continue
        if only_categorical and not forest.is_categorical[feature]:
            continue
        bins = forest.bins + feature * forest.n_rows
        n_occurring = find_bins(node, bins, occurring)
        if n_occurring < 2:
            continue
        for i in range(n_tables):
            for j in range(n_occurring):
                held = tables + i * stride + occurring[j] * size
                for k in range(size):
                    held[k] = 0
        if forest.has_missing[feature]:
            for i in range(n_tables):
                memset(tables + i * stride + forest.n_bins[feature] * size, 0, size * sizeof(Count))
        for j in range(n_parts):
            if held_of[j] < 0:
                continue
            held = tables + held_of[j] * stride if held_of[j] > 0 else NULL
            add_rows(forest, node, feature, begins[j], begins[j + 1], 1, tables, held)
        for member in range(node.n_trees):
            held = tables + node.held[member] * stride if node.held[member] > 0 else NULL
            search_feature(forest, node, member, feature, occurring, n_occurring, tables, held)


# --- A node with few rows of one tree ---


# The training rows of a node, and the sums of the classes that occur.
cdef struct FewRows:
    Py_ssize_t n
    int32_t rows[MAX_FEW_ROWS]      # their indices
    int32_t classes[MAX_FEW_ROWS]   # the index among the classes that occur
    int64_t targets[MAX_FEW_ROWS]
    int64_t weights[MAX_FEW_ROWS]
    uint16_t order[MAX_FEW_ROWS]    # MAX_FEW_ROWS * bin + position in ``rows``, ascending
    int32_t sum_of[MAX_FEW_SUMS]    # the index of each sum in the sums of all classes
    double factors[MAX_FEW_ROWS]
    int64_t node[MAX_FEW_SUMS]
    int64_t left[MAX_FEW_SUMS]
    int64_t other[MAX_FEW_SUMS]
    int64_t missing[MAX_FEW_SUMS]
    int64_t best_left[MAX_FEW_SUMS]


cdef inline void read_few(
    const Search *search,
    FewRows *few,               # INOUT, ``n`` and ``rows`` are given
    Search *own,                # OUT, the search over the classes that occur
    const int32_t *classes,     # (n_rows,), or NULL
    const int64_t *targets,     # (n_rows,), or NULL
    const int64_t *weights,     # (n_rows,), or NULL
) noexcept nogil:
    """Read targets, classes and weights of the rows, and renumber the classes that occur in ascending order."""
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
    """Sort rows by bin: the position of a key is the number of smaller keys. No branch depends on the bins."""
    cdef Py_ssize_t i, j, begin
    cdef int16_t keys[MAX_FEW_ROWS]
    cdef int16_t n_smaller[8]
    cdef int16_t key
    for i in range(few.n):
        keys[i] = <int16_t> (bins[few.rows[i]] * MAX_FEW_ROWS + i)
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
    """Add a row to the sums."""
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
    if few.order[0] // MAX_FEW_ROWS == few.order[n - 1] // MAX_FEW_ROWS:
        return
    if few.order[n - 1] // MAX_FEW_ROWS == n_bins:
        for i in range(search.size):
            few.missing[i] = 0
        while few.order[n - 1] // MAX_FEW_ROWS == n_bins:
            n -= 1
            add_few(search, few, few.order[n] % MAX_FEW_ROWS, few.missing)
    for i in range(search.size):
        search.left[i] = 0
    for i in range(n):
        bin = few.order[i] // MAX_FEW_ROWS
        if bin != last and i > 0:
            try_threshold(search, feature, last, bin, few.n - n, few.missing)
        add_few(search, few, few.order[i] % MAX_FEW_ROWS, search.left)
        last = bin
    if n < few.n and propose(search, search.left, feature):
        split_at(search, n_bins - 1, False)


cdef inline void search_few(
    Search *search,
    FewRows *few,
    int32_t feature,
    const uint8_t *bins,        # (n_rows,)
    int32_t n_bins,             # this is also the bin of missing values
) noexcept nogil:
    """Try all thresholds of an ordered feature. The most common kinds of sums have specialised code."""
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


cdef void search_sorted(Forest *forest, Node *node) noexcept nogil:
    """Find the best split by an ordered feature, for the only tree of a node with few rows."""
    cdef Search *search = &forest.search
    cdef Search own
    cdef FewRows few
    cdef Py_ssize_t feature, i
    prepare_search(forest, node, 0)
    few.n = 0
    for i in range(node.begin, node.end):
        if node.n_parts == 1 and node.bounds[0] <= i < node.bounds[1]:
            continue
        if forest.weights == NULL or forest.weights[node.rows.indices[i]] > 0:
            few.rows[few.n] = node.rows.indices[i]
            few.n += 1
    read_few(search, &few, &own, forest.classes, forest.targets, forest.weights)
    for feature in range(forest.n_features):
        if forest.slots[feature + 1] - forest.slots[feature] < 2 or forest.is_categorical[feature]:
            continue
        search_few(&own, &few, <int32_t> feature, forest.bins + feature * forest.n_rows, forest.n_bins[feature])
    if own.best.feature < 0:
        return
    for i in range(search.size):
        search.best_left[i] = 0
    for i in range(own.size):
        search.best_left[few.sum_of[i]] = few.best_left[i]


cdef bint has_one_target(Forest *forest, const Node *node, int32_t tree) noexcept nogil:
    """Return whether all training rows of a tree in a node have the same numeric target."""
    cdef int32_t fold = forest.held_out[tree]
    cdef Py_ssize_t part = part_of(node, fold)
    cdef Py_ssize_t i
    cdef int64_t t = 0
    cdef bint is_first = True
    cdef int32_t row
    i = node.begin
    while i < node.end:
        if fold >= 0 and i == node.bounds[part] and node.bounds[part + 1] > i:
            i = node.bounds[part + 1]
            continue
        row = node.rows.indices[i]
        i += 1
        if forest.weights != NULL and forest.weights[row] == 0:
            continue
        if is_first:
            t, is_first = forest.targets[row], False
        elif forest.targets[row] != t:
            return False
    return True


cdef int32_t count_held_out(const Forest *forest, const Node *node, int32_t tree) noexcept nogil:
    """Return the number of rows of a node that the tree holds out."""
    cdef Py_ssize_t part = part_of(node, forest.held_out[tree])
    return node.bounds[part + 1] - node.bounds[part] if forest.held_out[tree] >= 0 else 0


cdef void find_splits(Forest *forest, Node *node, Count of_type) noexcept nogil:
    """Find the best split of each tree of a node. The gain is -infinity if a tree has no split."""
    cdef Py_ssize_t member
    cdef Py_ssize_t n_open = node.n_trees
    cdef int64_t n_alone = 0
    forest.search.best = NULL       # a freed node may have had the same address
    for member in range(node.n_trees):
        node.splits[member].gain = -INFINITY
        node.splits[member].feature = -1
        if forest.search.n_classes == 0 and has_one_target(forest, node, node.trees[member]):
            node.splits[member].feature = NO_SPLIT
            n_open -= 1
        else:
            n_alone += node.end - node.begin - count_held_out(forest, node, node.trees[member])
    forest.n_visits_alone += n_alone
    forest.n_visits += n_alone if node.n_trees == 1 else node.end - node.begin if n_open > 0 else 0
    if n_open == 0:
        return
    if node.tables != NULL:
        search_tables(forest, node, of_type)
    elif node.is_single and n_alone <= MAX_FEW_ROWS:
        search_sorted(forest, node)
        if forest.any_categorical:
            search_rows(forest, node, True, of_type)
    else:
        search_rows(forest, node, False, of_type)


cdef double decrease_of(Forest *forest, Node *node, Py_ssize_t member) noexcept nogil:
    """Return the decrease of impurity by the best split of a tree, or -infinity if it has no split."""
    cdef double decrease
    cdef double gain = node.splits[member].gain
    if gain == -INFINITY:
        return gain
    prepare_search(forest, node, member)
    decrease = gain - quality_of(&forest.search, node.sums + member * forest.search.size)
    decrease = forest.unit * decrease / forest.masses[node.trees[member]]
    return 0 if decrease < 0 else decrease
