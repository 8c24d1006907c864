"""Numbers become bin numbers of one byte, feature after feature, for trees.

Bin b of a feature holds the numbers x with edges[b - 1] < x <= edges[b]. NaN has the number of a further bin
behind the last one. Numbers are compared as float64, which holds any float32.
"""

from cython cimport floating
from libc.stdint cimport int64_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint8_t


# Rows are read in blocks of so many, so that a block stays in the cache while its columns are read.
cdef enum:
    BLOCK = 512


cdef inline uint8_t bin_of(double x, const double *edges, Py_ssize_t n_edges) noexcept nogil:
    """Return the number of edges below x, which is 0 for NaN; the search has no branch to mispredict."""
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t half
    if n_edges == 0:
        return 0
    while n_edges > 1:
        half = n_edges >> 1
        first += half * (edges[first + half - 1] < x)
        n_edges -= half
    return <uint8_t> (first + (edges[first] < x))


def fill_bins(
    const floating [:, :] X,            # IN, any strides
    const uint32_t [::1] order,         # IN, row numbers
    const double [::1] edges,           # IN, those of all features, ascending within a feature
    const int64_t [::1] begins,         # IN, (n_features + 1,), where each feature's edges begin
    const uint8_t [::1] is_number,      # IN, (n_features,): 0 for features that are left alone
    uint8_t [:, ::1] bins,              # OUT, (n_features, order's length)
):
    """Write the bins of the rows ``X[order]``."""
    cdef Py_ssize_t n_rows = order.shape[0]
    cdef Py_ssize_t n_features = X.shape[1]
    cdef Py_ssize_t begin, end, i, j, n_edges
    cdef const double *own
    cdef double x
    if bins.shape[0] != n_features or bins.shape[1] != n_rows:
        raise ValueError("bins must have one row per feature and one column for each entry of order.")
    if begins.shape[0] != n_features + 1 or is_number.shape[0] != n_features:
        raise ValueError("begins must have one entry more than there are features, is_number one for each.")
    if begins[n_features] != edges.shape[0]:
        raise ValueError("begins must end with the number of edges.")
    with nogil:
        begin = 0
        while begin < n_rows:
            end = min(begin + BLOCK, n_rows)
            for j in range(n_features):
                if not is_number[j]:
                    continue
                own = &edges[0] + begins[j] if edges.shape[0] > 0 else NULL
                n_edges = begins[j + 1] - begins[j]
                for i in range(begin, end):
                    x = <double> X[order[i], j]
                    bins[j, i] = bin_of(x, own, n_edges) if x == x else <uint8_t> (n_edges + 1)
            begin = end
