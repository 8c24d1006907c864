"""The search for the best split of each tree in one node.

A node with tables has all sums already. A small node fills one small table per feature and fold, and looks only at the
bins that occur.

Where one tree has few training rows, tables cost more than the rows: most bins are empty, and most classes have no
row. So rows are sorted by their bin, anew for each feature, and classes are numbered anew: those without rows would
add zeros to every quality. The sums are the same integers, and so the split is the same.
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
from optuna_treecv.engines.trees.kernels.split_search cimport MOST_BINS
from optuna_treecv.engines.trees.kernels.split_search cimport MOST_COUNTED
from optuna_treecv.engines.trees.kernels.split_search cimport SMALL
from optuna_treecv.engines.trees.kernels.split_search cimport Search
from optuna_treecv.engines.trees.kernels.split_search cimport end_ordered
from optuna_treecv.engines.trees.kernels.split_search cimport propose
from optuna_treecv.engines.trees.kernels.split_search cimport quality_of
from optuna_treecv.engines.trees.kernels.split_search cimport rows_in
from optuna_treecv.engines.trees.kernels.split_search cimport scan_counts
from optuna_treecv.engines.trees.kernels.split_search cimport scan_ordered
from optuna_treecv.engines.trees.kernels.split_search cimport search_categories
from optuna_treecv.engines.trees.kernels.split_search cimport split_at


cdef enum:
    CLOSED = -2                 # in place of a feature: the tree is not split here
    FEW = 32                    # rows; a power of 2, and 256 FEW is an int16
    FEW_SUMS = FEW + 2


cdef inline void prepare_search(Forest *forest, Node *node, Py_ssize_t member) noexcept nogil:
    """Point the search to one tree of a node."""
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
    Py_ssize_t n_given,
    const Count *total,
    const Count *held,
) noexcept nogil:
    """Improve the best split of a tree by those of one feature, with specialised code for the commonest kinds of
    sums of an ordered feature.
    """
    cdef Search *search = &forest.search
    cdef Search own
    cdef int64_t room[8]
    cdef int32_t f = <int32_t> feature
    cdef int32_t n_bins = forest.n_bins[feature]
    cdef bint has_missing = forest.has_missing[feature]
    if node.splits[member].feature == CLOSED:
        return
    prepare_search(forest, node, member)
    if forest.is_categorical[feature]:
        search_categories(search, f, n_bins, bins, n_given, total, held, forest.entry)
        return
    if search.counts and not has_missing and rows_in(search, search.node) <= MOST_COUNTED:
        scan_counts(search, f, bins, n_given, total, held)
        return
    if search.weighted or search.entropy or (search.n_classes != 2 and search.n_classes != 0):
        scan_ordered(search, f, n_bins, has_missing, bins, n_given, total, held, forest.entry, forest.missing)
        return
    own = search[0]
    own.weighted = own.entropy = False
    own.size = 2
    own.left, own.other = &room[0], &room[2]
    if search.n_classes == 2:
        own.n_classes = 2
        scan_ordered(&own, f, n_bins, has_missing, bins, n_given, total, held, &room[4], &room[6])
    else:
        own.n_classes = 0
        scan_ordered(&own, f, n_bins, has_missing, bins, n_given, total, held, &room[4], &room[6])


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


cdef extern from *:
    """
    #if defined(__GNUC__)
    #define COUNT_ZEROS(x) __builtin_ctzll(x)
    #else
    static int COUNT_ZEROS(unsigned long long x) { int n = 0; while (!(x & 1)) { x >>= 1; n++; } return n; }
    #endif
    """
    int count_zeros "COUNT_ZEROS"(uint64_t x) noexcept nogil


cdef Py_ssize_t find_bins(
    const Node *node,
    const uint8_t *bins,        # (n_rows,), of a feature
    uint8_t *given,             # OUT, the bins that have rows in the node, ascending
) noexcept nogil:
    """Find the bins that occur in a node; return how many there are."""
    cdef const int32_t *rows = node.rows.of
    cdef uint64_t present[4]        # a bit for each bin
    cdef uint64_t left
    cdef Py_ssize_t n_given = 0
    cdef Py_ssize_t i
    memset(present, 0, sizeof(present))
    for i in range(node.begin, node.end):
        present[bins[rows[i]] >> 6] |= <uint64_t> 1 << (bins[rows[i]] & 63)
    for i in range(4):
        left = present[i]
        while left:
            given[n_given] = <uint8_t> (64 * i + count_zeros(left))
            n_given += 1
            left &= left - 1
    return n_given


cdef void search_rows(Forest *forest, Node *node, bint only_categorical, Count of_type) noexcept nogil:
    """Find the best split of each tree of a node without tables."""
    cdef Search *search = &forest.search
    cdef Py_ssize_t size = search.size
    cdef Py_ssize_t stride = MOST_BINS * size
    cdef Py_ssize_t n_tables = number_tables(forest, node)
    cdef Py_ssize_t feature, member, fold, i, j, k, n_given, begin, end
    cdef Count *tables = <Count *> forest.scratch
    cdef Count *held
    cdef const uint8_t *bins
    cdef uint8_t given[MOST_BINS]
    cdef int32_t held_of[1 + SMALL]         # of folds with rows in this node
    cdef int32_t begins[2 + SMALL]
    cdef Py_ssize_t n_parts = 0
    gather(forest, node)
    # The parts of the node's rows: outside of all folds, and each fold that has rows here.
    for fold in range(-1, node.n_parts + 1):
        begin = node.begin if fold < 0 else node.bounds[fold]
        end = node.end if fold == node.n_parts else node.bounds[fold + 1]
        if begin == end:
            continue
        begins[n_parts] = <int32_t> begin
        held_of[n_parts] = 0
        if 0 <= fold < node.n_parts:
            for member in range(node.n_trees):
                if node.is_single or forest.own[node.trees[member]] == fold:
                    held_of[n_parts] = node.held[member] if node.held[member] > 0 else -1
        n_parts += 1
    begins[n_parts] = node.end
    for feature in range(forest.n_features):
        if forest.slots[feature + 1] - forest.slots[feature] < 2:
            continue
        if only_categorical and not forest.is_categorical[feature]:
            continue
        bins = forest.bins + feature * forest.n_rows
        n_given = find_bins(node, bins, given)
        if n_given < 2:
            continue
        for i in range(n_tables):
            for j in range(n_given):
                held = tables + i * stride + given[j] * size
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
            search_feature(forest, node, member, feature, given, n_given, tables, held)


# --- A node of few rows ---


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
    """Read the summands of rows, and renumber their classes, in order."""
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
        split_at(search, n_bins - 1, False)


cdef inline void search_few(
    Search *search,
    FewRows *few,
    int32_t feature,
    const uint8_t *bins,        # (n_rows,)
    int32_t n_bins,             # the bin of missing values is behind them
) noexcept nogil:
    """Try all thresholds of an ordered feature, with specialised code for the commonest kinds of sums."""
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
    """Find the best split of the only tree of a node of few rows, by an ordered feature."""
    cdef Search *search = &forest.search
    cdef Search own
    cdef FewRows few
    cdef Py_ssize_t feature, i
    prepare_search(forest, node, 0)
    few.n = 0
    for i in range(node.begin, node.end):
        if node.n_parts == 1 and node.bounds[0] <= i < node.bounds[1]:
            continue
        if forest.weights == NULL or forest.weights[node.rows.of[i]] > 0:
            few.rows[few.n] = node.rows.of[i]
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
    """Return whether all training rows of a tree in a node have the same number as target."""
    cdef int32_t fold = forest.own[tree]
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
        row = node.rows.of[i]
        i += 1
        if forest.weights != NULL and forest.weights[row] == 0:
            continue
        if is_first:
            t, is_first = forest.targets[row], False
        elif forest.targets[row] != t:
            return False
    return True


cdef int32_t rows_of_own(const Forest *forest, const Node *node, int32_t tree) noexcept nogil:
    """Return how many rows of a node the tree tests."""
    cdef Py_ssize_t part = part_of(node, forest.own[tree])
    return node.bounds[part + 1] - node.bounds[part] if forest.own[tree] >= 0 else 0


cdef void find_splits(Forest *forest, Node *node, Count of_type) noexcept nogil:
    """Find the best split of each tree of a node; where there is none, its gain is -infinity."""
    cdef Py_ssize_t member
    cdef Py_ssize_t n_open = node.n_trees
    cdef int64_t n_alone = 0
    forest.search.best = NULL       # the memory may be that of an earlier node
    for member in range(node.n_trees):
        node.splits[member].gain = -INFINITY
        node.splits[member].feature = -1
        if forest.search.n_classes == 0 and has_one_target(forest, node, node.trees[member]):
            node.splits[member].feature = CLOSED
            n_open -= 1
        else:
            n_alone += node.end - node.begin - rows_of_own(forest, node, node.trees[member])
    forest.n_visits_alone += n_alone
    forest.n_visits += n_alone if node.n_trees == 1 else node.end - node.begin if n_open > 0 else 0
    if n_open == 0:
        return
    if node.tables != NULL:
        search_tables(forest, node, of_type)
    elif node.is_single and n_alone <= FEW:
        search_sorted(forest, node)
        if forest.any_categorical:
            search_rows(forest, node, True, of_type)
    else:
        search_rows(forest, node, False, of_type)


cdef double decrease_of(Forest *forest, Node *node, Py_ssize_t member) noexcept nogil:
    """Return the decrease of impurity by the best split of a tree, or -infinity where there is none."""
    cdef double decrease
    cdef double gain = node.splits[member].gain
    if gain == -INFINITY:
        return gain
    prepare_search(forest, node, member)
    decrease = gain - quality_of(&forest.search, node.sums + member * forest.search.size)
    decrease = forest.unit * decrease / forest.masses[node.trees[member]]
    return 0 if decrease < 0 else decrease
